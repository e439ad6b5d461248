"""Payloads -> the bytes of records, a whole group by one kernel; `frame.encode_record` is the reference."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from include.codec.jit import Bytes, Ints, frozen, kernel, primitive
from pump_service.intake.parse import TAILS
from pump_service.store import frame
from pump_service.store.block import U8
from pump_service.store.crc import crc32c_of, crc_more
from pump_service.store.records import Records

_MAGIC = np.uint64(frame.RECORD_MAGIC)
_SMALLEST = 64 << 10


@primitive
def _put(out: Bytes, at: int, value: np.uint64, size: int) -> None:
    """A little-endian number."""
    for byte in range(size):
        out[at + byte] = np.uint8(value >> np.uint64(8 * byte) & np.uint64(0xFF))


@kernel
def frame_rows(
    data: Bytes, starts: Ints, sizes: Ints, tails: Bytes, first: int, stop: int, out: Bytes, begin: int
) -> int:
    """Write rows ``first`` to ``stop`` as records into ``out`` from ``begin`` on; returns where they end."""
    at = np.int64(begin)
    for row in range(first, stop):
        source, size, tail = starts[row], sizes[row], np.int64(tails[row])
        payload = at + frame.HEADER_BYTES
        for byte in range(size):
            out[payload + byte] = data[source + byte]
        end = payload + size
        if tail == 4:
            out[end] = 0x38
            out[end + 1] = 0
        if tail >= 2:
            out[end + tail - 2] = 0x40
            out[end + tail - 1] = 0
        end += tail
        _put(out, at, _MAGIC, 4)
        _put(out, at + 4, np.uint64(end - payload), 8)
        _put(out, at + 12, np.uint64(crc_more(out, payload, end, 0)), 4)
        at = end
    return at


class Framer:
    """One buffer that is used again for each write. One thread."""

    def __init__(self) -> None:
        self._buffer = np.empty(_SMALLEST, np.uint8)

    def room(self, size: int) -> U8:
        """The buffer, of at least that many bytes."""
        if len(self._buffer) < size:
            self._buffer = np.empty(1 << (size - 1).bit_length(), np.uint8)
        return self._buffer

    def records(self, parts: list[tuple[Records, int, int]], size: int) -> memoryview:
        """Rows ``first`` to ``stop`` of each part as records: ``size`` bytes, valid until the next call."""
        out = self.room(size)
        at = 0
        for records, first, stop in parts:
            at = frame_rows(records.data, records.starts, records.sizes, records.columns.tail, first, stop, out, at)
        return memoryview(out)[:at]

    @staticmethod
    def large_record(records: Records, row: int) -> list[bytes | memoryview]:
        """One record in pieces, whose payload is not copied."""
        start = int(records.starts[row])
        stop = start + int(records.sizes[row])
        tail = TAILS[int(records.columns.tail[row])]
        checksum = crc32c_of(records.data, start, stop, 0)
        if tail:
            checksum = crc32c_of(frozen(np.frombuffer(tail, np.uint8)), 0, len(tail), checksum)
        header = frame.pack_header(frame.RECORD_MAGIC, stop - start + len(tail), checksum)
        return [header, memoryview(records.data)[start:stop], tail]
