"""The set of value-log files: append with rotation, read by pointer, scan from a pointer (row P1).

One thread at a time appends. Reading and scanning take the list of files under the lock and read outside it, below the
synced end, so what is being written is never seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pump_service.store import frame, recovery
from pump_service.store.block import Block
from pump_service.store.framing import Framer, Place, Write
from pump_service.store.fs import FileSystem
from pump_service.store.logfile import LogFile, file_name
from pump_service.store.logfiles import LogFiles
from pump_service.store.records import Records
from pump_service.store.skips import Stretch
from pump_service.store.summaries import Summaries
from pumphouse.errors import BadRecord
from pumphouse.model.position import ZERO_POINTER, Pointer

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Appended:
    """Outcome of an append: so many `records` are durable, in order; those behind are not when `error` is set."""

    blocks: list[Block] = field(default_factory=list)
    records: int = 0
    prewrites: int = 0
    bytes: int = 0  # of the records, with their headers
    error: OSError | None = None
    sealed: list[LogFile] = field(default_factory=list)

    def add(self, more: Appended) -> None:
        """Take over what another append wrote: records and figures. What failed or was sealed is the caller's."""
        self.blocks += more.blocks
        self.records += more.records
        self.prewrites += more.prewrites
        self.bytes += more.bytes


class ValueLog:
    """All files of ``<data_dir>/value``."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        summary_dir: Path,
        *,
        limit: int,
        sync: bool,
        skipped: Mapping[int, Sequence[Stretch]] | None = None,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._summary_dir = summary_dir
        self._limit = limit
        self._sync = sync
        self._lock = threading.Lock()
        self._files: dict[int, LogFile] = {}
        self._active: LogFile | None = None
        self._next_fid = 0
        self.first_fid = 0  # of the oldest file that is left
        self.summaries = Summaries(fs, summary_dir)
        self._framer = Framer()
        self._skipped = skipped or {}

    # -- opening -------------------------------------------------------------------------------------------------

    def open(self, *, synced_floor: Pointer = ZERO_POINTER, gaps_upto: int = -1, clean: bool = False) -> None:
        """Open what is there; the last file is examined and a torn tail cut. Raises BadRecord on damage.

        ``gaps_upto``: files up to this id may be missing, as the Go Pump's GC deletes any file.
        ``clean``: the last process closed the log, so all of it is on the medium.
        """
        opener = LogFiles(self._fs, self._directory, self.summaries, self._skipped)
        self._fs.make_dirs(self._directory)
        self._fs.make_dirs(self._summary_dir)
        files = opener.open(synced_floor=synced_floor, gaps_upto=gaps_upto, clean=clean, sync=self._sync)
        self._files = {file.fid: file for file in files}
        if files:
            self.first_fid, self._next_fid = files[0].fid, files[-1].fid + 1
            self._active = None if files[-1].sealed else files[-1]

    # -- writing: who has the write lock -------------------------------------------------------------------------

    def append(self, parts: Sequence[Records]) -> Appended:
        """Write records, one write and one sync for each file and each `framing.WRITE_BYTES` of them."""
        result = Appended()
        place = Place()
        try:
            while place.part < len(parts):
                self._append_run(parts, place, result)
        except OSError as error:
            result.error = error
        # Apart from the writing: an error of a log line or of a summary is none of the value log's.
        for file in result.sealed:
            self.summaries.save(file.fid, done=True)
            log.info("value_log_sealed", file_id=file.fid, max_ts=file.max_ts, bytes=file.end)
        return result

    def _append_run(self, parts: Sequence[Records], place: Place, result: Appended) -> None:
        file = self._active or self._create()
        write, end = self._framed(file, parts, place)
        seal = end > self._limit
        file.append(write.chunks, end, write.max_ts, seal=seal, sync=self._sync, limit=self._limit)
        self._account(file, write, result)
        if seal:
            self._active = None
            result.sealed.append(file)

    def _framed(self, file: LogFile, parts: Sequence[Records], place: Place) -> tuple[Write, int]:
        """What goes into the next write, and where that ends."""
        # Recovery takes more than `recovery.UNSYNCED_BYTES` with a hole in it for damage.
        most = recovery.UNSYNCED_BYTES - frame.FOOTER_BYTES
        write = self._framer.write(parts, place, fid=file.fid, begin=file.end, limit=self._limit, most=most)
        return write, file.end + write.size

    def _account(self, file: LogFile, write: Write, result: Appended) -> None:
        summary = self.summaries.growing(file.fid)
        for block in write.blocks:
            summary.add(block)
            result.records += len(block)
        result.blocks += write.blocks
        result.prewrites += write.prewrites
        result.bytes += write.size

    @property
    def room(self) -> int:
        """Bytes that may still be appended before the next file begins."""
        return 0 if self._active is None else self._limit - self._active.end

    def _create(self) -> LogFile:
        self.summaries.remove(self._next_fid)  # one of that name belongs to another life of the directory
        file = LogFile.create(self._fs, self._directory, self._next_fid)
        with self._lock:
            self._files[file.fid] = file
        self._active = file
        self._next_fid += 1
        return file

    def cut_partial(self) -> None:
        """Remove what a failed append left behind the last good record. Raises OSError."""
        if self._active is not None:
            self._active.cut()

    def close(self, *, footer: bool) -> None:
        """Close all files; the active one gets a footer when it is large enough, to save the scan."""
        active = self._active
        try:
            if active is not None and footer and active.end >= frame.FOOTER_AT_CLOSE_FROM:
                active.append([], active.end, active.max_ts, seal=True, sync=self._sync)
            elif active is not None and footer and active.trim() and self._sync:
                active.handle.sync()
            if active is not None and footer:
                self.save_active_summary()
        finally:
            self._active = None
            with self._lock:
                for file in self._files.values():
                    file.handle.close()

    def save_active_summary(self) -> None:
        """Remember how far the active file was summed up."""
        if self._active is not None:
            self.summaries.save(self._active.fid)

    # -- reading: any thread ---------------------------------------------------------------------------------------

    @property
    def end(self) -> Pointer:
        """Behind the last synced record."""
        with self._lock:
            if not self._files:
                return ZERO_POINTER
            return self._files[max(self._files)].pointer_end()

    def files(self) -> list[LogFile]:
        """All files, oldest first."""
        with self._lock:
            return [self._files[fid] for fid in sorted(self._files)]

    def file(self, fid: int) -> LogFile:
        """One file. Raises BadRecord when it is gone."""
        with self._lock:
            file = self._files.get(fid)
        if file is None:
            path = self._directory / file_name(fid)
            raise BadRecord(f"{path} is not there", path=str(path), offset=0, reason="missing file")
        return file

    def read(self, pointer: Pointer) -> bytes:
        """Payload of a record, checked. Raises BadRecord."""
        return self.file(pointer.fid).read(pointer.offset)

    def bytes(self) -> int:
        """Bytes in all files."""
        return sum(file.synced_end + (frame.FOOTER_BYTES if file.sealed else 0) for file in self.files())

    def end_of_records(self) -> Pointer:
        """Behind the last synced record, in whose file it lies: the newest file may have none yet."""
        return max((file.pointer_end() for file in self.files() if file.synced_end), default=ZERO_POINTER)

    def bytes_behind(self, pointer: Pointer) -> int:
        """Bytes of records behind a pointer."""
        behind = (file for file in self.files() if file.fid >= pointer.fid)
        return sum(file.synced_end - (pointer.offset if file.fid == pointer.fid else 0) for file in behind)

    def scan(self, start: Pointer, stop: Pointer | None = None) -> Iterator[Block]:
        """Records from a pointer on (inclusive) up to ``stop`` or the synced end. Raises BadRecord, skips nothing."""
        for file in self.files():
            if file.fid < start.fid or (stop is not None and file.fid > stop.fid):
                continue
            first = start.offset if file.fid == start.fid else 0
            last = file.synced_end
            if stop is not None and file.fid == stop.fid:
                last = min(last, stop.offset)
            yield from file.records(first, last)

    # -- GC --------------------------------------------------------------------------------------------------------

    def remove(self, file: LogFile) -> None:
        """Delete a sealed file. Raises OSError."""
        with self._lock:
            self._files.pop(file.fid, None)
            self.first_fid = min(self._files, default=self._next_fid)
        self._fs.remove(file.path)
        self.summaries.remove(file.fid)
        # Readers that hold the file finish with the open descriptor; it closes with its last reference.
