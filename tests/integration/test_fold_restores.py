"""Restores from a folded base and from an older one, over DDL of every kind, are the same to the last word."""

from __future__ import annotations

from typing import Any

import pytest

from pumphouse.errors import FoldRefused
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import Settings
from tests.integration.test_load_ddl_kinds import create_sequence, partitions, reshaped, work
from tests.integration.test_load_schema_edges import create_view
from tests.support.bases import folded
from tests.support.dumpedsource import DumpedSource
from tests.support.loading import restored
from tests.support.madearchive import column, target_rows

pytestmark = pytest.mark.row("A5", "R1")
SOURCE = DumpedSource
ID = column(1, "id", flag=3)


def told(target: TargetConnection) -> dict[str, tuple[Any, ...]]:
    """All that a server says of the database: what everything is made by, its rows, and what sequences give next."""
    found: dict[str, tuple[Any, ...]] = {}
    kinds = target.query("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'd'")
    for name, kind in kinds:
        made = target.query(f"SHOW CREATE TABLE d.`{name}`")[0][1]
        rows = target.query(f"SELECT * FROM d.`{name}`")
        found[name] = (kind, made, sorted(rows, key=repr))
    return found


@pytest.mark.mariadb("MySQL has no sequences")
def test_restores_from_a_folded_and_from_an_older_base_are_the_same_for_every_kind_of_ddl(
    source: DumpedSource, settings: Settings, target: TargetConnection
) -> None:
    for name in ("plain", "going", "renamed"):
        source.create_table(name, [ID, column(2, "a")])
        work(source, name, 1, 2)
    source.create_table(
        "parts", [ID, column(2, "a")], partition=partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1)
    )
    source.create_table("kept", [column(1, "a"), column(2, "b")], pk_is_handle=False)
    with source.txn() as t:
        handles = [t.insert("kept", a=1, b=n % 2) for n in range(6)]
    genesis = source.genesis()
    create_sequence(source, "s")
    create_view(source, "seen", "SELECT `id` FROM `d`.`plain`")
    work(source, "parts", 3, 12)
    with source.txn() as t:
        t.delete("kept", handles[1])
        t.update("kept", handles[2], b=7)
    source.setval("s", 2000)
    source.drop_table("going")
    source.rename_table("renamed", "called")
    work(source, "called", 3, 4)
    source.truncate("plain")
    work(source, "plain", 5, 6)
    source.add_column("parts", column(3, "n", default="5", origin_default="5"))
    work(source, "parts", 4, 13)
    middle = source.cut()
    assert folded(source, middle).made
    reshaped(source, "parts", 71, partition=partitions(source, ("h0", None), ("h1", None), type_=2))
    work(source, "parts", 5, 14)
    source.setval("s", 3000)
    with source.txn() as t:
        t.delete("kept", handles[2])
    source.add_column("called", column(3, "n", default="5", origin_default="5"))
    work(source, "called", 7, 8)
    end = source.cut()
    for to in (middle, end):
        states = []
        for base in (genesis, middle):
            assert restored(settings, to=to, base=base, dry_run=False).plan.base == base
            states.append(told(target))
        assert states[0] == states[1]
        assert states[0].keys() == {"plain", "called", "parts", "kept", "s", "seen"}
    assert target_rows(target) == source.snapshot()
    # Other partitions gave a table another id: no log says that these are the rows of the old one.
    with pytest.raises(FoldRefused, match=r"d\.parts: .*archive dump --table d\.parts"):
        folded(source, end)
