"""Where a binlog, or the target, says something else than the source's own tables: the source's values arrive."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from pumphouse.codec import row
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import ColumnFlag, MysqlType
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index, target_rows, written_as

ID = column(1, "id", flag=3)
KEY = ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY
STAMP = column(1, "k", MysqlType.DATETIME, flag=int(KEY | ColumnFlag.ON_UPDATE_NOW), default="CURRENT_TIMESTAMP")


def check(source: MadeSource, settings: Settings, target: TargetConnection) -> None:
    """Everything arrives by a load, and by a restore."""
    end = source.cut()
    wanted = {
        name: Counter(tuple(map(_plain, row)) for row in rows.elements()) for name, rows in source.snapshot().items()
    }

    def found() -> dict[str, Counter[tuple[Any, ...]]]:
        held = target_rows(target)
        return {name: Counter(tuple(map(_plain, row)) for row in rows.elements()) for name, rows in held.items()}

    load.run(settings)
    assert found() == wanted
    restored(settings, to=end, dry_run=False)
    assert found() == wanted


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, datetime | Decimal) else value


@pytest.mark.row("S3", "L6")
@pytest.mark.parametrize("known", [True, False], ids=["in the dump", "in the log"])
def test_an_update_that_leaves_a_clustered_key_alone_leaves_its_time_alone(
    source: MadeSource, settings: Settings, target: TargetConnection, known: bool
) -> None:
    source.create_table(
        "t",
        [STAMP, column(2, "n", flag=int(KEY)), column(3, "v")],
        pk_is_handle=False,
        is_common_handle=True,
        index_info=[index(1, "PRIMARY", ("k", 0), ("n", 1), unique=True, primary=True)],
    )
    if not known:
        source.genesis()
    with source.txn() as t:
        first = t.insert("t", k="2020-01-01 00:00:00", n=1, v=1)
        second = t.insert("t", k="2020-01-02 00:00:00", n=1, v=1)
    if known:
        source.genesis()
    held = source.tables["t"]
    # As TiDB writes it: the rows stay under their keys, and both new images have one key.
    with source.txn() as t:
        for handle in (first, second):
            old = held.rows[handle]
            new = old | {1: "2023-11-14 22:13:20", 3: 2}
            t.builder.update(written_as(held.info), row.encode_update(held.info, old, new))
            held.rows[handle] = old | {3: 2}
    with source.txn() as t:
        t.delete("t", first)
    check(source, settings, target)


@pytest.mark.row("S2", "L6")
def test_elements_that_their_character_set_does_not_have_arrive(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    source.genesis()
    ascii_ = {"charset": "ascii", "collate": "ascii_bin"}
    columns = [
        column(2, "e", MysqlType.ENUM, elems=["a", "é"]),
        column(3, "s", MysqlType.SET, elems=["b", "中"]),
        column(4, "plain", MysqlType.ENUM, elems=["c"]),
    ]
    for each in columns:
        each["type"] |= {"Charset": ascii_["charset"], "Collate": ascii_["collate"]}
    source.create_table("t", [ID, *columns])
    with source.txn() as t:
        t.insert("t", id=1, e=2, s=3, plain=1)
    source.cut()
    load.run(settings)
    assert target.query("SELECT e, s, plain FROM d.t") == [("é", "b,中", "c")]
    assert (
        target.value("SELECT collation_name FROM information_schema.columns WHERE column_name = 'plain'") == "ascii_bin"
    )
