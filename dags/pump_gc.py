"""Triggers GC on the Pumps after their binlogs are safe, and reports what was freed and who holds the rest."""

from __future__ import annotations

from binlog_airflow.factory import pumphouse_dags

pumphouse_dags(only=["pump_gc"])
