"""A real TiDB into a real TiDB: from a dump, by windows with DDL between, again, killed, restored; equal by `tidb_snapshot`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection

from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.capture.passed import waiter
from pumphouse.dump.run import take_dump
from pumphouse.loader import state
from pumphouse.model.tso import Tso
from pumphouse.mysql.dsn import Dsn
from pumphouse.parts import Parts
from pumphouse.runs import load, restore
from pumphouse.settings import Settings, TargetSettings
from tests.integration.test_steps import killing, states
from tests.support.loading import restored
from tests.support.tidb import MISSING, TidbCluster, UnistoreServer
from tests.support.waiting import eventually
from tests.tidb.chain import empty
from tests.tidb.contents import differences, source_at, target_contents

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("L2", "L6", "R1"),
    pytest.mark.timeout(600),
]

# Every type; keys of one integer, of several columns under a collation, of none; partitions; what only a TiDB has.
SCHEMA = """
CREATE DATABASE shop COLLATE utf8mb4_general_ci
CREATE TABLE shop.orders (id BIGINT AUTO_RANDOM(6) PRIMARY KEY, no INT, at DATETIME(6), sum DECIMAL(20,4), note VARCHAR(200), KEY (no))
CREATE TABLE shop.log (line VARCHAR(60) COLLATE utf8mb4_general_ci, at TIMESTAMP(3) NULL, n FLOAT, j JSON, e ENUM('a','b'), y YEAR)
CREATE TABLE shop.parts (id INT, k CHAR(4) COLLATE utf8mb4_general_ci, v BLOB, PRIMARY KEY (id, k) NONCLUSTERED) SHARD_ROW_ID_BITS=3 \
PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (500), PARTITION p1 VALUES LESS THAN MAXVALUE)
CREATE TABLE shop.hashed (id INT PRIMARY KEY, v INT) PARTITION BY KEY (id) PARTITIONS 3
CREATE TABLE shop.kinds (id INT UNSIGNED PRIMARY KEY, b BIT(64), s SET('x','y'), d DATE, t TIME(6), db DOUBLE, g VARCHAR(20) CHARACTER SET gbk, \
l VARCHAR(20) CHARACTER SET latin1, bn BINARY(4), c VARCHAR(30) AS (CONCAT(g, '!')) STORED NOT NULL, j JSON, KEY x ((UPPER(g))), KEY m ((CAST(j->'$.n' AS UNSIGNED ARRAY))))
CREATE TABLE shop.old (id INT PRIMARY KEY, made DATETIME) TTL = `made` + INTERVAL 1 DAY TTL_ENABLE = 'OFF'
CREATE TABLE shop.child (id INT PRIMARY KEY, o INT UNSIGNED, CONSTRAINT FOREIGN KEY (o) REFERENCES shop.kinds (id) ON DELETE CASCADE)
CREATE SEQUENCE shop.numbers START WITH 5 INCREMENT BY 5 CACHE 10
CREATE TABLE shop.numbered (id BIGINT DEFAULT NEXTVAL(shop.numbers) PRIMARY KEY, v INT)
CREATE TABLE shop.spent (id BIGINT AUTO_RANDOM(3) PRIMARY KEY)
CREATE TABLE shop.spread (k INT, id BIGINT AUTO_RANDOM(4), v INT, PRIMARY KEY (id, k) CLUSTERED)
CREATE VIEW shop.latest AS SELECT id, note FROM shop.orders
""".strip().splitlines()  # fmt: skip


def rows(first: int, count: int) -> Iterator[str]:
    numbers = range(first, first + count)
    yield "INSERT INTO shop.orders (no, at, sum, note) VALUES " + ", ".join(
        f"({n}, NOW(6), {n}.25, 'order \\'{n}\\' é😀\\\\ {'x' * 120}')" for n in numbers
    )
    yield "INSERT INTO shop.log VALUES " + ", ".join(
        f"('Line {n % 7}', '2024-05-05 05:05:05.{n % 3}', {n / 3}, '{{\"n\": {n % 5}}}', {n % 2 + 1}, {1990 + n % 9})"
        for n in numbers
    )
    yield "INSERT INTO shop.parts VALUES " + ", ".join(f"({n}, 'k{n % 3}', X'00ff27{n % 256:02x}5c')" for n in numbers)
    yield "INSERT INTO shop.hashed VALUES " + ", ".join(f"({n}, {n})" for n in numbers)
    yield "INSERT INTO shop.kinds (id, b, s, d, t, db, g, l, bn, j) VALUES " + ", ".join(
        f"({n}, {2**63 + n}, {n % 4}, '0000-00-00', '-12:00:00.{n % 9}', {n}.5e30, '你好{n}', 'é{n}', X'00ff', "
        f"'{{\"n\": [{n}]}}')"
        for n in numbers
    )
    yield "INSERT INTO shop.child VALUES " + ", ".join(f"({n}, {n})" for n in numbers)
    yield "INSERT INTO shop.numbered (v) VALUES " + ", ".join(f"({n})" for n in numbers)
    yield "INSERT INTO shop.old VALUES " + ", ".join(f"({n}, '2001-01-01')" for n in numbers)


@pytest.fixture(scope="module")
def tidb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidbCluster]:
    with TidbCluster(tmp_path_factory.mktemp("tidb")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("target")) as target:
        yield target.settings


class Chain:
    """One archive of the source, its target, and what the source does."""

    def __init__(self, tidb: TidbCluster, settings: Settings) -> None:
        self.tidb = tidb
        self.settings = settings
        self.snapshots = 0

    def do(self, *statements: str) -> None:
        with self.tidb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'STRICT_TRANS_TABLES', allow_auto_random_explicit_insert = 1")
            for sql in statements:
                cursor.execute(sql)

    def window(self) -> Tso:
        """The archive reaches to now."""
        moment = self.tidb.tso()
        with Parts(self.settings) as parts:
            run_snapshot(parts.archive, parts.cluster, moment, self.settings, parts.history)
        return moment

    def dump(self) -> Tso:
        with Parts(self.settings) as parts:
            settle = waiter(parts.cluster, self.settings.source, self.settings.capture)
            return take_dump(parts.archive, parts.cluster, parts.history, self.settings, settle=settle).ts

    def equal_at(self, moment: Tso) -> None:
        wanted = source_at(self.tidb.dsn(), moment)
        assert sum(sum(table.rows.values()) for table in wanted.values()) > 100
        assert differences(wanted, target_contents(self.settings.target, wanted)) == []

    @contextmanager
    def target(self) -> Iterator[Connection[Any]]:
        with Dsn(port=self.settings.target.port).connect(autocommit=True) as connection:
            yield connection

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with self.target() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())


@pytest.fixture
def chain(tidb: TidbCluster, server: TargetSettings, tmp_path: Path) -> Iterator[Chain]:
    empty(server)
    settings = tidb.settings(tmp_path / "archive", server)
    with Parts(settings) as parts:
        init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
    made = Chain(tidb, settings)
    try:
        made.do(*SCHEMA)
        for first in range(0, 500, 250):
            made.do(*rows(first, 250))
        yield made
    finally:
        made.do("DROP DATABASE shop")


def change(chain: Chain, first: int) -> None:
    """Changes of every table, some of rows that stand twice; tables without a key lose some copies."""
    chain.do(
        f"UPDATE shop.orders SET sum = sum + 1, note = CONCAT(note, '+') WHERE no BETWEEN {first} AND {first + 99}",
        f"DELETE FROM shop.orders WHERE no BETWEEN {first + 100} AND {first + 120}",
        f"UPDATE shop.orders SET id = id + 1000000000 WHERE no BETWEEN {first + 130} AND {first + 140}",
        "DELETE FROM shop.log WHERE line = 'Line 3' LIMIT 20",
        "UPDATE shop.log SET line = 'LINE 4' WHERE line = 'Line 4' LIMIT 5",
        f"UPDATE shop.parts SET k = UPPER(k), v = X'5c27' WHERE id BETWEEN {first} AND {first + 20}",
        f"DELETE FROM shop.parts WHERE id BETWEEN {first + 30} AND {first + 50}",
        f"INSERT INTO shop.spread (k, v) VALUES ({first}, 1), ({first}, 2)",
        f"UPDATE shop.hashed SET id = id + 100000 WHERE id BETWEEN {first} AND {first + 9}",
        f"UPDATE shop.kinds SET g = NULL, s = 0, c = DEFAULT WHERE id BETWEEN {first} AND {first + 9}"
        .replace("g = NULL, s = 0, c = DEFAULT", "g = '再见', s = 0, b = 0, d = '2024-02-29'"),
        f"DELETE FROM shop.kinds WHERE id BETWEEN {first + 20} AND {first + 25}",  # and of its child, by the key
        *rows(first + 10_000, 60),
    )  # fmt: skip


@pytest.mark.row("S2")
def test_first_load_windows_with_ddl_again_and_restore(chain: Chain) -> None:
    began = chain.dump()
    change(chain, 0)
    chain.window()
    done = load.run(chain.settings)
    assert done.from_ts == began
    chain.equal_at(done.to_ts)
    chain.do(
        "ALTER TABLE shop.log ADD COLUMN seen TIMESTAMP DEFAULT CURRENT_TIMESTAMP, ADD COLUMN more TEXT NOT NULL FIRST",
        "ALTER TABLE shop.orders RENAME COLUMN note TO remark, ADD INDEX (at), MODIFY COLUMN sum DECIMAL(30,6)",
        "ALTER TABLE shop.kinds MODIFY COLUMN db VARCHAR(80), ADD COLUMN z INT NOT NULL DEFAULT 3 AFTER b",
        "ALTER TABLE shop.hashed TRUNCATE PARTITION p1",
        "ALTER TABLE shop.parts ADD COLUMN q ENUM('a','é') NOT NULL DEFAULT 'é'",
        "CREATE TABLE shop.copied LIKE shop.hashed",
        "CREATE OR REPLACE VIEW shop.latest AS SELECT id FROM shop.orders",
        "ALTER TABLE shop.old TTL = `made` + INTERVAL 2 MONTH",
        "DROP TABLE shop.child",
        "FLASHBACK TABLE shop.child",
        # Its random ids have run out.
        f"INSERT INTO shop.spent VALUES ({2**63 - 2})",
        "ALTER TABLE shop.spent AUTO_RANDOM_BASE = 3382",
        "ALTER TABLE shop.spent RENAME COLUMN id TO no",
    )
    middle = chain.window()
    change_again = [
        "UPDATE shop.orders SET remark = 'r' WHERE no < 300",
        "DELETE FROM shop.log WHERE line = 'Line 5' LIMIT 9",
        "INSERT INTO shop.copied VALUES (1, 1), (2, 2)",
        "ALTER TABLE shop.log DROP COLUMN more",
        "INSERT INTO shop.numbered (v) VALUES (1), (2), (3)",
        "RENAME TABLE shop.copied TO shop.x, shop.hashed TO shop.copied, shop.x TO shop.hashed",
        "TRUNCATE TABLE shop.parts",
        "INSERT INTO shop.parts (id, k) VALUES (1, 'a'), (1, 'b')",
    ]
    chain.do(*change_again)
    end = chain.window()
    assert load.run(chain.settings, to=middle).to_ts == middle
    chain.equal_at(middle)
    assert load.run(chain.settings).to_ts == end
    chain.equal_at(end)
    # Nothing expires, and what only a TiDB has is there.
    said = {name: chain.ask(f"SHOW CREATE TABLE shop.{name}")[0][1] for name in ("old", "orders", "kinds", "parts")}
    assert "TTL=`made` + INTERVAL 2 MONTH" in said["old"]
    assert "TTL_ENABLE='OFF'" in said["old"]
    assert "AUTO_RANDOM(6)" in said["orders"]
    assert "KEY `x` ((upper(`g`)))" in said["kinds"]
    assert "unsigned array" in said["kinds"]
    assert "SHARD_ROW_ID_BITS=3" in said["parts"]
    assert "NONCLUSTERED" in said["parts"]
    assert chain.ask(
        "SELECT COUNT(*) FROM information_schema.referential_constraints WHERE constraint_schema = 'shop'"
    ) == [(1,)]
    with chain.tidb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT MAX(id) FROM shop.numbered")
        ((given,),) = cursor.fetchall()
    assert chain.ask("SELECT NEXTVAL(shop.numbers)")[0][0] > given
    # A window that is loaded again changes nothing.
    load.run(chain.settings, repeat=middle)
    chain.equal_at(end)
    restored(chain.settings, to=middle, dry_run=False)
    chain.equal_at(middle)
    load.run(chain.settings)
    chain.equal_at(end)
    # Restored and loaded on by one command. Killed in its load, the same command goes on with that.
    follow: dict[str, Any] = {"to": middle, "follow": True}
    plans = [step for step, _ in states(restored(chain.settings, dry_run=True, **follow).load)].count("apply")
    with killing(state, "close_plan", at=plans + 1):
        restored(chain.settings, dry_run=False, **follow)
    gone_on = restore.run(chain.settings, into="target", dry_run=False, **follow)
    assert gone_on.before
    assert gone_on.followed is not None
    assert gone_on.followed.to_ts == end
    chain.equal_at(end)
    restored(chain.settings, to=end, dry_run=False)
    chain.equal_at(end)


def _begin_load(chain: Chain, directory: Path) -> subprocess.Popen[bytes]:
    tidb, target = chain.tidb, chain.settings.target
    (directory / "pumphouse.toml").write_text(
        f'[cluster]\nurl = "{tidb.url}"\n[archive]\nroot = "{chain.settings.archive.root}"\n'
        f'archive_id = "{chain.settings.archive.archive_id}"\n'
        f'[schema]\nhistory = "{tidb.history}"\n[target]\nhost = "127.0.0.1"\nport = {target.port}\nuser = "root"\n'
        '[load]\nengine = "local"\n'
    )
    command = [str(Path(sys.executable).parent / "pumphouse"), "load"]
    with (directory / "stderr").open("wb") as said:
        return subprocess.Popen(command, cwd=directory, env=os.environ, stdout=subprocess.DEVNULL, stderr=said)


def _wait(chain: Chain, begins: str) -> Callable[[], bool]:
    """Whether a session stands still in such a statement."""
    return lambda: any(
        str(text).startswith(begins)
        for (text,) in chain.ask("SELECT info FROM information_schema.processlist WHERE info IS NOT NULL")
    )


@pytest.mark.parametrize("held", ["delete without a key", "insert"])
def test_a_load_that_is_killed_in_the_middle_of_a_unit_and_one_that_goes_on(
    chain: Chain, tmp_path: Path, held: str
) -> None:
    chain.dump()
    load.run(chain.settings)
    chain.do("ALTER TABLE shop.orders ADD COLUMN seen INT DEFAULT 7")
    change(chain, 100)
    for first in range(20_000, 24_000, 500):
        chain.do(*(sql for sql in rows(first, 500) if " shop.kinds " in sql))  # more than one statement can carry
    end = chain.window()
    with chain.target() as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        if held == "insert":
            # The last row of the unit that brings it; others of that unit are in the transaction by then.
            cursor.execute("INSERT INTO shop.kinds (id, g) VALUES (23999, 'x')")
            stands = "INSERT INTO `shop`.`kinds`"
        else:
            cursor.execute("SELECT * FROM shop.log FOR UPDATE")
            stands = "DELETE `shop`.`log`"
        running = _begin_load(chain, tmp_path)
        try:
            stands_still = _wait(chain, stands)
            eventually(lambda: running.poll() is not None or stands_still(), what="a unit stands still", within_s=300)
            assert running.poll() is None, (tmp_path / "stderr").read_text()
            time.sleep(0.5)
        finally:
            running.kill()
            running.wait()
        ((units,),) = chain.ask("SELECT COUNT(*) FROM pumphouse.applied")
        cursor.execute("ROLLBACK")
    if held == "insert":
        assert units > 0
        # What the unit had inserted by then, in statements before, is not there.
        assert chain.ask("SELECT COUNT(*) FROM shop.kinds WHERE id >= 20000") == [(0,)]
    assert load.run(chain.settings, take_over=True).to_ts == end
    chain.equal_at(end)
    assert chain.ask("SELECT COUNT(*) FROM pumphouse.applied") == [(0,)]
