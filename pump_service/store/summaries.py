"""Summaries of the files of the value log: the growing ones in memory, the others in <data_dir>/pumphouse/files/.

A summary that is lost or does not fit its file is made again by reading the file.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from pump_service.store.fs import FileSystem
from pump_service.store.logfile import LogFile
from pump_service.store.summary import FileSummary

log = structlog.get_logger(__name__)


class Summaries:
    """`growing` and `save` are for who has the write lock, `of` and `saved` for any thread."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._growing: dict[int, FileSummary] = {}  # the active file's, and those that could not be saved

    def growing(self, fid: int) -> FileSummary:
        """That of the file that is written."""
        found = self._growing.get(fid)
        if found is None:
            found = self._growing[fid] = FileSummary(fid)
        return found

    def keep(self, summary: FileSummary) -> None:
        """What a start has read of a file, for it to grow."""
        self._growing[summary.fid] = summary

    def of(self, file: LogFile) -> FileSummary:
        """From memory, from disk, or by reading the file. Raises BadRecord."""
        found = self._growing.get(file.fid)
        if found is not None:
            return found
        found = self.saved(file.fid)
        return found if found is not None and found.end == file.end else self.read(file)

    def read(self, file: LogFile) -> FileSummary:
        """By reading; kept on disk, not in memory: there may be thousands of files. Raises BadRecord."""
        summary = FileSummary(file.fid)
        for block in file.records(0, file.end):
            summary.add(block)
        if file.sealed:
            self._write(summary)
        return summary

    def saved(self, fid: int) -> FileSummary | None:
        """What is on disk of a file, whether it fits or not."""
        path = self._path(fid)
        if not self._fs.exists(path):
            return None
        summary = FileSummary.from_bytes(self._fs.read(path))
        return summary if summary is not None and summary.fid == fid else None

    def save(self, fid: int, *, done: bool = False) -> None:
        """Bring a growing one to disk; ``done``: it grows no more."""
        summary = self._growing.get(fid)
        if summary is not None and self._write(summary) and done:  # there is none before the file's first record
            del self._growing[fid]

    def remove(self, fid: int) -> None:
        """The file is gone, or begins anew. Raises OSError."""
        self._growing.pop(fid, None)
        self._fs.remove(self._path(fid))

    def _path(self, fid: int) -> Path:
        return self._directory / f"{fid:06d}.summary"

    def _write(self, summary: FileSummary) -> bool:
        try:
            self._fs.write_cache(self._path(summary.fid), summary.to_bytes())
        except OSError as error:
            # It only saves a scan; without it the file is read again.
            log.warning("summary_not_saved", file_id=summary.fid, error=str(error))
            return False
        return True
