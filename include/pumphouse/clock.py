"""The only place that reads the time. Rooms take a Clock, so tests can give them one."""

from __future__ import annotations

import time
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


def duration(seconds: float) -> str:
    """``12 s``, ``40 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
