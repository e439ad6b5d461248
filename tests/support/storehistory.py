"""A store's history for crash tests, frozen at every moment at which something became durable, and what must be found.

``run`` writes it over a `CrashFs`; ``check_image`` lays one of its images out and opens it with the real store.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest

from pump_service.store.collected import HELD_BY
from pump_service.store.frame import read_meta
from pump_service.store.store import Item, Store
from pumphouse.errors import PumpReadOnly
from tests.support.crashfs import CrashFs, Image
from tests.support.setclock import QuickClock
from tests.support.storekit import (
    commit,
    fake,
    find,
    gc_in_steps,
    log_payloads,
    open_store,
    prewrite,
    pull_all,
    quick_directory,
    rollback,
    settle,
    store_all,
    stream,
    write,
)
from tests.support.writers import written_here

TAILS = ("nothing", "half", "all", "holes")
INDEXES = ("kept", "lost", "behind", "holes")
SMALL = {"value_log_file_bytes": 4096}
# Start ts and commit ts of a transaction that lies across what GC deletes.
ACROSS = (1, 97)
# Start ts of commits without a prewrite.
ODD = {5, 6, 7}


class History:
    """What the test sent, what was answered, and what was collected."""

    def __init__(self) -> None:
        self.sent: list[Item] = []
        self.answered: list[Item] = []
        self.pending: set[tuple[int, int]] = set()
        self.gc_point = 0

    def note(self) -> tuple[list[Item], int, set[tuple[int, int]]]:
        return list(self.answered), self.gc_point, set(self.pending)


def run(data_dir: Path, seed: int) -> tuple[list[Image], History]:
    """A workload with rotation, rollbacks, fakes, a late commit, an orphan, a full disk, a large record and GC runs."""
    with gc_in_steps(6, most=7, piece=4):  # few commits can be noted
        return _run(data_dir, random.Random(seed))


def _run(data_dir: Path, chance: random.Random) -> tuple[list[Image], History]:
    history = History()
    fs = CrashFs(data_dir, history.note)
    # At the beginning of time every commit is one that its client may repeat.
    store = open_store(
        data_dir, fs, QuickClock(today=0.0), **SMALL, reserve_bytes=65536, index_write_buffer_bytes=65536
    )
    _collect_across(store, history)
    ts = 100
    open_starts: list[int] = []
    for step in range(36):
        group = []
        for _ in range(chance.randint(1, 4)):
            ts += 10
            kind = chance.random()
            if kind < 0.5 or not open_starts:
                group.append(prewrite(ts, chance.randbytes(chance.randint(0, 700)), b"key%d" % ts))
                open_starts.append(ts)
            elif kind < 0.85:
                group.append(commit(open_starts.pop(0), ts))
            elif kind < 0.95:
                group.append(rollback(open_starts.pop(0)))
            else:
                group.append(fake(ts))
        history.sent += group
        if step == 24:
            fs.full = 50  # the disk takes that much more, then the append is cut and goes on in the reserve
        statuses = write(store, *group)
        assert all(status is None or (isinstance(status, PumpReadOnly) and step >= 24) for status in statuses)
        history.answered += [item for item, status in zip(group, statuses, strict=True) if status is None]
        refused = {item.start_ts for item, status in zip(group, statuses, strict=True) if status is not None}
        open_starts = [start for start in open_starts if start not in refused]
        settle(store)
        if step == 6:
            # Larger than a file, and than a group.
            ts += 10
            large = prewrite(ts, chance.randbytes(20_000), b"large")
            history.sent.append(large)
            assert write(store, large) == [None]
            history.answered.append(large)
            open_starts.append(ts)
        if step == 12:
            ts += 10
            odd = [commit(5, ts), commit(6, 107)]  # an orphan; one that is late as well
            history.sent += odd
            assert write(store, *odd) == [None, None]
            history.answered += odd
            settle(store)
            assert len(store.orphans()) == 2
            history.pending = {(5, ts), (6, 107)}
            for start, commit_ts in history.pending:
                store.accept(start, commit_ts, "test")
        if step == 18:
            history.gc_point = min(150, int(store.watermark))
            store.gc.collect({"archive": 150}, 1 << 60)
        if step == 20:
            assert history.gc_point > 103
            below = commit(7, 103)  # where prewrites were collected
            history.sent.append(below)
            assert write(store, below) == [None]
            history.answered.append(below)
            settle(store)
            history.pending = history.pending | {(7, 103)}
            store.accept(7, 103, "test")
    settle(store)
    assert fs.full is None, "the disk was full once"
    store.close()
    return fs.images, history


def _collect_across(store: Store, history: History) -> None:
    """Before anything holds GC: it notes what it removes, until a commit stays whose prewrite went with its file."""
    first = [prewrite(ACROSS[0], b"across")]
    for start in range(10, 90, 10):
        first += [prewrite(start, bytes(700)), commit(start, start + 5)]
    for group in (first[:13], first[13:], [commit(*ACROSS), fake(ACROSS[1] + 2)]):
        history.sent += group
        assert not any(write(store, *group))
        history.answered += group
        settle(store)
    history.gc_point = ACROSS[1] + 2
    report = store.gc.collect({"archive": history.gc_point}, 1 << 60)
    assert HELD_BY in report.held_by
    assert (report.gc_point, report.deletion_limit, report.freed_files) == (history.gc_point, 65, 1)
    assert find(store, ACROSS[1]) is not None


def crashed_store(how: str) -> tuple[list[Image], History]:
    """The same history, written by the writer ``thread`` alone or ``here``, as an event loop does."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(quick_directory())
        if how == "here":
            stack.enter_context(written_here(stack.enter_context(pytest.MonkeyPatch.context())))
        return run(directory / "data", seed=7)


