"""Loads the archive into the downstream databases, in safe mode: each target by itself, where there are several."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_load"])
