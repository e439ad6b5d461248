"""Commits that GC removed while their client may still repeat them.

A client repeats a commit for minutes. When retention is shorter than that, a repeated commit may find neither itself
nor its prewrite in the index, and would be taken for a late one. So (start ts, commit ts) of young commits are kept
when GC removes them, in <data_dir>/pumphouse/collected.bin (pairs of i64le). With the default retention there are none.

They are kept in columns, in pieces that end together: what is older than an hour goes by the piece. The file is
appended to, and written anew when half of it is old. There are `MOST` at most: what does not fit is not removed yet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pump_service.store.fs import FileSystem

FILE_NAME = "collected.bin"
# TiDB's client repeats a commit for ten minutes.
YOUNGER_THAN_MS = 3_600_000
# 64 MiB, in memory and, but for what is old, on disk.
MOST = 1 << 22
_PIECE = 1 << 16
_PAIR_BYTES = 16
HELD_BY = "commits of the last hour, which a client may repeat"

Pair = tuple[int, int]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Pairs in order of commit ts."""

    rows: Rows
    first: int
    last: int

    @classmethod
    def of(cls, rows: Rows) -> _Piece:
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        return cls(rows, int(rows[0, 1]), int(rows[-1, 1]))


class CollectedCommits:
    """A set of pairs; GC adds, the indexer asks."""

    def __init__(self, fs: FileSystem, directory: Path, *, most: int = MOST, piece: int = _PIECE) -> None:
        self._fs = fs
        self._path = directory / FILE_NAME
        self._most = most
        self._piece = piece
        self._lock = threading.Lock()
        self._pieces: tuple[_Piece, ...] = ()  # replaced as a whole: readers take no lock
        self._on_file = 0  # pairs in the file, old ones too

    def __len__(self) -> int:
        return sum(len(piece.rows) for piece in self._pieces)

    def load(self) -> None:
        """Read the pairs. Raises OSError."""
        if not self._fs.exists(self._path):
            return
        # What counts from here on is never written again, and its keys and files go: a process that was killed may have
        # written it without the sync.
        handle = self._fs.open_log(self._path)
        try:
            handle.sync()
        finally:
            handle.close()
        data = self._fs.read(self._path)
        # The end of an append that was not synced may be half a pair, or zeros: its keys were not removed. Half a pair
        # is written over by the next.
        self._on_file = len(data) // _PAIR_BYTES
        rows = np.frombuffer(data, dtype="<i8", count=2 * self._on_file).reshape(-1, 2)
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        self._pieces = tuple(_Piece.of(rows[at : at + self._piece].copy()) for at in range(0, len(rows), self._piece))

    def add(self, pairs: Sequence[Pair], oldest: int) -> bool:
        """Keep pairs, durably, and drop pieces that end below ``oldest``; False: no room, none was kept.

        Raises OSError.
        """
        with self._lock:
            young = tuple(piece for piece in self._pieces if piece.last >= oldest)
            self._pieces = young
            new = [pair for pair in dict.fromkeys(pairs) if pair not in self]
            if not new:
                return True
            if len(self) + len(new) > self._most:
                return False
            added: Rows = np.array(new, dtype=np.int64)
            kept = self._with(young, added)
            self._write(kept, added)
            self._pieces = kept
            return True

    def _with(self, pieces: tuple[_Piece, ...], added: Rows) -> tuple[_Piece, ...]:
        """The newest piece takes what comes until it is full."""
        if pieces and len(pieces[-1].rows) + len(added) <= self._piece:
            return (*pieces[:-1], _Piece.of(np.concatenate([pieces[-1].rows, added])))
        return (*pieces, *(_Piece.of(added[at : at + self._piece]) for at in range(0, len(added), self._piece)))

    def _write(self, kept: tuple[_Piece, ...], added: Rows) -> None:
        """Append, behind what is there whole; or write all anew where the file is mostly old."""
        live = sum(len(piece.rows) for piece in kept)
        if not self._on_file or self._on_file + len(added) > 2 * live + self._piece:
            try:
                self._fs.write_atomic(self._path, b"".join(piece.rows.astype("<i8").tobytes() for piece in kept))
            except OSError:
                # A full disk must not keep GC from what would free it: an append takes less room.
                if not self._on_file:
                    raise
            else:
                self._on_file = live
                return
        handle = self._fs.open_log(self._path)
        try:
            handle.write_at(self._on_file * _PAIR_BYTES, [added.astype("<i8").tobytes()])
            handle.sync()
        finally:
            handle.close()
        self._on_file += len(added)

    def __contains__(self, pair: Pair) -> bool:
        start, commit = pair
        for piece in self._pieces:
            if piece.first <= commit <= piece.last:
                low, high = np.searchsorted(piece.rows[:, 1], (commit, commit + 1))
                if start in piece.rows[low:high, 0]:
                    return True
        return False
