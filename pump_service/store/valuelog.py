"""The set of value-log files: append with rotation, read by pointer, scan from a pointer (row P1).

One thread at a time appends. Reading and scanning take the list of files under the lock and read outside it, below the
synced end, so what is being written is never seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import structlog

from pump_service.store import frame, recovery
from pump_service.store.block import Block
from pump_service.store.framing import Framer, Place, Write
from pump_service.store.fs import FileSystem
from pump_service.store.laid import PAGE
from pump_service.store.logfile import LogFile, file_name, parse_name
from pump_service.store.records import Records
from pump_service.store.skips import Stretch
from pump_service.store.summary import FileSummary
from pumphouse.errors import BadRecord
from pumphouse.model.position import ZERO_POINTER, Pointer

log = structlog.get_logger(__name__)

_REWRITE_BLOCK = 4 << 20


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


@dataclass(slots=True)
class Begun:
    """A group that is written and not synced yet: `ValueLog.finish` is for after the sync of its file."""

    file: LogFile
    write: Write


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
        self._summaries: dict[int, FileSummary] = {}  # of the writer thread: the active file's, and unsaved ones
        self._framer = Framer()
        self._skipped = skipped or {}

    # -- opening -------------------------------------------------------------------------------------------------

    def open(
        self, *, synced_floor: Pointer = ZERO_POINTER, gaps_upto: int = -1, clean: bool = False
    ) -> recovery.Tail | None:
        """Open what is there; the last file is examined and a torn tail cut. Raises BadRecord on damage.

        ``gaps_upto``: files up to this id may be missing, as the Go Pump's GC deletes any file.
        ``clean``: the last process closed the log, so all of it is on the medium.
        Returns the verdict on the last file, None when there are no files.
        """
        self._fs.make_dirs(self._directory)
        self._fs.make_dirs(self._summary_dir)
        fids = sorted(fid for name in self._fs.list_dir(self._directory) if (fid := parse_name(name)) is not None)
        for before, fid in pairwise(fids):
            if fid != before + 1 and fid > gaps_upto:
                path = self._directory / file_name(before + 1)
                raise BadRecord(
                    f"{path} is missing between others",
                    hint="put the file back, or declare the Pump lost in the archive and start with an empty directory",
                    path=str(path), offset=0, reason="missing file",
                )  # fmt: skip
        tail = None
        for fid in fids:
            self._files[fid] = file = self._open_file(fid)
            if fid == fids[-1]:
                tail = self._open_last(file, synced_floor, clean=clean)
            else:
                self._open_sealed(file)
        self._next_fid = fids[-1] + 1 if fids else 0
        self.first_fid = fids[0] if fids else 0
        return tail

    def _open_file(self, fid: int) -> LogFile:
        path = self._directory / file_name(fid)
        handle = self._fs.open_log(path)
        file = LogFile(fid, path, handle, end=handle.size(), sealed=False, max_ts=0)
        file.skipped = self._skipped.get(fid, ())
        return file

    def _open_sealed(self, file: LogFile) -> None:
        size = file.end
        max_ts = None
        if size >= frame.FOOTER_BYTES:
            max_ts = frame.decode_footer(file.handle.read_at(size - frame.FOOTER_BYTES, frame.FOOTER_BYTES))
        if max_ts is not None:
            file.ends_at(size - frame.FOOTER_BYTES)
            # A footer has no checksum; the summary has one.
            cached = self._cached_summary(file.fid)
            file.max_ts = max(max_ts, cached.max_ts if cached is not None and cached.end == file.end else 0)
        else:
            # Not the last file, so all of it was synced before the next one was begun.
            file.max_ts = self._summarise(file).max_ts
        file.sealed = True

    def _open_last(self, file: LogFile, synced_floor: Pointer, *, clean: bool) -> recovery.Tail:
        size = file.end
        cached = self._cached_summary(file.fid)
        summary = cached if cached is not None and cached.end <= size else FileSummary(file.fid)
        floor = synced_floor.offset if synced_floor.fid == file.fid else 0
        known, skipped = summary.end, file.skipped
        tail = recovery.examine(file.handle, file.fid, known, synced_floor=floor, sink=summary.add, skipped=skipped)
        # As zeros end, and records hardly ever do.
        among_zeros = tail.size < size or (tail.end == size and size % PAGE == 0 and not clean)
        odd = among_zeros or tail.kind == recovery.TailKind.TORN
        if summary is cached and (tail.kind == recovery.TailKind.DAMAGED or (odd and tail.end == known)):
            # The remembered boundary may belong to another life of the file, and no record behind it says otherwise:
            # read all of it before anything is cut or refused.
            summary = FileSummary(file.fid)
            tail = recovery.examine(file.handle, file.fid, 0, synced_floor=floor, sink=summary.add, skipped=skipped)
            known = known if tail.end == known else 0
        if tail.kind == recovery.TailKind.DAMAGED:
            raise file.bad(tail.end, tail.reason)
        if tail.size < size:
            file.handle.truncate(tail.size)  # zeros that were laid ahead
        if tail.kind == recovery.TailKind.TORN:
            recovery.cut_torn_tail(self._fs, file.path, file.handle, tail)
        file.ends_at(tail.end)
        file.max_ts = max(summary.max_ts, tail.max_ts or 0)
        file.sealed = tail.kind == recovery.TailKind.FOOTER
        self._summaries[file.fid] = summary
        if not file.sealed:
            self._active = file
        if self._sync and not clean:
            end = tail.size if file.sealed else file.end
            self._write_again(file, max(floor, known), end)
        return tail

    def _write_again(self, file: LogFile, start: int, end: int) -> None:
        """Bring the tail to the medium, with its footer if it has one.

        What is served from here on must be there, whatever the last process managed to sync. After a failed fsync the
        kernel may hold pages that it takes for clean, so a second fsync alone proves nothing: the bytes are written.
        """
        at = start
        while at < end:
            data = file.handle.read_at(at, min(_REWRITE_BLOCK, end - at))
            file.handle.write_at(at, [data])
            at += len(data)
        file.handle.sync()

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
            if self._saved(self._summaries[file.fid]):
                del self._summaries[file.fid]
            log.info("value_log_sealed", file_id=file.fid, max_ts=file.max_ts, bytes=file.end)
        return result

    def _append_run(self, parts: Sequence[Records], place: Place, result: Appended) -> None:
        file = self._active or self._create()
        # Recovery takes more than `recovery.UNSYNCED_BYTES` with a hole in it for damage.
        most = recovery.UNSYNCED_BYTES - frame.FOOTER_BYTES
        write = self._framer.write(parts, place, fid=file.fid, begin=file.end, limit=self._limit, most=most)
        end = file.end + write.size
        seal = end > self._limit
        file.append(write.chunks, end, write.max_ts, seal=seal, sync=self._sync, limit=self._limit)
        self._account(file, write, result)
        if seal:
            self._active = None
            result.sealed.append(file)

    def _account(self, file: LogFile, write: Write, result: Appended) -> None:
        summary = self._summaries.get(file.fid)
        if summary is None:
            summary = self._summaries[file.fid] = FileSummary(file.fid)
        for block in write.blocks:
            summary.add(block)
            result.records += len(block)
        result.blocks += write.blocks
        result.prewrites += write.prewrites
        result.bytes += write.size

    def begin(self, parts: Sequence[Records]) -> Begun | None:
        """Write records as `append` does, but without the sync. Raises OSError; the caller decides what it means.

        None, and nothing is written, where more than one write and one sync would be needed. Between this and `finish`
        nothing else may be appended; without it, the next append goes to the same place.
        """
        file = self._active
        if file is None or not self._sync or not parts:
            return None
        place = Place()
        most = recovery.UNSYNCED_BYTES - frame.FOOTER_BYTES
        write = self._framer.write(parts, place, fid=file.fid, begin=file.end, limit=self._limit, most=most)
        end = file.end + write.size
        if place.part < len(parts) or end > self._limit:
            return None
        file.write(write.chunks, end, limit=self._limit)
        return Begun(file, write)

    def finish(self, begun: Begun) -> Appended:
        """What was begun is durable."""
        file, write = begun.file, begun.write
        file.synced(file.end + write.size, write.max_ts)
        result = Appended()
        self._account(file, write, result)
        return result

    def _create(self) -> LogFile:
        # A summary of that name belongs to another life of the directory.
        self._fs.remove(self._summary_path(self._next_fid))
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

    def scan(self, start: Pointer, stop: Pointer | None = None) -> Iterator[Block]:
        """Records from a pointer on (inclusive) up to ``stop`` or the synced end. Raises BadRecord, skips nothing."""
        for file in self.files():
            if file.fid < start.fid or (stop is not None and file.fid > stop.fid):
                continue
            first = start.offset if file.fid == start.fid else 0
            last = file.synced_end
            if stop is not None and file.fid == stop.fid:
                last = min(last, stop.offset)
            yield from self.between(file, first, last)

    # -- summaries: GC ---------------------------------------------------------------------------------------------

    def summary(self, file: LogFile) -> FileSummary:
        """Summary of a file, from memory, from its cache, or by reading the file."""
        found = self._summaries.get(file.fid)
        if found is not None:
            return found
        cached = self._cached_summary(file.fid)
        if cached is not None and cached.end == file.end:
            return cached
        return self._summarise(file)

    def between(self, file: LogFile, start: int, stop: int) -> Iterator[Block]:
        """Records of one file between two record boundaries. Raises BadRecord."""
        scan = file.scan(start, stop)
        yield from scan
        if scan.problem:
            raise file.bad(scan.end, scan.problem)

    def remove(self, file: LogFile) -> None:
        """Delete a sealed file. Raises OSError."""
        with self._lock:
            self._files.pop(file.fid, None)
            self.first_fid = min(self._files, default=self._next_fid)
        self._summaries.pop(file.fid, None)
        self._fs.remove(file.path)
        self._fs.remove(self._summary_path(file.fid))
        # Readers that hold the file finish with the open descriptor; it closes with its last reference.

    def save_active_summary(self) -> None:
        """Remember how far the active file was summed up (writer thread)."""
        summary = self._summaries.get(self._active.fid) if self._active is not None else None
        if summary is not None:  # there is none before the file's first record
            self._saved(summary)

    def _summarise(self, file: LogFile) -> FileSummary:
        """By reading; any thread. It is kept on disk, not in memory: there may be thousands of files."""
        summary = FileSummary(file.fid)
        for entries in self.between(file, 0, file.end):
            summary.add(entries)
        if file is not self._active:
            self._saved(summary)
        return summary

    def _summary_path(self, fid: int) -> Path:
        return self._summary_dir / f"{fid:06d}.summary"

    def _cached_summary(self, fid: int) -> FileSummary | None:
        path = self._summary_path(fid)
        if not self._fs.exists(path):
            return None
        summary = FileSummary.from_bytes(self._fs.read(path))
        return summary if summary is not None and summary.fid == fid else None

    def _saved(self, summary: FileSummary) -> bool:
        try:
            self._fs.write_cache(self._summary_path(summary.fid), summary.to_bytes())
        except OSError as error:
            # It only saves a scan; without it the file is read again.
            log.warning("summary_not_saved", file_id=summary.fid, error=str(error))
            return False
        return True
