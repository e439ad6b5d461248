"""Zeros that the writer lays behind its records, and what another program writes behind them.

A write of at most `AHEAD_FOR` bytes that would grow the file lays `AHEAD_BYTES` zeros behind itself, up to a page's
end. What is written over them later changes no size and takes no block, so that its fdatasync has no journal to wait
for, which is a third to a half of its time. Larger writes gain nothing from it.

A start gives back the zeros that a killed Pump has left. A Go Pump that opens such a file appends behind them instead:
its first record begins on a page. Those zeros never held a record, so every reader passes over them.
"""

from __future__ import annotations

from pump_service.store import frame
from pump_service.store.fs import LogHandle

AHEAD_BYTES = 64 << 10
AHEAD_FOR = 32 << 10
PAGE = 4 << 10


def behind_zeros(handle: LogHandle, end: int, stop: int) -> int | None:
    """Where records go on that another program wrote behind laid zeros, which begin at ``end``; None = not so.

    A crash in the middle of one of our own writes looks like that only where a page that arrived begins with a record.
    That was not answered, and as long as it reads it may stay.
    """
    most = min(end + AHEAD_FOR + AHEAD_BYTES, stop - frame.HEADER_BYTES)
    zeros = handle.read_at(end, max(most + 1 - end, 0))
    at = end + len(zeros) - len(zeros.lstrip(b"\0"))
    return at if at > end and at % PAGE == 0 and is_record(handle, at, stop) else None


def is_record(handle: LogHandle, offset: int, stop: int) -> bool:
    """Whether a whole record lies there, proved by its checksum."""
    head = handle.read_at(offset, frame.HEADER_BYTES)
    if len(head) < frame.HEADER_BYTES:
        return False
    magic, length, checksum = frame.decode_header(head)
    begin = offset + frame.HEADER_BYTES
    if magic != frame.RECORD_MAGIC or length == 0 or begin + length > stop:
        return False
    return bool(frame.crc32c(handle.read_at(begin, length)) == checksum)
