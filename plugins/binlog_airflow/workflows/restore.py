"""Restores a target to a moment. Trigger it by hand: the form asks for the moment and the target.

As the form opens it is a dry run: the plan stands in the log of the task `plan`. With *Dry run*
off the task `approve` shows the plan under Required Actions and waits for a yes; then the databases that the archive
knows are dropped on the target and built again. With *Tables*, only those are restored, beside what the target has:
nothing that exists is changed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Param

from binlog_airflow import tasks
from binlog_airflow.approval import APPROVED, RestoreApproval
from binlog_airflow.operators import PumphouseOperator, run_of
from binlog_airflow.served import AirflowSkipException
from binlog_airflow.workflows.names import Names

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanOperator(PumphouseOperator):
    """Plans what the run's form says; fails when the moment is outside the restorable range."""

    def work(self, context: Context) -> Any:
        """What will be read and done."""
        return tasks.plan_restore(tasks.RestoreForm.of(tasks.form_of(context)), self.here)


class _PlannedOperator(PumphouseOperator):
    """What comes behind the plan."""

    template_fields = (*PumphouseOperator.template_fields, "plan")

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan


class RestoreOperator(_PlannedOperator):
    """Carries the plan out that was approved."""

    def work(self, context: Context) -> Any:
        """The approved plan, and no other."""
        yes = context["ti"].xcom_pull(task_ids="approve", key=APPROVED)
        tasks.require_answered(self.plan, yes)
        form = tasks.RestoreForm.of(context["params"])
        done, self.flow = tasks.restore_target(
            self.plan, form, run_of(context), yes["plan"], self.here, once=yes["answer"]
        )
        return done


class ProveOperator(_PlannedOperator):
    """Proves the rows, where the form asks for it; what was found is the XCom `proven`, whatever it is."""

    def work(self, context: Context) -> None:
        """Red unless the proof is green."""
        if not context["params"]["verify"]:
            raise AirflowSkipException("the form does not ask for it")
        proof = tasks.verify_restore(self.plan, tasks.RestoreForm.of(context["params"]), self.here)
        context["ti"].xcom_push("proven", proof)
        tasks.require_equal(proof)


def make(names: Names) -> DAG:
    """Archive -> a moment."""
    targets = list(names.parsed("airflow").airflow.restore_targets)
    with names.dag(
        "binlog_restore",
        __doc__,
        schedule=None,
        description="Restores a target to a moment; started by hand, with a form.",
        # One that waits for its approval is in nobody's way: the restores themselves go one by one.
        active=16,
        params={
            # Without a default: what nobody typed is no moment.
            "to": Param(
                type="string",
                minLength=3,
                title="Moment",
                examples=[
                    "latest",
                    "10 minutes ago",
                    "yesterday 14:00 Europe/Berlin",
                    "2026-11-27T03:00:00Z",
                    "before DDL 137",
                    "before TXN 470592258683437056",
                    "gtid 0-1-1234",
                    "source time 2026-11-27 03:00:00Z",
                ],
                description_md="Everything that was committed up to then: a time to the second, a TSO, or words as in "
                "the examples. *latest* is the archive's end, which the events of the asset "
                f"[{names.assets.archive.name}](/assets) show. A moment that cannot be restored is refused with the "
                "range that can.",
            ),
            "target": Param(
                targets[0],
                type="string",
                enum=targets,
                title="Target",
                description="connection whose data is replaced, or that gets Tables beside what it has; the source "
                "takes Tables alone. The list is the setting airflow.restore_targets",
            ),
            "tables": Param(
                None,
                type=["null", "array"],
                items={"type": "string"},
                title="Tables",
                description="database.table, one a line; % or * stand for any text (shop.%). Only these, beside "
                "what the target has; empty: everything",
            ),
            "as": Param(
                None,
                type=["null", "string"],
                title="Name there",
                description="of one table, as database.table (shop.orders_0300), beside the live one; empty: its own",
            ),
            "into_database": Param(
                None, type=["null", "string"], title="Database there", description="of the tables; empty: their own"
            ),
            "keys": Param(
                None,
                type=["null", "array"],
                items={"type": "string"},
                title="Keys",
                description="of one table: primary keys, one a line (of several columns 7,abc). Only their rows",
            ),
            "key_from": Param(
                None,
                type=["null", "string"],
                title="Key from",
                description="or: its key's first column is this or more",
            ),
            "key_to": Param(
                None, type=["null", "string"], title="Key to", description="and less than this, which is no part of it"
            ),
            "base": Param(
                None,
                type=["null", "string"],
                title="Dump",
                description="TSO of the dump to begin from, as archive ls lists it; empty: the newest that leads to "
                "the moment",
            ),
            "verify": Param(
                False,
                type="boolean",
                title="Verify",
                description="afterwards hold the rows against the archive; the run fails if anything differs",
            ),
            "dry_run": Param(
                True, type="boolean", title="Dry run", description="only show the plan; off: ask, then restore"
            ),
            "accept_losses": Param(
                False, type="boolean", title="Accept losses", description="restore although binlogs are lost"
            ),
        },
    ) as dag:
        plan = PlanOperator(task_id="plan", execution_timeout=timedelta(minutes=30))
        approve = RestoreApproval(task_id="approve")
        # No time limit: a restore of a large server may take days.
        restore = RestoreOperator(task_id="restore", plan=plan.output, max_active_tis_per_dag=1)
        verify = ProveOperator(task_id="verify", plan=plan.output)
        plan >> approve >> restore >> verify
    return dag
