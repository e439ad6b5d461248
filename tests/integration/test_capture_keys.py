"""Foreign keys with actions under a capture: refused, and right on a target by the statements that a check prints."""

from __future__ import annotations

import pytest

from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, as_json, captured_stack
from tests.support.capturing import rows_of

pytestmark = pytest.mark.timeout(600)
# Three levels of CASCADE, SET NULL on both sides, a key of two columns, one into another database, one within a table.
_TABLES = (
    "CREATE TABLE shop.a (id INT, region INT, note VARCHAR(20), PRIMARY KEY (id), UNIQUE KEY (region, id))",
    "CREATE TABLE shop.b (id INT PRIMARY KEY, a INT, CONSTRAINT b_a FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE)",
    "CREATE TABLE shop.c (id INT PRIMARY KEY, b INT, CONSTRAINT c_b FOREIGN KEY (b) REFERENCES b (id) ON DELETE CASCADE)",
    (
        "CREATE TABLE shop.d (id INT PRIMARY KEY, c INT, CONSTRAINT d_c FOREIGN KEY (c) REFERENCES c (id)"
        " ON DELETE SET NULL ON UPDATE SET NULL)"
    ),
    (
        "CREATE TABLE shop.`e``s` (id INT PRIMARY KEY, region INT, `a s` INT,"
        " CONSTRAINT `e``a` FOREIGN KEY (region, `a s`) REFERENCES a (region, id) ON DELETE CASCADE)"
    ),
    (
        "CREATE TABLE other.f (id INT PRIMARY KEY, a INT,"
        " CONSTRAINT f_a FOREIGN KEY (a) REFERENCES shop.a (id) ON DELETE SET NULL ON UPDATE CASCADE)"
    ),
    "CREATE TABLE shop.g (id INT PRIMARY KEY, up INT, CONSTRAINT g_g FOREIGN KEY (up) REFERENCES g (id) ON DELETE CASCADE)",
)
_ROWS = (
    "INSERT INTO shop.a VALUES (1, 1, 'x'), (2, 1, 'y'), (3, 2, 'z')",
    "INSERT INTO shop.b VALUES (10, 1), (11, 1), (12, 2), (13, NULL)",
    "INSERT INTO shop.c VALUES (100, 10), (101, 11), (102, 12), (103, NULL)",
    "INSERT INTO shop.d VALUES (1000, 100), (1001, 101), (1002, 102)",
    "INSERT INTO shop.`e``s` VALUES (1, 1, 1), (2, 1, 2), (3, NULL, 1)",
    "INSERT INTO other.f VALUES (1, 1), (2, 2), (3, 3)",
    "INSERT INTO shop.g VALUES (1, NULL), (2, 1), (3, NULL)",
)
_CHANGES = (
    "DELETE FROM shop.a WHERE id = 1",
    "REPLACE INTO shop.a VALUES (2, 9, 'again')",
    "INSERT INTO shop.b VALUES (14, 2)",
    "INSERT INTO shop.c VALUES (104, 14), (105, 14)",
    "INSERT INTO shop.d VALUES (1004, 104), (1005, 105)",
    "UPDATE shop.c SET id = 106 WHERE id = 104",
    "DELETE FROM shop.a WHERE note LIKE 'again'",
)


def _prepare(stack: CapturedStack) -> None:
    stack.run("CREATE DATABASE shop", "CREATE DATABASE other")
    stack.run(*_TABLES, *_ROWS, db="shop")


@pytest.mark.row("Q3")
def test_actions_of_foreign_keys_are_refused_and_triggers_in_their_place_are_followed() -> None:
    with mariadb.directory_in_memory() as directory:
        statements: list[str] = []

        def mend(stack: CapturedStack) -> None:
            _prepare(stack)
            refused = stack.pumphouse("capture", "run")
            assert "b_a (ON DELETE CASCADE" in refused.stderr, refused.stderr
            assert "capture check" in refused.stderr
            lines = [line for line in as_json(stack.pumphouse("capture", "check", "--json")) if line["wrong"]]
            assert len(lines) == 6
            lossy = {line["text"].split(" ")[0] for line in lines if "an error" in line["text"]}
            assert lossy == {"other.f.f_a", "shop.g.g_g"}
            for line in lines:
                *typed, leave = line["type"].split("\n")
                assert leave.startswith("or leave ")
                statements.extend(typed)
            stack.run(*statements, db="shop")
            assert [line for line in as_json(stack.pumphouse("capture", "check", "--json")) if line["wrong"]] == []

        with captured_stack(directory, prepare=mend) as stack:
            stack.begin()
            stack.run(*_CHANGES, db="shop")
            with stack.source() as connection:
                assert rows_of(connection, "SELECT * FROM shop.b") == [(13, None)]
                assert rows_of(connection, "SELECT * FROM shop.c") == [(103, None)]
                assert {row[1] for row in rows_of(connection, "SELECT * FROM shop.d")} == {None}
                assert rows_of(connection, "SELECT id FROM shop.`e``s`") == [(3,)]
                assert rows_of(connection, "SELECT * FROM other.f") == [(1, None), (2, None), (3, 3)]
            stack.require_equal()
            # DDL that brings an action back is refused where it stands.
            stack.run("ALTER TABLE shop.d ADD CONSTRAINT back FOREIGN KEY (c) REFERENCES shop.c (id) ON DELETE CASCADE")
            with pytest.raises(Exception, match=r"shop\.d\.back"):
                stack.captured()
