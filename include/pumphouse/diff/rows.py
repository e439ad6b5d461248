"""What a row is for the comparer: bytes that are equal exactly when the rows are.

JSON counts by value (order of keys, blanks and ``3`` against ``3.0`` do not matter; digits and repeated names do),
FLOAT by its four bytes, ENUM
and SET by their number, everything else by the bytes that the server sends in utf8mb4 and UTC.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any

from pumphouse.proof.servers import AS_UTF8, utf8_bytes

_LENGTH = struct.Struct("<q")
_DIGITS = 17  # tell all doubles apart
_DIGITS_64 = 20
Encode = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as information_schema has it; ``type`` has no display width of integers.

    ``virtual``: its values are in no row and no binlog; so a load may leave it out. ``computed``: by the server.
    """

    name: str
    data_type: str
    type: str
    json: bool
    charset: str = ""
    collation: str = ""
    virtual: bool = False
    computed: bool = False


def quote(name: str) -> str:
    """An identifier in SQL. The comparer has its own: it shares no code with what it judges."""
    return "`" + name.replace("`", "``") + "`"


def select_expression(column: Column) -> str:
    """SQL that brings the value without loss."""
    name = quote(column.name)
    if column.data_type == "float":
        # A FLOAT is printed with six digits; widened to DOUBLE it is printed in full.
        return f"CAST({name} AS DOUBLE)"
    if column.data_type in {"enum", "set"}:
        return f"CAST({name} AS UNSIGNED)"
    if column.json or not column.charset or column.charset in AS_UTF8:
        return name
    # Of what is larger than a packet a server says NULL; the column itself it sends whatever its size.
    return f"COALESCE({utf8_bytes(name, column.charset)}, {name})"


def encoder(column: Column, *, as_json: bool) -> Encode | None:
    """How a value of this column becomes comparable bytes; None = as it is."""
    if as_json:
        return canonical_json
    if column.data_type == "float":
        return float_bytes
    return None


def float_bytes(text: bytes) -> bytes:
    """The four bytes of a FLOAT from its decimal text."""
    return struct.pack("<f", float(text))


def canonical_json(text: bytes) -> bytes:
    """One text, JSON again, for all JSON texts of equal value; a text that is none stands for itself.

    A MariaDB keeps every digit and every name that an object has twice, where a TiDB and a MySQL have doubles and names
    once: those texts are other values.
    """
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number, object_pairs_hook=_Object)
        return _text(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return b"no JSON: " + text


class _Object(list[tuple[str, Any]]):
    """Names and values, names that are there twice included."""


class _Number(str):
    """One text for all numbers of equal value."""

    __slots__ = ()


def _number(text: str) -> _Number:
    try:
        value = Decimal(text)
    except InvalidOperation:  # an exponent that is out of all bounds
        return _Number(text)
    digits = _digits(value)[1]
    is_integer = not any(mark in text for mark in ".eE") and -(1 << 63) <= int(text) < 1 << 64
    if not is_integer and len(digits) <= _DIGITS:
        double = float(text)
        if Decimal(f"{double:.{len(digits) - 1}e}") == value:
            value = Decimal(repr(double))  # the text was rounded from this double
    sign, digits, exponent = _digits(value)
    if digits == "0":
        return _Number("0")
    if 0 <= exponent < _DIGITS_64 and -(1 << 63) <= value < 1 << 64:
        return _Number(f"{sign}{digits}{'0' * exponent}")
    return _Number(f"{sign}{digits}e{exponent}")


def _digits(value: Decimal) -> tuple[str, str, int]:
    """Sign, digits without zeros at either end ('0' = none), exponent of the last digit."""
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    return "-" * sign, short or "0", int(exponent) + len(text) - len(short)


def _text(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, _Object):
        pairs = sorted(value, key=lambda pair: pair[0])  # of equal names each keeps its place
        return "{" + ",".join(f"{json.dumps(name)}:{_text(item)}" for name, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)


def row_digest(row: tuple[bytes | None, ...], encoders: list[Encode | None]) -> bytes:
    """Sixteen bytes of a row; NULL differs from every value."""
    digest = blake2b(digest_size=16)
    for value, encode in zip(row, encoders, strict=True):
        if value is None:
            digest.update(_LENGTH.pack(-1))
        else:
            data = value if encode is None else encode(value)
            digest.update(_LENGTH.pack(len(data)))
            digest.update(data)
    return digest.digest()
