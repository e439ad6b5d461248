"""`load --resync` on a real MariaDB: among rules of DDLs, tables that wait for a recovery, and spellings."""

from __future__ import annotations

import copy

import pytest

from pumphouse.errors import LoadError
from pumphouse.loader.target import TargetConnection
from pumphouse.runs import load
from pumphouse.settings import Settings
from pumphouse.status.look import look
from tests.integration.test_load_ddl_kinds import partitions
from tests.integration.test_load_routes import exchange
from tests.integration.test_load_rules import ID, TEXT, put, ruled
from tests.support.madearchive import MadeSource, target_rows

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
