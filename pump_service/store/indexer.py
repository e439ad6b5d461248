"""From the value log to the index to the order of the stream: one thread, behind the writer (row P3).

For each group of records: late and orphan commits are noted durably, then the index is written, then the watermark is
published; so what a puller may see is indexed, and what the index has passed is noted. A LevelDB failure is tried again
each second; nothing behind it is published meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import structlog

from pump_service.store import frame
from pump_service.store.block import I64, Block, Entry
from pump_service.store.collected import CollectedCommits
from pump_service.store.disk import is_full
from pump_service.store.index import Index, IndexFailed
from pump_service.store.order import NOBODY, NOTHING_KNOWN, Known, Recent, Waiting
from pump_service.store.pending import PendingCommit, PendingCommits
from pump_service.store.rows import Puts
from pump_service.store.valuelog import ValueLog
from pumphouse.clock import Clock
from pumphouse.model.position import ZERO_POINTER, Pointer
from pumphouse.model.tso import Tso

log = structlog.get_logger(__name__)

PERSIST_EVERY_S = 1.0
LOGGED_AT_ONCE = 10
RETRY_S = 1.0

# How long records may wait for more to be indexed together, and how many are enough. Only pullers wait for it.
LINGER_S = 0.02
# When so many have come by then, the writer is busy, and each wake-up here costs it a wait for the interpreter.
MANY_RECORDS = 256
LINGER_MORE_S = 0.03
_ENOUGH_RECORDS = 4096
# Most records that are indexed at once, however many wait.
_AT_ONCE = 1 << 16
# Most entries of the index that are read for a block that is met again.
_KNOWN_AT_ONCE = 1 << 18

Work = Block | Callable[[], None]


class IndexQueue:
    """Bounded hand-over between writer (or chaser) and indexer, counted in records."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: deque[Work] = deque()
        self._records = 0
        self._urgent = False  # something waits that is not to linger
        self._idle = False  # the indexer sleeps until the first record comes
        self._changed = threading.Condition()

    def push(self, block: Block, timeout: float | None) -> bool:
        """Hand over records; False when there was no room for that long. ``None`` waits for ever."""
        with self._changed:
            if self._records >= self._limit:
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._records < self._limit, timeout):
                    return False
            self._work.append(block)
            self._records += len(block)
            if self._idle or self._records >= min(_ENOUGH_RECORDS, self._limit):
                self._changed.notify_all()
            return True

    def has_room(self) -> bool:
        """Whether the next `push` will not wait, when nobody else pushes meanwhile."""
        return self._records < self._limit

    def call(self, action: Callable[[], None]) -> None:
        """Run something in the indexer thread, behind what is queued."""
        with self._changed:
            self._work.append(action)
            self._urgent = True
            self._changed.notify_all()

    def pop(self, timeout: float) -> Work | None:
        """Next piece of work, None after the timeout. Records that follow each other come together."""
        with self._changed:
            if not self._work:
                self._idle = True
                came = self._changed.wait_for(lambda: self._work, timeout)
                self._idle = False
                if not came:
                    return None
            self._linger(LINGER_S)
            if self._records >= MANY_RECORDS:
                self._linger(LINGER_MORE_S)
            work = self._work.popleft()
            if isinstance(work, Block):
                blocks = [work]
                count = len(work)
                while self._work and isinstance(more := self._work[0], Block) and count + len(more) <= _AT_ONCE:
                    blocks.append(more)
                    count += len(more)
                    self._work.popleft()
                self._records -= count
                work = Block.concat(blocks)
            if not self._work:
                self._urgent = False
            self._changed.notify_all()
            return work

    def _linger(self, seconds: float) -> None:
        if not self._urgent and self._records < min(_ENOUGH_RECORDS, self._limit):
            self._changed.wait(seconds)

    def __len__(self) -> int:
        return self._records


@dataclass(slots=True)
class _Turn:
    """What the records of one call of `Indexer.process` come to."""

    puts: Puts
    now: float
    noted: list[PendingCommit] = field(default_factory=list)
    on_file: list[tuple[int, int]] = field(default_factory=list)  # (start ts, commit ts) that were in memory only


