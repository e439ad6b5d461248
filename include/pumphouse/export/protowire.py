"""Protobuf on the wire, as exports write it: varints and fields, in kernels and for what is made once a table."""

# mypy: disable-error-code="assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, frozen, kernel, primitive


def text_field(number: int, text: str | bytes) -> bytes:
    """A field of bytes."""
    data = text.encode() if isinstance(text, str) else text
    return bytes([number << 3 | 2]) + uvarint(len(data)) + data


def int_field(number: int, value: int) -> bytes:
    """A field of an integer, signed or not."""
    return bytes([number << 3]) + uvarint(value % (1 << 64))


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def frozen_bytes(data: bytes) -> Bytes:
    """As kernels take them."""
    return frozen(np.frombuffer(data, np.uint8))


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


@kernel
def length_bytes(lengths: Ints, out: Ints) -> None:
    """Bytes of the varint of each length."""
    for at in range(len(lengths)):
        out[at] = uvarint_bytes(np.uint64(lengths[at]))
