"""What a captured server itself gave its columns: values that a CHECK does not allow, that it bent, that came by default."""

from __future__ import annotations

import pytest

from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, captured_stack
from tests.support.kind import is_mysql

pytestmark = [pytest.mark.timeout(600), pytest.mark.mysql]


@pytest.mark.row("Q3", "L3")
def test_what_a_source_gave_its_columns_is_on_the_target() -> None:
    with mariadb.directory_in_memory() as directory, captured_stack(directory, prepare=_prepare) as stack:
        stack.begin()
        stack.require_equal()
        stack.run(
            "ALTER TABLE moments ADD COLUMN later TIMESTAMP NULL DEFAULT '2020-02-02 02:02:02', RENAME TO kept",
            "SET time_zone = '+05:30'",
            "ALTER TABLE kept ADD COLUMN east TIMESTAMP(3) NULL DEFAULT '2020-02-02 02:02:02', ALGORITHM = COPY",
            "INSERT INTO kept (id) VALUES (3)",
            # Not strict: what is generated is bent to what its column takes.
            "SET sql_mode = ''",
            "INSERT INTO bent (id, n, t) VALUES (2, 9000, 'twenty'), (3, 4, 'four'), (4, -9000, NULL)",
            "UPDATE bent SET t = 'eleven' WHERE id = 1",
            db="shop",
        )
        stack.require_equal()
        if not is_mysql():
            stack.run(
                "ALTER TABLE whole ADD COLUMN n INT NOT NULL CHECK (n > 5), CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
                "ALTER TABLE plain ADD COLUMN doc JSON NOT NULL,"
                " CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
                "INSERT INTO plain (id, doc) VALUES (2, '[1]')",
                "INSERT INTO empty VALUES (2, '{}')",
                "SET check_constraint_checks = OFF",
                "INSERT INTO dumped (id, n) VALUES (8, 3)",
                "UPDATE dumped SET n = 1 WHERE id = 7",
                "INSERT INTO empty VALUES (3, CONCAT(REPEAT('[', 40), REPEAT(']', 40)))",
                db="shop",
            )
            stack.require_equal()


def _prepare(stack: CapturedStack) -> None:
    stack.run("CREATE DATABASE shop")
    stack.run(
        "SET time_zone = '-03:00'",
        "CREATE TABLE moments (id INT PRIMARY KEY, t TIMESTAMP NOT NULL DEFAULT '2020-02-02 02:02:02')",
        "INSERT INTO moments (id) VALUES (1)",
        (
            "CREATE TABLE bent (id INT PRIMARY KEY, n BIGINT, t VARCHAR(20), g TINYINT AS (n) STORED,"
            " u VARCHAR(4) AS (t) STORED, v VARCHAR(5) AS (CONCAT('g', t)) VIRTUAL)"
        ),
        "INSERT INTO bent (id, n, t) VALUES (1, 1, 'one')",
        "SET sql_mode = ''",
        "INSERT INTO bent (id, n, t) VALUES (0, 9000, 'a million')",
        db="shop",
    )
    if not is_mysql():
        # A MariaDB holds to a CHECK only what is written then.
        stack.run(
            "CREATE TABLE whole (id INT PRIMARY KEY, t VARCHAR(9))",
            "INSERT INTO whole VALUES (1, 'a')",
            "CREATE TABLE plain (id INT)",
            "INSERT INTO plain VALUES (1)",
            "CREATE TABLE empty (id INT PRIMARY KEY)",
            "INSERT INTO empty VALUES (1)",
            "ALTER TABLE empty ADD COLUMN doc JSON NOT NULL",
            "CREATE TABLE dumped (id INT PRIMARY KEY)",
            "INSERT INTO dumped VALUES (7)",
            "ALTER TABLE dumped ADD COLUMN n INT NOT NULL CHECK (n > 5)",
            db="shop",
        )
