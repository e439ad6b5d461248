"""Prewrites wait for their outcome; the watermark is what no unresolved prewrite stands before (design: promises).

Records come in the order of the value log. The order of the stream is that of the Go Pump: a record counts as passed
when every prewrite before it is resolved, and the watermark is the largest commit ts among the passed. Because a writer
takes its commit ts after its prewrite was answered, no later commit can lie at or below it.

Only unresolved prewrites cost memory: each holds, in a linked list in arrival order, the largest commit ts and the last
pointer among the records between itself and the next unresolved one. Resolving it folds both into its predecessor.

The plain implementation, which says what is meant: tests hold `pump_service.store.order` against it.
"""

from __future__ import annotations

from pump_service.store.order import Unresolved
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.model.tso import Tso


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
        self._root = _Node(0, handle, 0.0)
        self._root.max_commit = watermark
        self._tail = self._root
        self._waiting: dict[int, _Node] = {}

    def prewrite(self, start_ts: int, pointer: Pointer, arrived: float) -> None:
        """A prewrite arrived. One that waits already (a retry) changes nothing."""
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
        self._tail.max_commit = max(self._tail.max_commit, commit_ts)
        if pointer is not None:
            self._tail.last = pointer

    def is_waiting(self, start_ts: int) -> bool:
        """Whether a prewrite waits for its outcome."""
        return start_ts in self._waiting

    def position(self) -> tuple[Tso, Pointer]:
        """Watermark, and the pointer of the last record that was passed."""
        return Tso(self._root.max_commit), self._root.last

    def __len__(self) -> int:
        return len(self._waiting)

    def oldest(self, limit: int) -> list[Unresolved]:
        """Unresolved prewrites in order of arrival; the first holds the watermark."""
        found: list[Unresolved] = []
        node = self._root.next
        while node is not None and len(found) < limit:
            found.append(Unresolved(node.start_ts, node.arrived, node.pointer))
            node = node.next
        return found

    def min_start(self) -> int | None:
        """Smallest unresolved start ts."""
        return min(self._waiting, default=None)
