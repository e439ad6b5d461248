"""Garbage collection by two numbers: the decisions, which are pure, and the numbers on disk (row P11).

The GC point G is the floor for pulls: min(checkpoints of all consumers, now - retention), never going back, persisted
before anything else happens. The deletion limit D <= G is what may really go: no file and no key from D on.

With them stands up to where the value log had been judged when they were decided: what was judged is in the index or
noted as late or orphan, so every commit whose prewrite may be gone with its file lies before it. A commit behind it at
or below G came when a watermark of G had been published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pump_service.store.fs import FileSystem
from pump_service.store.logfile import LogFile
from pumphouse.errors import CorruptionError
from pumphouse.model import strict
from pumphouse.model.position import Pointer
from pumphouse.model.tso import Tso

FILE_NAME = "gc.json"
FORMAT_VERSION = 2
RETENTION = "retention"
WATERMARK = "watermark"
# Behind every value log: where nothing says how far it was judged, that is up to its end.
ALL_JUDGED = Pointer((1 << 32) - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcPoint:
    """A decided GC point."""

    gc_point: Tso
    held_by: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A decided deletion limit."""

    deletion_limit: Tso
    held_by: list[str]


def decide_point(before: int, checkpoints: Mapping[str, int], now_minus_retention: int, watermark: int) -> GcPoint:
    """G: the smallest of all that hold it, or where it was; and who holds it there."""
    holders = dict(checkpoints) | {RETENTION: now_minus_retention, WATERMARK: watermark}
    lowest = min(holders.values())
    held_by = sorted(name for name, ts in holders.items() if ts <= max(lowest, before))
    return GcPoint(gc_point=Tso(max(before, lowest)), held_by=held_by)


def decide_limit(gc_point: int, *, unresolved: int | None, pending: int | None, open_start: int | None) -> Limit:
    """D: the smallest of G, unresolved prewrites, pending commits and ``open_start``; and what keeps it below G.

    ``open_start``: smallest start ts of a prewrite that is committed above G or not indexed yet.
    """
    reasons = {
        f"unresolved prewrite {unresolved}": unresolved,
        f"late or orphan commit {pending}": pending,
        f"prewrite {open_start} committed above the GC point or not indexed yet": open_start,
    }
    below = {why: ts for why, ts in reasons.items() if ts is not None and ts < gc_point}
    limit = min(below.values(), default=gc_point)
    return Limit(deletion_limit=Tso(limit), held_by=[why for why, ts in below.items() if ts == limit])


def deletable(files: Sequence[LogFile], limit: int, head: Pointer, handle: Pointer) -> list[LogFile]:
    """Sealed files whose every timestamp is below D and which lie before head and handle pointer.

    Oldest first, ending at the first that must stay: a rebuild of the index must never meet a prewrite whose commit or
    rollback went before it. The newest file stays in any case, so that file ids never come again.
    """
    gone = []
    for file in files[:-1]:
        if not file.sealed or file.max_ts >= limit or file.fid >= min(head.fid, handle.fid):
            break
        gone.append(file)
    return gone


class GcState:
    """G, D and `judged_end` in <data_dir>/pumphouse/gc.json, outside LevelDB because that may be lost."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._path = directory / FILE_NAME
        self.gc_point = Tso(0)
        self.deletion_limit = Tso(0)
        self.judged_end = ALL_JUDGED

    def load(self) -> None:
        """Read them. Raises CorruptionError."""
        if not self._fs.exists(self._path):
            return
        try:
            data = strict.loads(self._fs.read(self._path))
            version = data["format_version"]
            if version not in (1, FORMAT_VERSION):
                raise CorruptionError(
                    f"{self._path} has format {version}, this release reads 1 and 2", path=str(self._path)
                )
            self.gc_point = Tso(strict.integer(data["gc_point"]))
            self.deletion_limit = Tso(strict.integer(data["deletion_limit"]))
            if version == FORMAT_VERSION:
                self.judged_end = Pointer(strict.integer(data["judged_fid"]), strict.integer(data["judged_offset"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{self._path} cannot be read: {error}", path=str(self._path)) from error

    def save(self, gc_point: Tso, deletion_limit: Tso, judged_end: Pointer) -> None:
        """Persist, then use. Raises OSError."""
        data = {
            "format_version": FORMAT_VERSION, "gc_point": gc_point, "deletion_limit": deletion_limit,
            "judged_fid": judged_end.fid, "judged_offset": judged_end.offset,
        }  # fmt: skip
        self._fs.write_atomic(self._path, json.dumps(data).encode() + b"\n")
        self.gc_point = gc_point
        self.deletion_limit = deletion_limit
        self.judged_end = judged_end
