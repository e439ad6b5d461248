"""Messages for Kafka, made plainly: protobuf's own library, one row at a time, no code of the product's export."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pumphouse.codec import row
from pumphouse.codec.columnar import INSERT, UPDATE
from pumphouse.codec.datum import Value
from pumphouse.model.table import ColumnInfo, TableInfo
from pumphouse.proto.slave_binlog_pb2 import Column, Row, TableMutation
from tests.support import rowreference

_BIT, _YEAR, _JSON = 16, 13, 245
_FLOATS, _WORDS = {4, 5}, {1, 2, 3, 8, 9}
_CHOICES = {247, 248}


def column(info: ColumnInfo, value: Value) -> Column:
    """One value."""
    tp = info.type.tp
    if value is None:
        return Column(is_null=True)
    if tp in _FLOATS:
        return Column(double_value=float(value))
    if tp == _BIT:
        return Column(bytes_value=int(value).to_bytes(max((info.type.flen + 7) // 8, 1), "big"))
    if tp in _CHOICES or (tp in _WORDS and info.type.unsigned):
        return Column(uint64_value=int(value))
    if tp in _WORDS:
        return Column(int64_value=int(value))
    if tp == _YEAR:
        return Column(string_value=str(value))
    raw = value if isinstance(value, bytes) else str(value).encode()
    if tp == _JSON or (info.type.charset == "binary" and isinstance(value, bytes)):
        return Column(bytes_value=raw)
    made = Column()
    made.MergeFromString(b"\x32" + _length(len(raw)) + raw)  # also text that is no UTF-8
    return made


def _length(size: int) -> bytes:
    out = bytearray()
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*out, size])


def mutation(written: TableInfo, wanted: TableInfo, op: int, image: bytes) -> TableMutation:
    """One row change, by the readable reference of the codec."""
    table = row.as_read(written, wanted)
    if op == UPDATE:
        sides: Sequence[row.Row] = rowreference.decode_update(table, image)
    else:
        sides = [(rowreference.decode_insert if op == INSERT else rowreference.decode_delete)(table, image)]
    rows = []
    for side in sides:
        values = rowreference.project(written, wanted, side)
        columns = [column(each, values[each.id]) for each in wanted.public_columns if not each.generated]
        rows.append(Row(columns=columns))
    return TableMutation(type=op, row=rows[-1], change_row=rows[0] if op == UPDATE else None)


def values(one: Row) -> tuple[Any, ...]:
    """Of a row, text as bytes, as `MadeSource.snapshot` has them."""
    found = []
    for each in one.columns:
        if each.is_null:
            found.append(None)
            continue
        ((_, value),) = each.ListFields()
        found.append(value.encode() if isinstance(value, str) else value)
    return tuple(found)


def replayed(binlogs: Iterable[Any]) -> dict[str, Counter[tuple[Any, ...]]]:
    """What is in each table when the row changes were made one after the other; an old row must be there."""
    tables: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    for binlog in binlogs:
        for table in binlog.dml_data.tables:
            rows = tables[table.table_name]
            for each in table.mutations:
                old = {0: None, 1: each.change_row, 2: each.row}[each.type]
                if old is not None:
                    assert rows[values(old)] > 0, each
                    rows[values(old)] -= 1
                if each.type < 2:
                    rows[values(each.row)] += 1
    return {name: +rows for name, rows in tables.items()}
