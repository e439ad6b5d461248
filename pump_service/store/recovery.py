"""What a value log's last file looks like after a stop, and how it is cut; that it is, decides `logfiles`.

A *torn tail* is what a crash leaves of a write that was never answered: the last record is incomplete, or sectors of
it are still zero because the medium had not written them. Anything else that does not read is *damage*: bytes that
may have been answered and are no longer what was written. A torn tail is cut after a copy was kept beside the file;
damage is refused by name, never skipped. Zeros at the end that the writer had laid ahead (`laid`) are neither, they
are given back; what else there is behind the last good record is judged as if the file ended with it.

Assumptions about the medium: a sector (512 bytes) is written whole or not at all; unwritten sectors of a grown file
read as zeros; fdatasync makes everything written before it durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import structlog

from pump_service.store import frame
from pump_service.store.block import Block
from pump_service.store.fs import FileSystem, LogHandle
from pump_service.store.laid import AHEAD_BYTES, AHEAD_FOR, is_record
from pump_service.store.skips import SkippingScan, Stretch
from pumphouse.codec.crc import crc32c_of
from pumphouse.codec.jit import frozen

log = structlog.get_logger(__name__)

SECTOR = 512
_ZERO = frozen(np.zeros(1, np.uint8))
_SEARCH_BLOCK = 1 << 20
# One write that was not synced is not longer than this when it holds several records.
UNSYNCED_BYTES = 64 << 20


class TailKind(StrEnum):
    """How a file ends."""

    CLEAN = "clean"
    FOOTER = "footer"
    TORN = "torn"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Verdict on a file."""

    kind: TailKind
    end: int  # behind the last good record
    size: int  # of the file; less where all behind it are zeros that were laid ahead
    reason: str = ""
    max_ts: int | None = None  # from the footer


def examine(
    handle: LogHandle,
    fid: int,
    start: int,
    *,
    synced_floor: int = 0,
    sink: Callable[[Block], None] | None = None,
    skipped: Sequence[Stretch] = (),
) -> Tail:
    """Read the last file from a record boundary on; decides, changes nothing.

    ``synced_floor``: everything below this offset is known to have been synced (the index points there), so a hole
    below it is rot. A file that simply ends below it is torn all the same: the caller sees that answered binlogs are
    gone by comparing ends, and takes a new incarnation. ``skipped``: stretches that were accepted as damaged.
    """
    whole = handle.size()
    scan = SkippingScan(handle, fid, start, whole, skipped)
    for entries in scan:
        if sink is not None:
            sink(entries)
    if not scan.problem:
        return Tail(kind=TailKind.CLEAN, end=scan.end, size=whole)
    size = written_end(handle, scan.end, whole)
    left = size - scan.end
    if not left:
        return Tail(kind=TailKind.CLEAN, end=scan.end, size=size)
    if left == frame.FOOTER_BYTES:
        max_ts = frame.decode_footer(handle.read_at(scan.end, left))
        if max_ts is not None:
            return Tail(kind=TailKind.FOOTER, end=scan.end, size=size, max_ts=max_ts)
    follower = next_good_record(handle, scan.end + 1, whole)
    if follower is None:
        torn = is_torn(handle, scan.end, size)
    else:
        # Good behind bad: the sectors of one unanswered write came out of order, or bytes rotted.
        torn = scan.end >= synced_floor and left <= UNSYNCED_BYTES and _has_zero_sector(handle, scan.end, follower)
    return Tail(kind=TailKind.TORN if torn else TailKind.DAMAGED, end=scan.end, size=whole, reason=scan.problem)


def written_end(handle: LogHandle, end: int, size: int) -> int:
    """Where what was written behind the last good record ends; zeros behind that were laid ahead by the writer.

    A record that begins there has its zeros, as many as its length says. More zeros than the writer ever lays are the
    medium's: a write that grew the file and did not arrive.
    """
    first = max(end, size - AHEAD_BYTES - AHEAD_FOR)
    used = first + len(handle.read_at(first, size - first).rstrip(b"\0"))
    if used == first:
        return end if first == end else size
    if used - end >= frame.HEADER_BYTES:
        magic, length, _ = frame.decode_header(handle.read_at(end, frame.HEADER_BYTES))
        if magic == frame.RECORD_MAGIC:
            return max(used, min(end + frame.HEADER_BYTES + length, size))
    return used


