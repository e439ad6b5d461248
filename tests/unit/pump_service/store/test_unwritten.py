"""Outcomes that no file took."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pump_service.store.batch import IN_ORDER, LATE
from pump_service.store.groups import Status
from pump_service.store.store import Store
from pumphouse.errors import PumpReadOnly, WriterFailed
from pumphouse.model.tso import Tso
from tests.support.crashfs import FaultyFs, failing
from tests.support.storekit import (
    commit,
    fake,
    find,
    open_store,
    prewrite,
    pull_all,
    remember,
    rollback,
    settle,
    store_all,
    until,
    write,
)


@contextmanager
def full(fs: FaultyFs, store: Store) -> Iterator[None]:
    """The disk takes nothing meanwhile."""
    fs.faults["write"] = failing(errno.ENOSPC)
    fs.free = 0
    yield
    fs.faults.clear()
    fs.free = 1 << 40
    until(lambda: not store.read_only)


def committed(store: Store, start_ts: int, commit_ts: int) -> Status:
    """What is answered to an outcome."""
    answers: list[Status] = []
    store.settling.committed(start_ts, commit_ts, done=answers.append)
    until(lambda: answers, "no answer")
    return answers[0]


def flags(store: Store, after: int = 0) -> list[tuple[int, int, int]]:
    """(start ts, commit ts, flag) of real transactions in the stream."""
    return [(start, ts, flag) for ts, start, _, flag in pull_all(store, after) if start != ts]


def names(store: Store) -> list[tuple[int, int]]:
    """Late commits."""
    return [(each.start_ts, each.commit_ts) for each in store.late()]


@pytest.mark.row("P15", "P6")
def test_a_prewrite_whose_rollback_is_in_memory_only_is_met_again_after_a_restart(tmp_path: Path) -> None:
    fs = FaultyFs()
    store = open_store(tmp_path, fs)
    store_all(store, prewrite(10), fake(15))
    fs.faults["sync"] = failing(errno.EIO)
    assert isinstance(write(store, fake(16))[0], WriterFailed)
    store.settling.rolled_back(10)
    until(lambda: store.watermark == 15)
    assert store.prewrites.lowest_unsettled() == 10
    store.close()
    store = open_store(tmp_path)
    assert [each.start_ts for each in store.prewrites.oldest()] == [10]
    store.close()


@pytest.mark.row("P15", "P6")
def test_an_outcome_that_gc_has_passed_is_kept_in_memory_again_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path, fs := FaultyFs())
    store_all(store, prewrite(10), prewrite(50), commit(10, 20))
    fs.faults["write"], fs.free = failing(errno.ENOSPC), 0
    assert committed(store, 50, 80) is None
    assert store.publish_unpersisted(90)
    until(lambda: store.watermark == 90)
    assert [ts for ts, *_ in pull_all(store, 0)] == [20, 80]
    store.gc.collect({"archive": Tso(90)}, Tso(95))
    assert store.gc_point == 90
    store.close()
    store = open_store(tmp_path, fs)
    assert [each.start_ts for each in store.prewrites.oldest()] == [50]
    assert committed(store, 50, 80) is None
    assert store.publish_unpersisted(110)
    until(lambda: store.watermark == 110)


@pytest.mark.row("P15", "P6")
def test_an_outcome_below_the_watermark_is_not_kept_in_memory_and_is_named_once_it_can_be_written(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, fs := FaultyFs())
    store_all(store, fake(100), prewrite(50))
    with full(fs, store):
        assert isinstance(committed(store, 50, 80), PumpReadOnly)
        assert store.prewrites.is_open(50)
        assert find(store, 80) is None
    assert write(store, fake(110)) == [None]
    settle(store)
    assert (names(store), store.prewrites.is_open(50)) == ([], True), "whoever knows the outcome says it again"
    assert committed(store, 50, 80) is None
    until(lambda: names(store) == [(50, 80)])
    assert flags(store) == [(50, 80, LATE)]
    batch = store.stream.pull(100, max_bytes=1 << 20)
    assert [(each.start_ts, each.commit_ts) for each in batch.behind] == [(50, 80)]


@pytest.mark.row("P15", "P6")
def test_an_outcome_with_the_commit_ts_of_another_one_is_not_kept_in_memory(tmp_path: Path) -> None:
    store = open_store(tmp_path, fs := FaultyFs())
    store_all(store, prewrite(50), prewrite(60), prewrite(70), prewrite(80), commit(60, 200))
    with full(fs, store):
        assert committed(store, 70, 300) is None
        assert isinstance(committed(store, 50, 200), PumpReadOnly), "it is in the index"
        assert isinstance(committed(store, 80, 300), PumpReadOnly), "it is in memory"
        assert [each.start_ts for each in store.prewrites.oldest()] == [50, 80]
    assert write(store, fake(400)) == [None]
    until(lambda: store.prewrites.lowest_unsettled() == 50)
    assert [committed(store, 50, 200), committed(store, 80, 300)] == [None, None]
    until(lambda: store.prewrites.lowest_unsettled() is None)
    until(lambda: names(store) == [(50, 200), (80, 300)])
    assert flags(store) == [(50, 200, LATE), (60, 200, IN_ORDER), (70, 300, IN_ORDER), (80, 300, LATE)]


@pytest.mark.row("P15", "P6", "P7")
def test_a_commit_with_the_commit_ts_of_an_outcome_in_memory_is_named_and_both_are_served(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(50), prewrite(60), prewrite(40))
    remember(store, 60, 200, commit(60, 200).payload)
    store_all(store, commit(50, 200), rollback(40), fake(300))
    both = [(50, 200, LATE), (60, 200, IN_ORDER)]
    assert (names(store), flags(store)) == ([(50, 200)], both)
    store_all(store, commit(60, 200))
    assert (names(store), flags(store)) == ([(50, 200)], both)
    assert store.prewrites.lowest_unsettled() is None


@pytest.mark.row("P15", "P6")
def test_an_outcome_in_memory_is_settled_by_no_other_outcome_of_its_transaction(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10))
    remember(store, 10, 28, commit(10, 28).payload)
    store_all(store, rollback(10))
    assert (store.prewrites.lowest_unsettled(), flags(store)) == (10, [(10, 28, IN_ORDER)])
    store_all(store, commit(10, 28))
    assert (store.prewrites.lowest_unsettled(), flags(store)) == (None, [(10, 28, IN_ORDER)])
