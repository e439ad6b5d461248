"""`schema import`: what a real server has, and every change of it, becomes jobs from which another server is made equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pymysql.connections import Connection

from pumphouse.client import named_row, tables
from pumphouse.codec.row import encode_delete, encode_insert, encode_update
from pumphouse.errors import ConfigError, SchemaError, UsageError
from pumphouse.loader.begin import databases_of, in_creation_order
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.loader.fence import Ownership
from pumphouse.loader.state import PARTS_TASK, parts_schemas
from pumphouse.loader.target import TargetConnection
from pumphouse.model.tso import MAX_TSO
from pumphouse.registry.file import FileCluster
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema.table_sql import create_database, create_object
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob, genesis_jobs
from pumphouse.schema_import.changes import Asked
from pumphouse.schema_import.run import ImportReport, import_schema
from pumphouse.schema_import.shown import Shown
from pumphouse.settings import ServerSettings, Settings, TargetSettings, TlsSettings
from tests.stack.mariadb import MariaDbServer
from tests.support import everytype, mariadb
from tests.support.kind import is_mysql
from tests.support.loading import drop_all
from tests.support.rowreference import decode_delete, decode_insert, decode_update

# What one CREATE can say beyond `everytype.TABLES`.
RICH = (
    "CREATE DATABASE rich CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "CREATE SEQUENCE rich.numbers START WITH 5 INCREMENT BY 2 MINVALUE 1 MAXVALUE 1000 NOCACHE",
    """CREATE TABLE rich.everything (
      id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'it''s \\\\ the key',
      tiny TINYINT(1) NOT NULL DEFAULT -1,
      wide INT(5) UNSIGNED ZEROFILL DEFAULT 7,
      money DECIMAL(20,6) UNSIGNED NOT NULL DEFAULT 0.500000,
      ratio DOUBLE(10,3) DEFAULT 1.5,
      real4 FLOAT DEFAULT NULL,
      bits BIT(10) NOT NULL DEFAULT b'1000000001',
      made TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
      fixed TIMESTAMP NOT NULL DEFAULT '2020-02-03 04:05:06',
      day DATE NOT NULL DEFAULT '2020-01-01',
      moment DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6),
      span TIME(2) DEFAULT '-12:30:00.50',
      born YEAR DEFAULT 1999,
      name VARCHAR(80) CHARACTER SET utf8mb3 COLLATE utf8mb3_unicode_ci NOT NULL DEFAULT 'it''s \\\\ "x" \\n',
      plain VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin DEFAULT '',
      code CHAR(4) COLLATE utf8mb4_uca1400_ai_ci,
      raw BINARY(4) DEFAULT 'ab',
      vraw VARBINARY(20) DEFAULT 'cd',
      body MEDIUMTEXT DEFAULT 'long',
      tblob TINYBLOB,
      kind ENUM('a','b,c','d''e','ü') NOT NULL DEFAULT 'b,c',
      marks SET('x','y z') DEFAULT 'x,y z',
      doc JSON DEFAULT '{}',
      token VARCHAR(40) DEFAULT uuid(),
      number BIGINT DEFAULT NEXTVAL(rich.numbers),
      total DECIMAL(22,6) GENERATED ALWAYS AS (money * 2) STORED,
      short VARCHAR(5) GENERATED ALWAYS AS (left(name, 5)) VIRTUAL COMMENT 'first',
      PRIMARY KEY (id),
      UNIQUE KEY one (name, day),
      KEY cut (body(20), name(10)) COMMENT 'a prefix key',
      KEY hidden (born) IGNORED,
      CONSTRAINT positive CHECK (money >= 0),
      CHECK (born > 1900)
    ) AUTO_INCREMENT=1234 COLLATE=utf8mb4_general_ci COMMENT='all of it; \\'quoted\\''""",
    "CREATE TABLE rich.`odd ``name` (`a b` VARCHAR(10) NOT NULL, n INT, PRIMARY KEY (`a b`(4), n))",
    "CREATE TABLE rich.keyless (v TEXT)",
    """CREATE TABLE rich.by_range (id INT NOT NULL, at DATE NOT NULL, PRIMARY KEY (id, at))
      PARTITION BY RANGE COLUMNS (at) (PARTITION p0 VALUES LESS THAN ('2020-01-01') COMMENT = 'old',
        PARTITION p1 VALUES LESS THAN ('2021-01-01'), PARTITION top VALUES LESS THAN (MAXVALUE))""",
    """CREATE TABLE rich.by_list (id INT PRIMARY KEY) PARTITION BY LIST (id % 4)
      (PARTITION even VALUES IN (0, 2), PARTITION odd VALUES IN (1, 3))""",
    """CREATE TABLE rich.by_hash (id INT PRIMARY KEY) PARTITION BY HASH (id)
      (PARTITION h0, PARTITION h1)""",
    "CREATE VIEW rich.a_last AS SELECT id, name FROM rich.z_first WHERE id > 1",
)
VIEW_FIRST = "CREATE VIEW rich.z_first AS SELECT id, name FROM rich.everything"


# What a MySQL says otherwise; it has no sequences, no UUID and no system versioning.
_AS_MYSQL = {
    "utf8mb4_uca1400_ai_ci": "utf8mb4_0900_ai_ci",
    "MEDIUMTEXT DEFAULT 'long'": "MEDIUMTEXT DEFAULT ('long')",
    "JSON DEFAULT '{}'": "JSON DEFAULT ('{}')",
    "DEFAULT uuid()": "DEFAULT (uuid())",
    "number BIGINT DEFAULT NEXTVAL(rich.numbers)": "number BIGINT",
    "IGNORED": "INVISIBLE",
    ", who UUID": "",
    "SET DEFAULT ROLE lookers FOR": "SET DEFAULT ROLE lookers TO",
    " WITH SYSTEM VERSIONING": "",
}


def _spoken(statement: str) -> str:
    """As the server understands it; '' where it has no such thing."""
    if not is_mysql():
        return statement
    for theirs, ours in _AS_MYSQL.items():
        statement = statement.replace(theirs, ours)
    return "" if " SEQUENCE " in statement else statement


class Sides:
    """A source, its history on the same server, and a target that is made from the history alone."""

    def __init__(self, source: MariaDbServer, target: TargetConnection, owner: Ownership, cluster: FileCluster) -> None:
        self.server = source
        self.connection: Connection[Any] = source.connect(autocommit=True)
        self.target, self.cluster = target, cluster
        self.executor = DdlExecutor(target, owner, "main")
        self.settings = source.dsn.server
        self.history = MysqlTableSource(self.settings, "history", "jobs")
        self.timeline = Timeline.empty()

    def sql(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in filter(None, map(_spoken, statements)):
                cursor.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def import_(self, *, database: str = "", dry_run: bool = False, **said: Any) -> ImportReport:
        asked = Asked(
            database=database,
            drop=tuple(said.get("drop", ())),
            rename=said.get("rename", {}),
            skip=frozenset(said.get("skip", ())),
        )
        return import_schema(self.settings, self.history, self.cluster, asked, tls=TlsSettings(), dry_run=dry_run)

    def begin(self, report: ImportReport) -> None:
        """Make the target from the timeline, as a first load and a restore do."""
        assert report.jobs
        self.timeline = self.timeline.fold(genesis_jobs(self.history.jobs(), self.cluster.tso()))
        for info in databases_of(self.timeline, MAX_TSO):
            self.target.execute(create_database(info, self.target.dialect))
        objects = in_creation_order(self.timeline, MAX_TSO, self.target.dialect)
        views = [each for each in objects if each.table.is_view]
        for each in (*(o for o in objects if not o.table.is_view), *views):
            self.target.execute(create_object(each.db, each.table, self.target.dialect))

    def follow(self, report: ImportReport) -> list[str]:
        """Execute what an import brought on the target; the jobs' types."""
        before = self.cluster.tso()
        fresh = [self.history.job(job_id) for job_id, _, _ in report.jobs]
        self.timeline = self.timeline.fold(TimedJob(self.cluster.tso(), job) for job in fresh if job is not None)
        for event in self.timeline.ddls(before, MAX_TSO):
            self.executor.execute(event)
        return [kind for _, kind, _ in report.jobs]

    def check_equal(self) -> None:
        assert shown(self.query) == shown(self.target.query)
        assert self.import_().jobs == ()


