"""The shop's MariaDB and the binlogs of its changes: what an application does with `pumphouse.client`.

The shop's books are in the database `history`, which is never replicated: the DDL jobs (`jobs`, written by
`pumphouse schema import`), what became of each transaction (`outcome`), and one row (`gate`) that every transaction
reads under a shared lock. A DDL locks it alone, and so waits until none is under way.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection

from deploy.shop.server import Row, connect, make, marks, query, server
from pumphouse.client import (
    PENDING,
    ROLLED_BACK,
    Outcome,
    PrewriteValueBuilder,
    PumpClient,
    PumpUnavailable,
    Tables,
    TransactionBinlog,
    TransactionRunner,
    Tso,
    committed,
    encode_delete,
    encode_insert,
    encode_update,
    named_row,
    tables,
)

PREFIX = b"shop/"  # every key of ours begins with it: the resolver claims it


def known_tables() -> Tables:
    """The shop's tables as the DDL history has them now."""
    return tables("mysql://{user}@{host}:{port}/history.jobs".format_map(server()), server()["password"])


def answer(start_ts: Tso, key: bytes, decide: bool) -> Outcome:
    """What became of a transaction, for a Pump that lost its C. A commit_ts of 0 is the marker that none can follow."""
    del key
    with closing(connect()) as connection:  # questions come from several threads
        if decide:  # waits for a transaction that is just committing; a later one fails on the primary key
            query(connection, "INSERT IGNORE INTO history.outcome VALUES (%s, 0, 0)", start_ts)
            connection.commit()
        rows = query(connection, "SELECT commit_ts FROM history.outcome WHERE start_ts = %s", start_ts)
    if not rows:
        return PENDING
    return committed(Tso(rows[0]["commit_ts"])) if rows[0]["commit_ts"] else ROLLED_BACK


class Transaction:
    """The shop's side of one transaction (`StoreTransaction`), and its row images.

    It reads rows under lock before it notes a change, so that it knows the whole row before and after the change. The
    server changes nothing before `prewrite`.
    """

    def __init__(self, connection: Connection[Any], known: Tables, start_ts: Tso) -> None:
        self.connection, self.known, self.start_ts = connection, known, start_ts
        self.number: int = start_ts  # for a new row: nobody else has it
        self.value = PrewriteValueBuilder(known.schema_version)
        self.changes = 0
        self.statements: list[tuple[str, list[tuple[Any, ...]]]] = []

    def lock(self, table: str, where: str, *values: Any) -> list[Row]:
        """Rows of a table, locked."""
        return query(self.connection, f"SELECT * FROM shop.{table} WHERE {where} FOR UPDATE", *values)

    def insert(self, table: str, *rows: Row, handle: int | None = None) -> None:
        """Note new rows. A table without a key needs a number of the row, as its handle."""
        if handle is not None:
            # No row: a dump locks such a table for a moment, and we wait for that before our P is on a Pump, not after.
            self.lock(table, "FALSE")
        info = self.known["shop", table]
        names = [column.name for column in info.public_columns]
        rows = tuple({name: row[name] for name in names if name in row} for row in rows)
        for row in rows:
            self.value.insert(info.id, encode_insert(info, named_row(info, row), handle=handle))
        self._note(f"INSERT INTO shop.{table} ({', '.join(rows[0])}) VALUES ({marks(rows[0])})", rows)

    def update(self, table: str, *changed: tuple[Row, Row]) -> None:
        """Note rows that keep their key, each before and after."""
        info = self.known["shop", table]
        for before, after in changed:
            self.value.update(info.id, encode_update(info, named_row(info, before), named_row(info, after)))
        rows = [after for _, after in changed]
        sets = ", ".join(f"{name} = VALUES({name})" for name in rows[0])
        names = f"({', '.join(rows[0])}) VALUES ({marks(rows[0])})"
        self._note(f"INSERT INTO shop.{table} {names} ON DUPLICATE KEY UPDATE {sets}", rows)

    def delete(self, table: str, key: Sequence[str], *rows: Row) -> None:
        """Note the end of rows."""
        info = self.known["shop", table]
        for row in rows:
            self.value.delete(info.id, encode_delete(info, named_row(info, row)))
        where = " AND ".join(f"{name} = %s" for name in key)
        self._note(f"DELETE FROM shop.{table} WHERE {where}", [{name: row[name] for name in key} for row in rows])

    def swap(self, table: str, key: str, column: str, one: Row, other: Row) -> None:
        """Note that two rows change a unique value: one change each, which takes the server three statements."""
        info = self.known["shop", table]
        for before, value in ((one, other[column]), (other, one[column])):
            image = encode_update(info, named_row(info, before), named_row(info, {**before, column: value}))
            self.value.update(info.id, image)
        steps = [(-one[column], one[key]), (one[column], other[key]), (other[column], one[key])]
        self.statements.append((f"UPDATE shop.{table} SET {column} = %s WHERE {key} = %s", steps))
        self.changes += 2

    def _note(self, sql: str, rows: Sequence[Row]) -> None:
        self.changes += len(rows)
        self.statements.append((sql, [tuple(row.values()) for row in rows]))

    def binlog(self) -> TransactionBinlog:
        """What goes to a Pump."""
        return TransactionBinlog(
            start_ts=self.start_ts, key=PREFIX + str(self.start_ts).encode(), prewrite_value=self.value.build()
        )

    def prewrite(self) -> None:
        """All changes; their locks are held until the end."""
        with self.connection.cursor() as cursor:
            for sql, rows in self.statements:
                cursor.executemany(sql, rows)

    def record(self, commit_ts: int) -> None:
        """The outcome, in the transaction itself."""
        row = (self.start_ts, commit_ts, self.changes)
        query(self.connection, "INSERT INTO history.outcome VALUES (%s, %s, %s)", *row)

    def commit(self, commit_ts: Tso) -> None:
        """The changes and their outcome, in one step. IntegrityError: a Pump had it decided otherwise."""
        self.record(commit_ts)
        self.connection.commit()

    def rollback(self) -> None:
        """Undo, and leave the marker that no commit can follow."""
        self.connection.rollback()
        query(self.connection, "INSERT IGNORE INTO history.outcome VALUES (%s, 0, 0)", self.start_ts)
        self.connection.commit()


