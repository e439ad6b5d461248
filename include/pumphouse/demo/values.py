"""Random values for any column, as loader values: exactly what the source holds afterwards.

Texts are in the form in which a server prints them (all fraction digits, no ``-0``), so an old value that was read back
and a new one that was made up look alike.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pumphouse.codec.datum import Kind, Value, kind_of
from pumphouse.model.table import ColumnInfo, MysqlType, TableInfo

_BITS = {
    MysqlType.TINY: 8, MysqlType.SHORT: 16, MysqlType.INT24: 24, MysqlType.LONG: 32, MysqlType.LONGLONG: 64,
}  # fmt: skip
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789     '\"\\\t\n,;`%_äöüßéñ漢字한글🐬🚰"
_WORDS = (
    "pump",
    "valve",
    "river",
    "Stausee",
    "l'eau",
    "水",
    "вода",
    "agua",
    "π ≈ 3.14",
    "",
    "null",
    "NULL",
    "0",
    "\\N",
)

# Generated columns of the demo's tables: expression as TiDB keeps it -> the same in Python, by column name.
GENERATED: dict[str, Callable[[Mapping[str, Value]], Value]] = {
    "`qty` * 2": lambda row: None if row["qty"] is None else int(row["qty"]) * 2,
    "length(`sku`)": lambda row: None if row["sku"] is None else len(bytes(row["sku"])),  # type: ignore[arg-type]
}


class ValueMaker:
    """Makes values from a random source; ``serial`` numbers never repeat in the whole run."""

    def __init__(self, rng: random.Random, first_serial: int) -> None:
        self.rng = rng
        self._serial = first_serial

    def serial(self) -> int:
        """The next number of our own range."""
        self._serial += 1
        return self._serial

    def row(self, table: TableInfo, key: Mapping[int, Value] | None = None) -> dict[int, Value]:
        """A new row: keys and unique columns from serial numbers, the rest at random."""
        unique = unique_columns(table)
        row: dict[int, Value] = {}
        for column in table.public_columns:
            if column.generated:
                continue
            if key is not None and column.id in key:
                row[column.id] = key[column.id]
            else:
                row[column.id] = self.unique(column) if column.id in unique else self.value(column)
        return fill_generated(table, row)

    def unique(self, column: ColumnInfo) -> Value:
        """A value that no other row has."""
        number = self.serial()
        kind = kind_of(column.type)
        if kind in (Kind.INT, Kind.UINT):
            return number
        if kind is Kind.BYTES and column.type.charset == "binary":
            return number.to_bytes(min(column.type.flen, 16), "big")
        return f"{self.rng.choice(('Key', 'key', 'KEY'))}-{number}".encode()

    def value(self, column: ColumnInfo) -> Value:
        """Any value, NULL now and then where the column takes it."""
        if not column.type.not_null and self.rng.random() < 0.08:
            return None
        return _MAKERS[kind_of(column.type)](self.rng, column)


def unique_columns(table: TableInfo) -> set[int]:
    """Columns whose values must differ between rows: the last one of each unique key."""
    found = {table.columns[part.offset].id for part in table.primary_key()[-1:]}
    return found | {table.columns[i.columns[-1].offset].id for i in table.indexes if i.unique and not i.primary}


def fill_generated(table: TableInfo, row: dict[int, Value]) -> dict[int, Value]:
    """Add the generated columns."""
    names = {column.name: row.get(column.id) for column in table.columns}
    for column in table.public_columns:
        if column.generated:
            row[column.id] = GENERATED[column.generated_expr](names)
    return row


def _integer(rng: random.Random, column: ColumnInfo) -> Value:
    if column.type.tp == MysqlType.YEAR:
        return rng.choice((0, 1901, 2155, rng.randint(1950, 2060)))
    bits = column.type.flen if column.type.tp == MysqlType.BIT else _BITS[MysqlType(column.type.tp)]
    low, high = (0, (1 << bits) - 1) if column.type.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if rng.random() < 0.05:
        return rng.choice((low, high, 0))
    return rng.randint(max(low, -10_000), min(high, 10_000))


def _float(rng: random.Random, column: ColumnInfo) -> Value:
    del column
    found: float = struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0]
    return found


def _double(rng: random.Random, column: ColumnInfo) -> Value:
    del column
    return rng.choice((rng.uniform(-1e12, 1e12), rng.random() * 1e-9, 1.7976931348623157e308, 0.0, 1 / 3))


def _decimal(rng: random.Random, column: ColumnInfo) -> Value:
    precision, scale = column.type.flen, column.type.decimal
    digits = rng.randint(1, precision)
    number = rng.randrange(10**digits)
    text = str(number).zfill(scale + 1)
    text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
    return f"-{text}" if number and rng.random() < 0.4 else text


def _fraction(rng: random.Random, column: ColumnInfo) -> str:
    fsp = max(column.type.decimal, 0)
    return f".{rng.randrange(10**fsp):0{fsp}d}" if fsp else ""


def _date(rng: random.Random, column: ColumnInfo) -> Value:
    del column
    return rng.choice(("1000-01-01", "9999-12-31", f"{rng.randint(1950, 2060):04d}-{rng.randint(1, 12):02d}-28"))


def _datetime(rng: random.Random, column: ColumnInfo) -> Value:
    earliest = datetime(1990, 1, 1, tzinfo=UTC)
    moment = earliest + timedelta(seconds=rng.randrange(1_400_000_000))
    return moment.strftime("%Y-%m-%d %H:%M:%S") + _fraction(rng, column)


def _time(rng: random.Random, column: ColumnInfo) -> Value:
    sign = rng.choice(("", "-"))
    return f"{sign}{rng.randint(1, 837):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}{_fraction(rng, column)}"


def _json(rng: random.Random, column: ColumnInfo) -> Value:
    del column
    return json.dumps(_json_value(rng, 0), ensure_ascii=False)


def _json_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth < 2 else 6)
    if kind == 6:
        return [_json_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {f"k{n}": _json_value(rng, depth + 1) for n in range(rng.randrange(4))}
    return (rng.randint(-(10**12), 10**12), rng.random(), rng.choice(_WORDS), True, None, 18446744073709551615)[kind]


def _bytes(rng: random.Random, column: ColumnInfo) -> Value:
    field = column.type
    most = min(field.flen, 60)
    if field.charset == "binary":
        data = rng.randbytes(rng.randrange(most + 1))
        # BINARY(n) is filled up with zero bytes, by TiDB and by MariaDB.
        return data.ljust(field.flen, b"\0") if field.tp == MysqlType.STRING else data
    text = (
        rng.choice(_WORDS)[:most] if rng.random() < 0.3 else "".join(rng.choices(_LETTERS, k=rng.randrange(most + 1)))
    )
    return (text.rstrip(" ") if field.tp == MysqlType.STRING else text).encode()


def _enum(rng: random.Random, column: ColumnInfo) -> Value:
    return rng.randint(1, len(column.type.elems))


def _set(rng: random.Random, column: ColumnInfo) -> Value:
    return rng.randrange(1 << len(column.type.elems))


_MAKERS: dict[Kind, Callable[[random.Random, ColumnInfo], Value]] = {
    Kind.INT: _integer,
    Kind.UINT: _integer,
    Kind.FLOAT: _float,
    Kind.DOUBLE: _double,
    Kind.DECIMAL: _decimal,
    Kind.DATE: _date,
    Kind.DATETIME: _datetime,
    Kind.TIME: _time,
    Kind.JSON: _json,
    Kind.BYTES: _bytes,
    Kind.ENUM: _enum,
    Kind.SET: _set,
}
