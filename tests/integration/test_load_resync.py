"""`load --resync` on a real MariaDB: among rules of DDLs, tables that wait for a recovery, and spellings."""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest

from pumphouse.archive import layout
from pumphouse.archive.base import Base, write_columns
from pumphouse.archive.genesis import BaseTable
from pumphouse.codec.layout import arrow_field
from pumphouse.errors import LoadError, UsageError
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import Tso
from pumphouse.runs import load
from pumphouse.schema.ident import quote
from pumphouse.settings import LoadRule, Settings
from pumphouse.status.look import look
from tests.integration.test_load_ddl_kinds import partitions
from tests.integration.test_load_routes import exchange
from tests.integration.test_load_rules import ID, TEXT, killing, put, ruled
from tests.support.killed import Killed
from tests.support.madearchive import MadeSource, column, target_rows

LOAD = {"engine": "local", "buckets": 3}


@pytest.mark.row("L7")
def test_a_resync_runs_nothing_of_a_rule_of_another_table_again(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("t", "o"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1, 2)
    source.genesis()
    source.alter("o", 17, {**source.tables["o"].info.raw, "comment": "emptied"})
    told = ruled(settings, {"do": "replace", "ddl": source.jobs[-1].job.id, "sql": ["DELETE FROM o"]})
    source.tables["o"].rows.clear()
    put(source, "o", 7)
    source.cut()
    load.run(told)
    assert target_rows(target) == source.snapshot()
    assert load.run(told, resync="d.t").ddls == 0
    assert target_rows(target) == source.snapshot()
    # Of its own table it is run again, in its place.
    assert load.run(told, resync="d.o").ddls == 1
    assert target_rows(target) == source.snapshot()


def dumped(source: MadeSource, table_id: int, at: Tso, ids: list[int]) -> None:
    """A dump of d.t, which has a column id alone."""
    info = source.tables["t"].info
    rows = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=pa.schema([arrow_field(info.columns[0])]))
    folder = layout.chunk_folder(at, "d", "t", table_id, at)
    segment = write_columns(source.archive.store, f"{folder}0-a.parquet", info, at, [rows])
    read = BaseTable(db="d", table="t", table_id=table_id, rows=len(ids), segments=(segment,), low=at)
    base = Base(begun=at, ts=at, low=at, tables=(read,), columns=True, sha256="")
    text = base.to_json(cluster_id=source.cluster_id, genesis=source.archive.genesis().sha256)
    source.archive.store.put_if_absent(layout.base_document(at), text)


