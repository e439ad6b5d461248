"""A dump's rows on a real MariaDB: which units they are, indexes behind them, killed at any step."""

from __future__ import annotations

import re

import pytest

from pumphouse.errors import RowRejected
from pumphouse.executor import executor
from pumphouse.executor.executor import Executor
from pumphouse.loader import steps, work
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import ColumnFlag, MysqlType
from pumphouse.model.tso import Tso
from pumphouse.settings import Settings
from tests.integration.test_steps import killing
from tests.support.dumpedsource import DumpedSource
from tests.support.loading import restored
from tests.support.madearchive import column, index, target_rows

pytestmark = pytest.mark.row("R1", "A5")


SOURCE = DumpedSource


def dumped(source: DumpedSource, *, automatic: bool = False) -> Tso:
    """Three tables in chunks: one that is written to meanwhile, one that is not, one without a key; where it ends."""
    id_ = column(1, "id", flag=3)
    columns = [id_, column(2, "v", MysqlType.VARCHAR), column(3, "n")]
    if automatic:
        columns.append(
            column(4, "serial", flag=ColumnFlag.NOT_NULL | ColumnFlag.AUTO_INCREMENT | ColumnFlag.MULTIPLE_KEY)
        )
    keys = [index(1, "by_v", ("v", 1)), index(2, "u", ("n", 2), unique=True)]
    keys += [index(3, "by_serial", ("serial", 3))] if automatic else []
    keys += [index(4, "by_n_v", ("n", 2), ("v", 1))]
    source.create_table("still", columns, index_info=keys)
    source.create_table("busy", columns[:2], index_info=keys[:1])
    source.create_table("k", columns[1:3], pk_is_handle=False)
    source.genesis(base=False)
    with source.txn() as t:
        for n in range(12):
            serial = {"serial": n + 1} if automatic else {}
            t.insert("still", id=n, v=b"v%d" % (n % 5), n=100 - n, **serial)
            t.insert("busy", id=n, v=b"b%d" % n)
            t.insert("k", v=b"same", n=n // 4)
    low = source.cut()
    chunks = []
    for name in ("still", "busy", "k"):
        info = source.tables[name].info
        rows = [{c.name: row[c.id] for c in info.public_columns} for row in source.tables[name].rows.values()]
        chunks += [source.read(name, low, low, rows[at : at + 4], number=at // 4) for at in range(0, 12, 4)]
    with source.txn() as t:
        t.delete("busy", 3)
        t.update("busy", 7, v=b"later")
        t.insert("busy", id=90, v=b"new")
    return source.publish(low, chunks)


def units(target: TargetConnection, table_id: int) -> list[int]:
    """Buckets of the inserted units of a table."""
    rows = target.query("SELECT bucket FROM pumphouse.applied WHERE table_id = %s ORDER BY 1", (table_id,))
    return [int(bucket) for (bucket,) in rows]


def test_a_segment_that_nothing_is_laid_over_is_a_unit_and_no_unit_is_applied_twice(
    source: DumpedSource, settings: Settings, target: TargetConnection
) -> None:
    dumped(source)
    end = source.cut()
    with killing(Executor, "_set_sequences"):  # every unit of the dump is applied, and its plan is open
        restored(settings, to=end, dry_run=False)
    ids = {name: held.info.id for name, held in source.tables.items()}
    assert {name: units(target, ids[name]) for name in ids} == {"still": [0, 1, 2], "busy": [0], "k": [0, 1, 2]}
    assert '"version":3' in target.value("SELECT spec FROM pumphouse.plan"), "an older release would count otherwise"
    target.execute("DELETE FROM pumphouse.applied WHERE table_id = %s AND bucket = 1", (ids["still"],))
    target.execute("DELETE FROM d.still WHERE id BETWEEN 4 AND 7")
    done = restored(settings, to=end, dry_run=False).load
    assert done.resumed
    assert done.inserted == 4
    assert target_rows(target) == source.snapshot()


def test_a_plan_that_an_older_release_began_goes_on_by_its_buckets(
    source: DumpedSource, settings: Settings, target: TargetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumped(source)
    end, ids = source.cut(), {name: held.info.id for name, held in source.tables.items()}
    with monkeypatch.context() as older:
        older.setattr(work, "_untouched", lambda *_: ())
        with killing(Executor, "_set_sequences"):
            restored(settings, to=end, dry_run=False)
    assert {name: units(target, ids[name]) for name in ids} == {"still": [0], "busy": [0], "k": [0]}
    assert '"version":2' in target.value("SELECT spec FROM pumphouse.plan")
    done = restored(settings, to=end, dry_run=False).load
    assert done.inserted == 0
    assert target_rows(target) == source.snapshot()


def shape(target: TargetConnection, table: str) -> str:
    """SHOW CREATE, without where its numbers stand."""
    return re.sub(r" AUTO_INCREMENT=\d+", "", str(target.query(f"SHOW CREATE TABLE d.{table}")[0][1]))


@pytest.mark.parametrize("automatic", [False, True])
def test_indexes_of_large_tables_are_made_behind_their_rows_and_the_table_is_the_same(
    source: DumpedSource,
    settings: Settings,
    target: TargetConnection,
    monkeypatch: pytest.MonkeyPatch,
    automatic: bool,
) -> None:
    source.create_table(
        "v", [column(1, "id")], view={"view_select": "SELECT `id` FROM `d`.`still` FORCE INDEX (`by_n_v`)"}
    )
    dumped(source, automatic=automatic)
    with source.txn() as t:
        t.update("still", 2, v=b"behind")
    end = source.cut()
    restored(settings, to=end, dry_run=False)
    expected = {name: shape(target, name) for name in source.tables}
    monkeypatch.setattr(steps, "_LATE_BYTES", 1)
    with killing(executor, "create_indexes"):
        restored(settings, to=end, anew=True, dry_run=False)
    before = shape(target, "still")
    assert target.value("SELECT COUNT(*) FROM d.still") == 12
    assert "UNIQUE KEY `u`" in before
    assert "by_n_v" not in before
    # It stands before one that the AUTO_INCREMENT column needs.
    assert ("KEY `by_v`" in before, "KEY `by_serial`" in before) == (automatic, automatic)
    # One of them is there already: somebody made it, or the server ended the statement of a run that was killed.
    target.execute("ALTER TABLE d.busy ADD KEY by_v (v)")
    assert restored(settings, to=end, dry_run=False).load.resumed
    assert {name: shape(target, name) for name in source.tables} == expected
    expected_rows = source.snapshot()
    del expected_rows["v"]
    assert target_rows(target) == expected_rows


def test_a_unit_of_a_segment_names_the_row_that_the_server_refuses(
    source: DumpedSource, settings: Settings, target: TargetConnection
) -> None:
    source.create_table("t", [column(1, "id", flag=3), column(2, "v", MysqlType.VARCHAR, flen=4)])
    source.genesis(base=False)
    low = source.cut()
    rows = [{"id": n, "v": b"fits" if n != 3 else b"too long"} for n in range(5)]
    source.publish(low, [source.read("t", low, low, rows)])
    with pytest.raises(RowRejected, match=r"id.*3") as refused:
        restored(settings, to=source.cut(), dry_run=False)
    assert refused.value.facts["table"] == "d.t"
