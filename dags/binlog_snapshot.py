"""Extends the archive up to the end of the run's interval: one mapped task a Pump, one task that commits the window."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["binlog_snapshot"])
