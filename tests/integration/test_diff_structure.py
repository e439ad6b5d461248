"""Keys, foreign keys, triggers and views of two servers, and what a copy does not get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.diff.compare import DiffReport, compare
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.kind import MISSING_MYSQL
from tests.support.mysql import MySqlServer

pytestmark = [pytest.mark.row("R6", "R8"), pytest.mark.mysql]

MADE = (
    "CREATE TABLE {s}.p (id INT PRIMARY KEY, n INT, KEY n (n))",
    (
        "CREATE TABLE {s}.c (id INT PRIMARY KEY, p INT, t VARCHAR(300), g INT AS (id + 1) STORED, UNIQUE KEY pt (p, t(20)), "
        "FULLTEXT KEY words (t), KEY g (g), CONSTRAINT one_p FOREIGN KEY (p) REFERENCES {s}.p (id) ON DELETE CASCADE)"
    ),
    "CREATE TRIGGER {s}.tr BEFORE INSERT ON {s}.c FOR EACH ROW SET NEW.t = UPPER(NEW.t)",
    "CREATE VIEW {s}.v AS SELECT c.id, p.n FROM {s}.c JOIN {s}.p ON p.id = c.p",
    "CREATE EVENT {s}.ev ON SCHEDULE EVERY 1 DAY DO DELETE FROM {s}.c",
    "CREATE PROCEDURE {s}.pr() SELECT 1",
    "INSERT INTO {s}.p VALUES (1, 1)",
)


def run(server: MariaDbServer, *statements: str) -> None:
    connection = server.connect(autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as running:
        yield running


@pytest.fixture(autouse=True)
def _made(server: MariaDbServer) -> None:
    for schema in ("one", "two"):
        run(server, f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema}")
        run(server, *(each.format(s=schema) for each in MADE))


def diff(server: MariaDbServer) -> DiffReport:
    return compare(server.dsn, server.dsn, schemas={"one": "two"})


def found(report: DiffReport) -> list[tuple[str, str, str]]:
    return [(each.kind, each.table, each.detail) for each in report.differences]


def test_what_is_alike_under_another_name_is_no_difference(server: MariaDbServer) -> None:
    report = diff(server)
    assert (report.differences, report.lacks) == ([], [])


@pytest.mark.parametrize(
    ("change", "kind", "table", "told"),
    [
        ("ALTER TABLE two.p DROP KEY n", "keys", "one.p", "key n (n) is only in the source"),
        ("ALTER TABLE two.p ADD KEY m (n)", "keys", "one.p", "key m (n) is only in the target"),
        (
            "ALTER TABLE two.p DROP KEY n, ADD UNIQUE KEY n (n, id)",
            "keys",
            "one.p",
            "key n is (n) in the source, unique (n, id) in the target",
        ),
        (
            "ALTER TABLE two.c DROP KEY pt, ADD UNIQUE KEY pt (p, t(30))",
            "keys",
            "one.c",
            "key pt is unique (p, t(20)) in the source, unique (p, t(30)) in the target",
        ),
        (
            "ALTER TABLE two.c ADD CONSTRAINT more FOREIGN KEY (id) REFERENCES two.p (id)",
            "foreign keys",
            "one.c",
            "more (id) to two.p (id) on update RESTRICT on delete RESTRICT is only in the target",
        ),
        ("CREATE OR REPLACE VIEW two.v AS SELECT c.id, p.n FROM two.c JOIN two.p", "views", "one.v", "its text is"),
    ],
)
def test_other_keys_and_views_are_named(server: MariaDbServer, change: str, kind: str, table: str, told: str) -> None:
    run(server, change)
    report = diff(server)
    assert [each for each in found(report) if each[0] == kind and each[1] == table and told in each[2]], found(report)
    assert not report.lacks


def test_a_view_of_json_is_compared_by_value_and_one_of_what_is_gone_is_not(server: MariaDbServer) -> None:
    for db, text in (("one", '{"a": 1.0}'), ("two", '{"a":1}')):
        run(
            server,
            f"CREATE TABLE {db}.j (id INT PRIMARY KEY, doc JSON)",
            f"INSERT INTO {db}.j VALUES (1, '{text}')",
            f"CREATE VIEW {db}.of_json AS SELECT * FROM {db}.j",
            f"CREATE TABLE {db}.soon (id INT)",
            f"CREATE VIEW {db}.of_gone AS SELECT * FROM {db}.soon",
            f"DROP TABLE {db}.soon",
        )
    report = diff(server)
    assert found(report) == []
    assert any("of_gone: not compared" in note for note in report.notes)
    run(server, "UPDATE two.j SET doc = '{}'")
    assert {table for _, table, _ in found(diff(server))} == {"one.j", "one.of_json"}


def test_a_foreign_key_with_other_rules_or_another_table_differs(server: MariaDbServer) -> None:
    run(server, "CREATE TABLE one.q LIKE one.p", "CREATE TABLE two.q LIKE two.p")
    for rest in ("two.p (id)", "two.q (id) ON DELETE CASCADE", "one.p (id) ON DELETE CASCADE"):
        run(server, "ALTER TABLE two.c DROP FOREIGN KEY one_p")
        run(server, f"ALTER TABLE two.c ADD CONSTRAINT one_p FOREIGN KEY (p) REFERENCES {rest}")
        assert [kind for kind, _, _ in found(diff(server))] == ["foreign keys"], rest
    # Its name is the server's, as often as not.
    run(server, "ALTER TABLE two.c DROP FOREIGN KEY one_p")
    run(server, "ALTER TABLE two.c ADD CONSTRAINT other FOREIGN KEY (p) REFERENCES two.p (id) ON DELETE CASCADE")
    assert found(diff(server)) == []


def test_triggers_of_the_target_that_do_something_else_differ(server: MariaDbServer) -> None:
    run(server, "DROP TRIGGER two.tr")
    run(server, "CREATE TRIGGER two.tr BEFORE INSERT ON two.c FOR EACH ROW SET NEW.t = LOWER(NEW.t)")
    assert found(diff(server)) == [("triggers", "one.tr", "what it does differs")]
    run(server, "DROP TRIGGER two.tr")
    run(server, "CREATE TRIGGER two.more AFTER INSERT ON two.c FOR EACH ROW DO 0")
    report = diff(server)
    assert found(report) == [("triggers", "two.more", "only in the target, AFTER INSERT on c")]
    assert report.lacks == ["trigger one.tr, BEFORE INSERT on c"]


def test_what_no_copy_gets_is_listed_and_no_difference(server: MariaDbServer, tmp_path: Path) -> None:
    run(
        server,
        "DROP TRIGGER two.tr",
        "DROP EVENT two.ev",
        "DROP PROCEDURE two.pr",
        "ALTER TABLE two.c DROP FOREIGN KEY one_p",
        "ALTER TABLE two.c DROP KEY words, DROP KEY g",
    )
    report = diff(server)
    assert report.equal
    assert report.lacks == [
        "one.c: key g (g) is only in the source",
        "one.c: key words FULLTEXT (t) is only in the source",
        "one.c: foreign key one_p (p) to one.p (id) on update RESTRICT on delete CASCADE",
        "trigger one.tr, BEFORE INSERT on c",
        "event one.ev",
        "routine one.pr",
    ]
    of = mariadb.as_lines(server.dsn.server)
    (tmp_path / "p.toml").write_text(f"[source]\n{of}[target]\n{of}")
    done = CliRunner().invoke(cli, ("--config", str(tmp_path / "p.toml"), "diff", "--schema", "one=two"))
    assert done.exit_code == 0, done.output
    assert "the target lacks, as no copy gets it: event one.ev" in done.output


def test_what_the_user_may_not_see_is_said(server: MariaDbServer) -> None:
    mariadb.new_user(lambda sql: run(server, sql), "small@'%'", "Sm4ll!pw")
    for db in ("one", "two"):
        run(server, f"GRANT SELECT ON {db}.* TO small@'%'")
    small = replace(server.dsn, user="small", password="Sm4ll!pw")
    report = compare(small, small, schemas={"one": "two"})
    run(server, "DROP USER small@'%'")
    assert report.equal
    assert "not compared, because not seen in the source: triggers of one: it takes TRIGGER" in report.notes
    assert "not compared, because not seen in the target: routines of two: it takes EXECUTE" in report.notes


def test_users_that_the_target_does_not_have_are_listed(server: MariaDbServer) -> None:
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as other:
        for schema in ("one", "two"):
            run(other, f"CREATE DATABASE {schema}")
            run(other, *(each.format(s=schema) for each in MADE))
        run(server, "DROP USER IF EXISTS app@'10.%'", "CREATE USER app@'10.%' IDENTIFIED BY 'S3cret!pw'")
        report = compare(server.dsn, other.dsn)
        assert (report.differences, report.lacks) == ([], ["user app@10.%"])
        run(other, "CREATE USER app@'10.%' IDENTIFIED BY 'An0ther!pw'")
        assert compare(server.dsn, other.dsn).lacks == []


@pytest.mark.mariadb("the other server is a MySQL")
@pytest.mark.skipif(bool(MISSING_MYSQL), reason=MISSING_MYSQL)
def test_a_key_that_only_a_mariadb_can_have_is_what_a_copy_lacks(server: MariaDbServer) -> None:
    run(server, "DROP DATABASE one", "CREATE DATABASE one",
        "CREATE TABLE one.j (id INT PRIMARY KEY, d JSON, n INT, s TINYTEXT, l TEXT, KEY i (d(20)),"
        " KEY m (n, d(9)), KEY n (n), KEY t (s), KEY u (s(63)), UNIQUE KEY v (l)) CHARACTER SET utf8mb4")  # fmt: skip
    with mariadb.directory_in_memory() as directory, MySqlServer(directory, name="other") as other:
        run(
            other,
            "CREATE DATABASE one",
            "CREATE TABLE one.j (id INT PRIMARY KEY, d JSON, n INT, s TINYTEXT, l TEXT) CHARACTER SET utf8mb4",
        )
        report = compare(server.dsn, other.dsn, schemas={"one": "one"})
    assert [told for _, _, told in found(report) if told.startswith("key")] == [
        "key n (n) is only in the source", "key u (s(63)) is only in the source",
    ]  # fmt: skip
    assert [each for each in report.lacks if "key" in each] == [
        "one.j: key i (d(20)) is only in the source", "one.j: key m (n, d(9)) is only in the source",
        "one.j: key t (s(255)) is only in the source", "one.j: key v unique (l) is only in the source",
    ]  # fmt: skip
