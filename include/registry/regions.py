"""Which region of TiKV holds a key: a bounded cache over what PD said. Keys here are in memcomparable form."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from dataclasses import dataclass

from include.proto import metapb_pb2 as metapb


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A region and the peer to ask."""

    region: metapb.Region
    leader: metapb.Peer

    def holds(self, key: bytes) -> bool:
        """Whether the region's range has the key; an empty end is behind every key."""
        return self.region.start_key <= key and (not self.region.end_key or key < self.region.end_key)


class RegionCache:
    """Regions by their start key, without overlaps; the one that was learned first goes when there are too many."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._starts: list[bytes] = []
        self._found: dict[bytes, Located] = {}  # in order of learning
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Located | None:
        """The region of a key, if it is known."""
        with self._lock:
            at = bisect_right(self._starts, key) - 1
            located = self._found[self._starts[at]] if at >= 0 else None
            return located if located is not None and located.holds(key) else None

    def put(self, located: Located) -> None:
        """Learn a region; those that it overlaps are forgotten."""
        with self._lock:
            start, end = located.region.start_key, located.region.end_key
            at = max(bisect_right(self._starts, start) - 1, 0)
            overlapping = []
            for other in self._starts[at:]:
                if end and other >= end:
                    break
                known_end = self._found[other].region.end_key
                if other >= start or not known_end or known_end > start:
                    overlapping.append(other)
            for other in overlapping:
                self._remove(other)
            insort(self._starts, start)
            self._found[start] = located
            while len(self._found) > self._limit:
                self._remove(next(iter(self._found)))

    def forget(self, located: Located) -> None:
        """It was wrong; something else that was learned since stays."""
        with self._lock:
            start = located.region.start_key
            if self._found.get(start) is located:
                self._remove(start)

    def __len__(self) -> int:
        """How many are known."""
        return len(self._found)

    def _remove(self, start: bytes) -> None:
        del self._found[start]
        self._starts.remove(start)
