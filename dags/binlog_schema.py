"""Rebuilds the schema timeline from the DDL jobs of new windows."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_schema"])
