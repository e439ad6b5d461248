"""Primitives that kernels share: varints and protobuf fields over a byte buffer.

All positions are absolute in ``data``; nothing at or behind ``end`` is read. A position of -1 means damaged bytes.
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, kernel, primitive


@primitive
def read_uvarint(data: Bytes, pos: int, end: int) -> tuple[np.uint64, int]:
    """Unsigned varint of at most 64 bits and the position behind it."""
    if pos < end and data[pos] < 0x80:  # most of them
        return np.uint64(data[pos]), pos + 1
    value = np.uint64(0)
    shift = np.uint64(0)
    while pos < end:
        byte = data[pos]
        pos += 1
        if shift == 63 and byte > 1:
            return value, -1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += np.uint64(7)
    return value, -1


@primitive
def read_varint(data: Bytes, pos: int, end: int) -> tuple[int, int]:
    """Zig-zag varint and the position behind it."""
    raw, pos = read_uvarint(data, pos, end)
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), pos


@primitive
def uvarint_bytes(value: np.uint64) -> int:
    """Bytes of an unsigned varint."""
    count = np.int64(1)
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        count += 1
    return count


@primitive
def put_uvarint(out: Bytes, at: int, value: np.uint64) -> int:
    """Write an unsigned varint; position behind it."""
    while value >= np.uint64(0x80):
        out[at] = np.uint8(value & np.uint64(0x7F)) | np.uint8(0x80)
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@primitive
def put_varint(out: Bytes, at: int, value: int) -> int:
    """Write a zig-zag varint; position behind it."""
    return put_uvarint(out, at, np.uint64(value << 1) ^ np.uint64(value >> 63))


@primitive
def read_u64(data: Bytes, pos: int) -> np.uint64:
    """Eight big-endian bytes; the caller has checked that they are there."""
    value = np.uint64(0)
    for at in range(8):
        value = (value << np.uint64(8)) | np.uint64(data[pos + at])
    return value


@kernel
def read_field(data: Bytes, pos: int, end: int) -> tuple[int, int, int, int, int]:  # noqa: PLR0911
    """One protobuf field: number, wire type, start of its bytes, their length, position of the next field.

    Of a varint field, start and length are those of the varint itself.
    """
    tag, pos = read_uvarint(data, pos, end)
    if pos < 0:
        return 0, 0, 0, 0, -1
    number = np.int64(tag >> np.uint64(3))
    wire = np.int64(tag & np.uint64(7))
    start = pos
    length = np.int64(0)
    if wire == 0:
        _, pos = read_uvarint(data, pos, end)
        if pos < 0:
            return 0, 0, 0, 0, -1
        return number, wire, start, pos - start, pos
    if wire == 2:
        raw, start = read_uvarint(data, pos, end)
        if start < 0 or raw > np.uint64(end - start):
            return 0, 0, 0, 0, -1
        length = np.int64(raw)
    elif wire == 1:
        length = 8
    elif wire == 5:
        length = 4
    else:
        return 0, 0, 0, 0, -1
    if number == 0 or start + length > end:
        return 0, 0, 0, 0, -1
    return number, wire, start, length, start + length
