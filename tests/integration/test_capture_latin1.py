"""latin1 of a captured source: what depends on its bytes, order and size is the same on a target."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, captured_stack

pytestmark = [pytest.mark.timeout(600), pytest.mark.mysql]

_TABLES = (
    # In a set of another order, 'ä' lies in the first partition.
    (
        "CREATE TABLE parts (id INT, a VARCHAR(10), PRIMARY KEY (id, a)) CHARSET latin1"
        " PARTITION BY RANGE COLUMNS (a) (PARTITION p0 VALUES LESS THAN ('n'), PARTITION p1 VALUES LESS THAN (MAXVALUE))"
    ),
    "INSERT INTO parts VALUES (1, 'ä'), (2, 'a'), (3, 'z')",
    # The usual mend of text that was written in a wrong character set.
    "CREATE TABLE wrong (id INT PRIMARY KEY, t TEXT CHARACTER SET latin1)",
    "INSERT INTO wrong VALUES (1, 'Ã©'), (2, 'é')",
    (
        "CREATE TABLE sums (id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET latin1, h BIGINT AS (crc32(a)) STORED,"
        " x VARCHAR(80) AS (hex(a)) STORED, n INT AS (length(a)) VIRTUAL)"
    ),
    "INSERT INTO sums (id, a) VALUES (1, 'é'), (2, 'e')",
    (
        "CREATE TABLE names (n VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_general_cs PRIMARY KEY,"
        " t TINYTEXT CHARACTER SET latin1, e ENUM('ä', 'b') CHARACTER SET latin1) COLLATE utf8mb4_bin"
    ),
    "INSERT INTO names VALUES ('Mar', REPEAT('é', 255), 'ä'), ('Mär', '€', 'b'), ('mar', NULL, NULL)",
)


def _rows(stack: CapturedStack, server: str, sql: str) -> tuple[tuple[Any, ...], ...]:
    with stack.databases[server].connect(autocommit=True, database="shop") as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return tuple(cursor.fetchall())


def _require_alike(stack: CapturedStack) -> None:
    stack.require_equal()
    for sql in (
        "SELECT id, HEX(a) FROM parts ORDER BY id",
        "SELECT id, HEX(t) FROM wrong ORDER BY id",
        "SELECT id, h, x, n FROM sums ORDER BY id",
        "SELECT n, HEX(t), HEX(e) FROM names ORDER BY n",
    ):
        assert _rows(stack, "target", sql) == _rows(stack, "source", sql)


@pytest.mark.row("Q3")
def test_latin1_stays_latin1() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory, prepare=_prepare) as stack:
        stack.begin()
        _require_alike(stack)
        stack.run(
            "UPDATE names SET t = 'ü' WHERE n = 'Mar'",
            "DELETE FROM names WHERE n = 'Mär'",
            "INSERT INTO names VALUES ('mär', REPEAT('é', 255), 'ä'), ('MAR', 'ß', NULL)",
            "UPDATE sums SET a = 'öé' WHERE id = 2",
            "CREATE TABLE later (id INT PRIMARY KEY, t VARCHAR(9) CHARACTER SET latin1 UNIQUE)",
            "INSERT INTO later VALUES (1, 'Mar')",
            "ALTER TABLE parts DROP PARTITION p0",
            "ALTER TABLE wrong MODIFY t BLOB",
            db="shop",
        )
        _require_alike(stack)
        assert _rows(stack, "target", "SELECT id, a FROM parts ORDER BY id") == ((1, "ä"), (3, "z"))
        stack.run(
            "UPDATE wrong SET t = x'c3a9' WHERE id = 2",
            "ALTER TABLE wrong MODIFY t TEXT CHARACTER SET utf8mb4",
            "ALTER TABLE names MODIFY t TEXT CHARACTER SET utf8mb4, MODIFY n VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            db="shop",
        )
        _require_alike(stack)
        assert _rows(stack, "target", "SELECT id, t FROM wrong ORDER BY id") == ((1, "é"), (2, "é"))


def _prepare(stack: CapturedStack) -> None:
    stack.run("CREATE DATABASE shop")
    stack.run(*_TABLES, db="shop")
