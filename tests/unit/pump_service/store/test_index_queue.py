"""How long records wait to be indexed together (row P3): briefly, longer while many come, not when somebody waits."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pump_service.store import index_queue
from pump_service.store.block import Block, Entry
from pump_service.store.index_queue import IndexQueue, Work

LONG = 20.0


def block(records: int) -> Block:
    found = Block.of([Entry(0, 1, 0, 0, 0, 10)])
    return Block(*(np.repeat(getattr(found, name), records) for name in Block.__slots__))


class Popping:
    """`pop` in a thread of its own."""

    def __init__(self, queue: IndexQueue) -> None:
        self.found: list[Work | None] = []
        self._thread = threading.Thread(target=lambda: self.found.append(queue.pop(LONG)), daemon=True)
        self._thread.start()

    def records(self) -> int:
        self._thread.join(LONG / 2)
        assert not self._thread.is_alive(), "it waits for more"
        (work,) = self.found
        assert isinstance(work, Block)
        return len(work)

    def waits(self) -> bool:
        self._thread.join(0.1)
        return self._thread.is_alive()


@pytest.fixture(autouse=True)
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_queue, "LINGER_S", 0.01)
    monkeypatch.setattr(index_queue, "LINGER_MORE_S", LONG)


@pytest.mark.row("P3")
def test_few_records_wait_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = IndexQueue(1 << 20)
    queue.push(block(index_queue.MANY_RECORDS - 1), None)
    assert Popping(queue).records() == index_queue.MANY_RECORDS - 1
    monkeypatch.setattr(index_queue, "LINGER_S", LONG)
    queue.push(block(1), None)
    popping = Popping(queue)
    assert popping.waits()
    queue.push(block(4096), None)
    assert popping.records() == 4097


@pytest.mark.row("P3")
def test_while_many_come_they_wait_for_more_until_there_are_enough() -> None:
    queue = IndexQueue(1 << 20)
    queue.push(block(index_queue.MANY_RECORDS), None)
    popping = Popping(queue)
    assert popping.waits()
    queue.push(block(4096), None)
    assert popping.records() == index_queue.MANY_RECORDS + 4096


@pytest.mark.row("P3")
def test_what_somebody_waits_for_is_not_held_up_by_many() -> None:
    queue = IndexQueue(1 << 20)
    queue.push(block(index_queue.MANY_RECORDS), None)
    popping = Popping(queue)
    assert popping.waits()
    queue.call(lambda: None)
    assert popping.records() == index_queue.MANY_RECORDS
    queue = IndexQueue(1 << 20)
    queue.push(block(index_queue.MANY_RECORDS), None)
    queue.call(lambda: None)
    assert Popping(queue).records() == index_queue.MANY_RECORDS


@pytest.mark.row("P3", "P4")
def test_a_queue_that_is_full_waits_for_nothing() -> None:
    queue = IndexQueue(index_queue.MANY_RECORDS)
    queue.push(block(index_queue.MANY_RECORDS), None)
    assert Popping(queue).records() == index_queue.MANY_RECORDS
