"""Reading records one after the other out of a value-log file: the slow part of a restart and of catching up.

`walk_reference` says what a record is; `pump_service.store.scan_fast` does the same over whole buffers. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from include.errors import BadRecord
from pump_service.store import frame
from pump_service.store.block import Entry
from pump_service.store.fs import LogHandle

BLOCK_BYTES = 4 << 20


class Walk(NamedTuple):
    """What one buffer gave."""

    entries: list[Entry]
    consumed: int  # bytes up to the end of the last good record
    problem: str  # '' = the buffer ends here or inside a record that may go on
    wanted: int  # bytes that the record at `consumed` claims, 0 when not even its header is there


def walk_reference(data: bytes, fid: int, base: int) -> Walk:
    """Read records from the start of a buffer that lies at offset ``base`` of file ``fid``."""
    entries: list[Entry] = []
    at, end = 0, len(data)
    while at + frame.HEADER_BYTES <= end:
        magic, length, checksum = frame.decode_header(data, at)
        if magic != frame.RECORD_MAGIC:
            return Walk(entries, at, "no record magic", 0)
        begin = at + frame.HEADER_BYTES
        if begin + length > end:
            return Walk(entries, at, "", frame.HEADER_BYTES + length)
        payload = data[begin : begin + length]
        if frame.crc32c(payload) != checksum:
            return Walk(entries, at, "checksum does not match", frame.HEADER_BYTES + length)
        try:
            meta = frame.read_meta(payload)
        except BadRecord as error:
            return Walk(entries, at, error.message, frame.HEADER_BYTES + length)
        key = meta.prewrite_key if meta.tp == 0 else b""
        entries.append(Entry(meta.tp, meta.start_ts, meta.commit_ts, fid, base + at, length, key))
        at = begin + length
    return Walk(entries, at, "", 0)


class FileScan:
    """Records of one file between two offsets, in batches. After the iteration `end` and `problem` say how it ended."""

    def __init__(self, handle: LogHandle, fid: int, start: int, stop: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._handle = handle
        self._fid = fid
        self._stop = stop
        self._block = block_bytes
        self.end = start  # behind the last good record: the one answer to "where may the file be cut"
        self.problem = ""  # '' = every byte up to `stop` belongs to a good record

    def __iter__(self) -> Iterator[list[Entry]]:
        want = self._block
        while self.end < self._stop:
            data = self._handle.read_at(self.end, min(want, self._stop - self.end))
            walk = walk_reference(data, self._fid, self.end)
            self.end += walk.consumed
            if walk.entries:
                yield walk.entries
            if walk.problem:
                self.problem = walk.problem
                return
            if walk.consumed == 0:
                # Not even one record: bound its claim by what is left before reading that much.
                left = self._stop - self.end
                if walk.wanted == 0 or walk.wanted > left or len(data) >= left:
                    self.problem = "record goes on beyond the end"
                    return
                want = walk.wanted
            else:
                want = self._block
