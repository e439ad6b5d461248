"""Deadlines of calls, cheap: buckets of 20 ms and one timer for all, because nearly every call ends before its own."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

log = structlog.get_logger()
_TICK_S = 0.02


class Timed(Protocol):
    """Something that has a deadline."""

    def expire(self, now: float) -> None:
        """Called once, at or after the deadline; it may `add` itself again."""


class Deadlines:
    """All deadlines of a server. Times are the event loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Timed]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0  # every bucket up to here has been looked at

    def add(self, deadline: float, timed: Timed) -> int:
        """Watch; returns the bucket, which `discard` wants. A deadline is met up to one tick late, never early."""
        if self._timer is None:
            self._seen = int(self._loop.time() / _TICK_S)
            self._timer = self._loop.call_later(_TICK_S, self._tick)
        bucket = max(int(deadline / _TICK_S) + 1, self._seen + 1)
        found = self._buckets.get(bucket)
        if found is None:
            self._buckets[bucket] = {timed}
        else:
            found.add(timed)
        return bucket

    def discard(self, bucket: int, timed: Timed) -> None:
        """Watch no more."""
        found = self._buckets.get(bucket)
        if found is not None:
            found.discard(timed)
            if not found:
                del self._buckets[bucket]

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def _tick(self) -> None:
        now = self._loop.time()
        reached = int(now / _TICK_S)
        # A long gap (a stopped process) may span more ticks than there are buckets.
        due = range(self._seen + 1, reached + 1)
        keys = due if len(due) <= len(self._buckets) else sorted(key for key in self._buckets if key <= reached)
        self._seen = max(self._seen, reached)
        for key in keys:
            for timed in self._buckets.pop(key, ()):
                try:
                    timed.expire(now)
                except Exception:  # of one call: the deadlines of all others are met all the same
                    log.exception("expiry_failed")
        self._timer = self._loop.call_later(_TICK_S, self._tick) if self._buckets else None
