"""Dumps of a source that is written to, on real Pumps and MariaDB servers: killed at every chunk, among DDL."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.archive.archive import Archive
from pumphouse.archive.base import BaseBegun
from pumphouse.archive.init import init_archive
from pumphouse.archive.layout import BASE, base_begun, base_objects
from pumphouse.archive.objects import SourceObjects
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.archive.verify import verify
from pumphouse.archive.view import has_rows, read_view
from pumphouse.capture.passed import waiter
from pumphouse.cli import cli
from pumphouse.clock import SYSTEM_CLOCK, Throttle
from pumphouse.diff.compare import compare
from pumphouse.dump.chunks import ChunkWriter
from pumphouse.dump.run import DumpReport, take_dump
from pumphouse.dump.source import TableChanged, execute, identity, session
from pumphouse.errors import (
    ConfigError,
    LoadError,
    RestoreError,
    SourceFailed,
    StoreUnavailable,
    TargetUnreachable,
    UsageError,
)
from pumphouse.loader.apart import server_name
from pumphouse.loader.keys import key_columns
from pumphouse.model.tso import Tso
from pumphouse.objectstore.file import FileStore
from pumphouse.parts import Parts
from pumphouse.restore.report import RestoreReport
from pumphouse.runs import load, restore
from pumphouse.settings import DumpRule, LoadRule, Settings
from tests.e2e.marks import Mark, take_mark
from tests.e2e.scenario import WHILE_RUNNING
from tests.e2e.workload import Workload
from tests.stack.local import SMALL, LocalStack
from tests.support import formats, mariadb
from tests.support.faultys3 import Fault, FaultyS3, from_the, impatient, now_and_then
from tests.support.forked import popen
from tests.support.killed import Killed
from tests.support.motoserver import s3_server

__all__ = ["impatient"]
pytestmark = pytest.mark.timeout(600)


@dataclass
class World:
    """An application with data and writers, and an archive that began without a dump."""

    stack: LocalStack
    workload: Workload
    settings: Settings
    archive: Archive
    # When it was waited for what the source hides: where the archive ended, and how many objects bases had.
    settled: list[tuple[int, int]] = field(default_factory=list)

    def dump(self, tables: Sequence[str] | None = None, **sizes: Any) -> DumpReport:
        settings = self.settings.model_copy(update={"dump": self.settings.dump.model_copy(update=sizes)})
        with Parts(settings) as parts:
            wait = waiter(parts.cluster, settings.source, settings.capture)

            def settle(within_s: float | None) -> None:
                wait(within_s)
                if parts.archive.begun():
                    keys = (each.key for each in parts.archive.store.list(BASE))
                    self.settled.append((parts.archive.end(), sum(not key.endswith("begun.json") for key in keys)))

            return take_dump(parts.archive, parts.cluster, parts.history, settings, tables=tables, settle=settle)

    def mark(self, name: str) -> Mark:
        return take_mark(self.stack.dsn("source"), self.stack.cluster, name=name)

    def extend(self) -> None:
        with Parts(self.settings) as parts:
            run_snapshot(parts.archive, parts.cluster, parts.cluster.tso(), self.settings, parts.history)

    def restore(self, mark: Mark) -> RestoreReport:
        """Onto the restore target, whatever it holds."""
        name = server_name(self.settings.restore_target)
        return restore.run(self.settings, to=mark.ts, dry_run=False, replace=name)

    def require_equal(self, mark: Mark, database: str = "restore") -> None:
        """The restored server equals the copy that was kept of the moment."""
        report = compare(self.stack.dsn("source"), self.stack.dsn(database), schemas=mark.schemas, views=False)
        assert report.differences == []


@pytest.fixture
def world() -> Iterator[World]:
    with mariadb.directory_in_memory() as directory:
        yield from _world(directory)


def _world(directory: Path) -> Iterator[World]:
    values = copy.deepcopy(SMALL)
    values["pump"]["gen_binlog_interval_s"] = 0.3
    values["load"] = {"connections": 2, "engine": "local"}
    stack = LocalStack(directory, store="file", settings=values, popen=popen)
    try:
        stack.start_stores()
        stack.write_settings()
        stack.start_pumps()
        settings = Settings.read(stack.config)
        workload = Workload(stack, processes=1, threads=2, rate=10.0)
        workload.open(customers=800)
        workload.start_resolver()
        workload.start_writers()
        with Parts(settings) as parts:
            init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
            yield World(stack, workload, settings, parts.archive)
        workload.check()
    finally:
        stack.stop(timeout_s=0)


@pytest.mark.row("A5", "R1", "A3")
def test_a_dump_under_writes_opens_the_moments_behind_it(world: World) -> None:
    world.extend()
    with pytest.raises(RestoreError, match="archive dump"):
        restore.run(world.settings, dry_run=True)
    before = world.mark("before")
    report = world.dump(chunk_rows=100)
    assert report.tables == 6
    # What is captured up to where rows are read is shown before the first of them is.
    read_at = min(table.low for table in world.archive.bases(report.ts)[-1].tables)
    assert any(end >= read_at and not objects for end, objects in world.settled), (read_at, world.settled)
    marks = [world.mark("right_behind"), world.mark("later")]
    world.extend()
    for mark in marks:
        assert mark.ts > report.ts > before.ts
        done = world.restore(mark)
        assert (done.plan.base, done.plan.base_low) == (report.ts, report.low)
        world.require_equal(mark)
    with pytest.raises(RestoreError, match="first dump is exact from"):
        restore.run(world.settings, to=before.ts, dry_run=True)
    assert load.run(world.settings, to=marks[0].ts).to_ts == marks[0].ts
    world.require_equal(marks[0], "target")
    found = verify(world.archive)
    assert found.sound, found.problems
    for each in world.archive.store.list(BASE):
        if not each.key.endswith(".parquet"):
            value = json.loads(world.archive.store.get(each.key))
            formats.check(value["kind"].replace(" ", "-"), value)


@pytest.mark.row("R8")
def test_what_no_copy_gets_is_kept_as_text_and_makes_the_same_objects_again(world: World, tmp_path: Path) -> None:
    source, secret = world.stack.dsn("source"), "S3cret-pw-4711"
    with source.connect(autocommit=True) as connection:
        for statement in (
            "CREATE DATABASE extra",
            "CREATE TABLE extra.p (id INT PRIMARY KEY)",
            (
                "CREATE TABLE extra.c (id INT PRIMARY KEY, p INT, t TEXT, CONSTRAINT `c to p` FOREIGN KEY (p) REFERENCES"
                " extra.p (id) ON DELETE CASCADE)"
            ),
            "CREATE TRIGGER extra.`t;r` BEFORE INSERT ON extra.c FOR EACH ROW BEGIN SET NEW.t = ';'; SET NEW.p = 1; END",
            "CREATE EVENT extra.ev ON SCHEDULE EVERY 1 DAY DISABLE DO DELETE FROM extra.c",
            "CREATE PROCEDURE extra.pr(a INT) BEGIN SELECT a; SELECT ';'; END",
            "CREATE FUNCTION extra.fu() RETURNS INT DETERMINISTIC RETURN 1",
            "CREATE VIEW extra.v AS SELECT id FROM extra.c",
            f"CREATE USER `o'neil`@'10.%' IDENTIFIED BY '{secret}'",
            "GRANT SELECT, INSERT ON extra.* TO `o'neil`@'10.%' WITH GRANT OPTION",
            "GRANT UPDATE (t) ON extra.c TO `o'neil`@'10.%'",
            "GRANT RELOAD ON *.* TO `o'neil`@'10.%'",
            "GRANT EXECUTE ON PROCEDURE extra.pr TO `o'neil`@'10.%'",
        ):
            execute(connection, statement)
        (hashed,) = execute(connection, "SELECT authentication_string FROM mysql.user WHERE User = 'o''neil'")[0]
    report = world.dump()
    assert "1 trigger, 1 event" in report.text()
    assert report.unseen == ()
    world.extend()
    base = world.archive.bases(report.ts)[-1]
    body = world.archive.store.get(base_objects(base.begun))
    assert hashed
    assert not [word for word in (secret, str(hashed)) if word.encode() in body]
    (user,) = (each for each in SourceObjects.from_json("", body).objects if each.name == "o'neil@10.%")
    told = " ".join(user.sql)
    assert "ACCOUNT LOCK" in told
    for right in ("RELOAD", "SELECT, INSERT ON `extra`.*", "UPDATE (`t`) ON `extra`.`c`", "EXECUTE ON PROCEDURE"):
        assert right in told, user.sql
    planned = restore.run(world.settings, dry_run=True, plan_only=True)
    assert isinstance(planned.lacks, SourceObjects)
    assert {"trigger extra.t;r", "user o'neil@10.%"} <= {f"{each.kind} {each.name}" for each in planned.lacks.objects}
    out, words = (
        tmp_path / "objects.sql",
        ("--config", str(world.stack.config), "restore", "--to", "latest", "--dry-run"),
    )
    done = CliRunner().invoke(cli, (*words, "--plan-only", "--objects", str(out)))
    assert done.exit_code == 0, done.output
    assert "trigger extra.t;r" in done.output
    assert out.stat().st_mode & 0o777 == 0o600
    # As a user runs it, on a server that has the tables.
    there = world.stack.dsn("restore")
    with there.connect(autocommit=True) as connection:
        for statement in (
            "CREATE DATABASE extra",
            "CREATE TABLE extra.p (id INT PRIMARY KEY)",
            "CREATE TABLE extra.c (id INT PRIMARY KEY, p INT, t TEXT)",
        ):
            execute(connection, statement)
    mine = out.read_text()
    only = "".join(
        part for part in mine.split("\n-- ")[1:] for part in [f"-- {part}\n"] if " extra." in part.splitlines()[0]
    )
    client = ["mariadb", "--skip-ssl", f"--host={there.host}", f"--port={there.port}", f"--user={there.user}"]
    ran = subprocess.run(
        [*client, f"--password={there.password}"], input=only.encode(), capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = compare(source, there, schemas={"extra": "extra"})
    assert (found.differences, found.lacks) == ([], [])
    # Damaged, or another one, it is found, and no restore stops for it.
    other = replace(SourceObjects.from_json("", body), objects=()).to_json()
    for wrong in (body.replace(b"trigger", b"Trigger"), other):
        world.archive.store.put(base_objects(base.begun), wrong)
        assert [each.key for each in verify(world.archive).problems] == [base_objects(base.begun)]
        assert isinstance(restore.run(world.settings, dry_run=True, plan_only=True).lacks, str)


@pytest.mark.row("A5", "R1")
def test_a_dump_that_is_killed_at_every_chunk_among_ddl_goes_on_and_is_exact(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in turn before a note is put and after it: every chunk of the dump meets both or one of them."""
    world.workload.start_ddl(WHILE_RUNNING, 20.0, lambda _: None)
    put, notes, kills = FileStore.put_if_absent, 0, 0
    armed = True

    def killed_at_notes(self: FileStore, key: str, data: bytes) -> None:
        nonlocal notes, kills
        note = "/base/" in key and key.count("/") > 3 and key.endswith(".json")
        if armed and note:
            notes += 1
            if notes % 2:
                kills += 1
                raise Killed
        put(self, key, data)
        if armed and note and not notes % 2:
            kills += 1
            raise Killed

    monkeypatch.setattr(FileStore, "put_if_absent", killed_at_notes)
    report = None
    for _ in range(400):
        try:
            report = world.dump(chunk_rows=400, connections=1)
            break
        except Killed:
            continue
    assert report is not None
    assert (report.resumed, report.kept) == (True, 0)
    assert 0 < report.rows_before <= report.rows
    assert "by an earlier run" in report.text()
    assert kills > 20
    armed = False
    world.workload.wait_ddl(120)
    mark = world.mark("behind")
    world.extend()
    world.restore(mark)
    world.require_equal(mark)


