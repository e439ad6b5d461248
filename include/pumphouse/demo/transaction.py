"""One transaction of the source: row changes in MariaDB, and the same changes as TiDB's row images.

Rows are read under lock first, so the images are known before anything is changed; `TransactionRunner` then sends the P
beside `prewrite` and takes the commit ts after both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymysql.connections import Connection

from pumphouse.codec import row as images
from pumphouse.codec.datum import Value
from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.demo.rows import Row, SourceTable
from pumphouse.demo.store import STATUS
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso
from pumphouse.schema.ident import quote


class PlannedRollback(BinlogError):
    """The application changed its mind."""


class SourceTransaction:
    """Implements `pumphouse.client.transaction.StoreTransaction` on one MariaDB connection of one thread."""

    def __init__(self, connection: Connection[Any], start_ts: Tso, schema_version: int) -> None:
        self._connection = connection
        self._start_ts = start_ts
        self._builder = PrewriteValueBuilder(schema_version)
        self._statements: list[tuple[str, list[Value]]] = []
        self.roll_back = False
        self.added: list[tuple[SourceTable, tuple[Value, ...]]] = []
        self.removed: list[tuple[SourceTable, tuple[Value, ...]]] = []
        connection.begin()

    @property
    def rows(self) -> int:
        """Row changes so far."""
        return self._builder.rows

    def prewrite_value(self) -> bytes:
        """The images of all changes."""
        return self._builder.build()

    # Reading under lock

    def lock_keys(self, table: SourceTable, keys: Sequence[tuple[Value, ...]]) -> list[Row]:
        """The rows with these keys, those that exist."""
        if not keys:
            return []
        flat = [value for key in keys for value in key]
        return self._select(table, table.where_key(len(keys)) + " ORDER BY 1 FOR UPDATE", flat)

    def lock_where(self, table: SourceTable, column: str, value: Value, limit: int) -> list[Row]:
        """Some rows by one column, for tables without a key."""
        return self._select(table, f"WHERE {quote(column)} = %s LIMIT {limit} FOR UPDATE", [value])

    def _select(self, table: SourceTable, where: str, values: list[Value]) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(table.select(where), values)
            return [table.decode(cells) for cells in cursor.fetchall()]

    # Changes

    def insert(self, table: SourceTable, rows: Sequence[Row]) -> None:
        """New rows."""
        cells = [cell for row in rows for cell in table.cells(row)]
        self._statements.append((table.insert("INSERT", len(rows)), cells))
        self._insert_images(table, rows)

    def replace(self, table: SourceTable, old: Sequence[Row], new: Sequence[Row]) -> None:
        """REPLACE over existing rows: TiDB writes a delete and an insert each."""
        cells = [cell for row in new for cell in table.cells(row)]
        self._statements.append((table.insert("REPLACE", len(new)), cells))
        for before, after in zip(old, new, strict=True):
            self._builder.delete(table.info.id, self._delete_image(table, before))
            self._insert_images(table, [after])

    def update(self, table: SourceTable, old: Sequence[Row], new: Sequence[Row]) -> None:
        """Rows keep their key; one statement for all."""
        cells = [cell for row in new for cell in table.cells(row)]
        sets = ", ".join(f"{quote(c.name)} = VALUES({quote(c.name)})" for c in table.stored)
        self._statements.append((f"{table.insert('INSERT', len(new))} ON DUPLICATE KEY UPDATE {sets}", cells))
        self._update_images(table, old, new)

    def swap_unique(self, table: SourceTable, column: str, one: Row, other: Row) -> None:
        """Exchange a unique value between two rows: one statement in TiDB, three in MariaDB."""
        column_id = next(c.id for c in table.columns if c.name == column)
        key, name = table.key[0], quote(column)
        sql = f"UPDATE {table.name} SET {name} = %s WHERE {quote(key.name)} = %s"  # noqa: S608
        a, b = one[column_id], other[column_id]
        for value, row in ((-1 - int(one[key.id] or 0), one), (a, other), (b, one)):
            self._statements.append((sql, [value, row[key.id]]))
        self._update_images(table, [one, other], [{**one, column_id: b}, {**other, column_id: a}])

    def update_keyless(self, table: SourceTable, old: Row, new: Row) -> None:
        """One of the rows that are equal to ``old``."""
        where, values = table.where_row(old)
        sets = ", ".join(f"{quote(c.name)} = %s" for c in table.stored)
        sql = f"UPDATE {table.name} SET {sets} {where} LIMIT 1"  # noqa: S608
        self._statements.append((sql, [*table.cells(new), *values]))
        # The hidden row id stays when a row changes.
        handle = table.handle(old)
        self._builder.update(table.info.id, images.encode_update(table.info, old, new, handle=handle))

    def delete_keyless(self, table: SourceTable, rows: Sequence[Row]) -> None:
        """One row for each."""
        for row in rows:
            where, values = table.where_row(row)
            self._statements.append((f"DELETE FROM {table.name} {where} LIMIT 1", values))  # noqa: S608
            self._builder.delete(table.info.id, self._delete_image(table, row))

    def delete(self, table: SourceTable, rows: Sequence[Row]) -> None:
        """Rows by key."""
        flat = [value for row in rows for value in table.key_of(row)]
        self._statements.append((f"DELETE FROM {table.name} {table.where_key(len(rows))}", flat))  # noqa: S608
        for row in rows:
            self._builder.delete(table.info.id, self._delete_image(table, row))
            self.removed.append((table, table.key_of(row)))

    def change_key(self, table: SourceTable, old: Row, new: Row) -> None:
        """UPDATE of the primary key: TiDB writes a delete and an insert."""
        sets = ", ".join(f"{quote(c.name)} = %s" for c in table.stored)
        sql = f"UPDATE {table.name} SET {sets} {table.where_key(1)}"  # noqa: S608
        self._statements.append((sql, [*table.cells(new), *table.key_of(old)]))
        self._builder.delete(table.info.id, self._delete_image(table, old))
        self.removed.append((table, table.key_of(old)))
        self._insert_images(table, [new])

    def _insert_images(self, table: SourceTable, rows: Sequence[Row]) -> None:
        for row in rows:
            handle = table.handle(row)
            self._builder.insert(table.info.id, images.encode_insert(table.info, row, handle=handle))
            if table.key:
                self.added.append((table, table.key_of(row)))

    def _update_images(self, table: SourceTable, old: Sequence[Row], new: Sequence[Row]) -> None:
        for before, after in zip(old, new, strict=True):
            image = images.encode_update(table.info, before, after, handle=table.handle(before))
            self._builder.update(table.info.id, image)

    def _delete_image(self, table: SourceTable, row: Row) -> bytes:
        return images.encode_delete(table.info, row, handle=table.handle(row))

    # What the runner calls

    def prewrite(self) -> None:
        """Change the rows; their locks are held until the end."""
        with self._connection.cursor() as cursor:
            for sql, values in self._statements:
                cursor.execute(sql, values)
        if self.roll_back:
            raise PlannedRollback("rolled back on purpose")

    def commit(self, commit_ts: Tso) -> None:
        """The outcome and the data in one step; IntegrityError when a Pump had it decided otherwise."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {STATUS} VALUES (%s, %s)", (self._start_ts, commit_ts))  # noqa: S608
        self._connection.commit()

    def rollback(self) -> None:
        """Undo, then leave the marker that nothing can follow."""
        self._connection.rollback()
        with self._connection.cursor() as cursor:
            cursor.execute(f"INSERT IGNORE INTO {STATUS} VALUES (%s, 0)", (self._start_ts,))  # noqa: S608
        self._connection.commit()
