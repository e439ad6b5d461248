"""The stream as pullers see it: committed binlogs in order, and single records by their timestamp."""

from __future__ import annotations

import numpy as np

from pump_service.store.batch import ORPHAN, PullBatch
from pump_service.store.gc_rules import GcState
from pump_service.store.index import Index
from pump_service.store.indexer import Indexer
from pump_service.store.logfile import Stored
from pump_service.store.pending import PendingCommits
from pump_service.store.reader import Reader
from pump_service.store.valuelog import ValueLog
from pumphouse.errors import BadRecord, LateCommit, OrphanCommit, PositionCollected
from pumphouse.model.tso import Tso


class Stream:
    """Reads. Any thread."""

    def __init__(
        self, *, index: Index, indexer: Indexer, valuelog: ValueLog, pending: PendingCommits, gc: GcState
    ) -> None:
        self._index = index
        self._indexer = indexer
        self._valuelog = valuelog
        self._pending = pending
        self._gc = gc
        self._reader = Reader(index, valuelog, pending)

    def pull(
        self, after: int, *, until: int | None = None, max_bytes: int, most: int | None = None, strict: bool = False
    ) -> PullBatch:
        """Committed binlogs with commit ts above ``after``, up to the watermark (or ``until``), in order.

        At least one binlog when there is one; then as many as fit into ``max_bytes``. Raises PositionCollected below
        the GC point, BadRecord on damage. ``strict`` is for the protocol that has no flags: LateCommit while an
        unaccepted one lies at or below the watermark (this puller may have passed it), OrphanCommit when one is next;
        an accepted orphan is left out. Any other puller gets every orphan, flagged: what settles it is its own matter.
        LargeBinlog when ``most`` is given and the next one alone may be larger.
        """
        self._check_floor(after)
        watermark = self._indexer.watermark
        upto = watermark if until is None else min(watermark, until)
        try:
            found = self._reader.read(after, upto, self._indexer.unwritten.commits, max_bytes=max_bytes, most=most)
        except (BadRecord, OrphanCommit):
            self._check_floor(after)
            raise
        batch = PullBatch(
            after=Tso(after), last=Tso(max(after, found.last)), watermark=watermark, binlogs=found.binlogs,
            more=found.last < upto,
        )  # fmt: skip
        if self._pending:
            batch.behind = [item for item in self._pending.between(0, after) if item.holds_as_late]
            if strict:
                self._refuse_flagged(batch)
        # GC may have passed while this was read; then something may be missing.
        self._check_floor(after)
        return batch

    def _check_floor(self, after: int) -> None:
        if after < self._gc.gc_point:
            raise PositionCollected(
                f"binlogs after {after} were asked for, this Pump keeps what is above {self._gc.gc_point}",
                hint="start from a restore or a new genesis",
                start_from=after,
                gc_point=self._gc.gc_point,
            )

    def _refuse_flagged(self, batch: PullBatch) -> None:
        for item in self._pending.between(0, batch.watermark):
            if item.is_prewrite and item.holds:
                raise OrphanCommit(
                    f"a prewrite has the start ts {item.start_ts}, which another record has: a prewrite of other "
                    "content, or another transaction's commit",
                    hint="look at both, then `pumphouse archive accept`",
                    start_ts=item.start_ts, commit_ts=item.commit_ts,
                )  # fmt: skip
            if item.holds_as_late:
                why = f"came below the watermark {item.watermark}"
                if item.commit_ts > item.watermark:
                    why = "has the commit ts of another transaction, or is a second outcome of its own"
                raise LateCommit(
                    f"commit {item.commit_ts} (start ts {item.start_ts}) {why}",
                    hint="look at the transaction, then `pumphouse archive accept`",
                    start_ts=item.start_ts, commit_ts=item.commit_ts, watermark=item.watermark,
                )  # fmt: skip
        batch.leave_out(np.flatnonzero(batch.binlogs.flags == ORPHAN), self._pending.is_accepted)
        orphans = np.flatnonzero(batch.binlogs.flags == ORPHAN)
        if not len(orphans):
            return
        at = int(orphans[0])
        if at == 0:
            start_ts, commit_ts = batch.start_list[0], batch.commit_list[0]
            raise OrphanCommit(
                f"the prewrite of commit {commit_ts} with start ts {start_ts} is on no file",
                hint="look at the transaction, then `pumphouse archive accept`",
                start_ts=start_ts, commit_ts=commit_ts,
            )  # fmt: skip
        batch.cut(at)

    def stored(self, ts: int) -> Stored | bytes | None:
        """The record under a storage ts as it was stored: a prewrite by its start ts, a commit by its commit ts.

        Where it lies, checked; the bytes themselves of what is on no file.
        """
        pointer = self._index.get(ts)
        if pointer is not None:
            return self._valuelog.file(pointer.fid).stored(pointer.offset)
        kept = self._indexer.unwritten.commits.get(ts)
        return None if kept is None else kept[1]
