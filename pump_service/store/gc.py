"""GC of a Pump's store: what `gc_rules` decides is persisted, then keys and files go (row P11)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

import structlog

from pump_service.store import frame, gc_rules
from pump_service.store.bookkeeping import Bookkeeping
from pump_service.store.collected import HELD_BY, YOUNGER_THAN_MS, CollectedCommits
from pump_service.store.gc_rules import GcState
from pump_service.store.index import Index, key_ts, unpack_pointer
from pump_service.store.indexer import Indexer
from pump_service.store.logfile import LogFile
from pump_service.store.pending import PendingCommits
from pump_service.store.summary import NEVER, lowest_open_start
from pump_service.store.valuelog import ValueLog
from pumphouse.clock import Clock
from pumphouse.errors import BadRecord, WriterFailed
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.model.tso import MAX_TSO, Tso, compose

log = structlog.get_logger(__name__)

_DELETE_KEYS_AT_ONCE = 1024
_PERSIST_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What one run did."""

    started: bool  # False: one was running already, nothing was done
    gc_point: Tso
    deletion_limit: Tso
    # What was asked for: now - retention, and the lowest checkpoint; None = nothing was done, or there is no consumer.
    requested_by_retention: Tso | None = None
    requested_by_checkpoints: Tso | None = None
    held_by: list[str] = field(default_factory=list)  # consumers, "retention", "watermark", and what keeps D below G
    freed_files: int = 0
    freed_bytes: int = 0
    kept_files: int = 0
    deleted_keys: int = 0


