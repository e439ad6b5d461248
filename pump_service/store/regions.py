"""Reading many records of the value log with few reads: neighbours in the stream are neighbours in the log.

Wanted places are sorted; those that lie near each other are read as one run, with what lies between them. All runs of
one pull go into one buffer, which is used again: fresh memory costs more than reading into it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pump_service.store.valuelog import ValueLog

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

# A place is (file id << 40) | offset: one number that sorts as the log does, files far apart.
_FILE_BITS = 40
_OFFSET = (1 << _FILE_BITS) - 1
# Two records are read together when at most this lies between them.
_GAP = 64 << 10
# A buffer larger than this is not kept.
_KEEP = 16 << 20


def places(fid: NDArray[np.uint32], offset: I64) -> I64:
    """Places of pointers."""
    return (fid.astype(np.int64) << _FILE_BITS) | offset


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    order: I64  # positions of the wanted places, sorted
    first: I64  # of each run: index into `order`
    begin: I64  # place
    size: I64  # bytes


def _runs(place: I64, want: I64) -> _Runs:
    order = np.argsort(place, kind="stable")
    begin = place[order]
    end = begin + want[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([0], np.flatnonzero(begin[1:] - reach[:-1] > _GAP) + 1)).astype(np.int64)
    return _Runs(order, first, begin[first], np.maximum.reduceat(end, first) - begin[first])


def bytes_of(place: I64, want: I64) -> int:
    """How many bytes `Regions.load` would read."""
    return int(_runs(place, want).size.sum()) if len(place) else 0


class Regions:
    """One buffer and what was read into it. One thread."""

    def __init__(self, valuelog: ValueLog) -> None:
        self._valuelog = valuelog
        self.data: U8 = np.empty(1 << 20, np.uint8)
        self._used = 0

    def begin(self) -> None:
        """Forget what was read."""
        self._used = 0
        if len(self.data) > _KEEP:
            self.data = np.empty(1 << 20, np.uint8)

    def load(self, place: I64, want: I64) -> tuple[I64, I64]:
        """Read the bytes from each place on, ``want`` of them at least where the log has them.

        Returns where each place begins in `data`, and how many bytes are there. Raises OSError, BadRecord (a file is
        gone). `data` may be another array after it.
        """
        at, room = np.zeros(len(place), np.int64), np.zeros(len(place), np.int64)
        if not len(place):
            return at, room
        runs = _runs(place, want)
        self._make_room(int(runs.size.sum()))
        view = self.data.data
        into, got = np.empty(len(runs.first), np.int64), np.empty(len(runs.first), np.int64)
        for run, (begin, size) in enumerate(zip(runs.begin.tolist(), runs.size.tolist(), strict=True)):
            file = self._valuelog.file(begin >> _FILE_BITS)
            offset = begin & _OFFSET
            # What lies behind the synced end is not there yet.
            there = max(min(size, file.synced_end - offset), 0)
            into[run] = self._used
            got[run] = file.handle.read_into(offset, view[self._used : self._used + there])
            self._used += int(got[run])
        counts = np.diff(np.append(runs.first, len(place)))
        begins = np.repeat(into - runs.begin, counts) + place[runs.order]
        at[runs.order] = begins
        room[runs.order] = np.maximum(np.repeat(into + got, counts) - begins, 0)
        return at, room

    def ahead(self, place: I64) -> I64:
        """Bytes between each place and the synced end of its file: no record there is longer. Raises BadRecord."""
        fids, which = np.unique(place >> _FILE_BITS, return_inverse=True)
        ends = np.array([self._valuelog.file(fid).synced_end for fid in fids.tolist()], np.int64)
        return ends[which] - (place & _OFFSET)

    def read(self, place: int, skip: int, into: memoryview) -> bool:
        """Fill a buffer of the caller's from ``skip`` bytes behind a place; whether the log has so much."""
        file = self._valuelog.file(place >> _FILE_BITS)
        offset = (place & _OFFSET) + skip
        return offset + len(into) <= file.synced_end and file.handle.read_into(offset, into) == len(into)

    def _make_room(self, size: int) -> None:
        if self._used + size > len(self.data):
            larger = np.empty(max(self._used + size, 2 * len(self.data)), np.uint8)
            larger[: self._used] = self.data[: self._used]
            self.data = larger
