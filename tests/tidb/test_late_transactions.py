"""Transactions that begin before a DDL and first touch its table behind it: TiDB lets them, and nothing of them is lost."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path

import pymysql
import pytest

from pumphouse.archive.init import init_archive
from pumphouse.parts import Parts
from tests.support import mariadb
from tests.support.tidb import MISSING, TidbCluster
from tests.tidb.chain import Played, compare

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("S3", "L6"),
    pytest.mark.timeout(600),
]

# What is done to a table while the transaction is open, and what the transaction then does there.
BEHIND = {
    "TRUNCATE TABLE d.{}": ("INSERT INTO d.{} VALUES (3, 3, 'a', '2020-01-03')",),
    "ALTER TABLE d.{} ADD COLUMN b INT DEFAULT 5": ("INSERT INTO d.{} (id, b) VALUES (3, 6)", "UPDATE d.{} SET b = 7"),
    "ALTER TABLE d.{} MODIFY COLUMN e ENUM('a', 'b')": ("UPDATE d.{} SET e = 'b' WHERE id = 1",),
    "ALTER TABLE d.{} MODIFY COLUMN at DATETIME(6)": ("UPDATE d.{} SET at = '2021-01-01 00:00:00.123456'",),
    "ALTER TABLE d.{} CHANGE COLUMN n m VARCHAR(20)": (
        "INSERT INTO d.{} (id, m) VALUES (3, 'x')",
        "UPDATE d.{} SET m = 'y'",
    ),
    "ALTER TABLE d.{} DROP COLUMN n": ("INSERT INTO d.{} (id) VALUES (3)", "UPDATE d.{} SET at = NULL"),
}
ISOLATIONS = ("REPEATABLE-READ", "READ-COMMITTED")
KEYS = ("PRIMARY KEY (id)", "KEY (id)")


def test_what_they_write_arrives(tmp_path: Path) -> None:
    (tmp_path / "tidb").mkdir()
    (tmp_path / "db").mkdir()
    moments, done = [], Counter[str]()
    with TidbCluster(tmp_path / "tidb") as tidb, mariadb.running(tmp_path / "db") as target:
        settings = tidb.settings(tmp_path / "archive", target)
        with Parts(settings) as parts:
            init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
        with tidb.connect() as plain, tidb.connect() as late, plain.cursor() as first, late.cursor() as second:
            first.execute("CREATE DATABASE d")
            first.execute("CREATE TABLE d.other (id INT AUTO_INCREMENT PRIMARY KEY)")
            for number, (isolation, ddl, key) in enumerate(product(ISOLATIONS, BEHIND, KEYS)):
                table = f"t{number}"
                first.execute(f"CREATE TABLE d.{table} (id INT, n INT, e ENUM('a'), at DATETIME, {key})")
                first.execute(f"INSERT INTO d.{table} VALUES (1, 1, 'a', '2020-01-01'), (2, 2, 'a', '2020-01-02')")
                second.execute(f"SET tx_isolation = '{isolation}'")
                second.execute("BEGIN")
                second.execute("INSERT INTO d.other VALUES ()")
                first.execute(ddl.format(table))
                for sql in (*BEHIND[ddl], "DELETE FROM d.{} WHERE id = 2"):
                    with suppress(pymysql.MySQLError):  # a TiDB refuses some of it
                        second.execute(sql.format(table))
                        done[ddl] += 1
                second.execute("COMMIT")
                moments.append(tidb.tso())
        played = Played(0)
        compare(tidb, settings, moments, [], random.Random(0), played)
    assert played.found == []
    assert done.keys() == BEHIND.keys()
