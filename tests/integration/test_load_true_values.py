"""Where a binlog, or the target, says something else than the source's own tables: the source's values arrive."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from pumphouse.client.schema import named_row
from pumphouse.codec import payload, row
from pumphouse.errors import CodecError, ColumnMismatch
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo
from pumphouse.runs import load
from pumphouse.schema.actions import Action
from pumphouse.settings import Settings
from tests.support.loading import restored
from tests.support.madearchive import MadeSource, column, index, table_info, target_rows, written_as

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


GENERATED = [
    ID,
    column(2, "c", MysqlType.STRING, flen=20),
    column(3, "b", MysqlType.VARCHAR, binary=True),
    column(4, "f", MysqlType.DOUBLE, flen=22, decimal=-1),
    # Refused by MariaDB as STORED: its value depends on PAD_CHAR_TO_FULL_LENGTH.
    column(5, "gc", MysqlType.VARCHAR, generated_expr_string="concat(_utf8mb4'g', `c`)", generated_stored=True),
    column(6, "vc", MysqlType.VARCHAR, generated_expr_string="concat(_utf8mb4'v', `c`)"),
    # Bytes that are no text: TiDB cuts them off, MariaDB makes '?' of them, or refuses the row.
    column(7, "gb", MysqlType.VARCHAR, generated_expr_string="concat(_utf8mb4'g', `b`)", generated_stored=True),
    column(8, "vb", MysqlType.VARCHAR, generated_expr_string="concat(_utf8mb4'v', `b`)"),
    column(9, "hb", MysqlType.VARCHAR, generated_expr_string="lower(hex(`b`))"),
    column(10, "gf", MysqlType.VARCHAR, generated_expr_string="concat(`f`)", generated_stored=True),
    column(11, "again", MysqlType.VARCHAR, generated_expr_string="concat(_utf8mb4'2', `gb`)", generated_stored=True),
    column(12, "sum", MysqlType.LONGLONG, generated_expr_string="`id` + 1", generated_stored=True),
]


@pytest.mark.row("S2", "S3", "L6")
@pytest.mark.parametrize("keyed", [True, False])
def test_generated_columns_have_the_sources_values_where_the_target_would_compute_others(
    source: MadeSource, settings: Settings, target: TargetConnection, keyed: bool
) -> None:
    columns = GENERATED if keyed else [column(1, "id"), *GENERATED[1:]]
    keys = [index(1, "on_vc", ("vc", 5)), index(2, "on_gc", ("gc", 4)), index(3, "on_vb", ("vb", 7))]
    source.create_table("old", columns, pk_is_handle=keyed, index_info=keys)
    rows = {
        1: {
            "c": b"c",
            "b": b"\x80",
            "f": 1e20,
            "gc": b"gc",
            "gb": b"g",
            "gf": b"100000000000000000000",
            "again": b"2g",
        },
        2: {"c": b"d", "b": b"z\xff\xfe", "f": 0.5, "gc": b"gd", "gb": b"gz", "gf": b"0.5", "again": b"2gz"},
        3: {"c": None, "b": None, "f": None, "gc": None, "gb": None, "gf": None, "again": None},
    }
    handles = {}
    with source.txn() as t:
        for number, values in rows.items():
            handles[number] = t.insert("old", id=number, sum=number + 1, **values)
    source.genesis()
    source.create_table("new", columns, pk_is_handle=keyed, index_info=keys)
    with source.txn() as t:
        for number, values in rows.items():
            t.insert("new", id=number, sum=number + 1, **values)
        t.update("old", handles[1], **{**rows[2], "id": 1})
        t.delete("old", handles[2])
    end = source.cut()

    def check(notes: list[str]) -> None:
        for table in ("old", "new"):
            names = ["id", "c", "b", "f", "gc", "vc", "gb", "hb", "gf", "again", "sum"]
            assert [name for (name, *_) in target.query(f"SHOW COLUMNS FROM d.{table}")] == names
            found = {
                int(row[0]): row for row in target.query(f"SELECT id, gc, vc, gb, hb, gf, again, sum FROM d.{table}")
            }
            shown = rows if table == "new" else {1: rows[2], 3: rows[3]}
            assert found == {number: _generated(number, values) for number, values in shown.items()}
        assert any("old.gc is plain" in note for note in notes) or any("new.gc is plain" in note for note in notes)
        assert any(".vb is left out" in note for note in notes)

    check(load.run(settings).notes)
    check(restored(settings, to=end, dry_run=False).load.notes)
    extra = dict(
        target.query(
            "SELECT column_name, extra FROM information_schema.columns WHERE table_name = 'new' ORDER BY ordinal_position"
        )
    )
    assert [name for name, words in extra.items() if "GENERATED" in words] == ["vc", "hb", "sum"]
    made = {row[2] for row in target.query("SHOW INDEX FROM d.new")}
    assert made == ({"PRIMARY"} if keyed else set()) | {"on_gc"}


def _generated(number: int, values: dict[str, Any]) -> tuple[Any, ...]:
    texts = {name: None if values[name] is None else values[name].decode() for name in ("gc", "gb", "gf", "again")}
    vc = None if values["c"] is None else f"v{values['c'].decode()}"
    hb = None if values["b"] is None else values["b"].hex()
    return number, texts["gc"], vc, texts["gb"], hb, texts["gf"], texts["again"], number + 1


@pytest.mark.row("S2")
def test_a_program_gives_the_values_that_targets_do_not_compute() -> None:
    table = TableInfo.from_dict(table_info(5, "t", GENERATED))
    given = {"id": 1, "c": b"c", "b": b"b", "f": 1.0}
    with pytest.raises(CodecError, match=r"lacks gc, gb, gf, again$"):
        named_row(table, given)
    named_row(table, {**given, "gc": b"gc", "gb": b"gb", "gf": b"1", "again": b"2gb"})


def modified(source: MadeSource, table: str, name: str, new: dict[str, Any], values: Callable[[Any], Any]) -> None:
    """A MODIFY COLUMN that rewrites the rows: the column has another id from then on."""
    held = source.tables[table]
    raw = copy.deepcopy(held.info.raw)
    at = next(n for n, c in enumerate(raw["cols"]) if c["name"]["O"] == name)
    old = raw["cols"][at]
    raw["cols"][at] = {**new, "offset": at}
    source.alter(table, 12, raw)
    for row_ in held.rows.values():
        row_[new["id"]] = values(row_.pop(old["id"]))


class Straddler:
    """A transaction of a writer that has not heard yet that a MODIFY COLUMN is done: it writes both columns."""

    def __init__(self, source: MadeSource, table: str, name: str, new: dict[str, Any]) -> None:
        held = source.tables[table].info
        raw = copy.deepcopy(held.raw)
        changing = {**new, "offset": len(raw["cols"]), "state": 3, "name": {"O": "_Col$_x_0", "L": "_col$_x_0"}}
        raw["cols"].append(changing)
        self.info = TableInfo.from_dict(raw)
        self.old = next(c.id for c in held.columns if c.name == name)
        self.new = int(new["id"])
        self.builder = payload.PrewriteValueBuilder(source.schema_version)
        self.start_ts = source.tick()

    def both(self, values: dict[int, Any], cast: Callable[[Any], Any]) -> dict[int, Any]:
        return values | {self.new: cast(values[self.old])}


@pytest.mark.row("S3", "L6")
@pytest.mark.parametrize("keyed", [True, False])
def test_a_writer_that_does_not_know_yet_that_a_type_was_changed_loses_nothing(
    source: MadeSource, settings: Settings, target: TargetConnection, keyed: bool
) -> None:
    first = ID if keyed else column(1, "id")
    short, longer = column(2, "v", MysqlType.VARCHAR, flen=10), column(7, "v", MysqlType.VARCHAR, flen=11, flag=1)
    source.create_table("t", [first, short, column(3, "n")], pk_is_handle=keyed)
    source.genesis()
    with source.txn() as t:
        handles = [t.insert("t", id=n, v=b"v%d" % n, n=0) for n in (1, 2, 3)]
    held = source.tables["t"]
    writer = Straddler(source, "t", "v", longer)
    old = {handle: dict(held.rows[handle]) for handle in handles}
    modified(source, "t", "v", longer, lambda value: value)
    table = written_as(held.info)
    # TiDB writes both columns of new rows, and of a row that goes only the old one.
    come = {1: 9, 2: b"came", 3: 1}
    handle = None if keyed else 9
    writer.builder.insert(table, row.encode_insert(writer.info, writer.both(come, bytes), handle=handle))
    new = old[handles[0]] | {2: b"changed"}
    image = row.encode_update(
        writer.info, old[handles[0]] | {7: None}, writer.both(new, bytes), handle=None if keyed else handles[0]
    )
    writer.builder.update(table, image)
    writer.builder.delete(table, row.encode_delete(writer.info, old[handles[1]], handle=None if keyed else handles[1]))
    source.commit(writer.start_ts, writer.builder.build())
    held.rows = {
        9: {1: 9, 7: b"came", 3: 1},
        handles[0]: {1: 1, 7: b"changed", 3: 0},
        handles[2]: {1: 3, 7: b"v3", 3: 0},
    }
    check(source, settings, target)


@pytest.mark.row("S3", "L6")
@pytest.mark.parametrize("keyed", [True, False])
def test_a_transaction_that_began_before_the_ddls_of_a_table_loses_nothing(
    source: MadeSource, settings: Settings, target: TargetConnection, keyed: bool
) -> None:
    """TiDB's metadata lock shows it each table as that is when it first touches it; its rows say when it began."""
    first = ID if keyed else column(1, "id")
    source.create_table("t", [first, column(2, "v")], pk_is_handle=keyed)
    source.create_table("again", [first, column(2, "v")], pk_is_handle=keyed)
    source.genesis()
    with source.txn() as t:
        handles = [t.insert("t", id=n, v=n) for n in (1, 2, 3)]
        t.insert("again", id=1, v=1)
    began = source.schema_version
    modified(source, "t", "v", column(7, "w", MysqlType.VARCHAR, flen=20), lambda value: str(value).encode())
    source.add_column("t", column(8, "n", origin_default="5"))
    source.truncate("again")
    with source.txn(schema_version=began) as t:
        t.insert("t", id=9, w=b"came", n=9)
        t.update("t", handles[0], w=b"changed", n=4)
        t.delete("t", handles[1])
        t.insert("again", id=2, v=2)
    check(source, settings, target)


