"""A target that fails over at any step of a load or a restore ends with the rows of the source.

Two servers replicate; table ids and what they say for SHOW CREATE differ. A load or a restore is killed with -9, the
other server takes over, with all that the first one had or without its last writes, and the same is run again there.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import pumphouse
from pumphouse.errors import TargetUnavailable
from pumphouse.loader.apart import server_name
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.loader.target import TargetConnection
from pumphouse.replay import rounds
from pumphouse.runs import load
from pumphouse.settings import Settings, TargetSettings
from tests.integration.test_restore_check import Tunnel
from tests.support import mariadb
from tests.support.failover import ReplicatingPair, replicating
from tests.support.happenings import Happenings
from tests.support.killedloads import KilledLoad
from tests.support.loading import drop_all
from tests.support.madearchive import MadeSource, column, target_rows

# One that has failed is repeated by PUMPHOUSE_SEED.
SEED = int(os.environ.get("PUMPHOUSE_SEED", "5"))
KINDS = ("merge", "replay", "restore", "first load")


@dataclass
class Told:
    """What a campaign did."""

    failovers: Counter[str] = field(default_factory=Counter)
    places: set[str] = field(default_factory=set)
    course: list[str] = field(default_factory=list)


class FailoverWorld:
    """One source, a pair of servers, loads and restores that are killed at chosen steps."""

    def __init__(self, source: MadeSource, settings: Settings, pair: ReplicatingPair, seed: int, told: Told) -> None:
        self._happenings = Happenings(source, seed)
        self._rng = random.Random(-seed)
        self._source, self._settings, self._pair, self._told = source, settings, pair, told
        # What a run of a kind has run through so far, and the most moments around statements that one had.
        self.places: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self.moments: Counter[str] = Counter()

    def learn(self) -> None:
        """One run of each kind that nobody ends."""
        for kind in ("first load", *KINDS[:-1]):
            self._publish()
            self._end_well(kind)

    def round(self, kind: str, *, losing: bool = False, **where: Any) -> None:
        """A run that is killed, a failover, the run again, and a comparison.

        ``losing``: the server that takes over lacks the last writes. ``where`` it is killed: see `KilledLoad`.
        """
        if kind == "first load":
            self._empty()
        elif kind != "restore":  # which takes all windows each time, as a first load does
            self._publish()
        run = self._start(kind, **where)
        if losing:
            time.sleep(self._rng.uniform(0, 0.6))
            self._pair.hold()
        ended = run.end()
        self._told.course.append(f"{kind} {where} {'loses' if losing else ''}: {ended}")
        assert not ended.error, ended
        self._told.places |= {ended.place} - {""}
        self._told.failovers[kind] += ended.killed
        if losing:
            self._pair.lose()
        else:
            self._pair.promote()
        self._end_well(kind)

    def _empty(self) -> None:
        """A target that no load has met."""
        with TargetConnection.open(self._pair.settings) as target:
            drop_all(target)

    def _publish(self) -> None:
        """A window that has what a failover is worst for."""
        name = self._rng.choice(sorted(self._source.tables))
        self._happenings.write(2)
        self._source.truncate(name)
        self._happenings.publish()

    def _start(self, kind: str, **more: Any) -> KilledLoad:
        target = self._pair.settings
        load = {"mode": "replay" if kind == "replay" else "merge", "buckets": self._rng.choice([0, 3])}
        update = {"target": target, "restore_target": target}
        update["load"] = self._settings.load.model_copy(update=load)
        told = self._settings.model_copy(update=update)
        if kind != "restore":
            return KilledLoad(told, run_id="scheduler", **more)
        how = {"into": "target", "replace": server_name(target), "dry_run": False, "to": self._source.archive.end()}
        return KilledLoad(told, what="restore", run_id="scheduler", **how, **more)

    def _end_well(self, kind: str) -> None:
        for _ in range(50):  # a server may need a moment to see that the one before has died
            ended = self._start(kind).end()
            if ended.error != "TargetBusy":
                break
            time.sleep(0.1)
        self._told.course.append(f"{kind} again: {ended}")
        assert not ended.error, ended
        assert not ended.killed
        self.places[kind] |= ended.places
        self.moments[kind] = max(self.moments[kind], ended.moments)
        with TargetConnection.open(self._pair.settings) as target:
            assert target_rows(target) == self._source.snapshot()
            assert target.value("SELECT ts FROM pumphouse.checkpoint") == self._source.archive.end()
            assert target.value("SELECT state FROM pumphouse.checkpoint") == "ready"


@pytest.fixture
def pair() -> Iterator[ReplicatingPair]:
    with mariadb.directory_in_memory() as directory, replicating(directory) as found:
        yield found


def in_method(method: Callable[..., Any]) -> set[str]:
    """``file:line`` of each of its lines."""
    lines, first = inspect.getsourcelines(method)
    file = Path(inspect.getfile(method)).relative_to(Path(pumphouse.__file__).parent)
    return {f"{file}:{first + at}" for at in range(len(lines))}


@contextlib.contextmanager
def repeatable(told: Told, seed: int) -> Iterator[None]:
    """An error says how to repeat it and what had happened."""
    try:
        yield
    except BaseException as error:
        error.add_note("what happened:\n" + "\n".join(told.course))
        error.add_note(f"repeat it: PUMPHOUSE_SEED={seed}")
        raise


@pytest.mark.timeout(900)
@pytest.mark.row("L6")
def test_a_sample_of_failovers_ends_equal(source: MadeSource, settings: Settings, pair: ReplicatingPair) -> None:
    """Around the statement of a DDL, where looks are all that is known, and at some other steps."""
    told, rng = Told(), random.Random(SEED)
    world = FailoverWorld(source, settings, pair, SEED, told)
    world.learn()
    statement = sorted(in_method(DdlExecutor._run) & world.places["merge"] & world.places["replay"])
    with repeatable(told, SEED):
        for kind in ("merge", "replay"):
            for place in rng.sample(statement, 2):
                world.round(kind, place=place, at_line=1)
        for kind in KINDS:
            place = rng.choice(sorted(world.places[kind]))
            world.round(kind, losing=kind == "merge", place=place, at_line=rng.choice([1, 1, 2, 3]))
    assert len(told.places) > 4


@pytest.mark.row("L6")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_an_address_that_means_another_server_meanwhile_gets_no_row(
    source: MadeSource, settings: Settings, pair: ReplicatingPair, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's session is on the old server still, and gets the DDL; rows behind that would be before it there."""
    monkeypatch.setattr(rounds, "_IDLE_S", 0.0)  # a session is left in the pool for no time
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with contextlib.closing(pair.primary.connect(autocommit=True)) as session, session.cursor() as cursor:
        cursor.execute("CREATE USER loader@'127.0.0.1' IDENTIFIED BY 'pw'")
        cursor.execute("GRANT ALL ON *.* TO loader@'127.0.0.1'")
    way = Tunnel(pair.primary.port)
    target = TargetSettings(host="127.0.0.1", port=way.port, user="loader", password=SecretStr("pw"))
    load_ = settings.load.model_copy(update={"mode": mode})
    told = settings.model_copy(update={"target": target, "load": load_})
    load.run(told)
    for id_ in (1, 2):
        with source.txn() as t:
            t.insert("t", id=id_)
        source.truncate("t")
        source.cut()
    with source.txn() as t:
        t.insert("t", id=3)
    source.cut()

    def switch(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("apply", 1) or stage == "replay":
            way.leads_to(pair.standby.port)

    with pytest.raises(TargetUnavailable, match="another server now"):
        load.run(told, progress=switch)
    pair.promote()
    way.leads_to(pair.primary.port)
    load.run(told)
    with TargetConnection.open(pair.settings) as found:
        assert target_rows(found) == source.snapshot()
    way.close()


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.row("L6")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_a_failover_at_each_step(
    source: MadeSource,
    settings: Settings,
    pair: ReplicatingPair,
    kind: str,
    part: int,
    record_property: Callable[[str, object], None],
) -> None:
    """Before and behind each statement by which a run changes the target; every tenth time the last writes are lost."""
    seed = random.SystemRandom().randrange(1 << 30)
    record_property("seed", seed)
    told, rng = Told(), random.Random(seed)
    world = FailoverWorld(source, settings, pair, seed, told)
    with repeatable(told, seed):
        world.learn()
        for moment in range(1 + part, world.moments[kind] + 1, 4):
            world.round(kind, losing=rng.random() < 0.1, at_moment=moment)
    record_property("rounds", sum(told.failovers.values()))
    record_property("places", len(told.places))
