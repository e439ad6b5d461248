"""Triggers: what tasks and sensors wait for without a worker's slot. A look is in a thread, the rest in the event loop.

An event only says that there is reason to look again: whoever waits decides, from what it sees itself. So a trigger
that cannot look for good (a connection that is gone, an archive that is damaged) ends the wait: the task says why.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from binlog_airflow.advice import in_airflow
from binlog_airflow.installation import Installation
from binlog_airflow.served import AirflowNotFoundException
from pumphouse.errors import BinlogError

if TYPE_CHECKING:
    from pumphouse.model.tso import Tso

EVERY_S = 10.0
# What a triggerer needs to notice that a wait is over; where there is none, Airflow ends it then.
GRACE = timedelta(minutes=2)


class _Waiting(BaseTrigger):  # type: ignore[misc]  # airflow has no types for strict mode
    """Looks every ``every_s`` after ``pause_s``, until `look` says yes or it is ``until``, a Unix time."""

    def __init__(
        self, installation: dict[str, Any], told: dict[str, Any], pause_s: float, every_s: float, until: float
    ) -> None:
        super().__init__()
        self.installation = installation
        self.told = told
        self.pause_s = pause_s
        self.every_s = every_s
        self.until = until

    @abstractmethod
    def look(self) -> bool:
        """Whether to go on; called in a thread."""

    def facts(self) -> dict[str, Any]:
        """Further arguments."""
        return {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """As Airflow keeps it: names and numbers, no secret."""
        names = ("installation", "told", "pause_s", "every_s", "until")
        found = {name: getattr(self, name) for name in names}
        return f"{__name__}.{type(self).__name__}", found | self.facts()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, when there is reason to go on: what whoever waits wants to know then."""
        await asyncio.sleep(self._bounded(self.pause_s))
        look = sync_to_async(self._looked, thread_sensitive=False)
        while self._bounded(1.0) and not await look():  # noqa: ASYNC110 - what is waited for is not in this process
            await asyncio.sleep(self._bounded(self.every_s))
        yield TriggerEvent(self.told)

    def _bounded(self, seconds: float) -> float:
        return max(0.0, min(seconds, self.until - time.time()))

    def _looked(self) -> bool:
        try:
            return self.look()
        except BinlogError as error:
            self.log.warning("cannot look: %s", error.said(in_airflow))
            return not error.retryable
        except AirflowNotFoundException as error:
            self.log.warning("cannot look: %s", error)
            return True

    @property
    def _here(self) -> Installation:
        return Installation.from_dict(self.installation)


class PauseTrigger(_Waiting):
    """A while has passed: for what can only be tried again, as a target that somebody else loads."""

    def look(self) -> bool:
        """Nobody to ask."""
        return True


class WindowTrigger(_Waiting):
    """The Pumps that held a window could bring it further: they answer, and their watermarks are beyond its end."""

    def __init__(self, *, node_ids: Sequence[str], end: str, **waiting: Any) -> None:
        super().__init__(**waiting)
        self.node_ids = list(node_ids)
        self.end = end

    def facts(self) -> dict[str, Any]:
        """Which Pumps, and the window's end, a TSO."""
        return {"node_ids": self.node_ids, "end": self.end}

    def look(self) -> bool:
        """Each of them."""
        from binlog_airflow.silence import may_go_on
        from pumphouse.model.tso import Tso
        from pumphouse.parts import Parts

        with Parts(self._here.settings()) as parts:
            return all(may_go_on(parts, each, Tso(int(self.end))) for each in self.node_ids)


class _ReachedTrigger(_Waiting):
    def __init__(self, *, at: str, **waiting: Any) -> None:
        super().__init__(**waiting)
        self.at = at

    def facts(self) -> dict[str, Any]:
        """The moment, a TSO."""
        return {"at": self.at}

    @property
    def _at(self) -> Tso:
        from pumphouse.model.tso import Tso

        return Tso(int(self.at))


class ArchiveReachesTrigger(_ReachedTrigger):
    """The archive's end is at a moment, or beyond it."""

    def look(self) -> bool:
        """Its newest manifest says so."""
        from binlog_airflow.tasks import archive_end

        return archive_end(self._here) >= self._at


class TargetReachesTrigger(_ReachedTrigger):
    """A target is whole, at a moment or beyond it."""

    def __init__(self, *, conn_id: str, **waiting: Any) -> None:
        super().__init__(**waiting)
        self.conn_id = conn_id

    def facts(self) -> dict[str, Any]:
        """Which target, too."""
        return {**super().facts(), "conn_id": self.conn_id}

    def look(self) -> bool:
        """Its checkpoint says so."""
        from binlog_airflow.tasks import target_stands

        return (target_stands(self.conn_id, self._here) or 0) >= self._at
