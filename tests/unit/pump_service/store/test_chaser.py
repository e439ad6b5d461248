"""Slow mode: writes go on while the index does not, and nothing is left out (row P4)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pump_service.store import chaser
from pump_service.store.block import Entry
from pump_service.store.chaser import Chaser
from pump_service.store.fs import REAL_FS
from pump_service.store.index_queue import IndexQueue
from pump_service.store.records import Records
from pump_service.store.valuelog import ValueLog
from pump_service.store.writelock import WriteLock
from pumphouse.clock import SYSTEM_CLOCK, Clock, SystemClock
from pumphouse.model.position import ZERO_POINTER
from pumphouse.settings import PumpSettings
from tests.support.setclock import QuickClock
from tests.support.storekit import (
    commit,
    fake,
    in_index,
    open_store,
    prewrite,
    settle,
    stream,
    until,
    write,
)


class Strides(SystemClock):
    """Between two looks at it a pass takes too long, as long as it is so."""

    stride = chaser.QUICK_PASS_S
    walked = 0.0

    def monotonic(self) -> float:
        self.walked += self.stride
        return super().monotonic() + self.walked


class Setup:
    """A value log and a queue that the test empties, with a chaser between them."""

    def __init__(self, directory: Path, clock: Clock = SYSTEM_CLOCK, **values: float) -> None:
        self.valuelog = ValueLog(REAL_FS, directory / "value", directory / "files", limit=4096, sync=False)
        self.valuelog.open()
        self.queue = IndexQueue(4)
        self.chaser = Chaser(
            valuelog=self.valuelog, queue=self.queue, clock=clock, threshold_s=0.05, poll_s=0.01, **values
        )
        self.ts = 0
        self.got: list[Entry] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            self.ts += 1
            with self.chaser.write_lock:
                appended = self.valuelog.append([Records.of([prewrite(self.ts, b"v" * 300)])])
                for block in appended.blocks:
                    self.chaser.hand_over(block)

    def take(self) -> None:
        while (work := self.queue.pop(0)) is not None:
            assert not callable(work)
            self.got += work


@pytest.mark.row("P4")
def test_slow_mode_turns_on_bypasses_the_queue_catches_up_and_turns_off(tmp_path: Path) -> None:
    setup = Setup(tmp_path, attempt_every_s=0)
    setup.write(4)
    assert not setup.chaser.on
    setup.write(1)
    assert setup.chaser.on, "one hand-over blocked longer than the threshold"
    setup.write(50)
    assert len(setup.queue) == 4, "writes bypass the queue"
    setup.chaser.start()

    def caught_up() -> bool:
        setup.take()
        return not setup.chaser.on

    until(caught_up)
    setup.take()
    assert [entry.start_ts for entry in setup.got] == list(range(1, 56)), "in order, each once"
    setup.write(3)
    setup.take()
    assert [entry.start_ts for entry in setup.got] == list(range(1, 59)), "hand-overs are direct again"
    setup.write(4)
    setup.write(1)
    assert setup.chaser.on
    assert setup.chaser.turned_on == 2, "it can turn on again"
    until(caught_up)
    setup.chaser.stop()
    setup.valuelog.close(footer=False)


@pytest.mark.row("P4")
def test_a_second_attempt_waits_for_a_minute(tmp_path: Path) -> None:
    setup = Setup(tmp_path, attempt_every_s=3600)
    setup.chaser.start()
    for turn in (1, 2):
        setup.write(5)
        assert setup.chaser.turned_on == turn
        for _ in range(20):
            setup.take()
            threading.Event().wait(0.01)
        if turn == 1:
            until(lambda: not setup.chaser.on)
    setup.take()
    assert len(setup.got) == 10, "everything is handed over all the same"
    assert setup.chaser.on, "but the write lock is not taken again so soon"
    setup.chaser.stop()
    setup.valuelog.close(footer=False)


@pytest.mark.row("P4")
def test_the_pass_under_the_write_lock_is_bounded_and_releases_it_either_way(tmp_path: Path) -> None:
    setup = Setup(tmp_path, QuickClock(pace=5), attempt_every_s=0)
    setup.write(5)
    setup.take()
    with setup.chaser.write_lock:
        setup.chaser.start()
        # It hands over the fifth, which is quick, and then waits for the lock; meanwhile the queue is filled again.
        until(lambda: setup.chaser.attempted > 0)
        setup.take()
        appended = setup.valuelog.append([Records.of([prewrite(100 + n) for n in range(8)])])
        assert setup.queue.push(appended.blocks[0][:4], 0)
    until(lambda: _held(setup.chaser.write_lock))
    assert setup.chaser.write_lock.try_for(20), "released although the pass did not reach the end"
    setup.chaser.write_lock.release()
    assert setup.chaser.on
    setup.chaser.stop()
    setup.valuelog.close(footer=False)


@pytest.mark.row("P4")
def test_after_a_pass_that_was_not_quick_the_write_lock_is_left_alone(tmp_path: Path) -> None:
    clock = Strides()
    setup = Setup(tmp_path, clock, attempt_every_s=0)
    setup.write(5)
    setup.take()
    with setup.chaser.write_lock:
        setup.chaser.start()
        until(lambda: len(setup.queue) == 1)  # the fifth, from the first pointer that was not handed over
    threading.Event().wait(0.2)
    assert setup.chaser.on
    assert setup.chaser.attempted == float("-inf")
    clock.stride = 0
    until(lambda: not setup.chaser.on)
    setup.take()
    assert [entry.start_ts for entry in setup.got] == [1, 2, 3, 4, 5]
    setup.chaser.stop()
    setup.valuelog.close(footer=False)


@pytest.mark.row("P4")
def test_a_hand_over_waits_for_the_threshold_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(tmp_path)
    waits: list[float | None] = []
    monkeypatch.setattr(setup.queue, "push", lambda _work, timeout: bool(waits.append(timeout)))
    setup.write(3)
    assert waits == [0.05], "and what comes after it does not wait at all"
    assert setup.chaser.on
    setup.valuelog.close(footer=False)


@pytest.mark.row("P4")
def test_the_numbers_are_those_of_the_row(tmp_path: Path) -> None:
    assert PumpSettings(data_dir=tmp_path).slow_chaser_threshold_s == 1.0
    assert (chaser.POLL_S, chaser.QUICK_PASS_S, chaser.LOCKED_PASS_S, chaser.ATTEMPT_EVERY_S) == (0.5, 1.0, 1.0, 60.0)


@pytest.mark.row("P4", "P5")
def test_a_store_in_slow_mode_answers_and_loses_nothing_over_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_queue_records=1, slow_chaser_threshold_s=0.01)
    go_on = threading.Event()
    in_index(store, lambda: go_on.wait(60))
    for n in range(100, 200, 2):
        assert write(store, prewrite(n), commit(n, n + 1)) == [None, None]
    assert store.status().slow_mode
    assert store.prewrites.count == 50, "counted, although only their value log records exist"
    go_on.set()
    settle(store)
    assert stream(store) == [(n, n + 1) for n in range(100, 200, 2)]
    assert store.prewrites.count == 0
    store.close()
    store = open_store(tmp_path)
    assert len(stream(store)) == 50


@pytest.mark.row("P4", "P5")
def test_closing_in_slow_mode_leaves_the_rest_to_the_next_start(tmp_path: Path) -> None:
    others = threading.enumerate()
    store = open_store(tmp_path, index_queue_records=1, slow_chaser_threshold_s=0.01)
    go_on = threading.Event()
    in_index(store, lambda: go_on.wait(60))
    for n in range(100, 200, 2):
        assert write(store, prewrite(n), commit(n, n + 1)) == [None, None]
    closing = threading.Thread(target=store.close)
    closing.start()
    until(lambda: "pump-chaser" not in [each.name for each in threading.enumerate() if each not in others])
    go_on.set()
    closing.join()
    store = open_store(tmp_path)
    assert stream(store) == [(n, n + 1) for n in range(100, 200, 2)]
    assert store.watermark == 199
    assert write(store, fake(300)) == [None]
    store.close()


def test_scanning_from_the_beginning_of_an_empty_log_gives_nothing(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    assert list(setup.valuelog.scan(ZERO_POINTER)) == []
    setup.valuelog.close(footer=True)


def _held(lock: WriteLock) -> bool:
    if lock.try_for(0):
        lock.release()
        return False
    return True
