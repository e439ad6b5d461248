"""A seeded history of SQL alone on a server that is captured: random tables, DDL and DML of all kinds, in sessions that overlap.

What exists is read back from the server after each DDL, so a statement that the server refuses costs nothing, and no
model of the server is needed. `History.done` counts what succeeded, by kind. A session that loses its server comes back.
"""

from __future__ import annotations

import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from pumphouse.dump.source import prepared_xids
from pumphouse.mysql.dsn import Dsn
from tests.support.capturedsql import COLLATIONS, Ddl, Dml, Statement, Table, Types, dressed
from tests.support.capturing import rows_of
from tests.support.images import Image, image, looker
from tests.support.kind import XaGate, is_mysql
from tests.support.waiting import eventually
from tests.tidb.values import Column

_STRICT = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_MODES = (
    _STRICT,
    _STRICT + ",NO_ZERO_IN_DATE,NO_ZERO_DATE",
    "",
    "ANSI_QUOTES," + _STRICT,
    "NO_AUTO_VALUE_ON_ZERO," + _STRICT,
)
_ZONES = ("+00:00", "+05:30", "-08:00", "SYSTEM")
# The server is gone, or is going.
_LOST = {2003, 2006, 2013, 1053, 1077, 1290, 1836, 3169}
# What a MariaDB does in part, and writes to no binlog, where a row of a partition is locked by an XA transaction that is
# prepared and has no session (docs/limits.md): it says that the wait timed out, and the partition is gone.
_IN_PART = ("drop partition", "drop table", "create or replace")
# A deadlock ends the transaction.
_ENDED = {1213, 1614, 1399, 1400, 1402}


class Gate:
    """Transactions pass it; while it is closed none is under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside, self._closed = 0, 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """For one transaction."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Nobody is inside."""
        with self._changed:
            self._closed += 1
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._closed -= 1
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Moment:
    """What the source's SELECT said behind a transaction; ``how`` it was looked at."""

    gtid: str
    image: Image
    how: str


