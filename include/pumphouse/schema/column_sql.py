"""A column's definition, from its ColumnInfo. What only TiDB knows (AUTO_RANDOM) is for targets that are one."""

from __future__ import annotations

import base64
from typing import Any

from pumphouse.errors import SchemaError
from pumphouse.model.table import INTEGERS, STRINGS, ColumnFlag, ColumnInfo, FieldType, MysqlType, TableInfo
from pumphouse.schema.dialect import Dialect, charset_sql
from pumphouse.schema.ident import literal, quote

# Of text, and of bytes.
_CHARS = {
    MysqlType.VAR_STRING: ("varchar", "varbinary"), MysqlType.VARCHAR: ("varchar", "varbinary"),
    MysqlType.STRING: ("char", "binary"),
}  # fmt: skip
BLOBS = {
    MysqlType.TINY_BLOB: ("tinytext", "tinyblob"), MysqlType.BLOB: ("text", "blob"),
    MysqlType.MEDIUM_BLOB: ("mediumtext", "mediumblob"), MysqlType.LONG_BLOB: ("longtext", "longblob"),
}  # fmt: skip
_STRINGS = _CHARS | BLOBS
_OTHERS = {
    MysqlType.TINY: "tinyint", MysqlType.SHORT: "smallint", MysqlType.INT24: "mediumint", MysqlType.LONG: "int",
    MysqlType.LONGLONG: "bigint", MysqlType.FLOAT: "float", MysqlType.DOUBLE: "double",
    MysqlType.NEWDECIMAL: "decimal", MysqlType.BIT: "bit", MysqlType.YEAR: "year", MysqlType.NEWDATE: "date",
    MysqlType.DATE: "date", MysqlType.TIME: "time", MysqlType.DATETIME: "datetime", MysqlType.TIMESTAMP: "timestamp",
    MysqlType.ENUM: "enum", MysqlType.SET: "set", MysqlType.JSON: "json",
}  # fmt: skip
# By the name that a server's information_schema has (DATA_TYPE).
TYPES_CALLED: dict[str, MysqlType] = {
    **{name: tp for tp, names in _STRINGS.items() for name in names},
    **{name: tp for tp, name in _OTHERS.items()},  # of two the later one: DATE, not NEWDATE
}


def type_name(field: FieldType) -> str:
    """Name of a type, without its size: as servers have it in information_schema; SchemaError for no column's type."""
    if field.tp in STRINGS:
        return _STRINGS[MysqlType(field.tp)][field.charset == "binary"]
    try:
        return _OTHERS[MysqlType(field.tp)]
    except ValueError:
        raise SchemaError(f"no column can have the type code {field.tp}", tp=field.tp) from None
    except KeyError:
        raise SchemaError(f"no column can have the type {MysqlType(field.tp).name}", tp=field.tp) from None


def type_sql(field: FieldType, dialect: Dialect, *, checked: bool = False) -> str:  # noqa: PLR0911 - one a form
    """Type with its attributes: ``bigint(20) unsigned``, ``varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin``.

    ``checked``: as in `charset_sql`.
    """
    name, tp = type_name(field), field.tp
    if tp in STRINGS or tp in (MysqlType.ENUM, MysqlType.SET):
        return _text(name, field, dialect, checked=checked)
    if tp in INTEGERS:
        return name + _width(field, dialect) + _sign(field)
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        digits = f"({field.flen},{field.decimal})" if field.decimal >= 0 and field.flen >= 0 else ""
        return name + digits + _sign(field)
    if tp == MysqlType.NEWDECIMAL:
        return f"{name}({field.flen},{max(field.decimal, 0)})" + _sign(field)
    if tp == MysqlType.BIT:
        return f"{name}({max(field.flen, 1)})"
    if tp in (MysqlType.TIME, MysqlType.DATETIME, MysqlType.TIMESTAMP) and field.decimal > 0:
        return f"{name}({field.decimal})"
    # JSON is on MariaDB longtext with a check json_valid(), by which tools know the column.
    return name


def column_sql(
    column: ColumnInfo,
    dialect: Dialect,
    *,
    auto_increment: bool = True,
    table: TableInfo | None = None,
    default: str | None = None,
) -> str:
    """Definition as CREATE TABLE and ALTER TABLE take it, name included.

    ``table``: whose column it is; ``default``: another DEFAULT clause than its own ('' = none).
    """
    clause = default_sql(column, dialect) if default is None else default
    checked = table is not None and not table.of_tidb
    text = definition(column, dialect, clause, auto_increment=auto_increment, checked=checked)
    bits = int(table.raw.get("auto_random_bits") or 0) if table is not None and dialect is Dialect.TIDB else 0
    # The key begins with the random column.
    if table is None or not bits or [column.name.lower()] != [part.name.lower() for part in table.primary_key()[:1]]:
        return text
    spread = int(table.raw.get("auto_random_range_bits") or 0)
    return f"{text} AUTO_RANDOM({bits}{f',{spread}' if spread not in (0, 64) else ''})"


