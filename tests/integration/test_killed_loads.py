"""`kill -9` on loads, at random lines of the loader and at random moments; nothing is lost or doubled, by nobody's hand.

A history of tables with and without a key, with DDL, is archived window by window, also while loads run. Each load is a
process, merges or replays whatever the one before did, may have another one beside it, and is killed, or stands still
until others have done its work and goes on then. Whoever was killed is run again, as a scheduler does, until one ends
well: then the target equals the source in every row, and each unit was applied once.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.settings import Settings
from tests.support.happenings import Happenings
from tests.support.killedloads import Ended, KilledLoad
from tests.support.madearchive import MadeSource, target_rows

KILLS_A_PART = 50
# One that has failed is repeated by PUMPHOUSE_SEED.
SEED = int(os.environ.get("PUMPHOUSE_SEED", "17"))
# What one of two loads at once may say: it came too late, or the other one took the target from it.
_OF_TWO = {"TargetBusy", "FenceLost", "TargetUnavailable"}


@dataclass
class Told:
    """What a campaign did."""

    kills: int = 0
    at_lines: int = 0
    pairs: int = 0
    stops: int = 0
    windows: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    places: set[str] = field(default_factory=set)
    course: list[str] = field(default_factory=list)


class KillWorld:
    """One source, one target, loads that are killed."""

    def __init__(self, source: MadeSource, settings: Settings, target: TargetConnection, seed: int, told: Told) -> None:
        self._happenings = Happenings(source, seed)
        # Choices of their own: what the history is does not depend on how loads end.
        self._rng = random.Random(-seed)
        self._source, self._settings, self._target, self._told = source, settings, target, told
        self._lines = {"merge": 3000, "replay": 3000}
        # What loads of a mode have run through so far.
        self._places: dict[str, set[str]] = {"merge": set(), "replay": set()}
        self._seconds = 0.5
        self._standing: list[KilledLoad] = []
        watch_units(target)

    def run(self, kills: int) -> None:
        """Rounds until there were so many kills."""
        upto = self._told.kills + kills
        while self._told.kills < upto:
            if self._rng.random() < 0.2:
                self._happenings.fill(500)
            for _ in range(self._rng.randrange(1, 4)):
                self._happenings.publish()
            for _ in range(self._rng.randrange(1, 8)):
                self._attempt()
            self._end_well()
            self._check()
            self._wake()
        self._told.windows += self._happenings.published

    def _attempt(self) -> None:
        """One load that may be killed, now and then two at once, while a window may come."""
        rng = self._rng
        if rng.random() < 0.1:
            self._stand_still()
            return
        running = [self._start("scheduler")]
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, self._seconds))
            running.append(self._start("twin"))
            self._told.pairs += 1
        if rng.random() < 0.3:
            self._happenings.publish()
        if rng.random() < 0.4:
            time.sleep(rng.uniform(0, self._seconds))
            rng.choice(running).kill()
        ends = [each.end() for each in running]
        for ended in ends:
            self._count(ended)
            assert not ended.error or (len(running) > 1 and ended.error in _OF_TWO) or ended.error == "TargetBusy", (
                ended
            )

    def _stand_still(self) -> None:
        load = self._start("scheduler", sends=signal.SIGSTOP)
        if load.stands():
            self._standing.append(load)
            self._told.stops += 1
        else:
            self._count(load.end())

    def _wake(self) -> None:
        """What stood still finds that the target is no longer its own, or had not taken it yet; it changes nothing."""
        for load in self._standing:
            load.wake()
            ended = load.end()
            self._count(ended)
            assert not ended.error or ended.error in _OF_TWO, ended
        if self._standing:
            self._check()
        self._standing = []

    def stop(self) -> None:
        """Nothing is left standing."""
        for load in self._standing:
            load.kill()

    def _start(self, run: str, **more: Any) -> KilledLoad:
        rng = self._rng
        mode = rng.choice(["merge", "replay"])
        at_line, place = self._moment(mode)
        how = {"take_over": True} if run == "twin" and rng.random() < 0.7 else {}
        self._told.modes[mode] += 1
        self._told.course.append(f"{run} {mode} at_line={at_line} {place} {how | more or ''}")
        return KilledLoad(self._in(mode), at_line=at_line, place=place, run_id=run, **how, **more)

    def _moment(self, mode: str) -> tuple[int, str]:
        """The n-th line that runs, or the n-th time that one of the source runs: what is rare is hit as well."""
        rng, most = self._rng, self._lines[mode]
        if self._places[mode] and rng.random() < 0.5:
            return rng.choice([1, 1, 2, 3]), rng.choice(sorted(self._places[mode]))
        return rng.choice([0, rng.randrange(1, most), int(most ** rng.random())]), ""

    def _in(self, mode: str) -> Settings:
        load = {"mode": mode, "buckets": self._rng.choice([0, 3])}
        return self._settings.model_copy(update={"load": self._settings.load.model_copy(update=load)})

    def _count(self, ended: Ended) -> None:
        self._told.course.append(str(ended))
        self._told.kills += ended.killed
        if ended.killed and ended.place:
            self._told.at_lines += 1
            self._told.places.add(ended.place)

    def _end_well(self) -> None:
        """A load that nobody kills; the server may need a moment to see that a run of another name has died."""
        mode = self._rng.choice(["merge", "replay"])
        for _ in range(50):
            began = time.monotonic()
            ended = KilledLoad(self._in(mode), run_id="scheduler").end()
            self._told.course.append(str(ended))
            if ended.error != "TargetBusy":
                break
            time.sleep(0.1)
        assert not ended.error, ended
        assert not ended.killed
        self._seconds = 0.5 * self._seconds + 0.5 * (time.monotonic() - began)
        self._places[mode] |= ended.places
        self._lines[mode] = max(ended.lines, self._lines[mode] * 3 // 4)

    def _check(self) -> None:
        assert target_rows(self._target) == self._source.snapshot()
        assert self._target.value("SELECT ts FROM pumphouse.checkpoint") == self._source.archive.end()
        assert self._target.value("SELECT state FROM pumphouse.checkpoint") == "ready"
        states = {state for (state,) in self._target.query("SELECT state FROM pumphouse.plan")}
        assert states <= {"closed", "discarded"}, states
        twice = self._target.query("SELECT unit, COUNT(*) FROM pumphouse.unit_seen GROUP BY unit HAVING COUNT(*) > 1")
        assert not twice, twice


def watch_units(target: TargetConnection) -> None:
    """Write down each unit that is applied, beside the loader; a first load that begins anew begins this anew."""
    target.create_tables()
    for what in ("TABLE pumphouse.unit_seen", "TRIGGER pumphouse.unit_is_seen", "TRIGGER pumphouse.load_begins"):
        target.execute(f"DROP {what.replace(' ', ' IF EXISTS ', 1)}")
    target.execute("CREATE TABLE pumphouse.unit_seen (unit VARCHAR(255), KEY (unit))")
    target.execute(
        "CREATE TRIGGER pumphouse.unit_is_seen AFTER INSERT ON pumphouse.applied FOR EACH ROW"
        " INSERT INTO pumphouse.unit_seen VALUES (CONCAT_WS(' ', NEW.task, NEW.plan, NEW.epoch, NEW.phase,"
        " NEW.table_id, NEW.bucket))"
    )
    target.execute(
        "CREATE TRIGGER pumphouse.load_begins AFTER DELETE ON pumphouse.checkpoint FOR EACH ROW"
        " DELETE FROM pumphouse.unit_seen"
    )


def kill_loads(
    source: MadeSource, settings: Settings, target: TargetConnection, *, seed: int, kills: int, told: Told
) -> None:
    """A campaign of one seed; an error says how to repeat it and what had happened."""
    begun = len(told.course)
    world = KillWorld(source, settings, target, seed, told)
    try:
        world.run(kills)
    except BaseException as error:
        error.add_note("what happened:\n" + "\n".join(told.course[begun:]))
        error.add_note(f"repeat it: PUMPHOUSE_SEED={seed} .venv/bin/pytest {__file__} -k a_sample")
        raise
    finally:
        world.stop()


@pytest.mark.timeout(900)
@pytest.mark.row("L6")
def test_a_sample_of_killed_loads_ends_equal_and_each_unit_is_applied_once(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
) -> None:
    told = Told()
    kill_loads(
        source, settings, target, seed=SEED, kills=KILLS_A_PART if "PUMPHOUSE_SEED" in os.environ else 12, told=told
    )
    assert told.at_lines > 4
    assert set(told.modes) == {"merge", "replay"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.row("L6")
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_killed_loads(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    part: int,
    record_property: Callable[[str, object], None],
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    record_property("part", part)
    record_property("seed", seed)
    told = Told()
    kill_loads(source, settings, target, seed=seed, kills=KILLS_A_PART, told=told)
    record_property("rounds", told.kills)
    record_property("at_lines", told.at_lines)
    record_property("places", len(told.places))
    record_property("pairs", told.pairs)
    record_property("stops", told.stops)
    record_property("windows", told.windows)
    record_property("modes", dict(told.modes))
