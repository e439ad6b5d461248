"""Groups that the event loop's thread writes by itself, and those that it leaves to the writer thread (row P3).

The test's own thread is the loop's: a sync ends when the test says so, and time passes when it says so.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pump_service.store import writer
from pump_service.store.chaser import Chaser
from pump_service.store.groups import SMALL_BYTES, SMALL_REQUESTS
from pump_service.store.store import Item, Status, Store
from pump_service.store.summary import FileSummary
from pump_service.store.valuelog import ValueLog
from pumphouse.clock import SystemClock
from pumphouse.errors import PumpReadOnly, WriterFailed
from pumphouse.model.position import ZERO_POINTER
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
    submit,
    until,
    value_files,
    value_log,
    waits_for_index,
    write_lock,
    writer_of,
)
from tests.support.syncs import HeldSyncs

HERE, THREAD = "loop", "thread"
FIRST = 1  # start ts of what the thread wrote before the test begins


class Hands(SystemClock):
    """A clock that stands until it is moved: the last look at the disk stays fresh."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


class Beside:
    """A store beside a loop that is this thread, with a file that was begun and a disk that was looked at."""

    def __init__(self, directory: Path, **values: Any) -> None:
        self.directory = directory
        self.clock = Hands()
        self.fs = FaultyFs()
        self.held = HeldSyncs()
        self.store = Store.open(settings(directory, **values), fs=self.fs, clock=self.clock, syncs=self.held)
        self.faults: list[BaseException] = []
        self.store.on_fault(self.faults.append)
        self.answers: list[tuple[int, type[Status], str]] = []  # start ts, status, who answered
        self.submit(prewrite(FIRST))
        self.held.run_until(lambda: not self.writer.busy)
        assert self.taken() == [(FIRST, type(None), THREAD)], "the thread makes the file and looks at the disk"

    @property
    def writer(self) -> writer.Writer:
        return writer_of(self.store)

    def submit(self, *items: Item) -> None:
        submit(self.store, items, partial(self.answered, items))

    def answered(self, items: tuple[Item, ...], statuses: list[Status]) -> None:
        who = HERE if self.held.mine() else THREAD
        self.answers += [(item.start_ts, type(s), who) for item, s in zip(items, statuses, strict=True)]

    def taken(self) -> list[tuple[int, type[Status], str]]:
        """The answers since the last call."""
        found, self.answers = self.answers, []
        return found

    def come(self, number: int) -> list[tuple[int, type[Status], str]]:
        """Answers that come without the end of a sync, and nothing goes on then."""
        self.held.run_until(lambda: len(self.answers) >= number and not self.writer.busy)
        return self.taken()

    def goes(self, *items: Item) -> str:
        """Who writes and answers these, which are durable then."""
        self.submit(*items)
        self.end_until(lambda: not self.writer.busy)
        found = self.taken()
        assert [(start, status) for start, status, _ in found] == [(item.start_ts, type(None)) for item in items]
        (who,) = {who for _, _, who in found}
        return who

    def end_one(self) -> None:
        if self.held.begun:
            self.held.end()

    def end_until(self, condition: Callable[[], object]) -> None:
        """Every sync that is begun ends, until something is so."""

        def ended() -> object:
            self.end_one()
            return condition()

        self.held.run_until(ended)

    def look_at_disk(self) -> None:
        assert not self.store.read_only

    def stopping(self) -> threading.Thread:
        """Another thread closes the store, and has begun to."""
        thread = threading.Thread(target=self.store.close, daemon=True)
        thread.start()
        until(lambda: self.writer.queue.closed)
        return thread

    def close(self) -> None:
        thread = self.stopping()
        self.end_until(lambda: not thread.is_alive())

    def reopened(self) -> list[bytes]:
        """What a restart finds in the log, which goes on to be written."""
        store = open_store(self.directory)
        found = log_payloads(store)
        store_all(store, prewrite(900), commit(900, 901))
        assert find(store, 901) == commit(900, 901).payload
        store.close()
        return found


@contextmanager
def beside(directory: Path, **values: Any) -> Iterator[Beside]:
    pump = Beside(directory, **values)
    yield pump
    pump.close()
    assert not pump.writer.queue.bytes, "nothing is left in the queue"


def durable(start_ts: int, who: str = HERE) -> tuple[int, type[Status], str]:
    return start_ts, type(None), who


def failed(start_ts: int, who: str = THREAD) -> tuple[int, type[Status], str]:
    return start_ts, WriterFailed, who


def of(*starts: int, size: int = 5) -> list[bytes]:
    return [prewrite(start, b"v" * size).payload if size != 5 else prewrite(start).payload for start in starts]


