"""Chunks of the comparer on real servers: what is read, what is named, and statements that make the target equal."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.diff import chunks, sides
from pumphouse.diff.compare import DiffReport, compare
from pumphouse.diff.fix import FixFile
from pumphouse.errors import UsageError
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.diffvalues import each_value_counts
from tests.support.kind import is_mysql

pytestmark = [pytest.mark.row("R6"), pytest.mark.mysql]

TABLES = """
CREATE TABLE {s}.by_number (id BIGINT PRIMARY KEY, n INT, s VARCHAR(40) CHARACTER SET latin1, j JSON);
CREATE TABLE {s}.by_text (k VARCHAR(40) PRIMARY KEY, n INT, j JSON);
CREATE TABLE {s}.by_both (a INT, b VARCHAR(20), n INT, PRIMARY KEY (a, b));
CREATE TABLE {s}.keyless (n INT, s VARCHAR(40), j JSON);
"""
ROWS = 3000


def run(server: MariaDbServer, *statements: str) -> None:
    connection = server.connect(autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def fill(server: MariaDbServer, schema: str, blank: str) -> None:
    def put(table: str, row: Callable[[int], str]) -> None:
        for at in range(0, ROWS, 1000):
            run(server, f"INSERT INTO {schema}.{table} VALUES {', '.join(row(n) for n in range(at, at + 1000))}")

    def of(n: int) -> str:
        return f"'{{{blank}\"n\":{blank}{n}}}'"

    # Far apart, and most of them in one place.
    put("by_number", lambda n: f"({n if n % 2 else n * 10**12 - 10**15}, {n}, 'é {n}', {of(n)})")
    put("by_text", lambda n: f"('key {n}', {n}, {of(n)})")
    put("by_both", lambda n: f"({n // 2000}, 'b{n}', {n})")
    put("keyless", lambda n: f"({n // 4}, 's{n // 4}', {of(n // 4)})")
    run(server, *(f"ANALYZE TABLE {schema}.{table}" for table in ("by_number", "by_text", "by_both", "keyless")))


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as running:
        for schema, blank in (("one", ""), ("made", " ")):
            run(running, f"CREATE DATABASE {schema}")
            run(running, *(each for each in TABLES.format(s=schema).split(";") if each.strip()))
            fill(running, schema, blank)
        yield running


@pytest.fixture
def two(server: MariaDbServer) -> Iterator[str]:
    """The same rows in another schema: JSON has blanks there that do not count."""
    run(server, "CREATE DATABASE two")
    for table in ("by_number", "by_text", "by_both", "keyless"):
        run(
            server, f"CREATE TABLE two.{table} LIKE made.{table}", f"INSERT INTO two.{table} SELECT * FROM made.{table}"
        )
        run(server, f"ANALYZE TABLE two.{table}")
    yield "two"
    run(server, "DROP DATABASE two")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small chunks; how many rows came of each query."""
    monkeypatch.setattr(chunks, "_CHUNK_ROWS", 500)
    monkeypatch.setattr(chunks, "_LAST_ROWS", 50)
    monkeypatch.setattr(chunks, "_DIGESTS", 300)
    counts: list[int] = []
    rows = sides.rows

    def counted(*words: Any) -> Iterator[Any]:
        counts.append(0)
        at = len(counts) - 1
        for row in rows(*words):
            counts[at] += 1
            yield row

    monkeypatch.setattr(sides, "rows", counted)
    return counts


def diff(server: MariaDbServer, schemas: dict[str, str], **more: Any) -> DiffReport:
    return compare(server.dsn, server.dsn, schemas=schemas, connections=3, **more)


def differing(report: DiffReport) -> set[str]:
    return {each.table for each in report.differences}


def test_equal_rows_are_not_read(server: MariaDbServer, read: list[int]) -> None:
    report = diff(server, {"one": "one"})
    assert (report.differences, report.tables, report.rows) == ([], 4, 4 * ROWS)
    assert sum(read) < 200, "sums and ends of ranges alone"


