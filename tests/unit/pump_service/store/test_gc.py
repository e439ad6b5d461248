"""Two numbers: what pulls may ask for, and what may really go (row P11)."""

from __future__ import annotations

import errno
import gc as garbage
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pump_service.store import frame
from pump_service.store import gc_rules as rules
from pump_service.store.block import Block, Entry
from pump_service.store.collected import FILE_NAME, HELD_BY
from pump_service.store.index import IndexFailed
from pump_service.store.store import Item, Store
from pump_service.store.summary import FileSummary
from pumphouse.errors import CorruptionError, LateCommit, PositionCollected, WriterFailed
from pumphouse.model.position import Pointer
from pumphouse.model.tso import compose
from tests.support.crashfs import FaultyFs, failing
from tests.support.setclock import QuickClock
from tests.support.storekit import (
    commit,
    fake,
    find,
    gc_in_steps,
    index_stands_still,
    merged,
    open_store,
    prewrite,
    pull_all,
    rollback,
    store_all,
    stream,
    until,
    value_files,
    value_log,
    write,
)

FAR = 1 << 60
HOUR_S = 3600.0
SMALL = {"value_log_file_bytes": 4096}
VALUE = b"v" * 1000


def transactions(store: Store, first: int, count: int) -> None:
    """Start ts first, first + 10, …; each commits 5 later."""
    for start in range(first, first + 10 * count, 10):
        store_all(store, prewrite(start, VALUE), commit(start, start + 5))


