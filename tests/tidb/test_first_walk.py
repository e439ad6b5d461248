"""The README from a TiDB that has data and writers: dump, snapshots, a restore to a while ago on another server, by the commands."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from pumphouse.model.tso import to_datetime
from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.tidb import MISSING, TidbCluster
from tests.tidb.contents import differences, source_at, target_contents

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("R1"),
    pytest.mark.row("W4"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def tidb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidbCluster]:
    with TidbCluster(tmp_path_factory.mktemp("tidb"), servers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with mariadb.running(tmp_path_factory.mktemp("db")) as settings:
        yield settings


class Shop:
    """Tables with a key, without one, with partitions; writers on both tidb-servers until `stop`."""

    def __init__(self, tidb: TidbCluster) -> None:
        self.tidb = tidb
        self.written = 0
        self._stop = threading.Event()
        with tidb.connect() as connection, connection.cursor() as cursor:
            for sql in (
                "CREATE DATABASE shop",
                "CREATE TABLE shop.orders (id BIGINT AUTO_RANDOM PRIMARY KEY, at DATETIME(6), sum DECIMAL(12,2), note VARCHAR(80), j JSON)",
                "CREATE TABLE shop.log (line VARCHAR(60), at TIMESTAMP(3) NULL, n FLOAT)",
                (
                    "CREATE TABLE shop.parts (id INT, k CHAR(4) COLLATE utf8mb4_general_ci, v BLOB, PRIMARY KEY (id, k)) "
                    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (500), PARTITION p1 VALUES LESS THAN MAXVALUE)"
                ),
            ):
                cursor.execute(sql)
            for first in range(0, 4000, 200):
                self._insert(cursor, range(first, first + 200))
        self._threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(2)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    @staticmethod
    def _insert(cursor: pymysql.cursors.Cursor, numbers: range) -> None:
        orders = ", ".join(f"(NOW(6), {n}.25, 'order {n} é😀', '{{\"n\": {n}}}')" for n in numbers)
        cursor.execute(f"INSERT INTO shop.orders (at, sum, note, j) VALUES {orders}")
        cursor.execute(
            "INSERT INTO shop.log VALUES " + ", ".join(f"('line {n % 7}', NOW(3), {n / 3})" for n in numbers)
        )
        cursor.execute(
            "INSERT IGNORE INTO shop.parts VALUES "
            + ", ".join(f"({n}, 'k{n % 3}', X'00ff{n % 256:02x}')" for n in numbers)
        )

    def _write(self, number: int) -> None:
        rng = random.Random(number)
        with self.tidb.connect(number, autocommit=False) as connection, connection.cursor() as cursor:
            while not self._stop.is_set():
                try:
                    some = rng.randrange(10_000)
                    self._insert(cursor, range(some, some + rng.randint(1, 4)))
                    cursor.execute(f"UPDATE shop.orders SET sum = sum + 1 WHERE sum > {some % 4000} LIMIT 3")
                    cursor.execute(f"DELETE FROM shop.log WHERE line = 'line {some % 7}' LIMIT 1")
                    cursor.execute(f"UPDATE shop.parts SET id = id + 1000 WHERE id = {some}")
                    connection.commit()
                    self.written += 1
                except pymysql.MySQLError:
                    connection.rollback()
                time.sleep(0.02)


@pytest.mark.row("A1")
def test_an_existing_tidb_is_restored_to_a_while_ago(tidb: TidbCluster, server: TargetSettings, tmp_path: Path) -> None:
    shop = Shop(tidb)
    try:
        (tmp_path / "pumphouse.toml").write_text(
            f'[cluster]\nurl = "{tidb.url}"\n[archive]\nroot = "file://{tmp_path}/archive"\n'
            f'[schema]\nhistory = "{tidb.history}"\n'
            f'[source]\nhost = "127.0.0.1"\nport = {tidb.sql_ports[0]}\nuser = "root"\n'
            f'[restore_target]\nhost = "127.0.0.1"\nport = {server.port}\nuser = "root"\n[load]\nengine = "local"\n'
        )
        secret = server.password.get_secret_value()
        environment = {**os.environ, "PUMPHOUSE_RESTORE_TARGET__PASSWORD": secret}

        def type_(*words: str) -> str:
            command = [str(Path(sys.executable).parent / "pumphouse"), *words]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr[-3000:]}"
            return done.stdout

        type_("archive", "init")
        assert "dumped 3 tables" in type_("archive", "dump")
        type_("snapshot")
        with tidb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE shop.orders ADD COLUMN city VARCHAR(20) DEFAULT 'Bern'")
        time.sleep(1.5)
        moment = tidb.tso()
        written = shop.written
        time.sleep(1.5)
        with tidb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE shop.orders DROP COLUMN note")
            cursor.execute("TRUNCATE TABLE shop.log")
        time.sleep(1.0)
        assert shop.written > written > 0
        type_("snapshot")
        type_("restore", "--to", str(moment))
        wanted = source_at(tidb.dsn(), moment)
        assert sum(sum(table.rows.values()) for table in wanted.values()) > 10_000
        assert differences(wanted, target_contents(server, wanted)) == []
        # A clock time means the beginning of its millisecond.
        at = to_datetime(tidb.tso()).isoformat(timespec="milliseconds")
        time.sleep(0.5)
        type_("snapshot")
        type_("restore", "--to", at, "--replace", f"127.0.0.1:{server.port}")
        type_("archive", "verify")
    finally:
        shop.stop()
