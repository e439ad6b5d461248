"""Restores a target to a moment. Trigger it by hand: the form asks for the moment and the target.

The target's databases that the archive knows are dropped and built again, so `confirm` must repeat the target's
connection id, unless it is a dry run.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from binlog_airflow import tasks
from binlog_airflow.hooks import RESTORE_TARGET
from binlog_airflow.retry import default_args


@dag(
    schedule=None,
    description="Restores a target to a moment; started by hand, with a form.",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=default_args(),
    params={
        "to": Param(
            "latest",
            type="string",
            minLength=3,
            title="Moment",
            description="latest (the archive's end), a TSO or an ISO time",
        ),
        "target": Param(RESTORE_TARGET, type="string", minLength=1, title="Target", description="Connection id"),
        "dry_run": Param(True, type="boolean", title="Dry run", description="Only show the plan"),
        "accept_losses": Param(
            False, type="boolean", title="Accept losses", description="Restore although binlogs were declared lost"
        ),
        "confirm": Param(
            "", type="string", title="Confirm", description="The target's connection id once more: its data is replaced"
        ),
    },
    tags=["pumphouse"],
    doc_md=__doc__,
)
def binlog_restore() -> None:
    """Archive -> a moment."""

    @task(execution_timeout=timedelta(minutes=30))
    def plan() -> dict[str, Any]:
        """What will be read and done; fails when the moment is outside the restorable range."""
        params = get_current_context()["params"]
        if not params["dry_run"] and params["confirm"] != params["target"]:
            raise AirflowFailException(
                f"confirm says {params['confirm']!r}: repeat the target's connection id {params['target']!r}"
            )
        return tasks.plan_restore(str(params["to"]), str(params["target"]))

    @task(execution_timeout=timedelta(hours=24))
    def restore(found: dict[str, Any]) -> dict[str, Any]:
        """Carry the plan out."""
        context = get_current_context()
        params = context["params"]
        if params["dry_run"]:
            raise AirflowSkipException("a dry run ends with the plan")
        return tasks.restore_target(
            found, context["run_id"], str(params["target"]), accept_losses=bool(params["accept_losses"])
        )

    restore(plan())


binlog_restore()
