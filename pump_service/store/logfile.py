"""One append-only file of the value log. Who has the write lock writes it; any thread reads below `synced_end`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pump_service.store import frame
from pump_service.store.block import Block
from pump_service.store.disk import NO_SPACE
from pump_service.store.fs import FileSystem, LogHandle
from pump_service.store.laid import AHEAD_BYTES, AHEAD_FOR, PAGE
from pump_service.store.skips import SkippingScan, Stretch
from pumphouse.codec.crc import crc32c_of
from pumphouse.codec.jit import frozen
from pumphouse.errors import BadRecord
from pumphouse.model.position import Pointer

# A record is read in pieces of this many bytes where only its beginning is wanted; keys are far smaller.
_PIECE = 4 << 20
# What is read of a record whose key is only shown; TiDB's keys have 3 KiB at most.
_PEEK = 16 << 10
_ZEROS = bytes(AHEAD_BYTES)


class LogFile:
    """``value/%06d.vlog``. A file with a footer is sealed and never written again."""

    def __init__(self, fid: int, path: Path, handle: LogHandle, *, end: int, sealed: bool, max_ts: int) -> None:
        self.fid = fid
        self.path = path
        self.handle = handle
        self.ends_at(end)
        self._lays_ahead = True
        self.sealed = sealed
        self.max_ts = max_ts
        self.skipped: Sequence[Stretch] = ()  # accepted as damaged: no record lies there

    def ends_at(self, end: int) -> None:
        """All records of the file lie before this offset, and nothing but perhaps a footer behind it."""
        self.end = end
        self.synced_end = end
        self._laid_end = end  # zeros lie between `end` and here

    @classmethod
    def create(cls, fs: FileSystem, directory: Path, fid: int) -> LogFile:
        """A new empty file whose name is durable."""
        path = directory / file_name(fid)
        return cls(fid, path, fs.open_log(path, create=True), end=0, sealed=False, max_ts=0)

    def append(
        self, chunks: Sequence[bytes | memoryview], end: int, max_ts: int, *, seal: bool, sync: bool, limit: int = 0
    ) -> None:
        """Write records that end at ``end`` (and the footer when sealing), then sync.

        ``limit``: zeros are laid up to there at most. Raises OSError; the caller decides what it means. Nothing is
        known to be written then.
        """
        if seal:
            self.trim()
            self.handle.write_at(self.end, [*chunks, frame.encode_footer(max(max_ts, self.max_ts))])
        elif not (end > self._laid_end and self._laid_ahead(chunks, end, limit if sync else 0)):
            self.handle.write_at(self.end, chunks)
        if sync:
            try:
                self.handle.sync()
            except OSError as error:
                raise SyncFailed(*error.args) from error
        self.end = end
        self.synced_end = end
        self.max_ts = max(max_ts, self.max_ts)
        self.sealed = seal

    def _laid_ahead(self, chunks: Sequence[bytes | memoryview], end: int, limit: int) -> bool:
        """Write records, and zeros behind them; False when the records are still to be written."""
        zeros = (min(end + AHEAD_BYTES, limit) & -PAGE) - end
        if zeros <= 0 or end - self.end > AHEAD_FOR or not self._lays_ahead:
            return False
        try:
            self.handle.write_at(self.end, [*chunks, _ZEROS[:zeros]])
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # What room there is belongs to records; this file is nearly full, or the disk is.
            self._lays_ahead = False
            self.cut()
            return False
        self._laid_end = end + zeros
        return True

    def trim(self) -> bool:
        """Give back what was laid ahead; whether there was any. A file that is closed ends with its last record."""
        laid = self._laid_end > self.end
        if laid:
            self.cut()
        return laid

    def cut(self) -> None:
        """Remove what lies behind the last good record: a partial append, and what was laid ahead."""
        self.handle.truncate(self.end)
        self._laid_end = self.end

    def read(self, offset: int) -> bytes:
        """Payload of the record at an offset, checked. Raises BadRecord."""
        length, checksum = self._header(offset)
        payload = self.handle.read_at(offset + frame.HEADER_BYTES, length)
        if len(payload) != length or frame.crc32c(payload) != checksum:
            raise self.bad(offset, "checksum does not match")
        return payload

    def stored(self, offset: int) -> Stored:
        """The record at an offset, checked as `read` does, but in pieces, whatever its size. Raises BadRecord."""
        length, checksum = self._header(offset)
        stored = Stored(self, offset + frame.HEADER_BYTES, length)
        found = 0
        for at in range(0, length, _PIECE):
            piece = stored.read(at, min(_PIECE, length - at))
            found = crc32c_of(frozen(np.frombuffer(piece, np.uint8)), 0, len(piece), found)
        if found != checksum:
            raise self.bad(offset, "checksum does not match")
        return stored

    def _header(self, offset: int) -> tuple[int, int]:
        """Length and checksum of the payload at an offset, which has all its bytes. Raises BadRecord."""
        begin = offset + frame.HEADER_BYTES
        head = self.handle.read_at(offset, frame.HEADER_BYTES)
        if len(head) < frame.HEADER_BYTES or begin > self.synced_end:
            raise self.bad(offset, "the offset is behind the end")
        magic, length, checksum = frame.decode_header(head)
        if magic != frame.RECORD_MAGIC:
            raise self.bad(offset, "no record magic")
        if begin + length > self.synced_end:
            raise self.bad(offset, "record goes on beyond the end")
        return length, checksum

    def peek(self, offset: int) -> frame.Meta:
        """Type, timestamps and key of a record from its first bytes alone, for what is only shown: not checked.

        Raises BadRecord.
        """
        head = self.handle.read_at(offset, min(frame.HEADER_BYTES + _PEEK, max(self.synced_end - offset, 0)))
        if len(head) < frame.HEADER_BYTES or head[:4] != frame.RECORD_MAGIC_BYTES:
            raise self.bad(offset, "no record")
        return frame.read_meta(head[frame.HEADER_BYTES : frame.HEADER_BYTES + frame.decode_header(head).length])

    def scan(self, start: int = 0, stop: int | None = None) -> SkippingScan:
        """Records from an offset on, up to the synced end."""
        return SkippingScan(self.handle, self.fid, start, self.synced_end if stop is None else stop, self.skipped)

    def records(self, start: int, stop: int) -> Iterator[Block]:
        """Records between two record boundaries. Raises BadRecord, skips nothing."""
        scan = self.scan(start, stop)
        yield from scan
        if scan.problem:
            raise self.bad(scan.end, scan.problem)

    def bad(self, offset: int, reason: str) -> BadRecord:
        """The error that names this file."""
        return BadRecord(
            f"{self.path} at {offset}: {reason}",
            hint="put the file back from a copy; `pumphouse pump verify DATA_DIR` shows all that is damaged, "
            "`pumphouse pump accept-damage` is the recorded way past it",
            path=str(self.path),
            offset=offset,
            reason=reason,
        )

    def pointer_end(self) -> Pointer:
        """Where the next record goes."""
        return Pointer(self.fid, self.synced_end)


@dataclass(frozen=True, slots=True)
class Stored:
    """The payload of a record where it lies: read in parts, however large it is."""

    file: LogFile
    at: int
    size: int

    def read(self, at: int, size: int) -> bytes:
        """A part of it. Raises BadRecord when the file ends before."""
        part = self.file.handle.read_at(self.at + at, size)
        if len(part) < size:
            raise self.file.bad(self.at + at, "the file ends within a record")
        return part

    def meta(self) -> frame.Meta:
        """Type, timestamps and key. Raises BadRecord."""
        return frame.read_meta(self.read(0, min(_PIECE, self.size)))

    @property
    def command(self) -> str:
        """What shows all of it, on the Pump's machine."""
        return (
            f"tail -c +{self.at + 1} {shlex.quote(str(self.file.path))} | head -c {self.size}"
            " | protoc -Iinclude --decode=binlog.Binlog include/pumphouse/proto/binlog.proto"
        )


class SyncFailed(OSError):
    """fsync failed: what the medium holds is unknown from here on."""


def file_name(fid: int) -> str:
    """``000000.vlog``."""
    return f"{fid:06d}.vlog"


def parse_name(name: str) -> int | None:
    """File id of a name, or None when it is no value-log file."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot and suffix == "vlog" and stem.isdecimal() and len(stem) >= 6 else None
