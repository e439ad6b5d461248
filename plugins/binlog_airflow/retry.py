"""Whether a failed task is tried again is the error's own property (`retryable`), not a list in a DAG."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import ExceptionRetryPolicy, RetryDecision

from pumphouse.errors import BinlogError

if TYPE_CHECKING:
    from airflow.sdk import Context


class BinlogRetryPolicy(ExceptionRetryPolicy):  # type: ignore[misc]
    """Fails at once on what another try cannot mend (corruption, a gap), retries on what may pass.

    Anything that is not ours, as a killed process, follows Airflow's usual rules.
    """

    def __init__(self) -> None:
        super().__init__(rules=[])

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Ask the error."""
        del max_tries, context
        if not isinstance(exception, BinlogError):
            return RetryDecision.default()
        if exception.retryable:
            return RetryDecision.retry(delay=timedelta(seconds=min(5 * 2**try_number, 300)), reason=str(exception))
        return RetryDecision.fail(reason=str(exception))


def default_args() -> dict[str, Any]:
    """Arguments that every task of ours starts from."""
    return {
        "owner": "pumphouse",
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        "retry_policy": BinlogRetryPolicy(),
    }
