"""The comparer on real servers: equal is equal, and every single change is found."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.diff.compare import DiffReport, compare
from pumphouse.errors import AccessDenied, ConfigError, UsageError
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.kind import is_mysql

pytestmark = pytest.mark.row("R6")

TABLES = """
CREATE TABLE {s}.t (
  id INT PRIMARY KEY, i BIGINT UNSIGNED, f FLOAT, d DOUBLE, n DECIMAL(20,5), s VARCHAR(20), b BLOB, j JSON,
  e ENUM('a','b'), st SET('x','y','z'), bi BIT(9), dt DATETIME(6), ts TIMESTAMP(3) NULL, ti TIME(2), y YEAR,
  g INT AS (id + 1) VIRTUAL
);
CREATE TABLE {s}.keyless (a INT, b VARCHAR(10));
CREATE VIEW {s}.v AS SELECT id, s FROM {s}.t;
INSERT INTO {s}.t (id, i, f, d, n, s, b, j, e, st, bi, dt, ts, ti, y) VALUES
  (1, 18446744073709551615, 0.1, 0.1, 1.00001, 'ä', x'00ff', '{{"k": 3}}', 'b', 'x,z', b'101', '2026-01-02 03:04:05.678901',
   '2026-01-02 03:04:05.678', '-12:34:56.78', 2026),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO {s}.keyless VALUES (1, 'x'), (1, 'x'), (2, NULL);
"""


def _run(server: MariaDbServer, sql: str) -> None:
    connection = server.connect(autocommit=True)
    with connection.cursor() as cursor:
        for statement in sql.split(";"):
            if statement.strip():
                cursor.execute(statement)
    connection.close()


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as running:
        yield running


@pytest.fixture(autouse=True)
def _tables(server: MariaDbServer) -> None:
    for schema in ("one", "two"):
        _run(server, f"DROP DATABASE IF EXISTS {schema}; CREATE DATABASE {schema};" + TABLES.format(s=schema))
    # Equal by value, in other bytes.
    _run(server, """UPDATE two.t SET j = '{ "k" : 3.0 }' WHERE id = 1""")


def _compare(server: MariaDbServer, **options: Any) -> DiffReport:
    # Views name their schema, so only the tables are alike under another name.
    return compare(server.dsn, server.dsn, schemas={"one": "two"}, **options)


@pytest.mark.mysql
def test_equal_tables_are_equal(server: MariaDbServer) -> None:
    report = _compare(server)
    assert report.differences == []
    assert (report.tables, report.rows) == (3, 7)


def test_a_text_with_a_check_is_no_json_where_json_would_have_another_collation(server: MariaDbServer) -> None:
    """As CONVERT TO leaves a MariaDB's JSON: no other server makes JSON of it."""
    for schema, check in (("one", "CHECK (json_valid(j))"), ("two", "")):
        text = "LONGTEXT COLLATE utf8mb4_general_ci NOT NULL"
        _run(
            server,
            f"CREATE TABLE {schema}.c (id INT PRIMARY KEY, j {text} {check}); INSERT INTO {schema}.c VALUES (1, '1')",
        )
    assert _compare(server).differences == []
    _run(server, "UPDATE two.c SET j = '1.0'")
    assert [each.table for each in _compare(server).differences][:1] == ["one.c"]


@pytest.mark.parametrize(
    ("change", "table"),
    [
        ("UPDATE two.t SET i = 18446744073709551614 WHERE id = 1", "one.t"),
        ("UPDATE two.t SET f = 0.10000001 WHERE id = 1", "one.t"),
        ("UPDATE two.t SET d = 0.10000000000000002 WHERE id = 1", "one.t"),
        ("UPDATE two.t SET n = 1.00002 WHERE id = 1", "one.t"),
        ("UPDATE two.t SET s = 'a' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET s = '' WHERE id = 2", "one.t"),
        ("UPDATE two.t SET b = x'00fe' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET j = '{\"k\": 4}' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET e = 'a' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET st = 'x' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET bi = b'100' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET dt = '2026-01-02 03:04:05.678902' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET ts = '2026-01-02 03:04:05.679' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET ti = '-12:34:56.79' WHERE id = 1", "one.t"),
        ("UPDATE two.t SET y = 2025 WHERE id = 1", "one.t"),
        ("DELETE FROM two.keyless LIMIT 1", "one.keyless"),
        ("INSERT INTO two.keyless VALUES (2, NULL)", "one.keyless"),
        ("UPDATE two.keyless SET a = 2 LIMIT 1", "one.keyless"),
    ],
)
def test_any_single_change_is_found_and_the_row_named(server: MariaDbServer, change: str, table: str) -> None:
    _run(server, change)
    report = _compare(server, views=False)
    assert {difference.table for difference in report.differences} == {table}
    assert {difference.kind for difference in report.differences} == {"rows", "row"}


