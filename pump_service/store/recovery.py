"""What a value log's last file looks like after a stop, and the only code that cuts one.

A *torn tail* is what a crash leaves of a write that was never answered: the last record is incomplete, or sectors of
it are still zero because the medium had not written them. Anything else that does not read is *damage*: bytes that
may have been answered and are no longer what was written. A torn tail is cut after a copy was kept beside the file;
damage is refused by name, never skipped.

Assumptions about the medium: a sector (512 bytes) is written whole or not at all; unwritten sectors of a grown file
read as zeros; fdatasync makes everything written before it durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import structlog

from pump_service.store import frame
from pump_service.store.block import Block
from pump_service.store.fs import FileSystem, LogHandle
from pump_service.store.skips import SkippingScan, Stretch

log = structlog.get_logger(__name__)

SECTOR = 512
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
    size: int
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
    size = handle.size()
    scan = SkippingScan(handle, fid, start, size, skipped)
    for entries in scan:
        if sink is not None:
            sink(entries)
    if not scan.problem:
        return Tail(kind=TailKind.CLEAN, end=scan.end, size=size)
    left = size - scan.end
    if left == frame.FOOTER_BYTES:
        max_ts = frame.decode_footer(handle.read_at(scan.end, left))
        if max_ts is not None:
            return Tail(kind=TailKind.FOOTER, end=scan.end, size=size, max_ts=max_ts)
    follower = next_good_record(handle, scan.end + 1, size)
    if follower is None:
        torn = is_torn(handle, scan.end, size)
    else:
        # Good behind bad: the sectors of one unanswered write came out of order, or bytes rotted.
        torn = scan.end >= synced_floor and left <= UNSYNCED_BYTES and _has_zero_sector(handle, scan.end, follower)
    return Tail(kind=TailKind.TORN if torn else TailKind.DAMAGED, end=scan.end, size=size, reason=scan.problem)


def is_torn(handle: LogHandle, end: int, size: int) -> bool:
    """Whether what lies behind the last record, with no good record in it, is what a crash leaves."""
    return _is_cut(handle, end, size) or _has_zero_sector(handle, end, size)


def _is_cut(handle: LogHandle, end: int, size: int) -> bool:
    """Whether the last record, or a footer, simply ends too early."""
    head = handle.read_at(end, frame.HEADER_BYTES)
    if len(head) < frame.HEADER_BYTES:
        return True
    header = frame.decode_header(head)
    begin = end + frame.HEADER_BYTES
    if header.magic != frame.RECORD_MAGIC or begin + header.length <= size:
        return False
    # Whole, and only its length says otherwise: the checksum does not cover that.
    return bool(frame.crc32c(handle.read_at(begin, size - begin)) != header.checksum)


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
            if _good_at(handle, at + found, size):
                return at + found
            found = block.find(frame.RECORD_MAGIC_BYTES, found + 1)
        at += _SEARCH_BLOCK
    return None


def _good_at(handle: LogHandle, offset: int, size: int) -> bool:
    head = handle.read_at(offset, frame.HEADER_BYTES)
    if len(head) < frame.HEADER_BYTES:
        return False
    _, length, checksum = frame.decode_header(head)
    if length == 0 or offset + frame.HEADER_BYTES + length > size:
        return False
    return bool(frame.crc32c(handle.read_at(offset + frame.HEADER_BYTES, length)) == checksum)


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