@pytest.fixture
def _index_is_not_waited_for() -> Iterator[None]:
    """A run does without the newest position soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pump_service.store.gc._PERSIST_WITHIN_S", 0.05)
        yield


def notes_do_not_fit(fs: FaultyFs) -> list[Path]:
    """On a disk that is full for them; the tries."""
    tries: list[Path] = []

    def full(path: Path) -> None:
        if path.name == "commits.jsonl":
            tries.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")

    fs.faults["append"] = full
    return tries


def during_a_run(fs: FaultyFs, action: Callable[[], object]) -> None:
    """Do something once, when the next run is about to delete a batch with a young commit."""

    def noted(path: Path) -> None:
        if path.name == FILE_NAME:
            fs.faults.clear()
            action()

    fs.faults["replace"] = noted


def just_now() -> int:
    return compose(int(time.time() * 1000))


def fids(data_dir: Path) -> list[int]:
    return [int(path.stem) for path in value_files(data_dir)]


@pytest.mark.row("P11")
def test_files_and_keys_below_the_checkpoint_go_and_everything_above_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    transactions(store, 1000, 40)
    before = fids(tmp_path)
    assert len(before) > 8
    report = store.gc.collect({"archive": 1200}, FAR)
    assert (report.gc_point, report.deletion_limit) == (1200, 1200)
    assert report.held_by == ["archive"]
    assert report.freed_files > 3
    assert report.kept_files == len(fids(tmp_path)) == len(before) - report.freed_files
    assert report.freed_bytes > 3 * 4096
    assert report.deleted_keys == 40, "20 prewrites and 20 commits"
    assert [c for c, _, _, _ in pull_all(store, after=1200)] == list(range(1205, 1400, 10))
    assert find(store, 1190) is None
    store.close()
    store = open_store(tmp_path, **SMALL)
    assert (store.gc_point, store.deletion_limit) == (1200, 1200)
    with pytest.raises(PositionCollected):
        store.stream.pull(1199, max_bytes=1000)
    assert len(pull_all(store, after=1200)) == 20


@pytest.mark.row("P11", "P5")
def test_after_gc_the_index_can_still_be_rebuilt(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    store_all(store, prewrite(990, b"early"))
    transactions(store, 1000, 10)
    store_all(store, commit(990, 1105), prewrite(1101), rollback(1101))
    transactions(store, 1110, 10)
    store.gc.collect({"archive": 1106}, FAR)
    assert store.gc_point == 1106
    expected = pull_all(store, after=1106)
    watermark = store.watermark
    store.close()
    shutil.rmtree(tmp_path / "kv")
    store = open_store(tmp_path, **SMALL)
    assert fids(tmp_path)[0] > 0
    assert pull_all(store, after=1106) == expected
    assert store.watermark == watermark
    assert store.prewrites.count == 0
    assert store.orphans() == store.late() == []


@pytest.mark.row("P11", "P7")
def test_a_prewrite_before_the_checkpoint_keeps_its_payload_until_its_commit_was_served(tmp_path: Path) -> None:
    """Prewrite, checkpoint passes it, files rotate, GC is triggered, then its commit comes."""
    store = open_store(tmp_path, **SMALL)
    store_all(store, prewrite(900, b"the payload"))
    transactions(store, 1000, 20)
    # The watermark is held by 900, so no consumer can be beyond it; a later start shows the general case.
    assert store.watermark == 0
    report = store.gc.collect({"archive": 1150}, FAR)
    assert report.gc_point == 0
    assert "watermark" in report.held_by
    store_all(store, commit(900, 1205))
    transactions(store, 1210, 20)
    # Committed above the checkpoint: its file is older than the checkpoint and must stay.
    report = store.gc.collect({"archive": 1200}, FAR)
    assert report.gc_point == 1200
    assert report.deletion_limit == 900
    assert report.freed_files == 0
    assert any("900" in holder for holder in report.held_by)
    assert (1205, 900, merged(900, 1205, b"the payload"), 0) in pull_all(store, after=1200)
    report = store.gc.collect({"archive": 1210}, FAR)
    assert report.deletion_limit == 1210
    assert report.freed_files > 3


@pytest.mark.row("P11")
def test_an_unresolved_prewrite_with_an_old_start_ts_holds_deletion_but_not_the_gc_point(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    transactions(store, 1000, 20)
    store_all(store, prewrite(500, b"a transaction that was open for long"))
    report = store.gc.collect({"archive": 1150}, FAR)
    assert (report.gc_point, report.deletion_limit, report.freed_files) == (1150, 500, 0)
    assert "unresolved prewrite 500" in report.held_by
    store_all(store, commit(500, 1300))
    assert stream(store, 1150)[-1] == (500, 1300)


@pytest.mark.row("P11")
@pytest.mark.usefixtures("_index_is_not_waited_for")
def test_a_prewrite_that_is_written_but_not_indexed_holds_deletion(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    transactions(store, 1000, 20)
    with index_stands_still(store):
        assert write(store, prewrite(500, b"p")) == [None]
        assert store.prewrites.count == 1, "counted although the index does not know it"
        report = store.gc.collect({"archive": 1150}, FAR)
        assert report.deletion_limit == 500
    store_all(store, commit(500, 1300))


@pytest.mark.row("P11")
def test_a_late_or_orphan_commit_holds_deletion_until_it_is_accepted(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    transactions(store, 1000, 10)
    store_all(store, commit(1010, 1012), commit(1, 1101))
    transactions(store, 1110, 10)
    assert [(i.start_ts, i.late, i.orphan) for i in store.late() + store.orphans()] == [
        (1010, True, False), (1, False, True),
    ]  # fmt: skip
    assert store.gc.collect({"archive": 1200}, FAR).deletion_limit == 1
    store.accept(1, 1101, "test")
    assert store.gc.collect({"archive": 1200}, FAR).deletion_limit == 1010
    store.accept(1010, 1012, "test")
    report = store.gc.collect({"archive": 1200}, FAR)
    assert report.deletion_limit == 1200
    assert report.freed_files > 0


@pytest.mark.row("P11", "P6")
@pytest.mark.usefixtures("_index_is_not_waited_for")
def test_a_late_commit_that_is_not_noted_yet_holds_deletion(tmp_path: Path) -> None:
    """It is noted again and again on a full disk, while its prewrite waits no more."""
    fs = FaultyFs()
    store = open_store(tmp_path, fs, **SMALL)
    transactions(store, 1000, 10)
    store_all(store, prewrite(1094, VALUE))
    transactions(store, 1100, 10)
    store_all(store, rollback(1094), fake(1200))
    large = prewrite(1096, b"v" * 5000)  # its file ends with it
    store_all(store, large)
    store_all(store, prewrite(1199), rollback(1199))
    tries = notes_do_not_fit(fs)
    assert write(store, commit(1096, 1150)) == [None]
    until(lambda: tries)
    assert not store.prewrites.is_open(1096)
    report = store.gc.collect({"archive": 1200}, FAR)
    assert (report.gc_point, report.deletion_limit) == (1200, 1096)
    fs.faults.clear()
    store_all(store)
    assert [(each.start_ts, each.commit_ts, each.late, each.orphan) for each in store.late()] == [
        (1096, 1150, True, False)
    ]
    assert store.gc.collect({"archive": 1200}, FAR).deletion_limit == 1096
    assert find(store, 1096) == large.payload
    store.accept(1096, 1150, "test")
    assert store.gc.collect({"archive": 1200}, FAR).deletion_limit == 1200


def killed_before_it_was_noted(store: Store, fs: FaultyFs, data_dir: Path, found: Path, *items: Item) -> None:
    """Write, and copy the directory to ``found`` as it is right behind the answer, before the indexer's note."""
    store.wait_for_index()
    tries = notes_do_not_fit(fs)
    assert write(store, *items) == [None] * len(items)
    until(lambda: tries)
    shutil.copytree(data_dir, found)
    fs.faults.clear()
    store.close()


