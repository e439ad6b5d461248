"""Dumps the source while it is written to: every moment behind the dump can then be restored.

Trigger it by hand, at any time; the source is the connection `pumphouse_source`. A try that was killed is gone on with
by the next one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from binlog_airflow import assets, tasks
from binlog_airflow.retry import default_args, one_sentence


@dag(
    schedule=None,
    description="Dumps the source; started by hand.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    params={
        "tables": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            title="Tables",
            description="database.table or database.*, one a line: only these are read, and the rest is taken over "
            "from the newest dump; empty: everything",
        ),
    },
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_dump() -> None:
    """Source -> a base in the archive."""

    @task(outlets=[assets.ARCHIVE], execution_timeout=timedelta(hours=24))
    @one_sentence
    def dump(*, outlet_events: Any = None) -> dict[str, Any]:
        """Chunk by chunk, then the base."""
        done = tasks.dump_source(get_current_context()["params"]["tables"])
        outlet_events[assets.ARCHIVE].extra = assets.moved(
            done["ts"], base=done["key"], tables=done["tables"], rows=done["rows"]
        )
        return done

    dump()


binlog_dump()
