"""Keys: row keys, clustered handles, and the meta keys of the DDL job history."""

from __future__ import annotations

from pumphouse.codec.bytes import append_comparable
from pumphouse.codec.datum import COMPARABLE, DURATION, INT, NULL, UINT, Kind, Value, encode_value, kind_of
from pumphouse.codec.number import SIGN, append_u64, read_uvarint, read_varint
from pumphouse.errors import CodecError
from pumphouse.model.table import ColumnInfo, FieldType, MysqlType

# Collations of which a value can be had back from its sort key, but for trailing spaces.
_BIN = {"utf8mb4_bin", "utf8_bin", "latin1_bin", "ascii_bin"}


def is_character(field: FieldType) -> bool:
    """Whether values are text with a collation (and not bytes)."""
    return kind_of(field) is Kind.BYTES and field.charset != "binary"


def needs_restoring(field: FieldType) -> bool:
    """Whether a clustered-key column also lies in the row list, because its sort key does not give it back."""
    varchar = field.tp in (MysqlType.VARCHAR, MysqlType.VAR_STRING)
    return is_character(field) and (varchar or field.collate not in _BIN)


def sort_key(field: FieldType, data: bytes) -> bytes:
    """Sort key of a string under new collations.

    Exact for binary and ``_bin`` collations. For the others it is near the real one (upper case, 16 bits a character):
    row images carry such columns once more in their list, and that copy is the value.
    """
    if not is_character(field):
        return data
    trimmed = data.rstrip(b" ")
    if field.collate in _BIN:
        return trimmed
    text = trimmed.decode("utf-8", "replace").upper()
    return b"".join((ord(char) & 0xFFFF).to_bytes(2, "big") for char in text)


def encode_key_value(column: ColumnInfo, value: Value, prefix: int = -1) -> bytes:
    """Key form of a loader value; ``prefix`` is the index's prefix length in characters (bytes for binary)."""
    field = column.type
    row_form = encode_value(field, value)
    kind = kind_of(field)
    out = bytearray()
    if row_form[0] == NULL or kind in (Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL):
        return row_form
    if kind is Kind.BYTES:
        out.append(COMPARABLE)
        append_comparable(out, sort_key(field, cut_prefix(field, string_of(row_form), prefix)))
    elif kind is Kind.INT:
        out.append(INT)
        append_u64(out, read_varint(row_form, 1)[0] + SIGN)
    elif kind is Kind.TIME:
        out.append(DURATION)
        append_u64(out, read_varint(row_form, 1)[0] + SIGN)
    elif kind is Kind.JSON:
        raise CodecError(f"the JSON column {column.name} cannot be part of a key")
    elif kind in (Kind.UINT, Kind.DATE, Kind.DATETIME, Kind.ENUM, Kind.SET):
        out.append(UINT)
        append_u64(out, read_uvarint(row_form, 1)[0])
    else:
        raise CodecError(f"the column {column.name} has no form in a key: its kind is {kind.name}")
    return bytes(out)


def string_of(row_form: bytes) -> bytes:
    """Bytes of a string datum in row form."""
    length, at = read_varint(row_form, 1)
    return row_form[at : at + length]


def cut_prefix(field: FieldType, data: bytes, prefix: int) -> bytes:
    """First ``prefix`` characters (bytes, for a binary column); -1 is the whole."""
    if prefix < 0:
        return data
    if is_character(field):
        return data.decode("utf-8", "surrogateescape")[:prefix].encode("utf-8", "surrogateescape")
    return data[:prefix]
