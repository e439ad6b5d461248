"""Row images as they are written, one at a time.

An image is a list of (column id, value) datum pairs; an inserted row has its handle before the list, an updated row is
the old list followed by the new one. Loader values go in and come out, by column id (:mod:`pumphouse.codec.datum`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pumphouse.codec.bytes import append_compact
from pumphouse.codec.datum import (
    COMPACT,
    DURATION,
    NULL,
    VARINT,
    Kind,
    Value,
    encode_value,
    kind_of,
    type_in_rows,
)
from pumphouse.codec.key import cut_prefix, encode_key_value, needs_restoring, sort_key, string_of
from pumphouse.codec.number import SIGN, append_u64, append_varint, read_varint, to_signed
from pumphouse.errors import CodecError
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import ColumnFlag, ColumnInfo, TableInfo

HANDLE_ID = -1
EMPTY = bytes((NULL,))
_WRITABLE = {SchemaState.PUBLIC, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORG}

Row = dict[int, Value]


def key_parts(table: TableInfo) -> tuple[tuple[ColumnInfo, int], ...]:
    """Columns that make the handle, each with its prefix length (-1 = whole); () when the handle is hidden."""
    if table.pk_is_handle or table.is_common_handle:
        return tuple((table.columns[part.offset], part.length) for part in table.primary_key())
    return ()


def kept_on_update(table: TableInfo) -> tuple[int, ...]:
    """Ids of clustered key columns with ON UPDATE CURRENT_TIMESTAMP: an updated row keeps its old values there.

    A statement that sets a clustered key is a delete and an insert in the binlog. One that leaves the key alone leaves
    the row where it was, and TiDB writes the new time into the new image all the same.
    """
    return tuple(column.id for column, _ in key_parts(table) if column.type.flag & ColumnFlag.ON_UPDATE_NOW)


def is_prefix(column: ColumnInfo, length: int) -> bool:
    """Whether an index part holds less than the column."""
    return length >= 0 and length != column.type.flen


def encode_handle_key(table: TableInfo, values: Mapping[int, Value], handle: int | None = None) -> int | bytes:
    """Handle of a row as the key of a row holds it."""
    if table.pk_is_handle:
        column, _ = key_parts(table)[0]
        return to_signed(_int(values, column) & ((1 << 64) - 1))
    if table.is_common_handle:
        return b"".join(encode_key_value(c, values[c.id], length) for c, length in key_parts(table))
    if handle is None:
        raise CodecError(f"table {table.name} has a hidden handle, which must be given")
    return handle


def encode_insert(table: TableInfo, values: Mapping[int, Value], *, handle: int | None = None) -> bytes:
    """Image of an inserted row; ``handle`` is needed where the table has neither an integer nor a clustered key."""
    parts = {c.id: (c, length) for c, length in key_parts(table)}
    out = bytearray()
    if table.is_common_handle:
        for column, length in parts.values():
            _append_handle_part(out, column, values[column.id], length)
    else:
        key = encode_handle_key(table, values, handle)
        _append_int(out, key if isinstance(key, int) else 0)
    body = bytearray()
    for column in table.columns:
        if column.state not in _WRITABLE or _is_virtual(column):
            continue
        if column.id in parts and not _in_list(table, *parts[column.id]):
            continue
        value = values.get(column.id)
        if value is None and not has_default(column):
            continue
        _append_pair(body, column, value)
    return bytes(out + (body or EMPTY))


def encode_update(
    table: TableInfo, old: Mapping[int, Value], new: Mapping[int, Value], *, handle: int | None = None
) -> bytes:
    """Image of an updated row: old list, new list."""
    columns = [c for c in table.columns if c.state in _WRITABLE and not _is_virtual(c)]
    return _encode_list(table, columns, old, handle) + _encode_list(table, columns, new, handle)


def encode_delete(table: TableInfo, values: Mapping[int, Value], *, handle: int | None = None) -> bytes:
    """Image of a deleted row: all public columns, virtual ones included."""
    return _encode_list(table, [c for c in table.columns if c.public], values, handle)


def _encode_list(
    table: TableInfo, columns: Sequence[ColumnInfo], values: Mapping[int, Value], handle: int | None
) -> bytes:
    out = bytearray()
    for column in columns:
        _append_pair(out, column, values.get(column.id))
    if not table.pk_is_handle and not table.is_common_handle:
        if handle is None:
            raise CodecError(f"table {table.name} has a hidden handle, which must be given")
        _append_int(out, HANDLE_ID)
        _append_int(out, handle)
    return bytes(out) or EMPTY


def _append_int(out: bytearray, value: int) -> None:
    out.append(VARINT)
    append_varint(out, value)


def _append_pair(out: bytearray, column: ColumnInfo, value: Value) -> None:
    _append_int(out, column.id)
    try:
        out += encode_value(column.type, value)
    except CodecError as error:
        raise CodecError(f"column {column.name}: {error.message}", hint=error.advice, **error.facts) from error


def _append_handle_part(out: bytearray, column: ColumnInfo, value: Value, length: int) -> None:
    """One datum of a clustered handle: what decoding its key form gives."""
    row_form = encode_value(column.type, value)
    kind = kind_of(column.type)
    if kind is Kind.TIME:
        out.append(DURATION)
        append_u64(out, read_varint(row_form, 1)[0] + SIGN)
    elif kind is Kind.BYTES:
        out.append(COMPACT)
        append_compact(out, sort_key(column.type, cut_prefix(column.type, string_of(row_form), length)))
    else:
        out += row_form


def _in_list(table: TableInfo, column: ColumnInfo, length: int) -> bool:
    if table.pk_is_handle:
        return False
    return is_prefix(column, length) or needs_restoring(column.type)


def _is_virtual(column: ColumnInfo) -> bool:
    return column.generated and not column.generated_stored


def has_default(column: ColumnInfo) -> bool:
    """Whether a row that lacks the column would not be NULL there, so that inserted rows say it."""
    return not (
        column.default is None
        and column.default_bit is None
        and column.origin_default is None
        and column.origin_default_bit is None
    )


def _int(values: Mapping[int, Value], column: ColumnInfo) -> int:
    value = values.get(column.id)
    if not isinstance(value, int):
        raise CodecError(f"column {column.name} is the handle and needs an integer, not {value!r:.40}")
    return value


def as_read(written: TableInfo, wanted: TableInfo) -> TableInfo:
    """The table to decode rows of ``written`` with: its columns as rows hold them, and those that it lacks.

    A row may be of a later version of its table than it says (`Timeline.at_version`).
    """
    present = {column.id: column for column in wanted.columns}
    own = [replace(c, type=type_in_rows(c.type, present[c.id].type)) if c.id in present else c for c in written.columns]
    later = [column for column in wanted.columns if written.column_by_id(column.id) is None]
    return replace(written, columns=(*own, *later))
