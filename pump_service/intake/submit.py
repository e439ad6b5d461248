"""From many callers on the event loop to the store's one writer, and the bytes that may wait for it.

A caller waits for room before its items are handed over, or stops reading when it is told to. What one turn of the loop
brings is written in the next, on the loop's thread where that is short. Where the store's thread wrote, its answers
cross over to the event loop, which owns all of this, by one wake-up for all that are there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident

import structlog

from pump_service.metrics import PumpMetrics
from pump_service.store.groups import Done, Status
from pump_service.store.records import Item, Records
from pump_service.store.store import Store
from pumphouse.errors import BinlogError

log = structlog.get_logger()
Statuses = list[Status]
_ROW_OVERHEAD = 64  # of columns
_CAREFUL_OVERHEAD = 1024  # of a request that is checked by itself: a task, a message
_ITEM_OVERHEAD = 200  # bytes of bookkeeping that an item costs beside its payload


@dataclass(slots=True)
class _Part:
    """Items that one caller handed over."""

    future: asyncio.Future[Statuses]
    items: Sequence[Item]


@dataclass(slots=True, eq=False)
class _Sent:
    done: Done
    began: float
    bytes: int  # of payloads
    size: int  # what it takes of the queue


class Submitter:
    """The only door to the store's writer."""

    def __init__(self, store: Store, queue_bytes: int, metrics: PumpMetrics) -> None:
        self._store = store
        self._limit = queue_bytes
        metrics.queued_bytes.set_function(lambda: self.queued)
        self._write_seconds = metrics.write_seconds.labels("batch")
        self._write_bytes = metrics.write_bytes.labels("batch")
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._parts: list[_Part] = []  # handed over in this turn of the loop
        self._parts_size = 0
        self.queued = 0  # bytes that wait for their fsync
        self.held = 0  # of requests that are on their way to `submit`, one by one
        self._sent: set[_Sent] = set()  # has no answer yet
        self._settled: list[tuple[set[_Sent], asyncio.Future[None]]] = []  # who waits until these have theirs
        self._waiters: deque[asyncio.Future[None]] = deque()
        # What crosses over from the writer thread, and whether the loop was told.
        self._answers: deque[tuple[_Sent, Statuses | None]] = deque()
        self._told = False
        self._sending = False
        self._writes = False  # `_write` is called soon
        self._pause: Callable[[], None] = lambda: None
        self._resume: Callable[[], None] = lambda: None

    def hold_back(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Call these when the queue is full, and when half of it is free again: for callers that do not ask `room`."""
        self._pause, self._resume = pause, resume

    async def room(self, size: int) -> None:
        """Wait until ``size`` more bytes fit into the queue; one that is larger than all of it goes alone."""
        while self.queued and self.queued + size > self._limit:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def hold(self, size: int, count: int) -> int:
        """Count ``count`` requests that wait for checks or for `room`; returns what `release` wants.

        They hold readers back as the queue does, but not each other: `room` does not ask for them.
        """
        held = size + _CAREFUL_OVERHEAD * count
        self.held += held
        self._pause_when_full()
        return held

    def release(self, held: int) -> None:
        """They have their answers, or are in the queue."""
        self.held -= held
        self._resume_when_free()

    def _pause_when_full(self) -> None:
        if self.queued + self.held > self._limit:
            self._pause()

    def _resume_when_free(self) -> None:
        if self.queued + self.held <= self._limit // 2:
            self._resume()

    def submit(self, items: Sequence[Item]) -> asyncio.Future[Statuses]:
        """Hand items over, in order; the future has one status for each, after fsync. Ask for `room` before.

        What one turn of the loop brings goes as one group.
        """
        part = _Part(self._loop.create_future(), items)
        size = sum(len(item.payload) for item in items) + _ITEM_OVERHEAD * len(items)
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(part)
        self._parts_size += size
        self.queued += size
        return part.future

    def send(self, records: Records, done: Done) -> None:
        """Hand records over; ``done`` is called on the event loop after fsync, and never in this call.

        Never waits: callers that are many ask `room` before, or stop reading when they are held back.
        """
        size = len(records.data) + _ROW_OVERHEAD * len(records)
        self.queued += size
        self._pause_when_full()
        self._flush()  # what one stream sends must not overtake what it has sent: a C before its P is an orphan
        self._hand_over(records, done, size, here=True)

    def _flush(self) -> None:
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        size, self._parts_size = self._parts_size, 0
        items = [item for part in parts for item in part.items]

        def done(statuses: Statuses | None) -> None:
            at = 0
            for part in parts:
                count = len(part.items)
                if not part.future.done():  # the caller may have gone
                    part.future.set_result([None] * count if statuses is None else statuses[at : at + count])
                at += count

        try:
            try:
                records = Records.of(items)
            except BaseException:
                self._give_back(size)
                raise
            self._hand_over(records, done, size, here=False)
        except Exception as error:
            log.exception("submit_failed", items=len(items))
            refusal = error if isinstance(error, BinlogError) else BinlogError(f"Unexpected {type(error)}: {error}")
            done([refusal] * len(items))

    def _hand_over(self, records: Records, done: Done, size: int, *, here: bool) -> None:
        # Calls that come one by one, as from a grpcio server, gather while the thread writes those before them.
        sent = _Sent(done, self._loop.time(), records.bytes, size)
        self._sent.add(sent)
        self._sending = True  # a store that is closing answers at once
        try:
            self._store.submit(records, partial(self._cross_over, sent), here=here)
        except BaseException:  # whoever called answers; nothing of it is queued
            self._sent.discard(sent)
            self._give_back(size)
            raise
        finally:
            self._sending = False
        if here and not self._writes:
            self._writes = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._writes = False
        self._store.write_here()

    def _cross_over(self, sent: _Sent, statuses: Statuses | None) -> None:
        """Writer thread, or this one: one wake-up of the loop for all that it finds."""
        self._answers.append((sent, statuses))
        if self._loop.is_closed():
            return
        if get_ident() == self._thread and not self._sending:
            self._deliver()
        elif not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._told = False
        while self._answers:
            sent, statuses = self._answers.popleft()
            self.queued -= sent.size
            self._write_seconds.observe(self._loop.time() - sent.began)
            self._write_bytes.observe(sent.bytes)
            self._sent.discard(sent)
            try:
                sent.done(statuses)
            except Exception:  # of one group: the others have their answers and their room all the same
                log.exception("answer_failed")
        self._after_answers()

    def _give_back(self, size: int) -> None:
        self.queued -= size
        self._after_answers()

    def _after_answers(self) -> None:
        self._resume_when_free()
        if self._settled:
            self._wake_settled()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def settled(self) -> None:
        """Wait until everything that was submitted before this call has its answer."""
        self._flush()
        if self._sent:
            answered = self._loop.create_future()
            self._settled.append((set(self._sent), answered))
            await answered

    def _wake_settled(self) -> None:
        waiting, self._settled = self._settled, []
        for sent, answered in waiting:
            left = sent & self._sent
            if left:
                self._settled.append((left, answered))
            elif not answered.done():
                answered.set_result(None)
