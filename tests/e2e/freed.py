"""Did GC lose anything? Value-log files are linked aside as they appear; freed ones are held against the archive."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from pump_service.store import frame
from pumphouse.archive.archive import Archive
from pumphouse.model.tso import Tso
from tests.stack.pumps import PumpProcess


class FileKeeper(threading.Thread):
    """Links every value-log file into ``directory/<node id>/`` soon after it appears, so that its bytes stay."""

    def __init__(self, pumps: list[PumpProcess], directory: Path, *, interval_s: float = 0.1) -> None:
        super().__init__(name="file-keeper", daemon=True)
        self._pumps = pumps
        self._directory = directory
        self._interval_s = interval_s
        self._done = threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._done.wait(self._interval_s):
            self.look()

    def look(self) -> None:
        """Link what is new."""
        for pump in self._pumps:
            aside = self._directory / pump.node_id
            aside.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                for path in pump.value_dir.glob("*.vlog"):
                    with suppress(FileExistsError, FileNotFoundError):
                        os.link(path, aside / path.name)

    def stop(self) -> None:
        """End, after a last look."""
        self._done.set()
        self.join()
        self.look()

    def kept(self) -> list[Path]:
        """All links."""
        return sorted(self._directory.glob("*/*.vlog"))

    def freed(self) -> list[Path]:
        """Links whose file the Pump has deleted."""
        return [
            path
            for pump in self._pumps
            for path in sorted((self._directory / pump.node_id).glob("*.vlog"))
            if not (pump.value_dir / path.name).exists()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedCheck:
    """``missing``: committed transactions of freed files that the archive lacks, as (start ts, commit ts)."""

    files: int
    bytes: int
    transactions: int
    before_genesis: int
    missing: list[tuple[int, int]]


def records(path: Path) -> Iterator[frame.Meta]:
    """What each record of a value-log file says of itself. A footer, or a torn tail, ends it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at + frame.HEADER_BYTES <= len(data):
            magic, length, _ = frame.decode_header(data, at)  # type: ignore[arg-type]  # any buffer does
            if magic != frame.RECORD_MAGIC or at + frame.HEADER_BYTES + length > len(data):
                return
            begin = at + frame.HEADER_BYTES
            yield frame.read_meta(data[begin : begin + length])
            at = begin + length


def check_freed(files: list[Path], archive: Archive, outcomes: Mapping[int, int]) -> FreedCheck:
    """Hold the freed files against the archive. ``outcomes``: start ts -> commit ts of what has committed."""
    starts: set[int] = set()
    for path in files:
        for meta in records(path):
            if meta.start_ts != meta.commit_ts:  # equal timestamps are fakes
                starts.add(meta.start_ts)
    committed = {start: commit for start, commit in outcomes.items() if start in starts}
    genesis = archive.genesis().ts
    wanted = {(start, commit) for start, commit in committed.items() if commit > genesis}
    return FreedCheck(
        files=len(files),
        bytes=sum(path.stat().st_size for path in files),
        transactions=len(wanted),
        before_genesis=len(committed) - len(wanted),
        missing=sorted(wanted - archived(archive)),
    )


def said_by_shop(source: Connection[Any]) -> dict[int, int]:
    """What has committed, by the books of the shop."""
    with source.cursor() as cursor:
        cursor.execute("SELECT start_ts, commit_ts FROM history.outcome WHERE commit_ts > 0")
        return {int(start): int(commit) for start, commit in cursor.fetchall()}


def said_by_pumps(files: Iterable[Path]) -> dict[int, int]:
    """What has committed, by the Cs in all files that any Pump has had."""
    return {
        meta.start_ts: meta.commit_ts
        for path in files
        for meta in records(path)
        if meta.commit_ts and meta.start_ts != meta.commit_ts
    }


def archived(archive: Archive) -> set[tuple[int, int]]:
    """(start ts, commit ts) of every transaction in the archive's windows, DDL included."""
    found: set[tuple[int, int]] = set()
    for manifest in archive.windows():
        for segment in manifest.segments:
            for batch in archive.segment_batches(manifest, segment, columns=("commit_ts", "start_ts")):
                found.update(
                    zip(batch.column("start_ts").to_pylist(), batch.column("commit_ts").to_pylist(), strict=True)
                )
    return found


def window_of(archive: Archive, ts: Tso) -> tuple[Tso, Tso] | None:
    """The window that holds a moment strictly inside, or None."""
    return next(((m.start, m.end) for m in archive.windows() if m.start < ts < m.end), None)
