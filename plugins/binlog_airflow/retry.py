"""Whether a failed task is tried again is the error's own property (`retryable`), not a list in a DAG."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import structlog
from airflow.sdk import ExceptionRetryPolicy, RetryDecision

from binlog_airflow.advice import in_airflow
from binlog_airflow.lines import make_readable
from pumphouse.errors import BinlogError

if TYPE_CHECKING:
    from airflow.sdk import Context


log = structlog.get_logger()
_P = ParamSpec("_P")
_R = TypeVar("_R")


class TaskEnded(SystemExit):
    """A task ended by an error of ours that its log says already; Airflow adds no stack to a SystemExit."""

    def __init__(self, error: BinlogError) -> None:
        super().__init__(1)
        self.error = error


def one_sentence(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A task function whose errors of ours stand in the log as their sentence; anything else keeps its stack.

    Its lines are those that a browser shows as they are (`binlog_airflow.lines`).
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        make_readable()
        try:
            return function(*args, **kwargs)
        except BinlogError as error:
            log.error(error.said(in_airflow), kind=type(error).__name__)  # noqa: TRY400 - the stack is what is left out
            log.debug("where", exc_info=True)
            raise TaskEnded(error) from None

    return run


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
        if isinstance(exception, TaskEnded):
            exception = exception.error
        if not isinstance(exception, BinlogError):
            return RetryDecision.default()
        if exception.retryable:
            delay = timedelta(seconds=min(5 * 2**try_number, 300))
            return RetryDecision.retry(delay=delay, reason=exception.said(in_airflow))
        return RetryDecision.fail(reason=exception.said(in_airflow))


def default_args() -> dict[str, Any]:
    """Arguments that every task of ours starts from."""
    return {
        "owner": "pumphouse",
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        "retry_policy": BinlogRetryPolicy(),
        # A task's log ends with a sentence; the dictionary is the XCom.
        "show_return_value_in_logs": False,
    }
