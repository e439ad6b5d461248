"""Random orders of everything that happens to an archive and a target; after each the target equals the source.

Windows with random DML and DDL are published between the steps of loads, restores, schema rebuilds and verifications,
each of which may be killed at any call of the archive's store or of the target, and a load replaced by another run at
any of them. A load merges or replays, whatever the one before did. Whoever was killed or replaced is run again, as a
scheduler does, and nobody's hand is needed.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from pumphouse.archive.verify import verify
from pumphouse.errors import FenceLost, LoadError, RestoreError, TargetUnavailable
from pumphouse.loader.keys import Predicate
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore
from pumphouse.restore.parts import Chosen
from pumphouse.runs import load, restore_parts, schema
from pumphouse.settings import Settings
from tests.support.happenings import Happenings
from tests.support.killed import Killed
from tests.support.loading import drop_all, restored
from tests.support.madearchive import MadeSource, target_rows

STORE_CALLS = ("get", "get_file", "list", "size", "put", "put_if_absent")
TARGET_CALLS = ("execute", "query", "load_local")
ROUNDS = 12
# Of the source's clock, between two timestamps.
TICK = 10 << 18
T = TypeVar("T")
# One that has failed is repeated by PUMPHOUSE_SEED.
SEEDS = [int(os.environ["PUMPHOUSE_SEED"])] if "PUMPHOUSE_SEED" in os.environ else list(range(4))


class Seam:
    """Every call of the store and of the target.

    Before a chosen one a window is published, before another one a second run does the same, at a third all ends.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.until_kill = self.until_publish = self.until_twin = 0
        self.killed = False
        self.publish: Callable[[], None] = lambda: None
        self.twin: Callable[[], None] = lambda: None
        self._inside = False
        for owner, names in ((FileStore, STORE_CALLS), (TargetConnection, TARGET_CALLS)):
            for name in names:
                monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self_: Any, *args: Any, **more: Any) -> Any:
            if not self._inside:
                self._step(self_)
            return original(self_, *args, **more)

        return call

    def _step(self, on: Any) -> None:
        self.until_publish -= 1
        if self.until_publish == 0:
            self.beside(self.publish)
        self.until_twin -= 1
        if self.until_twin == 0:
            self.beside(self.twin)
        self.until_kill -= 1
        if self.until_kill == 0:
            self.killed = True
            if isinstance(on, TargetConnection):
                on._connection._force_close()
            raise Killed

    def beside(self, what: Callable[[], T]) -> T:
        """Its calls are not counted."""
        with self.unseen():
            return what()

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """The same of a block."""
        inside, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = inside

    def off(self) -> None:
        """Nothing happens from here on."""
        self.until_kill = self.until_publish = self.until_twin = 0
        self.killed = False


