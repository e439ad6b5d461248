"""Rows, keys and payloads read one at a time: the readable reference that the columnar decoder is held against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError

from pumphouse.codec.bytes import append_comparable
from pumphouse.codec.datum import (
    FLAGS,
    NULL,
    VARINT,
    Datum,
    Kind,
    Value,
    _bytes,
    _integer,
    _number,
    kind_of,
    read_datum,
)
from pumphouse.codec.defaults import left_out
from pumphouse.codec.json import json_text
from pumphouse.codec.number import MASK, SIGN, append_u64, read_u64, round_to_float32
from pumphouse.codec.payload import _binlog
from pumphouse.codec.row import EMPTY, Row, is_prefix, kept_on_update, key_parts
from pumphouse.codec.time import date_text, datetime_text, duration_text, fsp_of
from pumphouse.errors import BadBinlog, CodecError
from pumphouse.model.binlog import BinlogType, MutationType
from pumphouse.model.table import ColumnInfo, FieldType, TableInfo
from pumphouse.proto import binlog_pb2 as pb

_ROW = b"_r"
NEW_FORMAT = 0x80


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


def make_fake(ts: int) -> bytes:
    """A binlog that only moves the watermark."""
    return _binlog(BinlogType.ROLLBACK, ts, ts, key=None)


def parse_prewrite_value(data: bytes) -> pb.PrewriteValue:
    """Parse a prewrite value; BadBinlog when it does not parse or uses obsolete fields."""
    value = pb.PrewriteValue()
    try:
        value.ParseFromString(data)
    except DecodeError as error:
        raise BadBinlog(f"a prewrite value of {len(data)} bytes does not parse: {error}") from error
    for mutation in value.mutations:
        if mutation.deleted_ids or mutation.deleted_pks:
            raise BadBinlog(f"a mutation of table {mutation.table_id} uses obsolete fields", table_id=mutation.table_id)
    return value


def row_changes(data: bytes) -> Iterable[tuple[int, MutationType, bytes]]:
    """Row changes of a prewrite value in the order of ``sequence``: table id, type, row image.

    The readable reference of :func:`pumphouse.codec.columnar.walk`.
    """
    for mutation in parse_prewrite_value(data).mutations:
        lists = {
            MutationType.INSERT: iter(mutation.inserted_rows),
            MutationType.UPDATE: iter(mutation.updated_rows),
            MutationType.DELETE_ROW: iter(mutation.deleted_rows),
        }
        for number in mutation.sequence:
            kind = MutationType(int(number))
            rows = lists.get(kind)
            row = None if rows is None else next(rows, None)
            if row is None:
                raise BadBinlog(f"sequence entry {kind} of table {mutation.table_id} has no row")
            yield mutation.table_id, kind, row


def loader_value(field: FieldType, datum: Datum, *, handle: bool = False) -> Value:
    """Loader value of a decoded datum.

    Args:
        field: Type of the column.
        datum: What was read.
        handle: The column is the integer handle, whose varint an UNSIGNED column reads as 64 unsigned bits.
    """
    if datum.flag == NULL:
        return None
    kind = kind_of(field)
    value = datum.value
    if handle and kind is Kind.UINT and datum.flag == VARINT:
        return to_unsigned(_integer(value))
    if datum.flag not in FLAGS[kind]:
        raise CodecError(f"a {kind.name} column holds a datum with the flag {datum.flag:#x}", flag=datum.flag)
    if kind is Kind.DATE:
        return date_text(_integer(value))
    if kind is Kind.DATETIME:
        return datetime_text(_integer(value), fsp_of(field.decimal))
    if kind is Kind.TIME:
        return duration_text(_integer(value), fsp_of(field.decimal))
    if kind is Kind.JSON:
        return json_text(_bytes(value))
    if kind is Kind.FLOAT:
        return round_to_float32(_number(value))
    if kind is Kind.ENUM:
        return value if _integer(value) <= len(field.elems) else 0
    if kind is Kind.SET and _integer(value) >> len(field.elems):
        raise CodecError(f"{value!r} is no value of a SET of {len(field.elems)} elements")
    return value


def _read_pair(data: bytes, pos: int) -> tuple[int, Datum, int]:
    key, at = read_datum(data, pos)
    if key.flag != VARINT or not isinstance(key.value, int):
        raise CodecError(f"a column id is missing at offset {pos}", offset=pos)
    value, at = read_datum(data, at)
    return key.value, value, at


def _check_format(data: bytes, pos: int) -> None:
    if pos < len(data) and data[pos] == NEW_FORMAT:
        raise CodecError("the row is in the new row format, which binlogs do not have", offset=pos)


def _value(table: TableInfo, column: ColumnInfo, datum: Datum) -> Value:
    handle = table.pk_is_handle and any(column.id == part.id for part, _ in key_parts(table))
    try:
        return loader_value(column.type, datum, handle=handle)
    except CodecError as error:
        raise CodecError(f"column {column.name} of table {table.name}: {error.message}") from error


def decode_insert(table: TableInfo, data: bytes) -> Row:
    """Values by column id; columns of the key come from the handle unless the list has them."""
    row: Row = {}
    parts = key_parts(table)
    at = 0
    for index in range(max(len(parts), 1)):
        datum, at = read_datum(data, at)
        if parts and not is_prefix(*parts[index]):
            row[parts[index][0].id] = _value(table, parts[index][0], datum)
    row.update(_decode_list(table, data, at))
    return _with_key(table, row)


def decode_delete(table: TableInfo, data: bytes) -> Row:
    """Values by column id."""
    return _with_key(table, _decode_list(table, data, 0))


def _with_key(table: TableInfo, row: Row) -> Row:
    for column, _ in key_parts(table):
        if column.id not in row:
            raise CodecError(f"a row image of table {table.name} lacks the key column {column.name}")
    return row


def _decode_list(table: TableInfo, data: bytes, pos: int) -> Row:
    row: Row = {}
    _check_format(data, pos)
    if data[pos:] == EMPTY:
        return row
    at = pos
    while at < len(data):
        column_id, datum, at = _read_pair(data, at)
        column = table.column_by_id(column_id)
        if column is not None:
            if column_id in row:
                raise CodecError(f"column id {column_id} is twice in a row image of table {table.name}")
            row[column_id] = _value(table, column, datum)
    return row


def decode_update(table: TableInfo, data: bytes) -> tuple[Row, Row]:
    """Old and new values by column id: the first occurrence of an id is the old value, the second the new one."""
    old: Row = {}
    new: Row = {}
    at = 0
    _check_format(data, 0)
    while at < len(data):
        column_id, datum, at = _read_pair(data, at)
        column = table.column_by_id(column_id)
        if column is None:
            continue
        if column_id in new:
            raise CodecError(f"column id {column_id} is three times in an updated row of table {table.name}")
        (new if column_id in old else old)[column_id] = _value(table, column, datum)
    if len(old) != len(new):
        raise CodecError(f"row data is corrupted: {len(old)} old and {len(new)} new columns of table {table.name}")
    old = _with_key(table, old)
    return old, new | {column_id: old[column_id] for column_id in kept_on_update(table)}


def project(written: TableInfo, wanted: TableInfo, row: Mapping[int, Value]) -> Row:
    """Values of the public, not generated columns of ``wanted``; what the row lacks is filled.

    Args:
        written: Table at the row's own schema version.
        wanted: Table at the commit timestamp.
        row: Decoded with `as_read` of the two.
    """
    out: Row = {}
    for column in wanted.public_columns:
        if column.generated:
            continue
        own = written.column_by_id(column.id)
        out[column.id] = row[column.id] if column.id in row else left_out(own, column)
    return out


def to_unsigned(value: int) -> int:
    """The unsigned reading of 64 bits."""
    return value & MASK
