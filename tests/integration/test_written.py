"""Which tables a load or a restore says that it is about, and how many rows it put into each."""

from __future__ import annotations

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.restore.parts import Chosen
from pumphouse.runs import load, restore_parts
from pumphouse.settings import LoadRule, Settings
from tests.integration.test_load_ddl_kinds import partitions
from tests.integration.test_load_routes import exchange
from tests.integration.test_load_rules import put
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column

pytestmark = pytest.mark.row("O2")


@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_tables_are_counted_by_the_names_that_they_have_there_at_the_end(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    del target
    for name in ("many", "renamed", "goes", "empty", "out"):
        source.create_table(name, [column(1, "id", flag=3), column(2, "v")])
    source.genesis()
    source.cut()
    rules = (
        LoadRule(do="route", database="d", to="there", why="a copy"),
        LoadRule(do="skip", table="d.out", why="nobody reads it"),
    )
    how = settings.load.model_copy(update={"mode": mode, "rules": rules})
    told = settings.model_copy(update={"load": how})
    first = load.run(told)
    assert first.written.largest == dict.fromkeys(("there.empty", "there.goes", "there.many", "there.renamed"), 0)
    with source.txn() as txn:
        for number in range(3):
            txn.insert("many", id=number, v=number)
        txn.insert("renamed", id=1, v=1)
        txn.insert("goes", id=1, v=1)
        txn.insert("out", id=1, v=1)
    source.rename_table("renamed", "named")
    source.drop_table("goes")
    source.create_table("made", [column(1, "id", flag=3)])
    source.cut()
    report = load.run(told)
    assert report.written.largest == {"there.many": 3, "there.named": 1, "there.made": 0}
    assert report.inserted == 3 + 1 + 1
    assert not {"written", "cluster_id"} & set(report.to_dict())
    assert load.run(told).written.largest == {}


@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_rows_of_partitions_count_for_the_table_that_has_them_at_the_end(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    del target
    columns = [column(1, "id", flag=3), column(2, "a", MysqlType.VARCHAR)]
    bounds = partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1)
    source.create_table("parts", columns, partition=bounds)
    source.create_table("single", columns)
    source.genesis()
    source.cut()
    settings = settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})
    load.run(settings)
    put(source, "parts", 11)
    put(source, "single", 3)
    exchange(source, "parts", "single")
    put(source, "single", 4, 5)
    source.cut()
    assert load.run(settings).written.largest == {"d.parts": 2, "d.single": 2}


def test_a_restore_names_all_that_it_makes_and_one_of_parts_their_places(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    del target
    for name in ("full", "empty"):
        source.create_table(name, [column(1, "id", flag=3), column(2, "v")])
    source.genesis()
    with source.txn() as txn:
        txn.insert("full", id=1, v=1)
        txn.insert("full", id=2, v=1)
    source.cut()
    whole = restored(settings, dry_run=False).load
    assert whole.written.largest == {"d.empty": 0, "d.full": 2}
    chosen = Chosen(tables=("d.full",), called="copies.before")
    part = restore_parts.run(settings, chosen=chosen, into="target", dry_run=False).load
    assert part.written.largest == {"copies.before": 2}
