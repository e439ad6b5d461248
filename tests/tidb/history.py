"""A seeded history on a real TiDB: schemas, DDL and DML of every kind, in sessions that overlap.

What exists is read back from the server after each DDL, so a statement that TiDB refuses costs nothing and no model of
TiDB is needed. A seed gives the same statements; where they meet in time, TiDB decides. Every statement is in `script`.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pymysql
from pymysql.connections import Connection

from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Action
from tests.support.tidb import TidbCluster
from tests.tidb.values import Column, cast_is_known, literal

# Types of DDL job that these histories and the scripts beside them make of this TiDB, and types of column.
ACTIONS = frozenset(
    {
        Action.CREATE_SCHEMA, Action.DROP_SCHEMA, Action.CREATE_TABLE, Action.DROP_TABLE, Action.ADD_COLUMN,
        Action.DROP_COLUMN, Action.ADD_INDEX, Action.DROP_INDEX, Action.ADD_FOREIGN_KEY, Action.DROP_FOREIGN_KEY,
        Action.TRUNCATE_TABLE, Action.MODIFY_COLUMN, Action.REBASE_AUTO_ID, Action.RENAME_TABLE,
        Action.SET_DEFAULT_VALUE, Action.SHARD_ROW_ID, Action.MODIFY_TABLE_COMMENT, Action.RENAME_INDEX,
        Action.ADD_PARTITION, Action.DROP_PARTITION, Action.CREATE_VIEW, Action.MODIFY_TABLE_CHARSET,
        Action.TRUNCATE_PARTITION, Action.DROP_VIEW, Action.RECOVER_TABLE, Action.MODIFY_SCHEMA_CHARSET,
        Action.ADD_PRIMARY_KEY, Action.DROP_PRIMARY_KEY, Action.CREATE_SEQUENCE, Action.ALTER_SEQUENCE,
        Action.DROP_SEQUENCE, Action.MODIFY_AUTO_ID_CACHE, Action.REBASE_AUTO_RANDOM, Action.ALTER_INDEX_VISIBILITY,
        Action.EXCHANGE_PARTITION, Action.RENAME_TABLES, Action.ALTER_TABLE_ATTRIBUTES,
        Action.ALTER_PARTITION_ATTRIBUTES, Action.CREATE_PLACEMENT_POLICY, Action.ALTER_PLACEMENT_POLICY,
        Action.DROP_PLACEMENT_POLICY, Action.ALTER_PARTITION_PLACEMENT, Action.MODIFY_SCHEMA_PLACEMENT,
        Action.ALTER_TABLE_PLACEMENT, Action.ALTER_CACHE_TABLE, Action.ALTER_NOCACHE_TABLE,
        Action.MULTI_SCHEMA_CHANGE, Action.RECOVER_SCHEMA, Action.REORGANIZE_PARTITION, Action.ALTER_TTL_INFO,
        Action.ALTER_TTL_REMOVE, Action.CREATE_RESOURCE_GROUP, Action.ALTER_RESOURCE_GROUP,
        Action.DROP_RESOURCE_GROUP,
    }
)  # fmt: skip
TYPES = frozenset(
    {
        "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit", "char", "varchar",
        "binary", "varbinary", "tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob",
        "longblob", "date", "time", "datetime", "timestamp", "year", "enum", "set", "json",
    }
)  # fmt: skip

_COLLATIONS = {
    "utf8mb4": ("utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci"),
    "utf8": ("utf8_bin", "utf8_general_ci"),
    "latin1": ("latin1_bin",),
    "ascii": ("ascii_bin",),
    "gbk": ("gbk_bin", "gbk_chinese_ci"),
}
_MODES = (
    "",
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO",
    "ANSI_QUOTES",
    "NO_BACKSLASH_ESCAPES",
)
_COLUMNS = (
    "SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, IFNULL(c.CHARACTER_SET_NAME, ''), c.IS_NULLABLE = 'YES', "
    "IFNULL(c.GENERATION_EXPRESSION, ''), c.COLUMN_KEY IN ('PRI', 'UNI'), c.EXTRA LIKE '%%auto_%%' "
    "FROM information_schema.COLUMNS c WHERE c.TABLE_SCHEMA IN (%s, %s) ORDER BY 1, 2, c.ORDINAL_POSITION"
)


@dataclass
class Table:
    """A table as it is now."""

    database: str
    name: str
    columns: list[Column]
    indexes: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    method: str = ""

    @property
    def full(self) -> str:
        return f"`{self.database}`.`{self.name}`"


class History:
    """``run()`` plays the history; ``moments`` are timestamps at which the source can be read again."""

    def __init__(
        self,
        tidb: TidbCluster,
        seed: int,
        *,
        steps: int = 150,
        sessions: int = 3,
        without: str = "",
        known_casts: bool = False,
    ) -> None:
        """``without``: of DDL to leave out; ``known_casts``: only changes of type that any target makes as TiDB does."""
        self.tidb = tidb
        self._known_casts = known_casts
        self._without = re.compile(without) if without else None
        self.seed = seed
        self.steps = steps
        self.rng = random.Random(seed)
        self.databases = [f"h{seed}_a", f"h{seed}_b"]
        self.script: list[str] = []
        self.moments: list[Tso] = []
        self.done = 0
        self._mode = self.rng.choice(_MODES)
        self._locks = self.rng.choice(("pessimistic", "pessimistic", "optimistic"))
        self._tables: list[Table] = []
        self._gone: list[str] = []  # full names of tables that were there once
        self._names = 0
        self._lock = threading.Lock()
        self._servers = len(tidb.sql_ports)
        self._sessions = [self._session(number) for number in range(sessions)]
        self._open = [False] * sessions
        self._ddl = self._session(0)
        self._look = tidb.connect()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ddl")
        self._running: Future[None] | None = None

    # ---- the run -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All of it. Nothing of it is open afterwards."""
        try:
            for name in self.databases:
                charset = self.rng.choice(("", "", " CHARACTER SET latin1", " COLLATE utf8mb4_general_ci"))
                self._say(self._ddl, "ddl", f"CREATE DATABASE `{name}`{charset}")
            for _ in range(4):
                self._say(self._ddl, "ddl", self._allowed(self._create_table))
            self._read_back()
            for _ in range(self.steps):
                self._step()
            self._join()
            for number, connection in enumerate(self._sessions):
                self._say(connection, f"s{number}", "COMMIT")
            self.moments.append(self.tidb.tso())
        finally:
            self._pool.shutdown()
            for connection in (*self._sessions, self._ddl, self._look):
                connection.close()

    def drop(self) -> None:
        """Its databases are gone from the source."""
        with self.tidb.connect() as connection, connection.cursor() as cursor:
            for name in (*self.databases, f"h{self.seed}_c"):
                cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
            cursor.execute(f"DROP PLACEMENT POLICY IF EXISTS `h{self.seed}`")

    def _session(self, number: int) -> Connection:
        connection = self.tidb.connect(number % self._servers)
        with connection.cursor() as cursor:
            cursor.execute(
                "SET innodb_lock_wait_timeout = 1, tidb_enable_list_partition = 1, cte_max_recursion_depth = 10"
            )
            cursor.execute(f"SET sql_mode = '{self._mode}'")
            cursor.execute("SET tidb_allow_remove_auto_inc = 1, tidb_multi_statement_mode = 'ON'")
            cursor.execute(f"SET tidb_txn_mode = '{self._locks}', allow_auto_random_explicit_insert = 1")
        return connection

    def _say(self, connection: Connection, who: str, sql: str) -> bool:
        began = time.monotonic()
        with self._lock:
            at = len(self.script)
            self.script.append(f"-- {who}\n{sql};")
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                cursor.fetchall()
        except pymysql.MySQLError as error:
            with self._lock:
                self.script[at] += f"  -- {error.args} {time.monotonic() - began:.1f} s"
            return False
        self.done += 1
        return True

    def _step(self) -> None:
        roll = self.rng.random()
        if roll < 0.06:
            # While a DDL runs TiDB itself does not know which columns there are at a moment.
            if self._running is None or self._running.done():
                self.moments.append(self.tidb.tso())
        elif roll < 0.28:
            self._start_ddl()
        else:
            self._dml(self.rng.randrange(len(self._sessions)))

    def _start_ddl(self) -> None:
        """A DDL of its own thread, so that what is under way meets it in the middle."""
        self._join()
        sql = self._allowed(self._some_ddl)
        # TiDB loses what others commit into the one, and uniqueness of their keys in the other (docs/interop.md).
        alone = "TRUNCATE PARTITION" in sql or "REORGANIZE PARTITION" in sql
        for number in [number for number, opened in enumerate(self._open) if opened and alone]:
            self._end(number)
        if sql:
            self._running = self._pool.submit(lambda: void(self._say(self._ddl, "ddl", sql)))
            if alone or (self.rng.random() < 0.5 and not any(self._open)):
                self._join()

    def _allowed(self, make: Callable[[], str]) -> str:
        sql = make()
        while self._without is not None and self._without.search(sql):
            sql = make()
        return sql

    def _join(self) -> None:
        if self._running is None:
            return
        if not self._running.done():
            # With metadata locks it may wait for one of ours.
            for number, opened in enumerate(self._open):
                if opened:
                    self._end(number)
        self._running.result(timeout=300)
        self._running = None
        self._read_back()

    def _end(self, number: int) -> None:
        self._say(self._sessions[number], f"s{number}", self.rng.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))
        self._open[number] = False

    def _read_back(self) -> None:
        found: dict[tuple[str, str], Table] = {}
        with self._look.cursor() as cursor:
            # All tables at once: TiDB walks through all of them for each question.
            cursor.execute(
                "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES "
                "WHERE TABLE_SCHEMA IN (%s, %s) AND TABLE_TYPE = 'BASE TABLE' ORDER BY 1, 2",
                self.databases,
            )
            for database, name in cursor.fetchall():
                found[database, name] = Table(database, name, [])
            cursor.execute(_COLUMNS, self.databases)
            for database, name, column, kind, charset, null, generated, key, automatic in cursor.fetchall():
                if (database, name) in found:
                    found[database, name].columns.append(
                        Column(column, kind, charset, bool(null), generated, bool(key), bool(automatic))
                    )
            cursor.execute(
                "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME, KEY_NAME FROM information_schema.TIDB_INDEXES "
                "WHERE TABLE_SCHEMA IN (%s, %s) ORDER BY 1, 2, 3",
                self.databases,
            )
            for database, name, index in cursor.fetchall():
                if (database, name) in found:
                    found[database, name].indexes.append(index)
            cursor.execute(
                "SELECT TABLE_SCHEMA, TABLE_NAME, PARTITION_NAME, PARTITION_METHOD FROM information_schema.PARTITIONS "
                "WHERE TABLE_SCHEMA IN (%s, %s) AND PARTITION_NAME IS NOT NULL ORDER BY 1, 2, PARTITION_ORDINAL_POSITION",
                self.databases,
            )
            for database, name, partition, method in cursor.fetchall():
                if (database, name) in found:
                    found[database, name].partitions.append(partition)
                    found[database, name].method = method
        # One that a DDL of another session made meanwhile may have no columns yet.
        tables = [table for table in found.values() if table.columns]
        left = {table.full for table in tables}
        self._gone += [table.full for table in self._tables if table.full not in left]
        self._tables = tables

    # ---- DML ---------------------------------------------------------------------------------------------------

    def _dml(self, number: int) -> None:
        connection, rng = self._sessions[number], self.rng
        if not self._open[number] and rng.random() < 0.4:
            self._say(connection, f"s{number}", "BEGIN")
            self._open[number] = True
        elif self._open[number] and rng.random() < 0.25:
            self._end(number)
            return
        if not self._tables:
            return
        self._say(connection, f"s{number}", self._change(rng.choice(self._tables)))

    def _change(self, table: Table) -> str:
        rng = self.rng
        written = [c for c in table.columns if not c.generated]
        if not written:
            return f"DELETE FROM {table.full} LIMIT 1"
        kind = rng.random()
        if kind < 0.55:
            chosen = [c for c in written if not (c.automatic and rng.random() < 0.7)]
            if rng.random() < 0.1 and len(chosen) > 1:
                chosen = rng.sample(chosen, len(chosen) - 1)
            rows = ", ".join(
                f"({', '.join(literal(rng, c) for c in chosen)})" for _ in range(rng.choice((1, 1, 2, 3, 8)))
            )
            verb = rng.choice(("INSERT", "INSERT", "INSERT IGNORE", "REPLACE"))
            names = ", ".join(f"`{c.name}`" for c in chosen)
            tail = ""
            if verb == "INSERT" and rng.random() < 0.2 and chosen:
                column = rng.choice(chosen)
                tail = f" ON DUPLICATE KEY UPDATE `{column.name}` = {literal(rng, column)}"
            return f"{verb} INTO {table.full} ({names}) VALUES {rows}{tail}"
        where = self._where(table)
        if kind < 0.85:
            some = rng.sample(written, min(len(written), rng.choice((1, 1, 2))))
            sets = ", ".join(f"`{c.name}` = {literal(rng, c)}" for c in some)
            return f"UPDATE {table.full} SET {sets}{where} LIMIT {rng.choice((1, 1, 2, 5))}"
        return f"DELETE FROM {table.full}{where} LIMIT {rng.choice((1, 2, 4))}"

    def _where(self, table: Table) -> str:
        rng = self.rng
        if rng.random() < 0.4:
            return ""
        column = rng.choice(table.columns)
        if column.type.startswith(("json", "set", "enum", "bit")):
            return f" WHERE `{column.name}` IS {rng.choice(('', 'NOT '))}NULL"
        value = literal(rng, column)
        return "" if value == "NULL" else f" WHERE `{column.name}` {rng.choice(('>=', '<=', '=', '<>'))} {value}"

    # ---- DDL ---------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _type(self) -> str:
        rng = self.rng
        fsp = rng.choice(("", "(1)", "(3)", "(6)"))
        charset = rng.choice(list(_COLLATIONS))
        text = rng.choice(("", "", f" CHARACTER SET {charset} COLLATE {rng.choice(_COLLATIONS[charset])}"))
        sign = rng.choice(("", " UNSIGNED"))
        return rng.choice(
            (
                f"{rng.choice(('TINYINT', 'SMALLINT', 'MEDIUMINT', 'INT', 'BIGINT', 'BIGINT', 'INT'))}{sign}",
                f"DECIMAL({rng.choice(('1,0', '5,2', '10,0', '20,10', '30,30', '65,30', '65,0'))}){sign}",
                f"{rng.choice(('FLOAT', 'DOUBLE', 'FLOAT(7,3)', 'DOUBLE(12,4)'))}{sign}",
                f"BIT({rng.choice((1, 7, 8, 17, 64))})",
                f"CHAR({rng.choice((1, 5, 20))}){text}",
                f"VARCHAR({rng.choice((1, 5, 40, 200))}){text}",
                f"VARCHAR({rng.choice((5, 40))}){text}",
                f"BINARY({rng.choice((1, 4, 16))})",
                f"VARBINARY({rng.choice((1, 20, 100))})",
                f"{rng.choice(('TINYTEXT', 'TEXT', 'MEDIUMTEXT', 'LONGTEXT'))}{text}",
                rng.choice(("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")),
                "DATE",
                f"TIME{fsp}",
                f"DATETIME{fsp}",
                f"TIMESTAMP{fsp} NULL",
                "YEAR",
                f"ENUM('a', 'b', 'it''s', 'é', 'x y'){text}",
                f"SET('a', 'b', 'c', 'd e'){text}",
                "JSON",
            )
        )

    def _column(self, name: str, *, key: bool = False) -> str:
        rng = self.rng
        while True:
            kind = self._type()
            if not key or not kind.startswith(("JSON", "TEXT", "TINYT", "MEDIUMT", "LONG", "TINYB", "BLOB", "MEDIUMB")):
                break
        more = ""
        if "NULL" not in kind and rng.random() < 0.35:
            more += " NOT NULL"
        if rng.random() < 0.35 and not kind.startswith(
            ("JSON", "TEXT", "TINYT", "MEDIUMT", "LONG", "TINYB", "BLOB", "MEDIUMB", "BIT", "SET")
        ):
            base = kind.split("(")[0].split()[0].lower()
            if base in {"datetime", "timestamp"}:
                fsp = kind[kind.index("(") : kind.index(")") + 1] if "(" in kind else ""
                more += rng.choice((f" DEFAULT CURRENT_TIMESTAMP{fsp}", " DEFAULT '2020-02-02 02:02:02'"))
                if not key and rng.random() < 0.3:  # TiDB's binlog of one in a clustered key is not what TiDB has
                    more += f" ON UPDATE CURRENT_TIMESTAMP{fsp}"
            else:
                default = {
                    "char": "'d'", "varchar": "'d'", "binary": "'d'", "varbinary": "'d'", "enum": "'b'", "date": "'2021-01-01'",
                    "time": "'01:02:03'", "year": "2000",
                }.get(base, "1")  # fmt: skip
                if not (base == "decimal" and "30,30" in kind):
                    more += f" DEFAULT {default}"
        if rng.random() < 0.05:
            more += " COMMENT 'it''s a \"comment\"'"
        return f"`{name}` {kind}{more}"

    def _create_table(self) -> str:
        rng = self.rng
        name = f"`{rng.choice(self.databases)}`.`{self._name('t')}`"
        plain = [self._column(f"c{number}") for number in range(rng.randint(1, 6))]
        parts: list[str] = []
        tail = ""
        shape = rng.randrange(12)
        if shape <= 2:
            sign = rng.choice(("", " UNSIGNED"))
            parts.append(f"id {rng.choice(('BIGINT', 'INT'))}{sign} {rng.choice(('', 'AUTO_INCREMENT'))} PRIMARY KEY")
        elif shape == 3:
            parts.append("id BIGINT AUTO_RANDOM(3) PRIMARY KEY")
        elif shape == 4:
            parts.append("id BIGINT PRIMARY KEY NONCLUSTERED")
        elif shape == 5:
            parts += [self._column("k", key=True), f"PRIMARY KEY (k) {rng.choice(('CLUSTERED', 'NONCLUSTERED'))}"]
        elif shape == 6:
            parts += [
                self._column("k", key=True),
                "n INT NOT NULL",
                f"PRIMARY KEY (n, k) {rng.choice(('CLUSTERED', 'NONCLUSTERED'))}",
            ]
        elif shape == 7:
            parts += ["k VARCHAR(40) NOT NULL", "PRIMARY KEY (k(3))"]
        elif shape == 8:
            parts += [self._column("k", key=True), "UNIQUE KEY uk (k)"]
        elif shape == 9:
            parts += ["n INT NOT NULL", "m VARCHAR(10) NOT NULL", "UNIQUE KEY uk (n, m)"]
            tail = " SHARD_ROW_ID_BITS = 4" if rng.random() < 0.5 else ""
        if shape in {0, 1} and rng.random() < 0.5:
            parts += ["u INT NULL", "UNIQUE KEY u (u)"]
        if rng.random() < 0.2:
            # Not over CHAR (MariaDB allows none in a stored column) and not over bytes (invalid text differs); what is
            # over text but UTF-8, as a database may have it, a target does not compute (docs/types.md).
            if plain[0].startswith("`c0` VARCHAR") and "CHARACTER SET" not in plain[0]:
                plain[0] = plain[0].replace(")", ") CHARACTER SET utf8mb4", 1)
            over = "c0" if re.match(r"`c0` (INT|BIGINT|VARCHAR\(\d+\) CHARACTER SET utf8)", plain[0]) else 1
            kept = rng.choice(("VIRTUAL", "STORED"))
            parts.append(f"g VARCHAR(260) CHARACTER SET utf8mb4 AS (CONCAT('g', {over})) {kept}")
        columns = [*parts[:1], *plain, *parts[1:]] if shape <= 4 else [*parts, *plain]
        if rng.random() < 0.3:
            columns.append("KEY ix (c0)")
        partition = ""
        if shape in {0, 1, 2, 4, 10, 11} and rng.random() < 0.35 and "u INT NULL" not in parts:
            if shape >= 10:
                columns.append("id BIGINT")
            partition = rng.choice(
                (
                    " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)",
                    " PARTITION BY HASH (id) PARTITIONS 3",
                    " PARTITION BY KEY (id) PARTITIONS 2",
                    " PARTITION BY RANGE COLUMNS (id) (PARTITION p0 VALUES LESS THAN (15), PARTITION p1 VALUES LESS THAN (MAXVALUE))",
                    f" PARTITION BY LIST (id) (PARTITION p0 VALUES IN ({','.join(map(str, range(20)))}), PARTITION p1 VALUES IN ({','.join(map(str, range(20, 40)))}))",
                )
            )
        if rng.random() < 0.2 and not tail:
            tail = rng.choice(
                (" COLLATE utf8mb4_general_ci", " CHARSET latin1", " COMMENT 'a table'", " AUTO_INCREMENT = 100")
            )
        return f"CREATE TABLE {name} ({', '.join(columns)}){tail}{partition}"

    def _some_ddl(self) -> str:
        rng = self.rng
        if len(self._tables) < 3 or (len(self._tables) < 10 and rng.random() < 0.12):
            return self._create_table()
        table = rng.choice(self._tables)
        if table.partitions and rng.random() < 0.4:
            return self._partition_ddl(table)
        if rng.random() < 0.25:
            return self._table_ddl(table)
        if rng.random() < 0.12:
            return self._rare_ddl(table)
        return f"ALTER TABLE {table.full} " + ", ".join(
            self._alter(table) for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))
        )

    def _alter(self, table: Table) -> str:
        rng = self.rng
        column = rng.choice(table.columns)
        place = rng.choice(("", "", " FIRST", f" AFTER `{column.name}`"))
        index = rng.choice(table.indexes) if table.indexes else "none"
        new = self._name("a")
        # Rows of generated columns alone cannot be loaded (docs/types.md).
        last = sum(not each.generated for each in table.columns) == 1 and not column.generated
        return rng.choice(
            (
                f"ADD COLUMN {self._column(new)}{place}",
                f"ADD COLUMN {self._column(new)}{place}",
                f"DROP COLUMN `{'none' if last else column.name}`",
                self._conversion(column, new, place),
                self._conversion(column, new, place),
                f"MODIFY COLUMN `{column.name}` {self._wider(column)}",
                f"RENAME COLUMN `{column.name}` TO `{new}`",
                f"ALTER COLUMN `{column.name}` SET DEFAULT {literal(rng, column)}",
                f"ALTER COLUMN `{column.name}` DROP DEFAULT",
                f"ADD {rng.choice(('', 'UNIQUE '))}INDEX `i{new}` (`{column.name}`)",
                f"ADD INDEX `i{new}` (`{column.name}`(3))",
                f"DROP INDEX `{index}`",
                f"RENAME INDEX `{index}` TO `i{new}`",
                f"ALTER INDEX `{index}` {rng.choice(('INVISIBLE', 'VISIBLE'))}",
                f"ADD COLUMN (`{new}` INT DEFAULT 5, `{new}x` VARCHAR(9) NOT NULL DEFAULT 'q')",
                f"ADD COLUMN `{new}` BIGINT AS (1 + 1) VIRTUAL",
                f"COMMENT = 'c{new}'",
                f"AUTO_INCREMENT = {rng.randrange(50, 5000)}",
                "DROP PRIMARY KEY",
                f"ADD PRIMARY KEY (`{column.name}`) NONCLUSTERED",
                f"CONVERT TO CHARACTER SET utf8mb4 COLLATE {rng.choice(_COLLATIONS['utf8mb4'])}",
                f"COLLATE {rng.choice(_COLLATIONS['utf8mb4'])}",
                "SHARD_ROW_ID_BITS = 3",
            )
        )

    def _conversion(self, column: Column, new: str, place: str) -> str:
        rename = self.rng.random() < 0.5
        for _ in range(20):
            wanted = self._column(new if rename else column.name)
            if not self._known_casts or cast_is_known(column, wanted, strict="STRICT" in self._mode):
                return f"CHANGE COLUMN `{column.name}` {wanted}" if rename else f"MODIFY COLUMN {wanted}{place}"
        return f"CHANGE COLUMN `{column.name}` `{new}` {self._wider(column)}{place}"

    def _wider(self, column: Column) -> str:
        base = column.type.split("(")[0].split()[0]
        wider = {"tinyint": "SMALLINT", "smallint": "INT", "mediumint": "BIGINT", "int": "BIGINT", "char": "VARCHAR(120)",
                 "varchar": "VARCHAR(240)", "float": "DOUBLE", "varbinary": "VARBINARY(150)", "date": "DATETIME",
                 "enum": "ENUM('a', 'b', 'it''s', 'é', 'x y', 'new')", "set": "SET('a', 'b', 'c', 'd e', 'f')",
                 "datetime": "DATETIME(6)", "time": "TIME(6)", "text": "LONGTEXT", "decimal": "DECIMAL(65,30)"}  # fmt: skip
        return wider.get(base, column.type) + (
            " UNSIGNED" if "unsigned" in column.type and "INT" in wider.get(base, "") else ""
        )

    def _table_ddl(self, table: Table) -> str:
        rng = self.rng
        other = rng.choice(self._tables)
        by = " /* BY KEY OR HASH */" if table.method in {"KEY", "HASH"} else ""
        new = f"`{rng.choice(self.databases)}`.`{self._name('r')}`"
        return rng.choice(
            (
                f"TRUNCATE TABLE {table.full}",
                f"DROP TABLE {table.full}",
                f"DROP TABLE {table.full}, {other.full}",
                f"RENAME TABLE {table.full} TO {new}",
                f"RENAME TABLE {table.full} TO {new}, {other.full} TO {table.full}, {new} TO {other.full}",
                f"ALTER TABLE {table.full} RENAME TO {new}",
                f"CREATE TABLE {new} LIKE {table.full}",
                f"CREATE OR REPLACE VIEW {new} AS SELECT * FROM {table.full}",
                f"RECOVER TABLE {rng.choice(self._gone or [table.full])}",
                f"FLASHBACK TABLE {rng.choice(self._gone or [table.full])} TO `{self._name('f')}`",
                f"CREATE SEQUENCE {new} START WITH 5",
                f"ALTER TABLE {table.full} EXCHANGE PARTITION p0 WITH TABLE {other.full}{by}",
                f"CREATE INDEX `{self._name('i')}` ON {table.full} (`{rng.choice(table.columns).name}`)",
                f"CREATE UNIQUE INDEX `{self._name('i')}` ON {table.full} (`{rng.choice(table.columns).name}`)",
                f"ALTER DATABASE `{table.database}` COLLATE = {rng.choice(_COLLATIONS['utf8mb4'])}",
                f"ALTER TABLE {table.full} CACHE",
                f"ALTER TABLE {table.full} NOCACHE",
                f"CREATE PLACEMENT POLICY `{self._name('pp')}` FOLLOWERS = 1",
            )
        )

    def _rare_ddl(self, table: Table) -> str:
        """What most histories have none of; each statement is refused while what it needs is not there."""
        rng = self.rng
        other, new = rng.choice(self._tables), self._name("z")
        third = f"`h{self.seed}_c`"
        part = rng.choice(table.partitions or ["p0"])
        columns = rng.choice(table.columns).name, rng.choice(other.columns).name
        parent = f"{other.full} (`{columns[1]}`)"
        return rng.choice(
            (
                f"CREATE DATABASE {third}",
                f"CREATE TABLE {third}.`{new}` LIKE {table.full}",
                f"INSERT INTO {third}.`t` SELECT * FROM {table.full}",
                f"DROP DATABASE {third}",
                f"FLASHBACK DATABASE {third}",
                f"CREATE VIEW {third}.`v` AS SELECT 1",
                f"DROP VIEW {third}.`v`",
                f"CREATE SEQUENCE {third}.`s` START WITH {rng.randrange(9)}",
                f"ALTER SEQUENCE {third}.`s` RESTART WITH {rng.randrange(9)}",
                f"SELECT NEXTVAL({third}.`s`)",
                f"DROP SEQUENCE {third}.`s`",
                f"ALTER TABLE {table.full} ADD CONSTRAINT `fk` FOREIGN KEY (`{columns[0]}`) REFERENCES {parent} ON DELETE CASCADE",
                f"ALTER TABLE {table.full} ADD CONSTRAINT `fk` FOREIGN KEY (id) REFERENCES {other.full} (id)",
                f"ALTER TABLE {table.full} DROP FOREIGN KEY `fk`",
                f"ALTER TABLE {table.full} AUTO_ID_CACHE = {rng.randrange(1, 100)}",
                f"ALTER TABLE {table.full} AUTO_RANDOM_BASE = {rng.randrange(1000, 9000)}",
                f"ALTER TABLE {table.full} TTL = `{columns[0]}` + INTERVAL 1 DAY TTL_ENABLE = 'OFF'",
                f"ALTER TABLE {table.full} REMOVE TTL",
                f"ALTER TABLE {table.full} ATTRIBUTES 'merge_option=allow'",
                f"ALTER TABLE {table.full} PARTITION `{part}` ATTRIBUTES 'merge_option=allow'",
                f"ALTER PLACEMENT POLICY `h{self.seed}` FOLLOWERS = {rng.randrange(1, 4)}",
                f"CREATE PLACEMENT POLICY `h{self.seed}` FOLLOWERS = 1",
                f"DROP PLACEMENT POLICY `h{self.seed}`",
                f"ALTER TABLE {table.full} PLACEMENT POLICY = `h{self.seed}`",
                f"ALTER TABLE {table.full} PARTITION `{part}` PLACEMENT POLICY = `h{self.seed}`",
                f"ALTER DATABASE `{table.database}` PLACEMENT POLICY = `h{self.seed}`",
            )
        )

    def _partition_ddl(self, table: Table) -> str:
        rng = self.rng
        part, new = rng.choice(table.partitions), self._name("p")
        plain = [other for other in self._tables if not other.partitions and len(other.columns) == len(table.columns)]
        other = rng.choice(plain or self._tables)
        by = " /* BY KEY OR HASH */" if table.method in {"KEY", "HASH"} else ""
        options = [f"TRUNCATE PARTITION `{part}`{by}", f"EXCHANGE PARTITION `{part}` WITH TABLE {other.full}{by}"]
        if table.method.startswith("RANGE"):
            last = table.partitions[-1]
            options += [
                f"DROP PARTITION `{part}`",
                f"ADD PARTITION (PARTITION `{new}` VALUES LESS THAN ({rng.randrange(20, 200)}))",
                (
                    f"REORGANIZE PARTITION `{last}` INTO (PARTITION `{new}` VALUES LESS THAN ({rng.randrange(21, 90)}), "
                    f"PARTITION `{new}m` VALUES LESS THAN (MAXVALUE))"
                ),
            ]
        elif table.method.startswith("LIST"):
            options += [
                f"DROP PARTITION `{part}`",
                f"ADD PARTITION (PARTITION `{new}` VALUES IN ({rng.randrange(40, 99)}))",
            ]
        return f"ALTER TABLE {table.full} {rng.choice(options)}"


class Script:
    """A history written by hand, one statement a line, in one session; a line ``-- moment`` is looked at."""

    def __init__(self, tidb: TidbCluster, lines: list[str]) -> None:
        self.tidb = tidb
        self.script = lines
        self.moments: list[Tso] = []
        self.done = 0

    def run(self) -> None:
        """All of it; what TiDB refuses is printed."""
        with self.tidb.connect() as connection, connection.cursor() as cursor:
            for line in self.script:
                if line.startswith("-- moment"):
                    self.moments.append(self.tidb.tso())
                elif line.strip() and not line.startswith("--"):
                    try:
                        cursor.execute(line)
                        self.done += 1
                    except pymysql.MySQLError as error:
                        print(line, error.args)
        self.moments.append(self.tidb.tso())

    def drop(self) -> None:
        """Every database is gone from the source."""
        with self.tidb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            for (name,) in cursor.fetchall():
                if name.lower() not in {"mysql", "information_schema", "performance_schema", "metrics_schema"}:
                    cursor.execute(f"DROP DATABASE `{name}`")


def void(_: object) -> None:
    """Nothing."""
