"""Group commit, and what becomes of answers when the disk is full or broken (rows P3, P15)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import weakref
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from pump_service.store.disk import DiskGuard
from pump_service.store.fs import REAL_FS, LogHandle
from pump_service.store.index import Index, IndexFailed
from pump_service.store.parse import parse
from pump_service.store.records import Records
from pump_service.store.store import Store
from pump_service.store.valuelog import ValueLog
from pumphouse import durable
from pumphouse.errors import PumpReadOnly, PumpUnavailable, WriterFailed
from tests.support.crashfs import FaultyFs, failing
from tests.support.setclock import QuickClock
from tests.support.storekit import (
    a_bug,
    commit,
    fake,
    find,
    in_index,
    index_meets,
    index_stands_still,
    log_payloads,
    logs_cannot_be_written,
    merged,
    no_room_to_open_index,
    open_store,
    positions,
    prewrite,
    pull_all,
    remember,
    rollback,
    settle,
    so_often,
    store_all,
    stream,
    submit,
    until,
    value_files,
    value_log,
    void,
    write,
    write_lock,
)
from tests.support.writers import written_here


@pytest.fixture(params=["thread", "here"], autouse=True)
def _who_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the thread decides is decided the same by an event loop."""
    with written_here(monkeypatch) if request.param == "here" else contextlib.nullcontext():
        yield


def open_fast(data_dir: Path, fs: FaultyFs, **values: object) -> Store:
    """Half-second looks come soon."""
    return open_store(data_dir, fs, QuickClock(pace=100), **values)


def faults_of(store: Store) -> list[BaseException]:
    faults: list[BaseException] = []
    store.on_fault(faults.append)
    return faults


@pytest.mark.row("P3")
def test_everything_that_waits_goes_into_one_write_and_one_sync(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs)
    first_sync, go_on = threading.Event(), threading.Event()

    def hold(_path: Path) -> None:
        first_sync.set()
        go_on.wait(60)

    answers: list[int] = []
    fs.faults["sync"] = hold
    before = fs.syncs
    submit(store, [prewrite(1)], lambda _: answers.append(0))
    assert first_sync.wait(60)
    for n in range(1, 101):
        submit(store, [prewrite(n + 1)], lambda _, n=n: answers.append(n))  # type: ignore[misc]
    assert answers == [], "nobody is answered before the sync"
    fs.faults.clear()
    go_on.set()
    until(lambda: len(answers) == 101)
    assert answers == list(range(101))
    assert fs.syncs - before == 2


@pytest.mark.row("P3")
def test_order_of_submission_is_the_order_of_the_log_also_over_rotation(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=4096, group_commit_bytes=1 << 16)
    items = [prewrite(n, b"v" * (n * 37 % 900)) for n in range(1, 120)]
    left = threading.Semaphore(0)
    for item in items:
        submit(store, [item], lambda _: left.release())
    for _ in items:
        assert left.acquire(timeout=60)
    assert log_payloads(store) == [item.payload for item in items]
    assert len(value_files(tmp_path)) > 8


