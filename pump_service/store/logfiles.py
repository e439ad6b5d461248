"""Opening the files of the value log: which there are, where each ends, what a stop has left behind the last record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pump_service.store import frame, recovery
from pump_service.store.fs import FileSystem
from pump_service.store.laid import PAGE
from pump_service.store.logfile import LogFile, file_name, parse_name
from pump_service.store.skips import Stretch
from pump_service.store.summaries import Summaries
from pump_service.store.summary import FileSummary
from pumphouse.errors import BadRecord
from pumphouse.model.position import Pointer

_REWRITE_BLOCK = 4 << 20


def ids(fs: FileSystem, directory: Path) -> list[int]:
    """File ids that there are, ascending."""
    return sorted(fid for name in fs.list_dir(directory) if (fid := parse_name(name)) is not None)


def gaps(fids: Sequence[int], allowed_upto: int) -> list[tuple[int, int]]:
    """First and last id of what is missing between others, but for ids that may be."""
    return [(before + 1, fid - 1) for before, fid in pairwise(fids) if fid != before + 1 and fid > allowed_upto]


class LogFiles:
    """Opens them, one after the other. Raises BadRecord on damage."""

    def __init__(
        self, fs: FileSystem, directory: Path, summaries: Summaries, skipped: Mapping[int, Sequence[Stretch]]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._summaries = summaries
        self._skipped = skipped

    def open(self, *, synced_floor: Pointer, gaps_upto: int, clean: bool, sync: bool) -> list[LogFile]:
        """All files, as `ValueLog.open` says; the last one is sealed or goes on. ``sync``: what is served is synced."""
        fids = ids(self._fs, self._directory)
        for first, _last in gaps(fids, gaps_upto):
            path = self._directory / file_name(first)
            raise BadRecord(
                f"{path} is missing between others",
                hint="put the file back, or declare the Pump lost in the archive and start with an empty directory",
                path=str(path), offset=0, reason="missing file",
            )  # fmt: skip
        files = [self._open(fid) for fid in fids]
        for file in files[:-1]:
            self._sealed(file)
        for file in files[-1:]:
            floor = synced_floor.offset if synced_floor.fid == file.fid else 0
            self._last(file, floor, clean=clean, sync=sync)
        return files

    def _open(self, fid: int) -> LogFile:
        path = self._directory / file_name(fid)
        handle = self._fs.open_log(path)
        file = LogFile(fid, path, handle, end=handle.size(), sealed=False, max_ts=0)
        file.skipped = self._skipped.get(fid, ())
        return file

    def _sealed(self, file: LogFile) -> None:
        size = file.end
        max_ts = None
        if size >= frame.FOOTER_BYTES:
            max_ts = frame.decode_footer(file.handle.read_at(size - frame.FOOTER_BYTES, frame.FOOTER_BYTES))
        file.sealed = True
        if max_ts is not None:
            file.ends_at(size - frame.FOOTER_BYTES)
            # A footer has no checksum; the summary has one.
            cached = self._summaries.saved(file.fid)
            file.max_ts = max(max_ts, cached.max_ts if cached is not None and cached.end == file.end else 0)
        else:
            # Not the last file, so all of it was synced before the next one was begun.
            file.max_ts = self._summaries.read(file).max_ts

    def _last(self, file: LogFile, floor: int, *, clean: bool, sync: bool) -> None:
        size = file.end
        cached = self._summaries.saved(file.fid)
        summary = cached if cached is not None and cached.end <= size else FileSummary(file.fid)
        known = summary.end
        tail = self._examined(file, summary, floor)
        # As zeros end, and records hardly ever do.
        among_zeros = tail.size < size or (tail.end == size and size % PAGE == 0 and not clean)
        odd = among_zeros or tail.kind == recovery.TailKind.TORN
        if summary is cached and (tail.kind == recovery.TailKind.DAMAGED or (odd and tail.end == known)):
            # The remembered boundary may belong to another life of the file, and no record behind it says otherwise:
            # read all of it before anything is cut or refused.
            summary = FileSummary(file.fid)
            tail = self._examined(file, summary, floor)
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
        self._summaries.keep(summary)
        if sync and not clean:
            _write_again(file, max(floor, known), tail.size if file.sealed else file.end)

    def _examined(self, file: LogFile, summary: FileSummary, floor: int) -> recovery.Tail:
        """Verdict on what lies behind a summary, which grows by the records that are found."""
        return recovery.examine(
            file.handle, file.fid, summary.end, synced_floor=floor, sink=summary.add, skipped=file.skipped
        )


def _write_again(file: LogFile, start: int, end: int) -> None:
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
