"""Restores whose process, target or Spark is killed: the same command goes on, and no unit is applied twice."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pumphouse.loader.apart import server_name
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.integration.test_killed_loads import watch_units
from tests.integration.test_steps import history, small_plans, twice
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.killedloads import KilledLoad
from tests.support.madearchive import MadeSource, column, target_rows

SEED = int(os.environ.get("PUMPHOUSE_SEED", "31"))


class KilledRestores:
    """Restores of one history onto one server, each killed once or several times, until it ends.

    ``follow``: each to a moment of its own, and on from there by the same command.
    """

    def __init__(self, source: MadeSource, settings: Settings, seed: int, *, follow: bool = False) -> None:
        self.rng = random.Random(seed)
        self._settings, self._source, self._end = small_plans(settings), source, history(source)
        self._how = {"into": "target", "to": self._end, "dry_run": False, "replace": server_name(settings.target)}
        self._follow = follow
        self._choose()
        with TargetConnection.open(settings.target) as target:
            watch_units(target)
            target.execute("DROP TRIGGER pumphouse.load_begins")  # beginning anew is no excuse
        began = time.monotonic()
        whole = self.start().end()
        assert not whole.error, whole
        self.seconds = time.monotonic() - began
        self.moments = whole.moments

    def _choose(self) -> None:
        if self._follow:
            genesis = self._source.archive.genesis().ts
            self._how |= {"follow": True, "to": Tso(self.rng.randrange(genesis, self._end))}

    def start(self, at_moment: int = 0) -> KilledLoad:
        """The same command."""
        return KilledLoad(self._settings, what="restore", run_id="r", at_moment=at_moment, **self._how)

    def run(self, kills: int, kill: Callable[[], bool]) -> None:
        """So many kills, one to three of each restore. ``kill``: runs one, and says whether it was in time."""
        while kills > 0:
            with TargetConnection.open(self._settings.target) as target:
                target.execute("DELETE FROM pumphouse.unit_seen")
                target.execute("UPDATE pumphouse.checkpoint SET state = 'incomplete', reason = 'another restore'")
            self._choose()
            for _ in range(self.rng.randrange(1, 4)):
                if not self._ended():  # it may be killed behind its end
                    kills -= kill()
            while not self._ended():
                ended = self.start().end()
                assert ended.error in ("", "TargetBusy"), ended  # a server may need a moment to see that one has died
            self._prove()

    def _ended(self) -> bool:
        """One that is followed is ready before, and has a row until its load has ended."""
        with TargetConnection.open(self._settings.target) as target:
            ready = target.value("SELECT state FROM pumphouse.checkpoint") == "ready"
            return ready and not target.query("SELECT * FROM pumphouse.step")

    def _prove(self) -> None:
        """The end is the same, and no unit was applied twice."""
        with TargetConnection.open(self._settings.target) as target:
            assert target_rows(target) == self._source.snapshot()
            assert target.query("SELECT state, ts FROM pumphouse.checkpoint") == [("ready", self._end)]
            assert not twice(target)
            assert not target.query("SELECT * FROM pumphouse.step")

    def itself(self) -> bool:
        """Kill the process around a statement."""
        ended = self.start(self.rng.randrange(1, self.moments)).end()
        assert not ended.error, ended
        return ended.killed

    def its_target(self, server: MariaDbServer) -> bool:
        """Kill the server, and start it again."""
        running = self.start()
        time.sleep(self.rng.uniform(0, self.seconds))
        server.supervisor.kill(server.name)
        ended = running.end()
        server.start()
        assert ended.error in ("", "TargetUnavailable", "TargetUnreachable"), ended
        return bool(ended.error)

    def its_spark(self) -> bool:
        """Kill the JVM."""
        running = self.start()
        while running.alive() and running.java() is None:
            time.sleep(0.02)
        time.sleep(self.rng.uniform(0, self.seconds))
        if java := running.java():
            with suppress(psutil.NoSuchProcess):
                java.kill()
        return bool(running.end().error)


@pytest.mark.timeout(600)
@pytest.mark.row("R1", "L6")
def test_restores_that_are_killed_around_statements_end_equal_with_each_unit_once(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    restores = KilledRestores(source, settings, SEED)
    assert restores.moments > 50
    restores.run(8, restores.itself)


@pytest.mark.timeout(600)
@pytest.mark.row("R1", "L6")
def test_restores_that_are_followed_and_killed_around_statements_end_equal_with_each_unit_once(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    restores = KilledRestores(source, settings, SEED, follow=True)
    assert restores.moments > 50
    restores.run(12, restores.itself)
    with source.txn() as t:
        t.insert("t", id=4711)
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.timeout(600)
@pytest.mark.row("R1", "L6")
@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_restores_whose_target_is_killed_end_equal_with_each_unit_once(
    source: MadeSource, settings: Settings, tmp_path: Path, kills: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("seed", seed := SEED if kills < 10 else random.SystemRandom().randrange(1 << 30))
    with mariadb.server_in(tmp_path / "db", durable=True) as server:
        settings = settings.model_copy(update={"target": mariadb.settings_of(server)})
        restores = KilledRestores(source, settings, seed)
        restores.run(kills, lambda: restores.its_target(server))
    record_property("rounds", kills)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.row("R1", "L6", "S1")
def test_restores_whose_spark_is_killed_end_equal_with_each_unit_once(
    source: MadeSource, settings: Settings, target: TargetConnection, record_property: Callable[[str, object], None]
) -> None:
    record_property("seed", seed := random.SystemRandom().randrange(1 << 30))
    big = column(2, "b", MysqlType.LONG_BLOB, binary=True)
    source.create_table("big", [column(1, "id", flag=3), big])
    with source.txn() as t:
        for id_ in range(32):
            t.insert("big", id=id_, b=random.Random(id_).randbytes(1 << 19))
    spark = settings.load.model_copy(update={"engine": "spark"})
    restores = KilledRestores(source, settings.model_copy(update={"load": spark}), seed)
    restores.run(20, restores.its_spark)
    record_property("rounds", 20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.row("R1", "L6")
@pytest.mark.parametrize("follow", [False, True])
def test_a_hundred_killed_restores(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    follow: bool,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("seed", seed := random.SystemRandom().randrange(1 << 30))
    restores = KilledRestores(source, settings, seed, follow=follow)
    restores.run(100, restores.itself)
    record_property("moments", restores.moments)
    record_property("rounds", 100)
