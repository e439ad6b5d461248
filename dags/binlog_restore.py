"""Restores a target to a moment. Trigger it by hand: the form asks for the moment and the target."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_restore"])