class World(Happenings):
    """One source, its archive, one target, one generator of what happens."""

    def __init__(self, source: MadeSource, settings: Settings, target: TargetConnection, seam: Seam, seed: int) -> None:
        super().__init__(source, seed)
        self.settings, self.target, self.seam = settings, target, seam
        self.kills = self.twins = self.copies = self.choices = 0
        self.interrupted = False  # what runs now was killed or replaced before

    def load(self) -> None:
        load.run(self._in_a_mode(), run_id="scheduler")

    def _in_a_mode(self) -> Settings:
        """Merge or replay, whatever the run before had."""
        mode = {"mode": self.rng.choice(["merge", "replay"])}
        return self.settings.model_copy(update={"load": self.settings.load.model_copy(update=mode)})

    def twin(self) -> None:
        """Somebody else does the same, and takes the target from whoever has it."""
        self.twins += 1
        if self.running == self.load:
            load.run(self._in_a_mode(), run_id="twin", take_over=True)
        elif self.running == self.follow:
            self._follow("twin", take_over=True)
        else:
            self._restore_parts("twin", take_over=True)

    def choose(self) -> None:
        """A moment, and some of its tables under names that no table has, of one perhaps only some rows; and any moment."""
        genesis = self.source.archive.genesis().ts
        ticks = (self.source.archive.end() - genesis) // TICK
        # At a commit, a DDL or neither, and just beside it.
        self.anywhere = Tso(max(genesis, genesis + self.rng.randrange(ticks + 1) * TICK - self.rng.randrange(2)))
        self.chosen = self.rng.choice(self.marks)
        self.copies += 1
        rows, copy = self.chosen[1], f"copy{self.copies}"
        count = 1 if self.rng.random() < 0.4 else self.rng.randrange(1, len(rows) + 1)
        names = sorted(self.rng.sample(sorted(rows), count))
        if len(names) == 1 and self.rng.random() < 0.5:
            self.parts_of = Chosen(tables=(f"d.{names[0]}",), called=f"{copy}.called")
        else:
            tables = ["d.*"] if len(names) == len(rows) else [f"d.{name}" for name in names]
            self.parts_of = Chosen(tables=tuple(tables), database=copy)
        self.copy = {"called" if self.parts_of.called else name: rows[name] for name in names}
        if len(names) == 1 and names[0] in self.keyed and self.rng.random() < 0.7:
            self._choose_rows()

    def _choose_rows(self) -> None:
        """Of the one table: by keys, which there need not be, or by a range that may be open."""
        ((name, rows),) = self.copy.items()
        ids = sorted({row[0] for row in rows} | {0, 1, 2})
        if self.rng.random() < 0.5:
            some = self.rng.sample(ids, self.rng.randrange(1, len(ids) + 1))
            where, chosen = Predicate(keys=tuple(map(str, some))), set(some)
        else:
            low, below = (self.rng.choice([None, *ids]) for _ in range(2))
            if low is below is None or low == below:
                low, below = 1, None
            elif low is not None and below is not None:
                low, below = sorted((low, below))
            bounds = [None if each is None else str(each) for each in (low, below)]
            where = Predicate(low=bounds[0], below=bounds[1])
            chosen = {each for each in ids if (low is None or each >= low) and (below is None or each < below)}
        self.parts_of = replace(self.parts_of, where=where)
        self.copy = {name: Counter({row: count for row, count in rows.items() if row[0] in chosen})}

    def parts(self) -> None:
        """Beside what loads have put there, which stays."""
        live, twins = self.seam.beside(lambda: target_rows(self.target)), self.twins
        try:
            self._restore_parts("scheduler")
        except LoadError as error:  # an earlier attempt, or the other one, had come to the end
            if not ((self.interrupted or self.twins > twins) and "already" in f"{error}"):
                raise
        self.seam.off()
        self.choices += bool(self.parts_of.where)
        assert target_rows(self.target, f"copy{self.copies}") == self.copy
        assert target_rows(self.target) == live

    def _restore_parts(self, run_id: str, *, take_over: bool = False) -> None:
        restore_parts.run(
            self.settings, chosen=self.parts_of, into="target", to=self.chosen[0], dry_run=False, run_id=run_id,
            take_over=take_over,
        )  # fmt: skip

    def restore(self) -> None:
        at, rows = self.chosen
        restored(self.settings, to=at, dry_run=False, run_id="scheduler")
        self.seam.off()  # what follows is the test's own look
        assert target_rows(self.target) == rows

    def follow(self) -> None:
        """To any moment, and on from there; whether an earlier attempt came to its load or not."""
        self._follow("scheduler")

    def _follow(self, run_id: str, *, take_over: bool = False) -> None:
        done = restored(
            self._in_a_mode(), to=self.anywhere, follow=True, dry_run=False, run_id=run_id, take_over=take_over
        )
        assert done.followed is not None
        with self.seam.unseen():  # the test's own look
            assert target_rows(self.target) == dict(self.marks)[done.followed.to_ts]
            assert self.target.query("SELECT * FROM pumphouse.step") == []

    def rebuild(self) -> None:
        schema.run(self.settings)

    def verify(self) -> None:
        report = verify(self.source.archive)
        assert report.sound, report.problems

    def until_done(self, run: Callable[[], None]) -> None:
        """Run, killed now and then while windows go on, until it ends by itself."""
        self.choose()
        self.running, self.interrupted = run, False
        for turn in range(50):
            self.seam.until_kill = self.rng.randrange(1, 60 + 40 * turn) if self.rng.random() < 0.6 else 0
            self.seam.until_publish = self.rng.randrange(1, 80) if self.rng.random() < 0.6 else 0
            if run in (self.load, self.parts, self.follow):
                self.seam.until_twin = self.rng.randrange(1, 120) if self.rng.random() < 0.3 else 0
            twins = self.twins
            try:
                run()
            except Killed:
                self.kills += 1
                self.interrupted = True
                continue
            except (FenceLost, TargetUnavailable):
                # Of its own connection, that is gone, whoever cleans up behind a kill hears so.
                assert self.seam.killed or self.twins > twins
                self.kills += self.seam.killed
                self.interrupted = True
                continue
            except RestoreError as error:  # behind its first look the other one had come to the end
                if not (self.twins > twins and "run this again" in error.hint):
                    raise
                self.interrupted = True
                continue
            finally:
                self.seam.off()
            return
        raise AssertionError("killed too often")


def happen(source: MadeSource, settings: Settings, target: TargetConnection, seam: Seam, seed: int) -> World:
    """One random order from one seed."""
    world = World(source, settings, target, seam, seed)
    seam.publish, seam.twin = world.publish, world.twin
    for _ in range(ROUNDS):
        what = world.rng.choice(
            ["publish", "publish", "load", "load", "restore", "follow", "follow", "parts", "parts", "rebuild", "verify"]
        )
        if what == "publish":
            world.publish()
        else:
            world.until_done(getattr(world, what))
    world.load()
    assert target_rows(target) == source.snapshot()
    assert target.value("SELECT ts FROM pumphouse.checkpoint") == source.archive.end()
    assert target.value("SELECT COUNT(*) FROM pumphouse.plan WHERE state = 'open'") == 0
    world.rebuild()
    world.verify()
    return world


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> Seam:
    return Seam(monkeypatch)


def fresh(target: TargetConnection, source: MadeSource) -> None:
    drop_all(target)
    source.begin_anew()


@pytest.mark.row("A1", "A4", "L6", "R1", "S1")
@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_order_of_windows_loads_kills_and_restores_the_target_equals_the_source(
    source: MadeSource, settings: Settings, target: TargetConnection, seam: Seam, seed: int
) -> None:
    happen(source, settings, target, seam, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.row("A1", "A4", "L6", "R1", "S1")
@pytest.mark.parametrize("part", range(40))
def test_two_thousand_random_orders(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    seam: Seam,
    part: int,
    record_property: Callable[[str, object], None],
) -> None:
    first = random.SystemRandom().randrange(1 << 30)
    record_property("seeds", f"{first} to {first + 49}")
    kills = published = twins = choices = 0
    for seed in range(first, first + 50):
        fresh(target, source)
        try:
            world = happen(source, settings, target, seam, seed)
        except BaseException as error:
            error.add_note(f"repeat it: PUMPHOUSE_SEED={seed} .venv/bin/pytest {__file__} -k any_order")
            raise
        kills += world.kills
        published += world.published
        twins += world.twins
        choices += world.choices
    record_property("rounds", 50)
    record_property("part", part)
    record_property("kills", kills)
    record_property("windows", published)
    record_property("twins", twins)
    record_property("choices of rows", choices)