def collected_store(data_dir: Path, fs: FaultyFs, clock: QuickClock | None = None) -> Store:
    """A GC point of 1106 and a watermark of 1205; two commits lie in the log whose prewrites went with their file."""
    store = open_store(data_dir, fs, clock, **SMALL)
    store_all(store, prewrite(980, b"early"), prewrite(990, b"early"))
    transactions(store, 1000, 10)
    store_all(store, commit(980, 1104), commit(990, 1105), prewrite(1101), rollback(1101))
    transactions(store, 1110, 10)
    report = store.gc.collect({"archive": 1106}, FAR)
    assert (report.deletion_limit, store.watermark) == (1106, 1205)
    assert report.freed_files > 0
    assert find(store, 980) is find(store, 990) is None
    return store


@pytest.mark.row("P6", "P7", "P11")
@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize(
    ("start", "commit_ts"),
    [(7, 1103), (7, 1106), (7, 1107), (1101, 1103)],
    ids=["below the GC point", "at it", "above it", "with a prewrite that was rolled back"],
)
def test_a_late_commit_whose_pump_died_before_it_was_noted_is_asked_about_and_what_was_collected_is_not(
    tmp_path: Path, index: str, start: int, commit_ts: int
) -> None:
    fs = FaultyFs()
    store = collected_store(tmp_path / "live", fs)
    expected = stream(store, 1106)
    found = tmp_path / "found"
    killed_before_it_was_noted(store, fs, tmp_path / "live", found, commit(start, commit_ts))
    assert (found / "pumphouse" / "commits.jsonl").read_bytes() == b""
    for _again in range(2):
        if index == "lost":
            shutil.rmtree(found / "kv")
        store = open_store(found, **SMALL)
        assert [(each.start_ts, each.commit_ts) for each in store.late()] == [(start, commit_ts)]
        assert {each.commit_ts for each in store.orphans()} <= {commit_ts}
        with pytest.raises(LateCommit):
            store.stream.pull(1200, max_bytes=1 << 20, strict=True)
        assert store.gc.collect({"archive": 1200}, FAR).deletion_limit == start
        # The client, which had its answer or not, says it again.
        store_all(store, commit(start, commit_ts))
        assert len(store.late()) == 1
        store.close()
    store = open_store(found, **SMALL)
    store.accept(start, commit_ts, "test")
    assert store.gc.collect({"archive": 1200}, FAR).deletion_limit == 1200
    assert stream(store, 1200) == [each for each in expected if each[1] > 1200]


@pytest.mark.row("P7", "P11")
def test_it_is_asked_about_also_where_only_fakes_in_memory_had_passed_it(tmp_path: Path) -> None:
    """On a disk that takes prewrites no more: what moved the watermark there is not met again."""
    fs, clock = FaultyFs(), QuickClock()
    store = collected_store(tmp_path / "live", fs, clock)
    fs.free = 0
    clock.ahead += 1
    assert store.read_only
    assert store.publish_unpersisted(1500)
    until(lambda: store.watermark == 1500)
    assert store.gc.collect({"archive": 1400}, FAR).gc_point == 1400
    found = tmp_path / "found"
    killed_before_it_was_noted(store, fs, tmp_path / "live", found, commit(7, 1300))
    shutil.rmtree(found / "kv")
    store = open_store(found, **SMALL)
    assert [(each.start_ts, each.commit_ts, each.orphan) for each in store.late()] == [(7, 1300, True)]


