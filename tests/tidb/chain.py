"""One history through the whole chain, compared at several timestamps: `python -m tests.tidb.chain SEED [SEED …]`.

TiDB -> two Pumps -> archive (several windows) -> load into MariaDB; then a restore, the load that goes on from there, a dump and a
restore from it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import structlog

from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.capture.passed import waiter
from pumphouse.dump.run import take_dump
from pumphouse.errors import BinlogError, DuplicateKey, PartitionUnsettled
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.restore.parts import Chosen, own_schema
from pumphouse.runs import load, restore_parts
from pumphouse.schema.actions import Action
from pumphouse.schema.history import TidbStatusSource
from pumphouse.settings import Settings, TargetSettings
from tests.support import mariadb
from tests.support.loading import restored
from tests.support.recorded import actions_of
from tests.support.somerows import choose
from tests.support.tidb import TidbCluster, UnistoreServer
from tests.tidb.contents import Contents, differences, source_at, target_contents
from tests.tidb.history import History, Script

_KEPT = {"mysql", "information_schema", "performance_schema", "sys", "metrics_schema"}


@dataclass
class Played:
    """What came of a history; ``found`` has a line for each thing that differs, and what stopped."""

    seed: int
    statements: int = 0
    tables: int = 0
    rows: int = 0
    compared: int = 0
    chosen: int = 0  # restores of some rows of a table
    found: list[str] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)  # where a load waits for a hand, by design
    unreadable: list[str] = field(default_factory=list)  # moments that TiDB itself cannot show
    actions: set[Action] = field(default_factory=set)  # types of DDL job


def play(
    tidb: TidbCluster,
    target: TargetSettings,
    seed: int,
    directory: Path,
    *,
    steps: int = 150,
    without: str = "",
    known_casts: bool = False,
    script: list[str] | None = None,
) -> Played:
    """Play a history and hold the target against it; its script is ``directory/history.sql``."""
    directory.mkdir(parents=True, exist_ok=True)
    empty(target)
    settings = tidb.settings(directory / f"archive-{seed}", target)
    with Parts(settings) as parts:
        genesis = init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
    history: History | Script
    history = (
        Script(tidb, script) if script else History(tidb, seed, steps=steps, without=without, known_casts=known_casts)
    )
    played = Played(seed)
    try:
        history.run()
        played.statements = history.done
        compare(tidb, settings, history.moments, history.script, random.Random(seed), played)
        dumped(tidb, settings, played)
        played.actions = actions_of(TidbStatusSource(tidb.history).jobs(), after=genesis.ts)
    finally:
        (directory / "history.sql").write_text("\n".join([*history.script, f"-- moments {history.moments}"]) + "\n")
        history.drop()
    return played


def compare(
    tidb: TidbCluster, settings: Settings, moments: list[Tso], script: list[str], rng: random.Random, played: Played
) -> None:
    """Load in steps, restore, load on; `played` is told of what differs. ``script``: what was played."""
    some = sorted(rng.sample(moments[:-1], min(2, len(moments) - 1)))
    end = moments[-1]
    with Parts(settings) as parts:
        for until in (*some, end):
            run_snapshot(parts.archive, parts.cluster, until, settings, parts.history)
    expected = {}
    for ts in {*some, end, *rng.sample(moments, 1)}:
        try:
            expected[ts] = source_at(tidb.dsn(), ts)
        except pymysql.MySQLError as error:
            played.unreadable.append(f"{ts}: {error.args}")
    if not expected:
        played.found.append("TiDB itself shows none of the moments")
        return
    *some, end = [ts for ts in (*some, end) if ts in expected]
    back = rng.choice(sorted(expected))

    def hold(what: str, ts: Tso) -> None:
        found = differences(expected[ts], target_contents(settings.target, expected[ts]))
        played.found += [f"{what} to {ts}: {line}" for line in found]
        played.compared += 1
        played.tables += len(expected[ts])
        played.rows += sum(sum(table.rows.values()) for table in expected[ts].values())

    stopped = ""
    for what, ts in (*(("load", ts) for ts in (*some, end)), ("restore", back), ("load after restore", end)):
        try:
            if what == "restore":
                restored(settings, to=ts, dry_run=False)
            else:
                load.run(settings, to=ts)
        except BinlogError as error:
            if _by_design(error, script):
                played.unsettled.append(f"{what} to {ts}: {error.message}")
                return
            why = f"stopped: {type(error).__name__}: {error.message} {error.hint or ''}"
            played.found.append(f"{what} to {ts} {'stopped too' if why == stopped else why}")
            stopped = why
            continue
        hold(what, ts)
    apart(settings, expected[back], back, rng, played, script)


def apart(
    settings: Settings, contents: Contents, ts: Tso, rng: random.Random, played: Played, script: list[str]
) -> None:
    """Some tables at a moment, each by itself, and some rows of these, beside all others: these stay as they are."""

    def restore(name: str, *, anew: bool = False, **how: Any) -> None:
        chosen = Chosen(tables=(name,), **how)
        restore_parts.run(settings, chosen=chosen, into="target", to=ts, dry_run=False, anew=anew)

    before = target_contents(settings.target, {})
    full = [name for name in sorted(contents) if contents[name].rows]
    names = sorted({name for some in (sorted(contents), full) for name in rng.sample(some, min(2, len(some)))})
    for number, name in enumerate(names):
        try:
            restore(name, called=f"apart.t{number}")
        except BinlogError as error:
            where = played.unsettled if _by_design(error, script) else played.found
            where.append(f"{name} apart at {ts} stopped: {type(error).__name__}: {error.message} {error.hint or ''}")
            return
    with TargetConnection.open(settings.target) as connection:
        for number, name in enumerate(names):
            count, wrong = choose(connection, f"apart.t{number}", rng, partial(restore, name))
            played.chosen += count
            played.found += [f"{name} apart at {ts}: {line}" for line in wrong]
        # A choice that only the server can make ends on the way.
        for database in ("some", own_schema(settings.target).schema_name):
            connection.execute(f"DROP DATABASE IF EXISTS `{database}`")
    wanted = {f"apart.t{number}": contents[name] for number, name in enumerate(names)}
    found = {name: table for name, table in target_contents(settings.target, wanted).items() if name in wanted}
    played.found += [f"{', '.join(names)} apart at {ts}: {line}" for line in differences(wanted, found)]
    beside = {name: table for name, table in target_contents(settings.target, {}).items() if name not in wanted}
    played.found += [f"beside {', '.join(names)} at {ts}: {line}" for line in differences(before, beside)]
    with TargetConnection.open(settings.target) as connection:
        connection.execute("DROP DATABASE IF EXISTS apart")
    played.compared += 1


def _by_design(error: BinlogError, script: list[str]) -> bool:
    """Whether a load waits for a hand, because nobody can tell what a DROP PARTITION left (docs/limits.md)."""
    name = str(error.facts.get("table")).rpartition(".")[2]
    dropped = any(f"`{name}` DROP PARTITION" in line for line in script)
    return isinstance(error, PartitionUnsettled) or (isinstance(error, DuplicateKey) and dropped)


def dumped(tidb: TidbCluster, settings: Settings, played: Played) -> None:
    """A dump of what is there now, and a restore that begins from it."""
    try:
        with Parts(settings) as parts:
            report = take_dump(
                parts.archive,
                parts.cluster,
                parts.history,
                settings,
                settle=waiter(parts.cluster, settings.source, settings.capture),
            )
        done = restored(settings, to=report.ts, dry_run=False)
    except BinlogError as error:
        played.found.append(f"dump stopped: {type(error).__name__}: {error.message} {error.hint or ''}")
        return
    assert done.plan.base is not None
    expected = source_at(tidb.dsn(), report.ts)
    found = differences(expected, target_contents(settings.target, expected))
    played.found += [f"restore from the dump at {report.ts}: {line}" for line in found]
    played.compared += 1


def empty(target: TargetSettings) -> None:
    """Drop every database of the target."""
    with TargetConnection.open(target) as connection:
        for (name,) in connection.query("SHOW DATABASES"):
            if name.lower() not in _KEPT:
                connection.execute(f"DROP DATABASE `{name}`")


def main() -> None:
    """Seeds from the command line; exit code 1 when one of them found something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--script", type=Path, nargs="*", default=[], help="files of SQL in place of seeds")
    parser.add_argument("seeds", nargs="*", help="numbers, or FIRST-LAST")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--without", default="", help="a regular expression of DDL to leave out")
    parser.add_argument("--all-casts", action="store_true", help="changes of type that stop a load by design too")
    parser.add_argument("--into-tidb", action="store_true", help="the target is another TiDB")
    parser.add_argument("--keep", type=Path, default=None, help="directory of scripts and archives")
    options = parser.parse_args()
    scripts = dict(enumerate(options.script, 1))
    seeds = [n for text in options.seeds for n in _numbers(text)] or list(scripts)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    bad = 0
    with tempfile.TemporaryDirectory(prefix="tidb-") as temporary:
        home = Path(temporary)
        kept = options.keep or home
        (home / "db").mkdir()
        with ExitStack() as opened, _target(home / "db", tidb=options.into_tidb) as target:
            tidb = None
            for seed in seeds:
                if tidb is None:
                    opened.close()
                    (home / f"tidb-{seed}").mkdir()
                    tidb = opened.enter_context(TidbCluster(home / f"tidb-{seed}", servers=2))
                began = time.monotonic()
                try:
                    played = play(
                        tidb,
                        target,
                        seed,
                        kept / str(seed),
                        steps=options.steps,
                        without=options.without,
                        known_casts=not (options.all_casts or options.into_tidb),
                        script=scripts[seed].read_text().splitlines() if scripts else None,
                    )
                except Exception:
                    traceback.print_exc()
                    bad += 1
                    tidb = None
                    continue
                print(
                    f"{scripts.get(seed) or f'seed {seed}'}: {played.statements} statements, {played.compared} comparisons, {played.chosen} choices of rows, {played.tables} tables, "
                    f"{played.rows} rows, {time.monotonic() - began:.1f} s: {'DIFFERENT' if played.found else 'equal'}",
                    flush=True,
                )
                for line in (*played.found, *played.unsettled, *(f"TiDB: {each}" for each in played.unreadable)):
                    print(f"   {line[:1500]}", flush=True)
                bad += bool(played.found)
                if any("stopped" in line for line in played.found):
                    tidb = None  # what stopped a load stays in TiDB's history of jobs
    sys.exit(bool(bad))


@contextmanager
def _target(directory: Path, *, tidb: bool) -> Iterator[TargetSettings]:
    if tidb:
        with UnistoreServer(directory) as server:
            yield server.settings
    else:
        with mariadb.running(directory) as settings:
            yield settings


def _numbers(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    main()