@pytest.mark.row("P15")
def test_below_the_limit_prewrites_are_refused_and_everything_else_is_taken(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_fast(tmp_path, fs, stop_write_at_available_bytes=1000)
    store_all(store, prewrite(10), prewrite(20))
    fs.free = 999
    until(lambda: store.read_only)
    assert isinstance(store.refusal(), PumpReadOnly)
    statuses = write(store, prewrite(30), commit(10, 40), rollback(20), fake(50))
    assert isinstance(statuses[0], PumpReadOnly)
    assert (statuses[0].available, statuses[0].limit) == (999, 1000)
    assert statuses[1:] == [None, None, None]
    settle(store)
    assert store.watermark == 50
    assert find(store, 30) is None
    fs.free = 5 << 20
    until(lambda: not store.read_only)
    store_all(store, prewrite(60), commit(60, 61))


@pytest.mark.row("P3")
def test_a_request_of_nothing_is_answered_and_harms_nobody(tmp_path: Path) -> None:
    store = open_fast(tmp_path, FaultyFs())
    assert write(store) == []
    with write_lock(store):
        answered = threading.Event()
        submit(store, [], lambda _: None)
        submit(store, [prewrite(10)], lambda _: answered.set())
    assert answered.wait(60)
    store_all(store, commit(10, 20))
    assert stream(store) == [(10, 20)]


@pytest.mark.row("P15")
def test_on_a_full_disk_the_partial_append_is_cut_and_writing_resumes_when_space_is_back(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_fast(tmp_path, fs)
    store_all(store, prewrite(10), prewrite(20))
    size = store.synced_end.offset
    fs.faults["write"] = failing(errno.ENOSPC)
    fs.short_write = 30
    fs.free = 0
    with capture_logs() as logged:
        statuses = write(store, prewrite(30), commit(10, 40))
    assert [type(s) for s in statuses] == [PumpReadOnly, PumpReadOnly]
    assert [each["setting"] for each in logged if each["event"] == "read_only"] == [
        "pump.stop_write_at_available_bytes"
    ]
    assert value_files(tmp_path)[0].stat().st_size == size
    assert store.read_only
    assert not store.writer_error
    fs.faults.clear()
    # A commit is tried again each time, prewrites wait until there is room.
    assert write(store, commit(10, 40)) == [None]
    assert isinstance(write(store, prewrite(50))[0], PumpReadOnly)
    fs.free = 1 << 40
    until(lambda: not store.read_only)
    store_all(store, prewrite(60), commit(60, 61), commit(20, 62))
    assert stream(store) == [(10, 40), (60, 61), (20, 62)]
    store.close()
    store = open_store(tmp_path)
    assert stream(store) == [(10, 40), (60, 61), (20, 62)]


@pytest.mark.row("P15", "P1")
def test_a_disk_that_is_full_when_the_name_of_a_new_file_is_synced_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = FaultyFs()
    store = open_fast(tmp_path, fs, value_log_file_bytes=4096)
    store_all(store, prewrite(10, b"v" * 5000))  # the next record begins a file
    new = tmp_path / "value" / "000001.vlog"
    real, tries = durable.fsync_dir, []

    def full(path: Path) -> None:
        if new.exists() and path == new.parent:
            tries.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "fsync_dir", full)
        fs.free = 0
        assert [type(status) for status in write(store, commit(10, 20))] == [PumpReadOnly]
        assert [type(status) for status in write(store, commit(10, 20))] == [PumpReadOnly]
    assert len(tries) > 1
    fs.free = 1 << 40
    assert write(store, commit(10, 20)) == [None]
    store_all(store)
    assert not store.writer_error
    assert stream(store) == [(10, 20)]
    store.close()
    store = open_store(tmp_path)
    assert stream(store) == [(10, 20)]


@pytest.mark.row("P15")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_writing_goes_on_when_the_next_file_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fs = FaultyFs()
    store = open_fast(tmp_path, fs, value_log_file_bytes=4096)
    store_all(store, prewrite(10, b"v" * 5000))  # the next record begins a file
    real = fs.open_log

    def none_left(path: Path, *, create: bool = False, read_only: bool = False) -> LogHandle:
        if create:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, create=create, read_only=read_only)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "open_log", none_left)
        for _ in range(2):
            (refused,) = write(store, commit(10, 20))
            assert isinstance(refused, PumpUnavailable)
            assert "LimitNOFILE" in refused.hint
        assert not store.read_only  # it is no word of the disk
    assert not store.writer_error
    assert write(store, commit(10, 20)) == [None]
    store_all(store)
    assert stream(store) == [(10, 20)]


