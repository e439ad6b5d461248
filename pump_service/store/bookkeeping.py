"""Writes that must get through on a full disk too: the index, and small files beside the value log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from pump_service.store.disk import DiskGuard, is_full
from pump_service.store.index import Index, IndexFailed
from pumphouse.clock import Clock

log = structlog.get_logger(__name__)

T = TypeVar("T")
RETRY_S = 1.0


class Bookkeeping:
    """Does what it is given, with the reserve that is kept for it. Any thread."""

    def __init__(self, index: Index, guard: DiskGuard, clock: Clock) -> None:
        self._index = index
        self._guard = guard
        self._clock = clock
        self.failures = 0  # of the indexer's thread

    def __call__(self, action: Callable[[], T]) -> T:
        """What the action returns; it is tried once more when the disk is full and there was a reserve."""
        try:
            return action()
        except (OSError, IndexFailed) as error:
            if not is_full(error) or not self._guard.make_room():
                raise
            if isinstance(error, IndexFailed):
                self.reopen()
        return action()

    def until_done(self, action: Callable[[], T], given_up: Callable[[], bool]) -> T:
        """What the action returns; tried again each second until it works, or until nobody waits for it."""
        while True:
            try:
                return action()
            except (IndexFailed, OSError) as error:
                log.exception("indexing_failed", error=str(error))
                if given_up():
                    self.failures += 1
                    raise
                self.mend(error, pause_s=RETRY_S)

    def mend(self, error: Exception, *, pause_s: float = 0.0) -> None:
        """Make what failed work the next time: room, or else a pause, and an index that is open again."""
        self.failures += 1
        if not (is_full(error) and self._guard.make_room()) and pause_s:
            self._clock.sleep(pause_s)
        if isinstance(error, IndexFailed):
            self.reopen()

    def reopen(self) -> None:
        """LevelDB takes nothing more after a failed write until it is opened again.

        Opening writes too. While it is closed its errors do not say any more that the disk is full: room is made here.
        """
        while True:
            try:
                self._index.reopen()
            except IndexFailed as error:
                log.warning("index_not_reopened", error=str(error))
                if is_full(error) and self._guard.make_room():
                    continue
            return