class History:
    """One history. ``open_source``: a session of the source, wherever that is now."""

    def __init__(
        self,
        open_source: Callable[..., Connection[Any]],
        seed: int,
        *,
        alike: bool,
        replicated: bool = False,
        sessions: int = 3,
        turns: int = 18,
        ddls: int = 12,
    ) -> None:
        self.seed, self.gate, self.xa = seed, Gate(), XaGate()
        self.databases = [f"h{seed}_a", f"h{seed}_b"]
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.moments: list[Moment] = []
        self.ddls: list[str] = []  # those that the server took, for whoever looks for what was wrong
        self._open, self._replicated = open_source, replicated
        self._no_prepare: AbstractContextManager[object] = nullcontext() if is_mysql() else threading.Lock()
        self._counting = threading.Lock()
        self._tables: list[Table] = []
        self._marks = 0
        rng = random.Random(seed)
        self._ddl = Ddl(Types(random.Random(rng.random()), alike=alike), self.databases)
        self._rng = random.Random(rng.random())
        # Once there is a second domain, a position does not say which transaction came last.
        self._domains = seed % 25 >= 20 and rng.random() < 0.6
        works = [(self._write, random.Random(rng.random()), turns) for _ in range(sessions)]
        works.append((self._change, random.Random(rng.random()), ddls))
        self._threads = [threading.Thread(target=self._session, args=each) for each in works]
        self._trouble: list[BaseException] = []
        self._stop = threading.Event()

    @property
    def all_databases(self) -> list[str]:
        """Those that it may have made, too."""
        return [*self.databases, f"{self.databases[0]}_c"]

    # -- its life

    def begin(self) -> None:
        """Databases and tables, with some rows."""
        a, b = self.databases
        with self._connected() as connection:
            self._run(connection, "create database", f"CREATE DATABASE `{a}`")
            more = self._rng.choice(("", " CHARACTER SET latin1", " COLLATE utf8mb4_general_ci"))
            self._run(connection, "create database", f"CREATE DATABASE `{b}`{more}")
            for each in self._made(a):
                self._run(connection, "create", each)
            types = Types(self._rng, alike=self._ddl.types.alike)
            for number in range(self._rng.randrange(2, 5)):
                self._attempt(connection, "create table", types.create(f"`{self._rng.choice((a, b))}`.`b{number}`"))
            self._read_back(connection)

    def _made(self, a: str) -> list[str]:
        after = ("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")
        return [
            f"CREATE TABLE `{a}`.marks (n INT PRIMARY KEY)",
            f"CREATE TABLE `{a}`.parent (id INT PRIMARY KEY, v VARCHAR(60))",
            f"CREATE TABLE `{a}`.child (id INT AUTO_INCREMENT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parent (id))",
            f"CREATE TABLE `{a}`.log (id BIGINT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(90), at TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6))",
            f"CREATE TABLE `{a}`.bulk (a INT, b VARCHAR(40), c DECIMAL(12,4), KEY (a))",
            *(
                f"CREATE TRIGGER `{a}`.on_{what} AFTER {what} ON `{a}`.parent FOR EACH ROW"
                f" INSERT INTO `{a}`.log (what) VALUES (CONCAT('{what} ', {row}.id))"
                for what, row in after
            ),
            (
                f"CREATE PROCEDURE `{a}`.work(n INT) BEGIN INSERT INTO `{a}`.bulk VALUES (n, 'by work', 1);"
                f" UPDATE `{a}`.parent SET v = 'by work' WHERE id = n; INSERT INTO `{a}`.log (what) SELECT b FROM `{a}`.bulk LIMIT 2; END"
            ),
        ]

    def start(self) -> None:
        """Sessions begin."""
        for each in self._threads:
            each.start()

    @property
    def runs(self) -> bool:
        """Whether a session has more to do."""
        return any(each.is_alive() for each in self._threads)

    def join(self) -> None:
        """All have done what they had to do."""
        for each in self._threads:
            each.join()
        if self._trouble:
            raise self._trouble[0]

    def end(self, *, within_s: float) -> None:
        """They have so long to come to an end; then each ends behind its transaction."""
        until = time.monotonic() + within_s
        while self.runs and time.monotonic() < until:
            time.sleep(0.05)
        self.stop()
        self.join()

    def stop(self) -> None:
        """End them early."""
        self._stop.set()

    def end_prepared(self) -> None:
        """XA transactions that their sessions have left."""
        with self._connected() as connection:
            for xid in prepared_xids(connection):
                how = self._rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
                with suppress(pymysql.MySQLError):  # it may have been rolled back by then
                    self._attempt(connection, f"xa {how.lower()} at the end", f"XA {how} {xid}")

    def drop(self) -> None:
        """Nothing of it is left."""
        with self._connected() as connection:
            self._run(connection, "", "SET foreign_key_checks = 0")
            for each in self.all_databases:
                sql = f"DROP DATABASE IF EXISTS `{each}`"
                eventually(lambda: self._attempt(connection, "drop database", sql), what=sql)  # noqa: B023 - at once

    def anew(self) -> Statement | None:
        """One DDL that no load goes past; None where none was possible. The dump behind it has no view of what is gone."""
        with self._connected() as connection:
            listed = ", ".join(f"'{each}'" for each in self.all_databases)
            sql = f"SELECT table_schema, table_name FROM information_schema.views WHERE table_schema IN ({listed})"
            for database, view in rows_of(connection, sql):
                try:
                    self._run(connection, "", f"SELECT 1 FROM `{database}`.`{view}` LIMIT 0")
                except pymysql.MySQLError:
                    self._run(connection, "", f"DROP VIEW `{database}`.`{view}`")
            self._read_back(connection)
            for _ in range(5):
                found = self._ddl.anew(self._tables)
                if found is not None and self._attempt(connection, *found):
                    return found
        return None

    # -- looking

    def look(self, dsn: Dsn, *, still: bool = False) -> None:
        """Keep what the source's SELECT says now, behind a transaction that is known; ``still``: between transactions."""
        with suppress(pymysql.MySQLError, OSError):
            still = still or self._domains or self._rng.random() < 0.6
            self.moments.append(self._look_still(dsn) if still else self._look_locked(dsn))

    def _look_still(self, dsn: Dsn) -> Moment:
        """Behind one of its own. Other transactions have numbers of the server's: the last of those is the last of all."""
        with self.gate.closed(), self._connected() as connection:
            self._marks += 1
            mark = f"INSERT INTO `{self.databases[0]}`.marks VALUES ({{}}{self._marks})"
            if is_mysql():
                gtid = f"{self.seed:08x}-0000-4000-8000-000000000001:{self._marks}"
                self._run(connection, "", f"SET gtid_next = '{gtid}'")
                self._run(connection, "mark", mark.format(""))
                self._run(connection, "", "SET gtid_next = AUTOMATIC")
            else:
                self._run(connection, "mark", mark.format(""))
                ((gtid,),) = rows_of(connection, "SELECT @@last_gtid")
            with looker(dsn) as looking:
                found = image(looking, self.all_databases)
            self._run(connection, "mark", mark.format("-"))
            return Moment(gtid, found, "still")

    def _look_locked(self, dsn: Dsn) -> Moment:
        """Amid transactions, behind whichever came last."""
        with self._connected() as connection:
            self._run(connection, "", "SET lock_wait_timeout = 2")
            self._run(connection, "read lock", "FLUSH TABLES WITH READ LOCK")
            gtid = _position(connection)
            with looker(dsn) as looking:
                return Moment(gtid, image(looking, self.all_databases), "locked")

    # -- sessions

    @contextmanager
    def _connected(self) -> Iterator[Connection[Any]]:
        connection = self._open(local_infile=True)
        try:
            self._execute(connection, "SET lock_wait_timeout = 1, innodb_lock_wait_timeout = 1")
            yield connection
        finally:
            with suppress(pymysql.MySQLError, OSError):
                connection.close()

    def _session(self, work: Callable[[Connection[Any], random.Random], None], rng: random.Random, turns: int) -> None:
        lost = time.monotonic() + 120
        try:
            while turns > 0 and not self._stop.is_set():
                try:
                    with self._connected() as connection:
                        self._set(connection, rng)
                        stays = rng.randrange(4, 12)
                        while turns > 0 and stays > 0 and not self._stop.is_set():
                            with self.gate.passing():
                                work(connection, rng)
                            turns, stays, lost = turns - 1, stays - 1, time.monotonic() + 120
                            time.sleep(rng.random() * 0.05)
                except (pymysql.MySQLError, OSError):
                    if time.monotonic() > lost:
                        raise
                    time.sleep(0.2)
        except BaseException as error:
            self._trouble.append(error)

    def _set(self, connection: Connection[Any], rng: random.Random) -> None:
        """What an application's session may have set."""
        self._execute(connection, f"SET sql_mode = '{rng.choice(_MODES)}', time_zone = '{rng.choice(_ZONES)}'")
        # A replica makes a table of another name of a CREATE TABLE … SELECT in such a session, and stops.
        if rng.random() < 0.2 and not self._replicated:
            connection.set_character_set("latin1")
        else:
            connection.set_character_set("utf8mb4", rng.choice(COLLATIONS["utf8mb4"]))
        if is_mysql() and rng.random() < 0.3:
            self._execute(connection, "SET SESSION binlog_transaction_compression = ON")
        if is_mysql() and rng.random() < 0.2:
            self._execute(connection, "SET SESSION sql_generate_invisible_primary_key = ON")
        if not is_mysql() and self._domains and rng.random() < 0.4:
            self._execute(connection, f"SET SESSION gtid_domain_id = {rng.randrange(1, 3)}")

    def _write(self, connection: Connection[Any], rng: random.Random) -> None:
        """One transaction, however it ends."""
        dml, what = Dml(rng, self.databases), rng.random()
        if what < 0.25:
            connection.autocommit(True)
            self._attempt(connection, *dml.draw(self._tables))
        elif what < 0.29:
            connection.autocommit(True)
            self._load_data(connection, rng)
        elif what < 0.33:
            connection.autocommit(True)
            self._temporary(connection, rng)
        elif what < 0.4:
            connection.autocommit(True)
            self._end_one(connection, rng)
        elif what < 0.65:
            connection.autocommit(True)
            self._xa(connection, rng, dml)
        else:
            connection.autocommit(False)
            self._execute(
                connection, rng.choice(("BEGIN", "START TRANSACTION", "START TRANSACTION WITH CONSISTENT SNAPSHOT"))
            )
            self._several(connection, rng, dml)
            if rng.random() < 0.15:
                connection.rollback()
                self._count("rollback")
            else:
                connection.commit()
                self._count("commit")

    def _several(self, connection: Connection[Any], rng: random.Random, dml: Dml) -> None:
        """Some statements, with savepoints."""
        for _ in range(rng.choice((1, 2, 3, 5, 9))):
            self._attempt(connection, *dml.draw(self._tables))
            if not is_mysql() and rng.random() < 0.03:  # a MySQL with GTIDs has it outside of transactions alone
                self._temporary(connection, rng)
            if rng.random() < 0.25:
                self._execute(connection, "SAVEPOINT s")
                self._attempt(connection, *dml.draw(self._tables))
                if rng.random() < 0.3:
                    self._execute(connection, "SAVEPOINT t")
                    self._attempt(connection, *dml.draw(self._tables))
                back = rng.choice(("ROLLBACK TO SAVEPOINT s", "ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s"))
                self._attempt(connection, "rollback to savepoint" if "ROLLBACK" in back else "release savepoint", back)

    def _xa(self, connection: Connection[Any], rng: random.Random, dml: Dml) -> None:
        xid = f"X'{rng.randbytes(9).hex()}',X'{rng.randbytes(2).hex()}',{rng.randrange(1 << 30)}"
        self._execute(connection, f"XA START {xid}")
        try:
            self._several(connection, rng, dml)
            self._execute(connection, f"XA END {xid}")
            # What is prepared holds locks on a replica that others wait for there alone, for ever.
            how = 0.0 if self._replicated else rng.random()
            if how < 0.2:
                commit = f"XA COMMIT {xid} ONE PHASE"
                with self.xa.around(commit):
                    self._attempt(connection, "xa one phase", commit)
                return
            if how < 0.9:
                prepare = f"XA PREPARE {xid}"
                with self._no_prepare, self.xa.around(prepare):
                    self._execute(connection, prepare)
                self._count("xa prepare")
            if how < 0.5:
                self._attempt(connection, "xa commit", f"XA COMMIT {xid}")
            elif how < 0.65 or how >= 0.9:
                self._attempt(connection, "xa rollback", f"XA ROLLBACK {xid}")
            else:
                connection.close()  # another session ends it
        except pymysql.MySQLError:
            with suppress(pymysql.MySQLError):
                self._execute(connection, f"XA END {xid}")
            with suppress(pymysql.MySQLError):
                self._execute(connection, f"XA ROLLBACK {xid}")
            raise

    def _end_one(self, connection: Connection[Any], rng: random.Random) -> None:
        """One that another session left; one that has its session yet is not this one's to end."""
        if xids := prepared_xids(connection):
            how = rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            self._attempt(connection, f"xa {how.lower()} by another", f"XA {how} {rng.choice(xids)}")

    def _load_data(self, connection: Connection[Any], rng: random.Random) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            words = ("x", "ÿ", "中", r"\N")
            rows = [
                f"{rng.randrange(40)}\t{rng.choice(words)}\t{rng.random():.4f}" for _ in range(rng.randrange(1, 300))
            ]
            file.write("\n".join(rows) + "\n")
            file.flush()
            self._attempt(
                connection,
                "load data",
                f"LOAD DATA LOCAL INFILE '{Path(file.name)}' INTO TABLE `{self.databases[0]}`.bulk CHARACTER SET utf8mb4 (a, b, c)",
            )

    def _temporary(self, connection: Connection[Any], rng: random.Random) -> None:
        a = self.databases[0]
        name = f"`{a}`.`{rng.choice(('tmp', 'bulk'))}`"  # it may hide a table
        engine = rng.choice(("", " ENGINE = MyISAM", " ENGINE = InnoDB"))
        made = self._attempt(
            connection,
            "temporary table",
            f"CREATE TEMPORARY TABLE {name}{engine} AS SELECT id AS n, v AS w FROM `{a}`.parent",
        )
        self._attempt(connection, "into a temporary table", f"INSERT INTO {name} VALUES (1, 'temporary')")
        self._attempt(connection, "from a temporary table", f"INSERT INTO `{a}`.log (what) SELECT w FROM {name}")
        if made and rng.random() < 0.5:
            change = rng.choice(("TRUNCATE TABLE {}", "ALTER TABLE {} ADD COLUMN more INT", "CREATE INDEX i ON {} (n)"))
            self._attempt(connection, "change of a temporary table", change.format(name))
        if made and rng.random() < 0.5:
            self._attempt(connection, "drop temporary table", f"DROP TABLE {name}")
        self._attempt(connection, "drop temporary table", f"DROP TEMPORARY TABLE IF EXISTS {name}")

    def _change(self, connection: Connection[Any], rng: random.Random) -> None:
        """One DDL that the server takes."""
        connection.autocommit(True)
        began = time.monotonic()
        for _ in range(8):
            if time.monotonic() - began > 1:  # somebody holds the tables
                break
            if rng.random() < 0.2:
                self._execute(connection, f"SET foreign_key_checks = {rng.randrange(2)}")
            kind, sql = self._ddl.draw(self._tables)
            if rng.random() < 0.3:  # names of the default database
                database = rng.choice(self.databases)
                with suppress(pymysql.MySQLError):
                    connection.select_db(database)
                    sql = sql.replace(f"`{database}`.", "")
            if self._changed(connection, kind, dressed(rng, sql)):
                break
        self._read_back(connection)

    def _changed(self, connection: Connection[Any], kind: str, sql: str) -> bool:
        """Whether the server took a DDL, and was asked."""
        of_parts = any(each.partitions and f"`{each.name}`" in sql for each in self._tables)
        if is_mysql() or not (kind == "drop database" or (of_parts and kind.startswith(_IN_PART))):
            return self._attempt(connection, kind, sql, ddl=True)
        with self._no_prepare:
            return not prepared_xids(connection) and self._attempt(connection, kind, sql, ddl=True)

    # -- statements

    def _execute(self, connection: Connection[Any], sql: str) -> int:
        with connection.cursor() as cursor:
            count = cursor.execute(sql)
            cursor.fetchall()
            while cursor.nextset():
                pass
            return int(count)

    def _run(self, connection: Connection[Any], kind: str, sql: str) -> None:
        """One that must succeed."""
        self._execute(connection, sql)
        if kind:
            self._count(kind)

    def _attempt(self, connection: Connection[Any], kind: str, sql: str, *, ddl: bool = False) -> bool:
        """One that the server may refuse. It raises where the transaction, or the session, has ended by that."""
        try:
            count = self._execute(connection, sql)
        except UnicodeEncodeError:
            return False  # the session's character set has no such sign
        except pymysql.MySQLError as error:
            code = error.args[0] if error.args else 0
            with self._counting:
                self.failed[f"{kind.partition(', ')[0]}: {code}"] += 1
            if (
                code in _LOST
                or code in _ENDED
                or not isinstance(code, int)
                or isinstance(error, pymysql.err.InterfaceError)
            ):
                raise
            return False
        if ddl:
            self.ddls.append(sql)
        if ddl or count or kind.startswith(("xa", "rollback", "create", "drop", "temporary")):
            for each in kind.split(", "):
                self._count(f"ddl: {each}" if ddl else each)
        return True

    def _count(self, kind: str) -> None:
        with self._counting:
            self.done[kind] += 1

    def _read_back(self, connection: Connection[Any]) -> None:
        """What there is now, but the tables that stay as they are."""
        names = ", ".join(f"'{each}'" for each in self.all_databases)
        found: dict[tuple[str, str], Table] = {}
        fixed = {"marks", "parent", "child", "log"}

        for database, name in rows_of(
            connection,
            f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA IN ({names})"
            " AND TABLE_TYPE = 'BASE TABLE' ORDER BY 1, 2",
        ):
            if name not in fixed:
                found[database, name] = Table(database, name)
        told = "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS"
        checks = set() if is_mysql() else set(rows_of(connection, told))
        for database, table, name, kind, charset, null, generated, key, automatic in rows_of(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IFNULL(CHARACTER_SET_NAME, ''),"
            " IS_NULLABLE = 'YES', COALESCE(GENERATION_EXPRESSION, ''), COLUMN_KEY IN ('PRI', 'UNI'), EXTRA LIKE '%auto_%'"
            f" FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN ({names}) ORDER BY 1, 2, ORDINAL_POSITION",
        ):
            if (database, table) in found:
                # A CREATE … SELECT on a MariaDB makes plain text of it, which no load onto another kind makes JSON again.
                json = self._ddl.types.alike or (database, table, f"json_valid(`{name}`)") in checks
                kind = "json" if kind == "longtext" and name.startswith("j") and json else str(kind)
                found[database, table].columns.append(
                    Column(name, kind, str(charset), bool(null), str(generated), bool(key), bool(automatic))
                )
        for column, view, field_name in (
            ("INDEX_NAME", "STATISTICS", "indexes"),
            ("CONSTRAINT_NAME", "TABLE_CONSTRAINTS", "keys"),
        ):
            more = " AND CONSTRAINT_TYPE IN ('FOREIGN KEY', 'CHECK')" if field_name == "keys" else ""
            for database, table, name in rows_of(
                connection,
                f"SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME, {column} FROM information_schema.{view}"
                f" WHERE TABLE_SCHEMA IN ({names}){more} ORDER BY 1, 2, 3",
            ):
                if (database, table) in found:
                    getattr(found[database, table], field_name).append(name)
        for database, table, name, method in rows_of(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME, PARTITION_NAME, PARTITION_METHOD FROM information_schema.PARTITIONS"
            f" WHERE TABLE_SCHEMA IN ({names}) AND PARTITION_NAME IS NOT NULL ORDER BY 1, 2, PARTITION_ORDINAL_POSITION",
        ):
            if (database, table) in found:
                found[database, table].partitions.append(name)
                found[database, table].method = str(method)
        self._tables = [each for each in found.values() if each.columns]


def _position(connection: Connection[Any]) -> str:
    """The GTID of the last transaction."""
    if not is_mysql():
        ((gtid,),) = rows_of(connection, "SELECT @@global.gtid_binlog_pos")
        if "," not in gtid:
            return str(gtid)
    else:
        ((executed, uuid),) = rows_of(connection, "SELECT @@global.gtid_executed, @@server_uuid")
        own = [each.strip() for each in str(executed).split(",") if each.strip().startswith(str(uuid))]
        if own:
            return f"{uuid}:{re.split('[-:]', own[0])[-1]}"
    raise pymysql.MySQLError("which transaction came last is not known")