@pytest.mark.row("L7")
def test_a_load_that_stops_at_a_table_has_a_way_past_it_although_there_is_a_newer_dump(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    table_id = source.create_table("t", [ID])
    source.genesis()
    source.cut()
    load.run(settings)
    put(source, "t", 1)
    source.cut()
    target.execute("ALTER TABLE d.t RENAME COLUMN id TO other")
    with pytest.raises(LoadError, match="not there as the load left it"):
        load.run(settings)
    dumped(source, table_id, source.cut(), [1])
    with pytest.raises(UsageError, match="newer dump") as refused:
        load.run(settings, resync="d.t")
    assert 'do = "park"' in refused.value.hint
    assert load.run(ruled(settings, {"do": "park", "table": "d.t"})).parked
    assert not load.run(settings, resync="d.t").parked
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_a_table_is_not_made_anew_from_an_older_dump_than_there_is(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    table_id = source.create_table("t", [ID])
    source.genesis()
    source.cut()
    load.run(settings)
    source.tables["t"].rows[1] = {1: 1}  # written without a binlog
    at = source.cut()
    dumped(source, table_id, at, [1])
    with pytest.raises(UsageError, match=r"newer dump of d\.t.*older one") as refused:
        load.run(settings, resync="d.t")
    assert "`pumphouse load`, then `pumphouse load --resync d.t`" in refused.value.hint
    assert load.run(settings).parked == {}, "nothing was begun"
    load.run(settings, resync="d.t")
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
def test_tables_of_a_database_that_somebody_dropped_on_the_target_come_back(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for table in ("t", "o"):
        source.create_table(table, [ID, TEXT])
        put(source, table, 1, 2)
    source.genesis()
    put(source, "t", 3)
    source.cut()
    load.run(settings)
    target.execute("DROP DATABASE d")
    for table in ("t", "o"):
        load.run(settings, resync=f"d.{table}")
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7")
@pytest.mark.parametrize("kind", ["rename", "exchange", "flashback cluster", "drop database"])
def test_a_resync_past_a_skipped_ddl_that_brought_other_rows_is_refused_before_anything_is_touched(
    source: MadeSource, settings: Settings, target: TargetConnection, kind: str
) -> None:
    source.create_table("t", [ID, TEXT])
    source.create_table("p", [ID, TEXT], partition=partitions(source, ("p0", "100"), ("p1", "MAXVALUE"), type_=1))
    put(source, "t", 1)
    source.genesis()
    load.run(settings)
    name = "t"
    if kind == "rename":
        target.execute("RENAME TABLE d.t TO d.v")
        source.rename_table("t", name := "v")
    elif kind == "exchange":
        target.execute("ALTER TABLE d.p EXCHANGE PARTITION p0 WITH TABLE d.t")
        exchange(source, "p", "t")
    elif kind == "flashback cluster":
        source.ddl(62, 0, "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'")
    else:
        source.drop_database()
    job = source.jobs[-1].job.id
    source.cut()
    do = {"do": "replace", "sql": ["DO 0"]} if kind == "drop database" else {"do": "skip"}
    told = ruled(settings, {**do, "ddl": job})
    load.run(told)
    before = target_rows(target)
    assert sum(before[name].values()) == (kind != "exchange")
    with pytest.raises(LoadError, match=rf"d\.{name} cannot be brought back by itself") as caught:
        load.run(told, resync=f"d.{name}")
    assert caught.value.hint == "take a new dump (`pumphouse archive dump`), load beyond it, and try again"
    assert target_rows(target) == before
    assert load.run(told).parked == {}


@pytest.mark.row("L7")
def test_a_resync_goes_past_a_skipped_drop_of_its_database_and_a_skipped_ddl_that_nobody_knows(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    load.run(settings)
    before = source.snapshot()
    source.alter("t", 211, copy.deepcopy(source.tables["t"].info.raw))
    unknown = source.jobs[-1].job.id
    source.drop_database()
    source.cut()
    told = ruled(settings, *({"do": "skip", "ddl": job} for job in (unknown, source.jobs[-1].job.id)))
    load.run(told)
    target.execute("DELETE FROM d.t")
    load.run(told, resync="d.t")
    assert target_rows(target) == before


@pytest.mark.row("L7")
@pytest.mark.parametrize("typed", ["d.audit", "d.Audit", "D.AUDIT"])
def test_a_table_with_capitals_comes_back_under_any_spelling(
    source: MadeSource, settings: Settings, target: TargetConnection, typed: str
) -> None:
    source.create_table("Audit", [ID, TEXT])
    put(source, "Audit", 1)
    source.genesis()
    load.run(settings)
    put(source, "Audit", 2)
    source.cut()
    load.run(ruled(settings, {"do": "park", "table": "d.Audit"}))
    (seen,) = [each for each in look(settings, within_s=20).findings if "parked" in each.what and each.who[1] == "t"]
    assert "--resync d.audit" in seen.next
    load.run(settings, resync=typed)
    assert target_rows(target) == source.snapshot()
    # In case alone another name.
    source.rename_table("Audit", "AUDIT")
    put(source, "AUDIT", 3)
    source.cut()
    load.run(settings)
    load.run(settings, resync=typed)
    assert target_rows(target) == source.snapshot()


# -- what is kept for a recovery


def kept(target: TargetConnection) -> list[tuple[Any, ...]]:
    """Rows of the tables that wait for their recovery."""
    names = target.query(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'pumphouse' AND table_name LIKE 'kept%'"
    )
    return [row for (name,) in names for row in target.query(f"SELECT * FROM pumphouse.{name} ORDER BY 1")]


@pytest.mark.row("L7", "S2")
def test_a_resync_that_was_killed_while_its_table_waited_for_its_recovery_runs_again(
    source: MadeSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    put(source, "t", 2)
    dropped = source.tables["t"]
    source.drop_table("t")
    source.recover_table("t", dropped)
    recovered = source.jobs[-1].job.id
    put(source, "t", 3)
    source.cut()
    load.run(settings)
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killing(patch, lambda event: event.job.id == recovered)
            load.run(settings, resync="d.t", run_id="same")
        assert kept(target) == [(1, "x"), (2, "x")]
    load.run(settings, resync="d.t", run_id="same")
    assert target_rows(target) == source.snapshot()
    assert kept(target) == []


@pytest.mark.row("L7", "S2")
def test_what_is_left_over_of_a_table_that_is_there_goes_when_it_is_made_anew(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    """A later RECOVER would bring back that, and not what was dropped then."""
    source.create_table("t", [ID, TEXT])
    source.genesis()
    load.run(settings)
    target.execute(f"CREATE TABLE pumphouse.kept_{source.tables['t'].info.id} AS SELECT 7 AS left_over")
    load.run(settings, resync="d.t")
    assert kept(target) == []


@pytest.mark.row("L7", "S2")
def test_a_table_that_waited_for_its_recovery_when_it_was_parked_comes_back(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    for times in (2, 3):
        put(source, "t", times)
        dropped = source.tables["t"]
        source.drop_table("t")
        middle = Tso(source.tick())
        source.recover_table("t", dropped)
        put(source, "t", 10 * times)
        source.cut()
        load.run(settings, to=middle)
        assert kept(target)
        load.run(ruled(settings, {"do": "park", "table": "d.t"}))
        load.run(settings, resync="d.t")
        assert target_rows(target) == source.snapshot()
        assert kept(target) == []
    # Left behind by whatever it was: a load goes on, too.
    table_id = source.tables["t"].info.id
    target.execute(f"CREATE TABLE pumphouse.kept_{table_id} (left_over INT)")
    dropped = source.tables["t"]
    source.drop_table("t")
    source.recover_table("t", dropped)
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()


@pytest.mark.row("L7", "S2")
def test_a_resync_leaves_alone_what_is_kept_of_a_table_of_another_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    old = source.tables["t"]
    source.truncate("t")
    put(source, "t", 5)
    source.recover_table("u", old)
    put(source, "u", 2)
    old = source.tables["u"]
    source.drop_table("u")
    middle = Tso(source.tick())
    source.recover_table("u", old)
    put(source, "u", 3)
    source.cut()
    load.run(settings, to=middle)
    for _ in range(2):
        load.run(settings, resync="d.t")
        assert kept(target) == [(1, "x"), (2, "x")]
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    load.run(settings, resync="d.t")
    assert target_rows(target) == source.snapshot()
    assert kept(target) == []


@pytest.mark.row("L7", "S2")
def test_a_table_that_had_another_name_between_two_drops_is_not_made_of_what_it_was_at_the_first(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [ID, TEXT])
    put(source, "t", 1)
    source.genesis()
    for name in ("u", "t"):
        (old,) = source.tables.values()
        source.drop_table(old.info.name)
        source.recover_table(name, old)
        put(source, name, len(old.rows) + 1)
    source.cut()
    load.run(settings)
    assert target_rows(target) == source.snapshot()
    with pytest.raises(LoadError, match="recovered it from a table of another name"):
        load.run(settings, resync="d.t")
    assert target_rows(target) == source.snapshot()


def test_a_pattern_is_no_table_that_comes_back(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for name in ("tmp_a", "tmp_b"):
        source.create_table(name, [column(1, "id", flag=3)])
    source.genesis()
    source.cut()
    rule = LoadRule(do="park", table="d.tmp_*", why="too large")
    parking = settings.model_copy(update={"load": settings.load.model_copy(update={"rules": (rule,)})})
    load.run(settings)
    with source.txn() as t:
        t.insert("tmp_a", id=1)
        t.insert("tmp_b", id=1)
    source.cut()
    load.run(parking)
    with pytest.raises(UsageError, match=r"no table d\.tmp_\*") as refused:
        load.run(settings, resync="d.tmp_*")
    assert "bring each of its tables back by its own name" in refused.value.hint
    assert list(load.run(settings, resync="d.tmp_a").parked) == ["d.tmp_*"]
    assert load.run(settings, resync="d.tmp_b").parked == {}
    source.create_table("tmp_c", [column(1, "id", flag=3)])
    with source.txn() as t:
        t.insert("tmp_c", id=1)
    source.cut()
    assert load.run(settings).parked == {}, "the rule is over"
    assert target_rows(target) == source.snapshot()


def test_a_table_with_dots_and_brackets_in_its_name_is_parked_and_comes_back_alone(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    for name in ("a.b[1]", "a.b1"):
        source.create_table(name, [column(1, "id", flag=3)])
    source.genesis()
    source.cut()
    load.run(settings)
    rule = LoadRule(do="park", table="d.a.b[1]", why="slow")
    parking = settings.model_copy(update={"load": settings.load.model_copy(update={"rules": (rule,)})})
    with source.txn() as t:
        t.insert("a.b[1]", id=1)
        t.insert("a.b1", id=1)
    source.cut()
    assert list(load.run(parking).parked) == ["d.a.b[1]"]
    rows = [target.value(f"SELECT COUNT(*) FROM d.{quote(name)}") for name in ("a.b[1]", "a.b1")]
    assert rows == [0, 1]
    assert load.run(settings, resync="d.a.b[1]").parked == {}
    assert target_rows(target) == source.snapshot()
