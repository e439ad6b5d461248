"""Datums: a flag byte and a body; and what each column type puts into one.

``Kind`` is how a column's values are held: the loader's values are int, float, str (decimals, dates, times, JSON text),
bytes (CHAR, TEXT, BLOB, …) and None. ENUM, SET and BIT are unsigned integers, YEAR is a signed one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pumphouse.codec.bytes import append_compact, read_compact, read_comparable
from pumphouse.codec.decimal import MAX_PRECISION, MAX_SCALE, encode_decimal, read_decimal
from pumphouse.codec.json import encode_json, json_size
from pumphouse.codec.number import (
    SIGN,
    append_u64,
    append_uvarint,
    append_varint,
    float_to_ordered,
    ordered_to_float,
    read_u64,
    read_uvarint,
    read_varint,
    round_to_float32,
)
from pumphouse.codec.time import fsp_of, pack_datetime, parse_duration
from pumphouse.errors import CodecError
from pumphouse.model.table import INTEGERS, STRINGS, FieldType, MysqlType

NULL, COMPARABLE, COMPACT, INT, UINT, FLOAT, DECIMAL, DURATION = range(8)
MAX_FSP = 6
VARINT, UVARINT, JSON = 0x08, 0x09, 0x0A

Value = int | float | str | bytes | None


class Kind(IntEnum):
    """How the values of a column are held. mypy names the functions that have to know a new one."""

    INT = 0
    UINT = 1
    FLOAT = 2
    DOUBLE = 3
    DECIMAL = 4
    DATE = 5
    DATETIME = 6
    TIME = 7
    JSON = 8
    BYTES = 9
    ENUM = 10
    SET = 11


_KINDS: dict[int, Kind] = {
    **dict.fromkeys(INTEGERS, Kind.INT),
    **dict.fromkeys(STRINGS, Kind.BYTES),
    MysqlType.YEAR: Kind.INT,
    MysqlType.FLOAT: Kind.FLOAT,
    MysqlType.DOUBLE: Kind.DOUBLE,
    MysqlType.NEWDECIMAL: Kind.DECIMAL,
    MysqlType.DATE: Kind.DATE,
    MysqlType.DATETIME: Kind.DATETIME,
    MysqlType.TIMESTAMP: Kind.DATETIME,
    MysqlType.TIME: Kind.TIME,
    MysqlType.JSON: Kind.JSON,
    MysqlType.ENUM: Kind.ENUM,
    MysqlType.SET: Kind.SET,
    MysqlType.BIT: Kind.UINT,
}
# Flags of a kind's values in rows, the written one first; a duration has its key form in the handles of clustered keys.
FLAGS: dict[Kind, tuple[int, ...]] = {
    Kind.INT: (VARINT,),
    Kind.UINT: (UVARINT,),
    Kind.FLOAT: (FLOAT,),
    Kind.DOUBLE: (FLOAT,),
    Kind.DECIMAL: (DECIMAL,),
    Kind.DATE: (UVARINT,),
    Kind.DATETIME: (UVARINT,),
    Kind.TIME: (VARINT, DURATION),
    Kind.JSON: (JSON,),
    Kind.BYTES: (COMPACT,),
    Kind.ENUM: (UVARINT,),
    Kind.SET: (UVARINT,),
}


class Datum(NamedTuple):
    """One decoded datum: its flag, and int, float, str (decimal) or bytes (strings; JSON in binary form)."""

    flag: int
    value: Value


def kind_of(field: FieldType) -> Kind:
    """How a column's values are held; CodecError for a type that rows never have."""
    kind = _KINDS.get(field.tp)
    if kind is None:
        raise CodecError(f"columns of type code {field.tp} are not supported", tp=field.tp)
    if kind is Kind.INT and field.unsigned and field.tp in INTEGERS:
        return Kind.UINT
    return kind


def check_field(field: FieldType) -> None:
    """CodecError for a column of which not every value has a form in rows."""
    kind = kind_of(field)
    if kind is Kind.DECIMAL and not (1 <= field.flen <= MAX_PRECISION and 0 <= field.decimal <= MAX_SCALE):
        raise CodecError(f"they have at most {MAX_PRECISION} digits and {MAX_SCALE} decimals", tp=field.tp)
    if field.tp == MysqlType.YEAR and field.flen == 2:
        raise CodecError("a year has four digits there", tp=field.tp)
    if kind in (Kind.DATETIME, Kind.TIME) and field.decimal > MAX_FSP:
        raise CodecError(f"a time has at most {MAX_FSP} digits of a second", tp=field.tp)


