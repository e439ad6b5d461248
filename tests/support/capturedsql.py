"""SQL by a seed for any MySQL or MariaDB: tables of every type and kind of key, DDL of every kind over them, changes of rows."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from tests.support.kind import is_mysql
from tests.tidb.values import Column, literal

Statement = tuple[str, str]  # its kind, and it

COLLATIONS = {
    "utf8mb4": ("utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci"),
    "utf8mb3": ("utf8mb3_bin", "utf8mb3_general_ci"),
    "latin1": ("latin1_bin", "latin1_swedish_ci"),
    "ascii": ("ascii_bin", "ascii_general_ci"),
    "gbk": ("gbk_bin", "gbk_chinese_ci"),
}
_OWN_COLLATIONS = {
    True: ("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs"),
    False: ("utf8mb4_nopad_bin", "utf8mb4_unicode_520_ci"),
}
_NO_KEY = ("JSON", "TEXT", "TINYT", "MEDIUMT", "LONG", "TINYB", "BLOB", "MEDIUMB")
_NO_DEFAULT = (*_NO_KEY, "BIT", "SET")


_QUOTES = ("'", '"', "`", "/", "#", "--")
_QUOTED = re.compile(r"""('(?:[^']|'')*'|"[^"]*"|`[^`]*`|/\*.*?\*/|\#[^\n]*\n|--\ [^\n]*\n?)""", re.DOTALL)
# Of names.
_ODD = (" x", "ü", "%s", "'", '"', ".a", "A", "-", "$", "中", ",(")


@dataclass(slots=True)
class Table:
    """A table as it is now."""

    database: str
    name: str
    columns: list[Column] = field(default_factory=list)
    indexes: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # foreign keys and checks
    method: str = ""

    @property
    def full(self) -> str:
        return f"`{self.database}`.`{self.name}`"

    @property
    def written(self) -> list[Column]:
        """What an INSERT may name."""
        return [each for each in self.columns if not each.generated]

    @property
    def alone(self) -> list[Column]:
        """No generated column is computed from them. A MariaDB keeps the old values if another column takes a name."""
        used = " ".join(each.generated for each in self.columns)
        return [each for each in self.columns if f"`{each.name}`" not in used]


