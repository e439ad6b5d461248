"""One column of information_schema as a ColumnInfo of a DDL job; ids, offsets and origin defaults come later."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from pumphouse.codec.datum import check_field
from pumphouse.errors import CodecError
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import INTEGERS, STRINGS, ColumnFlag, FieldType, MysqlType
from pumphouse.schema.column_sql import TYPES_CALLED
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import LITERAL, elements_of, unquote

Raw = dict[str, Any]
Row = Mapping[str, Any]

_TYPE = re.compile(r"(\w+)(?:\((.*)\))?((?: unsigned| zerofill)*)(?P<more>.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
NOW = re.compile(r"(?:current_timestamp|now)(?:\((\d*)\))?", re.IGNORECASE)

# The length that TiDB gives a type when none is said.
_LENGTHS = {
    MysqlType.TINY: 4, MysqlType.SHORT: 6, MysqlType.INT24: 9, MysqlType.LONG: 11, MysqlType.LONGLONG: 20,
    MysqlType.FLOAT: 12, MysqlType.DOUBLE: 22, MysqlType.NEWDECIMAL: 10, MysqlType.BIT: 1, MysqlType.YEAR: 4,
    MysqlType.DATE: 10, MysqlType.DATETIME: 19, MysqlType.TIMESTAMP: 19, MysqlType.TIME: 10,
    MysqlType.STRING: 1, MysqlType.VARCHAR: 0, MysqlType.TINY_BLOB: 255, MysqlType.BLOB: 65_535,
    MysqlType.MEDIUM_BLOB: 16_777_215, MysqlType.LONG_BLOB: 4_294_967_295, MysqlType.JSON: 4_294_967_295,
    MysqlType.ENUM: 0, MysqlType.SET: 0,
}  # fmt: skip
_TIMES = {MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.TIME}
_TEXTS = STRINGS | {MysqlType.ENUM, MysqlType.SET}


class Inexpressible(Exception):
    """What no DDL job can say, in words; the caller names the place."""


def is_integer(column: Raw) -> bool:
    """Whether it can be a row's handle."""
    return column["type"]["Tp"] in INTEGERS


def named(name: str) -> Raw:
    """A name as jobs have it."""
    return {"O": name, "L": name.lower()}


def column_info(row: Row, dialect: Dialect, *, json: bool, notes: list[str]) -> Raw:
    """ColumnInfo of one row of information_schema.COLUMNS; id and offset are 0.

    Args:
        row: Names in lower case; expressions and defaults as they are (`Shown.column`).
        dialect: Whose information_schema.
        json: It is MariaDB's JSON: longtext with the check json_valid.
        notes: Gets what is left out.

    Raises:
        Inexpressible: its type, or its default.
    """
    extra = str(row["extra"]).lower()
    field = _field("json" if json else str(row["column_type"]), row, notes)
    generated = str(row["generation_expression"] or "")
    default, bit, is_expr = (None, None, False)
    if "auto_increment" in extra:
        field["Flag"] |= ColumnFlag.AUTO_INCREMENT
    elif not generated:
        default, bit, is_expr = _default(row, field, dialect)
    if "on update" in extra:
        field["Flag"] |= ColumnFlag.ON_UPDATE_NOW
    if "invisible" in extra:
        notes.append("it is invisible: on a target it is not")
    if row["is_nullable"] == "NO":
        field["Flag"] |= ColumnFlag.NOT_NULL
        if default is None and bit is None:
            field["Flag"] |= ColumnFlag.NO_DEFAULT
    field["Flag"] = int(field["Flag"])
    return {
        "id": 0,
        "name": named(str(row["column_name"])),
        "offset": 0,
        "origin_default": None,
        "origin_default_bit": None,
        "default": default,
        "default_bit": bit,
        "default_is_expr": is_expr,
        "generated_expr_string": generated,
        "generated_stored": bool(generated) and "virtual" not in extra,
        "dependences": {name: {} for name in re.findall(r"`([^`]+)`", generated)} or None,
        "type": field,
        "state": SchemaState.PUBLIC.value,
        "comment": str(row["column_comment"] or ""),
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }


def _field(text: str, row: Row, notes: list[str]) -> Raw:
    match = _TYPE.fullmatch(text)
    tp = None if match is None else TYPES_CALLED.get(match[1])
    length = None if tp is None else _LENGTHS.get(tp)
    if match is None or tp is None or length is None:
        raise Inexpressible(f"the type {text} is not known to binlogs")
    if "COMPRESSED" in match["more"]:
        notes.append("it is compressed: on a target it is not")
    inside, unsigned = match[2] or "", "unsigned" in match[3]
    decimal, elems = (-1 if tp in (MysqlType.FLOAT, MysqlType.DOUBLE) else 0), None
    if tp in (MysqlType.ENUM, MysqlType.SET):
        elems = list(elements_of(inside))
        length = max(map(len, elems)) if tp is MysqlType.ENUM else sum(map(len, elems)) + len(elems) - 1
    elif tp in _TIMES and inside:
        decimal = int(inside)
        length += 1 + decimal
    elif inside:
        numbers = [int(part) for part in inside.split(",")]
        length = numbers[0]
        decimal = numbers[1] if len(numbers) > 1 else decimal
    elif unsigned and tp in INTEGERS and tp is not MysqlType.LONGLONG:
        length -= 1
    charset = str(row["character_set_name"] or "") if tp in _TEXTS else ""
    flag = ColumnFlag(0)
    if unsigned or tp in (MysqlType.BIT, MysqlType.YEAR):
        flag |= ColumnFlag.UNSIGNED
    if "zerofill" in match[3] or tp is MysqlType.YEAR:
        flag |= ColumnFlag.ZEROFILL
    is_text = bool(charset) and charset != "binary"
    if not is_text and (tp in _TEXTS or tp is MysqlType.JSON or tp is MysqlType.DATE or tp in _TIMES):
        flag |= ColumnFlag.BINARY
    field = {
        "Tp": tp.value,
        "Flag": flag,
        "Flen": length,
        "Decimal": decimal,
        "Charset": charset if is_text else "binary",
        "Collate": str(row["collation_name"]) if is_text else "binary",
        "Elems": elems,
        "ElemsIsBinaryLit": None,
        "Array": False,
    }
    try:
        check_field(FieldType.from_dict(field))
    except CodecError as error:
        raise Inexpressible(f"binlogs have no {text}: {error.message}") from error
    return field


def _default(row: Row, field: Raw, dialect: Dialect) -> tuple[str | None, str | None, bool]:  # noqa: PLR0911 - one a kind
    """(text, bits in base64, is it an expression): the DEFAULT in force for new rows."""
    if row["column_default"] is None:
        return None, None, False
    text = str(row["column_default"])
    tp = field["Tp"]
    if (now := NOW.fullmatch(text)) and tp in (MysqlType.DATETIME, MysqlType.TIMESTAMP):
        if int(now[1] or 0) != field["Decimal"]:
            return text, None, True
        return "CURRENT_TIMESTAMP" + (f"({field['Decimal']})" if field["Decimal"] else ""), None, False
    if tp == MysqlType.BIT and text.startswith("b'"):
        size = (field["Flen"] + 7) // 8
        return None, base64.b64encode(int(text[2:-1] or "0", 2).to_bytes(size, "big")).decode(), False
    if dialect is Dialect.MYSQL:
        if "default_generated" in str(row["extra"]).lower():
            return text, None, True
        if text.startswith("0x") and tp in _TEXTS and field["Charset"] == "binary":
            text = bytes.fromhex(text[2:]).decode("latin-1")
    elif text.upper() == "NULL":
        return None, None, False
    elif LITERAL.fullmatch(text):
        text = unquote(text[1:-1])
    elif not _NUMBER.fullmatch(text):
        return text, None, True
    if tp in _TEXTS and field["Charset"] == "binary" and (not text.isascii() or "?" in text):
        # MariaDB prints ? for a byte that is no text: what the default is cannot be told.
        raise Inexpressible("the default has bytes that are no text")
    return text, None, False
