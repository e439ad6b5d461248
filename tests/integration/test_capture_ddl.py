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
from pumphouse.capture.schemas import Made, StoredSchema, read_objects, server_kind
from pumphouse.capture.shadow import Shadow
from pumphouse.capture.source.model import Query
from pumphouse.capture.source.session import position_now
from pumphouse.errors import CaptureRefused, SourceFailed
from pumphouse.model.table import MysqlType
from pumphouse.schema.actions import Action
from pumphouse.schema_import.changes import Known
from pumphouse.settings import CaptureSettings
from tests.stack.mariadb import MariaDbServer
from tests.support import capturing, mariadb
from tests.support.kind import is_mysql
from tests.support.mysql import mysqld

pytestmark = [
    pytest.mark.row("Q3"),
    # PyMySQL leaves the socket of each connection that fails: those before the shadow listens.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def shadow_program(directory: Path) -> str:
    """A MySQL is where it was made."""
    return str(mysqld(directory.with_name("mysqld"))) if is_mysql() else ""


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
        shadow = Shadow.start(self.directory, stored, shadow_program(self.directory))
        try:
            made = Schema(
                shadow=shadow,
                known=Known.of(()),
                own=frozenset(),
                without=lambda db, name: f"{db}.{name}" in self.without,
                writes_actions=is_mysql(),
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


@pytest.mark.mariadb("a MySQL has no ALTER IGNORE")
def test_an_alter_that_deletes_the_rows_that_clash_is_refused(source: Source) -> None:
    source.run("CREATE TABLE u (id INT, b INT)", "CREATE TABLE v (id INT)", "INSERT INTO u VALUES (1, 1), (2, 1)")
    source.without = {"shop.v"}
    with source.schema() as schema:
        source.run("ALTER IGNORE TABLE v ADD UNIQUE (id)")
        assert source.jobs(schema) == []
        source.run("ALTER IGNORE TABLE u ADD UNIQUE (b)")
        with pytest.raises(CaptureRefused, match=r"ALTER IGNORE TABLE u .*rows that clash"):
            source.jobs(schema)


@pytest.mark.mariadb("a MySQL's DDL is done as a whole, or not")
def test_a_statement_that_failed_on_the_source_is_refused_though_the_shadow_takes_it(source: Source) -> None:
    source.run("CREATE TABLE u (id INT)")
    with source.schema() as schema:
        source.run("CREATE TABLE w (id INT)")
        with pytest.raises(MySQLError, match="Unknown table"):
            source.run("DROP TABLE w, missing")  # without an error code in the binlog
        assert [job["type"] for job in source.jobs(schema)] == [Action.CREATE_TABLE.value, Action.DROP_TABLE.value]
        source.run("CREATE TABLE w (id INT)")
        with pytest.raises(MySQLError, match="Unknown table"):
            source.run("/* all of it */ DROP TABLE w, missing")
        assert [job["type"] for job in source.jobs(schema)] == [Action.CREATE_TABLE.value, Action.DROP_TABLE.value]
        query = Query(text=b"ALTER TABLE u ADD UNIQUE (id)", schema="shop", before=0, error=1062)
        with pytest.raises(CaptureRefused, match=r"ADD UNIQUE .*error 1062"):
            schema.apply(query)
        with pytest.raises(CaptureRefused, match=r"DROP TABLE w.*error 1051"):
            schema.apply(replace(query, text=b"DROP TABLE w", error=1051))


@pytest.mark.mariadb("a MySQL has no CREATE OR REPLACE TABLE")
def test_a_table_is_gone_though_what_was_to_replace_it_was_refused(source: Source) -> None:
    source.run("CREATE TABLE u (id INT)")
    with source.schema() as schema:
        with pytest.raises(MySQLError, match="GENERATED ALWAYS"):
            source.run("CREATE OR REPLACE TABLE u (id INT AUTO_INCREMENT PRIMARY KEY, g INT AS (id) STORED)")
        source.run("CREATE TABLE u (a INT)")
        kinds = [Action.DROP_TABLE, Action.CREATE_TABLE]
        assert [(job["type"], job.get("had_rows")) for job in source.jobs(schema)] == [
            (kind.value, None) for kind in kinds
        ]
        query = Query(text=b"CREATE OR REPLACE TABLE u (b INT)", schema="shop", before=0, error=1062)
        with pytest.raises(CaptureRefused, match="error 1062"):
            schema.apply(query)


def test_names_of_partitioning_columns_are_quoted_in_any_way(source: Source) -> None:
    by_columns = (
        'CREATE TABLE r ("a`b" INT, c INT) PARTITION BY RANGE COLUMNS ("a`b", c) (PARTITION p VALUES LESS THAN (3, 4))'
    )
    source.run(
        "SET sql_mode = 'ANSI_QUOTES'",
        'CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY KEY ("id") PARTITIONS 2',
        by_columns,
        "SET sql_mode = DEFAULT",
    )
    with source.schema() as schema:
        source.run(
            "SET sql_mode = 'ANSI_QUOTES'", "ALTER TABLE p REBUILD PARTITION p0", "ALTER TABLE r FORCE",
            by_columns.replace("TABLE r", "TABLE q"), "SET sql_mode = DEFAULT",
        )  # fmt: skip
        assert [(job["type"], job["table_name"]) for job in source.jobs(schema)] == [(Action.CREATE_TABLE.value, "q")]
        tables = {name: table.raw["partition"]["columns"] for (_, name), table in schema.tables().items()}
        names = {name: [each["O"] for each in columns] for name, columns in tables.items()}
        assert names == {"p": ["id"], "r": ["a`b", "c"], "q": ["a`b", "c"]}


def test_a_view_of_what_is_gone_is_left_out(source: Source) -> None:
    source.run("CREATE TABLE o.e (id INT)", "CREATE VIEW v AS SELECT * FROM o.e", "CREATE VIEW w AS SELECT * FROM v")
    with source.schema() as schema:
        source.run("DROP DATABASE o", "CREATE TABLE t (id INT)")
        assert [job["type"] for job in source.jobs(schema)] == [Action.DROP_SCHEMA.value, Action.CREATE_TABLE.value]
        assert {each.name for each in schema.stored().objects} >= {"t"}


@pytest.mark.mariadb("a MySQL has no ALTER in two phases")
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


def test_a_column_takes_the_name_of_one_that_is_dropped(source: Source) -> None:
    source.run("CREATE TABLE t (id INT, a INT, b INT)")
    with source.schema() as schema:
        source.run(
            "ALTER TABLE t DROP COLUMN a, RENAME COLUMN b TO a",
            "ALTER TABLE t RENAME COLUMN id TO a, RENAME COLUMN a TO id",
        )
        jobs = source.jobs(schema)
        assert [job.get("had_rows") for job in jobs] == [None, None]
        assert [column.id for column in schema.tables()["shop", "t"].public_columns] == [1, 3]


@pytest.mark.mariadb("a MySQL has no sequences")
def test_a_sequence_is_renamed_as_a_table_is(source: Source) -> None:
    source.run("CREATE SEQUENCE s", "CREATE TABLE t (id INT)")
    with source.schema() as schema:
        source.run(
            "RENAME TABLE s TO x, t TO s",
            "ALTER TABLE x RENAME TO y",
            "CREATE OR REPLACE SEQUENCE y INCREMENT BY 5",
            "DROP SEQUENCE y",
        )
        jobs = source.jobs(schema)
        kinds = [Action.RENAME_TABLES, Action.RENAME_TABLE, Action.ALTER_SEQUENCE, Action.DROP_SEQUENCE]
        assert [(job["type"], job.get("had_rows")) for job in jobs] == [(kind.value, None) for kind in kinds]


def test_names_are_those_of_the_statement(source: Source) -> None:
    source.run("CREATE TABLE o.e (id INT)", "CREATE TABLE orders (id INT)", "CREATE TABLE e2 (id INT)")
    with source.schema() as schema:
        source.run("ALTER TABLE o.e RENAME e3")
        (job,) = source.jobs(schema)
        assert (job["type"], job["schema_name"], job.get("had_rows")) == (Action.RENAME_TABLE.value, "shop", None)
        assert ("shop", "e3") in schema.tables()
        assert schema._known_name(("shop", "ORDERS")) is None


def test_a_shadow_that_is_killed_is_no_refusal(source: Source) -> None:
    with source.schema() as schema:
        source.run("CREATE TABLE t (id INT)")
        schema.shadow._process.kill()
        with pytest.raises(SourceFailed):
            source.jobs(schema)


def test_a_json_column_is_one_under_another_name(source: Source) -> None:
    source.run("CREATE TABLE t (id INT, doc JSON)")
    with source.schema() as schema:
        source.run(
            "ALTER TABLE t RENAME COLUMN doc TO `d``c`, ADD COLUMN doc LONGTEXT", "ALTER TABLE t ADD COLUMN n INT"
        )
        assert len(source.jobs(schema)) == 2
        kinds = {column.name: column.type.tp for column in schema.tables()["shop", "t"].public_columns}
        assert (kinds["d`c"], kinds["doc"]) == (MysqlType.JSON, MysqlType.LONG_BLOB)


@pytest.mark.mysql
def test_a_json_column_that_is_added_has_in_old_rows_what_the_source_gave_them(source: Source) -> None:
    source.run("CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1)")
    with source.schema() as schema:
        source.run("ALTER TABLE t ADD COLUMN doc JSON NOT NULL")
        source.jobs(schema)
        with source.connection.cursor() as cursor:
            cursor.execute("SELECT doc FROM t")
            ((given,),) = cursor.fetchall()
        column = schema.tables()["shop", "t"].public_columns[1]
        assert (column.origin_default or "") == given == ("null" if is_mysql() else "")


@pytest.mark.mysql
def test_a_text_default_that_is_called_as_a_function_is_a_text(source: Source) -> None:
    source.run("CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1)")
    with source.schema() as schema:
        source.run("ALTER TABLE t ADD COLUMN v VARCHAR(20) DEFAULT 'CURRENT_TIMESTAMP'")
        source.jobs(schema)
        assert schema.tables()["shop", "t"].public_columns[1].origin_default == "CURRENT_TIMESTAMP"


@pytest.mark.mariadb("a MySQL that writes a binlog refuses such a default of a new column")
def test_a_new_column_has_the_moment_in_old_rows_or_the_table_is_a_new_one(source: Source) -> None:
    columns = {
        "d": "DATE DEFAULT (current_timestamp())",
        "m": "DATETIME(3) DEFAULT (current_timestamp())",
        "v": "VARCHAR(30) DEFAULT (current_timestamp(2))",
        "n": "BIGINT DEFAULT (current_timestamp())",
        "h": "TIME DEFAULT (current_timestamp())",
        "later": "DATETIME DEFAULT (current_timestamp() + INTERVAL 1 DAY)",
        "ago": "VARCHAR(60) DEFAULT (current_timestamp() - INTERVAL 1 DAY)",
    }
    for name in columns:
        source.run(f"CREATE TABLE {name} (id INT)", f"INSERT INTO {name} VALUES (1)")
    with source.schema() as schema:
        known = set()
        for name, column in columns.items():
            source.run(
                "SET timestamp = 1700000000.123456, time_zone = '+02:00'", f"ALTER TABLE {name} ADD COLUMN c {column}"
            )
            if not any(job.get("had_rows") for job in source.jobs(schema)):
                known.add(name)
                with source.connection.cursor() as cursor:
                    cursor.execute(f"SELECT CAST(c AS CHAR) FROM {name}")
                    ((there,),) = cursor.fetchall()
                assert schema.tables()["shop", name].public_columns[1].origin_default == there, name
        assert known == {"d", "m", "v"}


def test_a_session_may_have_any_collation(source: Source) -> None:
    with source.schema() as schema:
        for collation in ("utf8mb4_bin", "utf8mb4_unicode_ci", "utf8mb4_general_ci"):
            source.run(f"SET NAMES utf8mb4 COLLATE {collation}", f"CREATE TABLE {collation} (a CHAR(9) DEFAULT 'ü')")
            (job,) = source.jobs(schema)
            assert "DEFAULT 'ü'" in job["query"]


def test_a_statement_is_read_in_the_character_set_of_its_session(source: Source) -> None:
    source.run("CREATE TABLE größe (id INT, a INT)", "CREATE TABLE t (id INT)")
    with source.schema() as schema:
        source.connection.set_character_set("latin1")
        source.run("ALTER TABLE größe RENAME TO maß", "ALTER TABLE maß RENAME COLUMN a TO ä", "DROP TABLE maß")
        source.run(
            "CREATE TABLE zwölf SELECT 1 AS ö", "CREATE TEMPORARY TABLE x (ü INT)", "CREATE TABLE dreißig LIKE x"
        )
        source.connection.set_character_set("gbk")
        source.run("ALTER TABLE t COMMENT '誠', RENAME TO 中")  # a backslash is the last byte of that sign
        source.connection.set_character_set("utf8mb4")
        jobs = source.jobs(schema)
        kinds = [
            Action.RENAME_TABLE,
            Action.MODIFY_COLUMN,
            Action.DROP_TABLE,
            Action.CREATE_TABLE,
            Action.CREATE_TABLE,
            Action.RENAME_TABLE,
            Action.MODIFY_TABLE_COMMENT,
        ]
        assert [(job["type"], job.get("had_rows")) for job in jobs] == [(kind.value, None) for kind in kinds]
        assert {("shop", "中"), ("shop", "zwölf"), ("shop", "dreißig")} <= schema.tables().keys()


@pytest.mark.mariadb("a MySQL takes directories that it knows alone")
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
    Shadow.start(source.directory, stored, shadow_program(source.directory)).close()
    assert theirs.exists()


def test_the_shadow_waits_for_a_statement_as_long_as_a_server_lets_it(source: Source) -> None:
    with source.schema() as schema:
        for connection in (schema.shadow._statements, schema.shadow._reading):
            assert capturing.rows_of(connection, "SELECT @@session.wait_timeout") == [(365 * 86_400,)]


@pytest.mark.mariadb("a MySQL's numbers are counted one by one")
def test_numbers_that_need_not_ascend_are_refused_before_a_capture_begins(source: Source) -> None:
    source.run("SET GLOBAL gtid_strict_mode = OFF")
    try:
        lines = check_source(source.connection, CaptureSettings(), frozenset(), schema=False)
    finally:
        source.run("SET GLOBAL gtid_strict_mode = ON")
    (line,) = (line for line in lines if line.wrong)
    assert line.text.startswith("gtid_strict_mode is OFF, it must be ON")
    assert line.type.startswith("SET GLOBAL gtid_strict_mode = 'ON'; and the same")


@pytest.mark.mysql
@pytest.mark.skipif(not is_mysql(), reason="a MariaDB has GTIDs without a mode")
def test_what_is_typed_for_gtids_is_what_a_server_takes(source: Source) -> None:
    for mode in ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"):
        source.run(f"SET GLOBAL gtid_mode = {mode}")
    lines = check_source(source.connection, CaptureSettings(), frozenset(), schema=False)
    (line,) = (line for line in lines if line.text.startswith("gtid_mode is OFF"))
    source.run("SET GLOBAL enforce_gtid_consistency = OFF", *line.type.split("; ")[:-1])
    assert capturing.rows_of(source.connection, "SELECT @@gtid_mode, @@enforce_gtid_consistency") == [("ON", "ON")]


@pytest.mark.mariadb("a MySQL takes its keys from a component")
def test_a_shadow_needs_no_keys_for_tables_that_are_encrypted(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"1;{'ab' * 32}\n4;{'cd' * 32}\n")
    more = ("--plugin-load-add=file_key_management", f"--file-key-management-filename={keys}")
    with mariadb.directory_in_memory() as directory, capturing.source(directory / "source", *more) as server:
        source = Source(server, directory / "shadow")
        source.run("CREATE TABLE a (id INT) ENCRYPTED=YES", "CREATE TABLE b (id INT) ENCRYPTION_KEY_ID=4 ENCRYPTED=YES")
        with source.schema() as schema:
            assert {("shop", "a"), ("shop", "b")} <= schema.tables().keys()
            source.run(
                "CREATE TABLE c (id INT) ENCRYPTED=YES COMMENT 'ENCRYPTED=YES'",
                "ALTER TABLE c ADD COLUMN encrypted INT, ENCRYPTION_KEY_ID=4",
                "ALTER TABLE c DROP COLUMN encrypted",
            )
            kinds = [Action.CREATE_TABLE, Action.ADD_COLUMN, Action.DROP_COLUMN]
            assert [(job["type"], job.get("had_rows")) for job in source.jobs(schema)] == [
                (kind.value, None) for kind in kinds
            ]
        source.connection.close()


@pytest.mark.mariadb("a MySQL has its engines built in")
def test_tables_that_are_left_out_need_not_be_there_on_the_shadow(source: Source) -> None:
    source.run("INSTALL SONAME 'ha_archive'")
    source.without = {"o.log", "o.new", "o.other"}
    try:
        with source.schema() as schema:
            source.run(
                "CREATE TABLE o.log (id INT) ENGINE=ARCHIVE",
                "ALTER TABLE o.log ADD a INT",
                "RENAME TABLE o.log TO o.new",
                "CREATE TABLE t (id INT)",
                "DROP TABLE o.new, t",
            )
            jobs = source.jobs(schema)
            assert [job["type"] for job in jobs] == [Action.CREATE_TABLE.value, Action.DROP_TABLE.value]
            source.run("CREATE TABLE o.other (id INT) ENGINE=ARCHIVE", "ALTER TABLE o.other ENGINE=InnoDB")
            assert source.jobs(schema) == []
            source.without = {"o.log", "o.new"}
            with pytest.raises(CaptureRefused, match=r"o\.other was left out, and the shadow did not take its DDL"):
                schema.reconcile(lambda _db, _name: False)
            kept = StoredSchema.from_json("kept", schema.stored().to_json())
            assert kept.unfollowed == {("o", "other")}
            source.without |= {"o.other"}
            source.run("CREATE OR REPLACE TABLE o.other (id INT)")
            assert source.jobs(schema) == []
            source.without = {"o.log", "o.new"}
            (job,) = schema.reconcile(lambda _db, _name: True)
            assert (job["table_name"], job["had_rows"]) == ("other", True)
            source.run("CREATE TABLE o.seen (id INT) ENGINE=ARCHIVE")
            with pytest.raises(CaptureRefused, match="Unknown storage engine"):
                source.jobs(schema)
    finally:
        source.run("DROP TABLE IF EXISTS o.seen", "UNINSTALL SONAME 'ha_archive'")


class Beyond:
    """A left-out table, o.log, whose ALTER the shadow did not take, and the schema that knows so."""

    def __init__(self, source: Source, schema: Schema) -> None:
        self.source, self.schema = source, schema
        self.clause, back = (
            ("TABLESPACE beyond", "TABLESPACE innodb_file_per_table")
            if is_mysql()
            else ("ENGINE=ARCHIVE", "ENGINE=InnoDB")
        )
        self._make = (
            "CREATE TABLE o.log (id INT, v VARCHAR(9))",
            f"ALTER TABLE o.log MODIFY v VARCHAR(9) DEFAULT 'x', {self.clause}",
            f"ALTER TABLE o.log {back}",
        )
        self.make()

    def make(self) -> None:
        self.source.run(*self._make)
        assert self.source.jobs(self.schema) == []

    def tables_with(self, *names: str) -> list[str]:
        """The tables that a start makes, once ``names`` are left out no more; they are left out again."""
        was, self.source.without = self.source.without, self.source.without - {f"o.{name}" for name in names}
        try:
            found = [job["table_name"] for job in self.schema.reconcile(lambda _db, _name: True)]
        finally:
            self.source.without = was
        if found:
            self.schema.reconcile(lambda _db, _name: True)
        return found


@pytest.fixture
def beyond(source: Source) -> Iterator[Beyond]:
    make, end = (
        ("CREATE TABLESPACE beyond ADD DATAFILE 'beyond.ibd'", "DROP TABLESPACE beyond")
        if is_mysql()
        else ("INSTALL SONAME 'ha_archive'", "UNINSTALL SONAME 'ha_archive'")
    )
    source.without = {f"o.{name}" for name in ("log", "new", "other", "more")}
    source.run("CREATE TABLE t (id INT)", make)
    try:
        with source.schema() as schema:
            yield Beyond(source, schema)
    finally:
        source.run("SET foreign_key_checks = 0", "DROP DATABASE IF EXISTS o", end, "SET foreign_key_checks = 1")


def test_a_left_out_table_that_was_not_followed_is_known_again_by_its_create_alone(
    source: Source, beyond: Beyond
) -> None:
    for number, (statement, lost) in enumerate({
        "TRUNCATE o.log": "log",
        "CREATE TABLE IF NOT EXISTS o.log (id INT)": "log",
        "ALTER TABLE o.log ADD x INT": "log",
        "RENAME TABLE o.log TO o.new": "new",
        "RENAME TABLE o.log TO o.new, o.other TO o.log, o.new TO o.other": "other",
        "ALTER TABLE o.log RENAME TO o.new, ADD x INT": "new",
        "CREATE TABLE o.more LIKE o.log": "more",
    }.items()):  # fmt: skip
        source.run(f"CREATE TABLE t{number} (id INT)", "CREATE TABLE IF NOT EXISTS o.other (id INT)", statement)
        assert len(source.jobs(beyond.schema)) == 1
        with pytest.raises(CaptureRefused, match=rf"^o\.{lost} was left out, and the shadow did not take its DDL"):
            beyond.tables_with(lost)
        source.run(f"DROP TABLE o.{lost}, t{number}")
        assert [job["type"] for job in source.jobs(beyond.schema)] == [Action.DROP_TABLE.value], "of t alone"
        assert beyond.tables_with(lost) == []
        source.run(f"CREATE TABLE o.{lost} (id INT)")
        assert source.jobs(beyond.schema) == []
        assert beyond.tables_with(lost) == [lost]
        source.run(f"DROP TABLE o.{lost}", "DROP TABLE IF EXISTS o.log")
        beyond.make()


def test_what_is_made_of_a_left_out_table_that_was_not_followed_is_refused(source: Source, beyond: Beyond) -> None:
    source.run("CREATE TABLE p (id INT, v VARCHAR(9)) PARTITION BY LIST (id) (PARTITION a VALUES IN (1))")
    source.jobs(beyond.schema)
    beyond.schema.apply(Query(text=b"CREATE TABLE IF NOT EXISTS o.log (id INT)", schema="shop", before=0))
    for text in (
        b"RENAME TABLE o.log TO pub",
        b"RENAME TABLE t TO pub, o.log TO t",
        b"ALTER TABLE o.log RENAME TO pub",
        b"CREATE TABLE pub LIKE o.log",
        b"ALTER TABLE p EXCHANGE PARTITION a WITH TABLE o.log",
        *(() if is_mysql() else (b"RENAME TABLE IF EXISTS o.log TO pub", b"ALTER TABLE IF EXISTS o.log RENAME pub")),
    ):
        with pytest.raises(CaptureRefused, match=r"o\.log(,| was left out|\))"):
            beyond.schema.apply(Query(text=text, schema="shop", before=0))


def test_a_table_that_is_gone_holds_no_start(source: Source, beyond: Beyond) -> None:
    source.run("RENAME TABLE o.log TO o.new", f"CREATE TABLE o.other (id INT) {beyond.clause}")
    assert source.jobs(beyond.schema) == []
    assert beyond.tables_with("log") == [], "what bore the name has another one"
    source.run("DROP DATABASE o", "CREATE DATABASE o")
    kinds = [Action.DROP_SCHEMA, Action.CREATE_SCHEMA]
    assert [job["type"] for job in source.jobs(beyond.schema)] == [kind.value for kind in kinds]
    assert beyond.tables_with("log", "new", "other") == []
    assert not beyond.schema.stored().unfollowed


def test_a_key_may_refer_to_a_left_out_table_that_was_not_followed(source: Source, beyond: Beyond) -> None:
    source.run("ALTER TABLE o.log ADD PRIMARY KEY (id)", "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES o.log (id)")
    assert [job.get("had_rows") for job in source.jobs(beyond.schema)] == [None]


def test_names_that_differ_by_case_are_one_table_where_the_source_folds_them(source: Source, beyond: Beyond) -> None:
    shadow, kind = beyond.schema.shadow, beyond.schema.shadow.kind
    shadow.kind = replace(kind, lower_case_table_names=1)
    shadow.settle([], [("O", "LOG")], taken=True)
    assert not shadow.unfollowed


def test_a_shadow_starts_without_a_left_out_table_that_it_cannot_make(source: Source) -> None:
    source.run("CREATE TABLE t (id INT)")
    stored = StoredSchema(
        server=server_kind(source.connection),
        objects=(
            *read_objects(source.connection),
            Made(kind="table", database="o", name="log", sql="CREATE TABLE `log` (`a` no_type_of_the_shadow)"),
        ),
    )
    program = shadow_program(source.directory)
    shadow = Shadow.start(source.directory, stored, program, lambda db, name: (db, name) == ("o", "log"))
    try:
        found = shadow.stored()
        assert {("shop", "t")} == {(each.database, each.name) for each in found.objects if each.name}
        assert found.unfollowed == {("o", "log")}
    finally:
        shadow.close()
    shadow = Shadow.start(source.directory, found, program)
    try:
        assert shadow.stored() == found, "a restart knows as much"
    finally:
        shadow.close()
    earlier = replace(found, unfollowed=frozenset({("shop", "t")}))
    shadow = Shadow.start(source.directory, earlier, program)
    try:
        assert not any(each.name for each in shadow.stored().objects), "what was stored of such a table is stale"
    finally:
        shadow.close()
    with pytest.raises(CaptureRefused, match=r"cannot make table o\.log"):
        Shadow.start(source.directory, stored, program)


@pytest.mark.mysql
def test_the_last_range_of_a_table_goes_further_in_the_statement_that_makes_it_anew(source: Source) -> None:
    source.run("CREATE TABLE r (id INT, KEY (id)) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10),"
               " PARTITION b VALUES LESS THAN (20), PARTITION c VALUES LESS THAN (30))",
               "INSERT INTO r VALUES (5), (25)")  # fmt: skip
    with source.schema() as schema:
        source.run("ALTER TABLE r REORGANIZE PARTITION b, c INTO (PARTITION d VALUES LESS THAN (69),"
                   " PARTITION e VALUES LESS THAN MAXVALUE)")  # fmt: skip
        (job,) = source.jobs(schema)
        assert (job["type"], job["query"].split(" INTO ")[0]) == (
            Action.REORGANIZE_PARTITION.value, "ALTER TABLE `shop`.`r` REORGANIZE PARTITION `b`,`c`",
        )  # fmt: skip
        source.run("ALTER TABLE r PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (50))")
        assert [job.get("had_rows") for job in source.jobs(schema)] == [None, True], "its rows are not told again"
        source.run("CREATE TABLE d (at DATE) PARTITION BY RANGE COLUMNS (at) (PARTITION a VALUES LESS THAN ('2020-01-01'),"
                   " PARTITION b VALUES LESS THAN ('2030-01-01'))", "INSERT INTO d VALUES ('2011-01-01')")  # fmt: skip
        assert len(source.jobs(schema)) == 1
        source.run("ALTER TABLE d PARTITION BY RANGE COLUMNS (at) (PARTITION a VALUES LESS THAN ('2015-01-01'))")
        assert [job.get("had_rows") for job in source.jobs(schema)] == [None, True], "which no REORGANIZE can say"


@pytest.mark.mariadb("a MySQL renames no column of a partition")
def test_a_column_that_partitions_a_table_gets_another_name_and_a_new_one_has_the_old(source: Source) -> None:
    source.run("CREATE TABLE r (id BIGINT, at DATE) PARTITION BY RANGE COLUMNS (id)"
               " (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))",
               "CREATE TABLE y (at DATE, n INT) PARTITION BY RANGE (YEAR(at)) (PARTITION a VALUES LESS THAN (2030))",
               "INSERT INTO r VALUES (5, '2020-01-01')", "INSERT INTO y VALUES ('2020-01-01', 1)")  # fmt: skip
    with source.schema() as schema:
        source.run("ALTER TABLE r RENAME COLUMN id TO `a b`, ADD COLUMN id INT DEFAULT 4")
        source.run("ALTER TABLE y RENAME COLUMN at TO n, RENAME COLUMN n TO at")
        jobs = source.jobs(schema)
        assert [(job["type"], job.get("had_rows")) for job in jobs] == [
            (Action.MULTI_SCHEMA_CHANGE.value, None), (Action.MULTI_SCHEMA_CHANGE.value, None),
        ]  # fmt: skip
        tables = schema.tables()
        assert [column["O"] for column in tables["shop", "r"].raw["partition"]["columns"]] == ["a b"]
        assert tables["shop", "y"].raw["partition"]["expr"] == "year(`n`)"