def test_json_that_is_written_otherwise_is_equal_in_every_kind_of_table(
    server: MariaDbServer, two: str, read: list[int]
) -> None:
    report = diff(server, {"one": two})
    assert (report.differences, report.rows) == ([], 4 * ROWS)


@pytest.mark.parametrize(
    ("change", "table", "sides_"),
    [
        ("UPDATE {s}.by_number SET n = -1 WHERE id = 1999", "by_number", {"source": 1, "target": 1}),
        ("DELETE FROM {s}.by_number WHERE id < 0 LIMIT 1", "by_number", {"source": 1}),
        ("INSERT INTO {s}.by_number VALUES (9223372036854775807, 1, '', NULL)", "by_number", {"target": 1}),
        ("UPDATE {s}.by_text SET k = 'Key 7' WHERE n = 7", "by_text", {"source": 1, "target": 1}),
        ("UPDATE {s}.by_both SET n = NULL WHERE b = 'b17'", "by_both", {"source": 1, "target": 1}),
        ("DELETE FROM {s}.keyless WHERE n = 3 LIMIT 1", "keyless", {"source": 1}),
        ("INSERT INTO {s}.keyless SELECT * FROM {s}.keyless WHERE n = 5 LIMIT 2", "keyless", {"target": 2}),
    ],
)
def test_only_what_differs_is_read(
    server: MariaDbServer, two: str, read: list[int], change: str, table: str, sides_: dict[str, int]
) -> None:
    run(server, change.format(s=two))
    report = diff(server, {"made": two})
    assert differing(report) == {f"made.{table}"}
    found = [each.side for each in report.differences if each.kind == "row"]
    assert {side: found.count(side) for side in set(found)} == sides_
    most = max(read)
    assert most < 1200, f"a query has brought {most} of {ROWS} rows"


