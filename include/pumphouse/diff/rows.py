"""What a row is for the comparer: bytes that are equal exactly when the rows are.

JSON counts by value (order of keys, blanks and ``3`` against ``3.0`` do not matter), FLOAT by its four bytes, ENUM
and SET by their number, everything else by the bytes that the server sends in utf8mb4 and UTC.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

_LENGTH = struct.Struct("<q")
Encode = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as information_schema has it; ``type`` has no display width of integers."""

    name: str
    data_type: str
    type: str
    json: bool
    charset: str = ""
    collation: str = ""


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
    return name


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
    """One text for all JSON texts of equal value."""
    value = json.loads(text, parse_int=_number, parse_float=_number)
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def _number(text: str) -> int | float:
    if not any(mark in text for mark in ".eE"):
        whole = int(text)
        # Beyond 64 bits a JSON number is a double, in TiDB as in MySQL.
        return whole if -(1 << 63) <= whole < 1 << 64 else float(whole)
    return float(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


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
