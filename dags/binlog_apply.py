"""Applies the archive interval by interval onto a restored target, driven by backfill."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_apply"])