def shown(query: Any) -> dict[str, str]:
    """SHOW CREATE of everything that is no server's own; users of views aside, AUTO_INCREMENT moves with rows."""
    ours = "('mysql','information_schema','performance_schema','sys','history','pumphouse')"
    out = {}
    for (db,) in query(f"SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN {ours}"):
        out[db] = query(f"SHOW CREATE DATABASE `{db}`")[0][1]
    for db, name in query(
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA NOT IN {ours}"
    ):
        quoted = name.replace("`", "``")
        text = str(query(f"SHOW CREATE TABLE `{db}`.`{quoted}`")[0][1])
        out[f"{db}.{name}"] = re.sub(r"DEFINER=\S+ ", "", text)
    if is_mysql():
        # It repeats what a column's definition had; what each column has is the same.
        of_columns = query(
            "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, CHARACTER_SET_NAME, COLLATION_NAME FROM"
            f" information_schema.COLUMNS WHERE TABLE_SCHEMA NOT IN {ours}"
        )
        out = {name: re.sub(r" (?:CHARACTER SET|COLLATE) \w+", "", text) for name, text in out.items()}
        # A target numbers CHECKs, because a name is the whole database's; they are shown in the order of their names.
        check = re.compile(r",\n  CONSTRAINT `\w+` (CHECK .*?)(?=,?\n)")
        out = {name: check.sub("", text) + "".join(sorted(check.findall(text))) for name, text in out.items()}
        out |= {f"{db}.{table}.{name}": f"{charset} {collation}" for db, table, name, charset, collation in of_columns}
    return out


@pytest.fixture(scope="module")
def servers(server: TargetSettings) -> Iterator[tuple[MariaDbServer, TargetSettings]]:
    """Two servers."""
    with mariadb.directory_in_memory() as directory, mariadb.server_in(directory) as source:
        yield source, server


