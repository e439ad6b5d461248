"""Byte strings of the datum codec: the compact form of row values and the memcomparable form of keys."""

from __future__ import annotations

from pumphouse.codec.number import append_varint, read_varint, truncated
from pumphouse.errors import CodecError

GROUP = 8


def append_compact(out: bytearray, data: bytes) -> None:
    """Append zig-zag length and bytes."""
    append_varint(out, len(data))
    out += data


def read_compact(data: bytes, pos: int) -> tuple[bytes, int]:
    """Read zig-zag length and bytes."""
    length, at = read_varint(data, pos)
    if length < 0 or at + length > len(data):
        raise truncated("a byte string", pos)
    return bytes(data[at : at + length]), at + length


def append_comparable(out: bytearray, data: bytes) -> None:
    """Append groups of 8 bytes, each followed by 0xFF minus its padding; the last group is never full."""
    for at in range(0, len(data) + 1, GROUP):
        group = data[at : at + GROUP]
        pad = GROUP - len(group)
        out += group + b"\0" * pad
        out.append(0xFF - pad)


def read_comparable(data: bytes, pos: int) -> tuple[bytes, int]:
    """Read what :func:`append_comparable` wrote."""
    out = bytearray()
    at = pos
    while True:
        if at + GROUP + 1 > len(data):
            raise truncated("a memcomparable byte string", pos)
        pad = 0xFF - data[at + GROUP]
        group = data[at : at + GROUP]
        at += GROUP + 1
        if pad > GROUP or any(group[GROUP - pad :]):
            raise CodecError(f"a memcomparable byte string at offset {pos} has a bad group", offset=pos)
        out += group[: GROUP - pad]
        if pad:
            return bytes(out), at
