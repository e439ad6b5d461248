"""Tables and columns of a server, as information_schema has them, and what differs between two of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from pumphouse.diff.rows import Column
from pumphouse.diff.servers import dialect_of, rows, text, value
from pumphouse.errors import SchemaError
from pumphouse.mysql import ServerConnection
from pumphouse.proof.servers import TABLES
from pumphouse.schema.dialect import JSON_TYPE, Dialect, charset_sql, json_of_check

_DISPLAY_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int|year)\(\d+\)")
_COMPUTED = ("VIRTUAL GENERATED", "STORED GENERATED", "PERSISTENT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table or a view. ``key``: columns of its primary key, in order; ``estimate``: rows, roughly."""

    columns: tuple[Column, ...]
    base: bool
    key: tuple[str, ...] = ()
    estimate: int = 0


def tables_of(connection: ServerConnection, schema: str, *, views: bool) -> dict[str, Table]:
    """Tables of a schema, and its views if they are asked for, by name."""
    sql = "SELECT TABLE_NAME, TABLE_TYPE, TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
    found = {text(name): (text(kind), int(text(count) or 0)) for name, kind, count in rows(connection, sql, schema)}
    checked = _json_checked(connection, schema)
    # A view has no check: any long text of a MariaDB's may be JSON, and counts by value where it is.
    by_value = {n for n, (k, _) in found.items() if k == "VIEW"} if dialect_of(connection) is Dialect.MARIADB else set()
    columns: dict[str, list[Column]] = {name: [] for name in found}
    sql = (
        "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA "
        "FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME, ORDINAL_POSITION"
    )
    for table, name, data_type, full, charset, collation, extra in list(rows(connection, sql, schema)):
        kind = text(data_type).lower()
        kept = (kind, text(collation)) == JSON_TYPE
        is_json = kind == "json" or (kept and (text(table), text(name)) in checked)
        columns[text(table)].append(
            Column(
                name=text(name),
                data_type=kind,
                type="json" if is_json else _DISPLAY_WIDTH.sub(r"\1", text(full)),
                json=is_json or (kind == "longtext" and text(table) in by_value),
                charset=text(charset),
                collation=text(collation).replace("utf8mb3_", "utf8_"),
                virtual="VIRTUAL GENERATED" in text(extra).upper(),
                computed=any(each in text(extra).upper() for each in _COMPUTED),
            )
        )
    keys: dict[str, list[str]] = {}
    sql = (
        "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s "
        "AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_NAME, SEQ_IN_INDEX"
    )
    for table, name in list(rows(connection, sql, schema)):
        keys.setdefault(text(table), []).append(text(name))
    return {
        name: Table(columns=tuple(columns[name]), base=kind in TABLES, key=tuple(keys.get(name, ())), estimate=estimate)
        for name, (kind, estimate) in found.items()
        if kind in TABLES or (views and kind == "VIEW")
    }


def others_of(connection: ServerConnection, schema: str) -> list[str]:
    """What else a schema has that is no view, in words."""
    sql = "SELECT TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s ORDER BY 1"
    found = [(text(name), text(kind)) for name, kind in rows(connection, sql, schema)]
    return [f"{schema}.{name}, a {kind.lower()}" for name, kind in found if kind not in (*TABLES, "VIEW")]


def _json_checked(connection: ServerConnection, schema: str) -> set[tuple[str, str]]:
    """MariaDB keeps JSON as LONGTEXT with a check; MySQL and TiDB have a type, and may lack the view."""
    named = "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema' "
    named += "AND TABLE_NAME = 'CHECK_CONSTRAINTS' AND COLUMN_NAME = 'LEVEL'"
    if value(connection, named) == "0":
        return set()
    sql = (
        "SELECT TABLE_NAME, LEVEL, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = %s"
    )
    return {
        (text(table), json_of_check(text(level), text(clause)))
        for table, level, clause in rows(connection, sql, schema)
    }


def without_virtual(table: Table, there: Table) -> tuple[Table, list[str]]:
    """The table without the VIRTUAL columns that the other one does not have, and their names."""
    names = {column.name.lower() for column in there.columns}
    absent = [column.name for column in table.columns if column.virtual and column.name.lower() not in names]
    return replace(table, columns=tuple(each for each in table.columns if each.name not in absent)), absent


def describe(a: Table, b: Table, dialect: Dialect) -> str:
    """What differs between the columns of the source's table and those of the target's; '' = nothing."""
    if a.base != b.base:
        return "a table on one side, a view on the other"
    names = [c.name for c in a.columns], [c.name for c in b.columns]
    if names[0] != names[1]:
        return f"source ({', '.join(names[0])}), target ({', '.join(names[1])})"
    pairs = list(zip(a.columns, b.columns, strict=True))
    told = [f"{x.name} is {x.type} in the source, {y.type} in the target" for x, y in pairs if x.type != y.type]
    if a.base:
        told += [
            f"{x.name} is {x.collation or 'binary'} in the source, {y.collation or 'binary'} in the target"
            for x, y in pairs
            if not (x.json or y.json) and y.collation not in {x.collation, *_twins(x, dialect)}
        ]
    return "; ".join(told)


def _twins(column: Column, dialect: Dialect) -> Iterator[str]:
    """The collations that a load gives a column where the target has not the source's: of a TiDB, or of another one."""
    for checked in (False, True) if column.charset and dialect is not Dialect.TIDB else ():
        with suppress(SchemaError):
            told = charset_sql(dialect, column.charset, column.collation, checked=checked)
            yield told.split()[-1].replace("utf8mb3_", "utf8_")
