"""Commits that GC removed while their client may still repeat them.

A client repeats a commit for minutes. When retention is shorter than that, a repeated commit may find neither itself
nor its prewrite in the index, and would be taken for a late one. So (start ts, commit ts) of young commits are kept
when GC removes them, in <data_dir>/pumphouse/collected.bin (pairs of i64le). With the default retention there are none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from pump_service.store.fs import FileSystem

FILE_NAME = "collected.bin"
# TiDB's client repeats a commit for ten minutes.
YOUNGER_THAN_MS = 3_600_000


class CollectedCommits:
    """A set of pairs; GC adds, the indexer asks."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._path = directory / FILE_NAME
        self._lock = threading.Lock()
        self._pairs: set[tuple[int, int]] = set()

    def load(self) -> None:
        """Read the pairs."""
        if self._fs.exists(self._path):
            rows = np.frombuffer(self._fs.read(self._path), dtype="<i8").reshape(-1, 2).tolist()
            self._pairs = {(start, commit) for start, commit in rows}

    def add(self, pairs: Iterable[tuple[int, int]], oldest: int) -> None:
        """Keep pairs, durably; drop those with a commit ts below ``oldest``. Raises OSError."""
        with self._lock:
            before = self._pairs
            after = {pair for pair in before if pair[1] >= oldest} | set(pairs)
            if after == before:
                return
            data = np.array(sorted(after), dtype="<i8").tobytes()
            self._fs.write_atomic(self._path, data)
            self._pairs = after

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return pair in self._pairs
