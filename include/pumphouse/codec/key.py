"""Keys: row keys, clustered handles, and the meta keys of the DDL job history."""

from __future__ import annotations

from pumphouse.codec.bytes import append_comparable
from pumphouse.codec.datum import COMPARABLE, DURATION, INT, NULL, UINT, Kind, Value, encode_value, kind_of
from pumphouse.codec.number import SIGN, append_u64, read_u64, read_uvarint, read_varint
from pumphouse.errors import CodecError
from pumphouse.model.table import ColumnInfo, FieldType, MysqlType

_ROW = b"_r"
# Collations of which a value can be had back from its sort key, but for trailing spaces.
_BIN = {"utf8mb4_bin", "utf8_bin", "latin1_bin", "ascii_bin"}


def record_key(table_id: int, handle: int | bytes) -> bytes:
    """Key of a row: ``t``, table id, ``_r``, handle (an int, or the key form of a clustered key's columns)."""
    out = bytearray(b"t")
    append_u64(out, table_id + SIGN)
    out += _ROW
    if isinstance(handle, int):
        append_u64(out, handle + SIGN)
    else:
        out += handle
    return bytes(out)


def parse_record_key(key: bytes) -> tuple[int, int | bytes]:
    """Table id and handle of :func:`record_key`; a clustered handle stays in its key form."""
    if len(key) < 19 or key[:1] != b"t" or key[9:11] != _ROW:
        raise CodecError(f"{key.hex()} is no row key")
    table_id = read_u64(key, 1)[0] - SIGN
    if len(key) == 19:
        return table_id, read_u64(key, 11)[0] - SIGN
    return table_id, key[11:]


def meta_key(name: bytes, field: bytes) -> bytes:
    """Key of a field in a hash of TiDB's meta data, such as ``DDLJobHistory``."""
    out = bytearray(b"m")
    append_comparable(out, name)
    append_u64(out, ord("h"))
    append_comparable(out, field)
    return bytes(out)


def job_history_key(job_id: int) -> bytes:
    """Key of a DDL job in the history."""
    field = bytearray()
    append_u64(field, job_id)
    return meta_key(b"DDLJobHistory", bytes(field))


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
