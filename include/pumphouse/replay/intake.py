"""The input: transactions that wait to be taken, bounded by their bytes (row L5)."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

from pumphouse.errors import LoadError, UsageError
from pumphouse.replay.metrics import InputMetrics


class Sized(Protocol):
    """What is queued."""

    @property
    def rows(self) -> int:
        """Row changes."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes in memory, more or less."""
        ...


T = TypeVar("T", bound=Sized)


class Closed(Exception):
    """The input was closed, and everything of it was taken."""


class Intake(Generic[T]):
    """A queue between threads. `put` waits while what is queued fills the bound, until something is popped.

    A transaction that is larger than the bound is taken when nothing else is queued.
    """

    def __init__(self, max_bytes: int, metrics: InputMetrics) -> None:
        self._max, self._metrics = max_bytes, metrics
        self._queue: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, txn: T, timeout: float | None = None) -> None:
        """Add a transaction; waits for room.

        Raises:
            TimeoutError: there was no room for so many seconds.
            UsageError: the input is closed.
            LoadError: the run has failed: what it was is the cause.
        """
        size = txn.bytes
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._closed or self._error or not self._queue or self._bytes + size <= self._max, timeout
            )
            if self._error is not None:
                raise LoadError(f"the replay has ended: {self._error}", hint="see what `run` raised") from self._error
            if self._closed:
                raise UsageError("the input of the replay is closed")
            if not room:
                raise TimeoutError(f"{self._bytes} bytes wait in the input, at most {self._max} are taken")
            self._queue.append((txn, size))
            self._bytes += size
            self._metrics.came(txn.rows, size)
            self._changed.notify_all()

    def pop(self, timeout: float | None) -> T | None:
        """The next transaction; None when none came for so many seconds. Closed at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed or self._error, timeout)
            if self._error is not None:
                raise self._error
            if not self._queue:
                if self._closed:
                    raise Closed
                return None
            txn, size = self._queue.popleft()
            self._bytes -= size
            self._metrics.went(txn.rows, size)
            self._changed.notify_all()
            return txn

    def close(self) -> None:
        """No more comes; what is queued is still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Whoever waits on either side learns of it."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
