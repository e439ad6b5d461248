"""Stretches of the value log that were accepted as damaged, and reading on behind them.

They stay as they are; <data_dir>/pumphouse/skipped.jsonl names them (a line: file id, start, stop, reason, who, when),
written by `pump accept-damage`. The Go Pump leaves such stretches behind by itself: it appends after a torn tail.
What it appends after zeros that were laid ahead (`laid`) needs nobody's word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pump_service.store.block import Block
from pump_service.store.fs import FileSystem, LogHandle
from pump_service.store.laid import behind_zeros
from pump_service.store.scan import FileScan
from pumphouse.errors import CorruptionError
from pumphouse.model import strict

FILE_NAME = "skipped.jsonl"


class Stretch(NamedTuple):
    """Bytes of one file that hold no record."""

    start: int
    stop: int


Skipped = Mapping[int, Sequence[Stretch]]


class SkippingScan:
    """A `FileScan` that goes on behind accepted stretches and laid zeros; the same `end` and `problem`."""

    def __init__(self, handle: LogHandle, fid: int, start: int, stop: int, skipped: Sequence[Stretch]) -> None:
        self._handle = handle
        self._fid = fid
        self._stop = stop
        self._skipped = skipped
        self.end = start
        self.problem = ""

    def __iter__(self) -> Iterator[Block]:
        for stretch in [*self._skipped, Stretch(self._stop, self._stop)]:
            if stretch.start < self.end:
                continue
            yield from self._upto(min(stretch.start, self._stop))
            if self.problem or stretch.start >= self._stop:
                return
            self.end = min(stretch.stop, self._stop)

    def _upto(self, stop: int) -> Iterator[Block]:
        while True:
            scan = FileScan(self._handle, self._fid, self.end, stop)
            yield from scan
            self.end, self.problem = scan.end, scan.problem
            going_on = behind_zeros(self._handle, self.end, stop) if self.problem else None
            if going_on is None:
                return
            self.end = going_on


def load_skipped(fs: FileSystem, own: Path) -> dict[int, list[Stretch]]:
    """Accepted stretches by file id, in order."""
    path = own / FILE_NAME
    found: dict[int, list[Stretch]] = {}
    lines = fs.read(path).split(b"\n")[:-1] if fs.exists(path) else []  # a last line without an end was never synced
    for line in lines:
        try:
            item = strict.loads(line)
            stretch = Stretch(strict.integer(item["start"]), strict.integer(item["stop"]))
            found.setdefault(strict.integer(item["fid"]), []).append(stretch)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path} cannot be read: {error}", path=str(path), reason=str(error)) from error
    return {fid: sorted(set(stretches)) for fid, stretches in found.items()}
