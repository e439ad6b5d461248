"""The only place that reads the time. Rooms take a Clock, so tests can give them one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall clock and monotonic clock in seconds, and sleep."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block for that many seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block for that many seconds."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


# The longest sleep without a sign of life.
_NAP_S = 60.0


class Throttle:
    """Bytes a second over all threads; 0 = as fast as it goes."""

    def __init__(self, rate: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock.monotonic()

    def took(self, size: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until what was taken was due; ``meanwhile`` is called each minute, as servers end idle sessions."""
        if not self._rate:
            return
        with self._lock:
            now = self._clock.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            wait = self._free_at - now
        while wait > _NAP_S:
            self._clock.sleep(_NAP_S)
            wait -= _NAP_S
            meanwhile()
        self._clock.sleep(wait)


def duration(seconds: float) -> str:
    """``12 s``, ``40 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
