"""Restores of parts on a real MariaDB: tables as of a moment, beside live rows that stay as they are to the last byte."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pumphouse.cli import cli
from pumphouse.codec.row import encode_insert
from pumphouse.errors import FenceLost, LoadError, RestoreError, TargetBusy, UnknownTable, UsageError
from pumphouse.executor import build
from pumphouse.executor.executor import Executor
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.restore.parts import Chosen, own_schema
from pumphouse.restore.report import RestoreReport
from pumphouse.restore.told import as_text, plan_told
from pumphouse.runs import load, restore_parts
from pumphouse.settings import LoadRule, Settings
from tests.integration.test_load_ddl_kinds import partitions
from tests.integration.test_load_routes import exchange
from tests.integration.test_load_rules import ID, TEXT, put
from tests.support import mariadb
from tests.support.killed import Killed
from tests.support.killedloads import KilledLoad
from tests.support.madearchive import Churn, MadeSource, column, index, target_rows
from tests.unit.restore.test_parts import key

pytestmark = pytest.mark.row("R3")
LOAD = {"engine": "local", "buckets": 3}
_SERVERS_OWN = "('mysql', 'information_schema', 'performance_schema', 'sys')"


def parts(
    settings: Settings,
    *tables: str,
    into: Any = "target",
    called: str = "",
    database: str = "",
    where: Predicate = ALL_ROWS,
    **how: Any,
) -> RestoreReport:
    chosen = Chosen(tables=tables, called=called, database=database, where=where)
    return restore_parts.run(settings, chosen=chosen, into=into, **{"dry_run": False, **how})


def everything(target: TargetConnection, *but: str) -> dict[str, Any]:
    """Each table of the server but these and the tables of ours, with its statement, rows, triggers; databases, too."""
    found: dict[str, Any] = {"databases": [name for (name,) in target.query("SHOW DATABASES")]}
    for db, name, kind in target.query(
        f"SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_schema NOT IN {_SERVERS_OWN}"
    ):
        if f"{db}.{name}" not in but and db not in but:
            created = target.query(f"SHOW CREATE TABLE `{db}`.`{name}`")
            found[f"{db}.{name}"] = (kind, created, target.query(f"CHECKSUM TABLE `{db}`.`{name}`"))
    found["triggers"] = target.query(
        "SELECT trigger_schema, trigger_name, event_object_table, action_statement FROM information_schema.triggers"
        f" WHERE trigger_schema NOT IN {_SERVERS_OWN} ORDER BY 1, 2"
    )
    return found


def live(target: TargetConnection) -> None:
    """What a server has on which somebody works: foreign keys, triggers and a view around the table that is lost."""
    for statement in (
        "CREATE DATABASE d",
        "CREATE TABLE d.parent (id INT PRIMARY KEY, a VARCHAR(64))",
        "CREATE TABLE d.t (id INT PRIMARY KEY, name VARCHAR(64), n BIGINT)",
        "CREATE TABLE d.child (id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES d.t (id) ON DELETE CASCADE)",
        "CREATE TABLE d.heard (what VARCHAR(64))",
        "INSERT INTO d.t VALUES (1, 'mine', 1), (2, 'mine', 2)",
        "INSERT INTO d.child VALUES (1, 1), (2, 2)",
        "CREATE TRIGGER d.t_heard AFTER INSERT ON d.t FOR EACH ROW INSERT INTO d.heard VALUES ('t')",
        "CREATE TRIGGER d.parent_heard AFTER DELETE ON d.parent FOR EACH ROW INSERT INTO d.heard VALUES ('parent')",
        "CREATE VIEW d.seen AS SELECT id FROM d.t",
    ):
        target.execute(statement)


def test_rows_of_a_table_that_no_ddl_names_are_left_out_by_a_rule_alone(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3)])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=7)
        t.builder.insert(4711, encode_insert(source.tables["t"].info, {1: 2}, handle=2))
    end = source.cut()
    with pytest.raises(UnknownTable, match="4711"):
        parts(settings, "d.t", to=end, called="d.back")
    rule = LoadRule(do="skip", table="4711", why="a stranger")
    ruled = settings.model_copy(update={"load": settings.load.model_copy(update={"rules": (rule,)})})
    parts(ruled, "d.t", to=end, called="d.back", anew=True)
    assert target_rows(target)["back"] == {(7,): 1}


@pytest.mark.mysql
@pytest.mark.row("R1")
def test_a_table_comes_back_beside_the_live_one_on_the_source_itself_at_any_moment(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    churn = Churn(source)
    churn.fill()
    genesis = source.genesis()
    marks = [(genesis, source.snapshot())]
    churn.work(5)
    marks.append((Tso(source.tick()), source.snapshot()))
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    source.truncate("k")
    churn.work(5)
    source.cut()
    marks.append((Tso(source.tick()), source.snapshot()))
    churn.work(3)
    source.drop_table("t")
    source.cut()
    live(target)
    on_source = settings.model_copy(update={"source": mariadb.as_source(settings.target)})
    before, made = everything(target), []
    for at, rows in marks:
        for name in ("t", "k", "u"):
            made.append(f"d.{name}_{at}")
            report = parts(on_source, f"d.{name}", into="source", to=at, called=made[-1])
            (note,) = report.load.notes
            assert "in no binlog" in note
            assert target_rows(target)[f"{name}_{at}"] == rows[name]
    assert everything(target, *made) == before, "no schema of ours is left either"


@pytest.mark.mysql
def test_what_a_table_lacks_there_stands_in_the_plan(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    year: dict[str, Any] = {"generated_expr_string": "date_format(`day`, _utf8mb4'%Y')"}
    columns = [ID, column(2, "day", MysqlType.DATETIME), column(3, "year", MysqlType.VARCHAR, **year)]
    source.create_table("t", columns, index_info=[index(1, "of_year", ("year", 2), unique=True)])
    source.genesis()
    source.cut()
    planned = parts(settings, "d.t", called="d.then", dry_run=True)
    told = "\n".join(as_text(plan_told(planned)))
    assert "! the generated column then.year is left out" in told
    assert "! index of_year of then is left out" in told
    assert any("index of_year" in each for each in parts(settings, "d.t", called="d.then").load.notes)


@pytest.mark.parametrize("folds", [0, 1])
def test_names_that_differ_in_case_alone_are_what_the_server_takes_them_for(
    source: MadeSource, settings: Settings, target: TargetConnection, *, folds: int
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1, 2)
    source.genesis()
    source.cut()
    with mariadb.directory_in_memory() as directory, contextlib.ExitStack() as stack:
        there = settings.target
        if folds:
            running = mariadb.server_in(directory, arguments=("--lower-case-table-names=1",))
            there = mariadb.settings_of(stack.enter_context(running))
        server = stack.enter_context(TargetConnection.open(there))
        server.execute("CREATE DATABASE shop_copy")
        on = settings.model_copy(update={"target": there.model_copy(update={"schema_name": "Pumphouse"})})
        parts(on, "d.t", called="Shop_Copy.t")
        assert server.value(f"SELECT COUNT(*) FROM {'shop_copy' if folds else 'Shop_Copy'}.t") == 2
        server.execute("DROP DATABASE shop_copy")
        server.execute("DROP DATABASE IF EXISTS Shop_Copy")


def test_several_tables_go_into_another_database_with_the_keys_between_them(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("parent", [ID, TEXT])
    source.create_table("aside", [ID, TEXT])
    source.create_table("t", [ID, TEXT], fk_info=[key("parent"), {**key("aside", "fk_aside"), "id": 2}])
    for table in ("parent", "aside", "t"):
        put(source, table, 1, 2)
    source.genesis()
    put(source, "parent", 3)
    put(source, "t", 3)
    source.cut()
    live(target)
    before = everything(target)
    report = parts(settings, "d.parent", "d.T", database="copy")
    assert target_rows(target, "copy") == {name: source.snapshot()[name] for name in ("parent", "t")}
    assert report.load.notes == ["the foreign key fk_aside of d.t to d.aside is left out"]
    keys = target.query(
        "SELECT table_name, unique_constraint_schema, referenced_table_name FROM"
        " information_schema.referential_constraints WHERE constraint_schema = 'copy'"
    )
    assert keys == [("t", "copy", "parent")]
    after = everything(target, "copy")
    assert after.pop("databases") == sorted([*before.pop("databases"), "copy"])
    assert after == before
    with pytest.raises(LoadError, match=r"has copy\.parent, copy\.t already"):
        parts(settings, "d.%", database="copy")
    parts(settings, "d.%", database="all_of_it")
    assert target_rows(target, "all_of_it") == source.snapshot()


def test_a_name_that_is_taken_is_refused_before_anything_is_made(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID])
    source.create_table("seen", [ID])
    source.genesis()
    live(target)
    before = everything(target)
    for name in ("d.t", "d.seen"):
        for dry_run in (True, False):
            with pytest.raises(LoadError, match=rf"has {name} already") as refused:
                parts(settings, name, dry_run=dry_run)
        assert "--as" in refused.value.hint
    assert everything(target) == before


def test_a_name_that_is_taken_meanwhile_stays_what_it_is_and_the_restore_goes_on_when_it_is_gone(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1, 2)
    source.genesis()
    target.execute("CREATE DATABASE d")
    applying = Executor._apply

    def create(self: Executor, *what: Any) -> None:
        applying(self, *what)
        target.execute("CREATE TABLE d.t (mine INT)")

    with monkeypatch.context() as patch, pytest.raises(LoadError, match=r"has d\.t already"):
        patch.setattr(Executor, "_apply", create)
        parts(settings, "d.t")
    assert target.query("SHOW COLUMNS FROM d.t")[0][0] == "mine"
    target.execute("RENAME TABLE d.t TO d.mine")
    done = parts(settings, "d.t")
    assert (done.load.units, done.load.resumed) == (0, True), "the rows were there"
    assert target_rows(target)["t"] == source.snapshot()["t"]


@pytest.mark.row("L6")
def test_a_target_of_loads_gets_a_copy_and_its_load_goes_on_as_if_nothing_was(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    at, rows = source.cut(), source.snapshot()
    load.run(settings)
    churn.work(5)
    source.cut()

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Executor, "_tell", die)
        load.run(settings)
    # A plan of the load is open, and a restore of parts has not ended: neither minds the other.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("pumphouse.executor.build.hand_over", die)
        parts(settings, "d.t", to=at, called="d.t_then")
    state = target.query("SELECT * FROM pumphouse.checkpoint")
    assert parts(settings, "d.t", to=at, called="d.t_then").load.units == 0
    assert target.query("SELECT * FROM pumphouse.checkpoint") == state
    load.run(settings)
    assert target_rows(target) == {**source.snapshot(), "t_then": rows["t"]}
    with TargetConnection.open(settings.target) as holder:
        assert holder.value("SELECT GET_LOCK('pumphouse.pumphouse', 0)") == 1
        parts(settings, "d.k", to=at, called="d.k_then")
    assert target_rows(target)["k_then"] == rows["k"]


@pytest.mark.parametrize("kind", ["rename", "exchange", "swap", "recover"])
def test_rows_that_came_from_another_table_come_along(
    source: MadeSource, settings: Settings, target: TargetConnection, kind: str
) -> None:
    source.create_table("t", [ID, TEXT])
    source.create_table("o", [ID, TEXT])
    source.create_table("p", [ID, TEXT], partition=partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1))
    for table in ("t", "o"):
        put(source, table, 1, 2, text=table.encode())
    source.genesis()
    put(source, "p", 3, 12)
    put(source, "t", 4)
    name = "t"
    if kind == "rename":
        source.rename_table("t", name := "v")
    elif kind == "exchange":
        exchange(source, name := "p", "t")
    elif kind == "swap":
        source.rename_table("t", "old")
        source.rename_table("o", "t")
        put(source, "old", 5)
    else:
        held = source.tables["t"]
        source.drop_table("t")
        source.create_table("t", [ID])
        source.recover_table(name := "w", held)
    put(source, name, 7, 27)
    source.cut()
    live(target)
    before = everything(target)
    parts(settings, f"d.{name}", called="d.back")
    assert target_rows(target)["back"] == source.snapshot()[name]
    assert everything(target, "d.back") == before
    for number, where in enumerate((Predicate(low="2", below="8"), Predicate(keys=("1", "27")))):
        parts(settings, f"d.{name}", called=f"d.some{number}", where=where)
        ids = range(2, 8) if number == 0 else (1, 27)
        wanted = {row: count for row, count in source.snapshot()[name].items() if row[0] in ids}
        assert wanted, "there is something to choose"
        assert target_rows(target)[f"some{number}"] == wanted


def test_another_restore_is_refused_while_one_has_not_ended_and_anew_gives_that_up(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("t", "o"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1, 2)
    at = source.genesis()
    put(source, "t", 3)
    source.cut()
    live(target)
    before = everything(target)

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("pumphouse.executor.build.hand_over", die)
        parts(settings, "d.t", to=at, called="d.back")
    other = {"called": "d.other"}
    for dry_run in (True, False):
        with pytest.raises(
            RestoreError, match=r"d\.t as d\.back to .* has not ended, and this one is another"
        ) as refused:
            parts(settings, "d.o", to=at, dry_run=dry_run, **other)
        assert "--anew" in refused.value.hint
    planned = parts(settings, "d.t", to=at, called="d.back", dry_run=True)
    assert [each["state"] for each in planned.load.steps][:3] == ["done before"] * 3
    parts(settings, "d.o", to=at, anew=True, **other)
    assert target_rows(target)["other"] == {(1, b"x"): 1, (2, b"x"): 1}
    assert everything(target, "d.other") == before, "what the first had built is gone with our schema"


def test_another_restore_that_ends_while_one_looks_at_what_it_left_is_none_there(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("t", "o"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1, 2)
    at = source.genesis()
    live(target)
    query, last, looked, planned = TargetConnection.query, 0, 0, 0

    def die(*_: Any) -> None:
        raise Killed

    def ends_behind(connection: TargetConnection, statement: str, args: Any = None) -> list[tuple[Any, ...]]:
        nonlocal looked
        found = query(connection, statement, args)
        if "`checkpoint`" in statement:
            looked += 1
            if looked == last:
                target.execute("DROP DATABASE pumphouse_parts")
        return found

    while looked == last:  # behind the first look, the second, …, and no more
        looked, last = 0, last + 1
        target.execute("DROP TABLE IF EXISTS d.back")
        target.execute("DROP DATABASE IF EXISTS pumphouse_parts")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr("pumphouse.executor.build.leave", die)
            parts(settings, "d.t", to=at, called="d.back")
        with monkeypatch.context() as patch, contextlib.suppress(RestoreError, FenceLost):
            patch.setattr(TargetConnection, "query", ends_behind)
            parts(settings, "d.o", to=at, called="d.other", dry_run=True)
            planned += 1
        assert planned, "one that has ended behind the first look is none"
    assert last > 2


def test_the_same_restore_that_begins_while_one_looks_at_what_is_there_is_not_taken_for_another(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1, 2)
    at = source.genesis()
    live(target)
    query, last, looked = TargetConnection.query, 0, 0

    def die(*_: Any) -> None:
        raise Killed

    def begins_behind(connection: TargetConnection, statement: str, args: Any = None) -> list[tuple[Any, ...]]:
        nonlocal looked
        try:
            return query(connection, statement, args)
        finally:
            if "`checkpoint`" in statement or "`step`" in statement:
                looked += 1
                if looked == last:
                    with monkeypatch.context() as patch, pytest.raises(Killed):
                        patch.setattr(TargetConnection, "query", query)
                        patch.setattr("pumphouse.executor.build.hand_over", die)
                        parts(settings, "d.t", to=at, called="d.back")

    while looked >= last:  # behind the first look, the second, …, and no more
        looked, last = 0, last + 1
        target.execute("DROP TABLE IF EXISTS d.back")
        target.execute("DROP DATABASE IF EXISTS pumphouse_parts")
        with monkeypatch.context() as patch:
            patch.setattr(TargetConnection, "query", begins_behind)
            parts(settings, "d.t", to=at, called="d.back", dry_run=True)
    assert last > 2


@pytest.mark.parametrize("whose", ["a table", "a routine", "a load"])
def test_a_database_of_that_name_that_is_somebody_elses_is_refused_and_stays(
    source: MadeSource, settings: Settings, target: TargetConnection, whose: str
) -> None:
    source.create_table("t", [ID, TEXT])
    at = source.genesis()
    live(target)
    target.execute("CREATE DATABASE pumphouse_parts")
    if whose == "a table":
        target.execute("CREATE TABLE pumphouse_parts.theirs (id INT PRIMARY KEY)")
    elif whose == "a routine":
        target.execute("CREATE FUNCTION pumphouse_parts.one() RETURNS INT DETERMINISTIC RETURN 1")
    else:
        load.run(settings.model_copy(update={"target": own_schema(settings.target)}), equal_at=at)
    before = everything(target)
    for how in ({"dry_run": True}, {"dry_run": False}, {"dry_run": False, "anew": True}):
        with pytest.raises(RestoreError, match=r"pumphouse_parts.* another schema_name"):
            parts(settings, "d.t", to=at, called="d.back", **how)
    assert everything(target) == before


def test_a_copy_that_somebody_dropped_before_the_restore_ended_is_not_said_to_be_there(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1, 2)
    at = source.genesis()
    live(target)

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("pumphouse.executor.build.leave", die)
        parts(settings, "d.t", to=at, called="d.back")
    target.execute("DROP TABLE d.back")
    for dry_run in (True, False):
        with pytest.raises(RestoreError, match=r"has d\.back no more") as refused:
            parts(settings, "d.t", to=at, called="d.back", dry_run=dry_run)
    assert "--anew" in refused.value.hint
    parts(settings, "d.t", to=at, called="d.back", anew=True)
    assert target_rows(target)["back"] == source.snapshot()["t"]


def test_who_works_on_a_new_table_is_waited_for_shortly_and_the_restore_goes_on_behind_them(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("parent", [ID, TEXT])
    source.create_table("t", [ID, TEXT], fk_info=[key("parent")])
    for table in ("parent", "t"):
        put(source, table, 1, 2)
    at = source.genesis()
    real = build.create_foreign_keys
    how: dict[str, Any] = {"to": at, "database": "copy"}
    monkeypatch.setattr(restore_parts, "_LOCK_WAIT_S", 1)
    with TargetConnection.open(settings.target) as other, monkeypatch.context() as patch:

        def while_somebody_reads(*arguments: Any) -> list[str]:
            other.execute("START TRANSACTION")
            other.query("SELECT COUNT(*) FROM copy.t")
            return real(*arguments)

        patch.setattr(build, "create_foreign_keys", while_somebody_reads)
        with pytest.raises(TargetBusy, match=r"a transaction on .* holds a table") as refused:
            parts(settings, "d.%", **how)
        assert "goes on" in refused.value.hint
        other.execute("ROLLBACK")
    parts(settings, "d.%", **how)
    assert target_rows(target, "copy") == source.snapshot()
    (keys,) = target.query(
        "SELECT COUNT(*) FROM information_schema.referential_constraints WHERE constraint_schema = 'copy'"
    )
    assert keys == (1,)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_around_its_statements_it_goes_on_and_applies_no_unit_twice(
    source: MadeSource, settings: Settings, target: TargetConnection, part: int
) -> None:
    churn = Churn(source)
    churn.fill()
    source.genesis()
    churn.work(5)
    source.add_column("t", column(4, "extra", default="7", origin_default="7"))
    churn.work(5)
    source.rename_table("u", "v")
    source.cut()
    how: dict[str, Any] = {"chosen": Chosen(tables=("d.t", "d.v"), database="copy"), "into": "target", "dry_run": False}
    live(target)
    target.execute("CREATE DATABASE seen")
    before = everything(target, "copy", "seen")

    def watched() -> None:
        """A server as it was, on which each unit of a restore is written down."""
        target.execute("DROP DATABASE IF EXISTS copy")
        target.execute("DROP DATABASE IF EXISTS pumphouse_parts")
        target.execute("DROP TABLE IF EXISTS seen.unit")
        target.execute("CREATE TABLE seen.unit (unit VARCHAR(255))")
        with TargetConnection.open(own_schema(settings.target)) as connection:
            connection.create_tables()
        target.execute(
            "CREATE TRIGGER pumphouse_parts.unit_is_seen AFTER INSERT ON pumphouse_parts.applied FOR EACH ROW INSERT"
            " INTO seen.unit VALUES (CONCAT_WS(' ', NEW.plan, NEW.epoch, NEW.phase, NEW.table_id, NEW.bucket))"
        )

    watched()
    whole = KilledLoad(settings, what="parts", **how).end()
    assert not whole.error, whole
    units = sorted(target.query("SELECT unit FROM seen.unit"))
    assert len(set(units)) == len(units) > 4
    step = 1 if part else max(1, whole.moments // 14)
    for moment in range(1, whole.moments, step):
        watched()
        ended = KilledLoad(settings, what="parts", at_moment=moment, run_id="same", **how).end()
        assert ended.killed, (moment, ended)
        again = KilledLoad(settings, what="parts", run_id="same", **how).end()
        if again.error:  # all was done but to say so
            assert "already" in again.message, (moment, ended, again)
            done = ("behind DROP TABLE IF EXISTS `pumphouse_parts`.`checkpoint`", "DROP DATABASE", "parts`.`failed`")
            assert any(each in ended.place for each in done), (moment, ended)
        assert target_rows(target, "copy") == {name: source.snapshot()[name] for name in ("t", "v")}, (moment, ended)
        assert sorted(target.query("SELECT unit FROM seen.unit")) == units, (moment, ended)
        assert everything(target, "copy", "seen", "pumphouse_parts") == before | {
            "databases": everything(target)["databases"]
        }, (moment, ended)


def test_the_command_says_on_a_screen_what_it_does(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path
) -> None:
    for number in range(30):
        source.create_table(f"t{number}", [ID, TEXT])
        put(source, f"t{number}", *range(number + 1))
    source.genesis()
    for number in range(40):
        source.add_column(f"t{number % 30}", column(3 + number // 30, f"c{number}"))
        put(source, f"t{number % 30}", 100 + number)
        source.cut()
    source.create_table("t", [ID])
    end = source.cut()
    path = tmp_path / "pumphouse.toml"
    server = settings.target
    path.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n'
        f'[restore_target]\nhost = "127.0.0.1"\nport = {server.port}\nuser = "root"\n'
        f'password = "{server.password.get_secret_value()}"\n[load]\nengine = "local"\n'
    )

    def command(*more: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(path), "restore", "--to", str(end), *more])

    for more in (("--dry-run",), ("--dry-run", "--table", "d.%", "--into-database", "copy")):
        shown = command(*more)
        assert shown.exit_code == 0, shown.output
        assert len(shown.output.splitlines()) < 70
        assert "DDLs      41: 40 ADD_COLUMN, 1 CREATE_TABLE" in shown.output
        assert "d.t29  30 rows" in shown.output
        assert "and 10 more" in shown.output
        assert "ALTER TABLE" not in shown.output
        detailed = command(*more, "--verbose").output
        assert detailed.count("ALTER TABLE") == 40
        assert detailed.count(" segments, ") >= 40
        told = json.loads(command(*more, "--json").stdout)
        assert len(told["windows"]) == told["plan"]["windows"] >= 40
        assert len(told["plan"]["sizes"]) == 30
    assert "drops     d; it holds nothing that is dropped" in command("--dry-run").output
    planned = command("--dry-run", "--table", "d.t1", "--as", "d.back").output
    assert "  d.t1 as d.back" in planned
    assert "drops     nothing" in planned
    assert "windows   2:" in planned
    for wrong in (("--as", "d.x"), ("--table", "d.t1", "--replace", "x"), ("--into", "source")):
        assert isinstance(command(*wrong).exception, UsageError)
    target.execute("CREATE DATABASE d")
    target.execute("CREATE TABLE d.t1 (mine INT)")
    done = command("--table", "d.t1", "--as", "d.back")
    assert done.exit_code == 0, done.output
    assert f"d.t1 as d.back restored as of {end}" in done.output
    assert {name: sum(rows.values()) for name, rows in target_rows(target).items()} == {"t1": 0, "back": 4}
    assert isinstance(command("--table", "d.t1").exception, LoadError)