class Types:
    """Draws columns and tables. ``alike``: the targets are of the source's kind."""

    def __init__(self, rng: random.Random, *, alike: bool) -> None:
        self.rng, self.alike = rng, alike
        self._names = 0

    def name(self, kind: str) -> str:
        """A new one, now and then of signs that are to be quoted."""
        self._names += 1
        odd = self.rng.choice(_ODD) if self.rng.random() < 0.2 else ""
        return f"{kind}{self._names}{odd}"

    def collation(self, charset: str = "") -> str:
        charset = charset or self.rng.choice(list(COLLATIONS))
        own = _OWN_COLLATIONS[is_mysql()] if charset == "utf8mb4" and self.alike else ()
        return self.rng.choice(COLLATIONS[charset] + own)

    def kind(self) -> str:
        """A column's type."""
        rng = self.rng
        digits = rng.choice(("", "(1)", "(3)", "(6)"))
        collation = self.collation()
        text = rng.choice(("", "", f" CHARACTER SET {collation.partition('_')[0]} COLLATE {collation}"))
        sign = rng.choice(("", "", " UNSIGNED"))
        return rng.choice(
            (
                f"{rng.choice(('TINYINT', 'SMALLINT', 'MEDIUMINT', 'INT', 'BIGINT', 'BIGINT', 'INT'))}{sign}",
                f"DECIMAL({rng.choice(('1,0', '5,2', '10,0', '20,10', '30,30', '65,30', '65,0'))}){sign}",
                f"{rng.choice(('FLOAT', 'DOUBLE', 'FLOAT(7,3)', 'DOUBLE(12,4)'))}{sign}",
                f"BIT({rng.choice((1, 7, 8, 17, 64))})",
                f"CHAR({rng.choice((1, 5, 20, 90))}){text}",
                f"VARCHAR({rng.choice((1, 5, 40, 200))}){text}",
                f"VARCHAR({rng.choice((5, 40, 300))}){text}",
                f"BINARY({rng.choice((1, 4, 16))})",
                f"VARBINARY({rng.choice((1, 20, 300))})",
                f"{rng.choice(('TINYTEXT', 'TEXT', 'MEDIUMTEXT', 'LONGTEXT'))}{text}",
                rng.choice(("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")),
                "DATE",
                f"TIME{digits}",
                f"DATETIME{digits}",
                f"TIMESTAMP{digits} NULL",
                "YEAR",
                f"ENUM('a', 'b', 'it''s', 'x y'){text}",
                f"SET('a', 'b', 'c', 'd e'){text}",
                "JSON",
                "INT ZEROFILL",
            )
        )

    def column(self, name: str, *, key: bool = False) -> str:
        """Its definition; one of JSON has a name of its own, as a MariaDB shows it as a text."""
        rng = self.rng
        kind = self.kind()
        while key and kind.startswith(_NO_KEY):
            kind = self.kind()
        if kind == "JSON":
            name = f"j{name}"
        more = " NOT NULL" if "NULL" not in kind and rng.random() < 0.35 else ""
        if rng.random() < 0.35 and not kind.startswith(_NO_DEFAULT) and "30,30" not in kind:
            base = kind.split("(")[0].split()[0].lower()
            if base in {"datetime", "timestamp"}:
                digits = kind[kind.index("(") : kind.index(")") + 1] if "(" in kind else ""
                more += rng.choice((f" DEFAULT CURRENT_TIMESTAMP{digits}", " DEFAULT '2020-02-02 02:02:02'"))
                more += f" ON UPDATE CURRENT_TIMESTAMP{digits}" if rng.random() < 0.3 else ""
            else:
                default = {
                    "char": "'d'", "varchar": "'d'", "binary": "'d'", "varbinary": "'d'", "enum": "'b'",
                    "date": "'2021-01-01'", "time": "'01:02:03'", "year": "2000",
                }.get(base, "1")  # fmt: skip
                more += f" DEFAULT {default}"
        more += " COMMENT 'it''s a \"comment\"'" if rng.random() < 0.05 else ""
        return f"`{name}` {kind}{more}"

    def create(self, full: str) -> str:
        """A CREATE TABLE with any kind of key, generated columns, partitions."""
        rng = self.rng
        parts = [self.column(f"c{number}") for number in range(rng.randint(1, 6))]
        shape = rng.randrange(12)
        keyed = shape <= 3
        if keyed:
            sign, automatic = rng.choice(("", " UNSIGNED")), rng.choice(("", " AUTO_INCREMENT"))
            parts.append(f"id {rng.choice(('BIGINT', 'INT'))}{sign}{automatic} PRIMARY KEY")
        elif shape == 4:
            parts += [self.column("k", key=True).replace("`jk`", "`k`"), "PRIMARY KEY (k)"]
        elif shape == 5:
            parts += [self.column("k", key=True), "n INT NOT NULL", "PRIMARY KEY (n, k)"]
        elif shape == 6:
            parts += ["k VARCHAR(40) NOT NULL", "PRIMARY KEY (k(3))"]
        elif shape == 7:
            parts += [self.column("k", key=True), "UNIQUE KEY uk (k)"]
        elif shape == 8:
            parts += ["n INT NOT NULL", "m VARCHAR(10) NOT NULL", "UNIQUE KEY uk (n, m)"]
        elif shape >= 10:
            parts.append("id BIGINT")
        if rng.random() < 0.25:
            # A MySQL computes nothing from an AUTO_INCREMENT.
            over = "id" if keyed and (self.alike or "AUTO_INCREMENT" not in parts[-1]) else "1"
            kept = rng.choice(("VIRTUAL", "STORED"))
            parts += [f"g BIGINT AS ({over} * 2 + 1) {kept}"] + (["KEY g (g)"] if rng.random() < 0.4 else [])
        if rng.random() < 0.2:
            parts += [
                "t VARCHAR(20) CHARACTER SET utf8mb4",
                "u VARCHAR(60) CHARACTER SET utf8mb4 AS (CONCAT('g', t)) STORED",
            ]
        if rng.random() < 0.15:  # bytes are what they are in its own character set
            parts += ["l VARCHAR(30) CHARACTER SET latin1", "lx VARCHAR(70) AS (HEX(l)) STORED"]
        if keyed and rng.random() < 0.4:
            parts += ["q INT NULL", "UNIQUE KEY q (q)"]
        if rng.random() < 0.15:
            parts.append(f"CONSTRAINT `{self.name('ck')}` CHECK (1 = 1)")
        if self.alike and rng.random() < 0.2:
            parts.append(
                f"w {rng.choice(('INT DEFAULT (1 + 2)', 'VARCHAR(40) DEFAULT (UUID())', 'TEXT DEFAULT (LOWER(1))'))}"
            )
        tail = rng.choice(
            ("", "", "", f" COLLATE {self.collation('utf8mb4')}", " CHARACTER SET latin1", " COMMENT 'a table'",
             " ROW_FORMAT = COMPACT", " ROW_FORMAT = DYNAMIC")
        )  # fmt: skip
        # Of a table whose columns are partitioned by, any other key has to have those, too.
        partition = ""
        if (keyed and "UNIQUE KEY q (q)" not in parts and rng.random() < 0.4) or (shape >= 10 and rng.random() < 0.4):
            partition = rng.choice(
                (
                    (
                        " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20),"
                        " PARTITION p2 VALUES LESS THAN MAXVALUE)"
                    ),
                    " PARTITION BY HASH (id) PARTITIONS 3",
                    " PARTITION BY KEY (id) PARTITIONS 2",
                    (
                        " PARTITION BY RANGE COLUMNS (id) (PARTITION p0 VALUES LESS THAN (15), PARTITION p1 VALUES LESS THAN"
                        " (1000000))"
                    ),
                    (
                        f" PARTITION BY LIST (id) (PARTITION p0 VALUES IN ({','.join(map(str, range(20)))}), PARTITION p1"
                        f" VALUES IN ({','.join(map(str, range(20, 40)))}))"
                    ),
                )
            )
        return f"CREATE TABLE {full} ({', '.join(parts)}){tail}{partition}"


