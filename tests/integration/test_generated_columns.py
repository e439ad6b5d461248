"""Generated columns on a MariaDB: TiDB's values, or a note; whatever the server, a rule or an older release made of them."""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.runs import load
from pumphouse.schema import generated
from pumphouse.settings import LoadRule, Settings
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index

ID = column(1, "id", flag=3)
PLAIN_ID = column(1, "id")
DAY = column(2, "day", MysqlType.DATETIME)
X = "json_extract(`j`, _utf8mb4'$.x')"
MONTH = "date_format(`day`, _utf8mb4'%Y-%m')"


def made(id_: int, name: str, tp: int, expression: str, *, stored: bool = False, **more: Any) -> dict[str, Any]:
    """A generated column."""
    return column(id_, name, tp, generated_expr_string=expression, generated_stored=stored, **more)


def month(id_: int = 3, *, stored: bool = True) -> dict[str, Any]:
    return made(id_, "month", MysqlType.VARCHAR, MONTH, stored=stored)


def by(settings: Settings, **more: Any) -> Settings:
    return settings.model_copy(update={"load": settings.load.model_copy(update=more)})


def shown(target: TargetConnection, name: str = "t") -> list[tuple[str, bool]]:
    """Columns of a table, and which of them the server computes."""
    there = target.columns_there(("d", name))
    assert there is not None
    return list(there.items())


# A JSON scalar as a number, a date, text: (type, expression, value of the JSON {"x": "5"}).
OF_JSON = [
    (MysqlType.LONG, X, 5, {}),
    (MysqlType.DOUBLE, X, 5.0, {"flen": 22, "decimal": -1}),
    (MysqlType.NEWDECIMAL, X, "5.00", {"flen": 10, "decimal": 2}),
    (MysqlType.LONGLONG, f"cast({X} as unsigned)", 5, {}),
    (MysqlType.VARCHAR, f"json_type({X})", b"STRING", {}),
]


