"""Groups that whoever submits writes by itself, as an event loop does, and those that are left to the thread (row P3).

What both decide the same is in `test_writer`. Time passes when the test says so.
"""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pump_service.store import writer
from pump_service.store.chaser import Chaser
from pump_service.store.frame import HEADER_BYTES
from pump_service.store.framing import LONGEST_TAIL
from pump_service.store.groups import SMALL_BYTES, SMALL_REQUESTS
from pump_service.store.records import Records
from pump_service.store.store import Item, Status, Store
from pump_service.store.summary import FileSummary
from pump_service.store.valuelog import ValueLog
from pumphouse.clock import SystemClock
from pumphouse.errors import PumpReadOnly, WriterFailed
from tests.support.crashfs import FaultyFs, failing
from tests.support.storekit import (
    a_bug,
    commit,
    find,
    index_meets,
    index_stands_still,
    log_payloads,
    logs_cannot_be_written,
    no_room_in_index,
    open_store,
    prewrite,
    settings,
    settle,
    so_often,
    store_all,
    stream,
    until,
    value_files,
    waits_for_index,
    write_lock,
    writer_of,
)
from tests.support.writers import nothing_is_short

HERE, THREAD = "here", "thread"
FIRST = 1  # start ts of what the thread wrote before the test begins
ROOMY = 1 << 30


