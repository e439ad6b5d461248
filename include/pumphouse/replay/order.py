"""Segments of one window, each in commit order, to one stream in commit order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

_ORDER = ("commit_ts", "start_ts", "part")


def in_commit_order(readers: Sequence[Iterator[pa.RecordBatch]], *, whole: bool = True) -> Iterator[pa.Table]:
    """Merge batches with ``commit_ts``, ``start_ts`` and ``part``; each reader is read as far as it holds others up.

    ``whole``: what has one commit ts is never cut. Else a large transaction comes in as many pieces as it was read in.
    """
    heads = [_Head(reader, whole=whole) for reader in readers]
    while any(head.rows.num_rows for head in heads):
        bound = min(head.known for head in heads)
        parts = [part for head in heads if (part := head.take(bound)).num_rows]
        if parts:
            together = pa.concat_tables(parts)
            if len(parts) > 1:
                together = together.sort_by([(name, "ascending") for name in _ORDER])
            yield together.combine_chunks()
        for head in heads:
            if head.known == bound:
                head.read()


class _Head:
    """What was read of one segment and not given on."""

    def __init__(self, reader: Iterator[pa.RecordBatch], *, whole: bool) -> None:
        self._reader, self._whole = reader, whole
        self.rows = pa.table({})
        self.known: tuple[int, ...] = (0,)  # everything below this place is read
        self.read()

    def read(self) -> None:
        """Read one more batch."""
        batch = next(self._reader, None)
        if batch is None:
            self.known = (np.iinfo(np.int64).max,)
            return
        more = pa.Table.from_batches([batch])
        self.rows = more if not self.rows.num_rows else pa.concat_tables([self.rows, more])
        ts, start, part = (int(batch.column(name)[-1].as_py()) for name in _ORDER)
        self.known = (ts,) if self._whole else (ts, start, part + 1)

    def take(self, bound: tuple[int, ...]) -> pa.Table:
        """Rows below the bound."""
        if not self.rows.num_rows:
            return self.rows
        begin, end = 0, self.rows.num_rows
        for name, value in zip(_ORDER, bound, strict=False):  # among rows that are equal so far
            values = self.rows.column(name).slice(begin, end - begin).to_numpy()
            end = begin + int(np.searchsorted(values, value, "right"))
            begin += int(np.searchsorted(values, value))
        taken, self.rows = self.rows.slice(0, begin), self.rows.slice(begin)
        return taken
