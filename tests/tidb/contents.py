"""Everything that a server holds, for a comparison that shares nothing with the loader: rows as the two servers say them.

A value is what the server prints in utf8mb4 and UTC; JSON counts by value, FLOAT and DOUBLE by their bytes, ENUM and SET
by number and text.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.converters import encoders
from pymysql.cursors import SSCursor
from pymysql.err import ProgrammingError

from pumphouse.mysql.dsn import Dsn
from pumphouse.proof.jsonvalue import canonical_json
from pumphouse.settings import TargetSettings

_SYSTEM = {"mysql", "information_schema", "performance_schema", "metrics_schema", "sys", "test", "pumphouse"}
_TABLES = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
_COLUMNS = (
    "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)

_LINE = 400
Row = tuple[Any, ...]


@dataclass
class Table:
    """Columns as (name, type), rows as a multiset."""

    columns: list[tuple[str, str]]
    rows: Counter[Row] = field(default_factory=Counter)


Contents = dict[str, Table]


def source_at(dsn: Dsn, ts: int) -> Contents:
    """All of a TiDB as it was at a timestamp, schema included."""
    with closing(_session(dsn)) as connection:
        _run(connection, f"SET @@tidb_snapshot = '{ts}'")
        return _all(connection, {})


def target_like(dsn: Dsn, wanted: Contents) -> Contents:
    """All of another server; its columns are read by the types that they have in ``wanted``."""
    with closing(_session(dsn)) as connection:
        return _all(connection, wanted)


def target_contents(target: TargetSettings, wanted: Contents) -> Contents:
    """What a target holds, read by the source's types."""
    password = target.password.get_secret_value()
    return target_like(Dsn(port=target.port, user=target.user, password=password), wanted)


def to_json(contents: Contents) -> dict[str, Any]:
    """For a file; a byte is a character."""
    return {
        name: {
            "columns": table.columns,
            "rows": sorted(([count, *map(_text, row)] for row, count in table.rows.items()), key=repr),
        }
        for name, table in sorted(contents.items())
    }


def from_json(raw: dict[str, Any]) -> Contents:
    """What `to_json` was given."""
    return {
        name: Table(
            [(column, kind) for column, kind in table["columns"]],
            Counter({_row(row, table["columns"]): count for count, *row in table["rows"]}),
        )
        for name, table in raw.items()
    }


def _row(row: list[str | None], columns: list[list[str]]) -> Row:
    """JSON is in the form of now, whichever release recorded it."""
    values = [_bytes(value) for value in row]
    return tuple(
        canonical_json(value) if kind == "json" and value is not None else value
        for value, (_, kind) in zip(values, columns, strict=True)
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode("latin-1")


def differences(wanted: Contents, found: Contents, *, most: int = 3) -> list[str]:
    """One line for each thing that differs; [] = equal."""
    lines = [f"{name}: only in the source" for name in sorted(wanted.keys() - found.keys())]
    lines += [f"{name}: only in the target" for name in sorted(found.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & found.keys()):
        ours, theirs = wanted[name], found[name]
        if [c for c, _ in ours.columns] != [c for c, _ in theirs.columns]:
            lines.append(f"{name}: columns {[c for c, _ in ours.columns]} against {[c for c, _ in theirs.columns]}")
            continue
        missing, additional = ours.rows - theirs.rows, theirs.rows - ours.rows
        if missing or additional:
            lines.append(
                f"{name} {ours.columns}: {sum(missing.values())} rows are missing, {sum(additional.values())} too many"
            )
            lines += [f"  source {row}"[:_LINE] for row in _first(missing, most)]
            lines += [f"  target {row}"[:_LINE] for row in _first(additional, most)]
    return lines


def _first(rows: Counter[Row], most: int) -> list[Row]:
    return sorted(rows, key=repr)[:most]


def _session(dsn: Dsn) -> Connection[Any]:
    connection = dsn.connect(conv=encoders, use_unicode=False, cursorclass=SSCursor, autocommit=True, ssl_disabled=True)
    _run(connection, "SET time_zone = '+00:00', sql_mode = ''")
    return connection


def _run(connection: Connection[Any], sql: str, *values: str) -> list[tuple[Any, ...]]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


def _names(connection: Connection[Any]) -> list[str]:
    found = [(schema.decode(), name.decode()) for schema, name in _run(connection, _TABLES)]
    return [f"{schema}.{name}" for schema, name in found if schema.lower() not in _SYSTEM]


def _all(connection: Connection[Any], wanted: Contents) -> Contents:
    found = {}
    for name in _names(connection):
        try:
            found[name] = _table(connection, name, wanted.get(name))
        except ProgrammingError as error:
            # A TiDB goes on listing a table under the database that it was renamed from.
            if error.args[0] != ER.NO_SUCH_TABLE:
                raise
    return found


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _table(connection: Connection[Any], name: str, like: Table | None = None) -> Table:
    schema, _, table = name.partition(".")
    found = [(column.decode(), kind.decode().lower()) for column, kind in _run(connection, _COLUMNS, schema, table)]
    columns = list(dict.fromkeys(found))  # a TiDB lists a table twice that was renamed with others
    types = dict(columns) | (dict(like.columns) if like else {})
    expressions = [_expression(_quote(column), types[column]) for column, _ in columns]
    kinds = [types[column] for column, _ in columns]
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT {', '.join(expressions)} FROM {_quote(schema)}.{_quote(table)}")
        rows = Counter(tuple(map(_value, kinds, row)) for row in _fetched(cursor))
    return Table(columns, rows)


def _fetched(cursor: SSCursor) -> Iterator[tuple[bytes | None, ...]]:
    while batch := cursor.fetchmany(1000):
        yield from batch


def _expression(column: str, kind: str) -> str:
    if kind == "float":
        return f"CAST({column} AS DOUBLE)"  # printed as FLOAT it has six digits
    if kind in {"enum", "set"}:
        return f"CONCAT(CAST({column} AS UNSIGNED), ':', {column})"
    return column


def _value(kind: str, value: bytes | None) -> Any:
    if value is None:
        return None
    if kind == "json":
        return canonical_json(value)
    if kind == "float":
        return struct.pack("<f", float(value))
    if kind == "double":
        return struct.pack("<d", float(value))
    return value
