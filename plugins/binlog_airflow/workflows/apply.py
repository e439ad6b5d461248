"""Applies the archive interval by interval onto a restored target, driven by backfill.

`airflow backfill create --dag-id binlog_apply --from-date … --to-date … --reprocess-behavior completed --dag-run-conf
'{"target": "pumphouse_restore", "stop": "<tso or time>"}'`, or a backfill in the UI. It has no runs of its own. One
interval is applied at a time, and each from the target's checkpoint on: in whichever order they come, one that the
target has is passed over. The last one is cut at `stop`; running it again changes nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param

from binlog_airflow import tasks
from binlog_airflow.operators import PumphouseApplyOperator
from binlog_airflow.timetable import BackfillTimetable
from binlog_airflow.workflows.names import Names

if TYPE_CHECKING:
    from airflow.sdk import Context


class ApplyOperator(PumphouseApplyOperator):
    """What the run's form says."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(conn_id="", **kwargs)

    def work(self, context: Context) -> Any:
        """Load up to the smaller of the interval's end and the stop."""
        params = tasks.form_of(context)
        self.conn_id, self.stop = params["target"] or "", params["stop"] or None
        return super().work(context)


def make(names: Names) -> DAG:
    """Archive -> restored target, interval by interval."""
    restored = names.installation.replaced(names.parsed("airflow"))
    with names.dag(
        "binlog_apply",
        __doc__,
        schedule=BackfillTimetable(names.cron("apply_cron"), timezone="UTC"),
        description="Loads the archive into a restore target, interval by interval; "
        "driven by `airflow backfill create`.",
        params={
            "target": Param(
                # A run without conf names no server.
                None,
                type=["null", "string"],
                enum=[None, *restored],
                title="Target",
                description="required: connection of a server that was restored; the list is the setting "
                "airflow.restore_targets",
            ),
            "stop": Param(
                None,
                type=["null", "string"],
                title="Stop",
                description="a TIME as for pumphouse restore, beyond which nothing is applied; empty: the interval's "
                "end",
            ),
        },
    ) as dag:
        # A backfill has a limit of its own for active runs, above the DAG's: this one holds for all of them.
        ApplyOperator(task_id="apply", execution_timeout=timedelta(hours=12), max_active_tis_per_dag=1)
    return dag
