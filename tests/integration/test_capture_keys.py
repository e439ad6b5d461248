"""Foreign keys with actions under a capture: refused, and right on a target by the statements that a check prints."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest

from pumphouse.capture.keys import acting_keys
from tests.support import capturing, mariadb
from tests.support.capturedstack import CapturedStack, as_json, captured_stack
from tests.support.capturing import rows_of
from tests.support.kind import is_mysql

pytestmark = [pytest.mark.timeout(600), pytest.mark.mysql]
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


def _in_innodb() -> tuple[str, ...]:
    """Where the server could carry the actions out by itself, and write them: that InnoDB does, and writes nothing."""
    return ("--innodb-native-foreign-keys=ON",) if is_mysql() else ()


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

        with captured_stack(directory, prepare=mend, source=_in_innodb()) as stack:
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


@pytest.mark.row("Q3")
def test_a_source_that_stops_writing_what_its_keys_change_is_refused_when_it_is_back() -> None:
    if not is_mysql():  # no MariaDB has the setting that is changed here
        pytest.skip("a MariaDB never writes what its foreign keys change")
    with mariadb.directory_in_memory() as directory, captured_stack(directory, prepare=_prepare) as stack:
        stack.begin()
        stack.run(*_CHANGES, db="shop")
        stack.require_equal()
        server = stack.databases["source"]
        server.stop()
        server.arguments = (*server.arguments, *_in_innodb())
        server.start()
        stack.run("DELETE FROM shop.a", db="shop")
        with pytest.raises(Exception, match=r"b_a \(ON DELETE CASCADE"):
            stack.captured()


_TREE = (
    "CREATE TABLE z (code VARCHAR(8) COLLATE utf8mb4_general_ci, no INT, PRIMARY KEY (no), UNIQUE KEY (code, no))",
    (
        "CREATE TABLE m (id INT PRIMARY KEY, code VARCHAR(8) COLLATE utf8mb4_general_ci, no INT,"
        " CONSTRAINT same FOREIGN KEY (code, no) REFERENCES z (code, no) ON DELETE CASCADE ON UPDATE SET NULL)"
    ),
    "CREATE TABLE b (id INT PRIMARY KEY, m INT, CONSTRAINT b_m FOREIGN KEY (m) REFERENCES m (id) ON DELETE CASCADE)",
    "CREATE TABLE a (id INT PRIMARY KEY, b INT, CONSTRAINT a_b FOREIGN KEY (b) REFERENCES b (id) ON DELETE SET NULL)",
    # Two ways to one row.
    (
        "CREATE TABLE c (id INT PRIMARY KEY, no INT, b INT,"
        " CONSTRAINT c_z FOREIGN KEY (no) REFERENCES z (no) ON DELETE SET NULL,"
        " CONSTRAINT c_b FOREIGN KEY (b) REFERENCES b (id) ON DELETE CASCADE)"
    ),
    "CREATE TABLE r (id INT PRIMARY KEY, m INT, CONSTRAINT r_m FOREIGN KEY (m) REFERENCES m (id))",
)
_TREE_ROWS = (
    "INSERT INTO z VALUES ('a', 1), ('B', 2), (NULL, 3), ('d', 4), ('e', 5), ('f', 6)",
    "INSERT INTO m VALUES (1, 'A', 1), (2, 'b', 2), (3, NULL, 3), (4, 'd', NULL), (5, 'e', 5), (6, 'f', 6), (7, 'd', 4)",
    "INSERT INTO b VALUES (1, 1), (2, 1), (3, 2), (4, 3), (5, 5), (6, 6)",
    "INSERT INTO a VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, NULL), (6, 6)",
    "INSERT INTO c VALUES (1, 1, 1), (2, 2, 1), (3, 1, 3), (4, NULL, 4), (5, 5, 6)",
    "INSERT INTO r VALUES (1, 5)",
)
_PLAYED = (
    "UPDATE z SET code = 'a', no = 1 WHERE no = 1",  # the same bytes: no action
    "UPDATE z SET code = 'b' WHERE no = 2",  # other bytes, and equal
    "DELETE FROM z WHERE no = 5",  # a key that is RESTRICT holds it: nothing may have gone
    "SET foreign_key_checks = 0",
    "DELETE FROM z WHERE no = 1",
    "INSERT INTO z VALUES ('a', 1)",
    "UPDATE z SET code = 'x' WHERE no = 4",
    "UPDATE z SET code = 'd' WHERE no = 4",
    "SET foreign_key_checks = 1",
    "INSERT INTO z VALUES ('n', 4) ON DUPLICATE KEY UPDATE code = 'n'",
    "REPLACE INTO m VALUES (6, NULL, 6)",
    "DELETE FROM b WHERE id = 2",
    "DELETE FROM z WHERE no IN (1, 3)",
    "DELETE FROM z ORDER BY no DESC LIMIT 1",
    "TRUNCATE TABLE z",
)


@pytest.mark.row("Q3")
def test_triggers_do_what_the_actions_do(tmp_path: Path) -> None:
    """The same statements with the server's actions and with what is printed: the same errors, the same rows."""
    with capturing.source(tmp_path, *_in_innodb()) as server, server.connect(autocommit=True) as connection:
        for db in ("acts", "made"):
            capturing.run(connection, f"CREATE DATABASE {db}", f"USE {db}", *_TREE, *_TREE_ROWS)
        # Of another database: a key of the same name, with the same parent.
        capturing.run(
            connection,
            "CREATE DATABASE more",
            "CREATE TABLE more.other (id INT PRIMARY KEY, no INT,"
            " CONSTRAINT same FOREIGN KEY (no) REFERENCES made.z (no) ON DELETE CASCADE)",
            "INSERT INTO more.other VALUES (1, 1), (2, 2)",
        )
        keys = acting_keys(connection, {"acts"}, lambda *_: False)
        assert [key.name for key in keys if key.parent[0] == key.child[0] == "made"] == [
            "c_z",
            "same",
            "b_m",
            "a_b",
            "c_b",
        ]
        for key in keys:
            capturing.run(connection, *key.instead())
        assert acting_keys(connection, {"acts"}, lambda *_: False) == []
        for statement in _PLAYED:
            said = []
            for db in ("acts", "made"):
                capturing.run(connection, f"USE {db}")
                try:
                    with connection.cursor() as cursor:
                        said.append([cursor.execute(statement)])
                except pymysql.MySQLError as error:
                    said.append([error.args[0]])
                said[-1] += [rows_of(connection, f"SELECT * FROM {each} ORDER BY 1, 2") for each in "zmbacr"]
            assert said[0] == said[1], statement
        assert rows_of(connection, "SELECT id FROM more.other") == [(2,)]
