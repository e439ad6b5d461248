"""MODIFY COLUMN on a real MariaDB, held against what a TiDB made of the same values (tests/tidb/conversions.py)."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.codec.json import encode_json, json_text
from pumphouse.errors import ConversionUnknown
from pumphouse.loader import fence
from pumphouse.loader.ddl import DdlExecutor, forget_ddl
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import ColumnFlag, FieldType
from pumphouse.schema.actions import Action
from pumphouse.schema.column_sql import type_sql
from pumphouse.schema.conversion import Conversion, conversion
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import literal
from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.kind import is_mysql
from tests.support.loading import drop_all
from tests.support.schemajobs import Source, find, int_col, key, name
from tests.tidb.conversions import shown

pytestmark = [pytest.mark.row("S2", "L6"), pytest.mark.timeout(300)]

RECORD = json.loads((Path(__file__).parents[1] / "recorded" / "conversions.json").read_text())
FIELDS = {kind: FieldType.from_dict(field) for kind, field in RECORD["fields"].items()}
STRICT, LOOSE = {"sql_mode": 1436549152}, {"sql_mode": 0}
_AT_ONCE = 12  # columns of one table
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "bit", "enum", "set", "year")


@pytest.fixture
def owned(server: TargetSettings) -> Iterator[tuple[TargetConnection, fence.Ownership]]:
    with TargetConnection.open(server) as connection:
        drop_all(connection)
    with mariadb.owned(server) as (connection, owner):
        connection.execute("CREATE DATABASE d")
        yield connection, owner


class Changed:
    """A table d.t of values of one type, a column for each type that they are changed into."""

    def __init__(self, connection: TargetConnection, owner: fence.Ownership) -> None:
        self.connection, self.owner = connection, owner
        forget_ddl(connection)
        self.source = Source()
        self.source.create_db("d")

    def create(self, old: str, count: int, **more: Any) -> None:
        self.connection.execute("DROP TABLE IF EXISTS d.t")
        columns = [int_col("id", flag=4099)] + [_column(f"c{at}", RECORD["fields"][old]) for at in range(count)]
        self.source.create("d.t", columns, ShardRowIDBits=0, **more)  # a TiDB's
        self.run()

    def fill(self, old: str, keep: list[list[bool]]) -> None:
        """The recorded values, NULL where they are not kept."""
        _as_a_source(self.connection)
        for number, value in enumerate(RECORD["values"][old]):
            text = literal(json_text(encode_json(value[1:-1]))) if old == "json" else value
            row = ", ".join(text if column[number] else "NULL" for column in keep)
            self.connection.execute(f"INSERT INTO d.t VALUES ({number}, {row})")

    def modify(self, new: list[str], mode: dict[str, Any]) -> None:
        """One job that changes every column."""

        def change(raw: dict[str, Any]) -> None:
            for at, kind in enumerate(new):
                column = find(raw, f"c{at}")
                column["id"], column["type"] = 0, copy.deepcopy(RECORD["fields"][kind])

        parts = [{"type": int(Action.MODIFY_COLUMN), "raw_args": []} for _ in new]
        self.source.alter(
            "d.t", Action.MULTI_SCHEMA_CHANGE, change, multi_schema_info={"sub_jobs": parts}, reorg_meta=mode
        )
        self.run()

    def run(self) -> None:
        executor = DdlExecutor(self.connection, self.owner, "main")
        for event in self.source.timeline().events:
            executor.execute(event)

    def show(self) -> str:
        return str(self.connection.query("SHOW CREATE TABLE d.t")[0][1])

    def column(self, at: int, kind: str) -> list[str | None]:
        rows = self.connection.query(f"SELECT {shown(kind).replace('{}', f'c{at}')} FROM d.t ORDER BY id")
        return [_text(value) for (value,) in rows]


def _column(title: str, field: dict[str, Any]) -> dict[str, Any]:
    return {**int_col(title), "type": copy.deepcopy(field)}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else repr(value) if isinstance(value, float) else str(value)


def _comparable(kind: str, value: str | None) -> Any:
    if value is None:
        return None
    if kind.startswith(("float", "double", *_INTEGERS)) and "." in value:
        return float(value)
    return int(value) if kind.startswith(_INTEGERS) else value


def _cases() -> list[tuple[str, str]]:
    return [(mode, old) for mode in ("strict", "loose") for old in RECORD[mode] if _known(mode, old)]


def _known(mode: str, old: str) -> list[str]:
    return [new for new in RECORD[mode][old] if _conversion(old, new, strict=mode == "strict") is not None]


def _conversion(old: str, new: str, *, strict: bool) -> Conversion | None:
    dialect = Dialect.MYSQL if is_mysql() else Dialect.MARIADB
    return conversion(FIELDS[old], FIELDS[new], strict=strict, dialect=dialect)


@pytest.mark.parametrize(("mode", "old"), _cases())
def test_values_become_what_tidb_makes_of_them(
    owned: tuple[TargetConnection, fence.Ownership], mode: str, old: str
) -> None:
    strict = mode == "strict"
    known = _known(mode, old)
    differing = []
    for begin in range(0, len(known), _AT_ONCE):
        some = known[begin : begin + _AT_ONCE]
        wanted = [RECORD[mode][old][new] for new in some]
        unless = [_unless(owned[0], old, new, strict=strict) for new in some]
        table = Changed(*owned)
        table.create(old, len(some))
        # What TiDB refuses was not there to be cast; what is not known to us, another test looks at.
        kept = [
            [not out and (not strict or value is not None) for value, out in zip(*each, strict=True)]
            for each in zip(wanted, unless, strict=True)
        ]
        table.fill(old, kept)
        table.modify(some, STRICT if strict else LOOSE)
        for at, new in enumerate(some):
            found = table.column(at, new)
            for literal_, want, have, keep in zip(RECORD["values"][old], wanted[at], found, kept[at], strict=True):
                if keep and want is not None and _comparable(new, want) != _comparable(new, have):
                    differing.append(f"{literal_} as {new}: {have}, TiDB has {want}")
    assert differing == []


def _as_a_source(connection: TargetConnection) -> None:
    """What any mode takes, and fractions of seconds rounded, as MySQL does it anyway."""
    rounding = "" if is_mysql() else ",TIME_ROUND_FRACTIONAL"
    connection.execute(f"SET sql_mode = 'ALLOW_INVALID_DATES{rounding}'")


def _unless(connection: TargetConnection, old: str, new: str, *, strict: bool) -> list[bool]:
    """Of which values it is not known."""
    how = _conversion(old, new, strict=strict)
    assert how is not None
    if not how.unless:
        return [False] * len(RECORD["values"][old])
    _as_a_source(connection)
    connection.execute("DROP TEMPORARY TABLE IF EXISTS pumphouse.probe")
    connection.execute(f"CREATE TEMPORARY TABLE pumphouse.probe (v {type_sql(FIELDS[old], connection.dialect)})")
    found = []
    for value in RECORD["values"][old]:
        connection.execute("DELETE FROM pumphouse.probe")
        connection.execute(f"INSERT INTO pumphouse.probe VALUES ({value})")
        found.append(bool(connection.query(f"SELECT 1 FROM pumphouse.probe WHERE {how.unless.replace('{old}', 'v')}")))
    return found


def test_a_change_whose_values_are_not_known_stops_before_it_and_names_the_rule(
    owned: tuple[TargetConnection, fence.Ownership],
) -> None:
    table = Changed(*owned)
    table.create("json", 1)
    table.connection.execute("INSERT INTO d.t VALUES (1, '[]')")
    with pytest.raises(
        ConversionUnknown, match=r"d\.t: c0 from json to int(\(11\))?\. What the source makes"
    ) as caught:
        table.modify(["int"], STRICT)
    job = table.source.jobs[-1].job.id
    assert f'do = "skip"\nddl = {job}' in caught.value.hint
    assert 'do = "park"\ntable = "d.t"' in caught.value.hint
    assert "pumphouse load --resync d.t" in caught.value.hint
    assert ("json" if is_mysql() else "longtext") in table.show()
    # Without rows any change is right.
    table.connection.execute("DELETE FROM d.t")
    table.run()
    assert "`c0` int" in table.show()


def test_a_change_of_which_one_value_is_not_known_stops_for_that_value_alone(
    owned: tuple[TargetConnection, fence.Ownership],
) -> None:
    table = Changed(*owned)
    table.create("varchar(60)", 1)
    table.connection.execute("INSERT INTO d.t VALUES (1, '1e400'), (2, '1.5')")
    with pytest.raises(ConversionUnknown, match=r"c0 from varchar.* where LOWER"):
        table.modify(["int"], STRICT)
    table.connection.execute("DELETE FROM d.t WHERE id = 1")
    table.run()
    assert table.connection.query("SELECT * FROM d.t") == [(2, 2)]


@pytest.mark.parametrize("keyed", [True, False])
def test_values_are_cast_once_wherever_the_change_is_killed(
    owned: tuple[TargetConnection, fence.Ownership], keyed: bool
) -> None:
    """Columns of keys, in the middle, renamed, NOT NULL, beside one that an UPDATE would touch."""
    connection, owner = owned
    killed = 0
    while True:
        table = Changed(connection, owner)
        connection.execute("DROP TABLE IF EXISTS d.t")
        stamp = {**_column("at", RECORD["fields"]["datetime"]), "default": "CURRENT_TIMESTAMP"}
        stamp["type"]["Flag"] |= ColumnFlag.ON_UPDATE_NOW
        columns = [
            int_col("id", flag=4099 if keyed else 0), _column("d", RECORD["fields"]["double"]), stamp,
            _column("v", RECORD["fields"]["varchar(60)"]), int_col("last"),
        ]  # fmt: skip
        keys = [key("on_d", "d", unique=True), key("on_dv", ("v", 5), "d"), key("on_last", "last")]
        table.source.create("d.t", columns, keys)
        table.run()
        connection.execute(
            "INSERT INTO d.t VALUES (1, 1e20, '2020-01-01', '-1.6', 7), (2, 1.5, '2020-01-01', '1e3', 8),"
            " (3, NULL, '2020-01-01', '4', 9)"
        )

        def change(raw: dict[str, Any]) -> None:
            text, number = find(raw, "d"), find(raw, "v")
            text["id"], text["type"], text["name"] = 0, copy.deepcopy(RECORD["fields"]["varchar(60)"]), name("t")
            number["id"], number["type"] = 0, copy.deepcopy(RECORD["fields"]["int"])
            number["type"]["Flag"] |= ColumnFlag.NOT_NULL
            for index in raw["index_info"]:
                for part in index["idx_cols"]:
                    part["length"] = -1
                    if part["name"]["O"] == "d":
                        part["name"] = name("t")

        parts = [{"type": int(Action.MODIFY_COLUMN), "raw_args": []}] * 2
        table.source.alter(
            "d.t", Action.MULTI_SCHEMA_CHANGE, change, multi_schema_info={"sub_jobs": parts}, reorg_meta=STRICT
        )
        with failing_once(connection, killed) as left, contextlib.suppress(ConnectionAbortedError):
            table.run()
        table.run()
        assert connection.query("SELECT id, t, CAST(at AS CHAR), v, last FROM d.t ORDER BY id") == [
            (1, "100000000000000000000", "2020-01-01 00:00:00", -2, 7),
            (2, "1.5", "2020-01-01 00:00:00", 1000, 8),
            (3, None, "2020-01-01 00:00:00", 4, 9),
        ]
        shown_ = table.show()
        assert [line.split("`")[1] for line in shown_.splitlines() if line.startswith("  `")] == [
            "id",
            "t",
            "at",
            "v",
            "last",
        ]
        for part in (
            "UNIQUE KEY `on_d` (`t`)",
            "KEY `on_dv` (`v`,`t`)",
            "KEY `on_last` (`last`)",
            "`v` int NOT NULL" if is_mysql() else "`v` int(11) NOT NULL",
        ):
            assert part in shown_
        if left[0] > 0:
            break
        killed += 1
    assert killed > 20


@contextlib.contextmanager
def failing_once(connection: TargetConnection, after: int) -> Iterator[list[int]]:
    """The connection fails before its statement number `after`, or behind it where that is odd; what was left of that."""
    execute, left = connection.execute, [after]

    def failing(sql: str, *args: Any) -> int:
        left[0] -= 1
        if left[0] == -1 and after % 2 == 0:
            raise ConnectionAbortedError
        done = execute(sql, *args)
        if left[0] == -1:
            raise ConnectionAbortedError
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "execute", failing)
        yield left
    connection.execute("ROLLBACK")
