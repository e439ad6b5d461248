"""Protobuf on the wire, as exports write it: varints and fields, in kernels and for what is made once a table."""

# mypy: disable-error-code="assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, frozen, kernel
from pumphouse.codec.wire import uvarint_bytes


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


@kernel
def length_bytes(lengths: Ints, out: Ints) -> None:
    """Bytes of the varint of each length."""
    for at in range(len(lengths)):
        out[at] = uvarint_bytes(np.uint64(lengths[at]))