@pytest.mark.row("A5")
def test_a_table_without_a_key_is_read_at_one_moment_and_its_writers_wait_only_shortly(world: World) -> None:
    view = read_view(world.archive)
    keyless = {v.table.id for v in view.timeline.tables_at(view.end) if has_rows(v) and not key_columns(v.table)}
    report = world.dump()
    (base,) = world.archive.bases(report.ts)
    assert keyless
    # Under its lock a table gets a moment of its own; the others share the round's.
    (of_round,) = {table.low for table in base.tables if table.table_id not in keyless}
    own = [table.low for table in base.tables if table.table_id in keyless]
    assert len(set(own)) == len(keyless)
    assert min(own) > of_round > report.low
    mark = world.mark("behind")
    world.extend()
    world.restore(mark)
    world.require_equal(mark)


@pytest.mark.row("A5")
def test_a_ddl_that_waits_for_the_lock_of_a_table_without_a_key_is_let_go_first(world: World) -> None:
    """The DDL waits for the lock, the snapshot's first read for the DDL, and the lock for that read."""
    view = read_view(world.archive)
    version = next(v for v in view.timeline.tables_at(view.end) if has_rows(v) and not key_columns(v.table))
    name = ".".join(version.name)
    source = world.settings.source
    writer = ChunkWriter(
        store=world.archive.store,
        dump_low=view.end,
        source=source,
        settings=world.settings.dump,
        throttle=Throttle(0, SYSTEM_CLOCK),
        tell=lambda _: None,
        stop=threading.Event(),
    )
    with ThreadPoolExecutor(1) as pool, session(source) as ddl, session(source) as watcher:
        waiting: list[Future[None]] = []

        def while_a_ddl_waits() -> Tso:
            waiting.append(pool.submit(execute, ddl, f"ALTER TABLE {name} COMMENT 'waits'"))
            with watcher.cursor() as cursor:
                while not cursor.execute(
                    "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'ALTER TABLE % COMMENT%'"
                    " AND state LIKE 'Waiting for table metadata lock%'"
                ):
                    assert not waiting[0].done()
            return view.end

        with pytest.raises(TableChanged, match="a DDL or a lock waits"):
            writer.read_table(version, view.end, (), while_a_ddl_waits)
        waiting[0].result(60)


