"""Loads the archive into the downstream databases, in safe mode: each target by itself, where there are several."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, get_current_context, task

from binlog_airflow import assets, tasks
from binlog_airflow.retry import default_args, one_sentence
from pumphouse.settings import Settings

_TARGETS = list(Settings.read_only("airflow", "targets").loaded)


@dag(
    schedule=[assets.SCHEMA],
    description="Loads the archive's newest windows into the targets.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_load() -> None:
    """Archive -> target."""

    @task(outlets=[assets.TARGET], execution_timeout=timedelta(hours=12), map_index_template="{{ target }}")
    @one_sentence
    def load(conn_id: str, *, outlet_events: Any = None) -> dict[str, Any]:
        """Load from the target's checkpoint to the archive's end."""
        context = get_current_context()
        context["target"] = conn_id
        done = tasks.load_target(context["run_id"], conn_id)
        outlet_events[assets.TARGET].extra = assets.moved(done["to"], rows=done["rows"], target=done["target"])
        return done

    if len(_TARGETS) == 1:
        load(_TARGETS[0])
    else:
        load.expand(conn_id=_TARGETS)


binlog_load()
