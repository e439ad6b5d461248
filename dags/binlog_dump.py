"""Dumps the source while it is written to: every moment behind the dump can then be restored.

Trigger it by hand, at any time; the source is the connection `pumphouse_source`. A try that was killed is gone on with
by the next one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

from binlog_airflow import tasks
from binlog_airflow.retry import default_args, one_sentence


@dag(
    schedule=None,
    description="Dumps the source; started by hand.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_dump() -> None:
    """Source -> a base in the archive."""

    @task(execution_timeout=timedelta(hours=24))
    @one_sentence
    def dump() -> dict[str, Any]:
        """Chunk by chunk, then the base."""
        return tasks.dump_source()

    dump()


binlog_dump()
