"""The transactions of a range in commit order over all Pumps, as batches of columns."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa

from pumphouse.archive.windows import Windows
from pumphouse.loader.context import read_piece
from pumphouse.loader.report import Progress
from pumphouse.loader.work import SegmentPart, pieces_of
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore

COLUMNS = ("commit_ts", "start_ts", "part", "parts", "payload")


def transactions(
    store: ObjectStore,
    windows: Windows,
    after: Tso,
    upto: Tso,
    tables: Collection[int] | None,
    tell: Progress,
) -> Iterator[pa.RecordBatch]:
    """Rows of segments with ``after < commit ts <= upto``, by commit ts, start ts and part.

    Of each Pump one row group (8 MiB of payload, one part of a transaction at least) is held.

    Args:
        store: the archive's.
        windows: that hold the range.
        after: exclusive.
        upto: inclusive.
        tables: only segments with changes under one of these ids; None = all.
        tell: told of each segment.
    """
    pieces = list(pieces_of(windows, after, upto, tables))
    done = itertools.count(1)
    step = f"reading {len(pieces)} segments"
    tell(step, 0, len(pieces))

    def told(piece: SegmentPart) -> Iterator[pa.RecordBatch]:
        yield from read_piece(store, piece, COLUMNS)
        tell(step, next(done), len(pieces))

    for _, window in itertools.groupby(pieces, key=lambda piece: piece.window):
        of_pump: dict[str, list[SegmentPart]] = defaultdict(list)
        for piece in window:
            of_pump[piece.segment.node_id].append(piece)
        for some in of_pump.values():
            some.sort(key=lambda piece: piece.segment.min_commit_ts)
        yield from merged([itertools.chain.from_iterable(map(told, some)) for some in of_pump.values()])


def merged(streams: Iterable[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Batches that are each in order, as batches that are in order over all of them."""
    held: dict[int, pa.RecordBatch] = {}
    left = dict(enumerate(streams))
    while True:
        for at in [at for at in left if at not in held]:
            batch = next(left[at], None)
            if batch is None:
                del left[at]
            else:
                held[at] = batch
        if len(held) <= 1:
            yield from held.values()
            held.clear()
            if not left:
                return
            continue
        # Up to here nothing else can come: of each stream what is behind the last row that it has is not known.
        end = min(_last(batch) for batch in held.values())
        ready = {at: _count_upto(batch, end) for at, batch in held.items()}
        first, *more = (held[at].slice(0, count) for at, count in ready.items() if count)
        if more:
            first = pa.concat_batches([first, *more])
            order = np.lexsort(tuple(first.column(name).to_numpy() for name in ("part", "start_ts", "commit_ts")))
            first = first.take(pa.array(order))
        yield first
        held = {at: batch.slice(ready[at]) for at, batch in held.items() if ready[at] < batch.num_rows}


def _last(batch: pa.RecordBatch) -> tuple[int, int]:
    return batch.column("commit_ts")[-1].as_py(), batch.column("start_ts")[-1].as_py()


def _count_upto(batch: pa.RecordBatch, end: tuple[int, int]) -> int:
    commit_ts, start_ts = batch.column("commit_ts").to_numpy(), batch.column("start_ts").to_numpy()
    return int(np.count_nonzero((commit_ts < end[0]) | ((commit_ts == end[0]) & (start_ts <= end[1]))))
