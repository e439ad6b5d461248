"""A start after an unclean end writes the tail of the value log again: what the last process synced is not known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pump_service.store.fs import REAL_FS, FileSystem, LogHandle
from pump_service.store.records import Records
from pump_service.store.valuelog import ValueLog
from tests.support.storekit import prewrite


class Recorded(LogHandle):
    """A descriptor that tells what is written through it."""

    def __init__(self, handle: LogHandle, written: list[tuple[int, int]]) -> None:
        super().__init__(os.dup(handle.fd))
        handle.close()
        self._written = written

    def write_at(self, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        self._written.append((offset, offset + sum(map(len, chunks))))
        super().write_at(offset, chunks)


class RecordingFs(FileSystem):
    """The machine's file system, and what went into value-log files."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []

    def open_log(self, path: Path, *, create: bool = False, read_only: bool = False) -> LogHandle:
        handle = super().open_log(path, create=create, read_only=read_only)
        return Recorded(handle, self.written)


def records(first: int) -> Records:
    return Records.of([prewrite(ts, b"v" * 100) for ts in range(first, first + 10)])


@pytest.mark.row("P2", "P15")
@pytest.mark.parametrize(
    "summary", ["none", "of the half", "of all", "of another life, shorter", "of another life, longer"]
)
def test_what_lies_behind_the_saved_summary_is_written_again(summary: str, tmp_path: Path) -> None:
    def opened(fs: FileSystem, where: Path = tmp_path) -> ValueLog:
        found = ValueLog(fs, where / "value", where / "files", limit=1 << 30, sync=True)
        found.open()
        return found

    log = opened(REAL_FS)
    log.append([records(1)])
    half = log.end.offset
    if summary == "of the half":
        log.save_active_summary()
    log.append([records(11)])
    if summary == "of all":
        log.save_active_summary()
    end = log.end.offset
    if summary.startswith("of another life"):
        other = opened(REAL_FS, tmp_path / "other")
        other.append([Records.of([prewrite(1, b"o" * (77 if summary.endswith("shorter") else 9000))])])
        other.save_active_summary()
        (saved,) = (tmp_path / "other" / "files").iterdir()
        saved.rename(tmp_path / "files" / saved.name)
    fs = RecordingFs()
    opened(fs)  # the process before was killed: nothing was closed
    begin = {"of the half": half, "of all": end}.get(summary, 0)
    assert fs.written == ([(begin, end)] if begin < end else [])