@pytest.mark.row("P5", "P11")
@pytest.mark.parametrize("how", ["of release 0.1.0", "of a Go Pump"])
def test_a_directory_that_does_not_say_how_far_it_was_judged_opens_as_before(tmp_path: Path, how: str) -> None:
    data_dir = tmp_path / "data"
    store = collected_store(data_dir, FaultyFs())
    expected = pull_all(store, after=1106)
    store.close()
    path = data_dir / "pumphouse" / "gc.json"
    if how == "of a Go Pump":
        shutil.rmtree(path.parent)
    else:
        path.write_text(json.dumps({"format_version": 1, "gc_point": 1106, "deletion_limit": 1106}))
        shutil.rmtree(data_dir / "kv")
    for _again in range(2):
        store = open_store(data_dir, **SMALL)
        assert store.gc_point == 1106
        assert store.late() == store.orphans() == []
        assert pull_all(store, after=1106) == expected
        store.close()
        shutil.rmtree(data_dir / "kv")
    # From then on it does.
    fs = FaultyFs()
    store = open_store(data_dir, fs, **SMALL)
    killed_before_it_was_noted(store, fs, data_dir, tmp_path / "found", commit(7, 1103))
    shutil.rmtree(tmp_path / "found" / "kv")
    store = open_store(tmp_path / "found", **SMALL)
    assert [(each.start_ts, each.commit_ts) for each in store.late()] == [(7, 1103)]


@pytest.mark.row("P5", "P11")
def test_what_is_written_where_the_log_went_back_has_not_been_judged(tmp_path: Path) -> None:
    store = collected_store(tmp_path / "live", FaultyFs())
    store_all(store, prewrite(1300, VALUE), fake(1310))
    end = store.synced_end
    store_all(store, rollback(1300), prewrite(1320, VALUE), commit(1320, 1325))
    assert store.synced_end.fid == end.fid
    assert store.gc.collect({"archive": 1106}, FAR).gc_point == 1106
    store.close()
    newest = value_files(tmp_path / "live")[-1]
    newest.write_bytes(newest.read_bytes()[: end.offset])
    fs = FaultyFs()
    store = open_store(tmp_path / "live", fs, **SMALL)
    live, found = tmp_path / "live", tmp_path / "found"
    killed_before_it_was_noted(store, fs, live, found, commit(7, 1103), prewrite(1330, VALUE))
    shutil.rmtree(tmp_path / "found" / "kv")
    store = open_store(tmp_path / "found", **SMALL)
    assert [(each.start_ts, each.commit_ts) for each in store.late()] == [(7, 1103)]