_WIDER = {
    "tinyint": "SMALLINT", "smallint": "INT", "mediumint": "BIGINT", "int": "BIGINT", "varbinary": "VARBINARY(350)",
    "date": "DATETIME", "datetime": "DATETIME(6)", "time": "TIME(6)", "float": "DOUBLE", "char": "CHAR(99)",
    "varchar": "VARCHAR(310)", "tinytext": "TEXT", "text": "MEDIUMTEXT", "mediumtext": "LONGTEXT",
    "enum": "ENUM('a', 'b', 'it''s', 'x y', 'new')", "set": "SET('a', 'b', 'c', 'd e', 'f')", "blob": "LONGBLOB",
    "binary": "VARBINARY(40)", "decimal": "DECIMAL(65,30)",
}  # fmt: skip


class Ddl:
    """Draws DDL over the tables that there are. `anew` are those of which no binlog says what they do to rows."""

    def __init__(self, types: Types, databases: list[str]) -> None:
        self.types, self._rng, self._databases = types, types.rng, databases

    def draw(self, tables: list[Table]) -> Statement:
        """One of many kinds."""
        rng = self._rng
        if len(tables) < 4 or (len(tables) < 12 and rng.random() < 0.15):
            return self._create(tables)
        table = rng.choice(tables)
        if table.partitions and rng.random() < 0.5:
            return self._partition(table)
        if rng.random() < 0.4:
            return self._whole(table, tables)
        count = rng.choice((1, 1, 1, 2, 3))
        clauses = [self._clause(table) for _ in range(count)]
        tail = rng.choice(
            ("", "", "", ", ALGORITHM = INSTANT", ", ALGORITHM = COPY", ", ALGORITHM = INPLACE, LOCK = NONE")
        )
        kind = ", ".join((*("several clauses",) * (count > 1), *(kind for kind, _ in clauses)))
        if "INSTANT" in tail and count == 1:
            kind += " instantly"
        wait = rng.choice(("", "", " WAIT 1")) if not is_mysql() else ""
        return kind, f"ALTER TABLE {table.full}{wait} {', '.join(sql for _, sql in clauses)}{tail}"

    def anew(self, tables: list[Table]) -> Statement | None:
        """A DDL whose table no load goes past; None where no table has what it takes."""
        found: list[Statement] = []
        for table in tables:
            if table.partitions:
                part = self._rng.choice(table.partitions)
                found += [
                    ("truncate partition", f"ALTER TABLE {table.full} TRUNCATE PARTITION `{part}`"),
                    ("remove partitioning", f"ALTER TABLE {table.full} REMOVE PARTITIONING"),
                ]
            elif any(each.name == "id" for each in table.columns):
                found.append(("partition by", f"ALTER TABLE {table.full} PARTITION BY HASH (id) PARTITIONS 2"))
            column = self._rng.choice(table.alone).name
            found.append(
                ("a column anew", f"ALTER TABLE {table.full} DROP COLUMN `{column}`, ADD COLUMN `{column}` INT")
            )
        return self._rng.choice(found) if found else None

    def _create(self, tables: list[Table]) -> Statement:
        rng, new = self._rng, self._new()
        if not tables or rng.random() < 0.55:
            return "create table", self.types.create(new)
        table = rng.choice(tables)
        names = ", ".join(f"`{each.name}`" for each in table.written) or "1 AS one"
        key = rng.choice(("", f"({self.types.column('extra')}) "))
        options: list[Statement] = [
            ("create like", f"CREATE TABLE {new} LIKE {table.full}"),
            ("create select", f"CREATE TABLE {new} {key}SELECT * FROM {table.full}"),
            ("create select", f"CREATE TABLE {new} SELECT {names}, 1 + 1 AS two FROM {table.full} LIMIT 20"),
        ]
        if not is_mysql():
            options += [
                ("create or replace", self.types.create(table.full).replace("CREATE", "CREATE OR REPLACE", 1)),
                (
                    "create or replace select",
                    f"CREATE OR REPLACE TABLE {table.full} SELECT 1 AS a, 'x' AS b UNION SELECT 2, 'y'",
                ),
                ("create sequence", f"CREATE SEQUENCE `{table.database}`.seq START WITH {rng.randrange(1, 9)}"),
            ]
        return rng.choice(options)

    def _new(self) -> str:
        return f"`{self._rng.choice(self._databases)}`.`{self.types.name('t')}`"

    def _clause(self, table: Table) -> Statement:
        """Of an ALTER TABLE."""
        rng, types = self._rng, self.types
        column = rng.choice(table.columns)
        new = types.name("a")
        place = rng.choice(("", "", " FIRST", f" AFTER `{column.name}`"))
        index = rng.choice(table.indexes) if table.indexes else "none"
        key = rng.choice(table.keys) if table.keys else "none"
        other = rng.choice(table.alone).name
        # Bytes that are no text are refused by name.
        default = "'d'" if "binary" in column.type else literal(rng, column)
        hidden = rng.choice(("INVISIBLE", "VISIBLE") if is_mysql() else ("IGNORED", "NOT IGNORED"))
        # JSON would become a text of that collation, and a MySQL has spelled what it keeps anew: refused by name.
        alone = types.alike or is_mysql() or all(each.type != "json" for each in table.columns)
        convert = ("convert charset", "CONVERT TO CHARACTER SET utf8mb4 ") if alone else ("default collation", "")
        return rng.choice(
            (
                ("add column", f"ADD COLUMN {types.column(new)}{place}"),
                ("add column", f"ADD COLUMN {types.column(new)}{place}"),
                ("add columns", f"ADD COLUMN (`{new}` INT DEFAULT 5, `{new}x` VARCHAR(9) NOT NULL DEFAULT 'q')"),
                ("add generated column", f"ADD COLUMN `{new}` BIGINT AS (1 + 1) {rng.choice(('VIRTUAL', 'STORED'))}"),
                ("drop column", f"DROP COLUMN `{column.name}`"),
                self._modify(column, new, place),
                self._modify(column, new, place),
                ("rename column", f"RENAME COLUMN `{column.name}` TO `{self._kept(column, new)}`"),
                ("set default", f"ALTER COLUMN `{column.name}` SET DEFAULT {default}"),
                ("drop default", f"ALTER COLUMN `{column.name}` DROP DEFAULT"),
                ("add index", f"ADD INDEX `i{new}` (`{column.name}`)"),
                ("add index", f"ADD INDEX `i{new}` (`{column.name}`(3) DESC)"),
                ("add unique", f"ADD UNIQUE INDEX `i{new}` (`{column.name}`)"),
                ("add fulltext", f"ADD FULLTEXT INDEX `i{new}` (`{column.name}`)"),
                ("drop index", f"DROP INDEX `{index}`"),
                ("rename index", f"RENAME INDEX `{index}` TO `i{new}`"),
                ("hide index", f"ALTER INDEX `{index}` {hidden}"),
                ("comment", f"COMMENT = 'c{new}'"),
                ("auto_increment", f"AUTO_INCREMENT = {rng.randrange(50, 5000)}"),
                ("drop primary key", "DROP PRIMARY KEY"),
                ("change primary key", f"DROP PRIMARY KEY, ADD PRIMARY KEY (`{column.name}`)"),
                ("add primary key", f"ADD PRIMARY KEY (`{column.name}`)"),
                (convert[0], f"{convert[1]}COLLATE {types.collation('utf8mb4')}"),
                (convert[0], f"{convert[1]}COLLATE {types.collation('utf8mb4')}"),
                ("default collation", f"COLLATE {types.collation('utf8mb4')}"),
                ("add check", f"ADD CONSTRAINT `{new}` CHECK (`{column.name}` IS NOT NULL OR 1 = 1)"),
                ("drop key", f"DROP CONSTRAINT `{key}`"),
                ("rebuild", rng.choice(("FORCE", "ENGINE = InnoDB", "ROW_FORMAT = DYNAMIC"))),
                (
                    "swap columns",
                    f"RENAME COLUMN `{column.name}` TO `{other}`, RENAME COLUMN `{other}` TO `{column.name}`",
                ),
                ("column for another", f"DROP COLUMN `{other}`, RENAME COLUMN `{column.name}` TO `{other}`"),
                (
                    "column for another",
                    f"RENAME COLUMN `{column.name}` TO `{self._kept(column, new)}`, ADD COLUMN `{column.name}` INT DEFAULT 4",
                ),
                self._hidden(new, column),
                ("order", f"ORDER BY `{column.name}`"),
            )
        )

    def _hidden(self, new: str, column: Column) -> Statement:
        """What `SELECT *` does not show."""
        if is_mysql() and self._rng.random() < 0.5:
            return "add functional index", f"ADD INDEX `i{new}` ((CAST(`{column.name}` AS CHAR(9))))"
        return (
            "add invisible column",
            f"ADD COLUMN `{new}` INT {'DEFAULT 3 INVISIBLE' if is_mysql() else 'INVISIBLE DEFAULT 3'}",
        )

    def _kept(self, column: Column, new: str) -> str:
        """A new name that says that it is JSON, as the old one did."""
        return f"j{new}" if column.type == "json" else new

    def _modify(self, column: Column, new: str, place: str) -> Statement:
        rng = self._rng
        base = re.split(r"[ (]", column.type)[0]
        if not self.types.alike or rng.random() < 0.5:
            kind = _WIDER.get(base, column.type)
            kind += " UNSIGNED" if "unsigned" in column.type and "INT" in kind else ""
            kind += "" if not column.charset or "CHAR" not in kind else f" CHARACTER SET {column.charset}"
            what = "widen column"
        else:
            kind, what = self.types.kind(), "convert column"
        name = self._kept(column, new)
        if base == "time" and kind.startswith(("DATE", "TIMESTAMP")):
            kind = "TIME(6)"  # no load goes past what depends on the day of the change
        if kind == "JSON" and column.type != "json" and not is_mysql():
            # A MariaDB keeps the text as it was spelled, and a target's rows without a key are found by another spelling.
            kind = "LONGTEXT"
        if kind == "JSON" or column.type == "json":
            return "widen column", f"MODIFY COLUMN `{column.name}` JSON{place}"
        if rng.random() < 0.3:
            return f"{what} and rename", f"CHANGE COLUMN `{column.name}` `{name}` {kind}{place}"
        return what, f"MODIFY COLUMN `{column.name}` {kind}{place}"

    def _whole(self, table: Table, tables: list[Table]) -> Statement:
        rng, types = self._rng, self.types
        other, new, column = rng.choice(tables), self._new(), rng.choice(table.columns).name
        parent = f"{other.full} (`{rng.choice(other.columns).name}`)"
        third = f"`{self._databases[0]}_c`"
        options: list[Statement] = [
            ("truncate", f"TRUNCATE TABLE {table.full}"),
            ("drop table", f"DROP TABLE {table.full}"),
            ("drop table", f"DROP TABLE {'IF EXISTS ' * rng.randrange(2)}{table.full}, {other.full}"),
            ("drop table", f"DROP TABLE IF EXISTS {table.full}, `{table.database}`.`missing`"),
            ("drop table", f"DROP TABLE {table.full}, `{table.database}`.`missing`"),  # an error, and the table is gone
            ("rename table", f"RENAME TABLE {table.full} TO {new}"),
            ("rename swap", f"RENAME TABLE {table.full} TO {new}, {other.full} TO {table.full}, {new} TO {other.full}"),
            ("rename swap", f"RENAME TABLE {table.full} TO {new}, {other.full} TO {table.full}, {new} TO {other.full}"),
            ("rename and add", f"ALTER TABLE {table.full} RENAME TO {new}, ADD COLUMN {types.column(types.name('a'))}"),
            ("create index", f"CREATE INDEX `{types.name('i')}` ON {table.full} (`{column}`)"),
            ("create unique", f"CREATE UNIQUE INDEX `{types.name('i')}` ON {table.full} (`{column}`)"),
            ("create database", f"CREATE DATABASE {third} CHARACTER SET latin1"),
            ("create in another", f"CREATE TABLE {third}.`{types.name('t')}` LIKE {table.full}"),
            ("move table", f"RENAME TABLE {table.full} TO {third}.`{types.name('t')}`"),
            ("drop database", f"DROP DATABASE {third}"),
            ("alter database", f"ALTER DATABASE `{table.database}` COLLATE = {types.collation('utf8mb4')}"),
            ("foreign key", f"ALTER TABLE {table.full} ADD CONSTRAINT `{types.name('fk')}` FOREIGN KEY (`{column}`) REFERENCES {parent}"),
            ("maintenance", f"{rng.choice(('ANALYZE', 'OPTIMIZE', 'CHECK', 'REPAIR'))} TABLE {table.full}"),
            ("rotate", "FLUSH BINARY LOGS"),
            ("trigger", (
                f"CREATE TRIGGER `{table.database}`.`{types.name('tr')}` {rng.choice(('BEFORE', 'AFTER'))}"
                f" {rng.choice(('INSERT', 'UPDATE', 'DELETE'))} ON {table.full} FOR EACH ROW"
                f" INSERT INTO `{self._databases[0]}`.`log` (what) VALUES ('{types.name('w')}')"
            )),
        ]  # fmt: skip
        if self.types.alike:
            options += [
                ("view", f"CREATE OR REPLACE VIEW {new} AS SELECT * FROM {table.full}"),
                (
                    "view",
                    f"CREATE OR REPLACE VIEW `{self._databases[0]}`.`v` AS SELECT COUNT(*) AS n FROM {table.full}",
                ),
                ("drop view", f"DROP VIEW IF EXISTS `{self._databases[0]}`.`v`"),
            ]
        if not is_mysql():
            options += [
                ("if not exists", f"ALTER TABLE {table.full} ADD COLUMN IF NOT EXISTS `{column}` INT"),
                (
                    "set statement",
                    f"SET STATEMENT lock_wait_timeout = 1 FOR ALTER TABLE {table.full} ADD COLUMN `{types.name('s')}` INT",
                ),
                ("alter sequence", f"ALTER SEQUENCE `{table.database}`.seq INCREMENT BY {rng.randrange(1, 9)}"),
                ("rename sequence", f"RENAME TABLE `{table.database}`.seq TO `{table.database}`.`{types.name('seq')}`"),
                ("create or replace sequence", f"CREATE OR REPLACE SEQUENCE `{table.database}`.seq START WITH 3"),
                ("drop sequence", f"DROP SEQUENCE `{table.database}`.seq"),
                ("rename if exists", f"RENAME TABLE IF EXISTS {table.full} TO {new}"),
            ]
        return rng.choice(options)

    def _partition(self, table: Table) -> Statement:
        """What a job can say."""
        rng = self._rng
        part, last, new = rng.choice(table.partitions), table.partitions[-1], self.types.name("p")
        options: list[Statement] = [
            ("rebuild partition", f"REBUILD PARTITION `{part}`"),
            ("analyze partition", f"ANALYZE PARTITION `{part}`"),
            ("optimize partition", f"OPTIMIZE PARTITION `{part}`"),
        ]
        if table.method.startswith("RANGE"):
            options += [
                ("drop partition", f"DROP PARTITION `{part}`"),
                ("drop partition", f"DROP PARTITION `{part}`, `{last}`"),
                (
                    "add partition",
                    f"ADD PARTITION (PARTITION `{new}` VALUES LESS THAN ({rng.randrange(10**6, 10**9)}))",
                ),
                (
                    "reorganize partition",
                    (
                        f"REORGANIZE PARTITION `{last}` INTO (PARTITION `{new}` VALUES LESS THAN ({rng.randrange(21, 90)}), "
                        f"PARTITION `{new}m` VALUES LESS THAN {'(1000000)' if 'COLUMNS' in table.method else 'MAXVALUE'})"
                    ),
                ),
            ]
        elif table.method.startswith("LIST"):
            options += [
                ("drop partition", f"DROP PARTITION `{part}`"),
                ("add partition", f"ADD PARTITION (PARTITION `{new}` VALUES IN ({rng.randrange(40, 99)}))"),
            ]
        else:
            options.append(("add partition", "ADD PARTITION PARTITIONS 1"))
        kind, clause = rng.choice(options)
        return kind, f"ALTER TABLE {table.full} {clause}"


