"""The watermark of the linked list is that of a queue whose head waits, as in the Go Pump."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.model.position import Pointer
from tests.support.plainpairing import Pairing


class Naive:
    """Items in arrival order; the head blocks while it is an unresolved prewrite."""

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, Pointer]] = []
        self.waiting: set[int] = set()
        self.watermark = 0
        self.handle = Pointer(0, 0)

    def add(self, start: int, commit: int, pointer: Pointer, *, is_prewrite: bool) -> None:
        if is_prewrite:
            self.waiting.add(start)
        else:
            self.waiting.discard(start)
        self.queue.append((start if is_prewrite else 0, commit, pointer))
        while self.queue and self.queue[0][0] not in self.waiting:
            _, commit, self.handle = self.queue.pop(0)
            self.watermark = max(self.watermark, commit)


@pytest.mark.row("P6", "P7")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=120))
def test_the_watermark_is_that_of_a_queue_whose_head_waits(steps: list[tuple[int, int]]) -> None:
    pairing, naive = Pairing(), Naive()
    ts = 100
    open_starts: list[int] = []
    for number, (kind, pick) in enumerate(steps):
        ts += 1
        pointer = Pointer(0, number)
        if kind == 0 or not open_starts:
            pairing.prewrite(ts, pointer, 0.0)
            naive.add(ts, 0, pointer, is_prewrite=True)
            open_starts.append(ts)
        elif kind in (1, 2):
            start = open_starts.pop(pick % len(open_starts))
            commit = ts if kind == 1 else 0
            assert pairing.resolve(start)
            pairing.passed(commit, pointer)
            naive.add(start, commit, pointer, is_prewrite=False)
        else:
            pairing.passed(ts, pointer)
            naive.add(0, ts, pointer, is_prewrite=False)
        assert pairing.position() == (naive.watermark, naive.handle)
        assert [each.start_ts for each in pairing.oldest(1000)] == open_starts
        assert pairing.min_start() == min(open_starts, default=None)


def test_a_prewrite_that_comes_twice_waits_once() -> None:
    pairing = Pairing()
    pairing.prewrite(10, Pointer(0, 0), 1.0)
    pairing.prewrite(10, Pointer(0, 50), 2.0)
    assert len(pairing) == 1
    assert pairing.resolve(10)
    assert not pairing.resolve(10)
    pairing.passed(20, Pointer(0, 100))
    assert pairing.position() == (20, Pointer(0, 100))


@pytest.mark.row("P6")
def test_unresolved_prewrites_behind_a_blocked_head_cost_no_memory_for_what_is_resolved() -> None:
    pairing = Pairing()
    pairing.prewrite(1, Pointer(0, 0), 0.0)
    for n in range(2, 2000, 2):
        pairing.prewrite(n, Pointer(0, n), 0.0)
        pairing.resolve(n)
        pairing.passed(n + 1, Pointer(0, n + 1))
    assert pairing.position()[0] == 0
    assert len(pairing.oldest(5000)) == 1
    node = pairing._root.next
    assert node is not None
    assert node.next is None
    pairing.resolve(1)
    assert pairing.position() == (1999, Pointer(0, 1999))
