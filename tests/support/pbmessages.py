"""Binlog files, read and made plainly: protobuf's own library, one row at a time, no code of the product's export.

The messages are those of docs/formats.md, "Files for Reparo".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pumphouse.codec import row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE
from pumphouse.codec.datum import Kind, Value, kind_of
from pumphouse.codec.number import append_u64, append_uvarint, append_varint, float_to_ordered
from pumphouse.model.table import ColumnInfo, TableInfo
from tests.support import rowreference

_FIELD = descriptor_pb2.FieldDescriptorProto
_MESSAGES = {
    "column": [("name", 1, _FIELD.TYPE_STRING), ("tp", 2, _FIELD.TYPE_BYTES), ("mysql_type", 3, _FIELD.TYPE_STRING),
               ("value", 4, _FIELD.TYPE_BYTES), ("changed_value", 5, _FIELD.TYPE_BYTES)],
    "Event": [("schema_name", 1, _FIELD.TYPE_STRING), ("table_name", 2, _FIELD.TYPE_STRING),
              ("tp", 3, _FIELD.TYPE_INT32), ("row", 4, _FIELD.TYPE_BYTES)],
    "DMLData": [("events", 1, "Event")],
    "Binlog": [("tp", 1, _FIELD.TYPE_INT32), ("commit_ts", 2, _FIELD.TYPE_INT64), ("dml_data", 3, "DMLData"),
               ("ddl_query", 4, _FIELD.TYPE_BYTES)],
}  # fmt: skip
_REPEATED = {("Event", "row"), ("DMLData", "events")}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tests/pb_binlog.proto", package="pb_binlog", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number)
            made.label = _FIELD.LABEL_REPEATED if (name, field) in _REPEATED else _FIELD.LABEL_OPTIONAL
            if isinstance(kind, str):
                made.type, made.type_name = _FIELD.TYPE_MESSAGE, f".pb_binlog.{kind}"
            else:
                made.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pb_binlog.{name}")) for name in _MESSAGES
    }


_MADE = _classes()
Binlog, Event, Column = _MADE["Binlog"], _MADE["Event"], _MADE["column"]
OPS = {0: INSERT, 1: UPDATE, 2: DELETE}
_NAMES = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 7: "timestamp", 8: "bigint", 9: "mediumint",
    10: "date", 11: "time", 12: "datetime", 13: "year", 15: "varchar", 16: "bit", 245: "json", 246: "decimal",
    247: "enum", 248: "set", 249: "tinytext", 250: "mediumtext", 251: "longtext", 252: "text", 254: "char",
}  # fmt: skip
_BINARY = {15: "varbinary", 249: "tinyblob", 250: "mediumblob", 251: "longblob", 252: "blob", 254: "binary"}


def payloads(data: bytes) -> Iterator[bytes]:
    """What the frames of a file hold; each checksum is held against the library's."""
    at = 0
    while at < len(data):
        magic, size = struct.unpack_from("<IQ", data, at)
        assert magic == 0x1C1B0504
        payload = data[at + 12 : at + 12 + size]
        assert len(payload) == size
        assert struct.unpack_from("<I", data, at + 12 + size) == (google_crc32c.value(payload),)
        yield payload
        at += 16 + size


def binlogs(directory: Path) -> list[Any]:
    """Every message of a directory, by the names of its files."""
    found = []
    for path in sorted(directory.glob("binlog-*")):
        found += [Binlog.FromString(each) for each in payloads(path.read_bytes())]
    return found


def datum(column: ColumnInfo, value: Value) -> bytes:
    """The value form of what a file has of a value."""
    out = bytearray()
    kind = kind_of(column.type)
    if value is None:
        return b"\x00"
    if isinstance(value, str | bytes):
        raw = value.encode() if isinstance(value, str) else value
        out.append(0x02)
        append_varint(out, len(raw))
        return bytes(out + raw)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        out.append(0x05)
        append_u64(out, float_to_ordered(float(value)))
    elif kind is Kind.INT:
        out.append(0x08)
        append_varint(out, int(value))
    else:
        out.append(0x09)
        append_uvarint(out, int(value))
    return bytes(out)


def event(db: str, written: TableInfo, wanted: TableInfo, op: int, image: bytes) -> Any:
    """One row change, by the readable reference of the codec."""
    table = row.as_read(written, wanted)
    if op == UPDATE:
        sides: Sequence[row.Row] = rowreference.decode_update(table, image)
    else:
        sides = [(rowreference.decode_insert if op == INSERT else rowreference.decode_delete)(table, image)]
    values = [rowreference.project(written, wanted, side) for side in sides]
    made = Event(schema_name=db, table_name=wanted.name, tp=op)
    for column in wanted.public_columns:
        if column.id not in values[0]:
            continue
        tp = column.type.tp
        name = _BINARY.get(tp, _NAMES[tp]) if column.type.charset == "binary" else _NAMES[tp]
        one = Column(name=column.name, tp=bytes([tp]), mysql_type=name, value=datum(column, values[0][column.id]))
        if op == UPDATE:
            one.changed_value = datum(column, values[1][column.id])
        made.row.append(one.SerializeToString())
    return made


def values_of(event: Any) -> list[dict[str, bytes]]:
    """Datums by column name; of an update the old ones and the new ones."""
    columns = [Column.FromString(each) for each in event.row]
    sides = [{each.name: each.value for each in columns}]
    return [*sides, {each.name: each.changed_value for each in columns}] if event.tp == UPDATE else sides