def test_text_of_a_row_is_shown_as_text_and_bytes_as_bytes(server: MariaDbServer) -> None:
    _run(server, "UPDATE two.t SET i = 1 WHERE id = 1")
    shown = [each.detail for each in _compare(server, views=False).differences if each.kind == "row"]
    assert all("s='ä', b='\\x00\\xff'" in each for each in shown), shown
    assert all("e='b', st='x,z', bi='5'" in each for each in shown), shown


@pytest.mark.mysql
def test_an_enum_without_an_element_is_its_number_and_a_set_without_any_is_empty(server: MariaDbServer) -> None:
    _run(server, "SET sql_mode = ''; UPDATE two.t SET e = 'c', st = '' WHERE id = 1")
    shown = {each.side: each.detail for each in _compare(server, views=False).differences if each.kind == "row"}
    assert "e='b', st='x,z'" in shown["source"]
    assert "e='0', st=''" in shown["target"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("ALTER TABLE two.t ADD COLUMN x INT", "columns"),
        ("ALTER TABLE two.t MODIFY s VARCHAR(21)", "columns"),
        ("ALTER TABLE two.t MODIFY j LONGTEXT", "columns"),
        ("DROP TABLE two.keyless", "table"),
        ("CREATE TABLE two.more (a INT)", "table"),
        ("DROP VIEW two.v; CREATE TABLE two.v (id INT, s VARCHAR(20))", "columns"),
    ],
)
def test_other_structure_is_found(server: MariaDbServer, change: str, kind: str) -> None:
    _run(server, change)
    assert kind in {difference.kind for difference in _compare(server).differences}


def test_collations_count_but_for_the_twin_that_a_load_gives(server: MariaDbServer) -> None:
    _run(server, "ALTER TABLE two.keyless MODIFY b VARCHAR(10) COLLATE utf8mb4_general_ci")
    _run(server, "ALTER TABLE one.keyless MODIFY b VARCHAR(10) COLLATE utf8mb4_bin")
    (found,) = _compare(server, views=False).differences
    assert (found.kind, found.table) == ("columns", "one.keyless")
    assert found.detail == "b is utf8mb4_bin in the source, utf8mb4_general_ci in the target"
    # A load makes utf8mb4 of latin1, which TiDB never held to it.
    _run(server, "ALTER TABLE one.keyless MODIFY b VARCHAR(10) CHARACTER SET latin1 COLLATE latin1_swedish_ci")
    assert _compare(server, views=False).differences == []


def _diff(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: MariaDbServer, *sides: str) -> Any:
    """The command, with the server in the settings as source and target."""
    of = mariadb.as_lines(server.dsn.server)
    (tmp_path / "pumphouse.toml").write_text(f"[source]\n{of}[target]\n{of}")
    monkeypatch.chdir(tmp_path)
    return CliRunner().invoke(cli, ["diff", *sides, "--schema", "one=two", "--json"])


