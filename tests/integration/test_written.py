"""Which tables a load or a restore says that it is about, and how many rows it put into each."""

from __future__ import annotations

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.restore.parts import Chosen
from pumphouse.runs import load, restore_parts
from pumphouse.settings import LoadRule, Settings
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
    assert first.tables == dict.fromkeys(("there.empty", "there.goes", "there.many", "there.renamed"), 0)
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
    assert report.tables == {"there.many": 3, "there.named": 1, "there.made": 0}
    assert report.inserted == 3 + 1 + 1
    assert not {"tables", "cluster_id"} & set(report.to_dict())
    assert load.run(told).tables == {}


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
    assert whole.tables == {"d.empty": 0, "d.full": 2}
    chosen = Chosen(tables=("d.full",), called="copies.before")
    part = restore_parts.run(settings, chosen=chosen, into="target", dry_run=False).load
    assert part.tables == {"copies.before": 2}