@pytest.mark.row("A5", "R1")
def test_some_tables_are_read_anew_over_an_earlier_dump(world: World) -> None:
    with pytest.raises(UsageError, match="no dump to take the other tables from"):
        world.dump(tables=["shop.customers"])
    first = world.dump()
    assert (first.kept, first.resumed) == (0, False)
    with pytest.raises(UsageError, match=r"there is no table shop\.oders"):
        world.dump(tables=["shop.customers", "shop.oders"])
    begun = {each.key for each in world.archive.store.list(BASE) if each.key.endswith("/begun.json")}
    assert begun == {base_begun(first.low)}, "a dump that is refused leaves nothing"
    # What releases before this one left of such a dump is not gone on with.
    typo = BaseBegun(
        cluster_id=world.archive.cluster_id, low=world.archive.end(), tables=("shop.oders",), over=first.low
    )
    world.archive.store.put(base_begun(typo.low), typo.to_json())
    again = world.dump()
    assert (again.resumed, again.kept, again.tables) == (False, 0, first.tables)
    first = again
    world.workload.start_ddl(WHILE_RUNNING[:2], 1.0, lambda _: None)
    world.workload.wait_ddl(120)
    with session(world.settings.source) as connection:
        server = identity(connection)
    low = world.archive.end()
    old_one = BaseBegun(cluster_id=world.archive.cluster_id, low=low, tables=None, over=None, server=server)
    world.archive.store.put(base_begun(old_one.low), old_one.to_json())
    with pytest.raises(UsageError, match="has not ended"):
        world.dump(tables=["shop.customers"])
    report = world.dump(tables=["shop.customers"], resume_s=0)
    assert not report.resumed
    _, earlier, later = world.archive.bases(report.ts)
    assert (later.low, later.begun) == (first.low, report.low)
    old = {table.table_id: table.low for table in earlier.tables}
    anew = {table.table for table in later.tables if table.low != old.get(table.table_id)}
    assert "customers" in anew
    assert (report.kept, report.kept_from) == (len(later.tables) - len(anew), earlier.ts)
    assert "shop.customers alone" in report.text()
    assert len(anew) < len(later.tables)
    mark = world.mark("behind")
    world.extend()
    assert world.restore(mark).plan.base == report.ts
    world.require_equal(mark)


