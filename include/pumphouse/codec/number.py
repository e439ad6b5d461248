"""Numbers of the datum codec: varints, zig-zag varints and ordered floats.

Format: docs/formats.md, "Row encoding". Every reader takes ``(data, pos)`` and returns the value and the position
behind it; it never reads past ``len(data)``.
"""

from __future__ import annotations

import struct

from pumphouse.errors import CodecError

_U64 = struct.Struct(">Q")
_F64 = struct.Struct(">d")
_F32 = struct.Struct(">f")
SIGN = 1 << 63
MASK = (1 << 64) - 1


def truncated(what: str, pos: int) -> CodecError:
    """The error for bytes that end too early."""
    return CodecError(f"{what} at offset {pos} runs past the end of the data", offset=pos)


def append_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned LEB128 varint of at most 64 bits."""
    if not 0 <= value <= MASK:
        raise CodecError(f"{value} is no unsigned 64-bit integer")
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    """Read an unsigned varint."""
    value = shift = 0
    at = pos
    while True:
        if at >= len(data):
            raise truncated("a varint", pos)
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            raise CodecError(f"a varint at offset {pos} is longer than 64 bits", offset=pos)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def append_varint(out: bytearray, value: int) -> None:
    """Append a signed zig-zag varint of at most 64 bits."""
    if not -SIGN <= value < SIGN:
        raise CodecError(f"{value} is no signed 64-bit integer")
    append_uvarint(out, (value << 1 ^ value >> 63) & MASK)


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """Read a signed zig-zag varint."""
    value, at = read_uvarint(data, pos)
    return value >> 1 ^ -(value & 1), at


def append_u64(out: bytearray, value: int) -> None:
    """Append eight big-endian bytes."""
    out += _U64.pack(value)


def read_u64(data: bytes, pos: int) -> tuple[int, int]:
    """Read eight big-endian bytes."""
    if pos + 8 > len(data):
        raise truncated("an 8-byte number", pos)
    return _U64.unpack_from(data, pos)[0], pos + 8


def to_signed(value: int) -> int:
    """The signed reading of 64 bits."""
    return value - (1 << 64) if value >= SIGN else value


def float_to_ordered(value: float) -> int:
    """64 bits that sort as the floats do; -0.0 becomes +0.0."""
    bits: int = _U64.unpack(_F64.pack(value))[0]
    return bits | SIGN if value >= 0 else ~bits & MASK


def ordered_to_float(bits: int) -> float:
    """Inverse of :func:`float_to_ordered`."""
    raw = bits & ~SIGN if bits & SIGN else ~bits & MASK
    value: float = _F64.unpack(_U64.pack(raw))[0]
    return value


def round_to_float32(value: float) -> float:
    """The nearest single-precision value, as a Python float."""
    try:
        rounded: float = _F32.unpack(_F32.pack(value))[0]
    except OverflowError:
        raise CodecError(f"{value} does not fit into a FLOAT") from None
    return rounded
