"""From the value log to the index to the order of the stream: one thread, behind the writer (row P3).

For each group of records: late and orphan commits are noted durably, then the index is written, then the watermark is
published; so what a puller may see is indexed, and what the index has passed is noted. A LevelDB failure is tried again
each second; nothing behind it is published meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import structlog

from pump_service.store.block import Block, Entry
from pump_service.store.bookkeeping import Bookkeeping
from pump_service.store.collected import CollectedCommits
from pump_service.store.gc_rules import GcState
from pump_service.store.index import Index, IndexFailed
from pump_service.store.index_queue import IndexQueue
from pump_service.store.judge import Judge, Turn
from pump_service.store.order import NOTHING_KNOWN, Order
from pump_service.store.pending import PendingCommits
from pump_service.store.rows import Puts
from pump_service.store.unwritten import Unwritten
from pump_service.store.valuelog import ValueLog
from pumphouse.clock import Clock
from pumphouse.model.position import ZERO_POINTER, Pointer

log = structlog.get_logger(__name__)

T = TypeVar("T")

PERSIST_EVERY_S = 1.0


class Indexer:
    """Index, order and watermark. `process` runs in one thread: the opener's during recovery, then its own."""

    def __init__(
        self,
        *,
        order: Order,
        index: Index,
        valuelog: ValueLog,
        pending: PendingCommits,
        collected: CollectedCommits,
        gc: GcState,
        bookkeeping: Bookkeeping,
        clock: Clock,
        queue_records: int,
    ) -> None:
        self.waiting, self._recent = order
        self._index = index
        self._gc = gc
        self._bookkeeping = bookkeeping
        self._clock = clock
        self.queue = IndexQueue(queue_records)
        self.unwritten = Unwritten()
        self._judge = Judge(
            order=order, index=index, valuelog=valuelog, pending=pending, collected=collected,
            unwritten=self.unwritten, gc=gc, until_done=self._until_done,
        )  # fmt: skip
        self.replaying = True
        self._saved = self.waiting.position()
        self.watermark = self._saved[0]
        self._saved_at = clock.monotonic()
        self.indexed_end = ZERO_POINTER  # behind the last indexed record
        self.prewrites = 0  # indexed ones, since the threads run
        self._listeners: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-indexer", daemon=True)
        self.on_fault: Callable[[BaseException], None] = lambda _error: None

    @property
    def duplicates(self) -> int:
        """Commits that were in the stream already."""
        return self._judge.duplicates

    # -- life ----------------------------------------------------------------------------------------------------------

    def replayed(self, last: Pointer) -> None:
        """Everything that the value log has was processed: remember so. Raises IndexFailed."""
        self._index.write((), last)
        self.persist()

    def start(self) -> None:
        """Recovery is over: index what the writer hands over."""
        self.replaying = False
        self._thread.start()

    def stop(self) -> None:
        """Finish what is queued, persist the position, end the thread."""
        self._stop.set()
        self.queue.call(lambda: None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                work = self.queue.pop(PERSIST_EVERY_S)
                if work is None:
                    if self._stop.is_set():
                        break
                elif callable(work):
                    work()
                    if self._stop.is_set() and len(self.queue) == 0:
                        break
                else:
                    self.process(work)
                self._persist_sometimes()
            self.persist()
        except BaseException as error:
            self.on_fault(error)
            log.exception("indexer_stopped")

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this (from the indexer thread) whenever the watermark moved. It must not block."""
        self._listeners.append(listener)

    # -- records -------------------------------------------------------------------------------------------------------

    def process(self, records: Block | Sequence[Entry]) -> None:
        """Index records, pair them, publish the watermark."""
        block = records if isinstance(records, Block) else Block.of(records)
        for at in range(0, len(block), self._recent.most_at_once):
            self._process(block[at : at + self._recent.most_at_once])

    def _process(self, block: Block) -> None:
        turn = Turn(Puts(len(block)), self._clock.monotonic(), self.watermark, self.replaying)
        known = self._judge.known(block, replaying=True) if self.replaying else NOTHING_KNOWN
        looked = self.replaying
        row = 0
        while row < len(block):
            row = self.waiting.advance(
                block, row, self._recent, turn.puts,
                floor=max(self.watermark, self._gc.gc_point),
                orphans=self._judge.orphans(),
                known=known,
                running=self.replaying,
                careful=bool(self.unwritten),
                now=turn.now,
            )  # fmt: skip
            if row < len(block):
                entry = block[row]
                if not looked and self._judge.is_old(entry):
                    known, looked = self._judge.known(block[row:], replaying=False), True
                    continue
                self._judge.judge(entry, turn)
                row += 1
        self._judge.note(turn.noted)
        # A replay begins at the handle, which it moves at its end only: the head need not come along.
        head = None if self.replaying else block.last
        self._until_done(lambda: self._index.write(turn.puts, head))
        # Only now: a pull in between finds such an outcome in memory or in the index.
        for start, commit in turn.on_file:
            self.unwritten.is_on_file(start, commit)
        self.indexed_end = block.end
        if not self.replaying:
            self.prewrites += int(np.count_nonzero(block.tp == 0))
        self._publish()

    def _until_done(self, action: Callable[[], T]) -> T:
        """Nothing is published behind what could not be noted or indexed; a recovery, or a stop, gives up."""
        return self._bookkeeping.until_done(action, lambda: self.replaying or self._stop.is_set())

    # -- outcomes that cannot be written -------------------------------------------------------------------------------

    def remember(self, start_ts: int, commit_ts: int, payload: bytes) -> bool:
        """Indexer thread: go on with an outcome that is in memory only; a rollback has a commit ts of 0.

        False, and the prewrite stays open: the commit would be late, or have another one's commit ts. Such a commit is
        noted durably before anybody can see it, and that cannot be done in memory.
        """
        if not self.waiting.is_waiting(start_ts):
            return True
        if commit_ts and not self._judge.is_in_order(start_ts, commit_ts, self.watermark):
            return False
        self.unwritten.add(start_ts, commit_ts, payload)
        self.waiting.resolve(start_ts)
        self.waiting.passed(commit_ts, None)
        self._publish()
        return True

    def remember_fake(self, ts: int) -> None:
        """Indexer thread: move the watermark by a fake that is on no file."""
        self.waiting.passed(ts, None)
        self._publish()

    def lowest_unsettled(self) -> int | None:
        """Smallest start ts whose outcome is not on disk: of prewrites without one, and of those kept in memory."""
        lowest = [self.waiting.min_start(), self.unwritten.lowest()]  # in this order: it goes from one to the other
        return min((ts for ts in lowest if ts is not None), default=None)

    # -- position ------------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        watermark, _ = self.waiting.position()
        if watermark > self.watermark:
            self.watermark = watermark
            for listener in self._listeners:
                listener()

    def _persist_sometimes(self) -> None:
        now = self._clock.monotonic()
        if now - self._saved_at >= PERSIST_EVERY_S:
            self._saved_at = now
            self.persist()

    def persist(self) -> None:
        """Save watermark and handle pointer. Not while an outcome is in memory only: its prewrite must be met again."""
        position = self.waiting.position()
        if self.unwritten or position == self._saved:
            return
        try:
            self._index.save_position(*position)
            self._saved = position
        except IndexFailed as error:
            if self.replaying:
                raise  # the reserve is not counted yet: `Store.open` gives it back
            log.warning("position_not_saved", error=str(error))
            self._bookkeeping.mend(error)
