"""Segments of one window, each in commit order, to one stream in commit order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa


def in_commit_order(readers: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.Table]:
    """Merge batches with ``commit_ts``, ``start_ts`` and ``part``; what has one commit ts is never cut.

    Each reader is read as far as it holds the others up.
    """
    heads = [_Head(reader) for reader in readers]
    while any(head.rows.num_rows for head in heads):
        bound = min(head.known for head in heads)
        parts = [part for head in heads if (part := head.take(bound)).num_rows]
        if parts:
            whole = pa.concat_tables(parts)
            if len(parts) > 1:
                whole = whole.sort_by([(name, "ascending") for name in ("commit_ts", "start_ts", "part")])
            yield whole.combine_chunks()
        for head in heads:
            if head.known == bound:
                head.read()


class _Head:
    """What was read of one segment and not given on."""

    def __init__(self, reader: Iterator[pa.RecordBatch]) -> None:
        self._reader = reader
        self.rows = pa.table({})
        self.known = 0  # everything below this commit ts is read
        self.read()

    def read(self) -> None:
        """Read one more batch."""
        batch = next(self._reader, None)
        if batch is None:
            self.known = np.iinfo(np.int64).max
            return
        more = pa.Table.from_batches([batch])
        self.rows = more if not self.rows.num_rows else pa.concat_tables([self.rows, more])
        self.known = int(batch.column("commit_ts")[-1].as_py())

    def take(self, bound: int) -> pa.Table:
        """Rows below the bound."""
        if not self.rows.num_rows:
            return self.rows
        count = int(np.searchsorted(self.rows.column("commit_ts").to_numpy(), bound))
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken
