"""Generated columns that a target refuses, or may compute otherwise than the source, and what is there instead.

A STORED one becomes a plain column: its values are in the binlogs. So does one of a primary key, which MariaDB refuses.
A VIRTUAL one is in no binlog: it is left out where its values may differ, and keeps no index where the target refuses
that; a CHECK that names it goes with it. Of a TiDB's expressions those are computed that are known to be computed alike
(`pumphouse.schema.expressions`); those of another server, whose history was imported, as long as nothing is known
against them. How a table that is there has its columns, it says itself: an earlier release, a rule or the server's
refusal may have made it otherwise. The rules are in docs/types.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from pumphouse.model.table import INTEGERS, STRINGS, ColumnFlag, ColumnInfo, FieldType, MysqlType, TableInfo, cistr
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.expressions import alike
from pumphouse.schema.ident import quote

_NAME = re.compile(r"`((?:[^`]|``)+)`")
# Of bytes these give the same everywhere.
_OF_BYTES = re.compile(
    r"\b(?:hex|to_base64|md5|sha1?|crc32|length|octet_length|bit_length|isnull)\(`(?:[^`]|``)+`\)", re.IGNORECASE
)
_REALS = frozenset({MysqlType.FLOAT, MysqlType.DOUBLE})


class Way(Enum):
    """How a target has a generated column."""

    COMPUTED = auto()
    PLAIN = auto()
    ABSENT = auto()


Ways = Mapping[int, Way]
Pairs = list[tuple[ColumnInfo | None, ColumnInfo]]


def on_target(table: TableInfo, dialect: Dialect, decided: Ways | None = None, *, bare: bool = False) -> TableInfo:
    """The table as a target has it: columns that it carries are not generated there, those it lacks are hidden.

    A TiDB has every table as the source has it.

    Args:
        table: as the source has it.
        dialect: of the target.
        decided: by column id, how it has some of the columns already.
        bare: it refused the others.
    """
    if not any(column.generated for column in table.columns):
        return table
    ways = ways_of(table, dialect, decided, bare=bare)
    columns = tuple(_column(column, ways[column.id]) if column.id in ways else column for column in table.columns)
    unsteady = {
        column.name.lower()
        for column in columns
        if dialect is not Dialect.TIDB and column.generated and not column.hidden and _unsteady(table, column)
    }
    indexes = tuple(
        index for index in table.indexes if not any(part.name.lower() in unsteady for part in index.columns)
    )
    gone = _checks_over(table, _those(ways, Way.ABSENT))
    raw = table.raw
    if gone:
        raw = {**raw, "constraint_info": [each for each in raw["constraint_info"] if each not in gone]}
    return replace(table, columns=columns, indexes=indexes, raw=raw)


def _column(column: ColumnInfo, way: Way) -> ColumnInfo:
    if way is Way.ABSENT:
        return replace(column, hidden=True)
    return _plain(column) if way is Way.PLAIN else column


def _plain(column: ColumnInfo) -> ColumnInfo:
    return replace(column, generated_expr="", generated_stored=False, default=None, default_bit=None)


def ways_there(table: TableInfo, there: Mapping[str, bool]) -> dict[int, Way]:
    """How a target's table has the generated columns; ``there``: its columns in lower case, and which it computes."""
    return {
        column.id: Way.ABSENT
        if column.name.lower() not in there
        else Way.COMPUTED
        if there[column.name.lower()]
        else Way.PLAIN
        for column in table.public_columns
        if column.generated
    }


def ways_after(before: TableInfo, after: TableInfo, there: Ways, dialect: Dialect) -> dict[int, Way]:
    """Of a table that changes, the columns that it goes on having as it has them: where nothing says otherwise now."""
    old, new = ways_of(before, dialect), ways_of(after, dialect)
    texts = {column.id: column.generated_expr for column in before.columns}
    return {
        column.id: there[column.id]
        for column in after.columns
        if column.id in there and texts[column.id] == column.generated_expr and old[column.id] is new[column.id]
    }


def carried(table: TableInfo) -> frozenset[int]:
    """Ids of the STORED columns that no target computes: who writes binlogs gives their values."""
    return _otherwise(table)[0]


def as_rows(table: TableInfo, dialect: Dialect) -> tuple[TableInfo, frozenset[str], frozenset[str]]:
    """The table as rows have it: of a TiDB all STORED columns come with them.

    Returns:
        the table; names of the columns that are for targets which do not compute them; those of these that a target is
        to compute, so that an old dump may lack them.
    """
    there, must = on_target(table, dialect), carried(table)
    stored = {c.id for c in table.public_columns if c.generated_stored and table.of_tidb} - must
    computed = {c.id for c in there.columns if c.generated} & stored
    columns = tuple(_plain(c) if c.id in computed else c for c in there.columns)
    names = {c.id: c.name for c in table.columns}
    return (
        replace(there, columns=columns) if computed else there,
        frozenset(names[each] for each in stored),
        frozenset(names[each] for each in computed),
    )


def notes_of(table: TableInfo, dialect: Dialect, *, bare: bool = False) -> list[str]:
    """What of a table's generated columns is otherwise on a target, in words."""
    ways = ways_of(table, dialect, bare=bare)
    why = "the target refuses it" if bare else "its values are not known to be the source's here"
    said = {
        Way.PLAIN: f"the generated column {table.name}.{{}} is plain and gets the source's values",
        Way.ABSENT: f"the generated column {table.name}.{{}} is left out: {why}",
    }
    return [
        said[ways[column.id]].replace("{}", column.name)
        for column in table.public_columns
        if ways.get(column.id) in said
    ] + [
        f"the CHECK {cistr(each.get('constraint_name'))} of {table.name} is left out, with a column that it names"
        for each in _checks_over(table, _those(ways, Way.ABSENT))
    ]


def _checks_over(table: TableInfo, absent: Container[int]) -> list[dict[str, Any]]:
    """CHECK constraints that name one of these columns."""
    return [
        each
        for each in table.raw.get("constraint_info") or ()
        if any(column.id in absent for column in _named(table, str(each.get("expr_string"))))
    ]


def _those(ways: Ways, way: Way) -> frozenset[int]:
    return frozenset(id_ for id_, each in ways.items() if each is way)


def ways_of(table: TableInfo, dialect: Dialect, decided: Ways | None = None, *, bare: bool = False) -> dict[int, Way]:
    """How a target gets the generated columns, by id; arguments as in `on_target`."""
    ways: dict[int, Way] = {}
    plain, absent = _otherwise(table)
    tidb, by_name = table.of_tidb, {column.name.lower(): column for column in table.columns}
    for column in table.columns:  # one may name only generated columns before it
        if not column.generated:
            continue
        if decided and column.id in decided:
            ways[column.id] = decided[column.id]
        elif (
            dialect is Dialect.TIDB
            or (column.id not in plain | absent and not (tidb and (bare or not alike(column, by_name))))
        ) and not any(ways.get(each.id) is Way.ABSENT for each in _named(table, column.generated_expr)):
            ways[column.id] = Way.COMPUTED
        else:
            has_values = column.generated_stored and (tidb or column.id in plain)
            ways[column.id] = Way.PLAIN if has_values else Way.ABSENT
    return ways


def _otherwise(table: TableInfo) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of the columns that are known to be others on a target: the STORED ones, and the VIRTUAL ones."""
    plain, absent = set(), set()
    primary = {part.name.lower() for part in table.primary_key()}
    for column in table.columns:
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
    text = column.type.tp in STRINGS and column.type.charset != "binary"
    named = _sources(table, _OF_BYTES.sub("", column.generated_expr))
    if text and any(each.type.tp in _REALS for each in named):
        return True
    return (text or column.type.tp not in STRINGS) and any(
        each.type.tp in STRINGS and each.type.charset == "binary" for each in named
    )


def _unsteady(table: TableInfo, column: ColumnInfo) -> bool:
    """Whether it depends on a session: on PAD_CHAR_TO_FULL_LENGTH (a CHAR) or on the time zone (a TIMESTAMP)."""
    return any(
        each.type.tp == MysqlType.TIMESTAMP or (each.type.tp == MysqlType.STRING and each.type.charset != "binary")
        for each in _sources(table, column.generated_expr)
    )


def computed_anew(before: TableInfo, after: TableInfo, pairs: Pairs) -> list[ColumnInfo]:
    """STORED columns of ``after`` of which a DDL may have made other values, which no binlog has.

    MySQL and MariaDB add such a column to rows that are there, change its expression, and the types of the columns that
    it is computed from. A TiDB does none of that. Where another column takes the name of one that is dropped, the text
    of the expression is as before.

    Args:
        before: the table.
        after: it, behind the DDL.
        pairs: for each column of ``after`` the one that it was; None = it is new.
    """
    kept = {old.id for old, _ in pairs if old is not None}
    names = {c.name.lower(): "" for c in before.columns if c.id not in kept}
    names |= {old.name.lower(): new.name for old, new in pairs if old is not None}
    was = {new.id: old for old, new in pairs}

    def told_alike(column: ColumnInfo) -> bool:
        old = was.get(column.id)
        return old is not None and column.generated_expr == named_anew(old.generated_expr, names)

    def valued_alike(column: ColumnInfo) -> bool:
        old = was.get(column.id)
        return old is not None and told_alike(column) and (after.of_tidb or _same_form(old.type, column.type))

    return [
        column
        for column in after.public_columns
        if column.generated_stored
        and not (told_alike(column) and all(map(valued_alike, _sources(after, column.generated_expr))))
    ]


def _same_form(old: FieldType, new: FieldType) -> bool:
    """Whether all that is computed from a value is the same where its column has the new type."""
    integers = old.tp in INTEGERS and new.tp in INTEGERS
    fixed = new.tp == MysqlType.STRING and new.charset == "binary"
    return (
        (integers or (old.tp == new.tp and old.flen <= new.flen and not (fixed and old.flen != new.flen)))
        and (old.decimal, old.charset, old.collate) == (new.decimal, new.charset, new.collate)
        and (old.flag ^ new.flag) & (ColumnFlag.UNSIGNED | ColumnFlag.ZEROFILL) == 0
        and new.elems[: len(old.elems)] == old.elems
    )


def named_anew(expression: str, names: Mapping[str, str]) -> str:
    """An expression with the new names of columns, which a server gives it by itself."""
    return rename_in(expression, lambda name: names.get(name.lower(), name))


def rename_in(expression: str, renamed: Callable[[str], str]) -> str:
    """An expression with other names of columns."""
    return _NAME.sub(lambda found: quote(renamed(found[1].replace("``", "`"))), expression)


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
