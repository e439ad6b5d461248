"""The lines of a task's log as Airflow's pages show them: in a browser, which rounds large integers and hides a True.

A number beyond 2**53 becomes text; a TSO with its clock time. So do the yes and the no of a fact; one that there
is not is left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from pumphouse.model.tso import compose, show

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

log = structlog.get_logger()
# JavaScript's numbers are exact up to here.
EXACT = 2**53
# The TSO of the year 2100: what is beyond is an id, as a cluster's.
_NO_TSO = compose(4_102_444_800_000)
# What structlog itself reads.
_ITS_OWN = frozenset({"event", "exc_info", "stack_info", "exception"})
_SAY_AGAIN_S = 10.0


def readable(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A processor of structlog."""
    return {name: _shown(each) if name not in _ITS_OWN else each for name, each in event.items() if each is not None}


def make_readable() -> None:
    """From now on every line of this process; more than once is as good as once."""
    processors = structlog.get_config()["processors"]
    if readable not in processors:
        # In place: a logger that was used before keeps the list.
        processors.insert(0, readable)


def is_tso(value: int) -> bool:
    """Whether a number that a browser rounds is a moment."""
    return EXACT < value < _NO_TSO


class Told:
    """Progress as lines: at most one in ten seconds."""

    def __init__(self, every_s: float = _SAY_AGAIN_S) -> None:
        self._every_s = every_s
        self._next = 0.0

    def __call__(self, step: str, done: int, total: int) -> None:
        """One step forward."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_s
        line = f"{step}: {done:,} of {total:,}"
        log.info(line)


def _shown(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) > EXACT:
        return show(value) if is_tso(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(each) for each in value]
    return value
