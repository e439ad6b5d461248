"""kill -9 of a capture, its Pump and its source at random moments, under writers and DDL: target and source are equal."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import pymysql
import pytest

from pumphouse.dump.source import prepared_xids
from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, captured_stack
from tests.support.kind import XaGate

pytestmark = pytest.mark.timeout(1200)


class Writers:
    """Sessions that write by plain SQL, with savepoints, rollbacks and XA, and one that changes the tables.

    A third of what XA prepares outlives its session, and is ended by another one.
    """

    def __init__(self, stack: CapturedStack, seed: int, sessions: int = 3) -> None:
        self._stack = stack
        self._stop = threading.Event()
        self.xa = XaGate()
        self.written = self.prepared = self.ended = 0
        self._threads = [
            threading.Thread(target=self._run, args=(self._write, random.Random(seed * 100 + number)))
            for number in range(sessions)
        ]
        self._threads.append(threading.Thread(target=self._run, args=(self._change, random.Random(seed * 100 + 99))))
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """End them."""
        self._stop.set()
        for each in self._threads:
            each.join()

    def _run(self, work: object, rng: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with self._stack.source("shop", autocommit=False) as connection:
                    while not self._stop.is_set():
                        work(connection, rng)  # type: ignore[operator]
            except (pymysql.MySQLError, OSError):
                time.sleep(0.2)  # the source is down, a deadlock, or a DDL came between

    def _write(self, connection: pymysql.connections.Connection, rng: random.Random) -> None:  # type: ignore[type-arg]
        with connection.cursor() as cursor:
            cursor.execute("SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 2")
            if rng.random() < 0.4:
                self.end_one(connection, rng)
            xid = f"X'{rng.randbytes(9).hex()}',X'{rng.randbytes(2).hex()}',{rng.randrange(1 << 30)}"
            xa = rng.random() < 0.3
            if xa:
                cursor.execute(f"XA START {xid}")
            for _ in range(rng.randrange(1, 5)):
                self._one(cursor, rng)
                if rng.random() < 0.2:
                    cursor.execute("SAVEPOINT s")
                    self._one(cursor, rng)
                    cursor.execute("ROLLBACK TO SAVEPOINT s")
            if xa:
                cursor.execute(f"XA END {xid}")
                self._end(connection, xid, rng)
                return
        if rng.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()
            self.written += 1
        time.sleep(rng.random() * 0.1)

    def _end(self, connection: pymysql.connections.Connection, xid: str, rng: random.Random) -> None:  # type: ignore[type-arg]
        with connection.cursor() as cursor:
            how = rng.random()
            if how < 0.2:
                commit = f"XA COMMIT {xid} ONE PHASE"
                with self.xa.around(commit):
                    cursor.execute(commit)
                return
            if how < 0.9:
                prepare = f"XA PREPARE {xid}"
                with self.xa.around(prepare):
                    cursor.execute(prepare)
                self.prepared += 1
            if how < 0.6:
                cursor.execute(f"XA COMMIT {xid}")
            elif how < 0.9:
                connection.close()
            else:
                cursor.execute(f"XA ROLLBACK {xid}")

    def end_one(self, connection: pymysql.connections.Connection, rng: random.Random) -> None:  # type: ignore[type-arg]
        """Commit or roll back one that another session left; one that has its session yet is not this one's to end."""
        connection.autocommit(True)  # else a MariaDB takes the session for one with a transaction of its own
        with connection.cursor() as cursor, suppress(pymysql.err.OperationalError, pymysql.err.InternalError):
            if xids := prepared_xids(connection):
                cursor.execute(f"XA {rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} {rng.choice(xids)}")
                self.ended += 1
        connection.autocommit(False)

    def end_all(self) -> None:
        """Behind `stop`: what was left, and what a lost answer left."""
        with self._stack.source() as connection, connection.cursor() as cursor:
            for xid in prepared_xids(connection):
                cursor.execute(f"XA COMMIT {xid}")

    def _one(self, cursor: pymysql.cursors.Cursor, rng: random.Random) -> None:
        table = rng.choice(("a", "b", "keyless"))
        key = rng.randrange(200)
        what = rng.random()
        if what < 0.5:
            verb = "INSERT INTO" if table == "keyless" else "REPLACE INTO"
            cursor.execute(
                f"{verb} {table} (id, name, n) VALUES (%s, %s, %s)", (key, "x" * rng.randrange(30), rng.random())
            )
        elif what < 0.8:
            cursor.execute(
                f"UPDATE {table} SET n = n + 1, name = REVERSE(name) WHERE id BETWEEN %s AND %s", (key, key + 3)
            )
        else:
            cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))

    def _change(self, connection: pymysql.connections.Connection, rng: random.Random) -> None:  # type: ignore[type-arg]
        number = rng.randrange(4)
        statement = rng.choice(
            (
                f"ALTER TABLE a ADD COLUMN c{number} INT NOT NULL DEFAULT {number}",  # there already: an error
                f"CREATE TABLE IF NOT EXISTS t{number} (id INT PRIMARY KEY, v VARCHAR(20))",
                f"CREATE TABLE s{number} (id INT PRIMARY KEY) SELECT DISTINCT id FROM b",
                f"DROP TABLE IF EXISTS s{number}",
                "RENAME TABLE a TO swap, b TO a, swap TO b",
                f"ALTER TABLE b ADD KEY k{number} (n)",
                "TRUNCATE TABLE b",
                "ALTER TABLE a MODIFY name VARCHAR(60)",
                "DROP TABLE IF EXISTS t1, t2, t3",
            )
        )
        with connection.cursor() as cursor:
            # A MariaDB's DDL waits for InnoDB's locks of what is prepared, and all who use the table for the DDL.
            cursor.execute("SET lock_wait_timeout = 5, innodb_lock_wait_timeout = 5")
            cursor.execute(statement)
        time.sleep(3 + 2 * rng.random())


def prepared(stack: CapturedStack) -> None:
    """Tables with rows, before the capture begins."""
    stack.run("CREATE DATABASE shop")
    for table, key in (("a", "PRIMARY KEY"), ("b", "PRIMARY KEY"), ("keyless", "NOT NULL")):
        stack.run(f"CREATE TABLE {table} (id INT {key}, name VARCHAR(40), n DOUBLE)", db="shop")
        stack.run(
            f"INSERT INTO {table} WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < 150)"
            " SELECT n, CONCAT('n', n), n / 7 FROM s",
            db="shop",
        )


@pytest.mark.mysql
@pytest.mark.row("Q1", "Q2", "Q3", "Q4")
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 1), *(pytest.param(seed, 3, marks=pytest.mark.slow) for seed in range(1, 12))]
)
def test_a_capture_killed_at_random_moments_loses_and_doubles_nothing(seed: int, kills: int) -> None:
    rng = random.Random(seed)
    with mariadb.directory_in_memory() as directory, captured_stack(directory, prepare=prepared) as stack:
        writers = Writers(stack, seed)
        try:
            stack.begin()  # while they write
            for _ in range(kills):
                time.sleep(1 + 3 * rng.random())
                stack.kill_capture()
                stack.start_capture()
            stack.snapshot()
            time.sleep(1 + 2 * rng.random())
            stack.kill_capture()
            stack.lose_journal()
            stack.start_capture()
            stack.pumps[0].kill()
            time.sleep(1)
            stack.pumps[0].start()
            with writers.xa.killing:
                stack.kill_source()
            stack.databases["source"].start()
            time.sleep(3)
            stack.kill_capture()
            stack.start_capture()
            time.sleep(2)
        finally:
            writers.stop()
        assert writers.written > 50
        assert writers.prepared > 10
        assert writers.ended > 5
        stack.require_equal()
        writers.end_all()
        stack.require_equal()
