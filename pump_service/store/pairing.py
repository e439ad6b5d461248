"""Prewrites wait for their outcome; the watermark is what no unresolved prewrite stands before (design: promises).

Records come in the order of the value log. The order of the stream is that of the Go Pump: a record counts as passed
when every prewrite before it is resolved, and the watermark is the largest commit ts among the passed. Because a writer
takes its commit ts after its prewrite was answered, no later commit can lie at or below it.

Only unresolved prewrites cost memory: each holds, in a linked list in arrival order, the largest commit ts and the last
pointer among the records between itself and the next unresolved one. Resolving it folds both into its predecessor.

This is the plain implementation, which says what is meant; the Pump runs `pump_service.store.order`, which does the
same with arrays, and tests hold the two against each other.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.model.tso import Tso


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A prewrite without an outcome."""

    start_ts: int
    arrived: float  # monotonic seconds at which this process saw it
    pointer: Pointer
    prewrite_key: bytes = b""  # read back from the value log where it is asked for


class _Node:
    __slots__ = ("arrived", "last", "max_commit", "next", "pointer", "prev", "start_ts")

    def __init__(self, start_ts: int, pointer: Pointer, arrived: float) -> None:
        self.start_ts = start_ts
        self.pointer = pointer
        self.arrived = arrived
        self.max_commit = 0
        self.last = pointer
        self.prev: _Node | None = None
        self.next: _Node | None = None


class Pairing:
    """Wait set and head-of-line order."""

    def __init__(self, watermark: int = 0, handle: Pointer = ZERO_POINTER) -> None:
        self._lock = threading.Lock()
        self._root = _Node(0, handle, 0.0)
        self._root.max_commit = watermark
        self._tail = self._root
        self._waiting: dict[int, _Node] = {}
        self._frozen: Pointer | None = None

    # -- indexer thread ----------------------------------------------------------------------------------------------

    def prewrite(self, start_ts: int, pointer: Pointer, arrived: float) -> None:
        """A prewrite arrived. One that waits already (a retry) changes nothing."""
        with self._lock:
            if start_ts in self._waiting:
                self._tail.last = pointer
                return
            node = _Node(start_ts, pointer, arrived)
            node.prev = self._tail
            self._tail.next = node
            self._tail = node
            self._waiting[start_ts] = node

    def resolve(self, start_ts: int) -> bool:
        """A prewrite got its outcome; False when none waits."""
        with self._lock:
            node = self._waiting.pop(start_ts, None)
            if node is None:
                return False
            before = node.prev
            if before is None:
                raise AssertionError("a waiting node has a predecessor")
            before.max_commit = max(before.max_commit, node.max_commit)
            before.last = node.last
            before.next = node.next
            if node.next is None:
                self._tail = before
            else:
                node.next.prev = before
            return True

    def passed(self, commit_ts: int, pointer: Pointer | None) -> None:
        """A record that is no prewrite arrived; ``pointer`` None = it is in memory only."""
        with self._lock:
            self._tail.max_commit = max(self._tail.max_commit, commit_ts)
            if pointer is not None:
                self._tail.last = pointer

    # -- any thread ----------------------------------------------------------------------------------------------------

    def is_waiting(self, start_ts: int) -> bool:
        """Whether a prewrite waits for its outcome."""
        return start_ts in self._waiting

    def position(self) -> tuple[Tso, Pointer]:
        """Watermark, and the pointer of the last record that was passed."""
        with self._lock:
            return Tso(self._root.max_commit), self._root.last

    def __len__(self) -> int:
        return len(self._waiting)

    def oldest(self, limit: int) -> list[Unresolved]:
        """Unresolved prewrites in order of arrival; the first holds the watermark."""
        found: list[Unresolved] = []
        with self._lock:
            node = self._root.next
            while node is not None and len(found) < limit:
                found.append(Unresolved(node.start_ts, node.arrived, node.pointer))
                node = node.next
        return found

    def min_start(self) -> int | None:
        """Smallest unresolved start ts."""
        with self._lock:
            return min(self._waiting, default=None)