def check_image(image: Image, history: History, tmp_path: Path, tail: str, index: str, of: str = "") -> None:
    """Open what is found after a power loss at that moment: answered is there, what is there was sent, and it goes on."""
    directory = tmp_path / f"{image.number}-{tail}-{index}{of}"
    directory.mkdir()
    image.lay_out(directory, tail=tail, index=index, seed=image.number)
    where = f"{image.number} {image.what}, {tail}, index {index}{of}"
    answered, _, pending = image.noted
    store = open_store(directory, **SMALL)
    try:
        _check_found(store, answered, {item.payload for item in history.sent}, pending, where)
        _check_it_goes_on(store, answered, where)
    finally:
        store.close()
    if image.number % 5 == 0:
        again = open_store(directory, **SMALL)
        assert (1 << 41, (1 << 41) + 1) in stream(again, int(again.gc_point)), where
        again.close()
    shutil.rmtree(directory)


def _check_found(
    store: Store, answered: list[Item], sent: set[bytes], pending: set[tuple[int, int]], where: str
) -> None:
    in_log = log_payloads(store)
    assert set(in_log) <= sent, f"{where}: something in the log was never sent"
    floor = int(store.gc_point)
    # What was written but not answered may be there as well, and may resolve a prewrite.
    metas = [read_meta(payload) for payload in in_log]
    resolved = {meta.start_ts for meta in metas if meta.tp and meta.start_ts != meta.commit_ts}
    orphans = {start for start, _ in pending} | ODD
    starts = {item.start_ts for item in answered if item.tp == 0}
    for item in answered:
        ts = item.commit_ts if item.tp else item.start_ts
        if ts > floor:
            assert find(store, ts) == item.payload, f"{where}: {ts} was answered and is gone"
    # The deletion limit may be lower again than what an earlier run has deleted.
    collected = {start for start in starts if start < store.deletion_limit}
    collected |= {item.start_ts for item in answered if item.tp == 1 and item.commit_ts <= floor}
    waiting = {each.start_ts for each in store.prewrites.oldest(1000)}
    assert starts - resolved - collected <= waiting, f"{where}: an unresolved prewrite is forgotten"
    # Whatever lies at or below the watermark is in the stream.
    order = [(ts, start) for ts, start, _, _ in pull_all(store, floor)]
    assert order == sorted(set(order)), f"{where}: out of order, or one twice"
    served = set(stream(store, floor))
    for item in answered:
        if item.tp == 1 and item.start_ts not in orphans and floor < item.commit_ts <= store.watermark:
            assert (item.start_ts, item.commit_ts) in served, f"{where}: {item.commit_ts} is not served"
    # What never had a prewrite is asked about; of what had one nothing is, also not of what was collected.
    asked = {(each.start_ts, each.commit_ts) for each in store.orphans()}
    assert pending | {(meta.start_ts, meta.commit_ts) for meta in metas if meta.start_ts in ODD} <= asked, where
    assert not starts & {each.start_ts for each in [*store.late(), *store.orphans()]}, where


def _check_it_goes_on(store: Store, answered: list[Item], where: str) -> None:
    left = [rollback(each.start_ts) for each in store.prewrites.oldest(1000)]
    # A client whose answer was lost repeats its commit, be it collected or not: that is no late one, and no orphan.
    repeated = [
        item for item in answered
        if item.tp == 1 and item.start_ts not in ODD and item.commit_ts <= store.gc_point
    ]  # fmt: skip
    before = store.late(), store.orphans()
    store_all(store, *left, *repeated, prewrite(1 << 41), commit(1 << 41, (1 << 41) + 1))
    assert (store.late(), store.orphans()) == before, f"{where}: a repeated commit is taken for another"
    assert store.watermark == (1 << 41) + 1
