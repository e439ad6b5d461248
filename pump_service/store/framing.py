"""Payloads -> the bytes of records, a whole group by one kernel; `frame.encode_record` is the reference."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pump_service.store import frame
from pump_service.store.block import I64, U8, Block
from pump_service.store.parse import TAILS
from pump_service.store.records import Records
from pumphouse.codec.crc import crc32c_of, crc_more
from pumphouse.codec.jit import Bytes, Ints, frozen, kernel, primitive
from pumphouse.codec.raw import copy_bytes

_MAGIC = np.uint64(frame.RECORD_MAGIC)
_SMALLEST = 64 << 10
LONGEST_TAIL = max(TAILS)
# Most bytes of one write of many records, which are put together in a buffer; a larger record is written as it is.
WRITE_BYTES = 8 << 20

# what a kernel says beside the row that it stopped at; `Framer.write` takes it in this order
USED, MAX_TS, PREWRITES, _FACTS = range(4)


@primitive
def _put(out: Bytes, at: int, value: np.uint64, size: int) -> None:
    """A little-endian number."""
    for byte in range(size):
        out[at + byte] = np.uint8(value >> np.uint64(8 * byte) & np.uint64(0xFF))


@kernel
def frame_rows(
    data: Bytes, starts: Ints, sizes: Ints, tails: Bytes, tp: Bytes, start_ts: Ints, commit_ts: Ints, first: int,
    out: Bytes, begin: int, limit: int, most: int, offsets: Ints, stored: Ints, facts: Ints,
) -> int:  # fmt: skip
    """Write rows from ``first`` on as records into ``out``; returns the row that it stopped at.

    ``out`` goes to offset ``begin`` of the file. No record begins above ``limit``; they end at ``most`` bytes of
    ``out``, unless one alone is longer. ``offsets`` and ``stored`` get where each row goes and its payload's bytes.
    """
    at = facts[USED]
    for row in range(first, len(starts)):
        source, size, tail = starts[row], sizes[row], np.int64(tails[row])
        payload = at + frame.HEADER_BYTES
        end = payload + size + tail
        if begin + at > limit or (at > 0 and end > most):
            facts[USED] = at
            return row
        copy_bytes(out, payload, data, source, size)
        if tail == 4:
            out[end - 4] = 0x38
            out[end - 3] = 0
        if tail >= 2:
            out[end - 2] = 0x40
            out[end - 1] = 0
        _put(out, at, _MAGIC, 4)
        _put(out, at + 4, np.uint64(end - payload), 8)
        _put(out, at + 12, np.uint64(crc_more(out, payload, end, 0)), 4)
        offsets[row], stored[row] = begin + at, end - payload
        facts[PREWRITES] += tp[row] == 0
        facts[MAX_TS] = max(facts[MAX_TS], start_ts[row] if tp[row] == 0 else commit_ts[row])
        at = end
    facts[USED] = at
    return len(starts)


@dataclass(slots=True)
class Place:
    """How far an append has come: part and row."""

    part: int = 0
    row: int = 0


@dataclass(slots=True)
class Write:
    """One write: its bytes, and what lies where afterwards."""

    chunks: Sequence[bytes | memoryview] = ()
    blocks: list[Block] = field(default_factory=list)
    size: int = 0
    max_ts: int = 0
    prewrites: int = 0


class Framer:
    """Makes one write after the other out of records, in a buffer that is used again. One thread."""

    def __init__(self) -> None:
        self._buffer = np.empty(_SMALLEST, np.uint8)

    def _room(self, size: int) -> U8:
        if len(self._buffer) < size:
            self._buffer = np.empty(1 << (size - 1).bit_length(), np.uint8)
        return self._buffer

    def write(self, parts: Sequence[Records], place: Place, *, fid: int, begin: int, limit: int, most: int) -> Write:
        """What goes into one write at offset ``begin`` of a file; moves ``place`` behind it.

        A file takes records until one passes ``limit``; ``most`` is how long a write of several may be. The bytes are
        valid until the next call.
        """
        if begin > limit:
            return Write()
        records = parts[place.part]
        first = frame.HEADER_BYTES + int(records.sizes[place.row]) + LONGEST_TAIL
        if first > WRITE_BYTES:
            return self._large(records, place, fid, begin)
        longest = sum(each.bytes + (frame.HEADER_BYTES + LONGEST_TAIL) * len(each) for each in parts[place.part :])
        out = self._room(max(min(longest, WRITE_BYTES), first))
        write = Write()
        facts = np.zeros(_FACTS, np.int64)
        while place.part < len(parts):
            records = parts[place.part]
            columns, row = records.columns, place.row
            wide = np.empty((2, len(records)), np.int64)
            stop = frame_rows(
                records.data, records.starts, records.sizes, columns.tail, columns.tp, columns.start_ts,
                columns.commit_ts, row, out, begin, limit, min(most, WRITE_BYTES, len(out)), wide[0], wide[1], facts,
            )  # fmt: skip
            if stop > row:
                write.blocks.append(_block(records, row, stop, fid, wide[0], wide[1]))
            if stop < len(records):
                place.row = stop
                break
            place.part, place.row = place.part + 1, 0
        write.size, write.max_ts, write.prewrites = facts.tolist()
        write.chunks = [memoryview(out)[: write.size]]
        return write

    def _large(self, records: Records, place: Place, fid: int, begin: int) -> Write:
        """One record in pieces, whose payload is not copied."""
        row = place.row
        start = int(records.starts[row])
        stop = start + int(records.sizes[row])
        tail = TAILS[int(records.columns.tail[row])]
        checksum = crc32c_of(records.data, start, stop, 0)
        if tail:
            checksum = crc32c_of(frozen(np.frombuffer(tail, np.uint8)), 0, len(tail), checksum)
        size = stop - start + len(tail)
        header = frame.pack_header(frame.RECORD_MAGIC, size, checksum)
        columns = records.columns
        ts = frame.storage_ts(int(columns.tp[row]), int(columns.start_ts[row]), int(columns.commit_ts[row]))
        offsets, stored = np.full(len(records), begin, np.int64), np.full(len(records), size, np.int64)
        block = _block(records, row, row + 1, fid, offsets, stored)
        done = row + 1 == len(records)
        place.part, place.row = place.part + done, 0 if done else row + 1
        chunks = [header, memoryview(records.data)[start:stop], tail]
        return Write(chunks, [block], frame.HEADER_BYTES + size, ts, int(columns.tp[row] == 0))


def _block(records: Records, first: int, stop: int, fid: int, offsets: I64, stored: I64) -> Block:
    columns = records.columns
    if stop - first == len(records):
        return Block(
            np.full(stop, fid, np.int32), offsets, stored, columns.tp, columns.start_ts, columns.commit_ts,
            columns.ddl_job_id, columns.key_at, columns.key_size,
        )  # fmt: skip
    rows = slice(first, stop)
    return Block(
        np.full(stop - first, fid, np.int32), offsets[rows], stored[rows], columns.tp[rows], columns.start_ts[rows],
        columns.commit_ts[rows], columns.ddl_job_id[rows], columns.key_at[rows], columns.key_size[rows],
    )  # fmt: skip