@pytest.mark.row("S2", "L4", "L3", "R1")
@pytest.mark.parametrize("mode", ["merge", "replay"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_values_that_a_mariadb_may_compute_otherwise_are_the_sources_or_left_out(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str, keyed: bool
) -> None:
    settings = by(settings, mode=mode)
    columns = [ID if keyed else PLAIN_ID, column(2, "j", MysqlType.JSON)]
    columns += [made(3 + n, f"s{n}", tp, e, stored=True, **more) for n, (tp, e, _, more) in enumerate(OF_JSON)]
    columns += [made(13 + n, f"v{n}", tp, e, **more) for n, (tp, e, _, more) in enumerate(OF_JSON)]
    # These are computed alike.
    columns += [made(20, "vx", MysqlType.VARCHAR, f"json_unquote({X})"), made(21, "sx", 3, "`id` + 1", stored=True)]
    values = {"j": '{"x": "5"}', **{f"s{n}": value for n, (_, _, value, _) in enumerate(OF_JSON)}}
    keys = [index(1, "on_v0", ("v0", 7)), index(2, "on_vx", ("vx", 12)), index(3, "on_s0", ("s0", 2))]
    made_of = {"pk_is_handle": keyed, "index_info": keys}
    source.create_table("old", columns, **made_of)
    with source.txn() as t:
        first = [t.insert("old", id=n, sx=n + 1, **values) for n in (1, 2)]
    source.genesis()
    source.create_table("new", columns, **made_of)
    with source.txn() as t:
        second = [t.insert("new", id=n, sx=n + 1, **values) for n in (1, 2)]
        t.update("old", first[0], j='{"x": null}', **dict.fromkeys([f"s{n}" for n in range(5)], None))
    with source.txn() as t:
        t.delete("old", first[1])
        t.delete("new", second[0])
    end = source.cut()
    row = (5, 5.0, "5.00", 5, "STRING", "5")

    def check(notes: list[str]) -> None:
        names = ["id", "j", "s0", "s1", "s2", "s3", "s4", "vx", "sx"]
        for table, wanted in (("old", [(1, None, None, None, None, None, "null", 2)]), ("new", [(2, *row, 3)])):
            assert shown(target, table) == [(name, name in ("vx", "sx")) for name in names]
            query = f"SELECT id, s0, s1, CAST(s2 AS CHAR), s3, s4, vx, sx FROM d.{table}"
            assert target.query(query) == wanted
            assert "on_v0" not in {found[2] for found in target.query(f"SHOW INDEX FROM d.{table}")}
        assert any("v0 is left out: its values are not known" in note for note in notes)

    check(load.run(settings).notes)
    check(restored(settings, to=end, dry_run=False).load.notes)


@pytest.mark.row("S2", "L6")
@pytest.mark.mariadb("a MySQL takes date_format in a STORED and in an indexed column")
@pytest.mark.parametrize("first", [True, False], ids=["of the dump", "of a DDL"])
def test_what_the_server_refuses_is_plain_or_left_out_whatever_the_list_says(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    monkeypatch: pytest.MonkeyPatch,
    first: bool,
) -> None:
    """MariaDB takes date_format in no STORED and no indexed column."""
    monkeypatch.setattr(generated, "alike", lambda *_: True)
    if not first:
        source.genesis()
    source.create_table(
        "t", [ID, DAY, month(), month(4, stored=False) | {"name": {"O": "v", "L": "v"}}],
        index_info=[index(1, "on_v", ("v", 3))],
    )  # fmt: skip
    with source.txn() as t:
        t.insert("t", id=1, day="2020-02-29 00:00:00", month=b"2020-02")
    if first:
        source.genesis()
    source.cut()
    notes = load.run(settings).notes
    assert target.query("SELECT * FROM d.t") == [(1, datetime(2020, 2, 29), "2020-02")]
    assert any("t.month is plain" in note for note in notes)
    assert any("t.v is left out: the target refuses it" in note for note in notes)
    # And a later DDL goes by what is there.
    source.add_column("t", column(5, "more"))
    with source.txn() as t:
        t.insert("t", id=2, day="2021-02-28 00:00:00", month=b"2021-02", more=7)
    source.cut()
    load.run(settings)
    assert target.query("SELECT * FROM d.t WHERE id = 2") == [(2, datetime(2021, 2, 28), "2021-02", 7)]


@pytest.mark.row("L7", "L4", "L3")
@pytest.mark.parametrize("mode", ["merge", "replay"])
def test_a_rule_that_makes_a_computed_column_plain_gets_the_sources_values(
    source: MadeSource, settings: Settings, target: TargetConnection, mode: str
) -> None:
    source.genesis()
    source.create_table("t", [ID, DAY, made(3, "next", MysqlType.LONG, "`id` + 1", stored=True)])
    with source.txn() as t:
        t.insert("t", id=1, day="2020-02-29 00:00:00", next=2)
    source.cut()
    create = "CREATE TABLE d.t (id INT PRIMARY KEY, day DATETIME, next INT)"
    rule = LoadRule(do="replace", ddl=source.jobs[-1].job.id, sql=[create], why="plain")
    ruled = by(settings, mode=mode, rules=(rule,))
    load.run(ruled)
    assert target.query("SELECT next FROM d.t") == [(2,)]
    with source.txn() as t:
        t.update("t", 1, day="2021-01-01 00:00:00")
        t.insert("t", id=5, next=6)
    source.add_column("t", column(4, "more"))
    source.cut()
    load.run(ruled)
    assert target.query("SELECT id, next, more FROM d.t ORDER BY 1") == [(1, 2, None), (5, 6, None)]
    assert shown(target) == [("id", False), ("day", False), ("next", False), ("more", False)]


@pytest.mark.row("O7", "L6", "L4", "L3")
@pytest.mark.parametrize("mode", ["merge", "replay"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_a_target_of_an_older_release_goes_on_as_it_has_its_columns(
    source: MadeSource,
    settings: Settings,
    target: TargetConnection,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    keyed: bool,
) -> None:
    """It has columns computed that are plain, or not there, where the table is made now."""
    settings = by(settings, mode=mode)
    columns = [
        ID if keyed else PLAIN_ID,
        column(2, "j", MysqlType.JSON),
        made(3, "s", MysqlType.LONG, X, stored=True),
        made(4, "v", MysqlType.LONG, X),
        column(5, "gone"),
    ]
    source.create_table("t", columns, pk_is_handle=keyed)
    with source.txn() as t:
        row = t.insert("t", id=1, j='{"x": 5}', s=5)
    source.genesis()
    with monkeypatch.context() as patch:
        patch.setattr(generated, "alike", lambda *_: True)
        load.run(settings)
    computed = [("s", True), ("v", True)]
    assert shown(target) == [("id", False), ("j", False), *computed, ("gone", False)]
    source.drop_column("t", "gone")
    source.add_column("t", column(6, "more"))
    with source.txn() as t:
        t.update("t", row, j='{"x": 6}', s=6)
        t.insert("t", id=2, j='{"x": 7}', s=7, more=1)
    raw = copy.deepcopy(source.tables["t"].info.raw)
    raw["cols"] = [each for each in raw["cols"] if each["name"]["O"] != "v"]
    source.alter("t", 6, raw)
    with source.txn() as t:
        t.insert("t", id=3, j='{"x": 8}', s=8)
    source.cut()
    load.run(settings)
    assert target.query("SELECT id, s, more FROM d.t ORDER BY 1") == [(1, 6, None), (2, 7, 1), (3, 8, None)]
    assert shown(target) == [("id", False), ("j", False), ("s", True), ("more", False)]
    with source.txn() as t:
        t.delete("t", row)
    source.cut()
    # Made anew, it is as it is made now.
    load.run(settings)
    load.run(settings, resync="d.t")
    assert shown(target) == [("id", False), ("j", False), ("s", False), ("more", False)]
    assert target.query("SELECT id, s FROM d.t ORDER BY 1") == [(2, 7), (3, 8)]
