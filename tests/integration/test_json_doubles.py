"""Doubles of JSON without a fraction, from binlogs, folds and dumps: a MySQL has the source's, a MariaDB the text."""

from __future__ import annotations

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.runs import load
from pumphouse.settings import Settings
from tests.support.bases import base_of, folded, rows_of
from tests.support.kind import is_mysql
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index

pytestmark = pytest.mark.row("L1", "L4")
COLUMNS = [
    column(1, "id", flag=1),
    column(2, "j", MysqlType.JSON),
    column(3, "a", MysqlType.VARCHAR, generated_expr_string="json_unquote(json_extract(`j`, _utf8mb4'$.a'))"),
]
KEYED = {"pk_is_handle": False, "index_info": [index(1, "k", ("id", 0), unique=True)]}
DOCS = ['{"a": 1.0, "b": [1, 2.5]}', "[-0.0]", '[9007199254740994.0, "\\" 5e+0", {"1e+0": 3.0}]', "[1e20]", '["x"]']
TEXTS = [
    '{"a": 1, "b": [1, 2.5]}',
    "[-0]",
    '[9007199254740994, "\\" 5e+0", {"1e+0": 3}]',
    "[100000000000000000000]",
    '["x"]',
]
# As a MySQL prints the doubles, and what it makes of TiDB's texts: it has no integers beyond 64 bits, nor a -0.
DOUBLES = [
    '{"a": 1.0, "b": [1, 2.5]}',
    "[-0.0]",
    '[9.007199254740994e15, "\\" 5e+0", {"1e+0": 3.0}]',
    "[1e20]",
    '["x"]',
]
INTEGERS = ['{"a": 1, "b": [1, 2.5]}', "[0]", '[9007199254740994, "\\" 5e+0", {"1e+0": 3}]', "[1e20]", '["x"]']


def by(settings: Settings, mode: str) -> Settings:
    return settings.model_copy(update={"load": settings.load.model_copy(update={"mode": mode})})


def documents(target: TargetConnection, table: str) -> list[str]:
    return [str(text) for (text,) in target.query(f"SELECT CAST(j AS CHAR) FROM d.{table} ORDER BY id")]


@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_double_of_json_stays_one_on_a_mysql(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    settings = by(settings, mode)
    source.create_table("captured", COLUMNS, imported=True, **KEYED)
    source.create_table("bare", COLUMNS, imported=True, pk_is_handle=False)
    source.create_table("tidbs", COLUMNS, **KEYED)
    genesis = source.genesis()
    load.run(settings)
    tables = ("captured", "bare", "tidbs")
    with source.txn() as t:
        handles = {name: [t.insert(name, id=n, j=text) for n, text in enumerate(DOCS)] for name in tables}
    middle = source.cut()
    load.run(settings)

    def check(*places: int) -> None:
        for name in tables:
            whole = (DOUBLES if name == "captured" else INTEGERS) if is_mysql() else TEXTS
            assert documents(target, name) == [whole[at] for at in places], name
        if is_mysql() and 0 in places:
            assert [target.value(f"SELECT a FROM d.{name} WHERE id = 0") for name in tables] == ["1.0", "1", "1"]

    check(0, 1, 2, 3, 4)
    assert folded(source, middle).made
    held = {name: str(rows) for name, rows in rows_of(source, base_of(source, middle)).items()}
    assert {name: '{"a": 1e+0, "b": [1, 2.5]}' in held[name] for name in tables} == {
        "captured": True, "bare": False, "tidbs": True
    }  # fmt: skip
    restored(settings, to=middle, base=middle, dry_run=False)
    check(0, 1, 2, 3, 4)
    # Without its key, rows are found by what they hold, whatever they came with.
    source.drop_indexes("captured")
    with source.txn() as t:
        for name in tables:
            t.delete(name, handles[name][0])
            t.delete(name, handles[name][1])
    end = source.cut()
    load.run(settings)
    check(2, 3, 4)
    for base in (genesis, middle):
        restored(settings, to=end, base=base, dry_run=False)
        assert documents(target, "tidbs") == (INTEGERS if is_mysql() else TEXTS)[2:]
        assert len(documents(target, "captured")) == 3
