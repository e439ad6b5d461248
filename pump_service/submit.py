"""From many callers on the event loop to the store's one writer: what one turn of the loop brings goes as one group.

Bounded by bytes: a caller waits for room before its items are handed over. Owned by the event loop; the store calls
back from its writer thread, and that call crosses over once a group, by ``call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from include.errors import BinlogError
from pump_service.metrics import PumpMetrics
from pump_service.store.store import Item, Store

Statuses = list[BinlogError | None]
_ITEM_OVERHEAD = 200  # bytes of bookkeeping that an item costs beside its payload


@dataclass(slots=True)
class _Part:
    future: asyncio.Future[Statuses]
    count: int
    size: int


class Submitter:
    """The only door to `Store.submit`."""

    def __init__(self, store: Store, queue_bytes: int, metrics: PumpMetrics) -> None:
        self._store = store
        self._limit = queue_bytes
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._items: list[Item] = []
        self._parts: list[_Part] = []
        self._bytes = 0
        self._in_flight: set[asyncio.Future[Statuses]] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def room(self, size: int) -> None:
        """Wait until ``size`` more bytes fit into the queue; one that is larger than all of it goes alone."""
        while self._bytes and self._bytes + size > self._limit:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def submit(self, items: Sequence[Item]) -> asyncio.Future[Statuses]:
        """Hand items over, in order; the future has one status for each, after fsync. Ask for `room` before."""
        future: asyncio.Future[Statuses] = self._loop.create_future()
        size = sum(len(item.payload) for item in items) + _ITEM_OVERHEAD * len(items)
        if not self._items:
            self._loop.call_soon(self._flush)
        self._items.extend(items)
        self._parts.append(_Part(future, len(items), size))
        self._bytes += size
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        self._metrics.queued_bytes.set(self._bytes)
        return future

    async def settled(self) -> None:
        """Wait until everything that was submitted before this call has its answer."""
        while pending := set(self._in_flight):
            await asyncio.wait(pending)
            self._in_flight -= pending

    def _flush(self) -> None:
        items, self._items = self._items, []
        parts, self._parts = self._parts, []

        def done(statuses: Statuses) -> None:
            # After the loop has ended nobody waits any more.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._settle, parts, statuses)

        try:
            self._store.submit(items, done)
        except BinlogError as error:
            self._settle(parts, [error] * len(items))

    def _settle(self, parts: list[_Part], statuses: Statuses) -> None:
        at = 0
        for part in parts:
            if not part.future.done():  # the caller may have gone
                part.future.set_result(statuses[at : at + part.count])
            at += part.count
            self._bytes -= part.size
        self._metrics.queued_bytes.set(self._bytes)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
