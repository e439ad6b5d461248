"""Compare the rows of tables: many chunks at once, and only what differs is narrowed until its rows can be named.

A table is cut into ranges of its integer key; a range whose checksums differ is cut again. Where there is no such key,
rows are dealt out by a hash. The rows of what is left are compared as multisets of whole rows, a share at a time, so
memory does not grow with a table.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from queue import SimpleQueue
from typing import TypeVar

from pumphouse.diff.fix import FixFile
from pumphouse.diff.servers import Pair
from pumphouse.diff.sides import Part, Side, Sums
from pumphouse.mysql import ServerConnection

# Rows of a chunk that is asked for at once, and of one that is not narrowed any more.
_CHUNK_ROWS = 100_000
_LAST_ROWS = 5_000
_MOST_CHUNKS = 1 << 16
_MOST_AGAIN = 16
# Digests in memory at once, for each session.
_DIGESTS = 250_000
_INFINITE = 1 << 64
_Found = tuple[int, int, str]
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Compared:
    """A table that is on both sides, and what was found of it.

    Args:
        title: its name, for people.
        sides: of the source, of the target.
        key: the integer that ranges are of; '' = none.
        first: rows to name on each side.
        fix: where statements for its rows go; None = nowhere.
        rows: how many each side has.
        differs: some row is on one side only.
        found: of each side, some of those: where its chunk begins, where it stands there, and the row.
    """

    title: str
    sides: tuple[Side, Side]
    key: str
    first: int
    fix: FixFile | None = None
    rows: list[int] = field(default_factory=lambda: [0, 0])
    differs: bool = False
    found: tuple[list[_Found], list[_Found]] = field(default_factory=lambda: ([], []))

    def add(self, at: int, place: int | None, order: int, shown: str) -> None:
        """A row that one side only has; kept if it is among the first by key."""
        found = self.found[at]
        found.append((_place(place), order, shown))
        found.sort()
        del found[self.first :]

    @property
    def in_sql(self) -> bool:
        """Whether checksums are asked for in SQL."""
        return self.sides[0].in_sql

    def enough(self, part: Part) -> bool:
        """Whether no row of a part is to be named: those that are come before it."""
        if self.fix is not None or not self.differs:
            return False
        place = _place(part.low)
        return all(len(found) >= self.first and (not found or found[-1][0] <= place) for found in self.found)


def _place(low: int | None) -> int:
    """Where a part stands among the others of its table."""
    return -_INFINITE if low is None else low


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of a table. ``top``: its rows count for the table; ``whole``: it was not cut yet."""

    table: Compared
    part: Part = Part()
    top: bool = True
    whole: bool = False


