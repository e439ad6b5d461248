"""MySQL's binary JSON as text, one document at a time: for what the kernel leaves alone, and to hold it against.

Format: MySQL's json_binary.h. Dates and times print as texts, decimals as numbers, other bytes in base64, as the server
prints them.
"""

from __future__ import annotations

import base64
import json
import struct

from pumphouse.capture.source import jsonb
from pumphouse.codec.decimal import read_decimal
from pumphouse.errors import CodecError
from pumphouse.model.table import MysqlType

_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {
    jsonb.INT16: "<h", jsonb.UINT16: "<H", jsonb.INT32: "<i", jsonb.UINT32: "<I", jsonb.INT64: "<q", jsonb.UINT64: "<Q",
    jsonb.DOUBLE: "<d",
}  # fmt: skip


def document_text(data: bytes) -> str:
    """Text of a whole document; CodecError where it makes no sense."""
    try:
        return _Document(len(data)).value(data[0], memoryview(data), 1, 0) if data else "null"
    except (IndexError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise CodecError(f"a JSON document of {len(data)} bytes makes no sense: {error!r}") from error


class _Document:
    """Reads a document. No byte belongs to two values: so a small one never becomes a large text."""

    def __init__(self, size: int) -> None:
        self._left = size

    def value(self, kind: int, data: memoryview, at: int, depth: int) -> str:
        """Text of a value of the container that ``data`` begins with."""
        if depth > jsonb.MAX_DEPTH:
            raise CodecError("a JSON document is nested too deep")
        if kind <= jsonb.LARGE_ARRAY:
            return self._container(kind, data[at:], depth)
        if kind == jsonb.LITERAL:
            return _LITERALS[data[at]]
        if kind in _NUMBERS:
            return repr(struct.unpack_from(_NUMBERS[kind], data, at)[0])
        if kind == jsonb.STRING:
            size, at = _length(data, at)
            return json.dumps(self._exactly(data, at, size).decode(), ensure_ascii=False)
        if kind == jsonb.OPAQUE:
            size, place = _length(data, at + 1)
            return _opaque(data[at], self._exactly(data, place, size))
        raise CodecError(f"a JSON document has the unknown type {kind}")

    def _container(self, kind: int, data: memoryview, depth: int) -> str:
        large, is_object = kind in (jsonb.LARGE_OBJECT, jsonb.LARGE_ARRAY), kind <= jsonb.LARGE_OBJECT
        width, code = (4, "<I") if large else (2, "<H")
        count = struct.unpack_from(code, data, 0)[0]
        self._take(2 * width + count * (1 + width + (width + 2 if is_object else 0)))
        names, at = [], 2 * width
        for _ in range(count if is_object else 0):
            place, size = struct.unpack_from(code + "H", data, at)
            names.append(self._exactly(data, place, size).decode())
            at += width + 2
        out = []
        for _ in range(count):
            entry = data[at]
            inline = entry in (jsonb.LITERAL, jsonb.INT16, jsonb.UINT16)
            inline |= large and entry in (jsonb.INT32, jsonb.UINT32)
            place = at + 1 if inline else struct.unpack_from(code, data, at + 1)[0]
            out.append(self.value(entry, data, place, depth + 1))
            at += 1 + width
        if not is_object:
            return f"[{', '.join(out)}]"
        pairs = (f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in zip(names, out, strict=True))
        return f"{{{', '.join(pairs)}}}"

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise CodecError("parts of a JSON document lie upon each other")

    def _exactly(self, data: memoryview, at: int, size: int) -> bytes:
        if at + size > len(data):
            raise IndexError("it ends in the middle")
        self._take(size)
        return bytes(data[at : at + size])


def _length(data: memoryview, at: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return size, at
        if shift > 28:
            raise IndexError("a length has no end")


def _opaque(kind: int, data: bytes) -> str:
    if kind == MysqlType.NEWDECIMAL:
        return read_decimal(data, 0)[0]
    if kind in (MysqlType.DATE, MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.TIME):
        packed = struct.unpack("<q", data)[0]
        sign, packed = "-" if packed < 0 else "", abs(packed)
        clock, micro = packed >> 24, packed & 0xFFFFFF
        if kind == MysqlType.TIME:
            return f'"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{micro:06d}"'
        months = clock >> 22
        date = f"{months // 13:04d}-{months % 13:02d}-{clock >> 17 & 31:02d}"
        if kind == MysqlType.DATE:
            return f'"{date}"'
        return f'"{date} {clock >> 12 & 31:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{micro:06d}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode()}"'
