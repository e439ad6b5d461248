"""Serialized Binlogs in any buffer -> columns, by one kernel a group.

The Go Pump stores what its own serializer makes of a payload. For bytes that are that already, but for trailing
``ddl_job_id`` and ``ddl_schema_state`` of 0, which some writers leave out, the kernel says so, and they are stored as
they came. Everything else is `OTHER` and is decided one by one by `pump_service.intake.convert.item_of`.
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pumphouse.codec.jit import Bytes, Ints, frozen, kernel, primitive
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES

GOOD, OTHER = 0, 1
# What is put behind a payload: by the number of its bytes.
TAILS = {0: b"", 2: b"\x40\x00", 4: b"\x38\x00\x40\x00"}


@dataclass(slots=True, eq=False)  # not frozen: that sets each field by a call, and there is one of these a group
class Columns:
    """What n payloads say, in their order. Of a row whose verdict is not `GOOD` the others mean nothing."""

    verdict: NDArray[np.uint8]
    tp: NDArray[np.uint8]
    tail: NDArray[np.uint8]  # bytes to be put behind the payload: `TAILS`
    start_ts: NDArray[np.int64]
    commit_ts: NDArray[np.int64]
    ddl_job_id: NDArray[np.int64]
    key_at: NDArray[np.int64]  # prewrite_key, counted from the start of the payload
    key_size: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Some rows."""
        return Columns(*(getattr(self, name)[rows] for name in self.__slots__))

    def __len__(self) -> int:
        return len(self.tp)


@primitive
def minimal_uvarint(data: Bytes, pos: int, end: int) -> tuple[np.uint64, int]:
    """Unsigned varint as short as it can be, and the position behind it; -1 when there is none."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while pos < end:
        byte = data[pos]
        pos += 1
        if shift == 63 and byte > 1:
            return value, -1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                return value, -1
            return value, pos
        shift += np.uint64(7)
    return value, -1


@primitive
def parse_one(data: Bytes, begin: int, end: int, row: int, out_u8: Bytes, out_i64: Ints) -> int:  # noqa: C901, PLR0911, PLR0912
    """Verdict on one payload; fills its row of ``out_u8`` (tp, tail) and ``out_i64`` (the wide columns)."""
    pos = begin
    if end - pos > MAX_TRANSACTION_BYTES:
        return OTHER
    # Fields 1 to 3, each of them written.
    if end - pos < 6 or data[pos] != 0x08 or data[pos + 1] > 2 or data[pos + 2] != 0x10:
        return OTHER
    tp = data[pos + 1]
    raw, pos = minimal_uvarint(data, pos + 3, end)
    if pos < 0 or raw >> np.uint64(63) or pos >= end or data[pos] != 0x18:
        return OTHER
    start_ts = np.int64(raw)
    raw, pos = minimal_uvarint(data, pos + 1, end)
    if pos < 0 or raw >> np.uint64(63):
        return OTHER
    commit_ts = np.int64(raw)
    # What the Pump takes, as `item_of` checks it; the refusal is left to that.
    if tp == 1 and commit_ts <= start_ts:
        return OTHER
    if tp == 2 and commit_ts not in (0, start_ts):
        return OTHER
    if start_ts == 0 and commit_ts != 0:
        return OTHER
    key_at, key_size = np.int64(0), np.int64(0)
    for number in range(4, 7):
        if pos < end and data[pos] == (number << 3 | 2):
            raw, pos = minimal_uvarint(data, pos + 1, end)
            if pos < 0 or raw > np.uint64(end - pos):
                return OTHER
            if number == 4:
                key_at, key_size = pos - begin, np.int64(raw)
            pos += np.int64(raw)
    job, tail = np.int64(0), 0
    if pos == end:
        tail = 4
    else:
        if data[pos] != 0x38:
            return OTHER
        raw, pos = minimal_uvarint(data, pos + 1, end)
        if pos < 0:
            return OTHER
        job = np.int64(raw)
        if pos == end:
            tail = 2
        else:
            if data[pos] != 0x40:
                return OTHER
            raw, pos = minimal_uvarint(data, pos + 1, end)
            state = np.int64(raw)
            if pos != end or state < -(1 << 31) or state >= 1 << 31:
                return OTHER
    out_u8[1, row], out_u8[2, row] = tp, tail
    out_i64[0, row], out_i64[1, row], out_i64[2, row] = start_ts, commit_ts, job
    out_i64[3, row], out_i64[4, row] = key_at, key_size
    return GOOD


@kernel
def parse_all(data: Bytes, starts: Ints, sizes: Ints, out_u8: Bytes, out_i64: Ints) -> int:
    """Fill the columns of every payload; returns how many are not `GOOD`."""
    others = 0
    for row in range(len(starts)):
        verdict = parse_one(data, starts[row], starts[row] + sizes[row], row, out_u8, out_i64)
        out_u8[0, row] = verdict
        others += verdict
    return others


def parse(data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Columns:
    """Columns of the payloads that lie at ``starts`` with ``sizes`` bytes in a buffer, which they must not leave."""
    narrow, wide = np.zeros((3, len(starts)), np.uint8), np.zeros((5, len(starts)), np.int64)
    parse_all(frozen(data), starts, sizes, narrow, wide)
    return Columns(*narrow, *wide)
