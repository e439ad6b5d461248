"""Loads the archive into the downstream database, in safe mode."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, get_current_context, task

from binlog_airflow import assets, tasks
from binlog_airflow.retry import default_args, one_sentence


@dag(
    schedule=[assets.SCHEMA],
    description="Loads the archive's newest windows into the target.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_load() -> None:
    """Archive -> target."""

    @task(outlets=[assets.TARGET], execution_timeout=timedelta(hours=12))
    @one_sentence
    def load(*, outlet_events: Any = None) -> dict[str, Any]:
        """Load from the target's checkpoint to the archive's end."""
        done = tasks.load_target(get_current_context()["run_id"])
        outlet_events[assets.TARGET].extra = {"end": str(done["to"])}
        return done

    load()


binlog_load()
