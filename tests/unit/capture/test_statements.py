"""What a DDL statement says beside its outcome."""

from __future__ import annotations

import pytest

from pumphouse.capture.statements import Does, Meaning, meaning, unencrypted
from pumphouse.errors import CaptureRefused


def of(text: str, **options: bool) -> Meaning:
    return meaning(text, "d", **options)


@pytest.mark.row("Q3")
@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("RENAME TABLE a TO b", {("d", "a"): ("d", "b")}),
        ("RENAME TABLE a TO tmp, b TO a, tmp TO b", {("d", "a"): ("d", "b"), ("d", "b"): ("d", "a")}),
        ("rename tables IF EXISTS `a``b` WAIT 5 TO e.`c`", {("d", "a`b"): ("e", "c")}),
        ("ALTER TABLE a RENAME b, ADD x INT", {("d", "a"): ("d", "b")}),
        ("ALTER ONLINE TABLE e.a ADD x INT, RENAME AS f.b", {("e", "a"): ("f", "b")}),
        ("ALTER TABLE e.a RENAME b", {("e", "a"): ("d", "b")}),
        ("ALTER TABLE a RENAME TO a", {}),
        ("ALTER TABLE a RENAME INDEX x TO y", {}),
        ("/* RENAME TABLE x TO y */ ALTER TABLE a ADD b VARCHAR(9) DEFAULT 'RENAME TO c', COMMENT ', RENAME TO q'", {}),
    ],
)
def test_renames(text: str, renamed: dict[tuple[str, str], tuple[str, str]]) -> None:
    assert of(text).renamed == renamed


@pytest.mark.row("Q3")
@pytest.mark.parametrize(
    ("text", "columns", "dropped"),
    [
        ("ALTER TABLE t CHANGE a b INT", [("a", "b")], []),
        ("ALTER TABLE t CHANGE COLUMN IF EXISTS a A INT", [], []),
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", [("a", "b"), ("b", "a")], []),
        ("ALTER TABLE t DROP a, DROP COLUMN IF EXISTS `b c`, DROP PRIMARY KEY, DROP KEY k", [], ["a", "b c"]),
        ("ALTER TABLE t DROP PARTITION p1, p2", [], ["p1", "p2"]),
        ("alter table t drop partition p1, p2", [], ["p1", "p2"]),
        ("ALTER TABLE t DROP system, DROP period", [], ["system", "period"]),
        ("ALTER TABLE t DROP SYSTEM VERSIONING, DROP PERIOD FOR p", [], []),
        ("ALTER TABLE t ADD (x INT, y INT), MODIFY z DECIMAL(10, 2)", [], []),
        ("ALTER TABLE t DROP CONSTRAINT c, DROP CHECK d, DROP FOREIGN KEY f", [], []),
    ],
)
def test_columns_and_partitions(text: str, columns: list[tuple[str, str]], dropped: list[str]) -> None:
    found = of(text)
    assert (found.columns, found.dropped, found.table) == (columns, dropped, ("d", "t"))


@pytest.mark.row("Q3")
def test_what_is_emptied_created_dropped_or_made_anew() -> None:
    assert of("TRUNCATE e.t").emptied == [("e", "t")]
    assert of("truncate table t").emptied == [("d", "t")]
    assert of("CREATE OR REPLACE TABLE t (a INT)").emptied == [("d", "t")]
    assert of("CREATE TABLE IF NOT EXISTS t (a INT)").creates
    assert not of("RENAME TABLE a TO b").creates
    assert of("DROP TABLE IF EXISTS a, b").drops
    assert of("DROP DATABASE d").drops
    assert not of("DROP INDEX i ON t").drops
    assert of("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u").anew == [("d", "t"), ("d", "u")]
    assert of("ALTER TABLE t TRUNCATE PARTITION p").anew == [("d", "t")]
    assert of("ALTER TABLE t IMPORT TABLESPACE").anew == [("d", "t")]
    assert of("SET STATEMENT max_statement_time = 1 FOR ALTER TABLE t DROP a").dropped == ["a"]
    assert of('ALTER TABLE "t" DROP "a"', ansi_quotes=True).dropped == ["a"]
    assert of(r"ALTER TABLE t ADD a CHAR(1) DEFAULT '\', DROP b", backslash=False).dropped == ["b"]
    assert of(r"ALTER TABLE t ADD a CHAR(9) DEFAULT '\', DROP b'").dropped == []


