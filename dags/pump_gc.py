"""Triggers GC on the Pumps after their binlogs are safe, and reports what was freed and who holds the rest.

A Go Pump cannot be told: its GC goes by age alone. The task compares the archive with the age that Go Pumps free at
(`archive.go_pump_gc_s`), and fails when the archive is not ahead of it by `archive.go_pump_margin_s`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

from binlog_airflow import assets, tasks
from binlog_airflow.retry import default_args, one_sentence
from pumphouse.settings import Settings


@dag(
    schedule=[assets.TARGET if Settings.read_only("airflow").airflow.gc_follows == "load" else assets.ARCHIVE],
    description="Tells every Pump how far the archive reaches, and reports what its GC freed.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    tags=["pumphouse"],
    doc_md=__doc__,
)
def pump_gc() -> None:
    """Checkpoint -> Pump GC."""

    @task(execution_timeout=timedelta(minutes=30))
    @one_sentence
    def collect() -> dict[str, Any]:
        """Every Pump, one report each."""
        return tasks.collect_pumps()

    collect()


pump_gc()
