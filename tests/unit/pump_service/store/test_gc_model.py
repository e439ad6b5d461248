"""GC against a naive model: nothing that somebody may still need is freed, whatever comes in between (row P11)."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pump_service.store.store import Store
from pumphouse.errors import PositionCollected
from tests.support.setclock import QuickClock
from tests.support.storekit import (
    commit,
    fake,
    find,
    gc_in_steps,
    merged,
    open_store,
    prewrite,
    pull_all,
    quick_directory,
    rollback,
    store_all,
    value_files,
)

pytestmark = pytest.mark.row("P11", "P5")

FAR = 1 << 60
SMALL = {"value_log_file_bytes": 4096, "index_write_buffer_bytes": 65536}
SEEDS = range(40 if os.environ.get("PUMPHOUSE_CAMPAIGN") else 4)


class Model:
    """Everything that was ever answered, in dictionaries."""

    def __init__(self, directory: Path, seed: int, clock: QuickClock | None = None) -> None:
        self.directory = directory
        self.clock = clock
        self.chance = random.Random(seed)
        self.number = 0
        self.ts = 1000
        self.begun: list[int] = []
        self.open: dict[int, bytes] = {}  # start ts -> value
        self.committed: dict[int, tuple[int, bytes]] = {}  # commit ts -> start ts, value
        self.held: dict[int, tuple[int, bytes | None]] = {}  # late and orphan ones: commit ts -> start ts, value
        self.accepted: set[int] = set()
        self.point = 0
        self.store: Store = open_store(self.path, clock=clock, **SMALL)

    @property
    def path(self) -> Path:
        return self.directory / str(self.number)

    def tick(self) -> int:
        self.ts += self.chance.randint(1, 20)
        return self.ts

    def settle_all(self) -> None:
        """Nothing unresolved, so that the watermark is at the end."""
        for start in list(self.open):
            self.commit(start)
        store_all(self.store, fake(self.tick()))

    # ---- what may happen ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A transaction takes its start ts long before its prewrite arrives."""
        self.begun.append(self.tick())

    def prewrite(self) -> None:
        start = self.begun.pop(0) if self.begun and self.chance.random() < 0.6 else self.tick()
        value = self.chance.randbytes(self.chance.randint(0, 900))
        store_all(self.store, prewrite(start, value))
        self.open[start] = value

    def outcome(self) -> None:
        if self.open:
            start = self.chance.choice(list(self.open))
            if self.chance.random() < 0.2:
                store_all(self.store, rollback(start))
                del self.open[start]
            else:
                self.commit(start)

    def commit(self, start: int) -> None:
        ts = self.tick()
        store_all(self.store, commit(start, ts))
        self.committed[ts] = (start, self.open.pop(start))

    def late(self) -> None:
        """A commit at or below the watermark, of a prewrite that the Pump was told was rolled back."""
        watermark = int(self.store.watermark)
        if watermark < self.point + 50 or self.ts - watermark < 0:
            return
        start = self.tick()
        value = self.chance.randbytes(100)
        store_all(self.store, prewrite(start, value), rollback(start), fake(self.tick()))
        if int(self.store.watermark) <= start:
            return  # an older prewrite holds it
        ts = self.chance.randint(start + 1, int(self.store.watermark))
        if ts in self.committed or ts in self.held or find(self.store, ts) is not None:
            return
        store_all(self.store, commit(start, ts))
        self.held[ts] = (start, value)

    def orphan(self) -> None:
        start, ts = self.tick(), self.tick()
        store_all(self.store, commit(start, ts))
        self.held[ts] = (start, None)

    def accept(self) -> None:
        waiting = [ts for ts in self.held if ts not in self.accepted]
        if waiting:
            ts = self.chance.choice(waiting)
            self.store.accept(self.held[ts][0], ts, "model")
            self.accepted.add(ts)

    def collect(self) -> None:
        checkpoint = self.chance.randint(self.point, self.ts)
        report = self.store.gc.collect({"archive": checkpoint, "other": checkpoint + self.chance.randint(0, 100)}, FAR)
        assert self.point <= report.gc_point <= max(self.point, checkpoint)
        assert report.deletion_limit <= report.gc_point
        self.point = int(report.gc_point)

    def repeat(self) -> None:
        """A client whose answer was lost sends its commit again, be it collected or not."""
        before = self.store.late(), self.store.orphans()
        for ts in self.chance.sample(sorted(self.committed), min(5, len(self.committed))):
            store_all(self.store, commit(self.committed[ts][0], ts))
        assert (self.store.late(), self.store.orphans()) == before, "a repeated commit is a duplicate"

    def restart(self) -> None:
        """Stopped, or killed (a copy of what lies there while it runs), with or without its index."""
        old, how = self.store, self.chance.choice(["stopped", "killed", "without index"])
        if how != "stopped":
            shutil.copytree(self.path, self.directory / str(self.number + 1))
        old.close()
        if how != "stopped":
            shutil.rmtree(self.path)
            self.number += 1
        if how == "without index":
            shutil.rmtree(self.path / "kv")
        self.store = open_store(self.path, clock=self.clock, **SMALL)

    # ---- what must be so ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert self.store.gc_point == self.point
        if self.point:
            with pytest.raises(PositionCollected):
                self.store.stream.pull(self.point - 1, max_bytes=1)
        waiting = {each.start_ts for each in self.store.prewrites.oldest(10_000)}
        assert waiting == set(self.open), "unresolved prewrites"
        watermark = int(self.store.watermark)
        expected = {
            ts: merged(start, ts, value)
            for ts, (start, value) in self.committed.items()
            if self.point < ts <= watermark
        }
        rows = [(ts, payload, flag) for ts, start, payload, flag in pull_all(self.store, self.point) if ts != start]
        assert [ts for ts, _, _ in rows] == sorted({ts for ts, _, _ in rows})
        assert {ts: payload for ts, payload, _ in rows if ts not in self.held} == expected
        # What waits for the operator must be there for ever, below the point as well.
        kept = {(c.start_ts, c.commit_ts) for c in [*self.store.late(), *self.store.orphans()]}
        needed = {(start, ts) for ts, (start, _) in self.held.items() if ts not in self.accepted}
        assert needed <= kept
        assert kept <= {(start, ts) for ts, (start, _) in self.held.items()}, "nobody is asked about what was collected"
        for start, ts in needed:
            assert find(self.store, ts) is not None or ts in {c.commit_ts for c in self.store.late()}
            if self.held[ts][1] is not None:
                assert find(self.store, start) is not None, "the prewrite of a late commit"


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_is_needed_is_freed(seed: int, directory: Path) -> None:
    check(Model(directory, seed))


