"""Whether a failed task is tried again is the error's own property (`retryable`), not a list in a DAG."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import structlog

from binlog_airflow.advice import in_airflow
from binlog_airflow.lines import make_readable
from binlog_airflow.served import AirflowFailException, ExceptionRetryPolicy, RetryDecision
from pumphouse.errors import BinlogError

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy


log = structlog.get_logger()
_P = ParamSpec("_P")
_R = TypeVar("_R")


class TaskEnded(SystemExit):
    """A task ended by an error of ours that its log says already; Airflow adds no stack to a SystemExit.

    ``waited``: it has waited in triggers as long as it may, and another try would wait as long again.
    """

    def __init__(self, error: BinlogError, *, waited: bool = False) -> None:
        super().__init__(1)
        self.error = error
        self.waited = waited


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
            raise ended(error) from None

    return run


def ended(error: BinlogError, *, waited: bool = False) -> BaseException:
    """What a task ends with that failed by an error of ours, which its log has then."""
    log.error(error.said(in_airflow), kind=type(error).__name__)
    log.debug("where", exc_info=error)
    if RetryDecision is None and (waited or not error.retryable):
        failed: BaseException = AirflowFailException(type(error).__name__)  # nobody asks a policy
        return failed
    return TaskEnded(error, waited=waited)


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
        waited = isinstance(exception, TaskEnded) and exception.waited
        if isinstance(exception, TaskEnded):
            exception = exception.error
        if not isinstance(exception, BinlogError):
            return RetryDecision.default()
        if exception.retryable and not waited:
            delay = timedelta(seconds=min(5 * 2**try_number, 300))
            return RetryDecision.retry(delay=delay, reason=exception.said(in_airflow))
        return RetryDecision.fail(reason=exception.said(in_airflow))


def policy(given: RetryPolicy | None = None) -> dict[str, Any]:
    """The argument of an operator that says whether it is tried again; none where Airflow knows none."""
    if given is None and RetryDecision is None:
        return {}
    return {"retry_policy": given or BinlogRetryPolicy()}


def default_args() -> dict[str, Any]:
    """Arguments that every task of ours starts from."""
    return {
        "owner": "pumphouse",
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        **policy(),
        # A task's log ends with a sentence; the dictionary is the XCom.
        "show_return_value_in_logs": False,
    }
