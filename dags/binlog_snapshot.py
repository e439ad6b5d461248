"""Extends the archive up to the end of the run's interval: one mapped task a Pump, one task that commits the window.

A run that is triggered by hand has no interval: it extends the archive up to now.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import CronDataIntervalTimetable, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from binlog_airflow import assets, tasks
from binlog_airflow.retry import default_args, one_sentence
from pumphouse.settings import Settings


@dag(
    schedule=CronDataIntervalTimetable(Settings.read_only("airflow").airflow.snapshot_cron, timezone="UTC"),
    description="Archives what all Pumps have in commit order, one window a run.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_snapshot() -> None:
    """Pumps -> archive."""

    @task(execution_timeout=timedelta(minutes=5))
    @one_sentence
    def plan() -> dict[str, Any]:
        """Choose the next window; skip the run when the archive reaches its interval's end already."""
        # Without a logical date, as a run by hand has none, the context lacks the key.
        found = tasks.plan_window(get_current_context().get("data_interval_end"))
        if found is None:
            raise AirflowSkipException("the archive reaches the interval's end already")
        return found

    @task
    @one_sentence
    def nodes(found: dict[str, Any]) -> list[str]:
        """Ids of the Pumps to pull."""
        return tasks.node_ids(found)

    # The task is named by its Pump from its start on, not by a number.
    @task(execution_timeout=timedelta(hours=2), map_index_template="{{ task.op_kwargs['node_id'] }}")
    @one_sentence
    def pull(found: dict[str, Any], node_id: str) -> dict[str, Any]:
        """Pull one Pump."""
        return tasks.pull_node(found, node_id)

    @task(outlets=[assets.ARCHIVE], execution_timeout=timedelta(hours=2))
    @one_sentence
    def commit(found: dict[str, Any], reports: list[dict[str, Any]], *, outlet_events: Any = None) -> dict[str, Any]:
        """Write the manifest, then move the archive's checkpoint."""
        done = tasks.commit_window(found, list(reports))
        outlet_events[assets.ARCHIVE].extra = assets.moved(
            done["end"], manifest=done["manifest"], transactions=done["rows"], ddls=done["ddls"]
        )
        return done

    found = plan()
    commit(found, pull.partial(found=found).expand(node_id=nodes(found)))


binlog_snapshot()