@pytest.mark.row("Q3")
@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("GRANT ALL ON *.* TO x", Does.NOTHING),
        ("CREATE TEMPORARY TABLE t (a INT)", Does.NOTHING),
        ("DROP /*!40005 TEMPORARY */ TABLE IF EXISTS t", Does.NOTHING),
        ("CREATE DEFINER=`a`@`%` TRIGGER t BEFORE INSERT ON x FOR EACH ROW SET @a = 1", Does.NOTHING),
        ("CREATE DEFINER = CURRENT_USER() PROCEDURE p() SELECT 1", Does.ROUTINE),
        ("CREATE ALGORITHM = MERGE DEFINER=`view`@`table` SQL SECURITY DEFINER VIEW v AS SELECT 1", Does.CHANGES),
        ("/*!50003 CREATE */ /*!50017 DEFINER=`r`@`h` */ /*!50003 TRIGGER t AFTER UPDATE ON x FOR EACH ROW BEGIN END */",
         Does.NOTHING),
        ("CREATE USER table@view", Does.NOTHING),
        ("ALTER DEFINER=a@db1.example.com EVENT e DISABLE", Does.NOTHING),
        ("CREATE OR REPLACE AGGREGATE FUNCTION f RETURNS INT SONAME 'f.so'", Does.ROUTINE),
        ("/*M!999999\\- enable the sandbox mode */ -- a dump", Does.NOTHING),
        ("/*M!999999\\- enable the sandbox mode */ CREATE TABLE t (a INT)", Does.CHANGES),
        ("CREATE SPATIAL INDEX i ON t (a)", Does.CHANGES),
        ("CREATE SPATIAL REFERENCE SYSTEM 1 NAME 'x'", Does.NOTHING),
        ("-- a\n# b\n  create unique index i on t (a)", Does.CHANGES),
    ],
)  # fmt: skip
def test_what_the_shadow_has_to_run(text: str, does: Does) -> None:
    assert of(text).does is does


@pytest.mark.parametrize(
    "text",
    ["FROBNICATE TABLE t", "ALTER", "RENAME TABLE a", "SET STATEMENT x = 1", "CREATE", "'x' ALTER TABLE t ADD a INT",
     "`x` ALTER TABLE t ADD a INT", "123 foo", "(SELECT 1)", "-- a\n'x'", "USE d; ALTER TABLE t ADD a INT",
     "SET STATEMENT x = 1 FOR", "CREATE TABEL t (role INT)", "ALTER 'x' USER a"],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(text: str) -> None:
    with pytest.raises(CaptureRefused, match="none that is known"):
        of(text)
    with pytest.raises(CaptureRefused, match="in no database"):
        meaning("TRUNCATE t", "")


@pytest.mark.row("Q3")
@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("CREATE TABLE `t` (\n  `a` int\n) ENGINE=InnoDB `ENCRYPTED`=YES `ENCRYPTION_KEY_ID`=4 COMMENT='ENCRYPTED=YES'",
         "CREATE TABLE `t` (\n  `a` int\n) ENGINE=InnoDB `ENCRYPTED`=NO `ENCRYPTION_KEY_ID`=1 COMMENT='ENCRYPTED=YES'"),
        ("CREATE TABLE t (a INT) ENGINE=InnoDB /*!80016 ENCRYPTION='Y' */", "CREATE TABLE t (a INT) ENGINE=InnoDB /*!80016 ENCRYPTION='N' */"),
        ("ALTER TABLE t ADD encrypted INT, encryption 'Y', encrypted = `yes`", "ALTER TABLE t ADD encrypted INT, encryption 'N', encrypted = NO"),
        ('CREATE DATABASE d ENCRYPTION = "Y"', "CREATE DATABASE d ENCRYPTION = 'N'"),
        ("CREATE TABLE t (encrypted ENUM('YES') COMMENT 'ü', CHECK (encrypted = 'YES')) Encrypted=on",
         "CREATE TABLE t (encrypted ENUM('YES') COMMENT 'ü', CHECK (encrypted = 'YES')) Encrypted=NO"),
        ("CREATE VIEW v AS SELECT encrypted = 'YES' FROM t", None),
        ("ALTER TABLE t DROP encrypted", None),
        ("ALTER TABLE t ADD a INT COMMENT 'ENCRYPTION=''Y'''", None),
        ("ALTER TABLE t ENCRYPTED=", None),
        ("ALTER TABLE t ENCRYPTION", None),
    ],
)  # fmt: skip
def test_a_shadow_has_no_keys(text: str, plain: str | None) -> None:
    assert unencrypted(text) == (plain or text)


@pytest.mark.row("Q3")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("CREATE TABLE IF NOT EXISTS e.t (a INT)", {("e", "t")}),
        ("CREATE OR REPLACE SEQUENCE s", {("d", "s")}),
        ("CREATE UNIQUE INDEX IF NOT EXISTS `on` USING BTREE ON e.t (a)", {("e", "t")}),
        ("DROP INDEX i ON t", {("d", "t")}),
        ("ALTER TABLE t RENAME e.t", {("d", "t"), ("e", "t")}),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u", {("d", "t"), ("d", "u")}),
        ("DROP TABLE a, e.b", {("d", "a"), ("e", "b")}),
        ("CREATE SPATIAL INDEX i ON t (a)", {("d", "t")}),
        ("RENAME TABLE a TO b", {("d", "a"), ("d", "b")}),
        ("TRUNCATE t", {("d", "t")}),
        ("DROP DATABASE d", set()),
        ("CREATE DATABASE e", set()),
        ("CREATE VIEW v AS SELECT 1", set()),
    ],
)
def test_the_tables_that_a_statement_is_about(text: str, names: set[tuple[str, str]]) -> None:
    assert of(text).names == names


def test_what_is_in_no_database_is_the_shadows_to_judge() -> None:
    for text in ("CREATE TABLE t (a INT)", "CREATE INDEX i ON t (a)", "DROP INDEX i"):
        assert meaning(text, "").names == set()
