"""Tables of every column type and kind of key, and values for them as a server gives them back."""

from __future__ import annotations

import json

from pumphouse.codec.datum import Kind, Value, kind_of
from pumphouse.model.table import ColumnInfo, MysqlType, TableInfo

TABLES = (
    "CREATE DATABASE every CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    """CREATE TABLE every.types (
      id BIGINT UNSIGNED PRIMARY KEY, ti TINYINT, tiu TINYINT UNSIGNED, si SMALLINT, mi MEDIUMINT UNSIGNED, i INT NOT NULL DEFAULT 7,
      bi BIGINT, f FLOAT, d DOUBLE, dc DECIMAL(30,10), dc0 DECIMAL(65,0), da DATE, dt DATETIME, dt6 DATETIME(6), ts TIMESTAMP(3) NULL,
      tm TIME(2), y YEAR, ch CHAR(12), vc VARCHAR(60), bin BINARY(9), vb VARBINARY(40), tt TINYTEXT, tx TEXT, mt MEDIUMTEXT,
      lt LONGTEXT, tb TINYBLOB, bl BLOB, mb MEDIUMBLOB, lb LONGBLOB, en ENUM('red','green','blue'), st SET('a','b','c','d'),
      bt BIT(17) DEFAULT b'101', js JSON)""",
    """CREATE TABLE every.composite (branch VARCHAR(12) NOT NULL, seq BIGINT UNSIGNED NOT NULL, amount DECIMAL(20,6) NOT NULL,
      at DATETIME(6), doc JSON, ratio DOUBLE, PRIMARY KEY (branch, seq))""",
    "CREATE TABLE every.keyless (tag INT NOT NULL, body VARCHAR(200), weight FLOAT, raw VARBINARY(30), KEY tag (tag))",
    """CREATE TABLE every.words (word VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY, secret VARBINARY(16) NOT NULL,
      n INT, width INT AS (length(word)), doubled BIGINT AS (n * 2) STORED, UNIQUE KEY secret (secret), KEY cut (word(10)))""",
    """CREATE TABLE every.ranges (id BIGINT PRIMARY KEY, value DOUBLE) PARTITION BY RANGE (id)
      (PARTITION p0 VALUES LESS THAN (1010), PARTITION p1 VALUES LESS THAN MAXVALUE)""",
)  # fmt: skip
_BITS = {
    MysqlType.TINY: 8, MysqlType.SHORT: 16, MysqlType.INT24: 24, MysqlType.LONG: 32, MysqlType.LONGLONG: 64,
}  # fmt: skip
_TEXTS = ("", "it's", 'a "b" \\ c', "tab\tline\n", "漢字 🚰", "null", "%_;`")


def row(table: TableInfo, number: int) -> dict[int, Value]:
    """Values of all columns but generated ones; two numbers give two keys."""
    keys = {table.columns[part.offset].id for part in table.primary_key()}
    keys |= {table.columns[part.offset].id for index in table.indexes if index.unique for part in index.columns}
    return {c.id: _key(c, number) if c.id in keys else _value(c, number) for c in table.columns if not c.generated}


def _key(column: ColumnInfo, number: int) -> Value:
    if kind_of(column.type) in (Kind.INT, Kind.UINT):
        return number
    return f"{number}".encode()


def _value(column: ColumnInfo, number: int) -> Value:
    field, kind = column.type, kind_of(column.type)
    if not field.not_null and number % 11 == 0:
        return None
    fraction = f".{number:0{field.decimal}d}"[: field.decimal + 1] if field.decimal > 0 else ""
    if kind in (Kind.INT, Kind.UINT):
        if field.tp == MysqlType.YEAR:
            return (0, 1901, 2155, 1999)[number % 4]
        bits = field.flen if field.tp == MysqlType.BIT else _BITS[MysqlType(field.tp)]
        low, high = (0, (1 << bits) - 1) if field.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        return (low, high, number % 100)[number % 3]
    if kind is Kind.BYTES and field.charset == "binary":
        data = bytes(each * number % 256 for each in range(min(number % 8, field.flen)))
        return data.ljust(field.flen, b"\0") if field.tp == MysqlType.STRING else data
    if kind is Kind.DECIMAL:
        return f"{'-' * (number % 2)}{'9' * (field.flen - max(field.decimal, 0))}{fraction}"
    return {
        Kind.FLOAT: (0.5, -1024.25, 16777216.0)[number % 3],
        Kind.DOUBLE: (1 / 3, 1.7976931348623157e308, 0.0)[number % 3],
        Kind.DATE: ("1000-01-01", "9999-12-31", "2024-02-29")[number % 3],
        Kind.DATETIME: f"20{10 + number % 20}-02-28 23:59:59{fraction}",
        Kind.TIME: f"{'-' * (number % 2)}{number % 838:02}:59:01{fraction}",
        Kind.JSON: json.dumps({"n": number, "texts": _TEXTS, "big": 18446744073709551615}, ensure_ascii=False),
        Kind.BYTES: _TEXTS[number % len(_TEXTS)][: field.flen].encode(),
        Kind.ENUM: 1 + number % len(field.elems or (1,)),
        Kind.SET: number % (1 << len(field.elems or ())),
    }[kind]
