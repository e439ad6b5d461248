"""Applies the archive interval by interval onto a restored target, driven by backfill.

`airflow backfill create --dag-id binlog_apply --from-date … --to-date … --reprocess-behavior completed --dag-run-conf
'{"target": "pumphouse_restore", "stop": "<tso or time>"}'`, or a backfill in the UI. It has no runs of its own. One
interval is applied at a time, and each from the target's checkpoint on: in whichever order they come, one that the
target has is passed over. The last one is cut at `stop`; running it again changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from binlog_airflow import tasks
from binlog_airflow.retry import default_args, one_sentence
from binlog_airflow.timetable import BackfillTimetable
from pumphouse.errors import UsageError
from pumphouse.settings import Settings

_SETTINGS = Settings.read_only("airflow").airflow
_TARGETS = list(_SETTINGS.restore_targets)


@dag(
    schedule=BackfillTimetable(_SETTINGS.apply_cron, timezone="UTC"),
    description="Loads the archive into a restore target, interval by interval; driven by `airflow backfill create`.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    params={
        "target": Param(
            # A run without conf names no server.
            None,
            type=["null", "string"],
            enum=[None, *_TARGETS],
            title="Target",
            description="required: connection of a server that was restored; the list is the setting "
            "airflow.restore_targets",
        ),
        "stop": Param(
            None,
            type=["null", "string"],
            title="Stop",
            description="a TIME as for pumphouse restore, beyond which nothing is applied; empty: the interval's end",
        ),
    },
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
        params = tasks.form_of(context)
        end = context.get("data_interval_end")
        if end is None:
            raise UsageError(
                "this run has no interval",
                hint="make a backfill of it: in the form, or `airflow backfill create --dag-id binlog_apply …`",
            )
        if not params["target"]:
            raise UsageError("no target is named", hint=f"give `target` in the conf: {', '.join(_TARGETS)}")
        return tasks.apply_interval(end, params["target"], params["stop"], context["run_id"])

    apply()


binlog_apply()
