"""Reading records one after the other out of a value-log file: the slow part of a restart and of catching up.

A file is read in pieces into one buffer; a kernel checks and parses the records of a piece without the GIL. Any thread.
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pump_service.store.block import Block
from pump_service.store.fs import LogHandle
from pumphouse.codec.crc import crc_more
from pumphouse.codec.jit import Bytes, Ints, kernel
from pumphouse.codec.raw import load_u32, load_u64
from pumphouse.codec.wire import read_field, read_uvarint

BLOCK_BYTES = 8 << 20
# Most records of one block.
BLOCK_RECORDS = 1 << 16

_MAGIC = 0x823A56E8
_HEADER = 16
_NO_MAGIC, _NO_SUM, _NO_MESSAGE, _NO_TIME, _NO_PAYLOAD = 1, 2, 3, 4, 5
_PROBLEMS = {
    0: "",
    _NO_MAGIC: "no record magic",
    _NO_SUM: "checksum does not match",
    _NO_MESSAGE: "a payload of the value log is no Binlog message",
    _NO_TIME: "a Binlog with a time below 0",
    # Nobody writes one; where only a magic reached the medium, zeros behind it would pass for its length and checksum.
    _NO_PAYLOAD: "a record without a payload",
}


@kernel
def job_id(data: Bytes, pos: int, end: int) -> int:
    """``ddl_job_id`` of a payload from its field 5 on; 0 when there is none."""
    while pos < end:
        number, wire, at, length, pos = read_field(data, pos, end)
        if pos < 0:
            return 0
        if number == 7 and wire == 0:
            raw, _ = read_uvarint(data, at, at + length)
            return np.int64(raw)
    return 0


@kernel
def read_meta(data: Bytes, begin: int, end: int, row: int, tp: Bytes, wide: Ints) -> bool:
    """Type, timestamps, key and DDL job of a payload into its row, as `frame.read_meta` has them; whether it could."""
    pos = begin
    while pos < end:
        field = pos
        tag, pos = read_uvarint(data, pos, end)
        if pos < 0:
            return False
        if tag not in (0x08, 0x10, 0x18, 0x22):
            wide[4, row] = job_id(data, field, end)
            return True
        raw, pos = read_uvarint(data, pos, end)
        if pos < 0:
            return False
        if tag == 0x08:
            tp[row] = min(raw, np.uint64(255))
        elif tag == 0x10:
            wide[2, row] = np.int64(raw)
        elif tag == 0x18:
            wide[3, row] = np.int64(raw)
        else:
            if raw > np.uint64(end - pos):
                return False
            wide[5, row], wide[6, row] = pos - begin, np.int64(raw)
            pos += np.int64(raw)
    return True


@kernel
def walk_records(data: Bytes, begin: int, end: int, base: int, tp: Bytes, wide: Ints, out: Ints) -> int:
    """Fill a row a record; returns how many rows.

    ``wide``: offset, size, start ts, commit ts, DDL job, key's place, key's size. ``base``: offset in the file of
    data[0]. ``out`` gets where the last good record ends, what is wrong behind it, and how long that record says it is.
    """
    pos = begin
    rows = 0
    out[1] = out[2] = 0
    while rows < len(tp) and pos + _HEADER <= end:
        if np.int64(load_u32(data, pos)) != _MAGIC:
            out[1] = _NO_MAGIC
            break
        length = load_u64(data, pos + 4)
        if length == 0:
            out[1] = _NO_PAYLOAD
            break
        if length > np.uint64(end - pos - _HEADER):
            out[2] = np.int64(min(length, np.uint64(1 << 62))) + _HEADER
            break
        start = pos + _HEADER
        stop = start + np.int64(length)
        if crc_more(data, start, stop, 0) != np.int64(load_u32(data, pos + 12)):
            out[1] = _NO_SUM
            break
        tp[rows] = 0
        wide[:, rows] = 0
        if not read_meta(data, start, stop, rows, tp, wide):
            out[1] = _NO_MESSAGE
            break
        if wide[2, rows] < 0 or wide[3, rows] < 0:
            out[1] = _NO_TIME
            break
        wide[0, rows] = base + pos
        wide[1, rows] = stop - start
        rows += 1
        pos = stop
    out[0] = pos
    return rows


class FileScan:
    """Records of one file between two offsets, in blocks. After the iteration `end` and `problem` say how it ended."""

    def __init__(self, handle: LogHandle, fid: int, start: int, stop: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._handle = handle
        self._fid = fid
        self._stop = stop
        self._block = max(block_bytes, _HEADER)
        self.end = start  # behind the last good record: the one answer to "where may the file be cut"
        self.problem = ""  # '' = every byte up to `stop` belongs to a good record

    def __iter__(self) -> Iterator[Block]:
        data = np.empty(max(min(self._block, self._stop - self.end), 0), np.uint8)
        base = filled = self.end  # offsets of data[0] and of what lies behind the last byte that was read
        result = np.zeros(3, np.int64)
        while self.end < self._stop:
            rows, tp, wide = self._walk(data, base, filled, result)
            self.end = base + int(result[0])
            if rows:
                yield self._columns(rows, tp, wide)
            if result[1]:
                self.problem = _PROBLEMS[int(result[1])]
                return
            if rows == len(tp):
                continue  # there may be more in the buffer
            left = filled - self.end
            wanted = int(result[2])
            # A record's claim is bounded by what is left before that much is read.
            if wanted > self._stop - self.end or filled >= self._stop:
                self.problem = "record goes on beyond the end" if self.end < self._stop else ""
                return
            if wanted > len(data):
                larger = np.empty(wanted, np.uint8)
                larger[:left] = data[self.end - base : filled - base]
                data = larger
            else:
                data[:left] = data[self.end - base : filled - base].copy()
            base, filled = self.end, self._fill(data, self.end, left)

    def _walk(
        self, data: NDArray[np.uint8], base: int, filled: int, result: NDArray[np.int64]
    ) -> tuple[int, NDArray[np.uint8], NDArray[np.int64]]:
        """Rows of the records in the buffer that begin at `end`."""
        most = min(BLOCK_RECORDS, (filled - self.end) // _HEADER + 1)
        tp, wide = np.empty(most, np.uint8), np.empty((7, most), np.int64)
        return walk_records(data, self.end - base, filled - base, base, tp, wide, result), tp, wide

    def _columns(self, rows: int, tp: NDArray[np.uint8], wide: NDArray[np.int64]) -> Block:
        offset, size, start_ts, commit_ts, job, key_at, key_size = wide[:, :rows]
        return Block(
            fid=np.full(rows, self._fid, np.int32), offset=offset, size=size, tp=tp[:rows], start_ts=start_ts,
            commit_ts=commit_ts, ddl_job_id=job, key_at=key_at, key_size=key_size,
        )  # fmt: skip

    def _fill(self, data: NDArray[np.uint8], base: int, have: int) -> int:
        """Read what follows the first ``have`` bytes; the offset behind the last byte."""
        upto = min(len(data), self._stop - base)
        got = self._handle.read_into(base + have, data.data[have:upto])
        if have + got < upto:
            self._stop = base + have + got  # the file is shorter than it was said to be
        return base + have + got