class Gc:
    """Collects, on the caller's thread, one run at a time."""

    def __init__(
        self,
        *,
        state: GcState,
        index: Index,
        indexer: Indexer,
        valuelog: ValueLog,
        pending: PendingCommits,
        collected: CollectedCommits,
        bookkeeping: Bookkeeping,
        clock: Clock,
    ) -> None:
        self._state = state
        self._index = index
        self._indexer = indexer
        self._valuelog = valuelog
        self._pending = pending
        self._collected = collected
        self._bookkeeping = bookkeeping
        self._clock = clock
        self._running = threading.Lock()
        self._ending = False
        self.held_by: list[str] = []  # by the last run

    def end(self) -> None:
        """A run that is under way ends before it deletes more keys; it leaves nothing that the next run does not do."""
        self._ending = True

    def collect(self, checkpoints: Mapping[str, int], now_minus_retention: int) -> GcReport:
        """One GC run. ``checkpoints``: of every consumer that is not offline. Blocks; a second one at once is refused.

        Raises OSError or IndexFailed when the bookkeeping cannot be written; nothing is deleted then.
        """
        if not self._running.acquire(blocking=False):
            return GcReport(started=False, gc_point=self._state.gc_point, deletion_limit=self._state.deletion_limit)
        try:
            return self._bookkeeping(lambda: self._run(checkpoints, now_minus_retention))
        finally:
            self._running.release()

    def _run(self, checkpoints: Mapping[str, int], now_minus_retention: int) -> GcReport:
        begun = time.monotonic()
        self._persist_position()
        point = gc_rules.decide_point(self._state.gc_point, checkpoints, now_minus_retention, self._indexer.watermark)
        # Behind the look at the watermark: what that has passed lies before it.
        judged_end = self._indexer.indexed_end
        if point.gc_point > self._state.gc_point:
            # Persisted first: whatever is deleted later, a pull below it is refused, also after a restart.
            self._state.save(point.gc_point, self._state.deletion_limit, judged_end)
            self._index.save_gc_ts(point.gc_point)
        limit, files, deleted = self._delete(judged_end)
        freed_bytes = sum(file.end for file in files)
        self._remove(files)
        self.held_by = point.held_by + limit.held_by
        report = GcReport(
            started=True,
            gc_point=self._state.gc_point,
            deletion_limit=limit.deletion_limit,
            requested_by_retention=Tso(now_minus_retention),
            requested_by_checkpoints=Tso(min(checkpoints.values())) if checkpoints else None,
            held_by=list(self.held_by),
            freed_files=len(files),
            freed_bytes=freed_bytes,
            kept_files=len(self._valuelog.files()),
            deleted_keys=deleted,
        )
        log.info(
            "gc_done", gc_point=report.gc_point, deletion_limit=report.deletion_limit, freed_files=report.freed_files,
            deleted_keys=deleted, held_by=report.held_by, requested_by_retention=report.requested_by_retention,
            requested_by_checkpoints=report.requested_by_checkpoints, seconds=round(time.monotonic() - begun, 3),
        )  # fmt: skip
        return report

    def _delete(self, judged_end: Pointer) -> tuple[gc_rules.Limit, list[LogFile], int]:
        """Decide D and persist it, delete keys below it: D, the files that may go, and how many keys went."""
        # The snapshot comes before D: a prewrite that is indexed later cannot be among its keys, and one indexed
        # before is in the wait set when D is taken.
        with self._index.snapshot() as keys_below:
            limit = self._deletion_limit(judged_end)
            self._state.save(self._state.gc_point, limit.deletion_limit, judged_end)
            saved = self._index.positions()
            files = gc_rules.deletable(
                self._valuelog.files(), limit.deletion_limit, saved.head or ZERO_POINTER, saved.handle
            )
            files = list(takewhile(lambda file: self._really_below(file, limit.deletion_limit), files))
            deleted, upto = self._delete_keys(keys_below(limit.deletion_limit), limit.deletion_limit)
        if upto < limit.deletion_limit:
            # What could not be noted stays, with every file that has it.
            limit = gc_rules.Limit(deletion_limit=Tso(upto), held_by=[*limit.held_by, HELD_BY])
            # Killed before this, the higher one stays there until the next run: it says what may go, not what went.
            self._state.save(self._state.gc_point, limit.deletion_limit, judged_end)
            files = list(takewhile(lambda file: file.max_ts < upto, files))
        return limit, files, deleted

    def _remove(self, files: list[LogFile]) -> None:
        for file in files:
            self._valuelog.remove(file)
            log.info("value_log_file_freed", file_id=file.fid, max_ts=file.max_ts)
        if files:
            self._pending.forget_below(self._valuelog.first_fid)

    def _persist_position(self) -> None:
        """Have the handle pointer persisted as it is now: files before it may go."""
        persisted = threading.Event()

        def persist() -> None:
            self._indexer.persist()
            persisted.set()

        self._indexer.queue.call(persist)
        # Without it less can go, so it is not waited for in vain.
        persisted.wait(_PERSIST_WITHIN_S)

    def _deletion_limit(self, indexed_end: Pointer) -> gc_rules.Limit:
        """``indexed_end``: the indexer's, looked at before this."""
        gc_point = self._state.gc_point
        # The order of these looks matters. What is indexed after the first is covered by the summaries; a prewrite that
        # no longer waits when the wait set is asked has its commit in the summaries, which are read last. A late commit
        # was noted before the first look, or is covered by the summaries as one that is not indexed.
        unsettled = self._indexer.lowest_unsettled()
        pending = self._pending.lowest()
        lowest = NEVER
        for file in self._valuelog.files():
            if file.sealed and file.max_ts <= gc_point and file.fid < indexed_end.fid:
                continue  # nothing in it is above G, everything in it is indexed
            done_upto = -1 if file.fid > indexed_end.fid else int(MAX_TSO)
            if file.fid == indexed_end.fid:
                done_upto = indexed_end.offset
            buckets = self._valuelog.summaries.of(file).buckets()
            lowest = min(lowest, lowest_open_start(buckets, gc_point, done_upto, file.records))
        return gc_rules.decide_limit(
            gc_point,
            unresolved=unsettled,
            pending=pending,
            open_start=lowest if lowest != NEVER else None,
        )

    def _really_below(self, file: LogFile, limit: int) -> bool:
        """Whether a file's records say what its footer says, which has no checksum; a damaged file stays."""
        try:
            summary = self._valuelog.summaries.of(file)
        except BadRecord as error:
            log.error("gc_held_by_damage", path=error.path, offset=error.offset, reason=error.reason)  # noqa: TRY400
            return False
        if summary.max_ts < limit:
            return True
        log.error("gc_held_by_footer", path=str(file.path), footer=file.max_ts, max_ts=summary.max_ts)
        file.max_ts = summary.max_ts
        return False

    def _delete_keys(self, pairs: Iterable[tuple[bytes, bytes]], limit: int) -> tuple[int, int]:
        """Delete in order of the timestamps; how many, and up to where all are gone: ``limit``, or less."""
        deleted = 0
        batch: list[tuple[bytes, bytes]] = []
        for pair in pairs:
            batch.append(pair)
            if len(batch) >= _DELETE_KEYS_AT_ONCE:
                if self._ending:  # which waits for this; files go behind their keys, so the next run does the rest
                    raise WriterFailed("the store is closing", hint="the next GC run goes on")
                if (done := self._delete_batch(batch)) is None:
                    return deleted, key_ts(batch[0][0])
                deleted += done
                batch = []
        if batch:
            if (done := self._delete_batch(batch)) is None:
                return deleted, key_ts(batch[0][0])
            deleted += done
        return deleted, limit

    def _delete_batch(self, batch: list[tuple[bytes, bytes]]) -> int | None:
        """Delete; None when there is no room to note which young commits these were."""
        oldest = compose(max(int(self._clock.now() * 1000) - YOUNGER_THAN_MS, 0))
        young = [unpack_pointer(value) for key, value in batch if key_ts(key) >= oldest]
        if young:
            # A key whose deletion was lost with the machine may point into a file that is gone: it was noted before.
            metas = [frame.read_meta(self._valuelog.read(p)) for p in young if p.fid >= self._valuelog.first_fid]
            if not self._collected.add([(m.start_ts, m.commit_ts) for m in metas if m.tp and m.commit_ts], oldest):
                return None
        return self._index.delete_unchanged(batch)