@pytest.mark.row("P15")
def test_the_reserve_takes_commits_when_the_disk_is_full(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_fast(tmp_path, fs, reserve_bytes=1 << 16)
    store_all(store, prewrite(10))
    reserve = tmp_path / "pumphouse" / "reserve"
    assert reserve.stat().st_size == 1 << 16

    def full_while_reserved(_path: Path) -> None:
        if reserve.exists():
            raise OSError(errno.ENOSPC, "injected")

    fs.faults["write"] = full_while_reserved
    fs.free = 0
    statuses = write(store, prewrite(20), commit(10, 30), fake(31))
    assert isinstance(statuses[0], PumpReadOnly)
    assert statuses[1:] == [None, None]
    settle(store)
    assert store.watermark == 31
    fs.faults.clear()
    fs.free = 1 << 40
    until(lambda: not store.read_only)
    until(reserve.exists)


@pytest.mark.row("P15")
@pytest.mark.parametrize(("buffer_mib", "mib"), [(1, 32), (4, 32), (32, 64)])
def test_the_indexs_own_reserve_is_enough_to_merge_tables_however_small_its_buffer(
    buffer_mib: int, mib: int, tmp_path: Path
) -> None:
    store = open_fast(tmp_path, FaultyFs(), reserve_bytes=1 << 16, index_write_buffer_bytes=buffer_mib << 20)
    store_all(store, prewrite(10))
    assert (tmp_path / "pumphouse" / "reserve.own").stat().st_size == mib << 20


@pytest.mark.row("P15", "P2")
@pytest.mark.parametrize("full", ["position", "opening"])
def test_the_indexs_reserve_is_given_back_also_where_its_position_is_the_first_to_meet_the_full_disk(
    full: str, tmp_path: Path
) -> None:
    fs = FaultyFs()
    store = open_fast(tmp_path, fs, reserve_bytes=1 << 16)
    reserve = tmp_path / "pumphouse" / "reserve.own"
    store_all(store, prewrite(10), commit(10, 11))
    until(reserve.exists)
    store.gc.collect({}, 0)  # which saves the position
    before = positions(store).handle
    fs.free = 0
    failed: list[str] = []

    def save() -> None:
        if reserve.exists() and not (full == "opening" and failed):
            failed.append(full)
            raise IndexFailed("No space left on device" if full == "position" else "injected")

    def opening() -> None:
        if full == "opening" and reserve.exists():
            no_room_to_open_index()

    with index_meets(save_position=save, opening=opening):
        assert write(store, fake(20)) == [None]
        until(lambda: not reserve.exists(), "the reserve was not given back")
        until(lambda: positions(store).handle > before)
    assert failed
    assert stream(store) == [(10, 11)]


@pytest.mark.row("P15")
@pytest.mark.parametrize(
    ("operation", "number"),
    [("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC), ("create", errno.EIO)],
)
def test_after_a_failed_write_or_sync_nothing_more_is_written_and_reads_go_on(
    operation: str, number: int, tmp_path: Path
) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs, value_log_file_bytes=4096)
    store_all(store, prewrite(10, b"v" * 5000), prewrite(20), commit(10, 30))
    if operation == "create":
        assert write(store, prewrite(21, b"v" * 5000)) == [None]
    end = store.synced_end
    fs.faults[operation] = failing(number, times=1)
    assert isinstance(write(store, commit(20, 40))[0], WriterFailed)
    assert store.writer_error
    assert store.writer_error is not None
    # The disk works again, but what it holds is not known any more.
    assert isinstance(write(store, commit(20, 40), fake(50))[1], WriterFailed)
    assert store.synced_end == end
    assert find(store, 40) is None
    assert store.watermark == 0 if operation == "create" else 30
    store.close()
    store = open_store(tmp_path, value_log_file_bytes=4096)
    store_all(store, commit(20, 60))
    assert find(store, 30) is not None


@pytest.mark.row("P15", "P6")
def test_where_nothing_can_be_written_outcomes_are_served_from_memory_and_asked_again_after_a_restart(
    tmp_path: Path,
) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs, value_log_file_bytes=4096)
    store_all(store, prewrite(5), commit(5, 6), prewrite(10, b"v"), prewrite(20), fake(25))
    assert not store.publish_unpersisted(30), "only where nothing can be written"
    fs.faults["sync"] = failing(errno.EIO)
    assert isinstance(write(store, fake(26))[0], WriterFailed)
    store.settling.committed(10, 28)
    store.settling.rolled_back(20)
    until(lambda: store.watermark == 28)
    assert [(c, s, p) for c, s, p, _ in pull_all(store) if s == 10] == [
        (28, 10, merged(10, 28, b"v", key=None))  # type: ignore[arg-type]
    ]
    assert store.prewrites.count == 0
    until(lambda: store.publish_unpersisted(40))
    until(lambda: store.watermark == 40)
    # The prewrites must be met again after a restart, so neither their files nor their keys may go.
    report = store.gc.collect({"archive": 40}, 1 << 60)
    assert (report.gc_point, report.deletion_limit) == (40, 10)
    store.close()
    store = open_store(tmp_path, value_log_file_bytes=4096)
    assert {each.start_ts for each in store.prewrites.oldest()} == {10, 20}
    assert store.watermark == 6
    store.settling.committed(10, 28)
    store.settling.rolled_back(20)
    until(lambda: store.prewrites.count == 0)
    store_all(store, fake(50))
    assert store.late() == []


@pytest.mark.row("P15", "P6")
def test_an_outcome_kept_in_memory_on_a_full_disk_is_written_when_space_is_back(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_fast(tmp_path, fs)
    store_all(store, prewrite(10, b"v"), prewrite(11))
    fs.faults["write"] = failing(errno.ENOSPC)
    fs.free = 0
    store.settling.committed(10, 28)
    store.settling.rolled_back(11)
    until(lambda: store.watermark == 28)
    assert find(store, 28) is not None
    fs.faults.clear()
    fs.free = 1 << 40
    until(lambda: not store.read_only)
    assert write(store, fake(30)) == [None]
    until(lambda: store.prewrites.lowest_unsettled() is None, "the outcomes were not written")
    assert store.late() == []
    assert store.status().duplicate_commits == 0
    assert stream(store) == [(10, 28)]
    store.close()
    store = open_store(tmp_path)
    assert stream(store) == [(10, 28)]
    assert store.prewrites.count == 0


@pytest.mark.row("P15", "P6", "P7")
def test_an_outcome_is_found_at_any_moment_while_it_goes_from_memory_to_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_fast(tmp_path, fs := FaultyFs())
    store_all(store, prewrite(100), prewrite(110), prewrite(120), commit(120, 130))
    late = commit(100, 105)
    remember(store, 100, 105, late.payload)
    remember(store, 110)
    fs.free = 0
    until(lambda: store.read_only)
    until(lambda: store.publish_unpersisted(200))
    until(lambda: store.watermark == 200)
    seen: list[tuple[list[tuple[int, int]], int | None]] = []
    real = Index.write

    def watched(index: Index, *what: Any) -> None:
        seen.append((stream(store), store.prewrites.lowest_unsettled()))
        real(index, *what)
        seen.append((stream(store), store.prewrites.lowest_unsettled()))

    monkeypatch.setattr(Index, "write", watched)
    store_all(store, late, rollback(110))
    assert seen == [([(100, 105), (120, 130)], 100)] * 2
    assert store.prewrites.lowest_unsettled() is None
    assert stream(store) == [(100, 105), (120, 130)]
    assert store.late() == []


@pytest.mark.row("P7", "P15")
def test_a_pull_under_way_gives_an_outcome_once_when_it_leaves_memory(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, *[prewrite(start) for start in range(100, 120)], fake(150))
    for start in range(100, 120):
        payload = commit(start, start + 100).payload
        remember(store, start, start + 100, payload)
    until(lambda: store.watermark == 219)
    leaving: list[bool] = []

    def they_are_written() -> None:
        store_all(store, *[commit(start, start + 100) for start in range(100, 120)])
        leaving.append(not store.prewrites.lowest_unsettled())

    with index_meets(columns=so_often(1, they_are_written)):
        found = [commit_ts for start, commit_ts in stream(store)]
    assert leaving == [True], "behind the look into memory"
    assert found == list(range(200, 220))


@pytest.mark.row("P5", "P15")
def test_bookkeeping_that_did_not_fit_on_the_disk_is_cut_before_the_next_try(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs)
    store_all(store, commit(10, 11), fake(20))
    lines = tmp_path / "pumphouse" / "commits.jsonl"
    before = lines.read_bytes()
    after_failure: list[bytes] = []

    def full(path: Path) -> None:
        after_failure.append(lines.read_bytes())
        if len(after_failure) < 3:
            raise OSError(errno.ENOSPC, "injected", str(path))

    fs.faults["append"] = full
    fs.short_write = 30
    store_all(store, commit(12, 21))
    assert after_failure == [before] * 3
    store.close()
    store = open_store(tmp_path)
    assert [each.commit_ts for each in store.orphans()] == [11, 21]


def test_a_line_is_not_joined_to_half_of_another(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"whole\nhalf of a li")
    REAL_FS.append_line(path, b"next\n")
    assert path.read_bytes() == b"whole\nnext\n"


@pytest.mark.row("P5", "P3")
def test_one_write_is_never_longer_than_what_recovery_takes_for_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump_service.store.recovery.UNSYNCED_BYTES", 10_000)
    fs = FaultyFs()
    store = open_store(tmp_path, fs, group_commit_bytes=1 << 20)
    sizes: list[int] = []
    (path,) = value_files(tmp_path) or [tmp_path / "value" / "000000.vlog"]
    fs.faults["sync"] = lambda _: sizes.append(len(path.read_bytes().rstrip(b"\0")) + 1)  # a payload ends with a zero
    items = [prewrite(n, b"v" * 3000) for n in range(1, 8)] + [prewrite(8, b"v" * 30_000)] + [prewrite(9, b"v")]
    assert write(store, *items) == [None] * 9
    steps = [after - before for before, after in pairwise([0, *sizes])]
    assert len(steps) == 5
    assert [step <= 10_000 for step in steps] == [True, True, True, False, True]
    assert log_payloads(store) == [item.payload for item in items]
    # Torn anywhere in such a write, also with good records behind the hole, it is cut.
    shutil.copytree(tmp_path, tmp_path / "found")
    store.close()
    whole = path.read_bytes()[: sizes[0]]
    found = tmp_path / "found" / "value" / "000000.vlog"
    found.write_bytes(whole[:512] + bytes(512) + whole[1024:])
    shutil.rmtree(tmp_path / "found" / "kv")
    store = open_store(tmp_path / "found")
    assert log_payloads(store) == []


def test_a_closing_store_answers_with_a_refusal(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    got: list[object] = []
    submit(store, [prewrite(10)], got.extend)
    store.close()
    assert got == [None], "what was submitted before is written"
    submit(store, [prewrite(11)], got.extend)
    assert isinstance(got[1], WriterFailed)
    store.close()


def test_a_callback_that_raises_does_not_stop_the_writer(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    def bad(_statuses: object) -> None:
        raise RuntimeError("the loop is gone")

    submit(store, [prewrite(10)], bad)
    store_all(store, commit(10, 11))
    assert stream(store) == [(10, 11)]


@pytest.mark.row("P3")
def test_without_sync_nothing_is_synced_but_everything_else_is_the_same(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs, sync_log=False)
    store_all(store, prewrite(10), commit(10, 11))
    assert fs.syncs == 0
    assert not store.status().sync_log


def test_an_unexpected_error_of_the_writer_ends_it_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    faults = faults_of(store)
    monkeypatch.setattr(ValueLog, "append", a_bug)
    assert isinstance(write(store, prewrite(10))[0], WriterFailed)
    until(lambda: faults)
    assert store.writer_error


@pytest.mark.row("P3", "P15")
@pytest.mark.parametrize("where", ["read_only", "left_to_bookkeeping"])
def test_an_error_before_anything_is_written_answers_nobody_durable_and_is_reported_whatever_the_log_does(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    faults, end = faults_of(store), store.synced_end

    def broken(_guard: DiskGuard) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(threading, "excepthook", void)  # the thread may end behind the block
    with logs_cannot_be_written("writer"), monkeypatch.context() as patch:
        patch.setattr(DiskGuard, where, broken)
        statuses = write(store, prewrite(10), commit(10, 11))
        assert [type(status) for status in statuses] == [WriterFailed, WriterFailed]
        until(lambda: faults)
    assert store.writer_error
    assert store.synced_end == end
    store.close()


@pytest.mark.row("P3", "P15")
def test_an_error_between_two_tries_leaves_durable_only_what_an_append_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs, value_log_file_bytes=4096)

    def full(path: Path) -> None:
        if path.name == "000001.vlog":
            raise OSError(errno.ENOSPC, "No space left on device")

    fs.faults["write"] = full
    monkeypatch.setattr(DiskGuard, "went_full", a_bug)
    statuses = write(store, prewrite(10, b"v" * 5000), commit(10, 11))
    assert [type(status) for status in statuses] == [type(None), WriterFailed]
    assert log_payloads(store) == [prewrite(10, b"v" * 5000).payload]


@pytest.mark.row("P3", "P15")
def test_a_log_line_that_fails_while_a_file_is_sealed_is_not_taken_for_a_failed_write(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=4096)
    with pytest.raises(BrokenPipeError), logs_cannot_be_written("valuelog"):
        value_log(store).append([Records.of([prewrite(10, b"v" * 5000)])])


@pytest.mark.row("P15")
@pytest.mark.parametrize("stage", ["indexer", "chaser"])
def test_a_thread_that_ends_is_reported_though_the_log_fails(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, index_queue_records=1, slow_chaser_threshold_s=0.01)
    monkeypatch.setattr(threading, "excepthook", void)  # the thread may end behind the block
    with logs_cannot_be_written(stage), monkeypatch.context() as patch:
        if stage == "indexer":
            in_index(store, a_bug)
        else:
            patch.setattr(ValueLog, "scan", a_bug)
            with index_stands_still(store):
                while not store.status().slow_mode:
                    write(store, fake(10))
        until(lambda: isinstance(store.fault, ZeroDivisionError))
    store.close()


@pytest.mark.row("P6")
def test_who_waits_for_the_index_finds_a_prewrite_that_was_answered_before(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with index_stands_still(store):
        assert write(store, prewrite(10)) == [None]
        assert not store.prewrites.is_open(10)
        waiting = threading.Thread(target=store.wait_for_index)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    waiting.join(60)
    assert store.prewrites.is_open(10)


@pytest.mark.row("P3")
def test_what_was_answered_is_not_held_while_the_writer_waits_for_more(tmp_path: Path) -> None:
    """A buffer may be a whole socket read."""
    store = open_fast(tmp_path, FaultyFs())
    data = np.frombuffer(prewrite(10).payload, np.uint8)
    held = weakref.ref(data)
    sizes = np.array([len(data)])
    answered = threading.Event()
    records = Records(data, sizes - sizes, sizes, parse(data, sizes - sizes, sizes), len(data))
    store.submit(records, lambda _: answered.set())
    del data, records
    assert answered.wait(60)
    until(lambda: held() is None)