class Comparer:
    """Compares tables by several sessions on each server."""

    def __init__(self, pairs: Sequence[Pair], progress: Callable[[str], None]) -> None:
        self._free: SimpleQueue[Pair] = SimpleQueue()
        for pair in pairs:
            self._free.put(pair)
        self._count = len(pairs)
        self._progress = progress
        self._lock = threading.Lock()

    def run(self, tables: Iterable[Compared]) -> None:
        """Compare them all; what is found is in them."""
        todo = [_Chunk(table, whole=True) for table in tables][::-1]
        running: set[Future[list[_Chunk]]] = set()
        with (
            ThreadPoolExecutor(self._count, thread_name_prefix="diff-source") as self._beside,
            ThreadPoolExecutor(self._count, thread_name_prefix="diff") as pool,
        ):
            while todo or running:
                while todo and len(running) < self._count:
                    running.add(pool.submit(self._look, todo.pop()))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    todo += each.result()[::-1]

    def _look(self, chunk: _Chunk) -> list[_Chunk]:
        """Compare a chunk; what of it is to be compared next."""
        table = chunk.table
        with self._session() as pair:
            if chunk.whole:
                self._progress(table.title)
                estimate = max(side.table.estimate for side in table.sides)
                parts = self._ranges(pair, table, chunk.part, min(estimate // _CHUNK_ROWS, _MOST_CHUNKS))
                if len(parts) > 1:
                    return [_Chunk(table, part) for part in parts]
            ours, theirs = self._both(pair, table, lambda side, connection: side.sums(connection, chunk.part))
            if chunk.top:
                with self._lock:
                    table.rows[0] += ours.rows
                    table.rows[1] += theirs.rows
            if ours.equal(theirs) or table.enough(chunk.part):
                return []
            rows, part = max(ours.rows, theirs.rows), chunk.part
            if rows > (_LAST_ROWS if table.in_sql else _DIGESTS):
                parts = self._ranges(pair, table, part, min(max(rows // _LAST_ROWS, 2), _MOST_AGAIN))
                if len(parts) > 1:
                    return [_Chunk(table, each, top=False) for each in parts]
                part, rows = self._in_buckets(pair, table, part, rows)
            self._name(pair, table, part, rows)
        return []

    def _ranges(self, pair: Pair, table: Compared, part: Part, count: int) -> list[Part]:
        """A part in ranges of equal width between its smallest and its largest key."""
        if count < 2 or not table.key:
            return [part]
        found = self._both(pair, table, lambda side, connection: side.ends(connection, part))
        ends = [each for each in found if each is not None]
        if not ends:
            return [part]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        edges = sorted({low + (high - low + 1) * number // count for number in range(1, count)} - {low})
        return [Part(*each) for each in pairwise([part.low, *edges, part.below])]

    def _in_buckets(self, pair: Pair, table: Compared, part: Part, rows: int) -> tuple[Part, int]:
        """Of a part those buckets whose checksums differ, and how many rows they have."""
        if not table.in_sql:
            return part, rows
        ours, theirs = self._both(pair, table, lambda side, connection: side.bucket_sums(connection, part))
        none = Sums(0, 0)
        differ = [
            each for each in ours.keys() | theirs.keys() if not ours.get(each, none).equal(theirs.get(each, none))
        ]
        rows = max(sum(side.get(each, none).rows for each in differ) for side in (ours, theirs))
        return Part(part.low, part.below, tuple(sorted(differ))), rows

    def _name(self, pair: Pair, table: Compared, part: Part, rows: int) -> None:
        """Read the rows of a part, and name those that are on one side only."""
        count = rows // _DIGESTS + 1
        shares: Iterable[int] = range(count)
        if count > 1:
            ours, theirs = self._both(pair, table, lambda side, connection: side.digest_sums(connection, part, count))
            shares = [share for share in shares if ours[share] != theirs[share]]
        for share in shares:

            def ask(side: Side, connection: ServerConnection, share: int = share) -> Counter[bytes]:
                return side.digests(connection, part, count, share)

            here, there = self._both(pair, table, ask)
            self._add(table, 0, pair.source, part, here - there)
            self._add(table, 1, pair.target, part, there - here)
            if table.enough(part):
                return

    def _add(self, table: Compared, at: int, connection: ServerConnection, part: Part, only: Counter[bytes]) -> None:
        """Rows that one side only has."""
        if not only:
            return
        side = table.sides[at]
        with self._lock:
            table.differs = True
        for order, (row, shown) in enumerate(side.find(connection, part, only)):
            if order < table.first:
                with self._lock:
                    table.add(at, part.low, order, shown)
            elif table.fix is None:
                break
            if table.fix is not None:
                table.fix.add(table.title, at, row, *table.sides)

    def _both(self, pair: Pair, table: Compared, ask: Callable[[Side, ServerConnection], T]) -> tuple[T, T]:
        """Ask both servers at once."""
        source = self._beside.submit(ask, table.sides[0], pair.source)
        try:
            target = ask(table.sides[1], pair.target)
        finally:
            wait([source])
        return source.result(), target

    @contextmanager
    def _session(self) -> Iterator[Pair]:
        pair = self._free.get()
        try:
            yield pair
        finally:
            self._free.put(pair)
