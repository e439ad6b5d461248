"""The question whether a restore may be carried out, asked in the UI (Required Actions) or by the API."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowSkipException

if TYPE_CHECKING:
    from airflow.sdk import Context


class RestoreApproval(ApprovalOperator):  # type: ignore[misc]  # airflow has no types for strict mode
    """Shows the plan that the task ``plan`` left and waits for a yes; after a no, or on a dry run, nothing follows."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            subject="{{ ti.xcom_pull(task_ids='plan')['question'] }}",
            body="{{ ti.xcom_pull(task_ids='plan')['shown'] }}",
            # What was planned a day ago is hardly what somebody wants now.
            response_timeout=timedelta(days=1),
            **kwargs,
        )

    def execute(self, context: Context) -> Any:
        """Ask, unless this is a dry run."""
        if context["params"]["dry_run"]:
            raise AirflowSkipException("a dry run ends with the plan")
        return super().execute(context)
