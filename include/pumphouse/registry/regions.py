"""Which region of TiKV holds a key: a bounded cache over what PD said. Keys here are in memcomparable form."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right, insort
from dataclasses import dataclass, field

from pumphouse.proto import metapb_pb2 as metapb


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A region and the peer to ask."""

    region: metapb.Region
    leader: metapb.Peer

    def holds(self, key: bytes) -> bool:
        """Whether the region's range has the key; an empty end is behind every key."""
        return self.region.start_key <= key and (not self.region.end_key or key < self.region.end_key)


@dataclass(slots=True)
class _Local:
    """What belongs to one process: a fork may come while another thread holds the lock and has changed only half."""

    pid: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    starts: list[bytes] = field(default_factory=list)
    found: dict[bytes, Located] = field(default_factory=dict)  # in order of learning

    def remove(self, start: bytes) -> None:
        del self.found[start]
        self.starts.remove(start)


class RegionCache:
    """Regions by their start key, without overlaps; the one that was learned first goes when there are too many.

    A child of a fork begins with none.
    """

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._state = _Local(os.getpid())

    def get(self, key: bytes) -> Located | None:
        """The region of a key, if it is known."""
        state = self._local()
        with state.lock:
            at = bisect_right(state.starts, key) - 1
            located = state.found[state.starts[at]] if at >= 0 else None
            return located if located is not None and located.holds(key) else None

    def put(self, located: Located) -> None:
        """Learn a region; those that it overlaps are forgotten."""
        state = self._local()
        with state.lock:
            start, end = located.region.start_key, located.region.end_key
            at = max(bisect_right(state.starts, start) - 1, 0)
            overlapping = []
            for other in state.starts[at:]:
                if end and other >= end:
                    break
                known_end = state.found[other].region.end_key
                if other >= start or not known_end or known_end > start:
                    overlapping.append(other)
            for other in overlapping:
                state.remove(other)
            insort(state.starts, start)
            state.found[start] = located
            while len(state.found) > self._limit:
                state.remove(next(iter(state.found)))

    def forget(self, located: Located) -> None:
        """It was wrong; something else that was learned since stays."""
        state = self._local()
        with state.lock:
            start = located.region.start_key
            if state.found.get(start) is located:
                state.remove(start)

    def __len__(self) -> int:
        """How many are known."""
        return len(self._local().found)

    def _local(self) -> _Local:
        if self._state.pid != os.getpid():
            self._state = _Local(os.getpid())
        return self._state
