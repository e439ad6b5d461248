"""Delete exact rows from a table that has no key: as a multiset, compared byte by byte; JSON of a MySQL by value.

The rows to delete lie in a temporary table, indexed by a digest that the server computes in the same way on both sides;
equal digests are compared column by column. A MariaDB reads the table once, and says which rows it deleted; the others,
which have no DELETE … RETURNING, count first and then delete.
"""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pumphouse.errors import RowRejected
from pumphouse.loader.columns import Column, shown
from pumphouse.loader.insert import insert_rows
from pumphouse.loader.scratch import scratch
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote

# Last column of a batch: how many copies of the row go.
COUNT = "pumphouse:count"
_ROW, _DIGEST = "pumphouse:row", "pumphouse:digest"
_OURS = (f"{quote(_DIGEST)} BIGINT UNSIGNED", f"{quote(_ROW)} BIGINT", f"INDEX ({quote(_DIGEST)})")
# Rows that are put back at once.
_BACK_ROWS = 50_000
# What can have ON UPDATE CURRENT_TIMESTAMP, which a temporary table takes over from the target's columns.
_STAMPS = frozenset({MysqlType.TIMESTAMP, MysqlType.DATETIME})


def delete_rows(connection: TargetConnection, db: str, table: str, batches: Sequence[pa.RecordBatch]) -> None:
    """Delete ``COUNT`` copies of each row; RowRejected names the first row of which there are fewer."""
    wanted = pa.Table.from_batches(batches).combine_chunks()
    counts = wanted.column(COUNT).to_numpy()
    rows = wanted.drop_columns([COUNT])
    columns = [Column.of(field) for field in rows.schema]
    target = qualified(db, table)
    with scratch(connection, "unit_rows", (db, table), [c.name for c in columns], _OURS) as gone:
        _fill(connection, gone, rows, columns)
        # Without aliases: an alias in DELETE would need a default database.
        # While the table had a key, its rows came with the doubles that they have (`Wanted.doubles`).
        json = connection.dialect is Dialect.MYSQL
        match = f"{gone}.{quote(_DIGEST)} = {_digest(target, columns, json)} AND "
        match += " AND ".join(c.same(target, gone, json=json) for c in columns)
        if connection.dialect is Dialect.MARIADB:
            found = _delete_and_count(connection, target, gone, match, len(counts))
        else:
            found = _count_and_delete(connection, target, gone, match, len(counts), f"{db}.{table}")
        _check(found, counts, rows, db, table)
    _put_back(connection, target, rows, found - counts)


def _delete_and_count(connection: TargetConnection, target: str, gone: str, match: str, rows: int) -> np.ndarray:
    """Delete every copy of the rows; how many there were of each."""
    number = f"(SELECT {gone}.{quote(_ROW)} FROM {gone} WHERE {match})"
    found = np.zeros(rows, np.int64)
    for some in connection.stream(
        f"DELETE FROM {target} WHERE EXISTS (SELECT 1 FROM {gone} WHERE {match}) RETURNING {number}"
    ):
        np.add.at(found, [int(row) for (row,) in some], 1)
    return found


def _count_and_delete(
    connection: TargetConnection, target: str, gone: str, match: str, rows: int, name: str
) -> np.ndarray:
    """The same by two statements, each of which reads the whole table."""
    join = f"{target} STRAIGHT_JOIN {gone} ON {match}"
    found = np.zeros(rows, np.int64)
    for row, count in connection.query(f"SELECT {gone}.{quote(_ROW)}, COUNT(*) FROM {join} GROUP BY 1"):
        found[int(row)] = int(count)
    deleted = connection.execute(f"DELETE {target} FROM {join}")
    if deleted != found.sum():
        raise RowRejected(
            f"{name}: {deleted} rows were deleted where {found.sum()} had been counted",
            hint="somebody else writes to this table",
            table=name,
            rows=[],
        )
    return found


def _fill(connection: TargetConnection, gone: str, rows: pa.Table, columns: list[Column]) -> None:
    numbered = rows.append_column(
        pa.field(_ROW, pa.int64(), metadata={b"tp": b"8"}), pa.array(np.arange(rows.num_rows), pa.int64())
    ).combine_chunks()
    for batch in numbered.to_batches():
        insert_rows(connection, gone, batch)
    # A column that is assigned, also to itself, is left alone by its ON UPDATE.
    kept = "".join(f", {quote(c.name)} = {quote(c.name)}" for c in columns if c.tp in _STAMPS)
    json = connection.dialect is Dialect.MYSQL
    connection.execute(f"UPDATE {gone} SET {quote(_DIGEST)} = {_digest(gone, columns, json)}{kept}")


def _digest(side: str, columns: list[Column], json: bool) -> str:
    return f"CRC32(CONCAT_WS(',',{','.join(c.digest(side, json=json) for c in columns)}))"


def _check(found: np.ndarray, counts: np.ndarray, rows: pa.Table, db: str, table: str) -> None:
    short = np.flatnonzero(found < counts)
    if not len(short):
        return
    first = rows.slice(int(short[0]), 1).to_pylist()[0]
    named = {name: shown(value) for name, value in list(first.items())[:8]}
    raise RowRejected(
        f"{db}.{table} lacks {len(short)} of the rows to delete, as {named}",
        hint="somebody else changed the table there",
        table=f"{db}.{table}",
        rows=[named],
    )


def _put_back(connection: TargetConnection, target: str, rows: pa.Table, extra: np.ndarray) -> None:
    """The join deleted every copy: load again what was more than asked for."""
    again = np.repeat(np.arange(len(extra)), extra)
    for at in range(0, len(again), _BACK_ROWS):
        for batch in rows.take(pa.array(again[at : at + _BACK_ROWS])).combine_chunks().to_batches():
            insert_rows(connection, target, batch)
