"""Who writes the value log: group commit, answers after the sync, then the hand-over to the index (row P3).

Everything that waits goes into one write and one fdatasync; answers leave after that. One group is under way at a
time. One thread, the *owner*, decides what becomes of each: it takes the group from the queue, writes it itself or
gives it to the writer thread, and takes the next when this one is answered.

The owner is the event loop, where there is one that learns of the end of an fdatasync (`fs.Syncs`): for a group of few
calls, a change of thread costs more than everything else. The loop writes a group itself when it is small and nothing
can be in the way: into the page cache at once, then the sync, for which nothing waits; at its end the answers and the
hand-over. Every other group is the thread's: a large one, one that ends a file, the first of each half second (which
looks at the disk), all of them while the disk is full or slow, the index has no room, somebody has the write lock, or a
write has failed. So whatever may wait long, and whatever answers for failures, is on the thread. Without such a loop
the thread is its own owner.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Protocol

import structlog

from pump_service.store.appender import Appender
from pump_service.store.block import Block
from pump_service.store.disk import NO_SPACE, DiskGuard
from pump_service.store.fs import Syncs
from pump_service.store.groups import Done, Group, Request, RequestQueue, answer, is_small, size_of
from pump_service.store.records import Records
from pump_service.store.valuelog import Appended, Begun, ValueLog
from pump_service.store.writelock import WriteLock
from pumphouse.clock import Clock
from pumphouse.errors import WriterFailed

log = structlog.get_logger(__name__)

SAVE_SUMMARY_EVERY = 64 << 20
# A sync that took longer than this is a disk on which a write into the page cache may wait as well, and where a change
# of thread is nothing. For so long every group is the thread's.
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


class _Thread:
    """Runs what it is given, one after the other."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pump-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def mine(self) -> bool:
        """Whether the caller is it."""
        return threading.get_ident() == self._thread.ident

    def call(self, action: Callable[[], None]) -> bool:
        """Run something soon."""
        self._work.put(action)
        return True

    def end(self) -> None:
        """Nothing more comes."""
        self._work.put(None)

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while (action := self._work.get()) is not None:
            action()
            action = None  # the buffers of a group are answered


