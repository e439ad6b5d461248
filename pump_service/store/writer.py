"""Who writes the value log: group commit, answers after the sync, then the hand-over to the index (row P3).

Everything that waits goes into one write and one fdatasync; answers leave after that. One group is under way at a
time, and whoever has the write lock takes it from the queue: so the order of the queue is the order of the log.

The thread `pump-writer` can write anything. An event loop that has submitted something may write it on its own thread
instead (`Writer.write_here`): for a group of few calls, a change of thread costs more than everything else. It does so
only where that looks short: not for a large group or one that ends a file, not for the first of each half second (which
looks at the disk), and not while the disk is full or was slow a moment ago, the index has no room, or somebody has the
write lock or waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import structlog

from pump_service.store.appender import Appender
from pump_service.store.block import Block
from pump_service.store.disk import DiskGuard
from pump_service.store.groups import Done, Group, Request, RequestQueue, answer
from pump_service.store.records import Records
from pump_service.store.valuelog import Appended, ValueLog
from pump_service.store.writelock import WriteLock
from pumphouse.clock import Clock
from pumphouse.errors import WriterFailed

log = structlog.get_logger(__name__)

SAVE_SUMMARY_EVERY = 64 << 20
# A group that took longer than this is one of a disk where a change of thread is nothing. For so long every group is
# the thread's.
SLOW_S = 0.02
AWAY_S = 1.0
_SOON_S = 0.05


class HandOver(Protocol):
    """What comes behind the writer."""

    def ready(self) -> bool:
        """Whether `hand_over` will not wait."""
        ...

    def hand_over(self, block: Block) -> None:
        """Take durable records, in order."""
        ...


class Writer:
    """The queue, the write lock, and the thread that writes what nobody else does."""

    def __init__(
        self, *, valuelog: ValueLog, guard: DiskGuard, next_stage: HandOver, clock: Clock, group_bytes: int
    ) -> None:
        self._valuelog = valuelog
        self._appender = Appender(valuelog, guard)
        self._guard = guard
        self._next = next_stage
        self._clock = clock
        self._group_bytes = group_bytes
        self._thread = threading.Thread(target=self._run, name="pump-writer", daemon=True)
        self._calls: SimpleQueue[None] = SimpleQueue()
        # ---- any thread
        self.queue = RequestQueue()
        self._called = False  # the thread was told that something waits, and has not looked yet
        # ---- who has the lock
        self.lock = WriteLock()
        self._away_until = float("-inf")
        self._unsaved = 0
        self.groups = 0
        self.prewrites = 0  # written ones
        self.records = 0
        self.on_fault: Callable[[BaseException], None] = lambda _error: None
        self.on_written: Callable[[], None] = lambda: None  # after each group of which something was written

    # -- any thread ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    @property
    def failed(self) -> WriterFailed | None:
        """What ended writing in this process."""
        return self._appender.failed

    def submit(self, records: Records, done: Done, *, own: bool = False, here: bool = False) -> None:
        """Queue records; never blocks. ``done`` is called once, when they are durable, by the thread that wrote them.

        ``own``: outcomes that the store settles. They may use the bookkeeping's reserve: a prewrite without an outcome
        on file keeps every file behind it, and then a full disk would stay full.
        ``here``: the caller calls `write_here` next. If it does not, `stop` writes them.
        """
        if not self.queue.put(Request(records, done, own)):
            done([WriterFailed("the store is closing", hint="send it to another Pump")] * len(records))
        elif not here:
            self._call()

    def write_here(self) -> None:
        """Write what waits on the caller's thread where that is short; else the writer's thread does."""
        written = False
        try:
            if self.lock.try_for_group():
                try:
                    written = self._write_short()
                finally:
                    self.lock.release()
        finally:
            if not written:
                self._call()

    def try_lock(self) -> bool:
        """Take the write lock, on any thread; False where it is not free soon."""
        return self.lock.try_for(_SOON_S)

    def stop(self) -> None:
        """Write what is queued, then end."""
        self.queue.close()
        self._calls.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._calls.put(None)

    # -- the writer thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        closed = False
        while not closed:
            self._calls.get()
            self._called = False
            closed = self.queue.closed  # looked at before the queue, which nothing enters behind it
            more = True
            while more:
                self.lock.wait_for_group()
                try:
                    more = self._write_next()
                finally:
                    self.lock.release()

    # -- who has the write lock ----------------------------------------------------------------------------------------

    def _write_short(self) -> bool:
        """Write what waits. False, and nothing is written, where that may take long."""
        size = self.queue.bytes
        short = (
            self.queue.is_small(self._group_bytes)
            and self._clock.monotonic() >= self._away_until
            and self._unsaved + size < SAVE_SUMMARY_EVERY
            and size <= self._valuelog.room
            and self._guard.at_ease()
            and self._next.ready()
        )
        if short:
            self._write_next()
        return short

    def _write_next(self) -> bool:
        """Write and answer the next group; raises nothing. False: nothing waits."""
        group: Group = []
        try:
            stored = Appended()
            group = self.queue.take(self._group_bytes)
            if group:
                self._write(group, stored)
        except BaseException as error:  # noqa: BLE001 - reported, and it ends writing
            self._stopped_by(error)
        return bool(group)

    def _write(self, group: Group, stored: Appended) -> None:
        began = self._clock.monotonic()
        try:
            self._appender.append(group, stored)
        except BaseException as error:
            with contextlib.suppress(Exception):  # of a log
                self._appender.fail(error)
            raise
        finally:
            # Counted before the answer: who has it must find the prewrite among the unresolved.
            self.prewrites += stored.prewrites
            if (now := self._clock.monotonic()) - began > SLOW_S:
                self._away_until = now + AWAY_S
            answer(group)
        self.groups += 1
        if stored.blocks:
            self._next.hand_over(Block.concat(stored.blocks))  # at once: `ready` speaks for one
            self.on_written()
            self.records += stored.records
            self._unsaved += stored.bytes
        if self._unsaved >= SAVE_SUMMARY_EVERY:
            self._unsaved = 0
            self._valuelog.save_active_summary()

    def _stopped_by(self, error: BaseException) -> None:
        # A bug, not a disk: fail like a disk that cannot be trusted. What cannot be said keeps nobody from an answer.
        with contextlib.suppress(Exception):
            self._appender.fail(error)
        with contextlib.suppress(Exception):
            self.on_fault(error)
        with contextlib.suppress(Exception):
            log.error("writer_stopped", exc_info=error)
