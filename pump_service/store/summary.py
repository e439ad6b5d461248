"""What GC must know of each value-log file without reading it; rebuildable, kept in <data_dir>/pumphouse/files/.

A file is summed up in buckets of some hundred records. Each bucket keeps the range of its commit ts, the smallest
start ts of its commits and the smallest start ts of its prewrites: enough to say which start ts have a commit above
some point, but for the few buckets that lie across the point; those are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pump_service.store import frame
from pump_service.store.block import Entry

BUCKET_RECORDS = 256
NEVER = (1 << 63) - 1

# columns of the bucket array
END, MIN_COMMIT, MAX_COMMIT, MIN_COMMIT_START, MIN_PREWRITE_START = range(5)
_COLUMNS = 5


class FileSummary:
    """Growing summary of one file. Written by the writer thread, read by GC: rows are replaced, never changed."""

    def __init__(self, fid: int) -> None:
        self.fid = fid
        self.end = 0
        self.records = 0
        self.max_ts = 0
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._in_last = 0

    def add(self, entries: Sequence[Entry] | Iterable[Entry]) -> None:
        """Add records in file order."""
        for tp, start, commit, _fid, offset, size, _key in entries:
            self.records += 1
            self.end = offset + frame.HEADER_BYTES + size
            ts = start if tp == 0 else commit
            self.max_ts = max(self.max_ts, ts)
            if self._in_last == 0 or self._in_last >= BUCKET_RECORDS:
                self._rows.append((self.end, NEVER, 0, NEVER, NEVER))
                self._in_last = 0
            self._in_last += 1
            _, min_commit, max_commit, min_commit_start, min_prewrite_start = self._rows[-1]
            if tp == 0:
                min_prewrite_start = min(min_prewrite_start, start)
            elif commit > 0 and start != commit:
                min_commit = min(min_commit, commit)
                max_commit = max(max_commit, commit)
                min_commit_start = min(min_commit_start, start)
            self._rows[-1] = (self.end, min_commit, max_commit, min_commit_start, min_prewrite_start)

    def buckets(self) -> npt.NDArray[np.int64]:
        """(n, 5) array of END, MIN_COMMIT, MAX_COMMIT, MIN_COMMIT_START, MIN_PREWRITE_START."""
        return np.array(list(self._rows), dtype=np.int64).reshape(-1, _COLUMNS)

    def to_bytes(self) -> bytes:
        """One JSON line and the bucket array."""
        body = self.buckets().tobytes()
        head = {
            "format_version": 1,
            "fid": self.fid,
            "end": self.end,
            "records": self.records,
            "max_ts": self.max_ts,
            "in_last": self._in_last,
            "crc32c": frame.crc32c(body),
        }
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + body

    @classmethod
    def from_bytes(cls, data: bytes) -> FileSummary | None:
        """Read it back; None when it is not whole (it is rebuilt then)."""
        head_bytes, _, body = data.partition(b"\n")
        try:
            head = json.loads(head_bytes)
            if head["format_version"] != 1 or head["crc32c"] != frame.crc32c(body) or len(body) % (8 * _COLUMNS):
                return None
            summary = cls(int(head["fid"]))
            summary.end = int(head["end"])
            summary.records = int(head["records"])
            summary.max_ts = int(head["max_ts"])
            summary._in_last = int(head["in_last"])
            rows = np.frombuffer(body, dtype=np.int64).reshape(-1, _COLUMNS).tolist()
            summary._rows = [(r[0], r[1], r[2], r[3], r[4]) for r in rows]
        except (ValueError, KeyError, TypeError):
            return None
        return summary


def lowest_open_start(
    buckets: npt.NDArray[np.int64],
    gc_point: int,
    indexed_end: int,
    read: Callable[[int, int], Iterable[Sequence[Entry]]],
) -> int:
    """Smallest start ts in one file that the deletion limit may not pass, NEVER when there is none.

    It covers prewrites whose commit in this file lies above ``gc_point``, and prewrites at or behind ``indexed_end``
    (not indexed yet, so pairing does not know them). ``read`` gives the records between two offsets.
    """
    lowest = NEVER
    if len(buckets) == 0:
        return lowest
    above = buckets[:, MAX_COMMIT] > gc_point
    across = above & (buckets[:, MIN_COMMIT] <= gc_point)
    clear = above & ~across
    if clear.any():
        lowest = int(buckets[clear, MIN_COMMIT_START].min())
    unindexed = buckets[:, END] > indexed_end
    if unindexed.any():
        lowest = min(lowest, int(buckets[unindexed, MIN_PREWRITE_START].min()))
    for at in np.flatnonzero(across).tolist():
        if buckets[at, MIN_COMMIT_START] >= lowest:
            continue
        begin = int(buckets[at - 1, END]) if at else 0
        for entries in read(begin, int(buckets[at, END])):
            for entry in entries:
                if entry.tp != 0 and entry.commit_ts > gc_point and entry.start_ts != entry.commit_ts:
                    lowest = min(lowest, entry.start_ts)
    return lowest
