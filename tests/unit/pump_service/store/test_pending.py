"""Commits that are kept out of the stream, by name: what they cost where they are many."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from pump_service.store.fs import REAL_FS
from pump_service.store.pending import PendingCommit, PendingCommits
from pump_service.store.store import Store
from tests.support.storekit import commit, fake, open_store, prewrite, pull_all, store_all

pytestmark = pytest.mark.row("P6", "P7")


class Counted(dict[tuple[int, int], PendingCommit]):
    """Counts how often somebody walks through it."""

    walks = 0

    def values(self) -> Iterable[PendingCommit]:  # type: ignore[override]
        self.walks += 1
        return super().values()


def counted(store: Store) -> Counted:
    store._pending._items = made = Counted(store._pending._items)
    return made


def late(count: int, first: int) -> list[int]:
    return [first + 10 * n for n in range(count)]


def walks_of_a_pull(directory: Path, count: int) -> int:
    store = open_store(directory)
    starts = late(count, 100)
    store_all(store, *map(prewrite, starts), *(commit(start, start + 5) for start in starts), fake(1 << 30))
    store_all(store, *(prewrite(start + 1) for start in starts), *(commit(start + 1, start + 6) for start in starts))
    assert len(store.late()) == count
    walked = counted(store)
    assert [ts for ts, start, *_ in pull_all(store) if start != ts] == [
        ts for start in starts for ts in (start + 5, start + 6)
    ]
    return walked.walks


def test_a_pull_over_many_late_commits_walks_through_them_as_often_as_over_few(tmp_path: Path) -> None:
    assert walks_of_a_pull(tmp_path / "many", 400) == walks_of_a_pull(tmp_path / "few", 100)


def test_records_that_are_judged_do_not_walk_through_those_that_are_known(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, *(commit(start, start + 5) for start in late(100, 100)), fake(1 << 20))
    assert len(store.orphans()) == 100
    walked = counted(store)
    starts = late(100, 5000)
    store_all(store, *map(prewrite, starts), *(commit(start, start + 5) for start in starts))
    store_all(store, *map(prewrite, late(50, 100)))
    assert walked.walks == 0
    assert (len(store.late()), len(store.orphans())) == (100, 50)


@pytest.mark.parametrize("seed", range(3))
def test_starts_of_orphans_are_those_of_its_items(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    pending = PendingCommits(REAL_FS, tmp_path)

    def agrees(of: PendingCommits) -> None:
        expected = sorted({item.start_ts for item in of.all() if item.orphan})
        assert of.orphan_starts().tolist() == expected
        assert of.has_orphans() == bool(expected)

    for fid in range(150):
        start = chance.randrange(20)
        commit_ts = start + chance.randrange(3)
        orphan = commit_ts == start or chance.random() < 0.7
        item = PendingCommit(
            start_ts=start, commit_ts=commit_ts, fid=fid, offset=0, late=True, orphan=orphan, watermark=0
        )
        pending.add([item])
        agrees(pending)
        chosen = chance.choice(pending.all())
        act = chance.randrange(4)
        if act == 0:
            pending.heal(chosen.start_ts)
        elif act == 1:
            pending.accept(chosen.start_ts, chosen.commit_ts, "why not", 0.0)
        elif act == 2:
            pending.forget_below(chosen.fid + 1)
        agrees(pending)
    again = PendingCommits(REAL_FS, tmp_path)
    again.load()
    agrees(again)
    assert again.all() == pending.all()
