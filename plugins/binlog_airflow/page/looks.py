"""A look at an installation for all who ask within a few seconds: a hundred viewers ask the store no more than one.

Everything is asked from the API server's process, in threads (`pumphouse.status.look`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from airflow.exceptions import AirflowException

from binlog_airflow.advice import in_airflow
from binlog_airflow.installation import Installation
from pumphouse.errors import BinlogError

if TYPE_CHECKING:
    from pumphouse.settings import Settings, TargetSettings
    from pumphouse.status.look import Asked
    from pumphouse.status.past import Past
    from pumphouse.status.report import Status

EVERY_S = 5.0
# A look that is older is shown to nobody: what was safe then need not be now.
_FRESH_S = 15.0
# So long a viewer waits for the look of another.
_WITHIN_S = 3.0
# What lies along the archive changes seldom, and takes a request for each of it.
_PAST_EVERY_S = 60.0
# So long a page waits for that; until it is there, the page is without it.
_PAST_WITHIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen; ``problem``: why there is no status. ``past`` None: it is still being read, or cannot be."""

    status: Status | None = None
    past: Past | None = None
    problem: str = ""


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    last: tuple[float, Seen] | None = None  # when it began
    past: Past | None = None
    asked: Asked | None = None
    asked_at: float = 0.0

    def younger_than(self, age_s: float) -> Seen | None:
        """The last look, unless it is older."""
        last = self.last
        return last[1] if last is not None and time.monotonic() < last[0] + age_s else None


class Looks:
    """The last look at each installation."""

    def __init__(self) -> None:
        self._kept: dict[Installation, _Kept] = {}

    def at(self, here: Installation) -> Seen:
        """A look that is some seconds old at most; while somebody looks again, others get the one before."""
        kept = self._kept.setdefault(here, _Kept())
        before = kept.younger_than(_FRESH_S)
        if not kept.lock.acquire(timeout=0 if before else _WITHIN_S):
            return before or Seen(problem="the API server gets no answer from the connections of the archive")
        try:
            seen = kept.younger_than(EVERY_S)
            if seen is None:
                at, seen = time.monotonic(), _look(here, kept)
                kept.last = (at, seen)
            return seen
        finally:
            kept.lock.release()


def _look(here: Installation, kept: _Kept) -> Seen:
    from pumphouse.status.look import Asked, look
    from pumphouse.status.past import past_of
    from pumphouse.status.report import Finding, Severity

    unread: dict[str, str] = {}
    try:
        settings = here.settings()
        targets = _targets(here, settings, unread)
    except (BinlogError, AirflowException) as error:
        return Seen(problem=error.said(in_airflow) if isinstance(error, BinlogError) else str(error))
    if kept.asked is None or (kept.asked.done and time.monotonic() > kept.asked_at + _PAST_EVERY_S):
        kept.asked, kept.asked_at = Asked(partial(past_of, settings)), time.monotonic()
    status = look(settings, targets)
    unknown = [
        Finding(
            severity=Severity.WARNING, who=f"connection {conn_id}", what=why, next=f"airflow connections get {conn_id}"
        )
        for conn_id, why in unread.items()
    ]
    found = kept.asked.answer(_PAST_WITHIN_S)
    if isinstance(found, Exception):
        kept.asked = None  # the next look asks again
    elif found is not None:
        kept.past = found
    return Seen(status=replace(status, findings=(*status.findings, *unknown)), past=kept.past)


def _targets(here: Installation, settings: Settings, unread: dict[str, str]) -> dict[str, TargetSettings]:
    """By section, as a status names them: what sections of the settings name, unless a connection names another server.

    Sections are those of the first installation where the DAGs of this one name their targets. ``unread`` takes the
    connections that name no server: all else is shown without them.
    """
    loaded, restored = here.servers(settings, unread)
    found = {} if here.targets else settings.target_sections
    for conn_id, server in loaded.items():
        if not here.targets or conn_id in here.targets:
            found["target" if conn_id == here.target else f"targets.{conn_id}"] = server
    first = here.replaced(settings)[:1]  # the second does not take its name where it is not read
    for conn_id, server in restored.items():
        found["restore_target" if conn_id in first else f"restore_target.{conn_id}"] = server
    return found