@pytest.mark.parametrize("most", [20, 1000])
def test_so_it_is_while_clients_repeat_their_commits(most: int, directory: Path) -> None:
    """All are young; with a small ``most`` GC mostly ends where no more can be noted."""
    clock = QuickClock(today=0.0)
    with gc_in_steps(4, most=most, piece=8):
        model = Model(directory, most, clock)
        check(model, [model.repeat] * 4, lambda: setattr(clock, "today", time.time()))


def check(model: Model, more: Sequence[Callable[[], None]] = (), at_the_end: Callable[[], None] = int) -> None:
    steps = (
        [model.begin] * 3
        + [model.prewrite] * 8
        + [model.outcome] * 9
        + [model.late, model.orphan, model.accept, model.collect]
    )
    steps += [model.collect, model.restart, *more]
    for number in range(160):
        model.chance.choice(steps)()
        if number % 4 == 0:
            model.check()
    at_the_end()
    # And nothing is kept for ever: when all is settled and confirmed, all but the newest file goes.
    model.settle_all()
    while any(ts not in model.accepted for ts in model.held):
        model.accept()
    model.check()
    model.store.gc.collect({"archive": model.ts}, FAR)
    model.store.close()
    assert len(value_files(model.path)) <= 2
    assert model.held
    assert model.point > 1000
