"""The set of value-log files: append with rotation, read by pointer, scan from a pointer (row P1).

One thread appends. Reading and scanning take the list of files under the lock and read outside it, below the synced
end, so what is being written is never seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import structlog

from include.errors import BadRecord
from include.model.position import ZERO_POINTER, Pointer
from pump_service.store import frame, recovery
from pump_service.store.block import Entry
from pump_service.store.fs import FileSystem
from pump_service.store.logfile import LogFile, file_name, parse_name
from pump_service.store.summary import FileSummary

log = structlog.get_logger(__name__)

_REWRITE_BLOCK = 4 << 20


class Writable(Protocol):
    """What the value log needs of an item."""

    @property
    def payload(self) -> bytes:
        """Serialized Binlog."""
        ...

    @property
    def tp(self) -> int:
        """Type."""
        ...

    @property
    def start_ts(self) -> int:
        """Start ts."""
        ...

    @property
    def commit_ts(self) -> int:
        """Commit ts."""
        ...

    @property
    def prewrite_key(self) -> bytes:
        """Key to ask about."""
        ...


@dataclass(slots=True)
class Appended:
    """Outcome of an append: `entries` are durable, in order; the items behind them are not when `error` is set."""

    entries: list[Entry] = field(default_factory=list)
    error: OSError | None = None


class ValueLog:
    """All files of ``<data_dir>/value``."""

    def __init__(self, fs: FileSystem, directory: Path, summary_dir: Path, *, limit: int, sync: bool) -> None:
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
        self._summaries: dict[int, FileSummary] = {}

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
        return LogFile(fid, path, handle, end=handle.size(), sealed=False, max_ts=0)

    def _open_sealed(self, file: LogFile) -> None:
        size = file.end
        max_ts = None
        if size >= frame.FOOTER_BYTES:
            max_ts = frame.decode_footer(file.handle.read_at(size - frame.FOOTER_BYTES, frame.FOOTER_BYTES))
        if max_ts is not None:
            file.end = file.synced_end = size - frame.FOOTER_BYTES
            file.max_ts = max_ts
        else:
            # Not the last file, so all of it was synced before the next one was begun.
            summary = self._summarise(file)
            file.max_ts = summary.max_ts
        file.sealed = True

    def _open_last(self, file: LogFile, synced_floor: Pointer, *, clean: bool) -> recovery.Tail:
        size = file.end
        cached = self._cached_summary(file.fid)
        summary = cached if cached is not None and cached.end <= size else FileSummary(file.fid)
        floor = synced_floor.offset if synced_floor.fid == file.fid else 0
        tail = recovery.examine(file.handle, file.fid, summary.end, synced_floor=floor, sink=summary.add)
        if tail.kind == recovery.TailKind.DAMAGED and summary is cached:
            # The remembered boundary may belong to another life of the file: read all of it before refusing.
            summary = FileSummary(file.fid)
            tail = recovery.examine(file.handle, file.fid, 0, synced_floor=floor, sink=summary.add)
        if tail.kind == recovery.TailKind.DAMAGED:
            raise file.bad(tail.end, tail.reason)
        if tail.kind == recovery.TailKind.TORN:
            recovery.cut_torn_tail(self._fs, file.path, file.handle, tail)
        file.end = file.synced_end = tail.end
        file.max_ts = max(summary.max_ts, tail.max_ts or 0)
        file.sealed = tail.kind == recovery.TailKind.FOOTER
        self._summaries[file.fid] = summary
        if not file.sealed:
            self._active = file
        if self._sync and not clean:
            end = tail.size if file.sealed else file.end
            self._write_again(file, max(floor, cached.end if cached is not None else 0), end)
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

    # -- writing: one thread -------------------------------------------------------------------------------------

    def append(self, items: Sequence[Writable]) -> Appended:
        """Write items as records, one write and one sync for each file and each `recovery.UNSYNCED_BYTES` of them."""
        result = Appended()
        at = 0
        try:
            while at < len(items):
                at = self._append_run(items, at, result)
        except OSError as error:
            result.error = error
        return result

    def _append_run(self, items: Sequence[Writable], at: int, result: Appended) -> int:
        file = self._active or self._create()
        fid, offset, limit, max_ts = file.fid, file.end, self._limit, 0
        chunks: list[bytes] = []
        entries: list[Entry] = []
        pack, crc = frame.pack_header, frame.crc32c
        most = file.end + recovery.UNSYNCED_BYTES - frame.FOOTER_BYTES
        while at < len(items) and offset <= limit:
            item = items[at]
            payload, tp = item.payload, item.tp
            size = len(payload)
            if entries and offset + frame.HEADER_BYTES + size > most:
                break  # recovery takes more than that with a hole in it for damage; a larger record goes alone
            chunks += (pack(frame.RECORD_MAGIC, size, crc(payload)), payload)
            entries.append(
                Entry(tp, item.start_ts, item.commit_ts, fid, offset, size, b"" if tp else item.prewrite_key)
            )
            ts = item.commit_ts if tp else item.start_ts
            max_ts = max(max_ts, ts)
            offset += frame.HEADER_BYTES + size
            at += 1
        seal = offset > limit
        file.append(chunks, offset, max_ts, seal=seal, sync=self._sync)
        summary = self._summaries.get(fid)
        if summary is None:
            summary = self._summaries[fid] = FileSummary(fid)
        summary.add(entries)
        result.entries += entries
        if seal:
            self._active = None
            self._save_summary(fid)
            log.info("value_log_sealed", file_id=fid, max_ts=file.max_ts, bytes=offset)
        return at

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
            if active is not None and footer:
                self._save_summary(active.fid)
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

    def scan(self, start: Pointer, stop: Pointer | None = None) -> Iterator[list[Entry]]:
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
            self._summaries[file.fid] = cached
            return cached
        summary = self._summarise(file)
        self._save_summary(file.fid)
        return summary

    def between(self, file: LogFile, start: int, stop: int) -> Iterator[list[Entry]]:
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
        if self._active is not None:
            self._save_summary(self._active.fid)

    def _summarise(self, file: LogFile) -> FileSummary:
        summary = FileSummary(file.fid)
        for entries in self.between(file, 0, file.end):
            summary.add(entries)
        self._summaries[file.fid] = summary
        return summary

    def _summary_path(self, fid: int) -> Path:
        return self._summary_dir / f"{fid:06d}.summary"

    def _cached_summary(self, fid: int) -> FileSummary | None:
        path = self._summary_path(fid)
        if not self._fs.exists(path):
            return None
        summary = FileSummary.from_bytes(self._fs.read(path))
        return summary if summary is not None and summary.fid == fid else None

    def _save_summary(self, fid: int) -> None:
        summary = self._summaries.get(fid)
        if summary is None:
            return  # the disk was full before the file's first record
        try:
            self._fs.write_cache(self._summary_path(fid), summary.to_bytes())
        except OSError as error:
            # It only saves a scan; without it the file is read again.
            log.warning("summary_not_saved", file_id=fid, error=str(error))
