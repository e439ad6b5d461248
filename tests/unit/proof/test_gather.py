"""The archive's side of a proof without any server: rows at a moment, whatever dump and DDL lie before it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.view import read_view
from pumphouse.loader.context import LoadContext
from pumphouse.loader.rules import NO_RULES
from pumphouse.model.table import MysqlType
from pumphouse.model.tso import Tso
from pumphouse.proof.gather import Spill
from pumphouse.proof.plan import subjects, work_of
from pumphouse.restore.plan import plan_restore
from pumphouse.settings import LoadSettings
from tests.support.madearchive import MadeSource, column
from tests.unit.dump.test_over_the_log import Source, partition

pytestmark = pytest.mark.row("R4", "A5")
ID = column(1, "id", flag=3)


def rows_at(source: MadeSource, at: Tso) -> tuple[dict[str, Counter[tuple[Any, ...]]], dict[str, str]]:
    """Rows of each table that can be told, in the form of `MadeSource.snapshot`; and why the others cannot."""
    view, settings = read_view(source.archive, upto=at), LoadSettings()
    plan = plan_restore(view, at, task="main", settings=settings)
    found = subjects(view, plan, NO_RULES, {})
    told = [each for each in found if not each.why]
    work = work_of(plan, view, settings, [each.name for each in told])
    rows: dict[str, Counter[tuple[Any, ...]]] = {}
    with Spill.made() as spill:
        spill.put(LoadContext.of(work, view, source.settings), work.pieces, lambda _: None)
        for each in told:
            counted = rows.setdefault(each.version.table.name, Counter())
            for bucket in spill.buckets(each.version.table.id):
                table, copies = spill.take(each.version.table.id, bucket)
                assert table is not None
                counts = [1] * table.num_rows if copies is None else copies.tolist()
                for row, count in zip(table.to_pylist(), counts, strict=True):
                    counted[tuple(row.values())] += count
            assert spill.take(each.version.table.id, 99) == (None, None)
    return rows, {each.version.table.name: each.why for each in found if each.why}


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_rows_of_a_dump_have_the_defaults_of_columns_that_came_after_it(tmp_path: Path, keyed: bool) -> None:
    source = Source(tmp_path)
    first = ID if keyed else column(1, "id")
    source.create_table("t", [first, column(2, "v", MysqlType.VARCHAR)], pk_is_handle=keyed)
    source.genesis(base=False)
    begun = source.cut()
    with source.txn() as t:
        handles = [t.insert("t", id=n, v=b"x%d" % n) for n in range(6)]
    low = source.cut()
    chunk = source.read("t", low, begun)
    with source.txn() as t:
        t.delete("t", handles[0])
        t.update("t", handles[1], v=None)
    source.publish(begun, [chunk])
    source.add_column("t", column(3, "n", default="7", origin_default="7"))
    source.add_column("t", column(4, "s", MysqlType.VARCHAR, default="é", origin_default="é"))
    source.add_column("t", column(5, "free", MysqlType.VARCHAR))
    middle, then = Tso(source.tick()), source.snapshot()
    with source.txn() as t:
        t.update("t", handles[2], n=8, s=b"y", free=b"z")
        t.insert("t", id=9, v=b"new", n=1, s=b"", free=None)
        t.delete("t", handles[3])
    source.drop_column("t", "v")
    end = source.cut()
    assert rows_at(source, middle) == (then, {})
    assert rows_at(source, end) == (source.snapshot(), {})


def test_the_log_of_a_partitioned_table_counts_until_a_partition_goes(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.create_table("p", [ID, column(2, "v")], partition=partition(900))
    source.create_table("other", [ID])
    source.genesis()
    with source.txn() as t:
        for n in range(4):
            t.insert("p", id=n, v=n)
        t.insert("other", id=1)
    end = source.cut()
    assert rows_at(source, end) == (source.snapshot(), {})
    raw = source.tables["p"].info.raw
    source.alter("p", 20, {**raw, "partition": {**partition(901)}})
    rows, why = rows_at(source, source.cut())
    assert rows == {"other": Counter({(1,): 1})}
    assert "DROP_PARTITION" in why["p"]
    assert "changed rows without a binlog" in why["p"]