@pytest.mark.row("A5", "Q4")
def test_what_was_read_of_one_server_is_no_part_of_a_dump_of_another(world: World) -> None:
    """A failover behind the address: what the log never had may be in what was read before."""

    def fail_over(number: int) -> None:
        with session(world.settings.source) as connection:
            execute(connection, f"SET GLOBAL server_id = {number}")

    with Parts(world.settings) as parts:
        times = iter(range(1000))

        def settle(_: float | None) -> None:
            if next(times) == 4:
                fail_over(77)

        with pytest.raises(SourceFailed, match="another server than the one that this dump began to read"):
            take_dump(parts.archive, parts.cluster, parts.history, world.settings, settle=settle)
    assert not world.dump(chunk_bytes=1 << 20).resumed
    fail_over(1)


@pytest.mark.row("A5", "R1")
def test_a_table_that_cannot_be_read_is_left_out_by_a_rule_and_nobody_who_wants_it_begins_there(world: World) -> None:
    view = read_view(world.archive)
    version = next(v for v in view.timeline.tables_at(view.end) if has_rows(v) and not key_columns(v.table))
    name, why = ".".join(version.name), "its engine has no snapshots"
    world.workload.stop_writers()  # a table without transactions keeps what a writer rolls back
    with session(world.settings.source) as connection:
        execute(connection, f"ALTER TABLE {name} ENGINE=MyISAM")
        execute(connection, "CREATE TABLE shop.nobody_said (id INT PRIMARY KEY)")
        execute(connection, "CREATE TABLE shop.versioned (id INT PRIMARY KEY) WITH SYSTEM VERSIONING")
        execute(connection, "CREATE DATABASE pumphouse_parts")
        execute(connection, "CREATE TABLE pumphouse_parts.part_1 (id INT PRIMARY KEY)")  # of a restore of tables
    with pytest.raises(SourceFailed, match=name.replace(".", r"`\.`")) as refused:
        world.dump()
    assert f'[[dump.without]]\ntable = "{name}"' in refused.value.hint
    rule = DumpRule(table=name.upper(), why=why)
    report = world.dump(without=(rule, DumpRule(table="shop.oders", why="a slip")))
    assert (report.idle, report.unknown) == (("shop.oders",), ("shop.nobody_said", "shop.versioned"))
    assert "does not know them (`pumphouse schema import`): shop.nobody_said" in report.text()
    with session(world.settings.source) as connection:
        execute(connection, "DROP TABLE shop.nobody_said, shop.versioned")
        execute(connection, "DROP DATABASE pumphouse_parts")
    assert report.resumed
    assert report.without == {name: why}
    assert f"NOT in it, by dump.without: {name} ({why})" in report.text()
    with pytest.raises(UsageError, match=rf"leaves {name} out: {why}"):
        world.dump(tables=[name], without=(rule,))
    with pytest.raises(UsageError, match="no table orders in the schema history"):
        world.dump(tables=["orders"], without=(rule,))
    document = json.loads(world.archive.store.get(report.key))
    formats.check("base", document)
    mark = world.mark("behind")
    world.extend()
    with pytest.raises(TargetUnreachable, match=rf"no dump before it has the rows of {name}.*{why}") as lacks:
        restore.run(world.settings, to=mark.ts, dry_run=True)
    assert "[[load.rules]]" in lacks.value.hint
    with pytest.raises(LoadError, match=rf"no dump up to .* has the rows of {name}.*{why}"):
        load.run(world.settings)

    parking = LoadRule(do="park", table=name, why="ticket 12")
    parked = world.settings.model_copy(update={"load": world.settings.load.model_copy(update={"rules": (parking,)})})
    restored = restore.run(parked, to=mark.ts, dry_run=False, replace=server_name(parked.restore_target))
    assert name in restored.plan.left_out
    assert load.run(parked, to=mark.ts).parked.keys() == {name}
    for server in ("restore", "target"):
        found = compare(world.stack.dsn("source"), world.stack.dsn(server), schemas=mark.schemas, views=False)
        assert [(each.kind, each.table) for each in found.differences] == [("table", f"behind_{name}")]
    with pytest.raises(LoadError, match=rf"no dump has the rows of {name}, as a rule left it out \({why}\)"):
        load.run(world.settings, resync=name)

    with session(world.settings.source) as connection:
        execute(connection, f"ALTER TABLE {name} ENGINE=InnoDB")
    world.workload.start_writers()
    again = world.dump(tables=[name])
    assert again.without == {}
    load.run(world.settings)
    load.run(world.settings, resync=name)
    later = world.mark("later")
    world.extend()
    assert load.run(world.settings, to=later.ts).parked == {}
    world.require_equal(later, "target")