def is_torn(handle: LogHandle, end: int, size: int) -> bool:
    """Whether what lies behind the last record, with no good record in it, is what a crash leaves.

    ``size``: as `written_end` has it.
    """
    begin = end + frame.HEADER_BYTES
    if begin > size:
        return True  # a record or a footer that simply ends too early
    magic, length, checksum = frame.decode_header(handle.read_at(end, frame.HEADER_BYTES))
    if magic == frame.RECORD_MAGIC and begin + length >= size:
        data = handle.read_at(begin, size - begin)
        # Whole, and only its length says otherwise: the checksum does not cover that.
        if _has_sum(data, checksum):
            return False
        if begin + length > size or _lacks_last_byte(data, checksum):
            return True
    return _has_zero_sector(handle, end, size)


def _has_sum(data: bytes, checksum: int) -> bool:
    """Whether a payload with this checksum begins here and ends with the data, or before that among zeros."""
    last = data[-(AHEAD_BYTES + AHEAD_FOR) :]
    used = len(data) - len(last) + len(last.rstrip(b"\0"))
    if used == len(data) - len(last):
        # More zeros than the writer lays, or nothing else: the sum of nothing is that of a header which is not there.
        return used > 0 and frame.crc32c(data) == checksum
    found = crc32c_of(frozen(np.frombuffer(data, np.uint8)), 0, used, 0)
    # A payload ends with few zeros of its own; each that is tried is a chance to be wrong.
    for _ in range(min(len(data) - used, SECTOR)):
        if found == checksum:
            return True
        found = crc32c_of(_ZERO, 0, 1, found)
    return found == checksum or frame.crc32c(data) == checksum


def _lacks_last_byte(data: bytes, checksum: int) -> bool:
    """Whether all of a payload is there but its last byte, which lay in a sector of its own."""
    if data[-1:] != b"\0":
        return False
    sum_of_rest = crc32c_of(frozen(np.frombuffer(data, np.uint8)), 0, len(data) - 1, 0)
    return any(crc32c_of(frozen(np.full(1, last, np.uint8)), 0, 1, sum_of_rest) == checksum for last in range(1, 256))


def _has_zero_sector(handle: LogHandle, start: int, stop: int) -> bool:
    """Whether some sector of the region was never written.

    The first piece counts at any length, because a record begins with its magic. The last piece counts from two bytes
    on: a payload may end in one zero byte.
    """
    at = start
    while at < stop:
        upto = min((at // SECTOR + 1) * SECTOR, stop)
        piece = handle.read_at(at, upto - at)
        if not any(piece) and (len(piece) == SECTOR or at == start or (upto == stop and len(piece) > 1)):
            return True
        at = upto
    return False


def next_good_record(handle: LogHandle, start: int, size: int) -> int | None:
    """Offset of the first whole record behind ``start``, found by its magic and proved by its checksum."""
    at = start
    while at < size:
        block = handle.read_at(at, _SEARCH_BLOCK + len(frame.RECORD_MAGIC_BYTES) - 1)
        found = block.find(frame.RECORD_MAGIC_BYTES)
        while found >= 0:
            if is_record(handle, at + found, size):
                return at + found
            found = block.find(frame.RECORD_MAGIC_BYTES, found + 1)
        at += _SEARCH_BLOCK
    return None


def cut_torn_tail(fs: FileSystem, path: Path, handle: LogHandle, tail: Tail) -> Path:
    """Cut the file behind its last good record; what is cut stays in ``<file>.broken`` (``.broken.1`` …)."""
    broken = path.with_name(path.name + ".broken")
    number = 0
    while fs.exists(broken):
        number += 1
        broken = path.with_name(f"{path.name}.broken.{number}")
    # The copy is durable before the first byte goes.
    fs.copy(path, broken, tail.end)
    handle.truncate(tail.end)
    handle.sync()
    log.warning(
        "torn_tail_cut", path=str(path), offset=tail.end, cut_bytes=tail.size - tail.end, reason=tail.reason,
        kept_in=str(broken),
    )  # fmt: skip
    return broken
