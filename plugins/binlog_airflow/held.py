"""A task that waits for a Pump gives its worker back meanwhile, and says in its log for whom it waits and how long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import structlog
from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowRescheduleException

from pumphouse.clock import duration
from pumphouse.errors import PumpUnavailable, WindowHeld

log = structlog.get_logger()
# A Pump that brings nothing for so long is waited for outside of the worker.
STALLED_S = 20.0
_SOONEST_S, _LATEST_S = 15.0, 60.0


@contextmanager
def worker_given_back(limit_s: float) -> Iterator[None]:
    """A window that is held ends this run of the task; Airflow begins it anew after a while.

    After ``limit_s`` since its first run, the error is the task's.
    """
    try:
        yield
    except (WindowHeld, PumpUnavailable) as error:
        context = get_current_context()
        task, now = context["ti"], datetime.now(tz=UTC)
        waited = (now - (task.get_first_reschedule_date(context) or task.start_date or now)).total_seconds()
        if waited >= limit_s:
            raise
        again = min(max(waited / 4, _SOONEST_S), _LATEST_S)
        line = f"{error}; waiting without a worker, {duration(waited)} so far: next look in {duration(again)}"
        log.warning(line)
        raise AirflowRescheduleException(now + timedelta(seconds=again)) from None
