"""The question whether a restore may be carried out, asked in the UI (Required Actions) or by the API."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.execution_time.hitl import upsert_hitl_detail

from binlog_airflow import tasks
from binlog_airflow.retry import one_sentence
from binlog_airflow.served import AirflowSkipException, TaskAwaitingInput
from pumphouse.errors import RestoreError

if TYPE_CHECKING:
    from airflow.sdk import Context

log = structlog.get_logger()
# XComs of the task: which plan was shown, and which one somebody said yes to. Marked a success, it has no answer.
SHOWN, APPROVED = "shown", "approved"
_FIELD = "server"
# What was planned a day ago is hardly what somebody wants now.
_PATIENCE = timedelta(days=1)
_NOTHING = "nothing was changed on {}"


class RestoreApproval(ApprovalOperator):  # type: ignore[misc]  # airflow has no types for strict mode
    """Shows the plan that the task ``plan`` left and waits for a yes; after a no the run fails, and nothing follows.

    Where data is dropped, the server's name has to be typed, as on the command line. On a dry run nothing is asked.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            # What another release has left there has none: `execute` says so.
            subject="{{ ti.xcom_pull(task_ids='plan').get('question', '') }}",
            body="{{ ti.xcom_pull(task_ids='plan').get('shown', '') }}",
            response_timeout=_PATIENCE,
            **kwargs,
        )

    @one_sentence
    def execute(self, context: Context) -> Any:
        """Ask, unless this is a dry run. The XCom `shown` says of which plan the answer will be."""
        if context["params"]["dry_run"]:
            raise AirflowSkipException(
                f"a dry run ends with the plan; trigger it with the moment {_plan(context)['plan']['to']} and without "
                "Dry run to carry it out"
            )
        plan = _plan(context)
        context["ti"].xcom_push(SHOWN, tasks.digest_of(plan))
        self.params = _to_type(plan)
        return super().execute(context)

    @one_sentence
    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Take the answer: a yes, with the right name where one is needed; a wrong one asks once more."""
        plan = _plan(context)
        tasks.require_approved(plan, context["ti"].xcom_pull(task_ids=self.task_id, key=SHOWN))
        self.params, unchanged = _to_type(plan), _NOTHING.format(plan["target"])
        if event.get("error_type") == "timeout":
            raise RestoreError(f"nobody answered within a day: {unchanged}", hint="trigger the restore again")
        if "error" in event:
            return super().execute_complete(context, event)
        who = (event.get("responded_by_user") or {}).get("name") or "nobody"
        if self.REJECT in event["chosen_options"]:
            raise RestoreError(f"rejected by {who}: {unchanged}")
        typed = str((event["params_input"] or {}).get(_FIELD) or "").strip()
        if plan["loses"] and typed != plan["server"]:
            said = f"approved by {who}, but {typed or 'nothing'} was typed, not {plan['server']}: asking again"
            log.warning(said)
            self._ask_again(context)
        yes = f"approved by {who}"
        log.info(yes)
        answered = super().execute_complete(context, event)
        # By its own name: the same plan, approved once more, is carried out once more.
        context["ti"].xcom_push(APPROVED, {"plan": tasks.digest_of(plan), "answer": uuid.uuid4().hex})
        return answered

    def _ask_again(self, context: Context) -> None:
        """The same question, without its answer; Airflow calls no ``execute`` from another method."""
        ti_id, params = context["task_instance"].id, self.serialized_params
        upsert_hitl_detail(ti_id=ti_id, options=self.options, subject=self.subject, body=self.body, params=params)
        if TaskAwaitingInput is not None:
            raise TaskAwaitingInput(method_name="execute_complete", timeout=_PATIENCE)
        self.defer(
            trigger=HITLTrigger(
                ti_id=ti_id, options=self.options, params=params, timeout_datetime=datetime.now(UTC) + _PATIENCE,
                multiple=False, defaults=None,
            ),
            method_name="execute_complete",
        )  # fmt: skip


def _plan(context: Context) -> dict[str, Any]:
    plan: dict[str, Any] = context["ti"].xcom_pull(task_ids="plan")
    return plan


def _to_type(plan: dict[str, Any]) -> ParamsDict:
    """The field for the server's name; none where nothing is lost."""
    if not plan["loses"]:
        return ParamsDict()
    # Not required by the form: it would take no Reject then. What was typed is looked at when the answer comes.
    name = Param(
        None,
        type=["null", "string"],
        title=f"Type {plan['server']}",
        description=f"to approve that this is dropped there: {plan['loses']}",
    )
    return ParamsDict({_FIELD: name})