def test_gc_numbers_of_another_release_are_refused_by_name(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    path = tmp_path / "pumphouse" / "gc.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"format_version": 3}))
    with pytest.raises(CorruptionError, match=r"gc.json has format 3, this release reads 1 and 2"):
        open_store(tmp_path)


@pytest.mark.row("P11")
def test_the_slowest_consumer_and_retention_hold_the_gc_point_which_never_goes_back(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    transactions(store, 1000, 40)
    report = store.gc.collect({"fast": 1300, "slow": 1100}, FAR)
    assert (report.gc_point, report.held_by) == (1100, ["slow"])
    assert (report.requested_by_retention, report.requested_by_checkpoints) == (FAR, 1100)
    report = store.gc.collect({"fast": 1300, "slow": 1050}, FAR)
    assert (report.gc_point, report.held_by) == (1100, ["slow"])
    report = store.gc.collect({"fast": 1300, "slow": 1250}, 1200)
    assert (report.gc_point, report.held_by) == (1200, ["retention"])
    report = store.gc.collect({}, 1250)
    assert report.gc_point == 1250


@pytest.mark.row("P11")
def test_the_newest_file_and_files_that_pairing_has_not_passed_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    transactions(store, 1000, 20)
    report = store.gc.collect({"archive": FAR}, FAR)
    assert report.gc_point == 1195
    assert report.held_by == ["watermark"]
    newest = max(fids(tmp_path))
    store_all(store, fake(5000))
    store.gc.collect({"archive": FAR}, FAR)
    assert fids(tmp_path)[-1] >= newest
    assert store.gc_point == 5000
    store_all(store, prewrite(6000), commit(6000, 6001))
    assert stream(store, 5000) == [(6000, 6001)]


def summaries_in_memory() -> int:
    """That of the file that grows, and one that a thread had in its hands."""
    garbage.collect()
    return sum(type(each) is FileSummary for each in garbage.get_objects())


@pytest.mark.row("P11")
def test_summaries_of_sealed_files_are_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    before = summaries_in_memory()
    store = open_store(tmp_path, **SMALL)
    transactions(store, 10, 39)
    valuelog = value_log(store)
    files = valuelog.files()
    assert len(files) > 3
    assert summaries_in_memory() <= before + 2
    known = [valuelog.summaries.of(file).records for file in files]
    assert sum(known) >= 78
    assert summaries_in_memory() <= before + 2
    store.close()
    # A directory without the footers and the summaries: they are made by reading, and not kept either.
    for path in (tmp_path / "pumphouse" / "files").iterdir():
        path.unlink()
    store = open_store(tmp_path, **SMALL)
    assert [value_log(store).summaries.of(file).records for file in value_log(store).files()][: len(files)] == known
    assert summaries_in_memory() <= before + 2


def test_a_summary_is_the_same_whenever_it_is_read() -> None:
    chance = random.Random(7)
    at = 0
    blocks = []
    for _ in range(400):
        entries = []
        for _ in range(chance.choice([1, 2, 30, 700])):
            start = chance.randrange(1, 10_000)
            tp, commit = chance.choice([(0, 0), (1, start + chance.randrange(1, 99)), (2, 0), (2, start)])
            entries.append(Entry(tp, start, commit, 3, at, 20))
            at += 36
        blocks.append(Block.of(entries))
    late, read = FileSummary(3), FileSummary(3)
    seen: list[int] = []
    for block in blocks:
        late.add(block)
        read.add(block)
        assert read.end == int(block.offset[-1]) + 36
        seen.append(read.records)
        assert read.max_ts == max(int(block.start_ts[block.tp == 0].max(initial=0)), read.max_ts)
    assert seen == list(np.cumsum([len(block) for block in blocks]))
    assert late.to_bytes() == read.to_bytes()
    assert late.max_ts == max(frame.storage_ts(*entry[:3]) for block in blocks for entry in block)


def test_what_could_not_be_summed_up_for_want_of_memory_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = FileSummary(3)
    summary.add([Entry(0, 10, 0, 3, 0, 20)])

    def no_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("pump_service.store.summary.sum_up", no_memory)
        with pytest.raises(MemoryError):
            summary.buckets()
    summary.add([Entry(0, 11, 0, 3, 36, 20)])
    assert (summary.records, summary.end, summary.max_ts) == (2, 72, 11)


def test_a_summary_of_which_any_bit_flipped_is_made_again() -> None:
    summary = FileSummary(3)
    summary.add([Entry(0, 10, 0, 3, 0, 20), Entry(1, 10, 15, 3, 36, 20)])
    data = summary.to_bytes()
    again = FileSummary.from_bytes(data)
    assert again is not None
    assert again.to_bytes() == data
    assert (again.fid, again.end, again.max_ts, again.records) == (3, 72, 15, 2)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert FileSummary.from_bytes(bytes(flipped)) is None, bytes(flipped)
    assert FileSummary.from_bytes(b"[]\n") is None


@pytest.mark.row("P11", "P7")
def test_a_commit_that_its_client_repeats_after_gc_is_a_duplicate_and_not_a_late_one(tmp_path: Path) -> None:
    store = open_store(tmp_path, **SMALL)
    now = compose(int(time.time() * 1000))
    transactions(store, now, 20)
    store.gc.collect({"archive": now + 150}, FAR)
    assert find(store, now + 5) is None
    store_all(store, commit(now, now + 5))
    assert store.late() == store.orphans() == []
    assert store.status().duplicate_commits == 1
    store.close()
    store = open_store(tmp_path, **SMALL)
    store_all(store, commit(now + 10, now + 15), commit(now + 10, now + 16))
    assert [item.commit_ts for item in store.late()] == [now + 16], "one that never was in the stream is late"


@pytest.mark.row("P11")
def test_of_young_commits_only_so_many_go_as_can_be_noted_and_the_rest_when_it_is_old(tmp_path: Path) -> None:
    with gc_in_steps(4, most=20):
        _so_many_go_as_can_be_noted(tmp_path)


def _so_many_go_as_can_be_noted(tmp_path: Path) -> None:
    store, clock, now = open_store(tmp_path, **SMALL), QuickClock(), just_now()
    transactions(store, now, 60)
    before = fids(tmp_path)
    report = store.gc.collect({"archive": now + 500}, FAR)
    assert (report.gc_point, report.deletion_limit) == (now + 500, now + 200)
    assert report.deleted_keys == 40, "20 prewrites and 20 commits"
    assert HELD_BY in report.held_by
    assert 0 < report.freed_files < 10
    assert fids(tmp_path) == before[report.freed_files :]
    # What stays is whole, and a commit that is repeated is known, be it gone or there.
    assert find(store, now + 195) is None
    assert find(store, now + 200) is not None
    store_all(store, commit(now, now + 5), commit(now + 190, now + 195), commit(now + 200, now + 205))
    assert store.late() == store.orphans() == []
    assert store.status().duplicate_commits == 3
    assert store.gc.collect({"archive": now + 500}, FAR).deleted_keys == 0
    store.close()
    store = open_store(tmp_path, clock=clock, **SMALL)
    assert [c for c, _, _, _ in pull_all(store, after=now + 500)] == list(range(now + 505, now + 600, 10))
    clock.ahead += 2 * HOUR_S
    report = store.gc.collect({"archive": now + 500}, FAR)
    assert (report.deletion_limit, report.deleted_keys, report.held_by) == (now + 500, 60, ["archive"])
    assert report.freed_files > 5
    store.close()


@pytest.mark.row("P11", "P5")
@pytest.mark.parametrize(
    ("most", "point", "holder", "limit"),
    [
        (20, 500, None, 205),  # what can be noted ends between its prewrite and it
        (10_000, 252, None, 252),  # the checkpoint is this very commit
        (10_000, 500, 200, 200),  # an old transaction that is still open
    ],
)
def test_a_commit_that_stays_without_its_prewrite_is_found_by_its_repeat_after_the_index_was_lost(
    tmp_path: Path, most: int, point: int, holder: int | None, limit: int
) -> None:
    with gc_in_steps(4, most=most):
        _found_by_its_repeat(tmp_path, point, holder, limit)


def _found_by_its_repeat(tmp_path: Path, point: int, holder: int | None, limit: int) -> None:
    store, now = open_store(tmp_path, **SMALL), just_now()
    store_all(store, prewrite(now + 1))
    transactions(store, now + 10, 24)
    store_all(store, commit(now + 1, now + 252))
    transactions(store, now + 260, 40)
    if holder is not None:
        store_all(store, prewrite(now + holder + 3))
        limit = holder + 3
    report = store.gc.collect({"archive": now + point}, FAR)
    assert (report.gc_point, report.deletion_limit) == (now + point, now + limit)
    # So do all that show it, also after a restart.
    assert store.status().deletion_limit == now + limit
    assert json.loads((tmp_path / "pumphouse" / "gc.json").read_bytes())["deletion_limit"] == now + limit
    assert report.freed_files > 1, "its prewrite is gone"
    assert find(store, now + 252) is not None
    expected = pull_all(store, after=now + point)
    store.close()
    shutil.rmtree(tmp_path / "kv")
    for repeats in (1, 2):
        store = open_store(tmp_path, **SMALL)
        assert store.deletion_limit == now + limit
        store_all(store, commit(now + 1, now + 252))
        assert store.late() == store.orphans() == []
        assert store.status().duplicate_commits >= repeats
        assert pull_all(store, after=now + point) == expected
        assert store.stream.pull(now + point, max_bytes=1 << 20, strict=True).last > now + point
        store.close()
    # It holds nothing, and goes when its time has come.
    clock = QuickClock()
    clock.ahead += 2 * HOUR_S
    store = open_store(tmp_path, clock=clock, **SMALL)
    if holder is not None:
        store_all(store, rollback(now + holder + 3))
    report = store.gc.collect({"archive": now + 600}, FAR)
    assert report.deletion_limit == now + 600
    assert find(store, now + 252) is None
    store.close()


def test_a_second_run_at_once_is_refused(tmp_path: Path) -> None:
    store, now = open_store(tmp_path, fs := FaultyFs()), just_now()
    store_all(store, prewrite(now), commit(now, now + 5), fake(now + 9))
    second: list[bool] = []
    during_a_run(fs, lambda: second.append(store.gc.collect({}, now + 5).started))
    assert store.gc.collect({}, now + 9).started
    assert second == [False]
    assert store.gc.collect({}, now + 9).started


@pytest.mark.row("P11")
def test_a_run_ends_when_the_store_closes_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """LevelDB cannot be closed under a run; the end of the process would wait for all of its keys."""
    store, now = open_store(tmp_path, fs := FaultyFs()), just_now()
    for start in range(now, now + 90, 10):
        store_all(store, prewrite(start), commit(start, start + 1))
    store_all(store, fake(now + 190))
    closing = threading.Thread(target=store.close)

    def close() -> None:
        closing.start()
        until(lambda: isinstance(write(store, fake(now + 191))[0], WriterFailed))

    during_a_run(fs, close)
    with gc_in_steps(1), pytest.raises(WriterFailed, match="closing"):
        store.gc.collect({}, now + 140)
    closing.join()
    assert json.loads((tmp_path / "pumphouse" / "incarnation.json").read_bytes())["clean"]
    store = open_store(tmp_path)
    assert store.gc.collect({}, now + 140).deleted_keys == 16
    store.close()


@pytest.mark.row("P11")
def test_a_damaged_table_of_the_index_fails_a_run_by_name(tmp_path: Path) -> None:
    """An error of LevelDB that nobody expects would end the Pump, at each run."""
    store = open_store(tmp_path)
    for ts in range(10, 20_000, 10):
        write(store, prewrite(ts), commit(ts, ts + 5))
    store_all(store, fake(50_000))
    store.close()
    (table,) = (tmp_path / "kv").glob("*.ldb")
    with table.open("r+b") as file:
        file.seek(40_000)
        file.write(b"\xff" * 4000)
    store = open_store(tmp_path)
    with pytest.raises(IndexFailed, match="Corruption"):
        store.gc.collect({}, 30_000)


@pytest.mark.row("P11")
def test_nothing_is_deleted_when_the_gc_point_cannot_be_persisted(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs, **SMALL)
    transactions(store, 1000, 20)
    before = fids(tmp_path)
    fs.faults["replace"] = failing(5)
    with pytest.raises(OSError, match="injected"):
        store.gc.collect({"archive": 1150}, FAR)
    assert fids(tmp_path) == before
    assert store.gc_point == 0
    assert len(stream(store)) == 20
    fs.faults.clear()


@pytest.mark.row("P11")
def test_a_key_that_was_written_again_during_gc_is_kept(tmp_path: Path) -> None:
    store, now = open_store(tmp_path, fs := FaultyFs(), **SMALL), just_now()
    transactions(store, now, 20)
    # A retried prewrite replaces the pointer of its start ts.
    during_a_run(fs, lambda: store_all(store, prewrite(now, VALUE)))
    assert store.gc.collect({"archive": now + 50}, FAR).deleted_keys == 9
    assert find(store, now) is not None
    assert find(store, now + 5) is None


TS = st.integers(0, 1000)


@given(before=TS, checkpoints=st.dictionaries(st.sampled_from("abc"), TS), retention=TS, watermark=TS)
def test_the_gc_point_is_below_everything_that_holds_it_or_where_it_was(
    before: int, checkpoints: dict[str, int], retention: int, watermark: int
) -> None:
    point = rules.decide_point(before, checkpoints, retention, watermark)
    assert point.gc_point >= before
    if point.gc_point > before:
        assert all(point.gc_point <= ts for ts in [*checkpoints.values(), retention, watermark])
    assert point.held_by


class _File:
    def __init__(self, fid: int, max_ts: int, sealed: bool) -> None:
        self.fid, self.max_ts, self.sealed = fid, max_ts, sealed


@given(
    max_ts=st.lists(st.integers(0, 20), max_size=8), limit=st.integers(0, 20), head=st.integers(0, 9),
    handle=st.integers(0, 9),
)  # fmt: skip
def test_only_a_prefix_of_the_files_goes(max_ts: list[int], limit: int, head: int, handle: int) -> None:
    files = [_File(fid, ts, sealed=True) for fid, ts in enumerate(max_ts)]
    gone = rules.deletable(files, limit, Pointer(head, 0), Pointer(handle, 0))  # type: ignore[arg-type]
    assert [file.fid for file in gone] == list(range(len(gone)))
    assert all(file.max_ts < limit and file.fid < head and file.fid < handle for file in gone)
    assert len(gone) < max(len(files), 1)
