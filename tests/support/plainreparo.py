"""What a Reparo does with binlog files, plainly: a message at a time, in safe mode, onto a MySQL or MariaDB.

By docs/formats.md, "Files for Reparo", and wire-format.md 6.7; without its workers and batches. It stops at what Reparo refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from pumphouse.codec.datum import read_datum
from pumphouse.schema.ident import quote
from pumphouse.settings import TargetSettings
from tests.support import pbmessages

# Times, decimals and JSON: of a text type the bytes are what it holds.
_TEXTS = {7, 10, 11, 12, 245, 246}
# Errors of a DDL that Reparo passes over: what it would make is there, or what it would drop is not.
_PASSED = {1007, 1008, 1049, 1050, 1051, 1054, 1060, 1061, 1091, 1146, 1176, 1831}


def replay(target: TargetSettings, directory: Path, after: int, upto: int) -> int:
    """Make what was committed in (after, upto]; how many transactions and DDLs."""
    count = 0
    with (
        pymysql.connect(
            host=target.host, port=target.port, user=target.user, password=target.password.get_secret_value(),
            charset="utf8mb4", autocommit=True,
        ) as connection,
        connection.cursor() as cursor,
    ):  # fmt: skip
        # As its users have to set it: a strict server refuses what TiDB's ENUM and dates may hold.
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
        for binlog in pbmessages.binlogs(directory):
            if not after < binlog.commit_ts <= upto:
                continue
            count += 1
            if binlog.tp:
                _ddl(cursor, binlog.ddl_query.decode())
            for event in binlog.dml_data.events:
                _event(cursor, event)
    return count


def _ddl(cursor: Cursor, text: str) -> None:
    begin = re.match(r"use (`(?:[^`]|``)+`);", text)
    if begin:
        text = text[begin.end() :]
    try:
        if begin:
            cursor.execute(f"USE {begin[1]}")
        cursor.execute(text.strip().rstrip(";"))
    except pymysql.MySQLError as error:
        if error.args[0] not in _PASSED:
            raise


def _event(cursor: Cursor, event: Any) -> None:
    table = f"{quote(event.schema_name)}.{quote(event.table_name)}"
    columns = [pbmessages.Column.FromString(each) for each in event.row]
    old = {each.name: _value(each.tp[0], each.value) for each in columns}
    new = {each.name: _value(each.tp[0], each.changed_value) for each in columns} if event.tp == 1 else old
    if event.tp:
        keys = _keys(cursor, event.schema_name, event.table_name)
        where = next((key for key in keys if all(old.get(name) is not None for name in key)), sorted(old))
        terms = " AND ".join(f"{quote(name)} <=> %s" for name in where)
        cursor.execute(f"DELETE FROM {table} WHERE {terms} LIMIT 1", [old[name] for name in where])
    if event.tp < 2:
        names, marks = ", ".join(map(quote, new)), ", ".join(["%s"] * len(new))
        cursor.execute(f"REPLACE INTO {table} ({names}) VALUES ({marks})", list(new.values()))


def _value(tp: int, datum: bytes) -> Any:
    value = read_datum(datum, 0)[0].value
    return value.decode() if tp in _TEXTS and isinstance(value, bytes) else value


def _keys(cursor: Cursor, db: str, table: str) -> Iterable[list[str]]:
    """Columns of the unique keys, the primary one first."""
    found: dict[str, list[str]] = {}
    cursor.execute(
        "SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s "
        "AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
        (db, table),
    )
    for name, column in cursor.fetchall():
        found.setdefault(name, []).append(column)
    return found.values()
