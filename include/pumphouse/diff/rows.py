"""What a row is for the comparer: bytes that are equal exactly when the rows are.

JSON counts by value (order of keys, blanks and ``3`` against ``3.0`` do not matter; digits and repeated names do),
FLOAT by its four bytes, ENUM
and SET by their number, everything else by the bytes that the server sends in utf8mb4 and UTC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from pumphouse.proof.jsonvalue import canonical_json
from pumphouse.proof.servers import AS_UTF8, utf8_bytes

_LENGTH = struct.Struct("<q")
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
