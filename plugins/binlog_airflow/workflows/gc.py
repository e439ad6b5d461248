"""Triggers GC on the Pumps after their binlogs are safe, and reports what was freed and who holds the rest.

A Go Pump cannot be told: its GC goes by age alone. The task compares the archive with the age that Go Pumps free at
(`archive.go_pump_gc_s`), and fails when the archive is not ahead of it by `archive.go_pump_margin_s`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from binlog_airflow.operators import PumphouseGcOperator
from binlog_airflow.workflows.names import Names


def make(names: Names) -> DAG:
    """Checkpoint -> Pump GC."""
    follows_load = names.parsed("airflow").airflow.gc_follows == "load"
    with names.dag(
        "pump_gc",
        __doc__,
        schedule=[names.assets.target if follows_load else names.assets.archive],
        description="Tells every Pump how far the archive reaches, and reports what its GC freed.",
    ) as dag:
        PumphouseGcOperator(task_id="collect", execution_timeout=timedelta(minutes=30))
    return dag