@pytest.fixture
def sides(servers: tuple[MariaDbServer, TargetSettings], tmp_path: Path) -> Iterator[Sides]:
    """Both of them, empty."""
    source, target = servers
    with TargetConnection.open(target) as connection:
        drop_all(connection)
    with mariadb.owned(target) as (held, owner):
        found = Sides(source, held, owner, FileCluster(tmp_path / "cluster"))
        yield found
        for run in (found.sql, held.execute):
            query = found.query if run == found.sql else held.query
            for (db,) in query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA"):
                if db not in ("mysql", "information_schema", "performance_schema", "sys"):
                    run(f"DROP DATABASE `{db}`")
        found.connection.close()


@pytest.mark.row("S1", "S2", "O8")
def test_tables_by_their_own_sql_become_equal_tables(sides: Sides) -> None:
    sides.sql(*everytype.TABLES)
    report = sides.import_()
    assert report.created and not report.binlogs
    assert {kind for _, kind, _ in report.jobs} == {"CREATE_SCHEMA", "CREATE_TABLE"}
    sides.begin(report)
    sides.check_equal()


@pytest.mark.row("S1", "S2", "O8")
def test_every_type_key_default_view_and_partition_becomes_an_equal_one(sides: Sides) -> None:
    sides.sql(*RICH[:-1], VIEW_FIRST, RICH[-1])
    sides.begin(sides.import_())
    sides.check_equal()


# Every place of a table where a text may stand, each with characters beyond ASCII and beyond U+FFFF.
SPELLED = (
    "CREATE DATABASE odd CHARACTER SET utf8mb4",
    r"""CREATE TABLE odd.t (
      id INT PRIMARY KEY,
      `ä ``'"` VARCHAR(20),
      kept VARCHAR(60) GENERATED ALWAYS AS (concat('é🚰?\\"''-', `ä ``'"`)) STORED,
      made VARCHAR(60) GENERATED ALWAYS AS (concat('🚰\n', left(`ä ``'"`, 3))) VIRTUAL,
      computed VARCHAR(60) DEFAULT (concat('ü👍?', '\\b''')),
      plain VARCHAR(10) COLLATE utf8mb4_bin DEFAULT '?é🚰''',
      needed CHAR(9) NOT NULL DEFAULT '👍?',
      asked CHAR(9) NOT NULL DEFAULT '?' COMMENT '%s',
      body TEXT DEFAULT ('👎?'),
      code VARCHAR(20) CHECK (code REGEXP '^\\d+$'),
      path VARCHAR(20) CHECK (path <> '👎' AND path <> ''''),
      mood VARCHAR(9) COMMENT 'DEFAULT 0x41',
      CONSTRAINT glad CHECK (mood IN ('👍?', 'é', 'c:\\dir'))
    )""",
    "CREATE VIEW odd.w AS SELECT id, CASE WHEN plain = '?é🚰''' THEN 'é👍' ELSE 'no' END AS said FROM odd.t",
)


@pytest.mark.mysql
@pytest.mark.row("S1", "S2", "O8")
def test_expressions_and_defaults_keep_every_character(sides: Sides) -> None:
    quoted = " ".join("one of ''yes'', ''no''" for _ in range(20))
    sides.sql(SPELLED[0], SPELLED[1].replace("%s", quoted), *SPELLED[2:])
    if is_mysql():
        # The session's character set is what the literal keeps.
        with sides.server.connect(autocommit=True, charset="latin1").cursor() as cursor:
            cursor.execute("CREATE TABLE odd.old (a VARCHAR(9), b VARCHAR(9) AS (concat(a, 'é')) STORED)")
    sides.begin(sides.import_())
    sides.sql("INSERT INTO odd.t (id, asked) VALUES (1, 'x')")  # what a target computes it computes without help
    for run in (sides.sql, sides.target.execute):
        run("REPLACE INTO odd.t (id, `ä ``'\"`, code, path, mood) VALUES (1, '👍👍👍👍', '12', '?', '👍?')")
        run("INSERT INTO odd.t (id, mood) VALUES (2, 'c:\\\\dir')")
        if is_mysql():
            run("INSERT INTO odd.old (a) VALUES ('x')")
    for name in ("t", "w", *(["old"] if is_mysql() else [])):
        rows = sides.query(f"SELECT * FROM odd.{name}")
        assert list(sides.target.query(f"SELECT * FROM odd.{name}")) == rows
        assert "é" in str(rows)
    assert sides.import_().jobs == ()


@pytest.mark.mysql
@pytest.mark.row("S1", "S2")
def test_a_new_column_has_its_default_in_rows_that_were_there(sides: Sides) -> None:
    sides.sql("CREATE DATABASE odd CHARACTER SET utf8mb4", "CREATE TABLE odd.t (id INT PRIMARY KEY)")
    sides.begin(sides.import_())
    for run in (sides.sql, sides.target.execute):
        run("INSERT INTO odd.t VALUES (1)")
    sides.sql("ALTER TABLE odd.t ADD mood VARCHAR(9) DEFAULT '🚰?', ADD need VARCHAR(9) NOT NULL DEFAULT '👍'")
    sides.follow(sides.import_())
    assert list(sides.target.query("SELECT * FROM odd.t")) == sides.query("SELECT * FROM odd.t") == [(1, "🚰?", "👍")]