def type_in_rows(written: FieldType, present: FieldType) -> FieldType:
    """The type to read a column in, of rows that say they are of ``written`` and may be of a version up to ``present``.

    TiDB changes a type without rewriting the rows only where it grows: the present one then reads both. An application
    may change it in another way; its rows are of the version that they say.
    """
    grew = (
        kind_of(written) is kind_of(present)
        and fsp_of(written.decimal) <= fsp_of(present.decimal)
        and present.elems[: len(written.elems)] == written.elems
    )
    return present if grew else written


def read_datum(data: bytes, pos: int) -> tuple[Datum, int]:
    """Read one datum of either form (rows, keys) and the position behind it."""
    if pos >= len(data):
        raise CodecError(f"a datum is missing at offset {pos}", offset=pos)
    flag, at = data[pos], pos + 1
    value: Value
    if flag == NULL:
        value = None
    elif flag == VARINT:
        value, at = read_varint(data, at)
    elif flag == UVARINT:
        value, at = read_uvarint(data, at)
    elif flag == COMPACT:
        value, at = read_compact(data, at)
    elif flag == FLOAT:
        bits, at = read_u64(data, at)
        value = ordered_to_float(bits)
    elif flag == DECIMAL:
        value, at = read_decimal(data, at)
    elif flag == JSON:
        size = json_size(data, at)
        value, at = bytes(data[at : at + size]), at + size
    elif flag == COMPARABLE:
        value, at = read_comparable(data, at)
    elif flag in (INT, UINT, DURATION):
        bits, at = read_u64(data, at)
        value = bits if flag == UINT else bits - SIGN
    else:
        raise CodecError(f"invalid encoded key flag {flag}", offset=pos)
    return Datum(flag, value), at


def encode_value(field: FieldType, value: Value) -> bytes:
    """Datum of a loader value in the form of rows; CodecError when the value does not fit the type."""
    if value is None:
        return bytes((NULL,))
    kind = kind_of(field)
    out = bytearray((FLAGS[kind][0],))
    try:
        _append_body(out, kind, field, value)
    except (TypeError, AttributeError) as error:
        raise CodecError(f"{value!r:.80} is no value of a {kind.name} column: {error}") from error
    return bytes(out)


def _append_body(out: bytearray, kind: Kind, field: FieldType, value: Value) -> None:
    if kind is Kind.INT:
        append_varint(out, _integer(value))
    elif kind in (Kind.UINT, Kind.ENUM, Kind.SET):
        append_uvarint(out, _integer(value))
    elif kind in (Kind.FLOAT, Kind.DOUBLE):
        number = float(_number(value))
        append_u64(out, float_to_ordered(round_to_float32(number) if kind is Kind.FLOAT else number))
    elif kind is Kind.BYTES:
        raw = value.encode() if isinstance(value, str) else bytes(_bytes(value))
        if field.tp == MysqlType.STRING and field.charset == "binary":
            raw = raw.ljust(max(field.flen, 0), b"\0")  # TiDB stores BINARY(n) padded
        append_compact(out, raw)
    else:
        out += _encode_text(kind, field, _text(value))


def _encode_text(kind: Kind, field: FieldType, text: str) -> bytes:
    if kind is Kind.DECIMAL:
        return encode_decimal(text, field.flen, max(field.decimal, 0))
    if kind is Kind.JSON:
        return encode_json(text)
    out = bytearray()
    if kind is Kind.TIME:
        append_varint(out, parse_duration(text))
    else:
        append_uvarint(out, pack_datetime(text))
    return bytes(out)


def _integer(value: Value) -> int:
    if not isinstance(value, int):
        raise TypeError("an integer is needed")
    return value


def _number(value: Value) -> float:
    if not isinstance(value, int | float):
        raise TypeError("a number is needed")
    return value


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes are needed")
    return value


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise TypeError("text is needed")
    return value
