"""Restores of every kind out of an archive that is kept at every turn, held against a model of the source.

A history of random DML and DDL; between its windows dumps, and folded bases, compaction, expiry and copies, which are
now and then killed at a call of the store and run again, or run twice at once. Out of that a restore: whole or of parts,
with a predicate, under other names, from an older base, from the copy, killed or run twice at once.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.compact import compact
from pumphouse.archive.copying import copy_archive
from pumphouse.archive.expire import Ages, expire
from pumphouse.archive.restorable import restorable_from
from pumphouse.archive.retention import Policy
from pumphouse.archive.view import read_view
from pumphouse.errors import BadManifest, BinlogError, FenceLost, TargetBusy
from pumphouse.folding.run import fold_base
from pumphouse.loader.apart import server_name
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.open import open_store
from pumphouse.restore.parts import Chosen
from pumphouse.runs import restore, restore_parts
from pumphouse.settings import Settings
from tests.integration.test_restore_parts import everything
from tests.support.bases import SMALL, dump_meanwhile
from tests.support.dumpedsource import DumpedSource
from tests.support.happenings import Happenings, Rows
from tests.support.killed import Killed
from tests.support.killedloads import KilledLoad
from tests.support.loading import drop_all
from tests.support.madearchive import target_rows

pytestmark = [pytest.mark.row("R1", "R2", "R3", "A5"), pytest.mark.timeout(900)]
SOURCE = DumpedSource
LOAD = {"engine": "local", "buckets": 3}
CASES = 10
SEEDS = [int(os.environ["PUMPHOUSE_SEED"])] if "PUMPHOUSE_SEED" in os.environ else [1, 2, 3]
_CHANGES = {"put", "put_file", "put_if_absent", "delete"}


class DeadlyStore:
    """A store whose caller is killed before or behind one of its changes."""

    def __init__(self, store: Any, rng: random.Random) -> None:
        self._store, self._left, self._behind = store, rng.randrange(1, 12), rng.random() < 0.5
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        does = getattr(self._store, name)
        return self._around(does) if name in _CHANGES else does

    def _around(self, does: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            with self._lock:
                self._left -= 1
                dies, gone = self._left == 0, self._left < 0
            if gone or (dies and not self._behind):
                raise Killed
            answer = does(*args, **how)
            if dies:
                raise Killed
            return answer

        return call


class Keeping:
    """What is done to an archive and its copy beside snapshots; ``done`` counts it, and how."""

    def __init__(self, world: Happenings, settings: Settings, seed: int) -> None:
        self.rng = random.Random(f"keeping {seed}")
        self.done: Counter[str] = Counter()
        self._world, self._source, self._settings = world, world.source, settings
        self.copy_root = f"{settings.archive.root}-copy-{seed}"

    def archive(self, root: str = "", *, deadly: bool = False) -> Archive:
        """As a process of its own sees it."""
        store = open_store(self._settings.archive.model_copy(update={"root": root or self._settings.archive.root}))
        return Archive(DeadlyStore(store, self.rng) if deadly else store, self._source.cluster_id)

    def work(self) -> None:
        """Some of it."""
        rng, at = self.rng, self._world.marks[-1][0]
        if rng.random() < 0.2:
            assert isinstance(self._source, DumpedSource)
            dump_meanwhile(self._source, self._world)
        folds = SMALL.model_copy(update={"unit_bytes": rng.choice([400, 1 << 20])})
        to = rng.choice([mark for mark, _ in self._world.marks[-3:] if mark <= self._source.archive.end()] or [at])
        run, newest, policy = rng.choice([1, 2, 3]), rng.choice([0, 1]), Policy(bases=rng.choice([2, 3]))
        todo: dict[str, Callable[[bool], object]] = {
            "fold": lambda deadly: fold_base(self.archive(deadly=deadly), folds, self._settings.archive, to),
            "compact": lambda deadly: compact(self.archive(deadly=deadly), run=run, newest=newest),
            "expire": lambda deadly: expire(
                self.archive(deadly=deadly), Ages(grace_s=0, resume_s=0), policy, [], now=Tso(self._source.ts)
            ),
            "copy": self._copy,
        }
        for name, act in todo.items():
            if rng.random() < 0.35:
                self._do(name, act)

    def _copy(self, deadly: bool) -> None:
        try:
            copy_archive(self.archive(), self.archive(self.copy_root, deadly=deadly))
        except BadManifest as error:
            if "the archive has let go of the windows" not in error.message:
                raise
            self.done["a new copy, as windows expired behind the old one"] += 1
            self.copy_root += "+"
            copy_archive(self.archive(), self.archive(self.copy_root, deadly=deadly))

    def _do(self, name: str, act: Callable[[bool], object]) -> None:
        how = self.rng.choice(["once", "killed", "twice"])
        if how == "killed":
            try:
                act(True)
                how = "once"
            except Killed:
                act(False)
        elif how == "twice":
            failed: list[BaseException] = []

            def other() -> None:
                try:
                    act(False)
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=other)
            thread.start()
            other()
            thread.join()
            # One of two may be told that the other was there; then it has to do when it is alone.
            assert all(isinstance(each, BinlogError) for each in failed), failed
            if failed:
                act(False)
        else:
            act(False)
        self.done[f"{name} {how}"] += 1


class Restores:
    """Restores of one history's archive, and of its copy, onto one server."""

    def __init__(self, keeping: Keeping, world: Happenings, settings: Settings, target: TargetConnection) -> None:
        self.done = keeping.done
        self._rng, self._keeping, self._world = keeping.rng, keeping, world
        self._settings, self._target = settings, target
        self._number = 0

    def one(self) -> None:
        """A restore, and what the server has of it."""
        rng, settings, archive = self._rng, self._settings, self._keeping.archive()
        copy = self._keeping.archive(self._keeping.copy_root)
        if rng.random() < 0.3 and copy.begun():
            archive, self.done["of the copy"] = copy, self.done["of the copy"] + 1
            settings = settings.model_copy(
                update={"archive": settings.archive.model_copy(update={"root": self._keeping.copy_root})}
            )
        start, end = restorable_from(archive), archive.end()
        assert start is not None
        at, rows = rng.choice([(at, rows) for at, rows in self._world.marks if start <= at <= end])
        how: dict[str, Any] = {"into": "target", "to": at, "dry_run": False}
        older = [base.ts for base in read_view(archive).bases if start <= base.ts <= at]
        if older and rng.random() < 0.3:
            how["base"] = rng.choice(older)
            self.done["from a chosen base"] += 1
        if rng.random() < 0.4 or not rows:
            self._carry_out(settings, "restore", {**how, "replace": server_name(settings.target)})
            assert target_rows(self._target) == rows, self._said(how)
        else:
            self._parts(settings, how, rows)

    def _parts(self, settings: Settings, how: dict[str, Any], rows: Rows) -> None:
        rng, beside = self._rng, self._new_name()
        tables = rng.sample(sorted(rows), rng.randrange(1, min(3, len(rows)) + 1))
        where, called = ALL_ROWS, ""
        if len(tables) == 1 and rng.random() < 0.7:
            (name,) = tables
            if name in self._world.keyed and rng.random() < 0.6:
                where = self._predicate()
            called = f"{beside}.called"
            wanted = {"called": Counter({row: n for row, n in rows[name].items() if _fits(where, row[0])})}
        elif rng.random() < 0.3:
            tables, wanted = ["t%"], {name: rows[name] for name in rows if name.startswith("t")}
        else:
            wanted = {name: rows[name] for name in tables}
        if not wanted:
            return
        chosen = Chosen(
            tables=tuple(f"d.{each}" for each in tables), called=called, database="" if called else beside, where=where
        )
        self._target.execute("CREATE DATABASE IF NOT EXISTS d")
        before = everything(self._target, beside, "pumphouse")
        if called:
            self._target.execute(f"CREATE DATABASE {beside}")
        self._carry_out(settings, "parts", {**how, "chosen": chosen})
        said = self._said({**how, "chosen": chosen})
        assert target_rows(self._target, beside) == wanted, said
        self._target.execute(f"DROP DATABASE {beside}")
        assert everything(self._target, beside, "pumphouse") == before, said
        self.done["of parts with a predicate" if where else "of parts"] += 1

    def _carry_out(self, settings: Settings, what: Any, how: dict[str, Any]) -> None:
        """Once, or killed and then again, or two at once and then again."""
        run = restore.run if what == "restore" else restore_parts.run
        manner = self._rng.choice(["once", "once", "killed", "twice"])
        if manner == "killed":
            ended = KilledLoad(settings, what=what, at_moment=self._rng.randrange(1, 60), **how).end()
            assert not ended.error, (ended, self._said(how))
            if not ended.killed:
                self.done[f"{what} once"] += 1
                return
        elif manner == "twice":
            both = [KilledLoad(settings, what=what, **how) for _ in range(2)]
            ends = [each.end() for each in both]
            # The one that comes behind the other's end finds the name taken.
            assert all(each.error in ("", *_OF_ANOTHER) for each in ends), (ends, self._said(how))
            assert any(not each.error for each in ends), (ends, self._said(how))
        if manner != "twice":
            base = run(settings, **how).plan.base
            bases = read_view(self._keeping.archive(settings.archive.root)).bases
            self.done["from a folded base"] += any(each.ts == base and each.folded is not None for each in bases)
        self.done[f"{what} {manner}"] += 1

    def _predicate(self) -> Predicate:
        low = self._rng.randrange(1, 12)
        if self._rng.random() < 0.5:
            return Predicate(keys=tuple(str(n) for n in {low, low + 3, 40}))
        return Predicate(low=str(low), below=str(low + self._rng.randrange(1, 20)))

    def _new_name(self) -> str:
        self._number += 1
        return f"beside{self._number}"

    def _said(self, how: dict[str, Any]) -> str:
        return f"{ {**how, 'to': show(how['to'])} }"


