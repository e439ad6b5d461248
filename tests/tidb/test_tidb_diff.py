"""The comparer between a TiDB and a MariaDB: checksums in the SQL of both, and structure of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.diff import chunks, sides
from pumphouse.diff.compare import DiffReport, compare
from pumphouse.diff.fix import FixFile
from pumphouse.mysql.dsn import Dsn
from tests.support import mariadb
from tests.support.diffvalues import each_value_counts
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("R6"),
    pytest.mark.timeout(600),
]
ROWS = 2000
MADE = (
    "CREATE DATABASE a CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    (
        "CREATE TABLE a.t (id BIGINT PRIMARY KEY, u BIGINT UNSIGNED, n DECIMAL(20,5), b BIT(9), y YEAR, da DATE, dt DATETIME(6),"
        " ts TIMESTAMP(3) NULL, ti TIME(2), c CHAR(9), v VARCHAR(300), bi BINARY(4), bl LONGBLOB, e ENUM('a','b'),"
        " s SET('x','y'), KEY v (v(20)), UNIQUE KEY u (u, id))"
    ),
    "CREATE TABLE a.by_text (k VARCHAR(40) PRIMARY KEY, n INT)",
    "CREATE TABLE a.real_ (id INT PRIMARY KEY, f FLOAT, d DOUBLE)",
    "CREATE TABLE a.parent (id INT PRIMARY KEY)",
    "CREATE TABLE a.child (id INT PRIMARY KEY, p INT, KEY p (p), CONSTRAINT fk FOREIGN KEY (p) REFERENCES a.parent (id))",
    "CREATE VIEW a.v AS SELECT id, v FROM a.t",
    "INSERT INTO a.real_ VALUES (1, 0.1, 1e300), (2, NULL, -1.5)",
)


def run(dsn: Dsn, *statements: str) -> None:
    with dsn.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dsn, Dsn]]:
    with UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb, mariadb.in_memory() as other:
        both = (
            Dsn(host="127.0.0.1", port=tidb.port, user="root"),
            Dsn(host=other.host, port=other.port, user=other.user, password=other.password.get_secret_value()),
        )
        wide = [
            f"({n}, {n}, {n}.5, {n % 512}, 2026, '2026-01-02', '2026-01-02 03:04:05.678901', '2026-01-02 03:04:05.678',"
            f" '-12:34:56.78', 'c {n}', REPEAT('é漢🚰', {n % 50}), x'00ff', REPEAT(x'ff', {n % 400}), {n % 2 + 1}, {n % 4})"
            for n in range(ROWS)
        ]
        for each in both:
            run(each, *MADE, f"INSERT INTO a.t VALUES {', '.join(wide)}")
            run(each, "INSERT INTO a.by_text VALUES " + ", ".join(f"('key {n}', {n})" for n in range(ROWS)))
            run(each, "ANALYZE TABLE a.t", "ANALYZE TABLE a.by_text")
        yield both


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small chunks; the queries."""
    monkeypatch.setattr(chunks, "_CHUNK_ROWS", 300)
    monkeypatch.setattr(chunks, "_LAST_ROWS", 50)
    asked: list[str] = []
    rows = sides.rows

    def noted(connection: object, sql: str, *values: str) -> Iterator[object]:
        asked.append(sql)
        yield from rows(connection, sql, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(sides, "rows", noted)
    return asked


def told(report: DiffReport) -> list[tuple[str, str, str]]:
    return [(each.kind, each.table, each.detail) for each in report.differences]


def test_equal_tables_have_equal_checksums(servers: tuple[Dsn, Dsn], read: list[str]) -> None:
    report = compare(*servers, ignore=["test"])
    assert told(report) == []
    assert report.rows == 2 * ROWS + 2 + ROWS
    assert report.notes == [
        "compared row by row, because f is float, which a TiDB prints differently: a.real_",
    ]
    fetched = [each for each in read if not each.startswith(("SELECT COUNT(*)", "SELECT MIN("))]
    assert all("`real_`" in each for each in fetched), fetched


@pytest.mark.parametrize("way", [1, -1], ids=["from TiDB", "to TiDB"])
def test_what_differs_is_named_and_statements_make_it_equal(
    servers: tuple[Dsn, Dsn], read: list[str], way: int, tmp_path: Path
) -> None:
    source, target = servers[::way]
    run(
        target,
        "UPDATE a.t SET n = -1, v = 'V' WHERE id = 77",
        "DELETE FROM a.t WHERE id BETWEEN 500 AND 520",
        "UPDATE a.by_text SET k = 'KEY 5' WHERE n = 5",
        "UPDATE a.real_ SET d = 2.5 WHERE id = 2",
    )
    path = tmp_path / "fix.sql"
    with FixFile.made(path, "test") as fix:
        report = compare(source, target, ignore=["test"], fix=fix, first=2)
    shown = {(each.table, each.side) for each in report.differences if each.kind == "row"}
    both = ("source", "target")
    assert shown == {(f"a.{table}", side) for table in ("t", "by_text", "real_", "v") for side in both}
    run(target, *(each for each in path.read_text().split(";\n") if each.strip()))
    assert told(compare(source, target, ignore=["test"])) == []


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_each_value_of_each_type_counts_between_two_tidbs(servers: tuple[Dsn, Dsn], key: str, tmp_path: Path) -> None:
    def apply(path: Path) -> None:
        run(servers[0], "USE test", *(each for each in path.read_text().split(";\n") if each.strip()))

    each_value_counts(servers[0], key, tmp_path / "fix.sql", signs=False, apply=apply)