class Hands(SystemClock):
    """A clock that stands until it is moved: the last look at the disk stays fresh."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


class Pump:
    """A store with a file that was begun and a disk that was looked at; this thread may write."""

    def __init__(self, directory: Path, **values: Any) -> None:
        self.directory = directory
        self.clock = Hands()
        self.fs = FaultyFs()
        values = {"value_log_file_bytes": ROOMY, **values}
        self.store = Store.open(settings(directory, **values), fs=self.fs, clock=self.clock)
        self.faults: list[BaseException] = []
        self.store.on_fault(self.faults.append)
        self.answers: list[tuple[int, type[Status], str]] = []  # start ts, status, who answered
        self._me = threading.get_ident()
        assert self.goes(prewrite(FIRST)) == THREAD, "the thread makes the file and looks at the disk"

    def submit(self, *items: Item) -> None:
        self.store.submit(Records.of(items), partial(self._answered, items), here=True)

    def _answered(self, items: tuple[Item, ...], statuses: list[Status] | None) -> None:
        who = HERE if threading.get_ident() == self._me else THREAD
        statuses = statuses or [None] * len(items)
        self.answers += [(item.start_ts, type(s), who) for item, s in zip(items, statuses, strict=True)]

    def come(self, number: int) -> list[tuple[int, type[Status], str]]:
        """So many answers, after `write_here`."""
        self.store.write_here()
        until(lambda: len(self.answers) >= number)
        with write_lock(self.store):  # who answered is through with the group
            found, self.answers = self.answers, []
        return found

    def goes(self, *items: Item) -> str:
        """Who writes and answers these, which are durable then."""
        self.submit(*items)
        found = self.come(len(items))
        assert [(start, status) for start, status, _ in found] == [(item.start_ts, type(None)) for item in items]
        (who,) = {who for _, _, who in found}
        return who

    def look_at_disk(self) -> None:
        assert not self.store.read_only

    def reopened(self) -> list[bytes]:
        """What a restart finds in the log, which goes on to be written."""
        self.store.close()
        store = open_store(self.directory)
        found = log_payloads(store)
        store_all(store, prewrite(900), commit(900, 901))
        assert find(store, 901) == commit(900, 901).payload
        store.close()
        return found


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[Pump]:
    with opened(tmp_path) as pump:
        yield pump


@contextmanager
def opened(directory: Path, **values: Any) -> Iterator[Pump]:
    pump = Pump(directory, **values)
    yield pump
    pump.store.close()
    assert not writer_of(pump.store).queue.bytes, "nothing is left in the queue"


def durable(start_ts: int, who: str = HERE) -> tuple[int, type[Status], str]:
    return start_ts, type(None), who


def failed(start_ts: int, who: str = HERE) -> tuple[int, type[Status], str]:
    return start_ts, WriterFailed, who


def of(*starts: int, size: int = 5) -> list[bytes]:
    return [prewrite(start, b"v" * size).payload if size != 5 else prewrite(start).payload for start in starts]


@pytest.mark.row("P3")
def test_what_waits_is_written_as_one_group_and_answered_after_its_sync_not_before(pump: Pump) -> None:
    store, end, syncs = pump.store, pump.store.synced_end, pump.fs.syncs
    found: list[bytes] = []

    def at_sync(path: Path) -> None:
        found.append(path.read_bytes())
        assert pump.answers == [], "nobody is answered before the sync"
        assert store.synced_end == end
        assert log_payloads(store) == of(FIRST), "and nobody sees it"

    pump.fs.faults["sync"] = at_sync
    starts = range(10, 40)
    for start in starts:
        pump.submit(prewrite(start))
    assert pump.answers == []
    assert pump.come(30) == [durable(start) for start in starts]
    assert pump.fs.syncs - syncs == 1
    pump.fs.faults.clear()
    assert all(prewrite(start).payload in found[0] for start in starts)
    assert store.synced_end > end
    assert store.prewrites.count == 31, "counted, though the index does not have it yet"
    settle(store)
    assert store.prewrites.is_open(10)
    assert pump.reopened() == of(FIRST, *starts)


@pytest.mark.row("P3")
def test_what_is_submitted_in_an_answer_is_written_behind_it(pump: Pump) -> None:
    pump.store.submit(Records.of([prewrite(10)]), lambda _: pump.submit(prewrite(11)), here=True)
    pump.store.write_here()
    assert pump.come(1) == [durable(11)]
    assert log_payloads(pump.store) == of(FIRST, 10, 11)


@pytest.mark.row("P3")
@pytest.mark.parametrize("what", ["bytes", "requests", "more_than_a_group"])
def test_a_large_group_goes_to_the_thread_and_a_small_one_behind_it_is_written_here_again(
    what: str, tmp_path: Path
) -> None:
    with opened(tmp_path, group_commit_bytes=4096 if what == "more_than_a_group" else 1 << 20) as pump:
        if what == "bytes":
            most = 2 * SMALL_BYTES - len(prewrite(10, bytes(SMALL_BYTES)).payload) - HEADER_BYTES - LONGEST_TAIL
            assert pump.goes(prewrite(10, bytes(most))) == HERE
            assert pump.goes(prewrite(11, bytes(most + 1))) == THREAD
            assert pump.goes(prewrite(12, bytes(most // 2)), prewrite(13, bytes(most // 2))) == THREAD
        elif what == "requests":
            for number, who in ((SMALL_REQUESTS, HERE), (SMALL_REQUESTS + 1, THREAD)):
                for start in range(number):
                    pump.submit(prewrite(number * 100 + start))
                assert {each[1:] for each in pump.come(number)} == {(type(None), who)}
        else:
            assert pump.goes(prewrite(10, bytes(3000))) == HERE
            for start in (11, 12, 13):
                pump.submit(prewrite(start, bytes(3000)))
            assert pump.come(3) == [durable(start, THREAD) for start in (11, 12, 13)]
        assert pump.goes(prewrite(14)) == HERE


@pytest.mark.row("P3")
def test_a_group_that_ends_a_file_goes_to_the_thread_and_the_first_of_the_next_file_too(tmp_path: Path) -> None:
    with opened(tmp_path, value_log_file_bytes=4096) as pump:
        assert pump.goes(prewrite(10, b"v" * 1000)) == HERE
        left = 4096 - pump.store.synced_end.offset - 2 * (HEADER_BYTES + LONGEST_TAIL)
        left -= sum(len(prewrite(start, b"v" * 1000).payload) for start in (11, 12)) - 2000
        assert pump.goes(prewrite(11, bytes(left // 2)), prewrite(12, bytes(left - left // 2))) == HERE
        assert 4096 - pump.store.synced_end.offset <= 2 * LONGEST_TAIL
        assert len(value_files(tmp_path)) == 1
        assert pump.goes(prewrite(13)) == THREAD
        assert pump.goes(prewrite(14)) == THREAD, "which makes the file"
        assert pump.goes(prewrite(15)) == HERE
        assert len(value_files(tmp_path)) == 2


@pytest.mark.row("P3", "P15")
def test_when_the_last_look_at_the_disk_is_old_the_thread_writes_which_looks(pump: Pump) -> None:
    pump.clock.at += 0.49
    assert pump.goes(prewrite(10)) == HERE
    pump.clock.at += 0.02
    assert pump.goes(prewrite(11)) == THREAD
    assert pump.goes(prewrite(12)) == HERE
    pump.clock.at += 0.5
    pump.look_at_disk()
    assert pump.goes(prewrite(13)) == HERE, "whoever looked"


@pytest.mark.row("P15")
def test_while_prewrites_are_refused_everything_goes_to_the_thread(tmp_path: Path) -> None:
    with opened(tmp_path, stop_write_at_available_bytes=1000) as pump:
        pump.fs.free = 999
        pump.clock.at += 0.5
        assert pump.store.read_only
        pump.submit(prewrite(10), commit(FIRST, 11))
        assert pump.come(2) == [(10, PumpReadOnly, THREAD), durable(FIRST, THREAD)]
        pump.fs.free = 1 << 40
        pump.clock.at += 0.5
        assert pump.goes(prewrite(12)) == THREAD
        assert pump.goes(prewrite(13)) == HERE


@pytest.mark.row("P15")
def test_while_the_bookkeeping_has_no_reserve_everything_goes_to_the_thread(tmp_path: Path) -> None:
    with opened(tmp_path, reserve_bytes=1 << 16) as pump:
        assert pump.goes(prewrite(10)) == HERE
        pump.fs.faults["preallocate"] = failing(errno.ENOSPC)
        with index_meets(write=so_often(1, no_room_in_index)):  # which gives it back
            assert pump.goes(prewrite(9)) == HERE
            settle(pump.store)
        pump.clock.at += 0.5
        pump.look_at_disk()
        assert pump.goes(prewrite(11)) == THREAD, "which keeps what is free for it"
        pump.fs.faults.clear()
        pump.clock.at += 0.5
        pump.look_at_disk()
        assert pump.goes(prewrite(12)) == HERE


@pytest.mark.row("P2", "P3")
def test_when_it_is_time_to_save_the_newest_files_summary_the_thread_writes_which_saves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump_service.store.writer.SAVE_SUMMARY_EVERY", 10_000)
    saved = tmp_path / "pumphouse" / "files" / "000000.summary"
    with opened(tmp_path) as pump:
        assert pump.goes(prewrite(10, b"v" * 4000)) == HERE
        assert pump.goes(prewrite(11, b"v" * 4000)) == HERE
        assert not saved.exists()
        assert pump.goes(prewrite(12, b"v" * 4000)) == THREAD
        summary = FileSummary.from_bytes(saved.read_bytes())
        assert summary is not None
        assert (summary.end, summary.records) == (pump.store.synced_end.offset, 4)
        assert pump.goes(prewrite(13, b"v" * 4000)) == HERE, "it begins from nothing"


@pytest.mark.row("P3")
def test_after_a_slow_disk_the_thread_writes_for_a_while(pump: Pump) -> None:
    def takes(seconds: float) -> None:
        def slow(_path: Path) -> None:
            pump.clock.at += seconds

        pump.fs.faults["sync"] = slow

    takes(writer.SLOW_S - 0.001)
    assert pump.goes(prewrite(10)) == HERE
    takes(writer.SLOW_S + 0.001)
    assert pump.goes(prewrite(11)) == HERE
    takes(0)
    assert pump.goes(prewrite(12)) == THREAD, "from the very next on"
    pump.clock.at += writer.AWAY_S - 0.001
    pump.look_at_disk()
    assert pump.goes(prewrite(13)) == THREAD
    pump.clock.at += 0.002
    pump.look_at_disk()
    assert pump.goes(prewrite(14)) == HERE


@pytest.mark.row("P4")
def test_when_the_index_has_no_room_nobody_here_waits_for_it_and_slow_mode_can_begin(tmp_path: Path) -> None:
    with opened(tmp_path, index_queue_records=1, slow_chaser_threshold_s=0.05) as pump:
        with index_stands_still(pump.store):
            assert pump.goes(prewrite(10)) == HERE
            assert waits_for_index(pump.store) == 1
            assert pump.goes(prewrite(11)) == THREAD
            assert pump.store.status().slow_mode
            assert pump.goes(prewrite(12), prewrite(13)) == HERE, "there is nothing to wait for now"
        settle(pump.store)
        assert [pump.store.prewrites.is_open(start) for start in range(10, 14)] == [True] * 4
        assert log_payloads(pump.store) == of(FIRST, *range(10, 14))


@pytest.mark.row("P4")
def test_a_group_of_several_requests_does_not_wait_for_the_index_either(tmp_path: Path) -> None:
    """There is room for one more hand-over, whatever the group is made of."""
    with opened(tmp_path, index_queue_records=2, slow_chaser_threshold_s=5) as pump, index_stands_still(pump.store):
        assert pump.goes(prewrite(10)) == HERE
        assert waits_for_index(pump.store) == 1
        for start in (11, 12, 13, 14):
            pump.submit(prewrite(start))
        assert pump.come(4) == [durable(start) for start in (11, 12, 13, 14)]
        assert not pump.store.status().slow_mode


@pytest.mark.row("P3", "P4")
def test_who_has_or_waits_for_the_write_lock_goes_first_and_the_thread_writes(pump: Pump) -> None:
    inside, leave = threading.Event(), threading.Event()

    def enter() -> None:
        with write_lock(pump.store):
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=enter, daemon=True)

    def at_sync(_path: Path) -> None:
        if not other.ident:
            other.start()
            until(lambda: write_lock(pump.store).waiting == 1)
            assert not inside.is_set(), "not while a group is under way"

    pump.fs.faults["sync"] = at_sync
    pump.submit(prewrite(10))
    pump.store.write_here()
    assert inside.wait(60)
    pump.submit(prewrite(11))
    pump.store.write_here()
    assert pump.answers == [durable(10)]
    leave.set()
    assert pump.come(2) == [durable(10), durable(11, THREAD)]
    other.join(60)
    assert pump.goes(prewrite(12)) == HERE


@pytest.mark.row("P3")
def test_the_order_of_the_log_is_that_of_submission_whoever_writes(tmp_path: Path) -> None:
    chance = random.Random(5)
    with opened(tmp_path, value_log_file_bytes=1 << 16, group_commit_bytes=1 << 20) as pump:
        sizes = {start: SMALL_BYTES if start % 17 == 0 else chance.randrange(900) for start in range(10, 200)}
        for start, size in sizes.items():
            pump.submit(prewrite(start, b"v" * size))
            if chance.random() < 0.4:
                pump.store.write_here()
            if chance.random() < 0.1:
                pump.clock.at += 0.5
        answers = pump.come(190)
        assert [each[:2] for each in answers] == [(start, type(None)) for start in sizes]
        assert {who for _, _, who in answers} == {HERE, THREAD}
        assert len(value_files(tmp_path)) > 1
        assert log_payloads(pump.store) == of(FIRST) + [prewrite(n, b"v" * size).payload for n, size in sizes.items()]


@pytest.mark.row("P3")
def test_many_threads_submit_and_each_finds_its_own_in_its_order_whoever_writes(pump: Pump) -> None:
    starts = [range(1000 * n, 1000 * n + 40) for n in range(1, 7)]

    def submit_all(mine: range) -> None:
        for start in mine:
            pump.submit(prewrite(start))
            if start % 3:
                pump.store.write_here()

    threads = [threading.Thread(target=submit_all, args=(mine,), daemon=True) for mine in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    answers = pump.come(240)
    found = [start for start, _, _ in answers]
    assert {status for _, status, _ in answers} == {type(None)}
    assert [[start for start in found if start in mine] for mine in starts] == [list(mine) for mine in starts]
    assert log_payloads(pump.store) == of(FIRST, *found)


@pytest.mark.row("P3")
def test_a_close_writes_what_nobody_came_to_write(pump: Pump) -> None:
    pump.submit(prewrite(10))
    pump.submit(prewrite(11))
    pump.store.close()
    assert pump.answers == [durable(10, THREAD), durable(11, THREAD)]
    pump.submit(prewrite(12))
    assert pump.answers[2:] == [failed(12)], "it came too late"
    pump.store.write_here()
    assert pump.reopened() == of(FIRST, 10, 11)


@pytest.mark.row("P3")
def test_a_close_waits_for_the_group_that_is_written_here(pump: Pump) -> None:
    closings = [threading.Thread(target=pump.store.close, daemon=True) for _ in range(2)]

    def at_sync(_path: Path) -> None:
        if not closings[0].ident:
            for each in closings:
                each.start()
            until(lambda: writer_of(pump.store).queue.closed)
            closings[0].join(0.05)
            assert all(each.is_alive() for each in closings)

    pump.fs.faults["sync"] = at_sync
    pump.submit(prewrite(10))
    pump.store.write_here()
    assert pump.answers == [durable(10)]
    for each in closings:
        each.join(60)
        assert not each.is_alive()
    assert pump.reopened() == of(FIRST, 10)


@pytest.mark.row("P15")
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failed_write_or_sync_its_group_and_everything_behind_it_is_refused(operation: str, pump: Pump) -> None:
    end = pump.store.synced_end
    pump.fs.faults[operation] = failing(errno.EIO, times=1)
    pump.submit(prewrite(10))
    pump.submit(prewrite(11), commit(FIRST, 12))
    assert pump.come(3) == [failed(10), failed(11), failed(FIRST)]
    assert "injected" in str(pump.store.writer_error)
    pump.submit(prewrite(13))
    assert pump.come(1) == [failed(13)]
    assert pump.store.synced_end == end
    assert log_payloads(pump.store) == of(FIRST)
    assert pump.faults == [], "a disk, not a bug"
    assert pump.reopened()[:1] == of(FIRST)


@pytest.mark.row("P15")
def test_a_full_disk_is_cut_here_then_the_threads_business_and_each_record_is_there_once(pump: Pump) -> None:
    size = pump.store.synced_end.offset
    pump.fs.short_write = 30
    pump.fs.faults["write"] = failing(errno.ENOSPC)
    pump.fs.free = 0
    pump.submit(prewrite(10), commit(FIRST, 11))
    assert pump.come(2) == [(10, PumpReadOnly, HERE), (FIRST, PumpReadOnly, HERE)]
    assert value_files(pump.directory)[0].stat().st_size == size
    assert not pump.store.writer_error
    pump.fs.faults.clear()
    assert pump.goes(commit(FIRST, 11)) == THREAD, "a commit is tried again each time"
    pump.fs.free = 1 << 40
    pump.clock.at += 0.5
    assert pump.goes(prewrite(12, b"v" * 70_000)) == THREAD  # behind what was laid ahead
    pump.fs.faults["write"] = failing(errno.ENOSPC, times=1)
    assert pump.goes(prewrite(13)) == HERE
    assert pump.reopened() == [*of(FIRST), commit(FIRST, 11).payload, *of(12, size=70_000), *of(13)]


@pytest.mark.row("P15", "P5")
@pytest.mark.parametrize("how", ["clean", "killed"])
def test_what_a_full_disk_took_in_part_and_was_then_refused_is_not_left_in_the_log(how: str, tmp_path: Path) -> None:
    pump = Pump(tmp_path / "data")
    assert pump.goes(prewrite(5, b"v" * 70_000)) == HERE

    def full(_path: Path) -> None:
        pump.fs.free = 0
        raise OSError(errno.ENOSPC, "injected")

    pump.fs.short_write = 3500
    pump.fs.faults["write"] = full
    pump.submit(prewrite(10, b"x" * 3000), prewrite(11, b"y" * 33_000))
    assert {status for _, status, _ in pump.come(2)} == {PumpReadOnly}
    pump.fs.faults.clear()
    if how == "killed":
        shutil.copytree(tmp_path / "data", tmp_path / "found")
    pump.store.close()
    found = open_store(tmp_path / ("found" if how == "killed" else "data"))
    assert log_payloads(found) == [prewrite(FIRST).payload, prewrite(5, b"v" * 70_000).payload]
    found.close()


@pytest.mark.row("P15", "P6")
def test_an_outcome_that_a_full_disk_did_not_take_is_written_behind_the_next_group(pump: Pump) -> None:
    pump.fs.faults["write"] = failing(errno.ENOSPC)
    pump.fs.free = 0
    pump.store.settling.committed(FIRST, 5)
    until(lambda: pump.store.read_only)
    until(lambda: pump.store.watermark == 5)
    pump.fs.faults.clear()
    pump.fs.free = 1 << 40
    pump.clock.at += 0.5
    pump.look_at_disk()
    assert pump.goes(prewrite(10)) == HERE
    until(lambda: len(log_payloads(pump.store)) == 3)
    settle(pump.store)
    assert stream(pump.store) == [(FIRST, 5)]


@pytest.mark.row("P15")
def test_a_fake_that_is_on_no_file_is_published_when_the_write_lock_is_free_soon(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pump.store
    assert pump.goes(commit(FIRST, 2)) == HERE
    settle(store)
    pump.fs.free = 0
    pump.clock.at += 0.5
    assert store.read_only
    taken, leave = threading.Event(), threading.Event()

    def as_who_writes() -> None:
        with write_lock(store):
            taken.set()
            leave.wait(60)

    thread = threading.Thread(target=as_who_writes, daemon=True)
    thread.start()
    assert taken.wait(60)
    assert not store.publish_unpersisted(20)
    settle(store)
    assert store.watermark == 2, "and nothing of it is left"
    monkeypatch.setattr(writer, "_SOON_S", 20)
    threading.Timer(0.005, leave.set).start()
    assert store.publish_unpersisted(20)
    thread.join()
    until(lambda: store.watermark == 20)
    assert write_lock(store).try_for(0), "the lock is free again"
    write_lock(store).release()


@pytest.mark.row("P3", "P15")
def test_a_bug_in_the_log_is_reported_and_nobody_is_answered_durable_nor_twice(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ValueLog, "_account", a_bug)  # behind the sync
    pump.submit(prewrite(10))
    pump.submit(prewrite(11), prewrite(12))
    assert pump.come(3) == [failed(10), failed(11), failed(12)]
    assert [type(fault) for fault in pump.faults] == [ZeroDivisionError]
    pump.submit(prewrite(13))
    assert pump.come(1) == [failed(13)]
    monkeypatch.undo()
    assert pump.reopened()[:1] == of(FIRST)


@pytest.mark.row("P3", "P4", "P15")
def test_a_bug_in_the_hand_over_is_reported_behind_the_answer_and_ends_writing(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chaser, "hand_over", a_bug)
    pump.submit(prewrite(10))
    assert pump.come(1) == [durable(10)]
    pump.submit(prewrite(11), prewrite(12))
    assert pump.come(2) == [failed(11), failed(12)]
    assert [type(fault) for fault in pump.faults] == [ZeroDivisionError]
    monkeypatch.undo()
    assert pump.reopened()[:2] == of(FIRST, 10), "what was answered is there"


@pytest.mark.row("P3")
def test_a_bug_in_the_look_whether_it_is_short_leaves_the_group_to_the_thread(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump.submit(prewrite(10))
    with monkeypatch.context() as patch:
        patch.setattr(Chaser, "ready", a_bug)
        with pytest.raises(ZeroDivisionError):
            pump.store.write_here()
    until(lambda: pump.answers)
    assert pump.come(1) == [durable(10, THREAD)]
    assert pump.goes(prewrite(11)) == HERE, "the lock is free again"


@pytest.mark.row("P3")
def test_an_answer_that_raises_keeps_nobody_from_theirs_and_does_not_end_writing(pump: Pump) -> None:
    def bad(_statuses: object) -> None:
        raise RuntimeError("a caller's bug")

    pump.submit(prewrite(10))
    pump.store.submit(Records.of([prewrite(11)]), bad, here=True)
    pump.submit(prewrite(12))
    assert pump.come(2) == [durable(10), durable(12)]
    assert pump.faults == []
    settle(pump.store)
    assert pump.store.prewrites.is_open(11)
    assert pump.goes(prewrite(13)) == HERE


@pytest.mark.row("P15")
@pytest.mark.parametrize("who", [HERE, THREAD])
def test_a_log_that_cannot_be_written_keeps_no_answer_back_and_ends_no_thread(
    who: str, pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ValueLog, "append", a_bug)
    if who == THREAD:
        nothing_is_short(monkeypatch)
    with logs_cannot_be_written("writer", "appender"):
        for start in (10, 11, 12):
            pump.submit(prewrite(start))
            assert pump.come(1) == [failed(start, who)]
    assert [type(each) for each in pump.faults] == [ZeroDivisionError]
    assert write_lock(pump.store).try_for(0), "the lock is free again"
    write_lock(pump.store).release()
    monkeypatch.undo()


@pytest.mark.row("P15")
def test_while_somebody_looks_at_the_disk_nobody_here_waits_for_it(pump: Pump) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def look(_path: Path) -> int:
        looking.set()
        go_on.wait(60)
        return 1 << 40

    pump.clock.at += 0.5
    pump.fs.free_bytes = look  # type: ignore[method-assign]
    other = threading.Thread(target=pump.look_at_disk, daemon=True)
    other.start()
    assert looking.wait(60)
    pump.submit(prewrite(10))
    pump.store.write_here()
    assert pump.answers == []
    go_on.set()
    assert pump.come(1) == [durable(10, THREAD)]
    other.join(60)


@pytest.mark.row("P3")
def test_a_slow_group_of_the_thread_counts_too(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_path: Path) -> None:
        pump.clock.at += writer.SLOW_S + 0.001

    pump.fs.faults["sync"] = slow
    with monkeypatch.context() as patch:
        nothing_is_short(patch)
        assert pump.goes(prewrite(10)) == THREAD
    pump.fs.faults.clear()
    assert pump.goes(prewrite(11)) == THREAD
    pump.clock.at += writer.AWAY_S
    pump.look_at_disk()
    assert pump.goes(prewrite(12)) == HERE


@pytest.mark.row("P3")
def test_without_sync_nothing_is_synced_and_the_rest_is_the_same(tmp_path: Path) -> None:
    with opened(tmp_path, sync_log=False) as pump:
        assert pump.goes(prewrite(10)) == HERE
        assert pump.fs.syncs == 0
