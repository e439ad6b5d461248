"""`load.rules` on a real MariaDB: a DDL skipped or replaced, a table left out or parked and brought back."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.cli import cli
from pumphouse.errors import (
    BinlogError,
    ConfigError,
    DdlRefused,
    DuplicateKey,
    LoadError,
    RowRejected,
    UnknownDdl,
    UnknownTable,
    UsageError,
)
from pumphouse.executor import build, executor
from pumphouse.executor.executor import Executor
from pumphouse.loader import rules as loader_rules
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType, TableInfo
from pumphouse.runs import load
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import Settings
from pumphouse.status.look import look
from tests.support.killed import Killed
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index, target_rows

LOAD = {"engine": "local", "buckets": 3}
ID = column(1, "id", flag=3)
TEXT = column(2, "a", MysqlType.VARCHAR)


def in_mode(settings: Settings, mode: str) -> Settings:
    return settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})


def ruled(settings: Settings, *rules: dict[str, Any]) -> Settings:
    loads = settings.load.model_dump() | {"rules": [{"why": "a test", **rule} for rule in rules]}
    return Settings.model_validate({**dict(settings), "load": loads})


def put(source: MadeSource, table: str, *ids: int, text: bytes = b"x") -> None:
    with source.txn() as t:
        for each in ids:
            t.insert(table, id=each, a=text)


def history(target: TargetConnection) -> list[tuple[Any, ...]]:
    rows = target.query(
        "SELECT subject, rule, who, why, ended_at IS NULL FROM pumphouse.rule ORDER BY used_at, subject"
    )
    return [(subject, json.loads(rule)["do"], bool(who), why, bool(live)) for subject, rule, who, why, live in rows]


def without(snapshot: dict[str, Any], *tables: str) -> dict[str, Any]:
    return {name: rows for name, rows in snapshot.items() if name not in tables}


def killing(monkeypatch: pytest.MonkeyPatch, when: Callable[[DdlEvent], bool]) -> None:
    """Die before a DDL."""
    run = DdlExecutor.execute

    def execute(self: DdlExecutor, event: DdlEvent, *more: Any) -> Any:
        if when(event):
            raise Killed
        return run(self, event, *more)

    monkeypatch.setattr(DdlExecutor, "execute", execute)


# -- a DDL


@pytest.mark.row("L6", "L7")
@pytest.mark.parametrize("by", ["job", "commit ts"])
@pytest.mark.parametrize("do", ["skip", "replace"])
def test_a_refused_ddl_names_the_rule_that_goes_past_it_also_in_a_plan_that_was_begun(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, do: str, by: str
) -> None:
    for table in ("t", "u"):
        source.create_table(table, [ID, TEXT])
    source.genesis()
    load.run(settings)
    put(source, "t", 1)
    source.add_column("u", column(3, "b"))
    put(source, "u", 1)
    # Somebody was faster on the target: what the DDL does is there already, and so is one of its two statements.
    source.add_column("t", column(3, "c", default="5", origin_default="7"))
    refused = source.jobs[-1]
    put(source, "t", 2)
    source.drop_column("u", "b")
    put(source, "u", 2)
    end = source.cut()
    kind = "INT NULL" if do == "replace" else "INT NULL DEFAULT 7"
    target.execute(f"ALTER TABLE d.t ADD COLUMN c {kind}")
    for _ in range(2):
        with pytest.raises(DdlRefused) as caught:
            load.run(settings)
        assert f'[[load.rules]]\ndo = "skip"\nddl = {refused.job.id}\nwhy = "…"\n' in caught.value.hint
    assert target.value("SELECT COUNT(*) FROM d.t") == 1
    rule: dict[str, Any] = {"do": do, "ddl": refused.job.id if by == "job" else int(refused.commit_ts)}
    if do == "replace":
        rule["sql"] = ["ALTER TABLE t MODIFY c INT NULL DEFAULT 5", "UPDATE t SET c = 7"]
    told = ruled(settings, rule)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killing(patch, lambda event: event.job.id > refused.job.id)
        load.run(told)
    # What was passed stays passed, also without the rule.
    report = load.run(settings)
    assert report.to_ts == end
    assert target_rows(target) == source.snapshot()
    assert history(target) == [(f"ddl {refused.commit_ts}", do, True, "a test", True)]
    assert load.run(settings).plans == 0
    # A restore knows the rule from the settings alone; where nothing is in the way it needs none.
    restored(settings, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()
    plan = restored(told, to=end, dry_run=True).plan
    assert list(plan.left_out) == [f"DDL job {refused.job.id}"]


@pytest.mark.row("L7")
def test_a_rule_that_is_removed_before_anything_of_its_plan_is_applied_counts_no_more(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    load.run(settings)
    source.add_column("t", column(3, "b"))
    put(source, "t", 2)
    source.cut()
    with pytest.raises(RowRejected, match="Unknown column"):
        load.run(ruled(settings, {"do": "skip", "ddl": source.jobs[-1].job.id}))
    assert [live for *_, live in history(target)] == [True]
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    assert [live for *_, live in history(target)] == [False]


@pytest.mark.row("L7")
def test_a_resync_goes_by_the_rules_of_the_settings_and_not_by_those_that_an_open_plan_remembers(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("t", "u"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1)
    source.genesis()
    load.run(settings)
    put(source, "u", 2)
    source.add_column("u", column(3, "b"))  # u's rows before it are applied
    source.add_column("t", column(3, "b"))
    put(source, "t", 2)
    source.cut()
    with pytest.raises(RowRejected, match="Unknown column"):
        load.run(ruled(settings, {"do": "skip", "ddl": source.jobs[-1].job.id}))
    load.run(settings, resync="d.t")
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
@pytest.mark.parametrize("said", ["Shop", "shop"])
def test_what_a_rule_executes_runs_in_the_database_of_its_own_ddl(
    source: MadeSource, settings: Settings, target: TargetConnection, said: str
) -> None:
    def commented() -> dict[str, Any]:
        source.alter("orders", 17, {**source.tables["orders"].info.raw, "comment": "more"})
        return {"do": "replace", "ddl": source.jobs[-1].job.id, "sql": ["ALTER TABLE orders ADD COLUMN more INT"]}

    def in_shop() -> None:
        source.rewrite_job(lambda raw: raw.update(schema_id=9, schema_name=said))

    source.create_table("orders", [ID])
    source.genesis()
    here = source.tables.pop("orders")
    source.create_database("Shop")
    source.create_table("orders", [ID])
    in_shop()
    there, source.tables["orders"] = source.tables["orders"], here
    rules = [commented()]
    source.tables["orders"] = there
    rules.append(commented())
    in_shop()
    source.create_database("Later")
    source.rewrite_job(
        lambda raw: raw.update(schema_id=10, schema_name="later") or raw["binlog"]["DBInfo"].update(id=10)
    )
    rules.append({"do": "replace", "ddl": source.jobs[-1].job.id, "sql": ["CREATE TABLE stray (id INT)"]})
    source.cut()
    # The database of the last one is not there, and it has no other.
    with pytest.raises(DdlRefused, match="information_schema"):
        load.run(ruled(settings, *rules))
    columns = target.query(
        "SELECT table_schema, table_name, column_name FROM information_schema.columns"
        " WHERE table_schema IN ('d', 'Shop') ORDER BY BINARY table_schema DESC, 2, 3"
    )
    assert columns == [(db, "orders", each) for db in ("d", "Shop") for each in ("id", "more")]


@pytest.mark.row("L7", "L4")
@pytest.mark.parametrize("mode", ["merge", "replay"])
@pytest.mark.parametrize("do", ["skip", "replace"])
def test_a_rule_for_a_drop_of_a_column_finds_the_values_of_the_rows_before_it(
    source: MadeSource, settings: Settings, target: TargetConnection, do: str, mode: str
) -> None:
    settings = settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})
    source.create_table("t", [ID, column(2, "a"), column(3, "b")])
    source.create_table("k", [ID, TEXT])
    source.genesis()
    load.run(settings)
    put(source, "k", 1)
    source.add_column("k", column(3, "b"))
    with source.txn() as t:
        t.insert("t", id=1, a=0, b=11)
        t.insert("t", id=2, a=0, b=22)
    source.drop_column("t", "b")
    job = source.jobs[-1].job.id
    with source.txn() as t:
        t.insert("t", id=3, a=33)
    source.cut()
    # A column of somebody else's is in the way: the rule comes when the plan has begun.
    target.execute("ALTER TABLE d.t ADD COLUMN g INT AS (b)")
    with pytest.raises(DdlRefused):
        load.run(settings)
    rule: dict[str, Any] = {"do": do, "ddl": job}
    if do == "replace":
        rule["sql"] = ["UPDATE t SET a = b", *(f"ALTER TABLE t DROP COLUMN {name}" for name in "gb")]
    assert load.run(ruled(settings, rule)).resumed
    if do == "replace":
        assert target.query("SELECT * FROM d.t ORDER BY id") == [(1, 11), (2, 22), (3, 33)]
    else:
        assert target.query("SELECT id, a, b FROM d.t ORDER BY id") == [(1, 0, 11), (2, 0, 22), (3, 33, None)]


@pytest.mark.row("L7", "L6")
def test_rows_come_once_where_a_rule_for_a_drop_of_a_column_goes_in_a_plan_that_was_begun(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [column(1, "a"), column(2, "b")], pk_is_handle=False)
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", a=1, b=11)
    source.drop_column("t", "b")
    source.cut()
    monkeypatch.setattr(Executor, "_run_ddl", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        load.run(ruled(settings, {"do": "skip", "ddl": source.jobs[-1].job.id}))
    monkeypatch.undo()
    assert load.run(settings).resumed
    assert target.query("SELECT * FROM d.t") == [(1,)]


@pytest.mark.row("L7", "S2")
def test_a_rule_goes_past_a_ddl_that_nobody_knows(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    put(source, "t", 1)
    source.alter("t", 211, copy.deepcopy(source.tables["t"].info.raw))
    put(source, "t", 2)
    end = source.cut()
    with pytest.raises(UnknownDdl) as caught:
        load.run(settings)
    assert f"ddl = {source.jobs[-1].job.id}" in caught.value.hint
    told = ruled(settings, {"do": "skip", "ddl": source.jobs[-1].job.id})
    report = load.run(told)
    assert [note for note in report.notes if "was skipped: a test" in note]
    assert target_rows(target) == source.snapshot()
    restored(told, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()
    # Or without its table, by what is left out.
    done = restored(ruled(settings, {"do": "park", "table": "d.t"}), to=end, dry_run=False)
    assert list(done.load.parked) == ["d.t"]


@pytest.mark.row("L7")
def test_rows_of_a_table_that_no_ddl_names_are_passed_by_its_id(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    with source.txn() as t:
        t.insert("t", id=1)
        t.builder.insert(4711, b"\x08\x02\x00")
    source.cut()
    with pytest.raises(UnknownTable) as caught:
        load.run(settings)
    assert 'table = "4711"' in caught.value.hint
    told = ruled(settings, {"do": "skip", "table": "4711"})
    assert load.run(told).skipped.keys() == {"4711"}
    assert target_rows(target) == source.snapshot()
    load.run(told, resync="d.t")
    assert target_rows(target) == source.snapshot()
    with pytest.raises(UsageError, match="4711 is no table"):
        load.run(settings, resync="4711")


@pytest.mark.row("L7")
def test_a_table_that_was_passed_by_its_id_comes_back_whole(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    load.run(settings)
    source.create_table("u", [ID, TEXT])
    table_id = source.tables["u"].info.id
    put(source, "u", 1, 2)
    source.cut()
    told = ruled(settings, {"do": "skip", "table": str(table_id)})
    load.run(told)
    assert target_rows(target)["u"] == {}
    with pytest.raises(UsageError, match=r"load\.rules still leaves d\.u out"):
        load.run(told, resync="d.u")
    assert load.run(settings, resync="d.u").skipped == {}
    assert target_rows(target) == source.snapshot()
    put(source, "u", 3)
    source.cut()
    assert load.run(settings).skipped == {}
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_a_rule_of_a_transaction_passes_no_ddl_of_that_commit_ts(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    load.run(settings)
    source.add_column("t", column(3, "b"))
    at = int(source.jobs[-1].commit_ts)
    put(source, "t", 1)
    end = source.cut()
    told = ruled(settings, {"do": "skip", "txn": at})
    load.run(told)
    assert target_rows(target) == source.snapshot()
    restored(told, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_a_resync_that_fails_says_that_the_table_waits_for_another(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    load.run(settings)
    with monkeypatch.context() as patch, pytest.raises(DdlRefused) as caught:
        patch.setattr(build, "create_object", lambda *_, **__: "CREATE TABLE nowhere.t (id INT)")
        load.run(settings, resync="d.t")
    assert "d.t is left out until `pumphouse load --resync d.t` has ended" in caught.value.hint
    load.run(settings, resync="d.t")
    assert target_rows(target) == source.snapshot()


# -- a table


@pytest.mark.row("L7", "R1")
def test_a_skipped_table_is_left_out_by_loads_and_restores_until_it_is_brought_back(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("t", "Audit"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1, 2)
    source.genesis()
    told = ruled(settings, {"do": "skip", "table": "d.AUDIT"})
    put(source, "Audit", 3)
    source.add_column("Audit", column(3, "b"))
    put(source, "t", 3)
    source.cut()
    report = load.run(told)
    assert (list(report.skipped), report.parked) == (["d.audit"], {})
    assert target_rows(target) == without(source.snapshot(), "Audit")
    # The rule is gone, the table does not go on as if nothing had been.
    source.drop_column("Audit", "b")
    put(source, "Audit", 4)
    end = source.cut()
    assert list(load.run(settings).skipped) == ["d.audit"]
    assert target_rows(target) == without(source.snapshot(), "Audit")
    with pytest.raises(UsageError, match=r"load\.rules still leaves d\.Audit out"):
        load.run(told, resync="d.Audit")
    with pytest.raises(UsageError, match=r"has no table d\.nothing"):
        load.run(settings, resync="d.nothing")
    assert load.run(settings, resync="d.Audit").skipped == {}
    assert target_rows(target) == source.snapshot()
    put(source, "Audit", 5)
    source.cut()
    assert load.run(settings).skipped == {}
    assert target_rows(target) == source.snapshot()
    restored(told, to=end, dry_run=False)
    assert "Audit" not in target_rows(target)
    restored(settings, to=end, dry_run=False)
    assert "Audit" in target_rows(target)


@pytest.mark.row("L7")
@pytest.mark.parametrize("do", ["skip", "park"])
def test_a_rule_for_a_table_that_nobody_has_is_said_and_waits_for_it(
    source: MadeSource, settings: Settings, target: TargetConnection, do: str
) -> None:
    for table in ("t", "u"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1)
    source.genesis()
    load.run(settings)
    put(source, "t", 2)
    source.cut()
    told = ruled(
        settings,
        {"do": do, "table": "d.late"},
        {"do": do, "table": "d.u"},  # nothing changes in u
        {"do": do, "table": "d.[t]"},  # no pattern
    )
    report = load.run(told)
    assert [each for each in report.notes if "is it misspelt?" in each] == [
        f"load.rules names {name}: the target has no such table, and none changes in this load; is it misspelt?"
        for name in ("d.late", "d.[t]")
    ]
    assert set(report.skipped) | set(report.parked) == {"d.u"}
    assert target_rows(target) == source.snapshot()
    source.create_table("late", [ID, TEXT])
    put(source, "late", 1)
    source.cut()
    report = load.run(told)
    assert set(report.skipped) | set(report.parked) == {"d.u", "d.late"}
    assert target_rows(target) == without(source.snapshot(), "late")
    # The rules go, the tables stay as they are: a skipped one is told of, a parked one is loud by itself.
    notes = [each for each in load.run(settings).notes if "no rule says so any more" in each]
    assert [each.partition(" ")[0] for each in notes] == (["d.late", "d.u"] if do == "skip" else [])
    for table in ("late", "u"):
        load.run(settings, resync=f"d.{table}")
    assert load.run(settings).notes == []
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_routes_and_rules_of_ddls_that_fit_nothing_are_said(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    put(source, "t", 1)
    end = source.cut()
    routes = [
        {"do": "route", "database": "dd", "to": "x"},
        {"do": "route", "table": "d.tt", "to": "d.other"},
        {"do": "route", "table": "d.T*", "to": "d.new_*"},
    ]
    told = ruled(settings, *routes, {"do": "skip", "ddl": 4711})
    wanted = [
        "load.rules routes dd: the source has no such database; is it misspelt?",
        (
            "load.rules routes d.tt: the target has no table d.other, and none of that name changes in this load; "
            "is it misspelt?"
        ),
        "load.rules names the DDL 4711: this load has none of that job id or commit ts; is it misspelt?",
    ]
    assert [each for each in load.run(told).notes if "misspelt" in each] == wanted
    assert [each for each in load.run(told).notes if "misspelt" in each] == wanted, (
        "where t is, it is known by its place"
    )
    done = restored(told, to=end, dry_run=False).load
    assert done is not None
    assert [each for each in done.notes if "misspelt" in each] == wanted


@pytest.mark.row("L7")
def test_a_pattern_leaves_tables_out_but_for_some_and_a_resync_takes_one_out_of_it(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("t", "tmp_a", "Tmp_keep"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1)
    source.genesis()
    told = ruled(settings, {"do": "skip", "table": "*.TMP_*", "but": ["d.tmp_keep"]})
    source.create_table("tmp_b", [ID, TEXT])
    for table in ("t", "tmp_a", "tmp_b", "Tmp_keep"):
        put(source, table, 2)
    source.cut()
    report = load.run(told)
    assert list(report.skipped) == ["*.tmp_*"]
    assert target_rows(target) == without(source.snapshot(), "tmp_a", "tmp_b")
    # Another exception is none until its table is brought back.
    wider = ruled(settings, {"do": "skip", "table": "*.tmp_*", "but": ["d.tmp_keep", "d.tmp_a"]})
    put(source, "tmp_a", 3)
    source.cut()
    load.run(wider)
    assert "tmp_a" not in target_rows(target)
    with pytest.raises(UsageError, match="or name it in the rule's `but`"):
        load.run(told, resync="d.tmp_a")
    load.run(wider, resync="d.tmp_a")
    put(source, "tmp_a", 4)
    put(source, "tmp_b", 4)
    end = source.cut()
    load.run(settings)
    assert target_rows(target) == without(source.snapshot(), "tmp_b")
    # One exception less: from then on it is left out, too.
    before = target_rows(target)["Tmp_keep"]
    put(source, "Tmp_keep", 5)
    source.cut()
    load.run(ruled(settings, {"do": "skip", "table": "*.tmp_*", "but": ["d.tmp_a"]}))
    assert target_rows(target)["Tmp_keep"] == before
    restored(told, to=end, dry_run=False)
    assert {"tmp_a", "tmp_b"}.isdisjoint(target_rows(target))


@pytest.mark.row("L7")
def test_the_rows_of_a_skipped_transaction_are_left_out_of_loads_and_restores(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    load.run(settings)
    put(source, "t", 1)
    kept = source.snapshot()
    with source.txn() as t:
        t.insert("t", id=2, a=b"by mistake")
    bad = source.events[-1].commit_ts
    end = source.cut()
    told = ruled(settings, {"do": "skip", "txn": bad})
    report = load.run(told)
    assert any("are left out: a test" in note for note in report.notes)
    assert target_rows(target) == kept
    assert history(target) == [(f"txn {bad}", "skip", True, "a test", True)]
    restored(told, to=end, dry_run=False)
    assert target_rows(target) == kept
    plan = restored(told, to=end, dry_run=True).plan
    assert [(what.split(" at ")[0], why) for what, why in plan.left_out.items()] == [
        ("rows of the transaction", "skip: a test")
    ]
    restored(settings, to=end, dry_run=False)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7", "L4")
def test_rows_of_a_skipped_deletion_stay_until_the_same_plan_brings_others_under_their_keys(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    put(source, "t", 3, 4, 5)
    source.cut()
    load.run(settings)
    put(source, "t", 1, 2)
    with source.txn() as t:
        for each in range(1, 6):
            t.delete("t", each)
    told = ruled(settings, {"do": "skip", "txn": source.events[-1].commit_ts})
    put(source, "t", 1, 2, 3, 4, text=b"again")
    with source.txn() as t:
        t.delete("t", 2)
        t.delete("t", 4)
    end = source.cut()
    load.run(told)
    wanted = {1: "again", 3: "again", 5: "x"}
    assert dict(target.query("SELECT id, a FROM d.t")) == wanted
    restored(told, to=end, dry_run=False)
    assert dict(target.query("SELECT id, a FROM d.t")) == wanted


@pytest.mark.row("L4", "L7")
@pytest.mark.parametrize("mode", ["merge", "replay"])
@pytest.mark.parametrize("ddl", [False, True])
def test_a_row_whose_deletion_is_left_out_goes_with_one_that_comes_and_goes_behind_a_ddl(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str, *, ddl: bool
) -> None:
    settings = in_mode(settings, mode)
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.delete("t", 1)
    left_out = source.events[-1].commit_ts
    if ddl:
        source.add_column("t", column(3, "c"))
    put(source, "t", 1)
    with source.txn() as t:
        t.delete("t", 1)
    source.cut()
    load.run(ruled(settings, {"do": "skip", "txn": left_out}))
    assert target.query("SELECT * FROM d.t") == []


@pytest.mark.row("L7", "S3")
def test_rows_of_generated_columns_alone_stop_a_load_and_can_be_parked(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("k", [ID, TEXT])
    generated = column(3, "g", generated_expr_string="1 + 1")
    source.create_table("t", [column(1, "id"), TEXT, generated], pk_is_handle=False)
    put(source, "t", 1, 2)
    put(source, "k", 1)
    source.genesis()
    load.run(settings)
    with source.txn() as t:
        t.insert("t", id=3, a=b"x")
    source.drop_column("t", "id")
    source.drop_column("t", "a")
    put(source, "k", 2)
    source.cut()
    with pytest.raises(LoadError, match=r"d\.t has rows and no column but generated ones") as caught:
        load.run(settings)
    assert 'do = "park"\ntable = "d.t"' in caught.value.hint
    assert list(load.run(ruled(settings, {"do": "park", "table": "d.t"})).parked) == ["d.t"]
    assert target_rows(target)["k"] == source.snapshot()["k"]


@pytest.mark.row("L7", "S2")
@pytest.mark.parametrize("name", ["t", "other"])
def test_a_table_that_comes_back_after_its_drop_was_loaded_has_a_way_on(
    source: MadeSource, settings: Settings, target: TargetConnection, name: str
) -> None:
    source.create_table("t", [ID, TEXT])
    source.create_table("k", [ID, TEXT])
    put(source, "t", 1, 2)
    source.genesis()
    put(source, "t", 3)
    dropped = source.tables["t"]
    source.drop_table("t")
    put(source, "k", 1)
    source.cut()
    load.run(settings)
    source.recover_table(name, dropped)
    put(source, name, 4)
    put(source, "k", 2)
    source.cut()
    with pytest.raises(LoadError, match="no longer has") as caught:
        load.run(settings)
    assert f'do = "park"\ntable = "d.{name}"' in caught.value.hint
    assert "then `pumphouse archive dump`, `pumphouse load`, take the rule away" in caught.value.hint
    assert f"`pumphouse load --resync d.{name}`" in caught.value.hint
    assert list(load.run(ruled(settings, {"do": "park", "table": f"d.{name}"})).parked) == [f"d.{name}"]
    assert target_rows(target)["k"] == source.snapshot()["k"]
    if name == "t":
        load.run(settings, resync="d.t")
        assert target_rows(target) == source.snapshot()
        assert len(source.snapshot()["t"]) == 4
    else:
        # By its name alone the dump of before does not lead there; what is refused has begun nothing.
        with pytest.raises(LoadError, match="another name") as caught:
            load.run(settings, resync="d.other")
        assert "pumphouse archive dump" in caught.value.hint
    put(source, name, 5)
    put(source, "k", 3)
    source.cut()
    load.run(settings)
    left = [] if name == "t" else [name]
    assert without(target_rows(target), *left) == without(source.snapshot(), *left)


@pytest.mark.row("L7", "O3")
def test_a_table_whose_rows_are_refused_is_parked_and_loud_and_comes_back(
    source: MadeSource, settings: Settings, target: TargetConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    source.create_table("k", [column(1, "id"), TEXT], pk_is_handle=False)
    put(source, "t", 1, 2)
    put(source, "k", 1, 1)
    source.genesis()
    load.run(settings)
    target.execute("ALTER TABLE d.t MODIFY a VARCHAR(2)")
    put(source, "t", 3, text=b"long")
    put(source, "k", 3)
    source.add_column("t", column(3, "b", default="4", origin_default="4"))
    source.add_column("k", column(3, "b"))
    put(source, "t", 4)
    put(source, "k", 4)
    source.cut()
    with pytest.raises(BinlogError) as caught:
        load.run(settings)
    assert '[[load.rules]]\ndo = "park"\ntable = "d.t"\nwhy = "…"\n' in caught.value.hint
    told = ruled(settings, {"do": "park", "table": "d.t", "by": "Ada", "why": "too narrow"})
    report = load.run(told)
    assert "by Ada: too narrow" in report.parked["d.t"]
    assert target_rows(target)["k"] == source.snapshot()["k"]
    assert history(target) == [("table d.t", "park", True, "too narrow", True)]
    put(source, "k", 5)
    source.truncate("t")
    put(source, "t", 7, text=b"long again")
    source.cut()

    # Loud, as long as it is so: the report, the exit code, the status.
    file = tmp_path / "pumphouse.toml"
    file.write_text(
        f'[cluster]\nurl = "{settings.cluster.url}"\n[archive]\nroot = "{settings.archive.root}"\n'
        f'[load]\nengine = "local"\n[target]\nhost = "{settings.target.host}"\nport = {settings.target.port}\n'
        f'user = "{settings.target.user}"\npassword = "{settings.target.password.get_secret_value()}"\n'
        f'unix_socket = "{settings.target.unix_socket}"\n'
    )
    for _ in range(2):
        ran = CliRunner().invoke(cli, ["--config", str(file), "load"])
        assert (ran.exit_code, "d.t is parked since" in ran.output) == (3, True), ran.output
    (seen,) = [
        each for each in look(settings, within_s=20).findings if "parked" in each.what and "[target]" in each.who
    ]
    assert "--resync d.t" in seen.next
    assert target_rows(target)["k"] == source.snapshot()["k"]

    # Killed anywhere, also with a load between, it is parked or it is back.
    rng = random.Random(5)
    left = [0]
    execute = TargetConnection.execute

    def deadly(self: TargetConnection, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            self._connection._force_close()  # type: ignore[attr-defined]
            raise Killed
        return execute(self, *args)

    monkeypatch.setattr(TargetConnection, "execute", deadly)
    for attempt in range(40):
        left[0] = rng.randrange(15, 60 + 10 * attempt)
        try:
            load.run(settings, resync="d.t", run_id="same")
            break
        except Killed:
            left[0] = 0
            assert load.run(settings, run_id="same").parked.keys() == {"d.t"}
    else:
        pytest.fail("it never came back")
    left[0] = 0
    assert attempt > 1
    assert target_rows(target) == source.snapshot()
    assert history(target) == [("table d.t", "park", True, "too narrow", False)]
    put(source, "t", 8)
    source.cut()
    ran = CliRunner().invoke(cli, ["--config", str(file), "load"])
    assert ran.exit_code == 0, ran.output
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L4", "L7")
@pytest.mark.parametrize("table", ["u", "t"])
def test_a_transaction_that_is_left_out_takes_the_check_from_no_other_key(
    source: MadeSource, settings: Settings, target: TargetConnection, table: str
) -> None:
    source.create_table("u", [ID, column(2, "b")])
    going = [index(1, "ka", ("a", 0), unique=True)]
    source.create_table("t", [column(1, "a", flag=1), column(2, "b")], pk_is_handle=False, index_info=going)
    source.genesis()
    load.run(settings)
    for b in (1, 2):  # the key that tells rows apart is going, its DROP has not ended
        with source.txn() as t:
            t.insert("t", a=1, b=b)
    key = "id" if table == "u" else "a"
    with source.txn() as t:
        stay = [t.insert(table, **{key: id_}, b=0) for id_ in range(10, 40)]
    with source.txn() as t:
        t.insert(table, **{key: 9}, b=9)
        for each in stay:
            t.delete(table, each)
    left_out = source.events[-1].commit_ts
    source.cut()
    told = ruled(settings, {"do": "skip", "txn": left_out})
    for _ in range(2):
        with pytest.raises(DuplicateKey, match=r"1 keys \(a\) of d\.t were given to more than one row"):
            load.run(told)
    raw = copy.deepcopy(source.tables["t"].info.raw)
    raw["index_info"] = None
    source.alter("t", 8, raw)
    source.cut()
    load.run(told)
    wanted = source.snapshot()
    wanted[table] = wanted[table] - Counter([(9, 9)]) + Counter((id_, 0) for id_ in range(10, 40))
    assert target_rows(target) == wanted


@pytest.mark.row("L7")
def test_a_transaction_that_is_left_out_may_be_of_a_table_that_cannot_be_loaded(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    source.genesis()
    load.run(settings)
    source.create_table("lost", [ID, TEXT])
    put(source, "lost", 1)
    left_out = source.events[-1].commit_ts
    source.events.pop(-2)  # no log has its CREATE TABLE
    source.jobs.pop()
    del source.tables["lost"]
    put(source, "t", 1)
    source.cut()
    with pytest.raises(UnknownTable):
        load.run(settings)
    load.run(ruled(settings, {"do": "skip", "txn": left_out}))
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_ddl_that_was_skipped_stays_so_when_the_rule_is_gone_within_its_plan(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    settings = in_mode(settings, mode)
    for table in ("t", "u"):
        source.create_table(table, [ID, TEXT])
    source.genesis()
    load.run(settings)
    put(source, "t", 1)
    source.truncate("t")
    skipped = source.jobs[-1].job.id
    put(source, "t", 2)
    source.add_column("u", column(3, "c"))
    last = source.jobs[-1].job.id
    put(source, "u", 3)
    source.cut()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killing(patch, lambda event: event.job.id >= last)
        load.run(ruled(settings, {"do": "skip", "ddl": skipped}))
    load.run(settings)
    assert target.query("SELECT id FROM d.t ORDER BY id") == [(1,), (2,)]


@pytest.mark.row("L7")
def test_a_replay_that_was_killed_as_it_began_writes_down_what_it_leaves_out(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = in_mode(settings, "replay")
    source.create_table("t", [ID, TEXT])
    source.genesis()
    load.run(settings)
    put(source, "t", 1)
    left_out = source.events[-1].commit_ts
    source.cut()
    told = ruled(settings, {"do": "skip", "txn": left_out})

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(executor, "record", killed)
        load.run(told)
    report = load.run(told)
    assert [subject for subject, *_ in history(target)] == [f"txn {left_out}"]
    assert any("are left out: a test" in note for note in report.notes)
    assert not target_rows(target)["t"]


@pytest.mark.row("L7")
def test_a_rule_for_a_transaction_of_a_replay_that_has_begun_is_told_to_be_too_late(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    settings = in_mode(settings, "replay")
    source.create_table("t", [ID, column(2, "a", MysqlType.VARCHAR)])
    source.create_table("u", [ID, TEXT])
    source.genesis()
    load.run(settings)
    put(source, "u", 1)
    with source.txn() as t:
        t.insert("t", id=1, a=b"x\xff")
        t.insert("u", id=2, a=b"x")
    bad = source.events[-1].commit_ts
    source.cut()
    with pytest.raises(RowRejected):
        load.run(settings)
    rule = {"do": "skip", "txn": bad}

    def stops(*rules: dict[str, Any]) -> None:
        with capture_logs() as logged, pytest.raises(RowRejected):
            load.run(ruled(settings, *rules))
        assert [each["commit_ts"] for each in logged if each["event"] == "txn_rule_too_late"] == [bad]

    stops(rule)
    put(source, "u", 9)
    behind = {"do": "skip", "txn": source.events[-1].commit_ts}
    source.cut()
    stops(rule, behind)
    assert [subject for subject, *_ in history(target)] == [f"txn {behind['txn']}"]
    load.run(ruled(settings, behind, {"do": "park", "table": "d.t"}))
    assert target_rows(target)["u"] == source.snapshot()["u"] - Counter([(9, b"x")])


@pytest.mark.row("L7")
@pytest.mark.parametrize("killed_at", ["in time", "before it was forgotten", "before its plan was given up"])
def test_a_rule_that_is_gone_is_obeyed_by_no_run_behind_the_plan_that_was_given_up(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    load.run(settings)
    source.add_column("t", column(3, "b", origin_default="7", default="7"))
    job = source.jobs[-1].job.id
    source.cut()

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(DdlExecutor, "execute", killed)
        load.run(ruled(settings, {"do": "skip", "ddl": job}))
    if killed_at != "in time":
        with monkeypatch.context() as patch, pytest.raises(Killed):
            where, what = (loader_rules, "end_rules") if "forgotten" in killed_at else (Executor, "_discard")
            patch.setattr(where, what, killed)
            load.run(settings)
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_a_ddl_between_a_table_that_is_left_out_and_one_that_is_not_stops_the_load_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("t", "u"):
        source.create_table(table, [ID, TEXT])
    source.genesis()
    told = ruled(settings, {"do": "park", "table": "d.t"})
    put(source, "u", 1)
    then = source.snapshot()
    source.rename_table("t", "v")
    put(source, "u", 2)
    source.cut()
    with pytest.raises(UnknownDdl, match=r"of which a rule leaves out some, not all: d\.t, d\.v") as stopped:
        load.run(told)
    assert stopped.value.hint.startswith("leave all of its tables out, or none; to go past it, add to pumphouse.toml")
    assert target_rows(target) == without(then, "t")
    both = ruled(settings, {"do": "park", "table": "d.t"}, {"do": "park", "table": "d.v"})
    load.run(both)
    assert target_rows(target) == without(source.snapshot(), "v")
    # Its rows came from a table of another name, which the target may have use for: only a dump tells them apart.
    with pytest.raises(LoadError, match=r"d\.v cannot be brought back by itself") as caught:
        load.run(settings, resync="d.v")
    assert "pumphouse archive dump" in caught.value.hint


# -- plans that were begun


def two_ddls(source: MadeSource) -> tuple[int, int]:
    """Rows of t and u, a DDL on t, rows, a DDL on u, rows; the DDLs' commit ts."""
    for table in ("t", "u"):
        source.create_table(table, [ID, TEXT])
    source.genesis()
    put(source, "t", 1)
    put(source, "u", 1)
    source.add_column("t", column(3, "b"))
    put(source, "t", 2)
    put(source, "u", 2)
    source.add_column("u", column(3, "b"))
    put(source, "t", 3)
    put(source, "u", 3)
    source.cut()
    return int(source.jobs[-2].commit_ts), int(source.jobs[-1].commit_ts)


