"""A writer's transactions as they lie here, in order or not: what it decides by that has lost its own records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pump_service.store.index import Index
from pump_service.store.indexer import Indexer
from pump_service.store.pending import PendingCommits
from pump_service.store.prewrites import OpenPrewrites
from pump_service.store.valuelog import ValueLog
from pumphouse.model.tso import MAX_TSO

_PART = 4096
_PART_BYTES = 1 << 20  # of keys: a part is a message


@dataclass(slots=True)
class Part:
    """Some of them.

    Attributes:
        prewrites: (start ts, prewrite key, whether it has no outcome).
        commits: (start ts, commit ts), of every writer.
    """

    prewrites: list[tuple[int, bytes, bool]] = field(default_factory=list)
    commits: list[tuple[int, int]] = field(default_factory=list)


class Transactions:
    """Reads the index from a timestamp on. Any thread."""

    def __init__(
        self,
        *,
        index: Index,
        indexer: Indexer,
        valuelog: ValueLog,
        pending: PendingCommits,
        prewrites: OpenPrewrites,
    ) -> None:
        self._index = index
        self._indexer = indexer
        self._valuelog = valuelog
        self._pending = pending
        self._prewrites = prewrites

    def floor(self, prefix: bytes, above: int) -> int:
        """From where on to read, so that every open prewrite of a prefix is among what is read."""
        waiting = self._prewrites.oldest(len(self._indexer.waiting), keys=False)
        older = [each for each in waiting if each.start_ts <= above]
        return min([above, *(each.start_ts - 1 for each in older if self._prewrites.key(each).startswith(prefix))])

    def read(self, prefix: bytes, floor: int) -> Iterator[Part]:
        """Prewrites of a prefix and commits of everybody, above a timestamp; BadRecord.

        A commit that is kept out of the stream is left out; one that is on no file is not.
        """
        kept_out = {(each.start_ts, each.commit_ts) for each in self._pending.all() if each.holds}
        while True:
            ts, fids, offsets = self._index.columns(floor, MAX_TSO, _PART)
            if not len(ts):
                break
            part, size = Part(), 0
            for fid, offset in zip(fids.tolist(), offsets.tolist(), strict=True):
                if fid < self._valuelog.first_fid:  # its deletion was lost with the machine
                    continue
                meta = self._valuelog.file(fid).peek(offset)
                if meta.tp == 0:
                    if meta.prewrite_key.startswith(prefix):
                        is_open = self._prewrites.is_open(meta.start_ts)
                        part.prewrites.append((meta.start_ts, meta.prewrite_key, is_open))
                        size += len(meta.prewrite_key)
                        if size >= _PART_BYTES:
                            yield part
                            part, size = Part(), 0
                elif 0 != meta.commit_ts != meta.start_ts and (meta.start_ts, meta.commit_ts) not in kept_out:
                    part.commits.append((meta.start_ts, meta.commit_ts))
            yield part
            floor = int(ts[-1])
        yield Part(commits=[(start, ts) for ts, (start, _) in list(self._indexer.unwritten.commits.items())])

    def kept_out(self, floor: int) -> list[tuple[int, int]]:
        """(start ts, commit ts) above a timestamp that wait for a person."""
        return [(each.start_ts, each.commit_ts) for each in self._pending.all() if each.holds and each.start_ts > floor]
