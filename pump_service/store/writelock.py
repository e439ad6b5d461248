"""The lock of who writes, which takes it for each group and lets it go for a moment only."""

from __future__ import annotations

import threading
from types import TracebackType


class WriteLock:
    """A lock that is held while a group is written and handed over; others enter it as a context.

    A plain lock would starve them: woken by its release, they find it taken for the next group. So a group waits until
    all of them have been inside.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting = threading.Condition(threading.Lock())
        self.waiting = 0  # others, that enter it as a context

    def try_for_group(self) -> bool:
        """Take it, unless somebody has it or waits for it; `release` ends that."""
        return not self.waiting and self._lock.acquire(blocking=False)

    def wait_for_group(self) -> None:
        """Take it behind everybody who waits for it; `release` ends that."""
        if self.waiting:
            with self._counting:
                self._counting.wait_for(lambda: not self.waiting)
        self._lock.acquire()

    def try_for(self, seconds: float) -> bool:
        """Take it, unless somebody has it for that long; `release` ends that."""
        return self._lock.acquire(timeout=seconds)

    def release(self) -> None:
        """Let it go; on any thread."""
        self._lock.release()

    def __enter__(self) -> None:
        with self._counting:
            self.waiting += 1
        try:
            self._lock.acquire()
        finally:
            with self._counting:
                self.waiting -= 1
                self._counting.notify_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
