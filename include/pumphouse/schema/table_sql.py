"""CREATE statements from TableInfo: tables, views, sequences; and the clauses that ALTER needs as well."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pumphouse.errors import SchemaError
from pumphouse.model.table import (
    STRINGS,
    ColumnFlag,
    ColumnInfo,
    DbInfo,
    FieldType,
    IndexColumn,
    IndexInfo,
    MysqlType,
    TableInfo,
    cistr,
)
from pumphouse.schema.column_sql import BLOBS, column_sql
from pumphouse.schema.dialect import Dialect, charset_sql, charset_there, key_bytes
from pumphouse.schema.generated import notes_of, on_target
from pumphouse.schema.ident import columns as column_list
from pumphouse.schema.ident import literal, qualified, quote

_ONLY_A_MARIADB = "only a MariaDB has such an index"
_SIZES: dict[int, int] = {
    MysqlType.TINY: 1, MysqlType.YEAR: 1, MysqlType.SHORT: 2, MysqlType.ENUM: 2, MysqlType.INT24: 3, MysqlType.DATE: 3,
    MysqlType.NEWDATE: 3, MysqlType.LONG: 4, MysqlType.FLOAT: 4,
}  # fmt: skip
# And of two digits of a fraction one more.
_TIMES: dict[int, int] = {MysqlType.TIME: 3, MysqlType.TIMESTAMP: 4, MysqlType.DATETIME: 5}
_KEY_BYTES = 3072  # of a key's columns together; a MariaDB's unique key over more has a hash of them
_PARTITION_KINDS = {1: "RANGE", 2: "HASH", 3: "LIST", 4: "KEY"}
_REFERENCE_OPTIONS = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION"}
# As TiDB's parser numbers them.
_TIME_UNITS = (
    "", "MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR",
)  # fmt: skip
_VIEW_ALGORITHMS = ("UNDEFINED", "MERGE", "TEMPTABLE")
_VIEW_SECURITY = ("DEFINER", "INVOKER")


def create_database(info: DbInfo, dialect: Dialect) -> str:
    """CREATE DATABASE, harmless where it exists."""
    charset = charset_sql(dialect, info.charset, info.collate)
    return f"CREATE DATABASE IF NOT EXISTS {quote(info.name)} {charset}".rstrip()


def create_object(db: str, info: TableInfo, dialect: Dialect, *, bare: bool = False) -> str:
    """CREATE statement of a table, view or sequence; ``bare``: without what a server may refuse (`on_target`)."""
    if info.is_view:
        return create_view(db, info)
    if info.is_sequence:
        return create_sequence(db, info)
    return create_table(db, info, dialect, bare=bare)


def create_table(db: str, info: TableInfo, dialect: Dialect, *, bare: bool = False) -> str:
    """CREATE TABLE: public columns, keys, checks, options, partitions.

    Left out, because the target cannot say it or must not act on it: placement and TiFlash replicas; on others than a
    TiDB expression and multi-valued indexes, TTL and sharding. A TiDB's TTL is off: rows that expire come as deletes.
    Foreign keys are made apart (`add_foreign_keys`).
    """
    info = on_target(info, dialect, bare=bare)
    automatic = auto_increment_column(info)
    lines = [
        column_sql(column, dialect, auto_increment=automatic is not None and column.id == automatic.id, table=info)
        for column in info.public_columns
    ]
    primary = primary_sql(info.primary_key())
    if primary and dialect is Dialect.TIDB:
        primary += " CLUSTERED" if info.pk_is_handle or info.is_common_handle else " NONCLUSTERED"
    if primary:
        lines.append(primary)
    lines += [index_sql(index, dialect) for index in plain_indexes(info, dialect)]
    lines += [f"CONSTRAINT {quote(name)} CHECK ({text})" for name, text in checks(info, dialect).items()]
    words = [f"CREATE TABLE {qualified(db, info.name)} (\n  " + ",\n  ".join(lines) + "\n)", "ENGINE=InnoDB"]
    start = int(info.raw.get("auto_inc_id") or 0)
    if start > 1 and automatic is not None:
        words.append(f"AUTO_INCREMENT={start}")
    words.append(table_charset(info, dialect))
    if info.comment:
        words.append(f"COMMENT={literal(info.comment)}")
    if dialect is Dialect.TIDB:
        words += tidb_options(info).values()
    partition = partition_sql(info)
    if partition:
        words.append(partition)
    return " ".join(word for word in words if word)


def tidb_options(info: TableInfo) -> dict[str, str]:
    """Options that only a TiDB has, by what they are about."""
    raw, found = info.raw, {}
    if int(raw.get("ShardRowIDBits") or 0):
        found["shard"] = f"SHARD_ROW_ID_BITS={int(raw['ShardRowIDBits'])}"
    if int(raw.get("auto_id_cache") or 0):
        found["cache"] = f"AUTO_ID_CACHE={int(raw['auto_id_cache'])}"
    if int(raw.get("auto_random_bits") or 0) and int(raw.get("auto_rand_id") or 0) > 1:
        found["random"] = f"AUTO_RANDOM_BASE={min(int(raw['auto_rand_id']), _largest_random_base(info))}"
    ttl = raw.get("ttl_info")
    if ttl:
        unit = ttl.get("interval_time_unit")
        unit = unit if isinstance(unit, str) else _TIME_UNITS[int(unit or 0)]
        found["ttl"] = (
            f"TTL={quote(cistr(ttl.get('column')))} + INTERVAL {ttl.get('interval_expr')} {unit} TTL_ENABLE='OFF'"
        )
    return found


def _largest_random_base(info: TableInfo) -> int:
    """What a TiDB takes. The next id of a table whose ids have run out lies above it, by up to an id cache."""
    raw = info.raw
    first = info.primary_key()[0].name.lower()  # the key begins with the column
    unsigned = any(column.type.unsigned for column in info.public_columns if column.name.lower() == first)
    bits = int(raw.get("auto_random_range_bits") or 64) - int(raw["auto_random_bits"]) - (not unsigned)
    return int((1 << bits) - 1)


def table_charset(info: TableInfo, dialect: Dialect) -> str:
    """``DEFAULT CHARACTER SET … COLLATE …``."""
    charset = charset_sql(dialect, info.charset, info.collate, checked=not info.of_tidb)
    return f"DEFAULT {charset}" if charset else ""


def auto_increment_column(info: TableInfo) -> ColumnInfo | None:
    """The AUTO_INCREMENT column, if a key begins with it: MySQL wants that, TiDB does not."""
    first = {cols[0].name.lower() for cols in (info.primary_key(), *(i.columns for i in plain_indexes(info))) if cols}
    return next(
        (
            column
            for column in info.public_columns
            if column.type.flag & ColumnFlag.AUTO_INCREMENT and column.name.lower() in first
        ),
        None,
    )


def primary_sql(key: tuple[IndexColumn, ...]) -> str:
    """``PRIMARY KEY (…)``; '' when there is none."""
    return f"PRIMARY KEY ({_parts(key)})" if key else ""


def plain_indexes(info: TableInfo, dialect: Dialect | None = None) -> list[IndexInfo]:
    """Public secondary indexes over columns that the target has; on a TiDB those over expressions too.

    What a MySQL or TiDB cannot have is not on one.
    """
    lacking = _lacking(info, dialect)
    found = [i for i in info.indexes if i.public and not i.primary and i.id not in lacking]
    if dialect is Dialect.TIDB:
        hidden = {c.name.lower(): c.generated_expr for c in info.columns if c.hidden}
        return [replace(index, columns=_with_expressions(index.columns, hidden)) for index in found]
    visible = {column.name.lower() for column in info.public_columns}
    return [
        index
        for index in found
        if not index.raw.get("mv_index") and all(part.name.lower() in visible for part in index.columns)
    ]


def _lacking(info: TableInfo, dialect: Dialect | None) -> dict[int, str]:
    """Ids of the indexes that a MySQL or TiDB cannot have, and why. A MariaDB's JSON is text, a key any text."""
    if dialect is None or dialect is Dialect.MARIADB:
        return {}
    types = {column.name.lower(): column.type for column in info.public_columns}
    checked = not info.of_tidb

    def why(index: IndexInfo) -> str:
        size = 0
        for part in index.columns:
            kind = types.get(part.name.lower())
            if kind is None:
                continue
            if kind.tp == MysqlType.JSON or (kind.tp in BLOBS and part.length < 0):
                return _ONLY_A_MARIADB
            if kind.tp not in STRINGS:
                size += _size_in_key(kind)
            else:
                charset = charset_there(dialect, kind.charset or "binary", checked=checked)
                length = part.length if part.length >= 0 else kind.flen
                if kind.tp == MysqlType.TINY_BLOB and dialect is Dialect.MYSQL and key_bytes(charset, length) > 255:
                    return "a key over TINYTEXT has 255 bytes at most"
                size += key_bytes(charset, length)
        return _ONLY_A_MARIADB if checked and index.unique and size > _KEY_BYTES else ""

    found = {index.id: why(index) for index in info.indexes if not index.primary}
    return {id_: said for id_, said in found.items() if said}


