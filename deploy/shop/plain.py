"""The shop as an ordinary application: SQL alone. It knows nothing of binlogs; a capture reads what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from deploy.shop.server import Row, connect, make, marks, query

Columns = dict[tuple[str, str], list[str]]

_KEYS = {"customers": "id", "orders": "id", "stock": "sku"}
_OTHER_SCHEMA = {ER.BAD_FIELD_ERROR, ER.NO_SUCH_TABLE}


class Transaction:
    """One transaction of the server; each change is a statement, at once."""

    def __init__(self, connection: Connection[Any], known: Columns) -> None:
        self.connection, self.known = connection, known
        self.number: int = query(connection, "SELECT UUID_SHORT() AS number")[0]["number"]
        self.changes = 0

    def lock(self, table: str, where: str, *values: Any) -> list[Row]:
        """Rows of a table, locked."""
        return query(self.connection, f"SELECT * FROM shop.{table} WHERE {where} FOR UPDATE", *values)

    def insert(self, table: str, *rows: Row, handle: int | None = None) -> None:
        """New rows."""
        del handle
        names = self.known["shop", table]
        rows = tuple({name: row[name] for name in names if name in row} for row in rows)
        self._run(f"INSERT INTO shop.{table} ({', '.join(rows[0])}) VALUES ({marks(rows[0])})", rows)

    def update(self, table: str, *changed: tuple[Row, Row]) -> None:
        """Rows that keep their key, each before and after."""
        key = _KEYS[table]
        for before, after in changed:
            row = {name: value for name, value in after.items() if value != before[name]}
            if row:
                sets = ", ".join(f"{name} = %s" for name in row)
                self._run(f"UPDATE shop.{table} SET {sets} WHERE {key} = %s", [{**row, "": before[key]}])

    def delete(self, table: str, key: Sequence[str], *rows: Row) -> None:
        """The end of rows."""
        where = " AND ".join(f"{name} = %s" for name in key)
        self._run(f"DELETE FROM shop.{table} WHERE {where}", [{name: row[name] for name in key} for row in rows])

    def swap(self, table: str, key: str, column: str, one: Row, other: Row) -> None:
        """Two rows change a unique value."""
        steps = [(-one[column], one[key]), (one[column], other[key]), (other[column], one[key])]
        sql = f"UPDATE shop.{table} SET {column} = %s WHERE {key} = %s"
        self._run(sql, [{column: value, key: at} for value, at in steps])

    def _run(self, sql: str, rows: Sequence[Row]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(sql, [tuple(row.values()) for row in rows])
        self.changes += len(rows)


class Shop:
    """What the sellers of one process share: the tables as they are now."""

    away: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._known: Columns = {}

    @contextmanager
    def transaction(self, connection: Connection[Any]) -> Iterator[Callable[[], Transaction]]:
        """A transaction, which rolls back where it was not committed."""
        with self._turn:
            self._known = known = self._known or _columns(connection)
        try:
            yield lambda: Transaction(connection, known)
        except pymysql.MySQLError as error:
            if error.args[0] in _OTHER_SCHEMA:  # a DDL came in between
                with self._turn:
                    self._known = {}
                raise pymysql.OperationalError(*error.args) from error
            raise
        finally:
            connection.rollback()

    def commit(self, transaction: Transaction) -> None:
        """As applications do."""
        transaction.connection.commit()

    def deliver(self, transactions: Sequence[Transaction]) -> int:
        """All of them are one for the server."""
        transactions[0].connection.commit()
        return 1


def _columns(connection: Connection[Any]) -> Columns:
    found: Columns = {}
    sql = "SELECT TABLE_NAME AS t, COLUMN_NAME AS c FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'shop'"
    for row in query(connection, sql):
        found.setdefault(("shop", row["t"]), []).append(row["c"])
    return found


def open_shop(first_rows: Iterable[tuple[str, list[Row]]]) -> None:
    """Make the tables and the first rows; once."""
    make("shop.sql", first_rows)


def is_open() -> bool:
    """Whether the first rows are there."""
    with closing(connect()) as connection:
        try:
            return bool(query(connection, "SELECT 1 FROM shop.customers LIMIT 1"))
        except pymysql.MySQLError as error:
            if error.args[0] in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
                return False
            raise


def change(statements: Sequence[str]) -> None:
    """A DDL."""
    with closing(connect()) as connection:
        for statement in statements:
            query(connection, statement)
