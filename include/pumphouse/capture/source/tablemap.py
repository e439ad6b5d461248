"""TABLE_MAP events with full metadata: a table's columns as the rows events behind it have them.

Format: MySQL's Table_map_event; its optional metadata fields are MariaDB's (10.5) too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pumphouse.capture.source import codes
from pumphouse.capture.source.events import Fields, damaged
from pumphouse.capture.source.gtid import Flavor
from pumphouse.capture.source.model import Column, TableMap
from pumphouse.model.table import MysqlType

_NUMBERS = frozenset({
    MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG, MysqlType.LONGLONG, MysqlType.FLOAT,
    MysqlType.DOUBLE, MysqlType.NEWDECIMAL, MysqlType.YEAR,
})  # fmt: skip
_TEXTS = frozenset({
    MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING, MysqlType.BLOB, MysqlType.TINY_BLOB,
    MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB, codes.BLOB_COMPRESSED, codes.VARCHAR_COMPRESSED,
})  # fmt: skip
_CHOICES = frozenset({MysqlType.ENUM, MysqlType.SET})
# Bytes of metadata that a type has; two are little endian, but for those that say a type and a length.
_META = {
    MysqlType.FLOAT: 1, MysqlType.DOUBLE: 1, MysqlType.BLOB: 1, MysqlType.GEOMETRY: 1, MysqlType.JSON: 1,
    MysqlType.TINY_BLOB: 1, MysqlType.MEDIUM_BLOB: 1, MysqlType.LONG_BLOB: 1, codes.TIMESTAMP2: 1, codes.DATETIME2: 1,
    codes.TIME2: 1, codes.BLOB_COMPRESSED: 1, codes.VECTOR: 1,
    MysqlType.VARCHAR: 2, codes.VARCHAR_COMPRESSED: 2, MysqlType.BIT: 2, MysqlType.NEWDECIMAL: 2, MysqlType.STRING: 2,
    MysqlType.VAR_STRING: 2, MysqlType.ENUM: 2, MysqlType.SET: 2,
}  # fmt: skip

SIGNEDNESS, DEFAULT_CHARSET, COLUMN_CHARSET, NAMES, SET_VALUES, ENUM_VALUES = 1, 2, 3, 4, 5, 6
PRIMARY_KEY, PRIMARY_KEY_PREFIX, ENUM_DEFAULT_CHARSET, ENUM_COLUMN_CHARSET, VISIBILITY = 8, 9, 10, 11, 12


def read(definition: bytes, flavor: Flavor) -> TableMap:
    """The definition in a TABLE_MAP event: what stands behind table number and flags.

    ``flavor``: a MariaDB counts a geometry among the columns with a character set, a MySQL does not.

    Raises:
        CorruptionError: it makes no sense.
    """
    fields = Fields(definition, "a table map")
    schema = fields.counted()
    fields.take(1)
    table = fields.counted()
    fields.take(1)
    count = fields.lenenc()
    types = fields.take(count)
    metas = Fields(fields.counted(), "a table map")
    columns = [_column(metas, tp) for tp in types]
    nulls = fields.take((count + 7) // 8)
    columns = [replace(column, nullable=bool(nulls[at // 8] >> at % 8 & 1)) for at, column in enumerate(columns)]
    texts = _TEXTS | {MysqlType.GEOMETRY} if flavor is Flavor.MARIADB else _TEXTS
    while fields.left:
        kind = fields.number(1)
        _add(columns, kind, Fields(fields.counted(), "a table map"), texts)
    return TableMap(
        schema=schema.decode("utf-8", "surrogateescape"),
        table=table.decode("utf-8", "surrogateescape"),
        columns=tuple(columns),
    )


def _column(metas: Fields, tp: int) -> Column:
    width = _META.get(tp, 0)
    raw = metas.take(width)
    meta = int.from_bytes(raw, "little")
    if tp in (MysqlType.NEWDECIMAL, MysqlType.STRING, MysqlType.ENUM, MysqlType.SET):
        meta = raw[0] << 8 | raw[1]
    if tp == MysqlType.STRING:
        # The type, or a type whose bits 4 and 5 hold the two highest bits of the length, inverted.
        real, length = raw
        if real & 0x30 != 0x30:
            length |= (real & 0x30 ^ 0x30) << 4
            real |= 0x30
        tp, meta = real, length
    elif tp in _CHOICES:
        meta = raw[1]
    elif tp == MysqlType.BIT:
        meta = raw[1] * 8 + raw[0]
    return Column(name="", tp=tp, meta=meta, nullable=True)


def _add(columns: list[Column], kind: int, fields: Fields, texts: frozenset[int]) -> None:  # noqa: C901, PLR0912 - one a field
    """One field of the optional metadata."""
    if kind == SIGNEDNESS:
        numbers = [at for at, column in enumerate(columns) if column.tp in _NUMBERS]
        bits = fields.rest()
        if len(bits) < (len(numbers) + 7) // 8:
            raise damaged("a table map lacks signs of its columns")
        for place, at in enumerate(numbers):
            columns[at] = replace(columns[at], unsigned=bool(bits[place // 8] >> 7 - place % 8 & 1))
    elif kind in (DEFAULT_CHARSET, ENUM_DEFAULT_CHARSET):
        of = [at for at, c in enumerate(columns) if c.tp in (texts if kind == DEFAULT_CHARSET else _CHOICES)]
        default = fields.lenenc()
        for at in of:
            columns[at] = replace(columns[at], collation=default)
        while fields.left:
            place, collation = fields.lenenc(), fields.lenenc()
            if place >= len(of):
                raise damaged("a table map names a character set of a column that it has not")
            columns[of[place]] = replace(columns[of[place]], collation=collation)
    elif kind in (COLUMN_CHARSET, ENUM_COLUMN_CHARSET):
        for at, column in enumerate(columns):
            if column.tp in (texts if kind == COLUMN_CHARSET else _CHOICES):
                columns[at] = replace(column, collation=fields.lenenc())
    elif kind == NAMES:
        for at, column in enumerate(columns):
            columns[at] = replace(column, name=fields.counted().decode("utf-8", "surrogateescape"))
    elif kind in (SET_VALUES, ENUM_VALUES):
        of_type = MysqlType.SET if kind == SET_VALUES else MysqlType.ENUM
        for at, column in enumerate(columns):
            if column.tp == of_type:
                columns[at] = replace(column, elements=tuple(fields.counted() for _ in range(fields.lenenc())))
    elif kind in (PRIMARY_KEY, PRIMARY_KEY_PREFIX):
        _add_key(columns, fields, prefixed=kind == PRIMARY_KEY_PREFIX)
    elif kind == VISIBILITY:
        bits = fields.rest()
        for at in range(min(len(columns), len(bits) * 8)):
            columns[at] = replace(columns[at], visible=bool(bits[at // 8] >> 7 - at % 8 & 1))


def _add_key(columns: list[Column], fields: Fields, *, prefixed: bool) -> None:
    place = 0
    while fields.left:
        at = fields.lenenc()
        prefix = fields.lenenc() if prefixed else 0
        if at >= len(columns):
            raise damaged("a table map has a column in its key that it has not")
        columns[at] = replace(columns[at], key=place, key_prefix=prefix)
        place += 1


def has_names(columns: Sequence[Column]) -> bool:
    """Whether the source says all of a table that is needed: binlog_row_metadata=FULL."""
    return all(column.name for column in columns)