@pytest.mark.parametrize("slow", [False, True], ids=["first chunk first", "first chunk last"])
def test_rows_are_shown_by_key_and_not_more_than_asked_for(
    server: MariaDbServer, two: str, read: list[int], slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(server, f"UPDATE {two}.by_number SET n = n + 1")
    asked = sides.Side.sums

    def held(side: sides.Side, connection: Any, part: sides.Part) -> sides.Sums:
        if slow and part.low is None and part.below is not None:
            time.sleep(2)
        return asked(side, connection, part)

    monkeypatch.setattr(sides.Side, "sums", held)
    report = diff(server, {"one": two}, first=3)
    shown = [each.detail.split(",")[0] for each in report.differences if each.kind == "row" and each.side == "source"]
    keys = [int(each.removeprefix("id='").removesuffix("'")) for each in shown]
    assert len(keys) == 3
    assert keys == sorted(keys)
    assert keys[0] == -(10**15)


def client(server: MariaDbServer, path: Path) -> None:
    """Run a file as a user does."""
    of = server.dsn
    done = subprocess.run(
        ["mariadb", "--skip-ssl", f"--host={of.host}", f"--port={of.port}", f"--user={of.user}", f"--password={of.password}"],
        input=path.read_bytes(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()


def fixed(server: MariaDbServer, schemas: dict[str, str], path: Path) -> DiffReport:
    """What differs, after the statements for it were run."""
    with FixFile.made(path, "test") as fix:
        before = diff(server, schemas, fix=fix)
    assert not before.equal
    client(server, path)
    return diff(server, schemas)


def test_statements_make_any_difference_equal(server: MariaDbServer, two: str, read: list[int], tmp_path: Path) -> None:
    rng = random.Random(5)
    for table in ("by_number", "by_text", "by_both", "keyless"):
        run(
            server,
            f"DELETE FROM {two}.{table} WHERE RAND({rng.randrange(99)}) < 0.02",
            f"UPDATE {two}.{table} SET n = n + 1 WHERE RAND({rng.randrange(99)}) < 0.02",
        )
    run(
        server,
        f"INSERT INTO {two}.by_number SELECT id + 10000000, n, s, j FROM {two}.by_number WHERE n % 50 = 0 AND id > 0",
        f"UPDATE {two}.by_text SET k = UPPER(k) WHERE n % 60 = 0",
        f"INSERT INTO {two}.keyless SELECT * FROM {two}.keyless WHERE n % 70 = 0",
        f"INSERT INTO {two}.keyless VALUES (NULL, NULL, NULL), (1, 'S1 ', '[1]')",
    )
    report = fixed(server, {"one": two}, tmp_path / "fix.sql")
    assert report.differences == []


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_each_value_of_each_type_counts_and_statements_bring_it(
    server: MariaDbServer, key: str, tmp_path: Path
) -> None:
    # A MySQL prints -0, and a MariaDB 0 for it.
    each_value_counts(server.dsn, key, tmp_path / "fix.sql", signs=is_mysql(), apply=lambda path: client(server, path))


def test_a_value_that_no_packet_holds_is_compared(server: MariaDbServer) -> None:
    run(server, "DROP DATABASE IF EXISTS a", "DROP DATABASE IF EXISTS b", "CREATE DATABASE a", "CREATE DATABASE b")
    for schema in "ab":
        run(server, f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, t LONGTEXT)")
        run(server, f"INSERT INTO {schema}.t VALUES (1, REPEAT('{schema}', 3000000)), (2, '')")
        run(server, f"CREATE TABLE {schema}.g (id INT PRIMARY KEY, t LONGTEXT CHARACTER SET greek)")
        run(server, f"INSERT INTO {schema}.g SELECT * FROM {schema}.t")
    connection = server.connect(autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@global.max_allowed_packet")
        (before,) = cursor.fetchone()
        cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
        try:
            report = diff(server, {"a": "b"})
        finally:
            cursor.execute(f"SET GLOBAL max_allowed_packet = {before}")
    assert {(each.table, each.kind) for each in report.differences} == {
        (f"a.{table}", kind) for table in "gt" for kind in ("rows", "row")
    }
    run(server, "DROP DATABASE a", "DROP DATABASE b")


@pytest.mark.mariadb("a type of its own")
def test_a_type_without_a_checksum_is_compared_by_rows_and_that_is_said(server: MariaDbServer, read: list[int]) -> None:
    run(server, "DROP DATABASE IF EXISTS a", "DROP DATABASE IF EXISTS b", "CREATE DATABASE a", "CREATE DATABASE b")
    for schema in "ab":
        run(server, f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, p POINT)")
        run(server, f"INSERT INTO {schema}.t SELECT seq, POINT(seq, 1) FROM {schema}.seq_1_to_2000")
    report = diff(server, {"a": "b"})
    assert (report.equal, report.rows) == (True, 2000)
    assert report.notes == ["compared row by row, because p is point, for which there is no checksum in SQL: a.t"]
    run(server, "UPDATE b.t SET p = POINT(3, 2) WHERE id = 3")
    assert [each.side for each in diff(server, {"a": "b"}).differences if each.kind == "row"] == ["source", "target"]
    run(server, "DROP DATABASE a", "DROP DATABASE b")


def test_schemas_without_tables_are_not_equal(server: MariaDbServer) -> None:
    run(server, "CREATE DATABASE nothing")
    with pytest.raises(UsageError, match="nothing to compare"):
        diff(server, {"nothing": "nothing"})
    run(server, "DROP DATABASE nothing")


def test_the_command_writes_statements_into_a_new_file_alone(server: MariaDbServer, two: str, tmp_path: Path) -> None:
    of = mariadb.as_lines(server.dsn.server)
    (tmp_path / "p.toml").write_text(f"[source]\n{of}[target]\n{of}")
    run(server, f"DELETE FROM {two}.by_text WHERE n = 5")
    words = ("--config", str(tmp_path / "p.toml"), "diff", "--schema", f"one={two}", "--connections", "1")
    out = tmp_path / "fix.sql"
    done = CliRunner().invoke(cli, (*words, "--fix-sql", str(out)))
    assert done.exit_code == 1, done.output
    assert "statements for 1 rows" in done.output
    text = out.read_text()
    assert text.startswith("-- makes mysql://")
    assert text.count("INSERT INTO `two`.`by_text`") == 1
    assert server.password not in text
    assert text.endswith("COMMIT;\n")
    again = CliRunner().invoke(cli, (*words, "--fix-sql", str(out)))
    assert isinstance(again.exception, UsageError)
    assert out.read_text() == text
    nobody = CliRunner().invoke(
        cli, (*words, "--target", "mysql://root@127.0.0.1:1", "--fix-sql", str(tmp_path / "no.sql"))
    )
    assert nobody.exit_code != 0
    assert not (tmp_path / "no.sql").exists()


def test_a_row_that_was_changed_since_stops_the_statements_and_nothing_of_them_stays(
    server: MariaDbServer, two: str, tmp_path: Path
) -> None:
    changes = {
        "by_number": ("n = n + 1", "n = n + 5"),  # the source's row would replace it
        "keyless": ("n = n + 100000", "s = 'since'"),  # the source's row would come beside it
    }
    for table, (first, since) in changes.items():
        run(server, f"UPDATE {two}.{table} SET {first} WHERE n = 7 LIMIT 1", f"DELETE FROM {two}.by_text WHERE n = 9")
        path = tmp_path / f"{table}.sql"
        with FixFile.made(path, "test") as fix:
            assert not diff(server, {"one": two}, fix=fix).equal
        where = "n = 8" if table == "by_number" else "n = 100007"
        run(server, f"UPDATE {two}.{table} SET {since} WHERE {where} LIMIT 2")
        before = diff(server, {"one": two})
        with pytest.raises(AssertionError, match="DOUBLE value is out of range"):
            client(server, path)
        assert diff(server, {"one": two}).differences == before.differences


def test_statements_cut_no_value_and_leave_tables_with_other_columns_out(
    server: MariaDbServer, two: str, tmp_path: Path
) -> None:
    run(server, f"ALTER TABLE {two}.keyless MODIFY n SMALLINT", f"DELETE FROM {two}.keyless")
    run(server, f"DELETE FROM {two}.by_text WHERE n = 9")
    path = tmp_path / "fix.sql"
    with FixFile.made(path, "test") as fix:
        assert not diff(server, {"one": two}, fix=fix).equal
    text = path.read_text()
    assert "INSERT INTO `two`.`by_text`" in text
    assert "`two`.`keyless`" not in text
    assert "-- not in this file, nor any row of it: one.keyless: columns: n is int in the source, smallint" in text
    assert "STRICT_TRANS_TABLES" in text
    assert path.stat().st_mode & 0o777 == 0o600
    client(server, path)
    assert {each.table for each in diff(server, {"one": two}).differences} == {"one.keyless"}


def test_statements_bring_characters_that_unicode_lacks(server: MariaDbServer, tmp_path: Path) -> None:
    for schema, value in (("a", "x'ffe1'"), ("b", "x'e1ff'")):
        run(server, f"CREATE DATABASE {schema}")
        for key in ("PRIMARY KEY", ""):
            table = f"{schema}.t{len(key)}"
            run(server, f"CREATE TABLE {table} (id INT {key}, v VARCHAR(10) CHARACTER SET greek)")
            run(server, f"INSERT INTO {table} VALUES (1, _binary {value}), (2, '?')")
    try:
        assert fixed(server, {"a": "b"}, tmp_path / "fix.sql").differences == []
    finally:
        run(server, "DROP DATABASE a", "DROP DATABASE b")