def _size_in_key(kind: FieldType) -> int:
    """Of a column that is no string, in a key."""
    if kind.tp == MysqlType.NEWDECIMAL:
        whole, scale = kind.flen - max(kind.decimal, 0), max(kind.decimal, 0)
        return sum(4 * (digits // 9) + (digits % 9 + 1) // 2 for digits in (whole, scale))
    if kind.tp == MysqlType.BIT:
        return (kind.flen + 7) // 8
    if kind.tp in _TIMES:
        return _TIMES[kind.tp] + (max(kind.decimal, 0) + 1) // 2
    return _SIZES.get(kind.tp, 8)


def late_indexes(info: TableInfo, dialect: Dialect) -> list[IndexInfo]:
    """Indexes that a server sorts faster over rows that are there than it keeps them while these come.

    None that rows could break, that the table needs for its AUTO_INCREMENT column, or that is over a computed column;
    nor those before such a one, so that the order stays. A TiDB has none: it builds them from its own copy of the rows.
    """
    if dialect is Dialect.TIDB:
        return []
    automatic = auto_increment_column(info)
    first = automatic.name.lower() if automatic is not None else ""
    computed = {column.name.lower() for column in info.public_columns if column.generated}

    def can_wait(index: IndexInfo) -> bool:
        names = [part.name.lower() for part in index.columns]
        return names[0] != first and computed.isdisjoint(names)

    # A server puts unique ones first by itself.
    plain = [index for index in plain_indexes(info, dialect) if not index.unique]
    return list(takewhile(can_wait, reversed(plain)))[::-1]


def _with_expressions(parts: tuple[IndexColumn, ...], hidden: dict[str, str]) -> tuple[IndexColumn, ...]:
    return tuple(replace(part, expression=hidden.get(part.name.lower(), "")) for part in parts)


def left_out(info: TableInfo, dialect: Dialect, *, bare: bool = False) -> list[str]:
    """What the target's table lacks, or has otherwise, in words."""
    kept = {index.id for index in plain_indexes(on_target(info, dialect, bare=bare), dialect)}
    why, other = _lacking(info, dialect), "it is over an expression or a column that is left out"
    notes = notes_of(info, dialect, bare=bare) + [
        f"index {index.name} of {info.name} is left out: {why.get(index.id, other)}"
        for index in info.indexes
        if index.public and not index.primary and index.id not in kept
    ]
    kept_keys = foreign_keys("", info)
    return notes + [
        f"foreign key {cistr(fk.get('fk_name'))} of {info.name} is left out: the source does not enforce it"
        for fk in info.raw.get("fk_info") or ()
        if fk.get("state", 5) == 5 and int(fk.get("id") or 0) not in kept_keys
    ]


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """``name``: what it is called on a target; ``sql``: ``CONSTRAINT … FOREIGN KEY … REFERENCES …``.

    ``columns``: its own, in lower case.
    """

    name: str
    sql: str
    columns: frozenset[str]


def foreign_keys(db: str, info: TableInfo, dialect: Dialect | None = None) -> dict[int, ForeignKey]:
    """Foreign keys that the source enforces, by their id, which a table never gives twice.

    Others (TiDB before 6.6 only wrote them down) are left out. TiDB calls those without a name fk_1, fk_2 in each
    table, another target wants one name in a database: they get those that MySQL gives, which InnoDB renames with the
    table.
    """
    found = {}
    for raw in info.raw.get("fk_info") or ():
        if raw.get("state", 5) != 5 or not int(raw.get("version") or 0):
            continue
        said = cistr(raw.get("fk_name"))
        number = None if dialect is Dialect.TIDB else re.fullmatch(r"fk_(\d+)", said, re.IGNORECASE)
        name = _fitting(info.name, f"_ibfk_{number[1]}") if number else said
        names = [cistr(each) for each in raw.get("cols") or ()]
        to = qualified(cistr(raw.get("ref_schema")) or db, cistr(raw.get("ref_table")))
        words = [f"CONSTRAINT {quote(name)} FOREIGN KEY ({column_list(names)})"]
        words.append(f"REFERENCES {to} ({column_list([cistr(each) for each in raw.get('ref_cols') or ()])})")
        for what, option in (("DELETE", raw.get("on_delete")), ("UPDATE", raw.get("on_update"))):
            if int(option or 0) in _REFERENCE_OPTIONS:
                words.append(f"ON {what} {_REFERENCE_OPTIONS[int(option)]}")
        found[int(raw.get("id") or 0)] = ForeignKey(name, " ".join(words), frozenset(map(str.lower, names)))
    return found


def add_foreign_keys(db: str, info: TableInfo, dialect: Dialect | None = None) -> list[str]:
    """Statements that add a table's foreign keys, one each."""
    keys = foreign_keys(db, info, dialect).values()
    return [f"ALTER TABLE {qualified(db, info.name)} ADD {key.sql}" for key in keys]


def _fitting(table: str, suffix: str) -> str:
    """A name of 64 characters at most."""
    if len(table + suffix) <= 64:
        return table + suffix
    return f"{table[: 64 - len(suffix) - 9]}_{hashlib.sha256(table.encode()).hexdigest()[:8]}{suffix}"


def index_sql(index: IndexInfo, dialect: Dialect, *, visibility: bool = True) -> str:
    """``UNIQUE KEY `a` (`b`(10)) COMMENT '…'``, with what says that it is invisible unless told otherwise."""
    words = ["UNIQUE KEY" if index.unique else "KEY", quote(index.name), f"({_parts(index.columns)})"]
    if index.comment:
        words.append(f"COMMENT {literal(index.comment)}")
    if index.invisible and visibility:
        words.append(visibility_sql(index, dialect))
    return " ".join(words)


def visibility_sql(index: IndexInfo, dialect: Dialect) -> str:
    """Whether the planner sees it, as the target says it."""
    if dialect is Dialect.MARIADB:
        return "IGNORED" if index.invisible else "NOT IGNORED"
    return "INVISIBLE" if index.invisible else "VISIBLE"


def _parts(parts: tuple[IndexColumn, ...]) -> str:
    return ",".join(map(_part, parts))


def _part(part: IndexColumn) -> str:
    if part.expression:
        return f"({part.expression})"
    return quote(part.name) + (f"({part.length})" if part.length > 0 else "")


def checks(info: TableInfo, dialect: Dialect | None = None) -> dict[str, str]:
    """Enforced CHECK constraints, name -> expression.

    A MySQL wants one name in a database, where others want it in a table: they get those that it gives, which it
    renames with the table.
    """
    found = {}
    for each in info.raw.get("constraint_info") or ():
        if each.get("enforced") and each.get("state", 5) == 5:
            number = int(each.get("id") or 0) if dialect is Dialect.MYSQL else 0
            name = _fitting(info.name, f"_chk_{number}") if number else cistr(each.get("constraint_name"))
            found[name] = str(each.get("expr_string"))
    return found


def partition_sql(info: TableInfo) -> str:
    """``PARTITION BY …`` with every partition named; '' for a table that is not partitioned."""
    partition = info.raw.get("partition") or {}
    kind = partition_kind(info)
    if not kind:
        return ""
    names = [cistr(column) for column in partition.get("columns") or ()]
    if kind == "KEY":
        by = f"KEY ({column_list(names)})"
    elif names:
        by = f"{kind} COLUMNS ({column_list(names)})"
    else:
        by = f"{kind} ({partition.get('expr') or ''})"
    return f"PARTITION BY {by} ({','.join(partition_definition(d) for d in partition_definitions(info))})"


def partition_kind(info: TableInfo) -> str:
    """RANGE, HASH, LIST or KEY; '' for a table that is not partitioned."""
    partition = info.raw.get("partition") or {}
    if not partition.get("enable"):
        return ""
    kind = _PARTITION_KINDS.get(int(partition.get("type") or 0))
    if kind is None:
        raise SchemaError(f"table {info.name} has the unknown partition type {partition.get('type')}")
    return kind


def is_hashed(info: TableInfo) -> bool:
    """Whether the number of partitions decides in which a row lies."""
    return partition_kind(info) in {"HASH", "KEY"}


def spread_otherwise(info: TableInfo) -> str:
    """How a table is partitioned of which MySQL and MariaDB may have rows in another partition than TiDB; '' = alike.

    KEY is a hash of their own. A HASH that is NULL counts as 0 in TiDB, and as the least integer there.
    """
    kind, count = partition_kind(info), len(partition_definitions(info))
    if kind == "KEY":
        return "BY KEY"
    if kind != "HASH" or count & (count - 1) == 0:
        return ""
    expression = str((info.raw.get("partition") or {}).get("expr") or "")
    sure = any(
        quote(column.name.lower()) == expression.lower() and column.type.not_null for column in info.public_columns
    )
    return "" if sure else "by a HASH of something else than a NOT NULL column"


def hash_condition(info: TableInfo, partitions: Container[str]) -> str:
    """Which rows TiDB has in these partitions of a table BY HASH; '' for another kind.

    As TiDB's `locateHashPartition` does: a 64 bit integer with a sign, NULL is 0, and a remainder has none.
    """
    if partition_kind(info) != "HASH":
        return ""
    definitions = partition_definitions(info)
    numbers = [str(at) for at, each in enumerate(definitions) if cistr(each["name"]) in partitions]
    expression = str((info.raw.get("partition") or {}).get("expr") or "")
    return f"COALESCE(ABS(MOD(CAST({expression} AS SIGNED), {len(definitions)})), 0) IN ({','.join(numbers)})"


def partition_definitions(info: TableInfo) -> list[dict[str, Any]]:
    """Partitions in order, as the job has them: id, name, less_than, in_values, comment."""
    return list((info.raw.get("partition") or {}).get("definitions") or ())


def partition_definition(definition: dict[str, Any]) -> str:
    """``PARTITION `p0` VALUES LESS THAN (10)``."""
    words = [f"PARTITION {quote(cistr(definition['name']))}"]
    # Bounds are SQL expressions in TiDB's own spelling, text in quotes included.
    if definition.get("less_than"):
        words.append(f"VALUES LESS THAN ({','.join(map(str, definition['less_than']))})")
    elif definition.get("in_values"):
        values = [_in_value(value) for value in definition["in_values"]]
        words.append("DEFAULT" if values == ["DEFAULT"] else f"VALUES IN ({','.join(values)})")
    if definition.get("comment"):
        words.append(f"COMMENT = {literal(str(definition['comment']))}")
    return " ".join(words)


def _in_value(value: list[str]) -> str:
    return str(value[0]) if len(value) == 1 else f"({','.join(map(str, value))})"


def create_view(db: str, info: TableInfo) -> str:
    """CREATE OR REPLACE VIEW. The definer is whoever loads: the source's users are not here."""
    view = info.raw.get("view") or {}
    names = [cistr(name) for name in view.get("view_cols") or ()]
    return (
        f"CREATE OR REPLACE ALGORITHM={_VIEW_ALGORITHMS[int(view.get('view_algorithm') or 0)]} "
        f"DEFINER=CURRENT_USER SQL SECURITY {_VIEW_SECURITY[int(view.get('view_security') or 0)]} "
        f"VIEW {qualified(db, info.name)}{f' ({column_list(names)})' if names else ''} AS {view.get('view_select')}"
    )


def create_sequence(db: str, info: TableInfo) -> str:
    """CREATE SEQUENCE, as MariaDB spells it."""
    return (
        f"CREATE SEQUENCE {qualified(db, info.name)} START WITH {sequence_raw(info)['start']} {sequence_options(info)}"
    )


def sequence_options(info: TableInfo) -> str:
    """Options that ALTER SEQUENCE takes as well."""
    sequence = sequence_raw(info)
    cache = f"CACHE {sequence['cache_value']}" if sequence.get("cache") else "NOCACHE"
    cycle = "CYCLE" if sequence.get("cycle") else "NOCYCLE"
    return (
        f"MINVALUE {sequence['min_value']} MAXVALUE {sequence['max_value']} "
        f"INCREMENT BY {sequence['increment']} {cache} {cycle}"
    )


def sequence_raw(info: TableInfo) -> dict[str, Any]:
    """start, min_value, max_value, increment, cache, cache_value, cycle."""
    raw = info.raw.get("sequence") or {}
    return {key.removeprefix("sequence_"): value for key, value in raw.items()}
