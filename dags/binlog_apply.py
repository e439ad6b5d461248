"""Applies the archive interval by interval onto a restored target, driven by backfill.

`airflow backfill create --dag-id binlog_apply --from-date … --to-date … --reprocess-behavior completed --dag-run-conf
'{"target": "pumphouse_restore", "stop": "<tso or time>"}'`. It has no runs of its own. One interval is applied at a
time, and each from the target's checkpoint on: in whichever order they come, one that the target has is passed over.
The last one is cut at `stop`; running it again changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from binlog_airflow import tasks
from binlog_airflow.retry import default_args, one_sentence
from binlog_airflow.timetable import BackfillTimetable
from pumphouse.settings import Settings


@dag(
    schedule=BackfillTimetable(Settings.read_only("airflow").airflow.apply_cron, timezone="UTC"),
    description="Loads the archive into a restore target, interval by interval; driven by `airflow backfill create`.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_apply() -> None:
    """Archive -> restored target, interval by interval."""

    # A backfill has a limit of its own for active runs, above the DAG's: this one holds for all of them.
    @task(execution_timeout=timedelta(hours=12), max_active_tis_per_dag=1)
    @one_sentence
    def apply() -> dict[str, Any]:
        """Load up to the smaller of the interval's end and the stop."""
        context = get_current_context()
        conf = dict(context["dag_run"].conf or {})
        if not conf.get("target"):
            raise AirflowSkipException("no target in this run's conf: nothing to apply")
        end = context.get("data_interval_end")
        if end is None:
            raise AirflowFailException(
                "this run has no interval: start it by `airflow backfill create --dag-id binlog_apply --from-date …`"
            )
        return tasks.apply_interval(end, conf, context["run_id"])

    apply()


binlog_apply()