@pytest.mark.row("P3")
def test_a_small_group_is_written_by_the_loops_thread_and_answered_when_its_sync_has_ended_not_before(
    tmp_path: Path,
) -> None:
    with beside(tmp_path) as pump:
        store, end = pump.store, pump.store.synced_end
        prewrites = store.prewrites.count
        pump.submit(prewrite(10))
        assert len(pump.held.begun) == 1
        assert prewrite(10).payload in value_files(tmp_path)[0].read_bytes(), "the system has it"
        pump.held.run()
        assert pump.answers == [], "nobody is answered before the sync"
        assert store.synced_end == end
        assert store.prewrites.count == prewrites
        assert log_payloads(store) == of(FIRST), "and nobody sees it"
        pump.held.end()
        assert pump.taken() == [durable(10)]
        assert store.prewrites.count == prewrites + 1, "counted, though the index does not have it yet"
        assert log_payloads(store) == of(FIRST, 10)
        assert store.synced_end > end
        settle(store)
        assert store.prewrites.is_open(10)
        assert store.status().backlog_bytes == 0
        assert (pump.writer.groups, pump.writer.records) == (2, 2)
    assert pump.reopened() == of(FIRST, 10)


@pytest.mark.row("P3")
def test_what_comes_while_a_sync_is_under_way_goes_together_as_the_next_group(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        before = pump.fs.syncs
        pump.submit(prewrite(10))
        for start in range(11, 40):
            pump.submit(prewrite(start))
            pump.held.run()
            assert len(pump.held.begun) == 1, "one group at a time"
        pump.held.end()
        assert pump.taken() == [durable(10)]
        assert len(pump.held.begun) == 1
        pump.held.end()
        assert pump.taken() == [durable(start) for start in range(11, 40)]
        assert pump.fs.syncs - before == 2
        assert not pump.held.begun
        assert log_payloads(pump.store) == of(FIRST, *range(10, 40))


@pytest.mark.row("P3")
def test_a_group_takes_no_more_bytes_than_it_may_and_what_was_too_much_comes_first_in_the_next(tmp_path: Path) -> None:
    with beside(tmp_path, group_commit_bytes=4096) as pump:
        pump.submit(prewrite(10))
        for start in range(11, 18):
            pump.submit(prewrite(start, b"v" * 1500))
        sizes = []
        while pump.held.begun:
            pump.held.end()
            sizes.append(len(pump.taken()))
        assert sizes == [1, 2, 2, 2, 1]
        assert log_payloads(pump.store) == of(FIRST, 10) + of(*range(11, 18), size=1500)


@pytest.mark.row("P3")
def test_what_is_submitted_in_an_answer_is_written_behind_it(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        submit(pump.store, [prewrite(10)], lambda _: pump.submit(prewrite(11)))
        pump.held.end()
        assert len(pump.held.begun) == 1
        pump.held.end()
        assert pump.taken() == [durable(11)]
        assert log_payloads(pump.store) == of(FIRST, 10, 11)


@pytest.mark.row("P3", "P15")
@pytest.mark.parametrize("told", ["later", "as_the_thread_has_it"])
def test_after_a_failed_sync_its_group_and_everything_behind_it_is_refused_and_nothing_more_is_begun(
    told: str, tmp_path: Path
) -> None:
    with beside(tmp_path) as pump:
        end = pump.store.synced_end
        if told != "later":
            pump.fs.faults["sync"] = failing(errno.EIO, times=1)
        pump.submit(prewrite(10))
        pump.submit(prewrite(11))
        pump.submit(prewrite(12), commit(FIRST, 13))
        if told == "later":
            pump.held.end(OSError(errno.EIO, "injected"))
        assert pump.come(4) == [failed(10), failed(11), failed(12), failed(FIRST)]
        assert pump.store.writer_error
        assert "injected" in str(pump.store.writer_error)
        assert not pump.held.begun
        pump.submit(prewrite(14))
        assert pump.come(1) == [failed(14)]
        assert not pump.held.begun
        assert pump.store.synced_end == end
        assert log_payloads(pump.store) == of(FIRST)
        assert pump.faults == [], "a disk, not a bug"
    assert pump.reopened()[:1] == of(FIRST)


@pytest.mark.row("P3")
def test_where_no_sync_can_be_begun_the_thread_writes_the_group_once(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        pump.held.refuses = True
        assert pump.goes(prewrite(10), prewrite(11)) == THREAD
        assert pump.goes(prewrite(12)) == THREAD
        assert log_payloads(pump.store) == of(FIRST, 10, 11, 12)
        pump.held.refuses = False
        assert pump.goes(prewrite(13)) == THREAD, "it is not tried again at once: each group would be written twice"
        pump.clock.at += writer.AWAY_S
        pump.look_at_disk()
        assert pump.goes(prewrite(14)) == HERE
    assert pump.reopened() == of(FIRST, 10, 11, 12, 13, 14)


@pytest.mark.row("P3")
def test_a_large_group_goes_to_the_thread_and_small_ones_behind_it_are_written_here_again(tmp_path: Path) -> None:
    assert writer.SLOW_S < writer.AWAY_S
    with beside(tmp_path, value_log_file_bytes=1 << 30) as pump:
        small = SMALL_BYTES - len(prewrite(10, bytes(SMALL_BYTES)).payload) + SMALL_BYTES
        assert pump.goes(prewrite(10, bytes(small))) == HERE
        assert pump.goes(prewrite(11, bytes(small + 1))) == THREAD
        assert pump.goes(prewrite(12, bytes(small // 2)), prewrite(13, bytes(small // 2))) == THREAD
        assert pump.goes(prewrite(14)) == HERE
        pump.submit(prewrite(15))
        pump.submit(prewrite(16, bytes(small // 2)))
        pump.submit(prewrite(17, bytes(small // 2)))
        pump.held.end()
        assert pump.come(3) == [durable(15), durable(16, THREAD), durable(17, THREAD)]
        assert pump.goes(prewrite(18)) == HERE
        starts = [int(entry.start_ts) for block in value_log(pump.store).scan(ZERO_POINTER) for entry in block]
        assert starts == [FIRST, *range(10, 19)]


@pytest.mark.row("P3")
def test_a_group_that_ends_a_file_goes_to_the_thread_and_the_first_of_the_next_file_too(tmp_path: Path) -> None:
    with beside(tmp_path, value_log_file_bytes=4096) as pump:
        assert pump.goes(prewrite(10, b"v" * 1000)) == HERE
        assert pump.goes(prewrite(11, b"v" * 1000)) == HERE
        assert pump.goes(prewrite(12, b"v" * 3000)) == THREAD
        assert pump.goes(prewrite(13)) == THREAD, "which makes the file"
        assert pump.goes(prewrite(14)) == HERE
        assert len(value_files(tmp_path)) == 2
        assert log_payloads(pump.store) == [
            *of(FIRST), *of(10, 11, size=1000), *of(12, size=3000), *of(13, 14),
        ]  # fmt: skip
    assert len(pump.reopened()) == 6


@pytest.mark.row("P3")
def test_a_group_for_which_one_write_is_not_enough_goes_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump_service.store.recovery.UNSYNCED_BYTES", 10_000)
    with beside(tmp_path) as pump:
        before = pump.fs.syncs
        items = [prewrite(start, b"v" * 3000) for start in range(10, 15)]
        assert pump.goes(*items) == THREAD
        assert pump.fs.syncs - before == 2
        assert log_payloads(pump.store) == of(FIRST) + of(*range(10, 15), size=3000)


@pytest.mark.row("P3", "P15")
def test_when_the_last_look_at_the_disk_is_old_the_thread_writes_which_looks(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        pump.clock.at += 0.49
        assert pump.goes(prewrite(10)) == HERE
        pump.clock.at += 0.02
        assert pump.goes(prewrite(11)) == THREAD
        assert pump.goes(prewrite(12)) == HERE
        pump.clock.at += 0.5
        pump.look_at_disk()
        assert pump.goes(prewrite(13)) == HERE, "whoever looked"
        assert log_payloads(pump.store) == of(FIRST, *range(10, 14))


@pytest.mark.row("P15")
def test_while_prewrites_are_refused_everything_goes_to_the_thread(tmp_path: Path) -> None:
    with beside(tmp_path, stop_write_at_available_bytes=1000) as pump:
        pump.fs.free = 999
        pump.clock.at += 0.5
        assert pump.store.read_only
        pump.submit(prewrite(10), commit(FIRST, 11))
        assert pump.come(2) == [(10, PumpReadOnly, THREAD), durable(FIRST, THREAD)]
        assert not pump.held.begun
        pump.fs.free = 1 << 40
        pump.clock.at += 0.5
        assert pump.goes(prewrite(12)) == THREAD
        assert pump.goes(prewrite(13)) == HERE


@pytest.mark.row("P15")
def test_while_the_bookkeeping_has_no_reserve_everything_goes_to_the_thread(tmp_path: Path) -> None:
    with beside(tmp_path, reserve_bytes=1 << 16) as pump:
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
    with beside(tmp_path) as pump:
        assert pump.goes(prewrite(10, b"v" * 4000)) == HERE
        assert pump.goes(prewrite(11, b"v" * 4000)) == HERE
        assert not saved.exists()
        assert pump.goes(prewrite(12, b"v" * 4000)) == THREAD
        assert saved.exists()
        summary = FileSummary.from_bytes(saved.read_bytes())
        assert summary is not None
        assert (summary.end, summary.records) == (pump.store.synced_end.offset, 4)
        assert pump.goes(prewrite(13, b"v" * 4000)) == HERE, "it begins from nothing"
        assert log_payloads(pump.store) == of(FIRST) + of(10, 11, 12, 13, size=4000)


@pytest.mark.row("P2", "P3")
def test_what_is_written_here_is_in_the_files_summary_and_zeros_are_laid_behind_it(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        (path,) = value_files(tmp_path)
        assert pump.goes(prewrite(10, b"v" * 70_000)) == HERE
        assert path.stat().st_size == pump.store.synced_end.offset, "a large write lays none"
        assert pump.goes(commit(10, 50)) == HERE
        assert pump.goes(prewrite(12)) == HERE
        end = pump.store.synced_end.offset
        assert path.stat().st_size > end
        assert not any(path.read_bytes()[end:])
        (file,) = value_log(pump.store).files()
        assert file.max_ts == 50
    summary = FileSummary.from_bytes((tmp_path / "pumphouse" / "files" / "000000.summary").read_bytes())
    assert summary is not None
    assert (summary.records, summary.end, summary.max_ts) == (4, end, 50)


@pytest.mark.row("P3")
def test_without_sync_the_thread_writes_everything(tmp_path: Path) -> None:
    with beside(tmp_path, sync_log=False) as pump:
        assert pump.goes(prewrite(10)) == THREAD
        assert pump.fs.syncs == 0


@pytest.mark.row("P3")
def test_the_order_of_the_log_is_that_of_submission_whoever_writes(tmp_path: Path) -> None:
    with beside(tmp_path, value_log_file_bytes=1 << 16, group_commit_bytes=8000) as pump:
        sizes = [start * 37 % 900 if start % 11 else SMALL_BYTES for start in range(10, 200)]
        for at, (start, size) in enumerate(zip(range(10, 200), sizes, strict=True)):
            pump.submit(prewrite(start, b"v" * size))
            if at % 3 == 0:
                pump.held.run()
            if at % 7 == 0:
                pump.end_one()
            if at % 50 == 0:
                pump.clock.at += 0.5
        pump.end_until(lambda: len(pump.answers) == 190)
        answers = pump.taken()
        assert [start for start, _, _ in answers] == list(range(10, 200))
        assert {status for _, status, _ in answers} == {type(None)}
        assert {who for _, _, who in answers} == {HERE, THREAD}
        assert len(value_files(tmp_path)) > 1
        expected = [prewrite(n, b"v" * size).payload for n, size in zip(range(10, 200), sizes, strict=True)]
        assert log_payloads(pump.store) == of(FIRST) + expected


@pytest.mark.row("P15")
def test_after_a_failed_write_everybody_is_refused(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        pump.fs.short_write = 1024  # whole sectors, as a medium writes them
        pump.submit(prewrite(10))
        pump.submit(prewrite(11, b"v" * 4000))
        pump.fs.faults["write"] = failing(errno.EIO, times=1)
        pump.held.end()
        assert pump.come(2) == [durable(10), failed(11)]
        assert pump.store.writer_error
        pump.submit(prewrite(12))
        assert pump.come(1) == [failed(12)]
        assert not pump.held.begun
    assert pump.reopened()[:2] == of(FIRST, 10)


@pytest.mark.row("P15")
def test_on_a_full_disk_the_thread_cuts_the_partial_append_and_writing_resumes_here_when_space_is_back(
    tmp_path: Path,
) -> None:
    with beside(tmp_path) as pump:
        size = pump.store.synced_end.offset
        pump.fs.faults["write"] = failing(errno.ENOSPC)
        pump.fs.short_write = 30
        pump.fs.free = 0
        pump.submit(prewrite(10), commit(FIRST, 11))
        assert pump.come(2) == [(10, PumpReadOnly, THREAD), (FIRST, PumpReadOnly, THREAD)]
        assert value_files(tmp_path)[0].stat().st_size == size
        assert not pump.store.writer_error
        assert not pump.held.begun
        pump.fs.faults.clear()
        assert pump.goes(commit(FIRST, 11)) == THREAD, "a commit is tried again each time"
        pump.fs.free = 1 << 40
        pump.clock.at += 0.5
        assert pump.goes(prewrite(12)) == THREAD
        assert pump.goes(prewrite(13)) == HERE
        assert log_payloads(pump.store) == [*of(FIRST), commit(FIRST, 11).payload, *of(12, 13)]
    assert len(pump.reopened()) == 4


@pytest.mark.row("P15")
def test_a_disk_that_was_full_for_a_moment_has_each_record_once(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        pump.goes(prewrite(10, b"v" * 70_000))  # behind what was laid ahead, so that the next write lays again
        pump.fs.short_write = 100
        pump.fs.faults["write"] = failing(errno.ENOSPC, times=2)
        assert pump.goes(prewrite(11), prewrite(12)) == THREAD
        assert pump.goes(prewrite(13)) == HERE
        assert log_payloads(pump.store) == of(FIRST) + of(10, size=70_000) + of(11, 12, 13)
    assert len(pump.reopened()) == 5


@pytest.mark.row("P4")
def test_when_the_index_has_no_room_the_loop_does_not_wait_for_it_and_slow_mode_can_begin(tmp_path: Path) -> None:
    with beside(tmp_path, index_queue_records=1, slow_chaser_threshold_s=0.05) as pump:
        with index_stands_still(pump.store):
            assert pump.goes(prewrite(10)) == HERE
            assert waits_for_index(pump.store) == 1
            pump.submit(prewrite(11))
            assert not pump.held.begun
            assert pump.come(1) == [durable(11, THREAD)]
            assert pump.store.status().slow_mode
            assert pump.goes(prewrite(12), prewrite(13)) == HERE, "there is nothing to wait for now"
        settle(pump.store)
        assert [pump.store.prewrites.is_open(start) for start in range(10, 14)] == [True] * 4
        assert log_payloads(pump.store) == of(FIRST, *range(10, 14))


@pytest.mark.row("P4")
def test_a_group_of_several_requests_does_not_wait_for_the_index_either(tmp_path: Path) -> None:
    """There is room for one more hand-over, whatever the group is made of."""
    with beside(tmp_path, index_queue_records=2, slow_chaser_threshold_s=5) as pump, index_stands_still(pump.store):
        for start in (10, 11, 12, 13, 14):
            pump.submit(prewrite(start))
        pump.held.end()
        assert waits_for_index(pump.store) == 1
        pump.held.end()
        assert pump.taken() == [durable(start) for start in (10, 11, 12, 13, 14)]
        assert not pump.store.status().slow_mode


@pytest.mark.row("P3")
def test_a_group_of_many_requests_goes_to_the_thread(tmp_path: Path) -> None:
    few, many = range(100, 100 + SMALL_REQUESTS), range(200, 201 + SMALL_REQUESTS)
    with beside(tmp_path) as pump:
        pump.submit(prewrite(10))
        for start in few:
            pump.submit(prewrite(start))
        pump.held.end()
        assert len(pump.held.begun) == 1, "as many as that are written here"
        for start in many:
            pump.submit(prewrite(start))
        pump.held.end()
        assert not pump.held.begun
        answers = pump.come(1 + len(few) + len(many))
        assert answers[-len(many) :] == [durable(start, THREAD) for start in many]


@pytest.mark.row("P3")
def test_large_groups_go_to_the_thread_one_by_one_and_small_ones_behind_them_are_the_loops_again(
    tmp_path: Path,
) -> None:
    large = bytes(SMALL_BYTES)
    with beside(tmp_path, group_commit_bytes=SMALL_BYTES * 3 // 2, value_log_file_bytes=1 << 30) as pump:
        with write_lock(pump.store):  # none is written before all of them wait
            for start in (10, 11, 12, 13):
                pump.submit(prewrite(start, large))
        assert pump.come(4) == [durable(start, THREAD) for start in (10, 11, 12, 13)]
        assert pump.goes(prewrite(14)) == HERE
        with write_lock(pump.store):
            pump.submit(prewrite(15, large))
            pump.submit(prewrite(16, bytes(SMALL_BYTES * 3 // 4)))
            pump.submit(prewrite(17, large))
        pump.held.run_until(lambda: pump.held.begun)
        assert pump.taken() == [durable(15, THREAD)]
        pump.held.end()
        assert pump.come(2) == [durable(16), durable(17, THREAD)]


@pytest.mark.row("P3")
def test_after_a_slow_sync_the_thread_writes_for_a_while(tmp_path: Path) -> None:
    starts = count(10)
    with beside(tmp_path) as pump:

        def sync_of(seconds: float) -> None:
            pump.submit(prewrite(next(starts)))
            assert len(pump.held.begun) == 1
            pump.clock.at += seconds
            pump.held.end()
            pump.taken()

        sync_of(writer.SLOW_S - 0.001)
        assert pump.goes(prewrite(next(starts))) == HERE
        pump.submit(prewrite(next(starts)))
        pump.submit(prewrite(next(starts)))
        pump.clock.at += writer.SLOW_S + 0.001
        pump.held.end()
        assert [who for _, _, who in pump.come(2)] == [HERE, THREAD], "from the very next on"
        assert pump.goes(prewrite(next(starts))) == THREAD
        pump.clock.at += writer.AWAY_S - 0.001
        pump.look_at_disk()
        assert pump.goes(prewrite(next(starts))) == THREAD
        pump.clock.at += 0.002
        pump.look_at_disk()
        assert pump.goes(prewrite(next(starts))) == HERE
        sync_of(writer.SLOW_S + 0.001)
        assert pump.goes(prewrite(next(starts))) == THREAD, "and again"
        assert log_payloads(pump.store) == of(FIRST, *range(10, next(starts)))


@pytest.mark.row("P3")
def test_what_another_thread_submits_is_written_here(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        other = threading.Thread(target=pump.submit, args=(prewrite(10),), daemon=True)
        other.start()
        other.join(20)
        assert not pump.held.begun, "only this thread begins a sync"
        pump.held.run()
        assert len(pump.held.begun) == 1
        pump.held.end()
        assert pump.taken() == [durable(10)]


@pytest.mark.row("P3")
def test_many_threads_submit_and_each_finds_its_own_in_its_order(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        starts = [range(1000 * n, 1000 * n + 40) for n in range(1, 7)]

        def submit_all(mine: range) -> None:
            for start in mine:
                pump.submit(prewrite(start))

        threads = [threading.Thread(target=submit_all, args=(mine,), daemon=True) for mine in starts]
        for thread in threads:
            thread.start()
        pump.end_until(lambda: len(pump.answers) == 240)
        found = [start for start, _, _ in pump.answers]
        assert {status for _, status, _ in pump.taken()} == {type(None)}
        assert [[start for start in found if start in mine] for mine in starts] == [list(mine) for mine in starts]
        assert log_payloads(pump.store) == of(FIRST, *found)


@pytest.mark.row("P3")
def test_stop_waits_for_the_group_under_way_and_what_is_queued_behind_it_is_written(tmp_path: Path) -> None:
    pump = Beside(tmp_path)
    pump.submit(prewrite(10))
    pump.submit(prewrite(11))
    pump.submit(prewrite(12))
    stopping = pump.stopping()
    pump.submit(prewrite(13))
    assert pump.taken() == [failed(13, HERE)], "it came too late"
    for _ in range(5):
        pump.held.run()
        stopping.join(0.01)
    assert stopping.is_alive()
    assert pump.answers == []
    pump.end_until(lambda: not stopping.is_alive())
    assert [(start, status) for start, status, _ in pump.taken()] == [(n, type(None)) for n in (10, 11, 12)]
    assert not pump.held.begun
    assert pump.reopened() == of(FIRST, 10, 11, 12)


@pytest.mark.row("P3")
def test_stop_with_nothing_under_way_ends_as_soon_as_the_loop_hears_of_it(tmp_path: Path) -> None:
    pump = Beside(tmp_path)
    stopping = pump.stopping()
    pump.held.run_until(lambda: not stopping.is_alive())
    assert pump.reopened() == of(FIRST)


@pytest.mark.row("P3", "P15")
def test_when_the_loop_has_ended_with_a_group_under_way_stop_ends_and_refuses_it_and_all_behind_it(
    tmp_path: Path,
) -> None:
    pump = Beside(tmp_path)
    pump.submit(prewrite(10))
    pump.submit(prewrite(11))
    pump.held.ended = True
    other = threading.Thread(target=pump.submit, args=(prewrite(12),), daemon=True)
    other.start()
    other.join(20)
    stopping = pump.stopping()
    stopping.join(20)
    assert not stopping.is_alive()
    assert pump.taken() == [failed(10), failed(11), failed(12)]
    assert pump.store.writer_error
    assert pump.reopened()[:1] == of(FIRST)


@pytest.mark.row("P3")
def test_when_the_loop_has_ended_with_none_under_way_stop_has_the_thread_write_what_is_queued(tmp_path: Path) -> None:
    pump = Beside(tmp_path)
    pump.held.ended = True
    for start in (10, 11):
        other = threading.Thread(target=pump.submit, args=(prewrite(start),), daemon=True)
        other.start()
        other.join(20)
    assert pump.answers == []
    stopping = pump.stopping()
    stopping.join(20)
    assert not stopping.is_alive()
    assert pump.taken() == [durable(10, THREAD), durable(11, THREAD)]
    assert not pump.store.writer_error
    assert pump.reopened() == of(FIRST, 10, 11)


@pytest.mark.row("P3")
def test_when_the_loop_has_ended_while_the_thread_writes_stop_has_it_write_the_rest_too(tmp_path: Path) -> None:
    pump = Beside(tmp_path)
    syncing, go_on = threading.Event(), threading.Event()

    def hold(_path: Path) -> None:
        syncing.set()
        go_on.wait(20)

    pump.held.refuses = True
    pump.clock.at += 0.5  # it is the thread's
    pump.fs.faults["sync"] = hold
    pump.submit(prewrite(10))
    assert syncing.wait(20)
    pump.submit(prewrite(11))
    pump.held.ended = True
    stopping = pump.stopping()
    go_on.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert pump.taken() == [durable(10, THREAD), durable(11, THREAD)]
    assert pump.reopened() == of(FIRST, 10, 11)


@pytest.mark.row("P3", "P4")
def test_who_waits_for_the_write_lock_gets_it_before_the_next_group_is_begun_here(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        for start in range(10, 60, 2):
            inside, leave = threading.Event(), threading.Event()

            def enter(inside: threading.Event = inside, leave: threading.Event = leave) -> None:
                with write_lock(pump.store):
                    inside.set()
                    leave.wait(20)

            pump.submit(prewrite(start))
            pump.submit(prewrite(start + 1))
            other = threading.Thread(target=enter, daemon=True)
            other.start()
            until(lambda: write_lock(pump.store).waiting == 1)
            assert not inside.is_set(), "not while a group is under way"
            pump.held.end()
            assert not pump.held.begun
            assert inside.wait(20)
            pump.held.run()
            assert not pump.held.begun
            leave.set()
            # The thread waits for it as others do, so either of the two may have been first.
            assert pump.come(2) == [durable(start), durable(start + 1, THREAD)]
            other.join(20)
        assert pump.goes(prewrite(60)) == HERE


@pytest.mark.row("P3", "P4")
def test_who_waits_for_the_index_is_not_held_by_groups_that_follow_each_other(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        starts = count(10)
        waiting = threading.Thread(target=pump.store.wait_for_index, daemon=True)
        pump.submit(prewrite(next(starts)))
        waiting.start()
        last = 0

        def one_more() -> bool:
            nonlocal last
            if waiting.is_alive():
                last = next(starts)
                pump.submit(prewrite(last))  # so that something is queued whenever a group ends
            pump.end_one()
            return not waiting.is_alive()

        pump.held.run_until(one_more, seconds=4)
        pump.end_until(lambda: len(pump.answers) == last - 9)
        assert {status for _, status, _ in pump.taken()} == {type(None)}


@pytest.mark.row("P15")
def test_a_fake_that_is_on_no_file_is_not_published_while_a_group_is_under_way_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump_service.store.writer._SOON_S", 3600)
    with beside(tmp_path) as pump:
        store = pump.store
        assert pump.goes(commit(FIRST, 2)) == HERE
        settle(store)
        pump.submit(prewrite(10))
        pump.fs.free = 0
        pump.clock.at += 0.5
        assert store.read_only
        settle_queue(store)
        published: list[bool] = []
        asking = threading.Thread(target=lambda: published.append(store.publish_unpersisted(20)), daemon=True)
        asking.start()
        asking.join(20)
        assert published == [False]
        pump.held.end()
        assert pump.taken() == [durable(10)]
        settle(store)
        assert store.watermark == 2, "and nothing of it is left"
        assert store.publish_unpersisted(20)
        assert write_lock(store).try_for_group(), "the lock is free again"
        write_lock(store).release()
        pump.fs.free = 1 << 40
        pump.clock.at += 0.5
        pump.look_at_disk()


def settle_queue(store: Store) -> None:
    until(lambda: not waits_for_index(store))


@pytest.mark.row("P3", "P15")
def test_a_bug_behind_the_sync_is_reported_and_nobody_is_answered_durable_nor_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(tmp_path) as pump:
        monkeypatch.setattr(ValueLog, "finish", a_bug)
        pump.submit(prewrite(10))
        pump.submit(prewrite(11), prewrite(12))
        pump.held.end()
        assert pump.come(3) == [failed(10), failed(11), failed(12)]
        assert [type(fault) for fault in pump.faults] == [ZeroDivisionError]
        pump.submit(prewrite(13))
        assert pump.come(1) == [failed(13)]
        pump.held.run()
        assert pump.taken() == []
    monkeypatch.undo()
    assert pump.reopened()[:1] == of(FIRST)


@pytest.mark.row("P3", "P4", "P15")
def test_a_bug_in_the_hand_over_is_reported_behind_the_answer_and_ends_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(tmp_path) as pump:
        monkeypatch.setattr(Chaser, "hand_over", a_bug)
        pump.submit(prewrite(10))
        pump.submit(prewrite(11), prewrite(12))
        pump.held.end()
        assert pump.come(3) == [durable(10), failed(11), failed(12)]
        assert [type(fault) for fault in pump.faults] == [ZeroDivisionError]
        assert pump.store.writer_error
        pump.held.run()
        assert pump.taken() == []
    monkeypatch.undo()
    assert pump.reopened()[:2] == of(FIRST, 10), "what was answered is there"


@pytest.mark.row("P3", "P15")
@pytest.mark.parametrize(("stage", "where"), [(ValueLog, "begin"), (Chaser, "ready")])
def test_a_bug_before_the_sync_is_reported_and_everybody_is_refused(
    stage: type, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(tmp_path) as pump:
        monkeypatch.setattr(stage, where, a_bug)
        pump.submit(prewrite(10), prewrite(11))
        assert pump.come(2) == [failed(10), failed(11)]
        assert [type(fault) for fault in pump.faults] == [ZeroDivisionError]
        assert pump.store.writer_error
        assert not pump.held.begun
        assert write_lock(pump.store).try_for(0), "the lock is free again"
        write_lock(pump.store).release()
    assert pump.reopened() == of(FIRST)


@pytest.mark.row("P3")
def test_an_answer_that_raises_keeps_nobody_from_theirs_and_does_not_end_writing(tmp_path: Path) -> None:
    def bad(_statuses: object) -> None:
        raise RuntimeError("a caller's bug")

    with beside(tmp_path) as pump:
        pump.submit(prewrite(10))
        pump.submit(prewrite(11))
        submit(pump.store, [prewrite(12)], bad)
        pump.submit(prewrite(13))
        pump.held.end()
        pump.submit(prewrite(14))
        pump.held.end()
        assert pump.taken() == [durable(10), durable(11), durable(13)]
        pump.held.end()
        assert pump.taken() == [durable(14)]
        assert pump.faults == []
        assert not pump.store.writer_error
        settle(pump.store)
        assert pump.store.prewrites.is_open(12)
        assert pump.goes(prewrite(15)) == HERE


@pytest.mark.row("P3")
def test_a_request_of_nothing_is_answered_alone_and_among_others(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        got: list[object] = []
        before = pump.fs.syncs
        submit(pump.store, [], got.append)
        pump.held.run_until(lambda: not pump.writer.busy)
        assert got == [[]]
        assert pump.fs.syncs == before
        pump.submit(prewrite(10))
        submit(pump.store, [], got.append)
        pump.submit(prewrite(11))
        submit(pump.store, [], got.append)
        pump.held.end()
        assert got == [[]]
        pump.held.end()
        assert got == [[], [], []]
        assert pump.taken() == [durable(10), durable(11)]
        assert log_payloads(pump.store) == of(FIRST, 10, 11)


@pytest.mark.row("P15", "P6")
def test_an_outcome_that_a_full_disk_did_not_take_is_written_behind_the_next_group(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        pump.fs.faults["write"] = failing(errno.ENOSPC)
        pump.fs.free = 0
        pump.store.settling.committed(FIRST, 5)
        pump.held.run_until(lambda: not pump.writer.busy)
        pump.fs.faults.clear()
        pump.fs.free = 1 << 40
        pump.clock.at += 0.5
        pump.look_at_disk()
        pump.submit(prewrite(10))
        pump.held.end()
        assert len(pump.held.begun) == 1
        pump.held.end()
        settle(pump.store)
        assert stream(pump.store) == [(FIRST, 5)]
        assert len(log_payloads(pump.store)) == 3


@pytest.mark.row("P15", "P5")
@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("where", ["write", "sync"])
def test_what_was_begun_here_and_then_refused_by_the_thread_is_not_left_in_the_log(
    where: str, how: str, tmp_path: Path
) -> None:
    """The disk is looked at again between the two, and refuses before anything would be cut."""
    pump = Beside(tmp_path / "data")
    assert pump.goes(prewrite(5, b"v" * 70_000)) == HERE

    def full(_path: Path) -> None:
        pump.clock.at += 0.5
        pump.fs.free = 0
        if where == "write":
            raise OSError(errno.ENOSPC, "injected")

    pump.fs.short_write = 3500
    pump.fs.faults["write"] = full
    pump.held.refuses = where == "sync"
    pump.submit(prewrite(10, b"x" * 3000), prewrite(11, b"y" * 33_000))
    assert {status for _, status, _ in pump.come(2)} == {PumpReadOnly}
    pump.fs.faults.clear()
    if how == "killed":
        shutil.copytree(tmp_path / "data", tmp_path / "found")
    pump.close()
    found = open_store(tmp_path / ("found" if how == "killed" else "data"))
    assert log_payloads(found) == [prewrite(FIRST).payload, prewrite(5, b"v" * 70_000).payload]
    found.close()


@pytest.mark.row("P15")
@pytest.mark.parametrize("fault", ["eio", "bug"])
def test_a_log_that_cannot_be_written_keeps_no_answer_back(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = Beside(tmp_path)
    if fault == "eio":
        pump.fs.faults["write"] = failing(errno.EIO, times=1)
    else:
        monkeypatch.setattr(ValueLog, "begin", a_bug)
    with logs_cannot_be_written("writer"):
        pump.submit(prewrite(10))  # nor does it raise: the caller would take its group back
        assert pump.come(1) == [(10, WriterFailed, THREAD)]
    assert [type(each) for each in pump.faults] == ([] if fault == "eio" else [ZeroDivisionError])
    monkeypatch.undo()
    pump.close()


@pytest.mark.row("P3", "P15")
def test_a_close_on_the_wrong_thread_is_refused_and_one_on_another_still_closes(tmp_path: Path) -> None:
    pump = Beside(tmp_path)
    pump.submit(prewrite(10))
    with pytest.raises(RuntimeError, match="event loop's thread"):
        pump.store.close()
    pump.held.end()
    assert pump.taken() == [durable(10)]
    assert pump.goes(prewrite(11)) == HERE
    pump.close()
    assert len(pump.reopened()) == 3


@pytest.mark.row("P3")
def test_a_second_close_comes_back_when_the_first_is_through(tmp_path: Path) -> None:
    pump = Beside(tmp_path)
    pump.submit(prewrite(10))
    first, second = pump.stopping(), pump.stopping()
    second.join(0.05)
    assert second.is_alive()
    assert first.is_alive()
    pump.end_until(lambda: not (first.is_alive() or second.is_alive()))
    pump.store.close()
    assert len(pump.reopened()) == 2


@pytest.mark.row("P15")
def test_a_fake_that_is_on_no_file_waits_a_moment_for_the_thread(tmp_path: Path) -> None:
    with beside(tmp_path) as pump:
        assert pump.goes(commit(FIRST, 2)) == HERE
        settle(pump.store)
        pump.fs.free = 0
        pump.clock.at += 0.5
        assert pump.store.read_only
        lock = write_lock(pump.store)
        taken, go_on = threading.Event(), threading.Event()

        def as_the_thread() -> None:
            with lock:
                taken.set()
                go_on.wait(20)

        thread = threading.Thread(target=as_the_thread)
        thread.start()
        assert taken.wait(20)
        assert not pump.store.publish_unpersisted(20)
        threading.Timer(0.005, go_on.set).start()
        assert pump.store.publish_unpersisted(20)
        thread.join()
        pump.fs.free = 1 << 40
        pump.clock.at += 0.5
        pump.look_at_disk()


@pytest.mark.row("P3")
def test_what_was_written_here_is_nothing_that_the_thread_would_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with beside(tmp_path) as pump:
        pump.fs.faults["truncate"] = failing(errno.EIO, times=9)
        assert pump.goes(prewrite(10)) == HERE
        pump.clock.at += 0.5
        assert pump.goes(prewrite(11)) == THREAD
        with monkeypatch.context() as patch:
            patch.setattr(ValueLog, "begin", lambda *_: None)
            assert pump.goes(prewrite(12)) == THREAD
        assert pump.goes(prewrite(13)) == HERE
        pump.fs.faults.clear()


@pytest.mark.row("P3")
def test_on_a_slow_disk_the_thread_writes_what_waits(tmp_path: Path) -> None:
    with beside(tmp_path, group_commit_bytes=4096) as pump:
        pump.submit(prewrite(10))
        pump.clock.at += writer.SLOW_S * 2
        pump.held.end()
        with write_lock(pump.store):  # none is written before all of them wait
            for start in (11, 12, 13):
                pump.submit(prewrite(start, b"v" * 3000))
        assert pump.come(4) == [durable(10), *(durable(start, THREAD) for start in (11, 12, 13))]