def knowing_not(monkeypatch: pytest.MonkeyPatch, commit_ts: int) -> None:
    """A schema history that lacks a DDL as yet."""

    def read(*args: Any, **kwargs: Any) -> ArchiveView:
        view = read_view(*args, **kwargs)
        known = (job for job in view.timeline.jobs if job.commit_ts != commit_ts)
        return replace(view, timeline=Timeline.empty().fold(known))

    monkeypatch.setattr(load, "read_view", read)


@pytest.mark.row("L6", "O7")
def test_a_plan_that_was_begun_goes_on_by_a_boundary_that_it_lacked(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("w", [ID, TEXT])
    first, _ = two_ddls(source)
    source.add_column("w", column(3, "b"))
    source.cut()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        knowing_not(patch, int(source.jobs[-1].commit_ts))
        killing(patch, lambda event: event.commit_ts == first)
        load.run(settings)
    assert target.value("SELECT COUNT(*) FROM pumphouse.applied WHERE epoch = 0") > 0
    load.run(settings)
    put(source, "w", 1)
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L6", "L7", "O7")
def test_a_plan_that_went_beyond_a_boundary_goes_on_without_the_table_and_brings_it_back(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_ddls(source)
    source.create_table("w", [ID, TEXT])
    source.cut()
    held = source.tables["t"].info
    source.tables["t"].info = TableInfo.from_dict(held.raw)
    with monkeypatch.context() as patch, pytest.raises((Killed, BinlogError)):
        knowing_not(patch, first)
        killing(patch, lambda event: event.commit_ts > second)
        # Rows of t in the shape that it never got: what was applied is of other tables.
        load.run(ruled(settings, {"do": "park", "table": "d.t"}))
    target.execute("UPDATE pumphouse.rule SET ended_at = NOW(6)")
    target.execute("UPDATE pumphouse.plan SET spec = REPLACE(spec, '\"d.t\"', '\"d.other\"') WHERE state = 'open'")
    spec = target.query("SELECT task, number, from_ts, to_ts, mode, spec FROM pumphouse.plan WHERE state = 'open'")[0]
    target.execute("UPDATE pumphouse.plan SET digest = %s WHERE state = 'open'", (works_digest(*spec),))
    with pytest.raises(LoadError, match="without it: the schema history did not have it then") as caught:
        load.run(settings)
    assert "abandon" not in str(caught.value)
    assert 'do = "park"\ntable = "d.t"' in caught.value.hint
    report = load.run(ruled(settings, {"do": "park", "table": "d.t"}))
    assert list(report.parked) == ["d.t"]
    assert target_rows(target)["u"] == source.snapshot()["u"]
    load.run(settings, resync="d.t")
    assert target_rows(target) == source.snapshot()


def works_digest(*parts: Any) -> str:
    from pumphouse.loader.plan import _digest

    return _digest(*parts)


# -- settings


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"do": "skip"}, "names a DDL, a table or a transaction"),
        ({"do": "skip", "ddl": 1, "table": "a.b"}, "names a DDL, a table or a transaction"),
        ({"do": "skip", "table": "ab"}, "is no database.table"),
        ({"do": "park", "ddl": 1}, "park is for a table"),
        ({"do": "replace", "ddl": 1}, "sql for replace"),
        ({"do": "skip", "ddl": 1, "why": ""}, "why"),
    ],
)
def test_a_rule_that_says_nothing_clear_is_refused(rule: dict[str, Any], why: str, tmp_path: Path) -> None:
    text = json.dumps([{"why": "w", **rule}])
    (tmp_path / "none.toml").touch()
    with pytest.raises(ConfigError, match=why):
        Settings.read(tmp_path / "none.toml", {"load.rules": text})
    with pytest.raises(ConfigError, match="two rules for 7"):
        Settings.read(tmp_path / "none.toml", {"load.rules": json.dumps([{"do": "skip", "ddl": 7, "why": "w"}] * 2)})
    assert Settings.read(tmp_path / "none.toml", {"load.rules": ""}).load.rules == ()