@pytest.mark.row("S1", "S2")
@pytest.mark.mariadb("a MySQL has no DEFAULT partition")
def test_a_partition_for_all_other_values_takes_them(sides: Sides) -> None:
    sides.sql(
        "CREATE DATABASE a",
        "CREATE TABLE a.one (k INT NOT NULL) PARTITION BY LIST (k) (PARTITION p VALUES IN (1, 2), PARTITION rest DEFAULT"
        " COMMENT = 'all else')",
        "CREATE TABLE a.zero (k INT NOT NULL) PARTITION BY LIST (k) (PARTITION p VALUES IN (1), PARTITION z VALUES IN (0))",
        "CREATE TABLE a.more (k INT NOT NULL) PARTITION BY LIST COLUMNS (k) (PARTITION p VALUES IN (1), PARTITION r DEFAULT)",
    )
    sides.begin(sides.import_())
    sides.check_equal()
    sides.target.execute("INSERT INTO a.one VALUES (0), (1), (7)")
    sides.sql("ALTER TABLE a.one DROP PARTITION rest")
    assert sides.follow(sides.import_(drop=["a.one.rest"])) == ["DROP_PARTITION"]
    sides.check_equal()
    assert list(sides.target.query("SELECT k FROM a.one")) == [(1,)]


@pytest.mark.row("S1", "S2")
@pytest.mark.mariadb("a MySQL has no DEFAULT partition")
def test_a_default_partition_that_an_earlier_release_read_as_one_of_the_value_0_takes_no_rows_along(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.sql(
        "CREATE DATABASE a",
        "CREATE TABLE a.one (k INT NOT NULL) PARTITION BY LIST (k) (PARTITION p VALUES IN (1, 2), PARTITION rest DEFAULT)",
    )
    with monkeypatch.context() as earlier:
        earlier.setattr(Shown, "is_rest", lambda _self, _partition: False)
        sides.begin(sides.import_())
    sides.target.execute("INSERT INTO a.one VALUES (0), (1)")
    for said in ([], ["a.one.rest"]):
        with pytest.raises(SchemaError, match=r"a\.one\.rest is the server's DEFAULT partition.* --drop a\.one`"):
            sides.import_(drop=said)
    assert sides.follow(sides.import_(drop=["a.one"])) == ["DROP_TABLE", "CREATE_TABLE"]
    sides.check_equal()


# (statements, what is said of them, the jobs' types)
CHANGES: tuple[tuple[tuple[str, ...], dict[str, Any], list[str]], ...] = (
    (("CREATE DATABASE new CHARACTER SET utf8mb4",), {}, ["CREATE_SCHEMA"]),
    (("ALTER DATABASE new CHARACTER SET utf8mb3",), {}, ["MODIFY_SCHEMA_CHARSET"]),
    (("CREATE TABLE new.t (id INT PRIMARY KEY, a INT, b VARCHAR(9))",), {}, ["CREATE_TABLE"]),
    (("ALTER TABLE new.t ADD COLUMN c VARCHAR(20) NOT NULL DEFAULT 'x' AFTER id",), {}, ["ADD_COLUMN"]),
    (("ALTER TABLE new.t ADD COLUMN e ENUM('p','q') NOT NULL",), {}, ["ADD_COLUMN"]),
    (("ALTER TABLE new.t ADD COLUMN g INT AS (a + 1) STORED",), {}, ["ADD_COLUMN"]),
    (("ALTER TABLE new.t MODIFY a BIGINT UNSIGNED NOT NULL DEFAULT 3 COMMENT 'w'",), {}, ["MODIFY_COLUMN"]),
    (("ALTER TABLE new.t MODIFY b VARCHAR(9) CHARACTER SET ascii FIRST",), {}, ["MODIFY_COLUMN"]),
    (("ALTER TABLE new.t MODIFY b VARCHAR(9) CHARACTER SET ascii AFTER c",), {}, ["MODIFY_COLUMN"]),
    (("ALTER TABLE new.t ALTER COLUMN c SET DEFAULT 'y'",), {}, ["MODIFY_COLUMN"]),
    (("ALTER TABLE new.t CHANGE b beta VARCHAR(30)",), {"rename": {"new.t.b": "beta"}}, ["MODIFY_COLUMN"]),
    (("ALTER TABLE new.t ADD UNIQUE KEY u (c, a)",), {}, ["ADD_INDEX"]),
    (("ALTER TABLE new.t ADD KEY k (beta(5)) COMMENT 'k'",), {}, ["ADD_INDEX"]),
    (("ALTER TABLE new.t ALTER INDEX k IGNORED",), {}, ["ALTER_INDEX_VISIBILITY"]),
    (("ALTER TABLE new.t RENAME INDEX k TO kk",), {}, ["RENAME_INDEX"]),
    (("ALTER TABLE new.t DROP INDEX kk",), {}, ["DROP_INDEX"]),
    (("ALTER TABLE new.t DROP INDEX u, ADD UNIQUE KEY u (a)",), {}, ["MULTI_SCHEMA_CHANGE"]),
    (("ALTER TABLE new.t COMMENT 'it''s'",), {}, ["MODIFY_TABLE_COMMENT"]),
    (("ALTER TABLE new.t DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",), {}, ["MODIFY_TABLE_CHARSET"]),
    (("ALTER TABLE new.t ADD CONSTRAINT low CHECK (a < 1000)",), {}, ["ADD_CHECK"]),
    (("ALTER TABLE new.t DROP CONSTRAINT low",), {}, ["DROP_CHECK"]),
    (("ALTER TABLE new.t DROP COLUMN e",), {"drop": ["new.t.e"]}, ["DROP_COLUMN"]),
    (("ALTER TABLE new.t DROP PRIMARY KEY, ADD PRIMARY KEY (c, id)",), {}, ["MULTI_SCHEMA_CHANGE"]),
    (("ALTER TABLE new.t DROP PRIMARY KEY",), {}, ["DROP_PRIMARY_KEY"]),
    (("ALTER TABLE new.t MODIFY id INT NOT NULL AUTO_INCREMENT PRIMARY KEY",), {}, ["MULTI_SCHEMA_CHANGE"]),
    (
        ("ALTER TABLE new.t ADD COLUMN d JSON, DROP COLUMN g, RENAME COLUMN beta TO b, ADD KEY (b), COMMENT 'all'",),
        {"drop": ["new.t.g"], "rename": {"new.t.beta": "b"}},
        ["MULTI_SCHEMA_CHANGE"],
    ),
    (("ALTER TABLE new.t ADD COLUMN made DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",), {}, ["ADD_COLUMN"]),
    (("ALTER TABLE new.t ADD COLUMN y INT DEFAULT 1, ADD COLUMN z VARCHAR(9) DEFAULT 'z'",), {}, ["MULTI_SCHEMA_CHANGE"]),
    (("ALTER TABLE new.t DROP COLUMN y, RENAME COLUMN z TO y",), {"drop": ["new.t.y"], "rename": {"new.t.z": "y"}},
     ["MULTI_SCHEMA_CHANGE"]),
    (("ALTER TABLE new.t DROP COLUMN y",), {"drop": ["new.t.y"]}, ["DROP_COLUMN"]),
    (("CREATE TABLE new.s LIKE new.t", "ALTER TABLE new.t DROP COLUMN d"), {"drop": ["new.t.d"]},
     ["DROP_COLUMN", "CREATE_TABLE"]),
    (("RENAME TABLE new.s TO new.r",), {"rename": {"new.s": "r"}}, ["RENAME_TABLE"]),
    (("RENAME TABLE new.t TO new.x, new.r TO new.t, new.x TO new.r",), {"rename": {"new.t": "r", "new.r": "t"}},
     ["RENAME_TABLES"]),
    (("CREATE DATABASE other", "RENAME TABLE new.r TO other.moved", "ALTER TABLE other.moved ADD z INT"),
     {"rename": {"new.r": "other.moved"}}, ["CREATE_SCHEMA", "RENAME_TABLE", "ADD_COLUMN"]),
    (("CREATE VIEW new.v AS SELECT id FROM new.t",), {}, ["CREATE_VIEW"]),
    (("CREATE OR REPLACE VIEW new.v AS SELECT id, c FROM new.t",), {}, ["CREATE_VIEW"]),
    (("DROP VIEW new.v",), {}, ["DROP_VIEW"]),
    (("CREATE SEQUENCE new.q",), {}, ["CREATE_SEQUENCE"]),
    (("ALTER SEQUENCE new.q INCREMENT BY 5 MAXVALUE 500",), {}, ["ALTER_SEQUENCE"]),
    (("DROP SEQUENCE new.q",), {"drop": ["new.q"]}, ["DROP_SEQUENCE"]),
    (
        (
            "CREATE TABLE new.p (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),"  # noqa: ISC004
            " PARTITION p1 VALUES LESS THAN (20))",
        ),
        {}, ["CREATE_TABLE"],
    ),
    (("ALTER TABLE new.p ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",), {}, ["ADD_PARTITION"]),
    (("ALTER TABLE new.p DROP PARTITION p0",), {"drop": ["new.p.p0"]}, ["DROP_PARTITION"]),
    (
        (
            "ALTER TABLE new.p REORGANIZE PARTITION p1 INTO (PARTITION a VALUES LESS THAN (15),"  # noqa: ISC004
            " PARTITION p1 VALUES LESS THAN (20))",
        ),
        {}, ["REORGANIZE_PARTITION"],
    ),
    (("ALTER TABLE new.p DROP PARTITION a", "ALTER TABLE new.p ADD PARTITION (PARTITION p3 VALUES LESS THAN (40))"),
     {"drop": ["new.p.a"]}, ["DROP_PARTITION", "ADD_PARTITION"]),
    (("DROP TABLE new.p",), {"drop": ["new.p"]}, ["DROP_TABLE"]),
    (("DROP TABLE new.t", "CREATE TABLE new.t (other INT)"), {"drop": ["new.t"]}, ["DROP_TABLE", "CREATE_TABLE"]),
    (("DROP DATABASE new",), {"drop": ["new"]}, ["DROP_SCHEMA"]),
)  # fmt: skip


@pytest.mark.row("S1", "S2", "L6", "O8")
def test_each_change_becomes_the_jobs_that_make_it_on_a_target_and_nothing_else(sides: Sides) -> None:
    sides.sql("CREATE DATABASE old", "CREATE TABLE old.o (id INT PRIMARY KEY)")
    sides.begin(sides.import_())
    versions, ids = [], []
    for statements, said, kinds in CHANGES:
        if not all(map(_spoken, statements)):
            continue
        sides.sql(*statements)
        dry = sides.import_(dry_run=True, **said)
        report = sides.import_(**said)
        assert report.jobs == dry.jobs
        assert sides.follow(report) == kinds, statements
        # Had it left anything out, the next change would bring more jobs than its own.
        assert shown(sides.query) == shown(sides.target.query), statements
        versions += [sides.history.job(job_id).schema_version for job_id, _, _ in report.jobs]  # type: ignore[union-attr]
        ids += [job_id for job_id, _, _ in report.jobs]
    assert sides.import_().jobs == ()
    assert versions == list(range(3, 3 + len(versions)))
    assert ids == sorted(set(ids))


@pytest.mark.row("S1")
def test_what_is_gone_is_asked_for_and_never_guessed(sides: Sides) -> None:
    sides.sql("CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY, x INT)", "CREATE TABLE a.u (id INT)")
    sides.import_()
    sides.sql("ALTER TABLE a.t RENAME COLUMN x TO y")
    with pytest.raises(SchemaError, match=r"a\.t\.x .*--drop a\.t\.x, or --rename OLD=NEW"):
        sides.import_()
    with pytest.raises(UsageError, match=r"a\.nothing"):
        sides.import_(drop=["a.t.x", "a.nothing"])
    sides.import_(rename={"a.t.x": "y"})
    before = tables(sides.history)["a", "t"]
    sides.sql("DROP TABLE a.u", "CREATE TABLE a.w (id INT)")
    with pytest.raises(SchemaError, match=r"a\.u"):
        sides.import_()
    assert tables(sides.history)["a", "t"] == before
    assert sides.import_(rename={"a.u": "w"}).jobs[0][1] == "RENAME_TABLE"
    sides.sql("DROP DATABASE a")
    with pytest.raises(SchemaError, match="--drop a,"):
        sides.import_()
    assert [kind for _, kind, _ in sides.import_(drop=["a"]).jobs] == ["DROP_SCHEMA"]


@pytest.mark.row("S1", "R3")
@pytest.mark.parametrize("own", ["pumphouse_parts", "second_parts"])
def test_what_restores_of_tables_build_on_the_source_is_not_imported(sides: Sides, own: str) -> None:
    """Nor what a killed one has left: its schema half dropped, or empty."""
    known = parts_schemas(Settings.model_validate({"targets": {"copy": {"schema_name": "Second"}}}).written_to)

    def import_() -> ImportReport:
        return import_schema(sides.settings, sides.history, sides.cluster, Asked(), tls=TlsSettings(), own=known)

    sides.sql("CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY)")
    plain = {name: value for name, value in dict(sides.settings).items() if name in TargetSettings.model_fields}
    with TargetConnection.open(TargetSettings.model_validate({**plain, "schema_name": own})) as there:
        there.create_tables()
    sides.sql(
        f"INSERT INTO {own}.checkpoint VALUES ('{PARTS_TASK}', 1, 'incomplete', '', 1, 0, NOW(6))",
        f"CREATE TABLE {own}.part_1 (id INT PRIMARY KEY)",
    )
    report = import_()
    assert [kind for _, kind, _ in report.jobs] == ["CREATE_SCHEMA", "CREATE_TABLE"]
    assert [note for note in report.notes if note.startswith(f"{own}: restores of tables")]
    for left in ("applied", "part_1", "checkpoint", "step", "fence"):
        sides.sql(f"DROP TABLE {own}.{left}")
        assert import_().jobs == ()
    # Without it in the settings it is a database like others; one that was taken so is mended by a drop.
    sides.sql(f"DROP DATABASE {own}", f"CREATE DATABASE {own}")
    assert [kind for _, kind, _ in sides.import_().jobs] == ["CREATE_SCHEMA"]
    with pytest.raises(SchemaError, match=f"--drop {own}"):
        import_()
    asked = Asked(drop=(own,))
    dropped = import_schema(sides.settings, sides.history, sides.cluster, asked, tls=TlsSettings(), own=known)
    assert [kind for _, kind, _ in dropped.jobs] == ["DROP_SCHEMA"]
    assert import_().jobs == ()


@pytest.mark.row("S1", "O8")
def test_a_target_is_no_source_and_a_history_that_has_its_tables_is_mended_by_a_drop(sides: Sides) -> None:
    sides.sql("CREATE DATABASE a", "CREATE TABLE a.t (id INT PRIMARY KEY)")
    sides.import_()
    plain = {name: value for name, value in dict(sides.settings).items() if name in TargetSettings.model_fields}
    itself = TargetSettings.model_validate(plain)
    for sections in ({"restore_target": itself}, {"targets.copy": itself}):
        with pytest.raises(ConfigError, match=rf"the server of \[{next(iter(sections))}\].* not the source"):
            import_schema(sides.settings, sides.history, sides.cluster, Asked(), tls=TlsSettings(), targets=sections)
    # Another server that does not let us in is no reason: nothing is written there either.
    shut = sides.target.settings.model_copy(update={"password": SecretStr("wr0ng"), "user": "nobody"})
    import_schema(sides.settings, sides.history, sides.cluster, Asked(), tls=TlsSettings(), targets={"target": shut})
    there = ServerSettings.model_validate({name: getattr(sides.target.settings, name) for name in plain})
    with pytest.raises(ConfigError, match="has the schema pumphouse, where loads and restores keep their state"):
        import_schema(there, sides.history, sides.cluster, Asked(), tls=TlsSettings())
    # A release before this one took them.
    sides.sql("CREATE DATABASE pumphouse", "CREATE TABLE pumphouse.checkpoint (id INT PRIMARY KEY)")
    sides.import_()
    sides.sql("DROP DATABASE pumphouse")
    with pytest.raises(SchemaError, match="--drop pumphouse"):
        sides.import_()
    assert [kind for _, kind, _ in sides.import_(drop=["pumphouse"]).jobs] == ["DROP_SCHEMA"]
    assert sides.import_().jobs == ()


@pytest.mark.row("S1", "O8")
def test_what_a_user_may_not_see_is_said(sides: Sides) -> None:
    sides.sql(
        "CREATE DATABASE a",
        "CREATE TABLE a.t (id INT PRIMARY KEY, secret INT)",
        "CREATE TABLE a.u (id INT PRIMARY KEY)",
        "CREATE TRIGGER a.tr BEFORE INSERT ON a.t FOR EACH ROW SET NEW.secret = 1",
        "CREATE PROCEDURE a.p() SELECT 1",
    )
    mariadb.new_user(sides.sql, "reader@'%'")
    sides.sql(
        "GRANT SELECT (id) ON a.t TO reader@'%'",
        "GRANT SELECT ON a.u TO reader@'%'",
    )
    root, sides.settings = (
        sides.settings,
        sides.settings.model_copy(update={"user": "reader", "password": SecretStr("pw")}),
    )

    def noted() -> set[str]:
        report = sides.import_(dry_run=True, database="a")
        return {note for note in report.notes if note.startswith("a: ") or "tr" in note}

    with pytest.raises(SchemaError, match=r"a\.t: the user sees some of its columns only"):
        noted()
    sides.sql("GRANT SELECT ON a.t TO reader@'%'")
    (tables_, triggers, events, routines) = sorted(
        noted(), key=lambda n: ["tables", "triggers", "events", "routines"].index(n.split()[1])
    )
    assert "GRANT SELECT ON `a`.*" in tables_
    assert "the rows that they change need binlogs too; GRANT TRIGGER ON `a`.*" in triggers
    assert "GRANT EVENT" in events
    assert "GRANT EXECUTE" in routines
    sides.sql("GRANT SELECT, TRIGGER, EVENT, EXECUTE ON a.* TO reader@'%'")
    assert noted() == {"a.t: the trigger tr is left out; the rows that it changes need binlogs too"}
    sides.sql("CREATE ROLE lookers", "GRANT SELECT, TRIGGER, EVENT, EXECUTE ON a.* TO lookers",
              "REVOKE SELECT, TRIGGER, EVENT, EXECUTE ON a.* FROM reader@'%'",
              "GRANT lookers TO reader@'%'", "SET DEFAULT ROLE lookers FOR reader@'%'")  # fmt: skip
    assert noted() == {"a.t: the trigger tr is left out; the rows that it changes need binlogs too"}
    sides.settings = root
    sides.sql("DROP USER reader@'%'", "DROP ROLE lookers")


@pytest.mark.row("S1")
@pytest.mark.mariadb("a MySQL has no DECIMAL of more than 30 decimals")
def test_a_decimal_that_no_binlog_can_carry_is_refused(sides: Sides) -> None:
    sides.sql("CREATE DATABASE a", "CREATE TABLE a.t (d DECIMAL(38,38), e DECIMAL(65,30), f DECIMAL(40,31))")
    with pytest.raises(SchemaError, match=r"a\.t\.d: binlogs have no decimal\(38,38\).*; a\.t\.f: ") as caught:
        sides.import_()
    assert "a.t.e" not in str(caught.value)
    assert "--skip" in caught.value.hint


@pytest.mark.row("S1")
def test_what_no_job_can_say_is_refused_with_its_name_and_nothing_is_written(sides: Sides) -> None:
    sides.sql(
        "CREATE DATABASE a",
        "CREATE TABLE a.good (id INT PRIMARY KEY)",
        "CREATE TABLE a.shape (id INT PRIMARY KEY, at POINT, who UUID)",
        "CREATE TABLE a.cyrillic (t VARCHAR(9) CHARACTER SET cp1251)",
        "CREATE TABLE a.past (id INT) WITH SYSTEM VERSIONING",
        "CREATE TABLE a.raw (b BINARY(2) DEFAULT x'00ff', c BINARY(4) DEFAULT 'c', d VARBINARY(9) DEFAULT x'610062')",
    )
    with pytest.raises(SchemaError) as caught:
        sides.import_()
    # A MariaDB says of its defaults where bytes are no text; a NUL is text to it.
    of_one = ("a.raw.d",) if is_mysql() else ("a.shape.who: the type uuid", "a.past")
    for name in ("a.shape.at: the type point", "a.cyrillic.t", "a.raw.b", *of_one):
        assert name in str(caught.value)
    assert "a.raw.c" not in str(caught.value)
    with pytest.raises(SchemaError, match=r"no table history\.jobs"):
        list(sides.history.jobs())
    skip = ["a.shape", "a.cyrillic", "a.past", "a.raw"]
    assert [query for _, _, query in sides.import_(skip=skip).jobs][1].startswith("CREATE TABLE `a`.`good`")
    sides.sql("CREATE TABLE a.many (id INT) PARTITION BY HASH (id) PARTITIONS 4")
    sides.import_(skip=skip)
    sides.sql("ALTER TABLE a.many COALESCE PARTITION 2")
    with pytest.raises(SchemaError, match=r"no DDL job can say how a\.many changed.*--skip a\.many"):
        sides.import_(skip=skip)
    sides.sql("DROP TABLE a.many", "INSERT INTO a.good VALUES (1), (2)")
    if is_mysql():
        return  # it has no UUID, and refuses a new column with such a default itself where it writes a binary log
    sides.sql("ALTER TABLE a.good ADD u UUID DEFAULT UUID()")
    with pytest.raises(SchemaError, match=r"a\.good\.u: the type uuid"):
        sides.import_(skip=skip, drop=["a.many"])
    sides.sql("ALTER TABLE a.good DROP u, ADD u VARCHAR(36) DEFAULT UUID()")
    with pytest.raises(SchemaError, match=r"a\.good\.u is new, its default is computed"):
        sides.import_(skip=skip, drop=["a.many"])


@pytest.mark.row("S1")
def test_what_is_left_out_is_named(sides: Sides) -> None:
    sides.sql(
        "CREATE DATABASE a",
        "CREATE TABLE a.parent (id INT PRIMARY KEY, t TEXT, FULLTEXT KEY words (t))",
        "CREATE TABLE a.child (id INT PRIMARY KEY, p INT, CONSTRAINT up FOREIGN KEY (p) REFERENCES a.parent (id)"
        " ON DELETE CASCADE)",
        "CREATE TABLE a.flat (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TRIGGER a.tr BEFORE INSERT ON a.child FOR EACH ROW SET NEW.p = 1",
        "CREATE TABLE a.gone (id INT)",
        "CREATE VIEW a.broken AS SELECT id FROM a.gone",
        "DROP TABLE a.gone",
    )
    report = sides.import_(skip=["a.flta", "a.flat", "b"])
    assert [note for note in report.notes if "--skip" in note] == [
        "a.flta: --skip names it, and the server has nothing of that name",
        "b: --skip names it, and the server has nothing of that name",
    ]
    report = sides.import_()
    for part in (
        "a.parent: the index words is of type FULLTEXT",
        "a.child: the foreign key up is left out; the rows that its CASCADE changes need binlogs too",
        "a.child: the trigger tr is left out",
        "a.flat: its engine is MyISAM",
        "a.broken: the view reads what is not there",
    ):
        assert any(note.startswith(part) for note in report.notes), (part, report.notes)
    assert sides.import_().jobs == ()


@pytest.mark.row("S1", "P3")
def test_rows_of_every_type_are_encoded_with_the_imported_tables_and_read_back(sides: Sides) -> None:
    sides.sql(*everytype.TABLES)
    sides.import_()
    found = tables(sides.history)
    assert found.schema_version == len(list(sides.history.jobs()))
    for table in found.values():
        handle = None if table.pk_is_handle or table.is_common_handle else 7
        for number in range(50):
            old, new = everytype.row(table, number), everytype.row(table, number + 1)
            by_name = {table.columns[k - 1].name: v for k, v in old.items()}
            given = named_row(table, by_name)
            assert given == old
            assert _plain(decode_insert(table, encode_insert(table, given, handle=handle)), old) == old
            assert _plain(decode_delete(table, encode_delete(table, given, handle=handle)), old) == old
            both = decode_update(table, encode_update(table, given, new, handle=handle))
            assert (_plain(both[0], old), _plain(both[1], new)) == (old, new)


def _plain(row: dict[int, Any], given: dict[int, Any]) -> dict[int, Any]:
    """What was read, without NULLs that were not given, JSON and doubles as the codec prints them."""
    out = {}
    for key, value in given.items():
        read = row.get(key)
        out[key] = value if isinstance(value, str) and isinstance(read, str) and value != read else read
    return out
