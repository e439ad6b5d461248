"""Values of columns that a row does not have (docs/formats.md, "Missing columns")."""

from __future__ import annotations

import base64
import re

from pumphouse.codec.datum import Kind, Value, kind_of
from pumphouse.codec.decimal import encode_decimal, read_decimal
from pumphouse.codec.number import round_to_float32
from pumphouse.codec.time import fsp_of
from pumphouse.errors import CodecError
from pumphouse.model.table import ColumnInfo, FieldType, MysqlType

_MOST_DIGITS = 65
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def missing_value(column: ColumnInfo) -> Value:
    """Loader value of a column that a row lacks: its origin default, NULL, or the zero of a NOT NULL column.

    Which version of the column counts, `left_out` says. An origin default is typed here (``"5"`` of an INT is 5), and
    texts of decimals and times get the digits that those of rows have. The zero is the Go tools', without such digits.
    """
    field = column.type
    default = column.origin_default
    if field.tp == MysqlType.BIT and column.origin_default_bit is not None:
        return int.from_bytes(base64.b64decode(column.origin_default_bit), "big")
    if default is None:
        if not field.not_null:
            return None
        if field.tp == MysqlType.STRING and field.charset == "binary":
            return b"\0" * max(field.flen, 0)
        return _zero(kind_of(field))
    try:
        return _typed(field, default)
    except (ValueError, TypeError) as error:
        raise CodecError(f"the origin default {default!r} of column {column.name} cannot be read") from error


def _zero(kind: Kind) -> Value:  # noqa: PLR0911 - one a kind
    match kind:
        case Kind.INT | Kind.UINT | Kind.ENUM | Kind.SET:
            return 0
        case Kind.FLOAT | Kind.DOUBLE:
            return 0.0
        case Kind.DECIMAL:
            return "0"
        case Kind.DATE:
            return "0000-00-00"
        case Kind.DATETIME:
            return "0000-00-00 00:00:00"
        case Kind.TIME:
            return "00:00:00"
        case Kind.JSON:
            return "null"
        case Kind.BYTES:
            return b""


def left_out(written: ColumnInfo | None, present: ColumnInfo) -> Value:
    """`missing_value` of ``present`` in a row whose version knows it as ``written``.

    Of a NOT NULL column nothing is left out: the row is of a later version, in which it may be NULL.
    """
    return missing_value(present if written is None or written.type.not_null else written)


def _typed(field: FieldType, default: object) -> Value:  # noqa: PLR0911 - one a kind
    text = str(default)
    match kind_of(field):
        case Kind.INT | Kind.UINT:
            return int(read_decimal(encode_decimal(text, _MOST_DIGITS, 0), 0)[0])  # "1.6" of an INT is 2
        case Kind.FLOAT:
            return round_to_float32(float(text))
        case Kind.DOUBLE:
            return float(text)
        case Kind.ENUM:
            return ordinal(field, text)
        case Kind.SET:
            return sum({1 << (ordinal(field, part) - 1) for part in text.split(",") if part})
        case Kind.BYTES:
            # Bytes that are no UTF-8 reach JSON as one code unit each.
            return text.encode("utf-8", "surrogateescape")
        case Kind.DECIMAL | Kind.DATE | Kind.DATETIME | Kind.TIME | Kind.JSON:
            return with_digits(field, text)


def with_digits(field: FieldType, value: Value) -> Value:
    """A value, with the fractional digits of its column where it is the text of a decimal or of a time."""
    kind = kind_of(field)
    if value is None:
        return None
    if kind is Kind.DECIMAL:
        return read_decimal(encode_decimal(str(value), _MOST_DIGITS, max(field.decimal, 0)), 0)[0]
    if kind not in (Kind.DATETIME, Kind.TIME):
        return value
    whole, _, fraction = str(value).partition(".")
    whole += " 00:00:00" if kind is Kind.DATETIME and _DAY.fullmatch(whole) else ""
    fsp = fsp_of(field.decimal)
    return f"{whole}.{fraction[:fsp].ljust(fsp, '0')}" if fsp else whole


def ordinal(field: FieldType, name: str) -> int:
    """Number of a member of an ENUM or SET, from 1; 0 of ''. ValueError."""
    for names, wanted in ((field.elems, name), ([e.casefold() for e in field.elems], name.casefold())):
        if wanted in names:
            return list(names).index(wanted) + 1
    if name.isdecimal() and int(name) <= len(field.elems):
        return int(name)
    if name == "":
        return 0
    raise ValueError(f"{name!r} is no element")
