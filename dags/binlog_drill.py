"""Tries a restore: a random moment is built on a server, proved against the archive, and dropped again."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_drill"])
