"""Reading one item ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pump_service.store.ahead import one_ahead


def test_items_come_in_their_order_each_made_while_the_one_before_is_in_use() -> None:
    made: list[int] = []
    ready = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            ready.release()
            yield number

    seen = []
    for number in one_ahead(items()):
        seen.append(number)
        assert ready.acquire(timeout=60)
        if number < 4:
            assert ready.acquire(timeout=60)  # the next one is made although this one is still in use
            ready.release()
        assert len(made) <= number + 2
    assert seen == [0, 1, 2, 3, 4]


def test_an_error_comes_behind_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("damage")

    seen = []
    with pytest.raises(ValueError, match="damage"):
        for number in one_ahead(items()):
            seen.append(number)
    assert seen == [1, 2]


def test_a_caller_that_stops_leaves_no_thread() -> None:
    for number in one_ahead(iter(range(100))):
        if number == 3:
            break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pump-read-ahead")]