def dressed(rng: random.Random, sql: str) -> str:
    """The same statement as somebody else would write it."""
    if rng.random() < 0.15:
        sql = rng.choice(("/* a 'comment */ ", "-- ALTER TABLE x\n", "\n\t", "# it's\n", "/*!40000 */ ")) + sql
    if rng.random() < 0.3:
        sql = "".join(part if part[:1] in _QUOTES else part.lower() for part in _QUOTED.split(sql))
    if rng.random() < 0.05:
        sql = re.sub(r"^(ALTER|RENAME) TABLE ", r"\1 /*!40000 TABLE */ ", sql, flags=re.IGNORECASE)
    return sql + rng.choice(("", "", "", " ", " -- end", " /* end */", ";"))


class Dml:
    """Draws statements that change rows."""

    def __init__(self, rng: random.Random, databases: list[str]) -> None:
        self._rng, self._a = rng, databases[0]

    def draw(self, tables: list[Table]) -> Statement:
        """One of many kinds."""
        rng = self._rng
        if not tables or rng.random() < 0.25:
            return self._fixed()
        table, other = rng.choice(tables), rng.choice(tables)
        written = table.written
        if not written:
            return "delete", f"DELETE FROM {table.full} LIMIT 1"
        kind = rng.random()
        if kind < 0.5:
            return self._insert(table, written)
        if kind < 0.56:
            names = ", ".join(f"`{each.name}`" for each in written)
            moved = ", ".join(self._moved(each) for each in written)
            verb = rng.choice(("INSERT IGNORE", "INSERT", "REPLACE"))
            return (
                "insert select",
                f"{verb} INTO {table.full} ({names}) SELECT {moved} FROM {table.full}{self._where(table)} LIMIT 4",
            )
        if kind < 0.6:
            a, b = rng.choice(written), rng.choice(other.columns)
            return "multi update", (
                f"UPDATE {table.full} AS x JOIN {other.full} AS y SET x.`{a.name}` = {literal(rng, a)}"
                f" WHERE y.`{b.name}` IS NOT NULL AND {self._test(table, 'x.')}"
            )
        if kind < 0.63 and table.full != other.full:
            return "multi delete", (
                f"DELETE x, y FROM {table.full} AS x JOIN {other.full} AS y ON {self._test(table, 'x.')}"
                f" AND {self._test(other, 'y.')}"
            )
        if kind < 0.85:
            some = rng.sample(written, min(len(written), rng.choice((1, 1, 2, 3))))
            keyed = any(each.key for each in some)
            sets = ", ".join(f"`{each.name}` = {self._changed(each)}" for each in some)
            ignore = rng.choice(("", "", " IGNORE"))
            limit = rng.choice((" LIMIT 1", " LIMIT 3", f" ORDER BY `{some[0].name}` LIMIT 2", ""))
            return (
                "update of a key" if keyed else "update",
                f"UPDATE{ignore} {table.full} SET {sets}{self._where(table)}{limit}",
            )
        return (
            "delete",
            f"DELETE FROM {table.full}{self._where(table)}{rng.choice((' LIMIT 1', ' LIMIT 3', ' LIMIT 9'))}",
        )

    def _insert(self, table: Table, written: list[Column]) -> Statement:
        rng = self._rng
        chosen = [each for each in written if not (each.automatic and rng.random() < 0.7)] or written
        if rng.random() < 0.15 and len(chosen) > 1:
            chosen = rng.sample(chosen, len(chosen) - 1)
        rows = ", ".join(
            f"({', '.join(self._literal(each) for each in chosen)})" for _ in range(rng.choice((1, 1, 2, 3, 8)))
        )
        names = ", ".join(f"`{each.name}`" for each in chosen)
        verb = rng.choice(("INSERT", "INSERT", "INSERT", "INSERT IGNORE", "REPLACE"))
        if verb == "INSERT" and rng.random() < 0.25:
            column = rng.choice(chosen)
            tail = f" ON DUPLICATE KEY UPDATE `{column.name}` = {rng.choice((self._literal(column), f'VALUES(`{column.name}`)'))}"
            return "on duplicate key", f"INSERT INTO {table.full} ({names}) VALUES {rows}{tail}"
        return verb.lower(), f"{verb} INTO {table.full} ({names}) VALUES {rows}"

    def _literal(self, column: Column) -> str:
        if (
            column.charset == "latin1"
            and column.type.startswith(("char", "varchar", "text"))
            and self._rng.random() < 0.1
        ):
            return self._rng.choice(("'é'", "'ÿ€'"))
        return literal(self._rng, column)

    def _changed(self, column: Column) -> str:
        if re.match(r"(tiny|small|medium|big)?int", column.type) and self._rng.random() < 0.4:
            return f"`{column.name}` + {self._rng.randrange(1, 60)}"
        return self._literal(column)

    def _moved(self, column: Column) -> str:
        """A key of another row."""
        if not column.key:
            return f"`{column.name}`"
        if re.match(r"(small|medium|big)?int", column.type):
            return f"`{column.name}` + {self._rng.randrange(1, 900)}"
        return self._literal(column)

    def _test(self, table: Table, of: str) -> str:
        column = self._rng.choice(table.columns)
        value = literal(self._rng, column)
        if value == "NULL" or column.type.startswith(("json", "set", "enum", "bit")):
            return f"{of}`{column.name}` IS {self._rng.choice(('', 'NOT '))}NULL"
        return f"{of}`{column.name}` {self._rng.choice(('>=', '<=', '='))} {value}"

    def _where(self, table: Table) -> str:
        return "" if self._rng.random() < 0.4 else f" WHERE {self._test(table, '')}"

    def _fixed(self) -> Statement:
        """On the tables with foreign keys, triggers and a procedure."""
        rng, a = self._rng, f"`{self._a}`"
        n, m = rng.randrange(30), rng.randrange(30)
        if rng.random() < 0.03:  # more than a group of a capture may have
            return (
                "large",
                f"INSERT INTO {a}.bulk SELECT x.a, REPEAT('ü', 40), {n} FROM {a}.bulk AS x, {a}.bulk AS y LIMIT 1500",
            )
        return rng.choice(
            (
                ("with triggers", f"INSERT IGNORE INTO {a}.parent VALUES ({n}, 'p{m}')"),
                ("with triggers", f"UPDATE {a}.parent SET v = CONCAT(v, '{m}') WHERE id BETWEEN {n} AND {n + 3}"),
                ("with triggers", f"DELETE FROM {a}.parent WHERE id = {n} AND id NOT IN (SELECT parent FROM {a}.child WHERE parent IS NOT NULL)"),
                ("child of a foreign key", f"INSERT INTO {a}.child (parent) VALUES ({n})"),
                ("child of a foreign key", f"INSERT INTO {a}.child (parent) SELECT id FROM {a}.parent LIMIT 3"),
                ("child of a foreign key", f"UPDATE {a}.child SET parent = {m} WHERE parent = {n}"),
                ("child of a foreign key", f"DELETE FROM {a}.child WHERE parent = {n}"),
                ("procedure", f"CALL {a}.work({n})"),
                ("keyless", f"INSERT INTO {a}.bulk VALUES ({n}, 'b{m}', {m}.5), ({n}, 'b{m}', {m}.5)"),
                ("keyless", f"UPDATE {a}.bulk SET c = c + 1 WHERE a = {n} LIMIT 1"),
                ("keyless", f"DELETE FROM {a}.bulk WHERE a = {n} LIMIT 1"),
                ("json", f"UPDATE {a}.parent SET v = JSON_UNQUOTE(JSON_ARRAY({n}, '{m}')) WHERE id = {n}"),
            )
        )  # fmt: skip