class Writer:
    """The queue, and the one group that is under way. What is said to be the owner's is done on its thread alone."""

    def __init__(
        self,
        *,
        valuelog: ValueLog,
        guard: DiskGuard,
        next_stage: HandOver,
        clock: Clock,
        group_bytes: int,
        syncs: Syncs | None = None,
    ) -> None:
        self._valuelog = valuelog
        self._appender = Appender(valuelog, guard)
        self._guard = guard
        self._next = next_stage
        self._clock = clock
        self._group_bytes = group_bytes
        self._thread = _Thread()
        self._syncs = syncs
        self._owner: _Thread | Syncs = self._thread if syncs is None else syncs
        # ---- any thread
        self.queue = RequestQueue()
        self._asked = False  # the owner was told that something waits, and has not looked yet
        # ---- the owner's
        self.busy = False  # a group is under way, here or on the thread
        self._under_way: Group | None = None  # here, until its sync ends
        self._began = 0.0
        self._away_until = float("-inf")
        self._ending = False
        # ---- who writes
        self._unsaved = 0
        self.lock = WriteLock()
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

    def submit(self, records: Records, done: Done, *, own: bool = False) -> None:
        """Queue records; never blocks. ``done`` is called once, when they are durable, from the thread that wrote them.

        That is never in this call, but may be on this thread, where it is the owner's. What comes when its event loop
        has ended, which it should not before the store is closed, is written by `stop`.

        ``own``: outcomes that the store settles. They may use the bookkeeping's reserve: a prewrite without an outcome
        on file keeps every file behind it, and then a full disk would stay full.
        """
        if not self.queue.put(Request(records, done, own)):
            done([WriterFailed("the store is closing", hint="send it to another Pump")] * len(records))
        elif self._owner.mine():
            self._step()
        elif not self._asked:
            self._asked = True
            self._owner.call(self._step)

    def try_lock(self) -> bool:
        """Take the write lock, on any thread; False where it is not free soon, or is that of a group of the loop's."""
        return self.lock.try_for(_SOON_S if self._under_way is None else 0)

    def refuse_loop(self) -> None:
        """RuntimeError on the event loop's thread: what waits for the last groups must not be what they wait for."""
        if self._syncs is not None and self._syncs.mine() and self._thread.runs:
            raise RuntimeError("stopped on the event loop's thread, which its last groups need")

    def stop(self) -> None:
        """Write what is queued, then end. Not on the event loop's thread, which the group under way needs."""
        self.refuse_loop()
        self.queue.close()
        if not self._owner.call(self._end):
            self._loop_ended()
        self._thread.join()

    def _loop_ended(self) -> None:
        """The loop is gone, which should have outlived the store: the thread is the owner from here on."""
        group = self._under_way
        if group is not None:
            # It may be durable or not, and nothing may follow it: it is refused, and all behind it.
            self._appender.fail(RuntimeError("the event loop ended while a group was written"))
            self.lock.release()
        self._owner, self._syncs = self._thread, None
        self._thread.call(partial(self._take_over, group))

    def _take_over(self, group: Group | None) -> None:
        """The thread is the owner, and what was its own is done; a group that was under way on the loop is refused."""
        if group is not None:
            self._write_there(group)
        self.busy = False
        self._end()

    # -- the owner -----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Nothing more is submitted."""
        self._ending = True
        self._step()

    def _step(self) -> None:
        """Begin the next group, if none is under way."""
        self._asked = False
        while not self.busy:
            group = self.queue.take(self._group_bytes)
            if not group:
                if self._ending:
                    self._thread.end()
                return
            self.busy = True
            begun = False
            with contextlib.suppress(Exception):  # writing has failed and even that could not be said: the thread does
                begun = self._begin(group)
            if begun:
                return
            if self._thread.mine():
                self._write_there(group)
            else:
                self._thread.call(partial(self._write_there, group))

    def _free(self) -> None:
        """The group under way is answered."""
        self.busy = False
        self._step()

    def _begin(self, group: Group) -> bool:
        """Write a group here, where nothing can be in the way and nothing blocks for long.

        False, and nothing is answered, where it is for the thread.
        """
        size = size_of(group)
        self._began = self._clock.monotonic()
        if (
            self._syncs is None
            or self._began < self._away_until
            or not is_small(group)
            or self.failed is not None
            or self._unsaved + size >= SAVE_SUMMARY_EVERY
            or not self._guard.at_ease()
            or not self.lock.try_for_group()
        ):
            return False
        begun = False
        self._under_way = group
        try:
            written = self._appender.begin(group) if self._next.ready() else None
            if written is not None:
                begun = written.file.handle.begin_sync(self._syncs, partial(self._synced, group, written))
                if not begun:
                    self._stay_away()  # or each group would be written twice
        except OSError as error:
            if error.errno not in NO_SPACE:  # of a full disk the thread takes care, and writes it again
                self._appender.fail(error)
        except BaseException as error:  # noqa: BLE001 - reported, and it ends writing
            self._stopped_by(error)
        finally:
            if not begun:
                self._under_way = None
                self.lock.release()
        return begun

    def _synced(self, group: Group, written: Begun, error: OSError | None) -> None:
        """The sync of the group under way has ended."""
        answered = False
        try:
            if error is not None:
                self._appender.fail(error)
                return
            stored = self._appender.finish(group, written)
            self.prewrites += stored.prewrites  # before the answer, as in `_write_group`
            answered = True
            answer(group)
            if stored.blocks:
                self._next.hand_over(Block.concat(stored.blocks))  # at once: `ready` spoke for one
            self._after(stored)
        except BaseException as fault:  # noqa: BLE001 - reported, and it ends writing
            self._stopped_by(fault)
        finally:
            self.lock.release()
            self._under_way = None
            if self._clock.monotonic() - self._began > SLOW_S:
                self._stay_away()
            if answered:
                self._free()
            else:  # writing has failed, and the thread is to say so
                self._thread.call(partial(self._write_there, group))

    def _stay_away(self) -> None:
        """For a while every group goes to the thread."""
        self._away_until = self._clock.monotonic() + AWAY_S

    # -- the writer thread ---------------------------------------------------------------------------------------------

    def _write_there(self, group: Group) -> None:
        try:
            self._write_group(group)
        except BaseException as error:  # noqa: BLE001 - reported, and it ends writing
            self._stopped_by(error)
        finally:
            if self._owner is self._thread:
                self.busy = False  # its `_step` goes on
            else:
                self._owner.call(self._free)

    def _write_group(self, group: Group) -> None:
        with self.lock:
            stored = Appended()
            try:
                self._appender.append(group, stored)
            except BaseException as error:
                self._appender.fail(error)
                raise
            finally:
                # Counted before the answer: who has it must find the prewrite among the unresolved.
                self.prewrites += stored.prewrites
                answer(group)
            for block in stored.blocks:
                self._next.hand_over(block)
        self._after(stored)
        if self._unsaved >= SAVE_SUMMARY_EVERY:
            self._unsaved = 0
            self._valuelog.save_active_summary()

    # -- whoever wrote -------------------------------------------------------------------------------------------------

    def _after(self, stored: Appended) -> None:
        self.groups += 1
        if stored.blocks:
            self.on_written()
            self.records += stored.records
            self._unsaved += stored.bytes

    def _stopped_by(self, error: BaseException) -> None:
        # A bug, not a disk: fail like a disk that cannot be trusted. Said last: nothing may depend on a log.
        try:
            self._appender.fail(error)
        finally:
            self.on_fault(error)
        log.error("writer_stopped", exc_info=error)
