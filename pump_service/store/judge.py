"""Records that are not plain: a second prewrite, late, orphan and repeated commits, outcomes in memory only.

What is noted here is kept out of the stream until it is accepted by name (`pending`). What was answered is never
replaced: of two prewrites with one start ts, or two outcomes of one transaction, the first stays, the other is noted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import structlog

from pump_service.store import frame
from pump_service.store.block import I64, Block, Entry
from pump_service.store.collected import CollectedCommits
from pump_service.store.gc_rules import GcState
from pump_service.store.index import Index
from pump_service.store.order import NOBODY, NOTHING_KNOWN, Known, Order
from pump_service.store.pending import PendingCommit, PendingCommits
from pump_service.store.rows import Puts
from pump_service.store.unwritten import Unwritten
from pump_service.store.valuelog import ValueLog
from pumphouse.errors import BadRecord
from pumphouse.model.position import Pointer
from pumphouse.model.tso import Tso

log = structlog.get_logger(__name__)

T = TypeVar("T")
LOGGED_AT_ONCE = 10
# Most entries of the index that are read for a block that is met again.
_KNOWN_AT_ONCE = 1 << 18


class UntilDone(Protocol):
    """Does something again and again until it works."""

    def __call__(self, action: Callable[[], T]) -> T:
        """What the action returns."""
        ...


@dataclass(slots=True)
class Turn:
    """What the records that are indexed together come to."""

    puts: Puts
    now: float
    published: Tso  # watermark before them
    replaying: bool
    noted: list[PendingCommit] = field(default_factory=list)
    on_file: list[tuple[int, int]] = field(default_factory=list)  # (start ts, commit ts) that were in memory only


class Judge:
    """Does for one record what `order.advance` does for many, and all that it leaves. Indexer thread only."""

    def __init__(
        self,
        *,
        order: Order,
        index: Index,
        valuelog: ValueLog,
        pending: PendingCommits,
        collected: CollectedCommits,
        unwritten: Unwritten,
        gc: GcState,
        until_done: UntilDone,
    ) -> None:
        self._waiting, self._recent = order
        self._index = index
        self._valuelog = valuelog
        self._pending = pending
        self._collected = collected
        self._unwritten = unwritten
        self._gc = gc
        self._judged_end = gc.judged_end  # as it is while the value log is read again
        self._until_done = until_done
        self.duplicates = 0

    def judge(self, entry: Entry, turn: Turn) -> None:
        """Take one record."""
        start, commit = entry.start_ts, entry.commit_ts
        pointer = Pointer(entry.fid, entry.offset)
        if start == 0 and commit == 0:
            return  # an empty binlog, as the Go Pump may have stored one
        if entry.tp == 0:
            self._prewrite(start, pointer, turn)
        elif start == commit:
            # A fake says how far the stream is; it takes no place that another record has.
            if self._other_of(commit, pointer) is None:
                self._put(commit, pointer, turn)
            self._waiting.passed(commit, pointer)
        elif commit == 0:
            turn.on_file.append((start, 0))
            self._waiting.resolve(start)
            self._waiting.passed(0, pointer)
            self._put(0, pointer, turn)
        else:
            self._commit(start, commit, pointer, turn)

    def _prewrite(self, start: int, pointer: Pointer, turn: Turn) -> None:
        """The first that has a start ts keeps it; another one with other content is noted under (start ts, start ts).

        So is one whose start ts is the commit ts of another transaction: the index has one place for both.
        """
        if self._pending.is_second_prewrite(start, pointer) or self._is_second(start, pointer):
            if not self._pending.knows(start, start):
                turn.noted.append(
                    PendingCommit(
                        start_ts=start, commit_ts=start, fid=pointer.fid, offset=pointer.offset,
                        late=False, orphan=True, watermark=turn.published,
                    )
                )  # fmt: skip
            self._waiting.passed(0, pointer)
            return
        if self._pending.has_orphans():
            self._until_done(partial(self._pending.heal, start))
        self._waiting.prewrite(start, pointer, turn.now)
        self._put(start, pointer, turn)

    def _is_second(self, start: int, pointer: Pointer) -> bool:
        try:
            other = self._other_of(start, pointer)
            if other is None:
                return False
            meta = frame.read_meta(other)
            return (meta.tp, meta.start_ts) != (0, start) or not frame.is_same_content(
                other, self._valuelog.read(pointer)
            )
        except BadRecord:
            return True  # whether it is the same cannot be told

    def _other_of(self, ts: int, pointer: Pointer) -> bytes | None:
        """Another record than the one at ``pointer`` that has this place in the index; a fake leaves it to any."""
        prior = self._pointer_of(ts)
        if prior is None or prior == pointer:
            return None
        payload = self._valuelog.read(prior)
        meta = frame.read_meta(payload)
        return None if meta.tp != 0 and meta.start_ts == meta.commit_ts else payload

    def _has_prewrite(self, start: int) -> bool:
        # Under 0 the index has rollbacks. A commit of 0 is refused now; a log of another writer may have one.
        pointer = self._pointer_of(start) if start else None
        if pointer is None:
            return False
        try:
            meta = frame.read_meta(self._valuelog.read(pointer))
        except BadRecord:
            return True  # a pull names it
        return (meta.tp, meta.start_ts) == (0, start)

    def _commit(self, start: int, commit: int, pointer: Pointer, turn: Turn) -> None:
        # What the process before has published is saved once a second only. In a replay it may have been up to where
        # the records before this one come to; no commit of a good writer lies there, because its prewrite still waits.
        published = max(turn.published, self._waiting.position()[0]) if turn.replaying else turn.published
        waited = self._waiting.resolve(start)
        in_memory = self._unwritten.is_commit(start, commit)
        if in_memory:
            turn.on_file.append((start, commit))
        prior = self._pointer_of(commit)
        if prior == pointer:
            # Met again after a restart: it was judged when it came first.
            self._waiting.passed(commit, pointer)
            return
        taken = prior is not None and not self._is_commit_of(prior, start)
        collected = commit <= self._gc.gc_point and (start, commit) in self._collected
        if collected or (prior is not None and not taken):
            self.duplicates += 1
            self._waiting.passed(0, pointer)
            return
        orphan = not waited and not self._has_prewrite(start)
        collides = taken or self._unwritten.has_other(start, commit)
        # Its transaction has an outcome already, and not this one.
        second = not (waited or orphan or in_memory)
        known = self._pending.knows(start, commit)
        shown = commit
        if turn.replaying and not waited and commit <= self._gc.gc_point:
            if pointer >= self._judged_end:
                # GC frees no prewrite before its commit was judged, so it took none from this one. The GC point had
                # been published when it came, be it by a fake that is on no file.
                published = max(published, self._gc.gc_point)
            elif orphan and not known:
                # Collected: consumers have it, its prewrite went with its file. Its own key did not have to go: it may
                # lie above what was deleted. A repeat must find it as it would have before the index was lost.
                known, shown = True, 0
        late = (commit <= published and not in_memory) or collides or second
        if (late or orphan) and not known:
            turn.noted.append(
                PendingCommit(
                    start_ts=start, commit_ts=commit, fid=pointer.fid, offset=pointer.offset,
                    late=late, orphan=orphan, watermark=published,
                )
            )  # fmt: skip
        if not collides:
            self._put(commit, pointer, turn)
        self._waiting.passed(shown, pointer)

    def is_in_order(self, start: int, commit: int, published: int) -> bool:
        """Whether a commit that is on no file may be served: on a file it would be neither late nor collide."""
        if commit <= published or self._unwritten.has_other(start, commit):
            return False
        prior = self._pointer_of(commit)
        try:
            return prior is None or self._is_commit_of(prior, start)
        except BadRecord:
            return False  # whose place it is cannot be told

    def _put(self, ts: int, pointer: Pointer, turn: Turn) -> None:
        turn.puts.add(ts, pointer)
        if ts:
            self._recent.remember(ts, pointer)

    def _pointer_of(self, ts: int) -> Pointer | None:
        found = self._recent.recall(ts)
        if found is None and not self._recent.knows_all_at(ts):
            found = self._until_done(lambda: self._index.get(ts))
        # A key whose deletion was lost with the machine may point into a file that GC had removed.
        return found if found is not None and found.fid >= self._valuelog.first_fid else None

    def _is_commit_of(self, pointer: Pointer, start_ts: int) -> bool:
        meta = frame.read_meta(self._valuelog.read(pointer))
        return meta.tp != 0 and meta.start_ts == start_ts

    def orphans(self) -> I64:
        """Start ts of commits whose prewrite may still come, and of prewrites that came with several contents."""
        if not self._pending.has_orphans():
            return NOBODY
        return self._pending.orphan_starts()

    def known(self, block: Block, *, replaying: bool) -> Known:
        """What the index has under the timestamps of a block that are no longer remembered.

        In a replay it has nearly all of them, side by side; else few are asked for, of transactions that took long.
        """
        keys = np.where(block.tp == 0, block.start_ts, block.commit_ts)
        asked = np.unique(keys[(keys > 0) & (keys <= self._recent.floor)])
        if not len(asked):
            return NOTHING_KNOWN
        found = NOTHING_KNOWN
        if replaying:
            # Some that lie far below the others would make it read all that is between.
            above, upto = int(asked[len(asked) // 16]) - 1, int(asked[-1])
            columns = self._index.columns(above, upto, _KNOWN_AT_ONCE)
            if len(columns[0]) == _KNOWN_AT_ONCE:
                upto = int(columns[0][-1])
            found = Known.of(columns, above, upto)
            asked = asked[(asked <= above) | (asked > upto)]
        return found.with_singles(asked, self._until_done(lambda: self._index.get_all(asked.tolist())))

    def is_old(self, entry: Entry) -> bool:
        """Whether the index has to be asked for what is under this record's timestamp."""
        return not self._recent.knows_all_at(entry.start_ts if entry.tp == 0 else entry.commit_ts)

    def note(self, noted: list[PendingCommit]) -> None:
        """Keep commits out of the stream, durably, and say so."""
        if not noted:
            return
        self._until_done(lambda: self._pending.add(noted))
        # A list of all is shown to operators, and a line of the log costs a hundred times what a record does: behind a
        # writer whose clock is slow every commit is late.
        for item in noted[:LOGGED_AT_ONCE]:
            log.error(
                "commit_pending", start_ts=item.start_ts, commit_ts=item.commit_ts, late=item.late,
                orphan=item.orphan, watermark=item.watermark,
            )  # fmt: skip
        more = noted[LOGGED_AT_ONCE:]
        if more:
            log.error(
                "commits_pending", more=len(more), late=sum(item.late for item in more),
                orphan=sum(item.orphan for item in more), min_commit_ts=min(item.commit_ts for item in more),
                max_commit_ts=max(item.commit_ts for item in more), hint="pumphouse pump status lists them",
            )  # fmt: skip
