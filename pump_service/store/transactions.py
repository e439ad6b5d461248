"""A writer's transactions as they lie here, in order or not: what it decides by that has lost its own records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pump_service.store.index import Index
from pump_service.store.indexer import Indexer
from pump_service.store.pending import PendingCommits
from pump_service.store.prewrites import OpenPrewrites
from pump_service.store.valuelog import ValueLog
from pumphouse.errors import PumpUnavailable
from pumphouse.model.position import Pointer
from pumphouse.model.tso import MAX_TSO

_PART = 4096
_PART_BYTES = 1 << 20  # of keys: a part is a message
_AGAIN = "ask again in some seconds"


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
        caught_up: Callable[[], bool],
    ) -> None:
        self._index = index
        self._indexer = indexer
        self._valuelog = valuelog
        self._pending = pending
        self._prewrites = prewrites
        self._caught_up = caught_up

    def floor(self, prefix: bytes, above: int) -> int:
        """From where on to read, so that every open prewrite of a prefix is among what is read.

        Raises PumpUnavailable while the index is behind.
        """
        self._require_indexed()
        waiting = self._prewrites.oldest(len(self._indexer.waiting), keys=False)
        older = [each for each in waiting if each.start_ts <= above]
        return min([above, *(each.start_ts - 1 for each in older if self._prewrites.key(each).startswith(prefix))])

    def read(self, prefix: bytes, floor: int) -> Iterator[Part]:
        """Prewrites of a prefix and commits of everybody, above a timestamp; each commit behind its prewrite.

        A commit that is kept out of the stream is left out; one that is on no file is not.

        Raises:
            BadRecord: something cannot be read.
            PumpUnavailable: the index is behind, or a prewrite that was given as open has got its outcome meanwhile.
        """
        # Prewrites before it that did not wait then had their outcomes; these are indexed behind the wait.
        end = self._indexer.indexed_end
        waited = {each.start_ts for each in self._prewrites.oldest(len(self._indexer.waiting), keys=False)}
        self._require_indexed()
        kept_out = {(each.start_ts, each.commit_ts) for each in self._pending.all() if each.holds}
        said_open: set[int] = set()
        settled: set[int] = set()  # meanwhile, so their commits may lie in what was read before
        in_memory = self._in_memory()  # looked at before the index: an outcome moves from memory into it
        for found in self._columns(floor):
            part, size = Part(), 0
            for fid, offset in found:
                meta = self._valuelog.file(fid).peek(offset)
                if meta.tp == 0:
                    if meta.prewrite_key.startswith(prefix):
                        is_open = self._prewrites.is_open(meta.start_ts)
                        if is_open:
                            said_open.add(meta.start_ts)
                        elif meta.start_ts in waited or Pointer(fid, offset) >= end:
                            settled.add(meta.start_ts)
                        part.prewrites.append((meta.start_ts, meta.prewrite_key, is_open))
                        size += len(meta.prewrite_key)
                        if size >= _PART_BYTES:
                            yield part
                            part, size = Part(), 0
                elif 0 != meta.commit_ts != meta.start_ts and (meta.start_ts, meta.commit_ts) not in kept_out:
                    part.commits.append((meta.start_ts, meta.commit_ts))
            yield part
        yield in_memory
        if settled:
            self._require_indexed()
            yield self._in_memory()
            yield from self._commits_of(settled, kept_out)
        if any(not self._prewrites.is_open(start_ts) for start_ts in said_open):
            raise PumpUnavailable("a prewrite got its outcome while it was read", hint=_AGAIN)

    def _columns(self, floor: int) -> Iterator[list[tuple[int, int]]]:
        """Places of what is indexed above a timestamp, in order."""
        while True:
            ts, fids, offsets = self._index.columns(floor, MAX_TSO, _PART)
            if not len(ts):
                return
            first = self._valuelog.first_fid  # below it: its deletion was lost with the machine
            yield [(fid, at) for fid, at in zip(fids.tolist(), offsets.tolist(), strict=True) if fid >= first]
            floor = int(ts[-1])

    def _in_memory(self) -> Part:
        return Part(commits=[(start, ts) for ts, (start, _) in list(self._indexer.unwritten.commits.items())])

    def _commits_of(self, starts: set[int], kept_out: set[tuple[int, int]]) -> Iterator[Part]:
        for found in self._columns(min(starts)):
            metas = [self._valuelog.file(fid).peek(offset) for fid, offset in found]
            commits = [(each.start_ts, each.commit_ts) for each in metas if each.tp != 0 and each.start_ts in starts]
            yield Part(commits=[each for each in commits if each not in kept_out])

    def _require_indexed(self) -> None:
        if not self._caught_up():
            raise PumpUnavailable("the index is behind the value log, so what is here is not known", hint=_AGAIN)

    def kept_out(self, floor: int) -> list[tuple[int, int]]:
        """(start ts, commit ts) above a timestamp that wait for a person."""
        return [(each.start_ts, each.commit_ts) for each in self._pending.all() if each.holds and each.start_ts > floor]
