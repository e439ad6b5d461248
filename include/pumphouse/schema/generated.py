"""Generated columns that a target refuses, or would compute otherwise than TiDB: which ones, and what is there instead.

A STORED one becomes a plain column: its values are in the binlogs. So does one of a primary key, which MariaDB refuses.
A VIRTUAL one is in no binlog: it is left out where its values would differ, and keeps no index where the target refuses
that; a CHECK that names it goes with it. The rules are in docs/types.md.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace
from typing import Any

from pumphouse.model.table import ColumnInfo, MysqlType, TableInfo, cistr
from pumphouse.schema.dialect import Dialect

_NAME = re.compile(r"`((?:[^`]|``)+)`")
# Of bytes these give the same everywhere.
_OF_BYTES = re.compile(
    r"\b(?:hex|to_base64|md5|sha1?|crc32|length|octet_length|bit_length|isnull)\(`(?:[^`]|``)+`\)", re.IGNORECASE
)
_STRINGS = frozenset({
    MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING,
    MysqlType.TINY_BLOB, MysqlType.BLOB, MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB,
})  # fmt: skip
_REALS = frozenset({MysqlType.FLOAT, MysqlType.DOUBLE})


def on_target(table: TableInfo, dialect: Dialect) -> TableInfo:
    """The table as a target has it: columns that it carries are not generated there, those it lacks are hidden.

    A TiDB has every table as the source has it.
    """
    if dialect is Dialect.TIDB or not any(column.generated for column in table.columns):
        return table
    plain, absent = _instead(table)
    columns = tuple(
        replace(column, hidden=True)
        if column.id in absent
        else replace(column, generated_expr="", generated_stored=False, default=None, default_bit=None)
        if column.id in plain
        else column
        for column in table.columns
    )
    unsteady = {
        column.name.lower() for column in columns if column.generated and not column.hidden and _unsteady(table, column)
    }
    indexes = tuple(
        index for index in table.indexes if not any(part.name.lower() in unsteady for part in index.columns)
    )
    gone = _checks_over(table, absent)
    raw = table.raw
    if gone:
        raw = {**raw, "constraint_info": [each for each in raw["constraint_info"] if each not in gone]}
    return replace(table, columns=columns, indexes=indexes, raw=raw)


def carried(table: TableInfo) -> frozenset[int]:
    """Ids of the STORED columns whose values come with the rows."""
    return _instead(table)[0]


def notes_of(table: TableInfo, dialect: Dialect) -> list[str]:
    """What of a table's generated columns is otherwise on a target, in words."""
    if dialect is Dialect.TIDB:
        return []
    plain, absent = _instead(table)
    return [
        f"the generated column {table.name}.{column.name} is plain and gets the source's values"
        if column.id in plain
        else f"the generated column {table.name}.{column.name} is left out: its values would be others here"
        for column in table.public_columns
        if column.id in plain | absent
    ] + [
        f"the CHECK {cistr(each.get('constraint_name'))} of {table.name} is left out, with a column that it names"
        for each in _checks_over(table, absent)
    ]


def _checks_over(table: TableInfo, absent: Container[int]) -> list[dict[str, Any]]:
    """CHECK constraints that name one of these columns."""
    return [
        each
        for each in table.raw.get("constraint_info") or ()
        if any(column.id in absent for column in _named(table, str(each.get("expr_string"))))
    ]


def _instead(table: TableInfo) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of the columns that become plain, and of those that are left out."""
    plain, absent = set(), set()
    primary = {part.name.lower() for part in table.primary_key()}
    for column in table.columns:  # one may name only generated columns before it
        if not column.generated:
            continue
        differs = _differs(table, column) or any(each.id in absent for each in _named(table, column.generated_expr))
        if column.generated_stored and (differs or _unsteady(table, column) or column.name.lower() in primary):
            plain.add(column.id)
        elif differs and not column.generated_stored:
            absent.add(column.id)
    return frozenset(plain), frozenset(absent)


def _differs(table: TableInfo, column: ColumnInfo) -> bool:
    """Whether bytes become text or a number, or a float becomes text: then each server has its own idea."""
    text = column.type.tp in _STRINGS and column.type.charset != "binary"
    named = _sources(table, _OF_BYTES.sub("", column.generated_expr))
    if text and any(each.type.tp in _REALS for each in named):
        return True
    return (text or column.type.tp not in _STRINGS) and any(
        each.type.tp in _STRINGS and each.type.charset == "binary" for each in named
    )


def _unsteady(table: TableInfo, column: ColumnInfo) -> bool:
    """Whether it depends on a session: on PAD_CHAR_TO_FULL_LENGTH (a CHAR) or on the time zone (a TIMESTAMP)."""
    return any(
        each.type.tp == MysqlType.TIMESTAMP or (each.type.tp == MysqlType.STRING and each.type.charset != "binary")
        for each in _sources(table, column.generated_expr)
    )


def _named(table: TableInfo, expression: str) -> list[ColumnInfo]:
    names = {found.replace("``", "`").lower() for found in _NAME.findall(expression)}
    return [column for column in table.columns if column.name.lower() in names]


def _sources(table: TableInfo, expression: str) -> list[ColumnInfo]:
    """The columns with values of their own that an expression comes from, and the generated ones in between."""
    found: dict[int, ColumnInfo] = {}
    waiting = _named(table, expression)
    while waiting:
        column = waiting.pop()
        if column.id not in found:
            found[column.id] = column
            waiting += _named(table, column.generated_expr)
    return list(found.values())