class Indexer:
    """Index, pairing and watermark. `process` runs in one thread: the opener's during recovery, then its own."""

    def __init__(
        self,
        *,
        index: Index,
        valuelog: ValueLog,
        pending: PendingCommits,
        collected: CollectedCommits,
        clock: Clock,
        queue_records: int,
        gc_point: Callable[[], int],
        judged_end: Pointer,
    ) -> None:
        self._index = index
        self._valuelog = valuelog
        self._pending = pending
        self._collected = collected
        self._clock = clock
        self._gc_point = gc_point
        self._judged_end = judged_end  # of `gc.GcState`, as it is while the value log is read again
        self.queue = IndexQueue(queue_records)
        self.lock = threading.Lock()  # index keys: this thread's puts against GC's deletes
        saved = index.positions()
        self.pairing = Waiting(saved.watermark, saved.handle)
        self._recent = Recent(index.last_ts())
        self.watermark = Tso(saved.watermark)
        self.indexed_end = ZERO_POINTER  # behind the last indexed record
        self.duplicates = 0
        self.prewrites = 0  # indexed ones, since the threads run
        self.failures = 0
        self.memory: dict[int, tuple[int, bytes]] = {}  # commit ts -> (start ts, bare commit), not on file
        self.memory_starts: set[int] = set()  # prewrites whose outcome is in memory only
        self._replaying = True
        self._saved: tuple[int, Pointer] = (self.watermark, saved.handle)
        self._saved_at = clock.monotonic()
        self._listeners: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-indexer", daemon=True)
        self.on_fault: Callable[[BaseException], None] = lambda _error: None
        self.make_room: Callable[[], bool] = lambda: False  # on a full disk: the reserve for bookkeeping

    # -- life ----------------------------------------------------------------------------------------------------------

    def replayed(self, last: Pointer) -> None:
        """Everything that the value log has was processed: remember so. Raises IndexFailed."""
        with self.lock:
            self._index.write((), last)
        self.persist()

    def start(self) -> None:
        """Recovery is over: index what the writer hands over."""
        self._replaying = False
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
        turn = _Turn(Puts(len(block)), self._clock.monotonic())
        known = self._known(block) if self._replaying else NOTHING_KNOWN
        row = 0
        while row < len(block):
            row = self.pairing.advance(
                block, row, self._recent, turn.puts,
                floor=max(self.watermark, self._gc_point()),
                orphans=self._orphans(),
                known=known,
                running=self._replaying,
                careful=bool(self.memory or self.memory_starts),
                now=turn.now,
            )  # fmt: skip
            if row < len(block):
                self._judge(block[row], turn)
                row += 1
        self._note(turn.noted)
        self._until_done(lambda: self._write(turn.puts, block.last))
        # Only now: a pull in between finds such a commit in memory or in the index.
        for start, commit in turn.on_file:
            self.memory.pop(commit, None)
            self.memory_starts.discard(start)
        self.indexed_end = block.end
        if not self._replaying:
            self.prewrites += int(np.count_nonzero(block.tp == 0))
        self._publish()

    def _orphans(self) -> I64:
        if not self._pending or not self._pending.has_orphans():
            return NOBODY
        return np.array(sorted({item.start_ts for item in self._pending.all() if item.orphan}), np.int64)

    def _known(self, block: Block) -> Known:
        """What the index has of a block's commits: nearly all of them are met again."""
        old = block.commit_ts[(block.tp != 0) & (block.commit_ts > 0) & (block.commit_ts <= self._recent.floor)]
        if not len(old):
            return NOTHING_KNOWN
        above, upto = int(old.min()) - 1, int(old.max())
        columns = self._index.columns(above, upto, _KNOWN_AT_ONCE)
        if len(columns[0]) == _KNOWN_AT_ONCE:
            upto = int(columns[0][-1])
        return Known.of(columns, above, upto)

    def _judge(self, entry: Entry, turn: _Turn) -> None:
        """One record by itself: what `pairing.advance` does, and all that it leaves."""
        start, commit = entry.start_ts, entry.commit_ts
        pointer = Pointer(entry.fid, entry.offset)
        if start == 0 and commit == 0:
            return  # an empty binlog, as the Go Pump may have stored one
        if entry.tp == 0:
            if self._pending and self._pending.has_orphans():
                self._until_done(partial(self._pending.heal, start))
            self.pairing.prewrite(start, pointer, turn.now)
            self._put(start, pointer, turn)
        elif start == commit:
            self._put(commit, pointer, turn)
            self.pairing.passed(commit, pointer)
        elif commit == 0:
            turn.on_file.append((start, 0))
            self.pairing.resolve(start)
            self.pairing.passed(0, pointer)
            self._put(0, pointer, turn)
        else:
            if self.memory and self.memory.get(commit, (None,))[0] == start:
                turn.on_file.append((start, commit))
            self._commit(start, commit, pointer, turn)

    def _commit(self, start: int, commit: int, pointer: Pointer, turn: _Turn) -> None:
        # What the process before has published is saved once a second only. In a replay it may have been up to where
        # the records before this one come to; no commit of a good writer lies there, because its prewrite still waits.
        published = max(self.watermark, self.pairing.position()[0]) if self._replaying else self.watermark
        waited = self.pairing.resolve(start)
        in_memory = bool(self.memory) and self.memory.get(commit, (None,))[0] == start
        collides = False
        prior = self._pointer_of(commit)
        if prior == pointer:
            # Met again after a restart: it was judged when it came first.
            self.pairing.passed(commit, pointer)
            return
        if prior is not None:
            if self._is_commit_of(prior, start):
                self.duplicates += 1
                self.pairing.passed(0, pointer)
                return
            collides = True
        if commit <= self._gc_point() and (start, commit) in self._collected:
            self.duplicates += 1
            self.pairing.passed(0, pointer)
            return
        # Under 0 the index has rollbacks. A commit of 0 is refused now; a log of another writer may have one.
        orphan = not waited and (start == 0 or self._pointer_of(start) is None)
        if self._replaying and not waited and commit <= self._gc_point():
            if pointer >= self._judged_end:
                # GC frees no prewrite before its commit was judged, so it took none from this one. The GC point had
                # been published when it came, be it by a fake that is on no file.
                published = max(published, Tso(self._gc_point()))
            elif orphan and not self._pending.knows(start, commit):
                # Collected: consumers have it, its prewrite went with its file. Its own key did not have to go: it may
                # lie above what was deleted. A repeat must find it as it would have before the index was lost.
                if not collides:
                    self._put(commit, pointer, turn)
                self.pairing.passed(0, pointer)
                return
        late = (commit <= published and not in_memory) or collides
        if (late or orphan) and not self._pending.knows(start, commit):
            turn.noted.append(
                PendingCommit(
                    start_ts=start,
                    commit_ts=commit,
                    fid=pointer.fid,
                    offset=pointer.offset,
                    late=late,
                    orphan=orphan,
                    watermark=published,
                )
            )
        if not collides:
            self._put(commit, pointer, turn)
        self.pairing.passed(commit, pointer)

    def _put(self, ts: int, pointer: Pointer, turn: _Turn) -> None:
        turn.puts.add(ts, pointer)
        if ts:
            self._recent.remember(ts, pointer)

    def _note(self, noted: list[PendingCommit]) -> None:
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

    def _pointer_of(self, ts: int) -> Pointer | None:
        found = self._recent.recall(ts)
        if found is None and not self._recent.knows_all_at(ts):
            found = self._look_up(ts)
        # A key whose deletion was lost with the machine may point into a file that GC had removed.
        return found if found is not None and found.fid >= self._valuelog.first_fid else None

    def _look_up(self, ts: int) -> Pointer | None:
        found: list[Pointer | None] = []
        self._until_done(lambda: found.append(self._index.get(ts)))
        return found[0]

    def _is_commit_of(self, pointer: Pointer, start_ts: int) -> bool:
        meta = frame.read_meta(self._valuelog.read(pointer))
        return meta.tp != 0 and meta.start_ts == start_ts

    def _write(self, puts: Puts, head: Pointer) -> None:
        with self.lock:
            # A replay begins at the handle, which it moves at its end only: the head need not come along.
            self._index.write(puts, None if self._replaying else head)

    def _until_done(self, action: Callable[[], None]) -> None:
        """Bookkeeping must not be left out: try again until it works, publish nothing meanwhile."""
        while True:
            try:
                action()
            except (IndexFailed, OSError) as error:
                self.failures += 1
                log.exception("indexing_failed", error=str(error))
                if self._replaying or self._stop.is_set():
                    raise
                if not (is_full(error) and self.make_room()):
                    self._clock.sleep(RETRY_S)
                if isinstance(error, IndexFailed):
                    self.reopen()
            else:
                return

    def reopen(self) -> None:
        """Any thread: LevelDB takes nothing more after a failed write until it is opened again.

        Opening writes too. While it is closed its errors do not say any more that the disk is full: room is made here.
        """
        while True:
            try:
                with self.lock:
                    self._index.reopen()
            except IndexFailed as error:
                log.warning("index_not_reopened", error=str(error))
                if is_full(error) and self.make_room():
                    continue
            return

    # -- outcomes that cannot be written -------------------------------------------------------------------------------

    def remember_commit(self, start_ts: int, commit_ts: int, payload: bytes) -> None:
        """Indexer thread: serve a commit that is in memory only; it is asked for again after a restart."""
        if not self.pairing.is_waiting(start_ts):
            return
        self.memory_starts.add(start_ts)
        self.memory[commit_ts] = (start_ts, payload)
        self.pairing.resolve(start_ts)
        self.pairing.passed(commit_ts, None)
        self._publish()

    def remember_rollback(self, start_ts: int) -> None:
        """Indexer thread: go on without a prewrite whose rollback is in memory only."""
        if self.pairing.is_waiting(start_ts):
            self.memory_starts.add(start_ts)
            self.pairing.resolve(start_ts)
            self._publish()

    def remember_fake(self, ts: int) -> None:
        """Indexer thread: move the watermark by a fake that is on no file."""
        self.pairing.passed(ts, None)
        self._publish()

    # -- position ------------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        watermark, _ = self.pairing.position()
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
        position = self.pairing.position()
        if self.memory_starts or position == self._saved:
            return
        try:
            with self.lock:
                self._index.save_position(*position)
            self._saved = position
        except IndexFailed as error:
            self.failures += 1
            log.warning("position_not_saved", error=str(error))
            if is_full(error):
                self.make_room()
            self.reopen()

    def handle(self) -> Pointer:
        """Pointer of the last record that was passed in order and persisted as such."""
        return self._saved[1]