def test_the_command_says_so_by_its_exit_code(
    server: MariaDbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = _diff(monkeypatch, tmp_path, server)
    assert result.exit_code == 0, result.output
    _run(server, "UPDATE two.t SET y = 2000 WHERE id = 1")
    result = _diff(monkeypatch, tmp_path, server)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["equal"] is False
    assert any("id=" in item["detail"] and item["side"] == "target" for item in found["differences"])


def test_no_password_is_taken_from_the_command_line(
    server: MariaDbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = _diff(monkeypatch, tmp_path, server, "--target", f"mysql://root:s3cr3t@127.0.0.1:{server.port}")
    assert isinstance(refused.exception, UsageError)
    assert "PUMPHOUSE_DIFF_TARGET_PASSWORD" in str(refused.exception)
    assert "s3cr3t" not in str(refused.exception)
    there = ("--target", f"mysql://root@127.0.0.1:{server.port}")
    monkeypatch.setenv("PUMPHOUSE_DIFF_TARGET_PASSWORD", "wr0ng")
    refused = _diff(monkeypatch, tmp_path, server, *there)
    if is_mysql():
        assert isinstance(refused.exception, ConfigError)
        assert "an address has no such settings" in refused.exception.hint
    else:
        assert isinstance(refused.exception, AccessDenied)
        assert "--target" in refused.exception.hint
    assert "wr0ng" not in str(refused.exception)
    monkeypatch.setenv("PUMPHOUSE_DIFF_TARGET_PASSWORD", server.password)
    assert _diff(monkeypatch, tmp_path, server, *there).exit_code == 0
    unsaid = _diff(monkeypatch, tmp_path, server, "--target", "restore_target")
    assert "[restore_target] names no host" in str(unsaid.exception)


def test_a_schema_that_nobody_has_is_no_equal_one(
    server: MariaDbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for wrong in ("shopp", "shopp=two2"):
        refused = _diff(monkeypatch, tmp_path, server, "--schema", wrong)
        assert isinstance(refused.exception, UsageError), refused.output
        assert "neither server has a schema shopp" in str(refused.exception)
        assert "one, two" in str(refused.exception)
    one_side = compare(server.dsn, server.dsn, schemas={"one": "two2"})
    assert [(d.kind, d.table, d.detail) for d in one_side.differences] == [("schema", "one", "only in the source")]
    assert compare(server.dsn, server.dsn, ignore=["tow"]).notes == ["--ignore tow: neither server has it"]
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as other, pytest.raises(UsageError):
        compare(other.dsn, other.dsn)


def test_the_historys_database_beside_the_source_is_no_difference(
    server: MariaDbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _run(server, "CREATE DATABASE hist; CREATE TABLE hist.jobs (job_id BIGINT PRIMARY KEY)")
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as other:
        for schema in ("one", "two"):
            _run(other, f"CREATE DATABASE {schema};" + TABLES.format(s=schema))
        (tmp_path / "p.toml").write_text(
            f'[source]\nhost = "127.0.0.1"\nport = {server.port}\nuser = "root"\npassword = "{server.password}"\n'
            f'[target]\nhost = "127.0.0.1"\nport = {other.port}\nuser = "root"\npassword = "{other.password}"\n'
            f'[schema]\nhistory = "mysql://root@127.0.0.1:{server.port}/hist.jobs"\n'
        )
        config = ("--config", str(tmp_path / "p.toml"), "diff")
        done = CliRunner().invoke(cli, config)
        assert done.exit_code == 0, done.output
        assert "left out: hist, the database of schema.history" in done.output
        assert CliRunner().invoke(cli, (*config, "--schema", "hist")).exit_code == 1
        # Of another server, it is a database like others.
        text = (tmp_path / "p.toml").read_text()
        (tmp_path / "p.toml").write_text(text.replace(f"127.0.0.1:{server.port}/hist", "127.0.0.1:1/hist"))
        assert CliRunner().invoke(cli, config).exit_code == 1
    _run(server, "DROP DATABASE hist")


@pytest.mark.row("R3")
def test_what_restores_of_tables_build_is_no_difference(server: MariaDbServer, tmp_path: Path) -> None:
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as other:
        for schema in ("one", "two"):
            _run(other, f"CREATE DATABASE {schema};" + TABLES.format(s=schema))
        (tmp_path / "p.toml").write_text(
            f"[source]\n{mariadb.as_lines(server.dsn.server)}[target]\n{mariadb.as_lines(other.dsn.server)}"
            '[restore_target]\nschema_name = "Back"\n'
        )
        for own in ("pumphouse_parts", "back_parts"):
            made = f"CREATE DATABASE {own}; CREATE TABLE {own}.fence (id INT PRIMARY KEY, holder INT)"
            for statements in (made, f"DROP TABLE {own}.fence"):
                _run(server, statements)
                done = CliRunner().invoke(cli, ("--config", str(tmp_path / "p.toml"), "diff"))
                assert done.exit_code == 0, done.output
                assert f"left out: {own}, in which restores of tables are made" in done.output
            _run(server, f"DROP DATABASE {own}")


def test_a_target_that_folds_names_is_compared_without_regard_to_case(server: MariaDbServer) -> None:
    _run(
        server,
        "CREATE DATABASE Upper; CREATE TABLE Upper.Orders (id INT PRIMARY KEY); INSERT INTO Upper.Orders VALUES (1)",
    )
    with (
        mariadb.directory_in_memory() as directory,
        mariadb.server_in(directory, arguments=("--lower-case-table-names=1",)) as other,
    ):
        for schema in ("one", "two", "Upper"):
            _run(other, f"CREATE DATABASE {schema}" + (";" + TABLES.format(s=schema) if schema != "Upper" else ""))
        _run(other, "CREATE TABLE Upper.Orders (id INT PRIMARY KEY); INSERT INTO Upper.Orders VALUES (1)")
        for schemas in (None, {"Upper": "Upper"}):
            found = compare(server.dsn, other.dsn, schemas=schemas, views=False)
            assert found.differences == [], found
        assert compare(other.dsn, server.dsn, views=False).equal
        _run(other, "UPDATE Upper.Orders SET id = 2")
        assert {d.table for d in compare(server.dsn, other.dsn, views=False).differences} == {"Upper.Orders"}
        # Two of the source's are one there: none of them is passed over.
        _run(
            server,
            "CREATE DATABASE upper; CREATE TABLE upper.orders (id INT PRIMARY KEY); INSERT INTO upper.orders VALUES (2)",
        )
        assert {d.table for d in compare(server.dsn, other.dsn, views=False).differences} == {"Upper.Orders"}
    _run(server, "DROP DATABASE Upper; DROP DATABASE upper")


def test_a_virtual_column_that_a_load_left_out_hides_no_row(server: MariaDbServer) -> None:
    _run(server, "CREATE DATABASE v; CREATE TABLE v.t (id INT PRIMARY KEY, n INT, twice INT AS (2 * n) VIRTUAL)")
    _run(server, "INSERT INTO v.t (id, n) VALUES (1, 1), (2, 2)")
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as other:
        _run(other, "CREATE DATABASE v; CREATE TABLE v.t (id INT PRIMARY KEY, n INT)")
        _run(other, "INSERT INTO v.t VALUES (1, 1), (2, 2)")
        found = compare(server.dsn, other.dsn, schemas={"v": "v"})
        assert found.equal
        assert found.notes == ["v.t: not compared, because VIRTUAL and not in the target: twice"]
        _run(other, "UPDATE v.t SET n = 3 WHERE id = 2")
        kinds = {each.kind for each in compare(server.dsn, other.dsn, schemas={"v": "v"}).differences}
        assert kinds == {"rows", "row"}
        _run(other, "ALTER TABLE v.t DROP COLUMN n")
        kinds = {each.kind for each in compare(server.dsn, other.dsn, schemas={"v": "v"}).differences}
        assert kinds == {"columns"}
    _run(server, "DROP DATABASE v")


def test_a_schema_on_one_side_only_is_found(server: MariaDbServer) -> None:
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as other:
        report = compare(server.dsn, other.dsn)
        assert {(d.kind, d.table, d.detail) for d in report.differences} == {
            ("schema", "one", "only in the source"),
            ("schema", "two", "only in the source"),
        }


def test_rows_that_a_server_keeps_versions_of_are_compared_as_they_are_now(server: MariaDbServer) -> None:
    for schema in ("one", "two"):
        _run(server, f"CREATE TABLE {schema}.ver (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING")
        _run(server, f"INSERT INTO {schema}.ver VALUES (1, 1), (2, 2)")
    _run(server, "UPDATE two.ver SET v = 9; UPDATE two.ver SET v = id")
    report = _compare(server, views=False)
    assert (report.differences, report.tables) == ([], 3)
    _run(server, "UPDATE two.ver SET v = 9 WHERE id = 2")
    assert {each.table for each in _compare(server, views=False).differences} == {"one.ver"}


def test_what_is_neither_a_table_nor_a_view_is_named(server: MariaDbServer) -> None:
    _run(server, "CREATE SEQUENCE two.s")
    report = _compare(server)
    assert report.equal
    assert "not compared in the target: two.s, a sequence" in report.notes


@pytest.mark.mysql
def test_characters_that_unicode_lacks_are_not_the_question_mark_that_servers_make_of_them(
    server: MariaDbServer,
) -> None:
    for schema in ("one", "two"):
        _run(
            server,
            f"CREATE TABLE {schema}.g (id INT PRIMARY KEY, v VARCHAR(10) CHARACTER SET greek, w TEXT CHARACTER SET latin1)",
        )
    _run(
        server, "INSERT INTO one.g VALUES (1, _binary x'ff', 'é?'), (2, _binary x'3fff', 'b'), (3, _binary x'e1e2', '')"
    )
    _run(server, "INSERT INTO two.g SELECT * FROM one.g")
    assert _compare(server, views=False).equal
    _run(server, "UPDATE two.g SET v = '?' WHERE id = 1")
    shown = [each.detail for each in _compare(server, views=False).differences if each.kind == "row"]
    assert len(shown) == 2
    assert all("id='1'" in each for each in shown)
    # Of another charset there, and read as rows.
    _run(server, "DELETE FROM two.g WHERE id = 2; ALTER TABLE two.g MODIFY v VARCHAR(11)")
    _run(server, "INSERT INTO two.g VALUES (2, '??', 'b')")
    shown = [each.detail for each in _compare(server, views=False).differences if each.kind == "row"]
    assert sum("id='2'" in each for each in shown) == 2
    assert not any("id='3'" in each for each in shown)