def many(client: PumpClient, transactions: Sequence[Transaction]) -> None:
    """Many transactions of the binlog around one commit of the store, on one connection."""
    connection = transactions[0].connection
    binlogs = [each.binlog() for each in transactions]
    try:
        for each in transactions:
            each.prewrite()
        for error in client.write_prewrites([(each.start_ts, each.prewrite()) for each in binlogs]):
            if error is not None:
                raise error
        commits = [client.cluster.tso() for _ in binlogs]  # after all locks and all Ps
        for each, commit_ts in zip(transactions, commits, strict=True):
            each.record(commit_ts)
    except BaseException:
        connection.rollback()
        client.write_commits([(each.start_ts, each.rollback()) for each in binlogs])
        raise
    connection.commit()  # when this raises the outcome is unknown: send nothing, the Pumps ask
    client.write_commits([(each.start_ts, each.commit(ts)) for each, ts in zip(binlogs, commits, strict=True)])


class Shop:
    """What the sellers of one process share: the client, and the tables as they are now."""

    away: tuple[type[Exception], ...] = (PumpUnavailable,)

    def __init__(self, client: PumpClient) -> None:
        self.client = client
        self.runner = TransactionRunner(client, not_committed=(pymysql.IntegrityError,))
        self._turn, self._known = threading.Lock(), (0, known_tables())

    @contextmanager
    def transaction(self, connection: Connection[Any]) -> Iterator[Callable[[], Transaction]]:
        """Inside the gate: the row stays locked until the connection commits or rolls back."""
        gate = query(connection, "SELECT version FROM history.gate LOCK IN SHARE MODE")
        with self._turn:
            if gate[0]["version"] != self._known[0]:  # a DDL came in between
                self._known = gate[0]["version"], known_tables()
            known = self._known[1]
        try:
            yield lambda: Transaction(connection, known, self.client.cluster.tso())
        finally:
            connection.rollback()  # what has not committed

    def commit(self, transaction: Transaction) -> None:
        """P, the changes, the decision, C."""
        self.runner.run(transaction.binlog(), transaction)

    def deliver(self, transactions: Sequence[Transaction]) -> int:
        """Many at once."""
        many(self.client, transactions)
        return len(transactions)


def open_shop(first_rows: Iterable[tuple[str, list[Row]]]) -> None:
    """Make the tables and the first rows, and import the schema; once."""
    make("books.sql", ())
    make("shop.sql", first_rows)
    change([])


def is_open() -> bool:
    """Whether the schema has been imported."""
    with closing(connect()) as connection:
        try:
            return bool(query(connection, "SELECT 1 FROM history.gate WHERE version > 0"))
        except pymysql.ProgrammingError:
            return False


def change(statements: Sequence[str], options: Sequence[str] = ()) -> None:
    """A DDL: when no transaction is under way, and none begins until its jobs are in the history."""
    with closing(connect()) as gate, closing(connect()) as connection:
        query(gate, "SELECT version FROM history.gate FOR UPDATE")
        for statement in statements:
            query(connection, statement)
        url = "mysql://{user}@{host}:{port}/shop".format_map(server())
        subprocess.run([sys.executable, "-m", "pumphouse", "schema", "import", url, *options], check=True)
        query(gate, "UPDATE history.gate SET version = version + 1")
        gate.commit()
