"""What GC must know of each value-log file without reading it; rebuildable, kept in <data_dir>/pumphouse/files/.

A file is summed up in buckets of some hundred records. Each bucket keeps the range of its commit ts, the smallest
start ts of its commits and the smallest start ts of its prewrites: enough to say which start ts have a commit above
some point, but for the few buckets that lie across the point; those are read.
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pump_service.store import frame
from pump_service.store.block import Block, Entry
from pumphouse.codec.jit import Bytes, Ints, kernel
from pumphouse.model import strict

BUCKET_RECORDS = 256
NEVER = (1 << 63) - 1
_AT_ONCE = 1024  # few enough not to be felt by the group that has to wait, and to be kept

# columns of the bucket array
END, MIN_COMMIT, MAX_COMMIT, MIN_COMMIT_START, MIN_PREWRITE_START = range(5)
_COLUMNS = 5


@kernel
def sum_up(
    tp: Bytes, start_ts: Ints, commit_ts: Ints, ends: Ints, rows: Ints, used: int, in_last: int
) -> tuple[int, int, int]:
    """Add records to the buckets: rows in use, records in the last of them, largest storage ts."""
    highest = np.int64(0)
    for at in range(len(tp)):
        start, commit = start_ts[at], commit_ts[at]
        if in_last == 0 or in_last >= BUCKET_RECORDS:
            rows[used, MIN_COMMIT], rows[used, MAX_COMMIT] = NEVER, 0
            rows[used, MIN_COMMIT_START] = rows[used, MIN_PREWRITE_START] = NEVER
            used += 1
            in_last = 0
        in_last += 1
        last = used - 1
        rows[last, END] = ends[at]
        highest = max(highest, start if tp[at] == 0 else commit)
        if tp[at] == 0:
            rows[last, MIN_PREWRITE_START] = min(rows[last, MIN_PREWRITE_START], start)
        elif commit > 0 and start != commit:
            rows[last, MIN_COMMIT] = min(rows[last, MIN_COMMIT], commit)
            rows[last, MAX_COMMIT] = max(rows[last, MAX_COMMIT], commit)
            rows[last, MIN_COMMIT_START] = min(rows[last, MIN_COMMIT_START], start)
    return used, in_last, highest


class FileSummary:
    """Growing summary of one file. Who has the write lock adds, GC reads, which gets a copy.

    What is added is summed up a thousand records at a time, or by the next who reads: most groups of writes need not
    wait for it.
    """

    def __init__(self, fid: int) -> None:
        self.fid = fid
        self._end = 0
        self._records = 0
        self._max_ts = 0
        self._lock = threading.Lock()
        self._rows = np.zeros((64, _COLUMNS), np.int64)
        self._used = 0
        self._in_last = 0  # records in the last bucket
        self._added: list[Block] = []  # and not summed up yet
        self._added_records = 0

    def add(self, records: Block | Sequence[Entry]) -> None:
        """Add records in file order."""
        block = records if isinstance(records, Block) else Block.of(records)
        if not len(block):
            return
        with self._lock:
            self._added.append(block)
            self._added_records += len(block)
            if self._added_records >= _AT_ONCE:
                self._sum_up()

    def _sum_up(self) -> None:
        """Under the lock: bring what was added into the buckets."""
        if not self._added:
            return
        added = self._added
        tp = np.concatenate([block.tp for block in added])
        start_ts = np.concatenate([block.start_ts for block in added])
        commit_ts = np.concatenate([block.commit_ts for block in added])
        ends = np.concatenate([block.offset for block in added])
        ends += np.concatenate([block.size for block in added])
        ends += frame.HEADER_BYTES
        need = self._used + len(tp) // BUCKET_RECORDS + 2
        if need > len(self._rows):
            grown = np.zeros((max(need, 2 * len(self._rows)), _COLUMNS), np.int64)
            grown[: self._used] = self._rows[: self._used]
            self._rows = grown
        self._used, self._in_last, highest = sum_up(
            tp, start_ts, commit_ts, ends, self._rows, self._used, self._in_last
        )
        self._records += len(tp)
        self._end = int(ends[-1])
        self._max_ts = max(self._max_ts, highest)
        # Last: what an error (no memory) keeps from being summed up is summed up the next time.
        self._added, self._added_records = [], 0

    @property
    def end(self) -> int:
        """Offset behind the last record."""
        with self._lock:
            self._sum_up()
            return self._end

    @property
    def records(self) -> int:
        """How many there are."""
        with self._lock:
            self._sum_up()
            return self._records

    @property
    def max_ts(self) -> int:
        """Largest storage ts."""
        with self._lock:
            self._sum_up()
            return self._max_ts

    def buckets(self) -> npt.NDArray[np.int64]:
        """(n, 5) array of END, MIN_COMMIT, MAX_COMMIT, MIN_COMMIT_START, MIN_PREWRITE_START."""
        with self._lock:
            self._sum_up()
            return self._rows[: self._used].copy()

    def to_bytes(self) -> bytes:
        """One JSON line and the bucket array."""
        with self._lock:
            self._sum_up()
            body = self._rows[: self._used].tobytes()
            head = {
                "format_version": 2,
                "fid": self.fid,
                "end": self._end,
                "records": self._records,
                "max_ts": self._max_ts,
                "in_last": self._in_last,
            }
        return _line(head | {"crc32c": _checksum(head, body)}) + b"\n" + body

    @classmethod
    def from_bytes(cls, data: bytes) -> FileSummary | None:
        """Read it back; None when it is not whole (it is rebuilt then)."""
        head_bytes, _, body = data.partition(b"\n")
        try:
            head = strict.loads(head_bytes)
            checksum = head.pop("crc32c")
            if head["format_version"] != 2 or checksum != _checksum(head, body) or len(body) % (8 * _COLUMNS):
                return None
            summary = cls(strict.integer(head["fid"]))
            summary._end = strict.integer(head["end"])
            summary._records = strict.integer(head["records"])
            summary._max_ts = strict.integer(head["max_ts"])
            summary._in_last = strict.integer(head["in_last"])
            summary._rows = np.frombuffer(body, dtype=np.int64).reshape(-1, _COLUMNS).copy()
            summary._used = len(summary._rows)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return summary


def _line(head: dict[str, int]) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode()


def _checksum(head: dict[str, int], body: bytes) -> int:
    """Of the head without it, and of the rows: a smaller end or largest ts would let GC delete what is needed."""
    return int(frame.crc32c(_line(head) + body))


def lowest_open_start(
    buckets: npt.NDArray[np.int64],
    gc_point: int,
    indexed_end: int,
    read: Callable[[int, int], Iterable[Iterable[Entry]]],
) -> int:
    """Smallest start ts in one file that the deletion limit may not pass, NEVER when there is none.

    It covers prewrites whose commit in this file lies above ``gc_point``, and what lies at or behind ``indexed_end``:
    prewrites that are not indexed yet, and those of commits, wherever these lie: the wait set may have resolved them
    already, and a late one is not noted before it is indexed. ``read`` gives the records between two offsets.
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
        starts = buckets[unindexed][:, [MIN_COMMIT_START, MIN_PREWRITE_START]]
        lowest = min(lowest, int(starts.min()))
    for at in np.flatnonzero(across).tolist():
        if buckets[at, MIN_COMMIT_START] >= lowest:
            continue
        begin = int(buckets[at - 1, END]) if at else 0
        for entries in read(begin, int(buckets[at, END])):
            for entry in entries:
                if entry.tp != 0 and entry.commit_ts > gc_point and entry.start_ts != entry.commit_ts:
                    lowest = min(lowest, entry.start_ts)
    return lowest
