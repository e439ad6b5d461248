"""The source's own side of a transaction: its status row, and who answers for it when a Pump asks.

``pumphouse_source.txn_status`` has a row for every transaction that ended: written in the same MariaDB transaction as
the data when it commits, with commit_ts 0 when it rolled back. A marker with commit_ts 0 that the resolver writes makes
a later commit fail on the primary key: that is the power to decide.
"""

from __future__ import annotations

import threading
from typing import Any

import pymysql
from pymysql.connections import Connection

from pumphouse.client.resolver import PENDING, ROLLED_BACK, Outcome, committed
from pumphouse.model.tso import Tso
from pumphouse.mysql.dsn import Dsn

SCHEMA = "pumphouse_source"
STATUS = f"{SCHEMA}.txn_status"
HISTORY = f"{SCHEMA}.ddl_history"
KEY_PREFIX = b"demo/"

_CREATE = (
    f"CREATE DATABASE IF NOT EXISTS {SCHEMA}",
    f"CREATE TABLE IF NOT EXISTS {STATUS} (start_ts BIGINT PRIMARY KEY, commit_ts BIGINT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {HISTORY} (job_id BIGINT PRIMARY KEY, job LONGTEXT NOT NULL)",
)


def prewrite_key(start_ts: int) -> bytes:
    """Prewrite key of a transaction; the demo's resolver answers for the prefix."""
    return KEY_PREFIX + str(start_ts).encode()


def create_bookkeeping(connection: Connection[Any]) -> None:
    """Make the tables."""
    with connection.cursor() as cursor:
        for statement in _CREATE:
            cursor.execute(statement)


class SourceStore:
    """Reads and writes transaction status; for any number of threads."""

    def __init__(self, source: Dsn) -> None:
        self._source = source
        self._local = threading.local()
        self._opened: list[Connection[Any]] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._opened:
                connection.close()
            self._opened.clear()

    def record(self, start_ts: int, commit_ts: int) -> bool:
        """Write an outcome; False when there is one already."""
        with self._connection().cursor() as cursor:
            cursor.execute(f"INSERT IGNORE INTO {STATUS} VALUES (%s, %s)", (start_ts, commit_ts))  # noqa: S608
            return bool(cursor.rowcount)

    def outcome(self, start_ts: Tso, key: bytes, decide: bool) -> Outcome:
        """What became of a transaction, as a Pump asks (`pumphouse.client.resolver`)."""
        del key
        if decide:
            # Waits for a transaction that is just committing, then finds its row instead.
            self.record(start_ts, 0)
        with self._connection().cursor() as cursor:
            cursor.execute(f"SELECT commit_ts FROM {STATUS} WHERE start_ts = %s", (start_ts,))  # noqa: S608
            row = cursor.fetchone()
        if row is None:
            return PENDING
        return committed(Tso(row[0])) if row[0] else ROLLED_BACK

    def _connection(self) -> Connection[Any]:
        found: Connection[Any] | None = getattr(self._local, "connection", None)
        if found is not None:
            try:
                found.ping(reconnect=False)
            except pymysql.Error:
                found = None
        if found is None:
            found = self._source.connect(autocommit=True)
            self._local.connection = found
            with self._lock:
                self._opened.append(found)
        return found
