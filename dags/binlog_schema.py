"""Rebuilds the schema timeline from the DDL jobs of new windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

from binlog_airflow import assets, tasks
from binlog_airflow.retry import default_args, one_sentence


@dag(
    schedule=[assets.ARCHIVE],
    description="Rebuilds the schema timeline from DDL history.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_schema() -> None:
    """Archive -> schema timeline."""

    @task(outlets=[assets.SCHEMA], execution_timeout=timedelta(hours=1))
    @one_sentence
    def rebuild(*, outlet_events: Any = None) -> dict[str, Any]:
        """Fold; nothing to do without new DDL."""
        done = tasks.rebuild_schema()
        outlet_events[assets.SCHEMA].extra = assets.moved(done["upto"], ddls=done["jobs"])
        return done

    rebuild()


binlog_schema()