_OF_ANOTHER = (TargetBusy.__name__, FenceLost.__name__, "LoadError")


def _fits(where: Predicate, key: int) -> bool:
    if where.keys:
        return str(key) in where.keys
    return (where.low is None or key >= int(where.low)) and (where.below is None or key < int(where.below))


def one_history(
    source: DumpedSource, settings: Settings, target: TargetConnection, seed: int, cases: int
) -> Counter[str]:
    """So many restores of one seed; what was done, and how often."""
    world = Happenings(source, seed)
    keeping = Keeping(world, settings, seed)
    restores = Restores(keeping, world, settings, target)
    for _ in range(cases):
        if keeping.rng.random() < 0.4:
            world.fill(keeping.rng.randrange(5, 60))
        world.publish()
        keeping.work()
        restores.one()
    return restores.done


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_restored_out_of_an_archive_that_is_kept_is_the_source_as_it_was(
    source: DumpedSource, settings: Settings, target: TargetConnection, seed: int
) -> None:
    one_history(source, settings, target, seed, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_restores(
    source: DumpedSource,
    settings: Settings,
    target: TargetConnection,
    record_property: Callable[[str, object], None],
    part: int,
) -> None:
    done: Counter[str] = Counter()
    for seed in range(1000 + 5 * part, 1005 + 5 * part):
        source.begin_anew()
        drop_all(target)
        try:
            done += one_history(source, settings, target, seed, CASES)
        except Exception as error:
            raise AssertionError(f"PUMPHOUSE_SEED={seed}") from error
    assert {"from a folded base", "of the copy", "of parts", "restore killed", "parts killed"} <= (+done).keys()
    record_property("rounds", 5 * CASES)
    for name, times in sorted(done.items()):
        record_property(name, times)