@pytest.mark.row("S3", "L6")
def test_an_old_value_that_has_no_known_twin_in_the_new_type_stops_the_load_by_name(
    source: MadeSource, settings: Settings, target: TargetConnection
) -> None:
    number, text = column(2, "v"), column(7, "v", MysqlType.VARCHAR, flen=20)
    source.create_table("t", [column(1, "id"), number], pk_is_handle=False)
    source.genesis()
    with source.txn() as t:
        handle = t.insert("t", id=1, v=5)
    held = source.tables["t"]
    writer = Straddler(source, "t", "v", text)
    old = dict(held.rows[handle])
    modified(source, "t", "v", text, lambda value: str(value).encode())
    writer.builder.delete(written_as(held.info), row.encode_delete(writer.info, old, handle=handle))
    source.commit(writer.start_ts, writer.builder.build())
    source.cut()
    with pytest.raises(ColumnMismatch, match=r"d\.t: the type of column v was changed") as caught:
        load.run(settings)
    assert 'do = "park"\ntable = "d.t"' in caught.value.hint


@pytest.mark.row("S2", "S3", "L6")
@pytest.mark.parametrize("when", ["before the base", "in the log"])
def test_a_generated_column_that_becomes_the_primary_key_and_is_no_more(
    source: MadeSource, settings: Settings, target: TargetConnection, when: str
) -> None:
    of_name = "concat(_utf8mb4'g', `name`)"
    generated = column(3, "g", MysqlType.VARCHAR, generated_expr_string=of_name, generated_stored=True)
    source.create_table("t", [column(1, "id"), column(2, "name", MysqlType.VARCHAR), generated], pk_is_handle=False)

    def write(*numbers: int) -> None:
        with source.txn() as t:
            for number in numbers:
                handle = t.insert("t", id=number, name=b"%d" % number, g=b"g%d" % number)
                t.update("t", handle, id=number, name=b"%d!" % number, g=b"g%d!" % number)

    def keyed(*keys: dict[str, Any], flag: int) -> None:
        raw = copy.deepcopy(source.tables["t"].info.raw)
        raw["cols"][2]["type"]["Flag"] = flag
        raw["index_info"] = list(keys)
        source.alter("t", Action.ADD_PRIMARY_KEY if keys else Action.DROP_PRIMARY_KEY, raw)

    def generated_on_target() -> bool:
        words = target.value(
            "SELECT extra FROM information_schema.columns WHERE table_name = 't' AND column_name = 'g'"
        )
        return "GENERATED" in str(words)

    write(1)
    if when == "in the log":
        source.genesis()
    keyed(index(1, "PRIMARY", ("g", 2), unique=True, primary=True), flag=int(KEY))
    write(2)
    if when != "in the log":
        source.genesis()
        write(3)
    check(source, settings, target)
    assert not generated_on_target()
    assert [row[2] for row in target.query("SHOW INDEX FROM d.t")] == ["PRIMARY"]
    keyed(flag=0)
    write(4)
    check(source, settings, target)
    assert generated_on_target()