def definition(
    column: ColumnInfo, dialect: Dialect, default: str, *, auto_increment: bool = True, checked: bool = False
) -> str:
    """`column_sql` with another DEFAULT clause ('' = none); ``checked``: as in `charset_sql`."""
    words = [quote(column.name), type_sql(column.type, dialect, checked=checked)]
    not_null = column.type.not_null
    if column.generated:
        kind = "STORED" if column.generated_stored else "VIRTUAL"
        words.append(f"GENERATED ALWAYS AS ({column.generated_expr}) {kind}")
        # MariaDB's grammar has no NOT NULL here.
        if dialect is not Dialect.MARIADB and not_null:
            words.append("NOT NULL")
    else:
        words.append("NOT NULL" if not_null else "NULL")
        # MySQL has none of floats any more.
        numbered = dialect is not Dialect.MYSQL or column.type.tp not in (MysqlType.FLOAT, MysqlType.DOUBLE)
        if auto_increment and numbered and column.type.flag & ColumnFlag.AUTO_INCREMENT:
            words.append("AUTO_INCREMENT")
        elif default:
            words.append(default)
        if column.type.flag & ColumnFlag.ON_UPDATE_NOW:
            words.append(f"ON UPDATE {_now(column)}")
    if column.comment:
        words.append(f"COMMENT {literal(column.comment)}")
    return " ".join(words)


def default_sql(column: ColumnInfo, dialect: Dialect) -> str:
    """DEFAULT clause in force for new rows."""
    if column.generated or column.type.flag & ColumnFlag.AUTO_INCREMENT:
        return ""
    if column.default_is_expr:
        text = str(column.default)
        if dialect is Dialect.TIDB and "nextval" in text.lower():
            return f"DEFAULT {text}"
        # Values come with the rows; only sequences of MySQL cannot be named at all.
        return "" if dialect is Dialect.MYSQL and "nextval" in text.lower() else f"DEFAULT ({text})"
    return _default(column, dialect, column.default, column.default_bit)


def fill_sql(column: ColumnInfo, dialect: Dialect) -> str:
    """DEFAULT clause that gives old rows the value which ADD COLUMN gave them at the source.

    TiDB keeps that value, evaluated, as the origin default; so CURRENT_TIMESTAMP is not evaluated here again.
    """
    if column.generated:
        return ""
    if column.origin_default is None and column.origin_default_bit is None:
        return "" if column.type.not_null else "DEFAULT NULL"
    return _default(column, dialect, column.origin_default, column.origin_default_bit)


def _default(column: ColumnInfo, dialect: Dialect, value: Any, bit: str | None) -> str:
    tp = column.type.tp
    if tp == MysqlType.BIT and bit:
        return f"DEFAULT b'{int.from_bytes(base64.b64decode(bit), 'big'):b}'"
    if value is None:
        return "" if column.type.not_null else "DEFAULT NULL"
    text = str(value)
    if tp in (MysqlType.TIMESTAMP, MysqlType.DATETIME) and text.upper().startswith("CURRENT_TIMESTAMP"):
        return f"DEFAULT {_now(column)}"
    if tp == MysqlType.BIT:
        return f"DEFAULT b'{int.from_bytes(text.encode('latin-1'), 'big'):b}'"
    if tp not in BLOBS and tp != MysqlType.JSON:
        return f"DEFAULT {literal(text)}"
    # A TiDB takes none, and gives such a column of an old row the same value as the source did.
    return {Dialect.TIDB: "", Dialect.MYSQL: f"DEFAULT ({literal(text)})"}.get(dialect, f"DEFAULT {literal(text)}")


def _now(column: ColumnInfo) -> str:
    return "CURRENT_TIMESTAMP" + (f"({column.type.decimal})" if column.type.decimal > 0 else "")


def _width(field: FieldType, dialect: Dialect) -> str:
    """Display width; MySQL 8 warns about any but these."""
    zerofill = bool(field.flag & ColumnFlag.ZEROFILL)
    if field.flen <= 0 or (
        dialect is Dialect.MYSQL and not zerofill and not (field.tp == MysqlType.TINY and field.flen == 1)
    ):
        return ""
    return f"({field.flen})"


def _sign(field: FieldType) -> str:
    return (" unsigned" if field.unsigned else "") + (" zerofill" if field.flag & ColumnFlag.ZEROFILL else "")


def _text(name: str, field: FieldType, dialect: Dialect, *, checked: bool) -> str:
    binary = field.charset == "binary" and field.tp in STRINGS
    if field.tp in _CHARS:
        name = f"{name}({max(field.flen, 0)})"
    elif field.tp not in BLOBS:
        name = f"{name}({','.join(map(literal, field.elems))})"
    source = field.charset
    if (
        source == "ascii"
        and not checked
        and dialect is not Dialect.TIDB
        and not all(each.isascii() for each in field.elems)
    ):
        source = "latin1"  # TiDB checks no elements: as with latin1, only a set that takes every text keeps them
    charset = "" if binary else charset_sql(dialect, source, field.collate, checked=checked)
    return f"{name} {charset}".rstrip()
