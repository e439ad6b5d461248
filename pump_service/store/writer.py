"""Who writes the value log: group commit, answers after the sync, then the hand-over to the index.

Whatever waits goes into one write and one fdatasync (row P3). An answer leaves only after that. There is one thread for
it; beside an event loop that has what `inline` leaves to it. The thread also decides what a failure means: no space is
a state that ends by itself; a failed sync, or any other failed write, ends writing in this process for good, because
what the medium holds is unknown from then on (row P15).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
import structlog

from pump_service.store.block import I64, Block
from pump_service.store.disk import DiskGuard
from pump_service.store.fs import Syncs
from pump_service.store.inline import Inline
from pump_service.store.logfile import NO_SPACE, SyncFailed
from pump_service.store.records import Item, Records
from pump_service.store.valuelog import Appended, Begun, ValueLog
from pump_service.store.writelock import WriteLock
from pumphouse.clock import Clock
from pumphouse.errors import BinlogError, PumpReadOnly, WriterFailed
from pumphouse.model.position import Pointer

log = structlog.get_logger(__name__)

SAVE_SUMMARY_EVERY = 64 << 20
# Payload bytes of a group for which a change of thread is dearer than that the event loop does its work meanwhile.
INLINE_BYTES = 512 << 10
# And the requests, each of which costs more than its rows.
INLINE_REQUESTS = 64
_SOON_S = 0.05

Status = BinlogError | None
Done = Callable[[list[Status]], None]
# None = every record is durable, else one status a record.
BlockDone = Callable[[list[Status] | None], None]


class HandOver(Protocol):
    """What comes behind the writer."""

    def ready(self) -> bool:
        """Whether `hand_over` will not wait."""
        ...

    def hand_over(self, block: Block) -> None:
        """Take durable records, in order."""
        ...


@dataclass(slots=True)
class _Request:
    records: Records
    done: BlockDone
    bytes: int
    own: bool = False
    durable: bool = False  # all of it
    statuses: list[Status] | None = None  # where not all rows went the same way: None = durable

    def set(self, rows: I64, status: Status) -> None:
        if status is None and len(rows) == len(self.records):
            self.durable = True
            return
        if self.statuses is None:
            self.statuses = [_NOT_WRITTEN] * len(self.records)
        for row in rows.tolist():
            self.statuses[row] = status

    def outcome(self) -> list[Status] | None:
        """Durable is only what an append reported: a row of which nothing was said was not written."""
        if self.durable or not len(self.records):
            return None
        if self.statuses is None:
            return [_NOT_WRITTEN] * len(self.records)
        return self.statuses if any(status is not None for status in self.statuses) else None


_NOT_WRITTEN = WriterFailed("the writer ended before this was written", hint="restart the Pump")


class _Stop:
    """The last of the queue."""


# Rows of requests that are still to be written, in order.
_Left = list[tuple[_Request, I64]]
_Group = list[_Request]


class Writer:
    """Queue and thread."""

    def __init__(
        self, *, valuelog: ValueLog, guard: DiskGuard, next_stage: HandOver, clock: Clock, group_bytes: int
    ) -> None:
        self._valuelog = valuelog
        self._guard = guard
        self._next = next_stage
        self._clock = clock
        self._group_bytes = group_bytes
        # An Inline among them: from there on the queue is its.
        self._queue: SimpleQueue[_Request | Inline[_Group] | _Stop] = SimpleQueue()
        # Taken, but none of the last group. Of whoever has the queue.
        self._put_back: _Request | Inline[_Group] | _Stop | None = None
        self._inline: Inline[_Group] | None = None
        self._lent: Inline[_Group] | None = None  # who has the queue; of the writer thread
        self._stopping = False
        self._unsaved = 0
        # Something may lie behind the last good record: a group that was begun, and is to be written again or refused.
        self._left_behind = False
        self._taken_bytes = 0
        self._submitted_bytes = 0
        self._submitting = threading.Lock()
        self.lock = WriteLock()
        self.failed: WriterFailed | None = None
        self.refused = 0
        self.groups = 0
        self.prewrites = 0  # written ones
        self.records = 0
        self._thread = threading.Thread(target=self._run, name="pump-writer", daemon=True)
        self.on_fault: Callable[[BaseException], None] = lambda _error: None
        self.on_written: Callable[[], None] = lambda: None  # after each group of which something was written

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def attach(self, syncs: Syncs) -> None:
        """From now on the thread of ``syncs`` has the queue, and writes what `inline` says."""
        with self._submitting:
            if self._stopping or self._inline is not None:
                return
            self._inline = Inline(self, syncs, self._clock)
            self._queue.put(self._inline)

    def stop(self) -> None:
        """Write what is queued, then end. Not on the thread of `attach`, which the group under way needs."""
        self.refuse_loop()
        with self._submitting:
            self._stopping = True
            self._queue.put(_Stop())
        inline = self._inline
        if inline is not None and not inline.look():
            self._loop_ended(inline)
        if self._thread.is_alive():
            self._thread.join()

    def refuse_loop(self) -> None:
        """RuntimeError on the thread of `attach`: what waits for the last groups must not be what they wait for."""
        if self._inline is not None and self._inline.here and self._thread.is_alive():
            raise RuntimeError("stopped on the event loop's thread, which its last groups need")

    def try_lock(self) -> bool:
        """Take the write lock, on any thread; False where it is not free soon, or is that of a group of the loop's."""
        waits = self._inline is None or not self._inline.under_way
        return self.lock.try_for(_SOON_S if waits else 0)

    def _loop_ended(self, inline: Inline[_Group]) -> None:
        """The loop is gone, which should have outlived the store: the queue is the thread's again."""
        if inline.give_back_all():
            # Its group may be durable or not, and nothing may follow it: the thread refuses it and all behind it.
            self._fail(RuntimeError("the event loop ended while a group was written"))
            self.lock.release()

    @property
    def backlog_bytes(self) -> int:
        """Payload bytes that wait to be written."""
        return self._submitted_bytes - self._taken_bytes

    def submit(self, items: Sequence[Item], done: Done, *, own: bool = False) -> None:
        """Queue items; never blocks. ``done`` gets one status an item, from the thread that wrote them.

        ``own``: outcomes that the store settles. They may use the bookkeeping's reserve: a prewrite without an outcome
        on file keeps every file behind it, and then a full disk would stay full.
        """
        self.submit_records(Records.of(items), lambda statuses: done(statuses or [None] * len(items)), own=own)

    def submit_records(self, records: Records, done: BlockDone, *, own: bool = False) -> None:
        """Queue records; never blocks. ``done`` is called once, when they are durable, from the thread that wrote them.

        That is never in this call, but may be on this thread, where it is that of `attach`. What comes when that loop
        has ended, which it should not before the store is closed, is written by `stop`.
        """
        size = records.bytes
        with self._submitting:
            stopping, inline = self._stopping, self._inline
            if not stopping:
                self._submitted_bytes += size
                self._queue.put(_Request(records, done, size, own))
        if stopping:
            done([WriterFailed("the store is closing", hint="send it to another Pump")] * len(records))
        elif inline is not None:
            inline.look()

    def _run(self) -> None:
        while (group := self._next_group()) is not None:
            while group is not None:  # none while it waits: the buffers of the last are answered
                try:
                    self._write_group(group)
                except BaseException as error:  # noqa: BLE001 - reported, and it ends writing
                    self._stopped_by(error)
                group = self._another()

    def _another(self) -> _Group | None:
        """Beside a loop: the next group, where that would only hand it over again."""
        if self._lent is None:
            return None
        group = self.next_waiting()
        if group is None:
            self._lent.done()
            return None
        return None if _small(group) and self._lent.take_back(group) else group

    def _stopped_by(self, error: BaseException) -> None:
        # A bug, not a disk: fail like a disk that cannot be trusted. Said last: nothing may depend on a log.
        try:
            self._fail(error)
        finally:
            self.on_fault(error)
        log.error("writer_stopped", exc_info=error)

    def _next_group(self) -> _Group | None:
        """What this thread has to write next; None when it is time to end."""
        while True:
            if self._lent is not None:
                group = self._lent.handed.get()
                if group is not None:
                    return group
                self._lent = None
            first, self._put_back = self._put_back, None
            if first is None:
                first = self._queue.get()
            if isinstance(first, _Request):
                return self._group_of(first)
            if isinstance(first, _Stop):
                return None
            if first.lend():
                self._lent = first

    def next_waiting(self) -> _Group | None:
        """What is to be written next, for whoever has the queue; gives it back where it is time to end."""
        first, self._put_back = self._put_back, None
        if first is None:
            try:
                first = self._queue.get_nowait()
            except Empty:
                return None
        if isinstance(first, _Request):
            return self._group_of(first)
        self._put_back = first
        if self._inline is not None:
            self._inline.give_back()
        return None

    def _group_of(self, first: _Request) -> _Group:
        """Everything that waits, up to the bytes of a group."""
        group, size = [first], first.bytes
        while size < self._group_bytes:
            try:
                request = self._queue.get_nowait()
            except Empty:
                break
            if not isinstance(request, _Request) or size + request.bytes > self._group_bytes:
                self._put_back = request
                break
            group.append(request)
            size += request.bytes
        self._taken_bytes += size
        return group

    def begin(self, group: _Group, syncs: Syncs, ended: Callable[[bool], None]) -> bool:
        """Write a group on the thread of ``syncs``, where nothing can be in the way and nothing blocks for long.

        False, and nothing is answered, where it must be the writer thread. Else ``ended`` is called on this thread
        after the sync: whether the group was answered; if not, writing has failed and the writer thread is to say so.
        """
        size = sum(request.bytes for request in group)
        if (
            not _small(group)
            or self.failed is not None
            or self._unsaved + size >= SAVE_SUMMARY_EVERY
            or not self._guard.at_ease()
            or not self.lock.try_for_group()
        ):
            return False
        begun = False
        try:
            if self._next.ready():
                self._left_behind = True
                written = self._valuelog.begin([request.records for request in group if len(request.records)])
                self._left_behind = written is not None
                if written is not None:
                    done = partial(self._synced, group, written, ended)
                    begun = written.file.handle.begin_sync(syncs, done)
                    if not begun and self._inline is not None:
                        self._inline.stay_away()  # or each group would be written twice
        except OSError as error:
            if error.errno not in NO_SPACE:  # of a full disk the thread takes care, and writes it again
                self._fail(error)
        except BaseException as error:  # noqa: BLE001 - reported, and it ends writing
            self._stopped_by(error)
        finally:
            if not begun:
                self.lock.release()
        return begun

    def _synced(self, group: _Group, written: Begun, ended: Callable[[bool], None], error: OSError | None) -> None:
        answered = False
        try:
            if error is not None:
                self._fail(error)
                return
            stored = self._valuelog.finish(written)
            self._left_behind = False
            for request in group:
                request.durable = True
            self.prewrites += stored.prewrites  # before the answer, as in `_write_group`
            answered = True
            _answer(group)
            if stored.blocks:
                self._next.hand_over(Block.concat(stored.blocks))  # at once: `ready` spoke for one
            self._after(stored)
        except BaseException as fault:  # noqa: BLE001 - reported, and it ends writing
            self._stopped_by(fault)
        finally:
            self.lock.release()
            ended(answered)

    def _write_group(self, group: _Group) -> None:
        with self.lock:
            stored = Appended()
            try:
                self._store(group, stored)
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                # Counted before the answer: who has it must find the prewrite among the unresolved.
                self.prewrites += stored.prewrites
                _answer(group)
            for block in stored.blocks:
                self._next.hand_over(block)
        self._after(stored)
        if self._unsaved >= SAVE_SUMMARY_EVERY:
            self._unsaved = 0
            self._valuelog.save_active_summary()

    def _after(self, stored: Appended) -> None:
        self.groups += 1
        if stored.blocks:
            self.on_written()
            self.records += stored.records
            self._unsaved += stored.bytes

    def _store(self, group: _Group, stored: Appended) -> None:
        """Append what may be appended, and say so in ``stored``; sets all statuses that are known."""
        left: _Left = [(request, np.arange(len(request.records))) for request in group if len(request.records)]
        if self.failed is None and self._left_behind:
            # What is refused now must not be found later, and a footer does not go over it.
            self._cut()
        if self.failed is not None:
            _set(left, self.failed)
            return
        if self._guard.left_to_bookkeeping():
            left = self._only_own(left)
        if self._guard.read_only():
            left = self._refuse_prewrites(left)
        for attempt in (1, 2, 3):
            if not left:
                return
            appended = self._valuelog.append([_take(request.records, rows) for request, rows in left])
            stored.add(appended)
            left = _written(left, appended.records)
            if appended.error is None:
                return
            if not self._survives(appended.error):
                if self.failed is not None:
                    _set(left, self.failed)
                return
            left = self._after_full(attempt, self._refuse_prewrites(left))

    def _survives(self, error: OSError) -> bool:
        """Whether a failed append leaves the log as it was: only a full disk does, and only when the cut works."""
        if error.errno in NO_SPACE and not isinstance(error, SyncFailed):
            self._cut()
        else:
            self._fail(error)
        return self.failed is None

    def _cut(self) -> None:
        try:
            self._valuelog.cut_partial()
        except OSError as error:
            self._fail(error)
        else:
            self._left_behind = False

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            path = str(getattr(error, "filename", None) or "value log")
            self.failed = WriterFailed(
                f"writing failed and this process writes no more: {error!r}",
                hint="check the disk, then restart the Pump",
                path=path,
            )
            log.error("writer_failed", error=repr(error))

    def _after_full(self, attempt: int, left: _Left) -> _Left:
        """What may be tried once more on a full disk: first everything, then what may use the other reserve."""
        if attempt == 1 and self._guard.went_full():
            return left
        left = self._only_own(left)
        if attempt <= 2 and left and self._guard.make_room():
            return left
        self._refuse(left)
        return []

    def _only_own(self, left: _Left) -> _Left:
        self._refuse([each for each in left if not each[0].own])
        return [each for each in left if each[0].own]

    def _refuse_prewrites(self, left: _Left) -> _Left:
        split = [(request, rows, request.records.columns.tp[rows] == 0) for request, rows in left]
        self._refuse([(request, rows[prewrite]) for request, rows, prewrite in split])
        kept = [(request, rows[~prewrite]) for request, rows, prewrite in split]
        return [(request, rows) for request, rows in kept if len(rows)]

    def _refuse(self, which: _Left) -> None:
        count = sum(len(rows) for _, rows in which)
        if not count:
            return
        self.refused += count
        available = self._guard.available()
        error = PumpReadOnly(
            f"no available space, available: {available}, StopWriteAtAvailableSpace: {self._guard.stop_at}",
            available=available,
            limit=self._guard.stop_at,
        )
        _set(which, error)

    def synced_end(self) -> Pointer:
        """End of what is durable."""
        return self._valuelog.end


def _small(group: _Group) -> bool:
    return len(group) <= INLINE_REQUESTS and sum(request.bytes for request in group) <= INLINE_BYTES


def _take(records: Records, rows: I64) -> Records:
    return records if len(rows) == len(records) else records.take(rows)


def _written(left: _Left, count: int) -> _Left:
    """The first ``count`` rows are durable; returns what is left."""
    rest = []
    for request, rows in left:
        if count:
            request.set(rows[:count], None)
        if count < len(rows):
            rest.append((request, rows[count:]))
        count = max(count - len(rows), 0)
    return rest


def _set(which: _Left, error: BinlogError) -> None:
    for request, rows in which:
        request.set(rows, error)


def _answer(group: _Group) -> None:
    failed: list[BaseException] = []
    for request in group:
        try:
            request.done(request.outcome())
        except BaseException as error:  # noqa: BLE001
            # The caller's loop may be gone; the others must have their answers, whatever becomes of the log.
            failed.append(error)
    for each in failed:
        log.error("answer_failed", exc_info=each)
