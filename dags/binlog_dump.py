"""Dumps the source while it is written to: every moment behind the dump can then be restored."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_dump"])
