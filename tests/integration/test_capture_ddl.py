"""What DDL of a real source becomes in the history: its binlog is run on a real shadow."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymysql.err import MySQLError

from pumphouse.capture.check import check_source
from pumphouse.capture.ddl import Schema
from pumphouse.capture.schemas import StoredSchema, read_objects, server_kind
from pumphouse.capture.shadow import Shadow
from pumphouse.capture.source.model import Query
from pumphouse.capture.source.session import position_now
from pumphouse.errors import CaptureRefused
from pumphouse.schema.actions import Action
from pumphouse.schema_import.changes import Known
from pumphouse.settings import CaptureSettings
from tests.stack.mariadb import MariaDbServer
from tests.support import capturing, mariadb

pytestmark = [
    pytest.mark.row("Q3"),
    # PyMySQL leaves the socket of each connection that fails: those before the shadow listens.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Source:
    """A server, and the schema that a capture has of it."""

    def __init__(self, server: MariaDbServer, directory: Path) -> None:
        self._server, self.directory = server, directory
        self.connection = server.connect(autocommit=True)
        self.without: set[str] = set()
        capturing.run(self.connection, "SET sql_mode = DEFAULT", "DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS o",
                      "CREATE DATABASE shop", "CREATE DATABASE o", "USE shop")  # fmt: skip

    def run(self, *statements: str) -> None:
        capturing.run(self.connection, *statements)

    @contextmanager
    def schema(self) -> Iterator[Schema]:
        """As it is now."""
        self._start = position_now(self.connection)
        stored = StoredSchema(server=server_kind(self.connection), objects=read_objects(self.connection))
        shadow = Shadow.start(self.directory, stored)
        try:
            made = Schema(
                shadow=shadow,
                known=Known.of(()),
                own=frozenset(),
                without=lambda db, name: f"{db}.{name}" in self.without,
            )
            made.reconcile(lambda _db, _name: False)
            yield made
        finally:
            shadow.close()

    def jobs(self, schema: Schema) -> list[dict[str, Any]]:
        """What the statements since then are."""
        queries = [query for each in capturing.read(self._server, self._start).transactions for query in each.queries]
        self._start = position_now(self.connection)
        return [job for query in queries for job in schema.apply(query)[0]]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    with pytest.MonkeyPatch.context() as patch, mariadb.directory_in_memory() as directory:
        patch.setenv("TZ", "Europe/Berlin")
        with capturing.source(directory) as made:
            yield made


@pytest.fixture
def source(server: MariaDbServer) -> Iterator[Source]:
    with mariadb.directory_in_memory() as directory:
        made = Source(server, directory / "shadow")
        yield made
        made.connection.close()
        gc.collect()  # the sockets of above, before another file's test


def test_an_alter_that_deletes_the_rows_that_clash_is_refused(source: Source) -> None:
    source.run("CREATE TABLE u (id INT, b INT)", "CREATE TABLE v (id INT)", "INSERT INTO u VALUES (1, 1), (2, 1)")
    source.without = {"shop.v"}
    with source.schema() as schema:
        source.run("ALTER IGNORE TABLE v ADD UNIQUE (id)")
        assert source.jobs(schema) == []
        source.run("ALTER IGNORE TABLE u ADD UNIQUE (b)")
        with pytest.raises(CaptureRefused, match=r"ALTER IGNORE TABLE u .*rows that clash"):
            source.jobs(schema)


def test_a_statement_that_failed_on_the_source_is_refused_though_the_shadow_takes_it(source: Source) -> None:
    source.run("CREATE TABLE u (id INT)")
    with source.schema() as schema:
        source.run("CREATE TABLE w (id INT)")
        with pytest.raises(MySQLError, match="Unknown table"):
            source.run("DROP TABLE w, missing")  # without an error code in the binlog
        assert [job["type"] for job in source.jobs(schema)] == [Action.CREATE_TABLE.value, Action.DROP_TABLE.value]
        query = Query(text=b"ALTER TABLE u ADD UNIQUE (id)", schema="shop", before=0, error=1062)
        with pytest.raises(CaptureRefused, match=r"ADD UNIQUE .*error 1062"):
            schema.apply(query)
        with pytest.raises(CaptureRefused, match=r"DROP TABLE w.*error 1051"):
            schema.apply(replace(query, text=b"DROP TABLE w", error=1051))


def test_alter_in_two_phases_is_refused_before_a_capture_begins(source: Source) -> None:
    source.run("SET GLOBAL binlog_alter_two_phase = ON")
    try:
        lines = check_source(source.connection, CaptureSettings(), frozenset(), schema=False)
    finally:
        source.run("SET GLOBAL binlog_alter_two_phase = OFF")
    assert [line.text for line in lines if line.wrong and "two_phase" in line.text] == [
        "binlog_alter_two_phase is ON, it must be OFF"
    ]


def test_what_depends_on_a_zone_that_is_not_known_is_anew_or_refused(source: Source) -> None:
    source.run("CREATE TABLE a (id INT, t TIMESTAMP NULL)", "INSERT INTO a VALUES (1, '2020-07-01')")
    with source.schema() as schema:
        source.run("ALTER TABLE a ADD z INT", "CREATE TABLE b (d DATETIME DEFAULT CURRENT_TIMESTAMP, t TIMESTAMP NULL)")
        assert [job.get("had_rows") for job in source.jobs(schema)] == [None, None]
        source.run("ALTER TABLE a ADD d DATETIME DEFAULT CURRENT_TIMESTAMP")
        assert [job.get("had_rows") for job in source.jobs(schema)] == [None, True]
        source.run("ALTER TABLE a MODIFY t DATETIME")
        assert [job.get("had_rows") for job in source.jobs(schema)] == [None, True]
        source.run("SET time_zone = '+02:00'", "ALTER TABLE a MODIFY t TIMESTAMP NULL", "SET time_zone = DEFAULT")
        (job,) = source.jobs(schema)
        assert job["reorg_meta"]["location"] == {"name": "", "offset": 7200}
        source.run("CREATE TABLE c (t TIMESTAMP DEFAULT '2020-07-01')")
        with pytest.raises(CaptureRefused, match=r"shop\.c moments .*t DEFAULT 2020"):
            source.jobs(schema)


def test_the_session_says_what_a_timestamp_has_by_default_and_how_strict_it_is(source: Source) -> None:
    source.run("CREATE TABLE t (id INT, n INT)", "INSERT INTO t VALUES (1, 1000)")
    with source.schema() as schema:
        source.run("SET explicit_defaults_for_timestamp = OFF", "ALTER TABLE t ADD c TIMESTAMP NOT NULL")
        (job,) = source.jobs(schema)
        assert "CURRENT_TIMESTAMP" in job["query"]
        source.run("SET explicit_defaults_for_timestamp = ON", "SET sql_mode = ''", "ALTER TABLE t MODIFY n TINYINT")
        (job,) = source.jobs(schema)
        assert job["reorg_meta"]["sql_mode"] == 0


def test_names_are_those_of_the_statement(source: Source) -> None:
    source.run("CREATE TABLE o.e (id INT)", "CREATE TABLE orders (id INT)", "CREATE TABLE e2 (id INT)")
    with source.schema() as schema:
        source.run("ALTER TABLE o.e RENAME e3")
        (job,) = source.jobs(schema)
        assert (job["type"], job["schema_name"], job.get("had_rows")) == (Action.RENAME_TABLE.value, "shop", None)
        assert ("shop", "e3") in schema.tables()
        assert schema._known_name(("shop", "ORDERS")) is None


def test_engines_without_rows_or_transactions_and_files_are_refused(source: Source) -> None:
    with source.schema() as schema:
        source.run("SET sql_mode = ''", f"CREATE TABLE d (id INT) DATA DIRECTORY = '{source.directory.parent}'")
        assert len(source.jobs(schema)) == 1  # else the tablespace would be there already
        source.run("SET sql_mode = DEFAULT", f"CREATE TABLE f (id INT) DATA DIRECTORY = '{source.directory.parent}'")
        with pytest.raises(CaptureRefused, match="DATA DIRECTORY"):
            source.jobs(schema)
        with schema.shadow.connection.cursor() as cursor:
            cursor.execute("SELECT @@secure_file_priv")
            assert str(cursor.fetchone()[0]).rstrip("/") == str(source.directory / "files")
        source.run("CREATE TABLE m (id INT) ENGINE = MyISAM")
        lines = check_source(source.connection, CaptureSettings(), frozenset(), schema=False)
        assert any("shop.m: its engine MyISAM" in line.text for line in lines if line.wrong)
        with pytest.raises(CaptureRefused, match=r"shop\.m .*MyISAM"):
            source.jobs(schema)


def test_a_shadow_leaves_the_temporary_tables_of_other_servers_alone(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "#sql-temptable-1-1-1.MAI"
    theirs.touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stored = StoredSchema(server=server_kind(source.connection), objects=read_objects(source.connection))
    Shadow.start(source.directory, stored).close()
    assert theirs.exists()
