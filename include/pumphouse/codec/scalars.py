"""Kernels that turn located datums into integers and floats."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pumphouse.codec.jit import Bytes, Int32s, Ints, UInts, kernel, primitive
from pumphouse.codec.locate import BAD_MEMBER, BAD_VALUE, DAMAGED
from pumphouse.codec.raw import load_u64
from pumphouse.codec.wire import read_u64, read_uvarint

SIGNED, UNSIGNED, UNSIGNED_HANDLE, ENUM, SET = 0, 1, 2, 3, 4
_SIGN = np.uint64(1 << 63)


# Of the seven bytes behind a flag: the bits that are 0 where a varint ends.
_ENDS = np.uint64(0x0080808080808080)
_NO_END = np.uint64(0x00FFFFFFFFFFFFFF)


@primitive
def seven_bits(word: np.uint64) -> np.uint64:
    """The low seven bits of each of eight bytes, together."""
    word = word & np.uint64(0x007F007F007F007F) | (word & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
    word = word & np.uint64(0x00003FFF00003FFF) | (word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    return word & np.uint64(0x0FFFFFFF) | (word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)


@kernel
def integers(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    places: Int32s,
    column: int,
    mode: int,
    elements: int,
    fill: np.uint64,
    fill_valid: bool,
    out: UInts,
    valid: Bytes,
    failed: Ints,
) -> None:
    """64-bit patterns of an integer column.

    ``mode`` says how a datum is read; ``elements`` is the count of an ENUM's or SET's elements. Absent values become
    ``fill``, or NULL where ``fill_valid`` is false.
    """
    last = len(data) - 8
    for row in range(len(starts)):
        place = places[column, row]
        if place < 0:
            out[row] = fill
            valid[row] = fill_valid
            continue
        pos = starts[row] + place
        flag = data[pos]
        if flag == 0x00:
            out[row] = 0
            valid[row] = 0
            continue
        word = load_u64(data, pos) >> np.uint64(8) if pos <= last else _NO_END
        stops = ~word & _ENDS
        if stops:
            raw = seven_bits(word & (stops ^ (stops - np.uint64(1))))
        else:
            raw, at = read_uvarint(data, pos + 1, starts[row] + lengths[row])
            if at < 0:
                failed[0], failed[1] = DAMAGED, row
                return
        if flag == 0x08 and mode in (SIGNED, UNSIGNED_HANDLE):
            raw = (raw >> np.uint64(1)) ^ (np.uint64(0) - (raw & np.uint64(1)))
        elif flag != 0x09 or mode == SIGNED:
            failed[0], failed[1] = BAD_VALUE, row
            return
        if mode == ENUM and raw > np.uint64(elements):
            raw = np.uint64(0)
        elif mode == SET and elements < 64 and (raw >> np.uint64(elements)) != 0:
            failed[0], failed[1] = BAD_MEMBER, row
            return
        out[row] = raw
        valid[row] = 1


@kernel
def floats(
    data: Bytes,
    starts: Ints,
    places: Int32s,
    column: int,
    fill: float,
    fill_valid: bool,
    bits: UInts,
    out: NDArray[np.float64],
    valid: Bytes,
    failed: Ints,
) -> None:
    """Doubles of a float column; ``bits`` is ``out`` seen as integers. Absent values become ``fill`` or NULL."""
    for row in range(len(starts)):
        place = places[column, row]
        if place < 0:
            out[row] = fill
            valid[row] = fill_valid
            continue
        pos = starts[row] + place
        flag = data[pos]
        if flag == 0x00:
            out[row] = 0.0
            valid[row] = 0
        elif flag == 0x05:
            raw = read_u64(data, pos + 1)
            bits[row] = raw & ~_SIGN if raw & _SIGN else ~raw
            valid[row] = 1
        else:
            failed[0], failed[1] = BAD_VALUE, row
            return