@pytest.mark.row("A5")
def test_a_source_that_nobody_named_is_asked_for(world: World) -> None:
    settings = world.settings.model_copy(update={"source": world.settings.source.model_copy(update={"host": ""})})
    with Parts(settings) as parts, pytest.raises(ConfigError, match=r"\[source\]"):
        take_dump(
            parts.archive,
            parts.cluster,
            parts.history,
            settings,
            settle=waiter(parts.cluster, settings.source, settings.capture),
        )
    wrong = settings.model_copy(update={"source": world.settings.source.model_copy(update={"port": 1})})
    with Parts(wrong) as parts, pytest.raises(SourceFailed, match="does not answer"):
        take_dump(
            parts.archive,
            parts.cluster,
            parts.history,
            wrong,
            settle=waiter(parts.cluster, wrong.source, wrong.capture),
        )


@pytest.mark.row("A5", "A1")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("points", [3, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_dump_goes_on_over_a_store_that_was_away(world: World, points: int) -> None:
    down = [Fault.UNANSWERED, Fault.BUSY, Fault.CUT, Fault.TORN]
    with s3_server() as s3, FaultyS3(s3.endpoint) as proxy:
        settings = world.settings.model_copy(update={"archive": s3.archive_settings(archive_id="other")})
        bad = replace(world, settings=settings.model_copy(update={"archive": proxy.before(settings.archive)}))
        with Parts(settings) as parts, Parts(bad.settings) as through:
            init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
            for number in range(points):
                away = proxy.doing(from_the(10 + 40 * number, down[number % len(down)]))
                with away, contextlib.suppress(StoreUnavailable):
                    settle = waiter(through.cluster, bad.settings.source, bad.settings.capture)
                    take_dump(through.archive, through.cluster, through.history, bad.settings, settle=settle)
                assert [each.what for each in verify(parts.archive).problems] == []
            with proxy.doing(now_and_then(5, 0.05)):
                report = bad.dump()
            assert report.tables == 6
            assert verify(parts.archive).problems == []
            mark = world.mark("behind")
            run_snapshot(parts.archive, parts.cluster, parts.cluster.tso(), settings, parts.history)
        there = replace(world, settings=settings)
        there.restore(mark)
        there.require_equal(mark)
