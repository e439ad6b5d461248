"""Pull streams: batches of committed binlogs behind a position, then the tail as it grows (row P7).

The store is read on threads of its own pool, so that a long read never holds the event loop. One batch of a stream is
in flight; the next is read when the server has taken it. A stream ends without an error only when the Pump stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from include.model.tso import Tso
from pump_service.door.group import Messages
from pump_service.metrics import PumpMetrics
from pump_service.pullroom import PullRoom
from pump_service.store.batch import LargeBinlog, PullBatch
from pump_service.store.store import Store

# On the tail a moment is waited after the watermark moved, so that a busy Pump sends batches and not single binlogs.
_GATHER_S = 0.01
# A stream on which nothing moves still says so: the puller sees the watermark and who holds it.
SILENCE_S = 1.0
# Each reader keeps a buffer; what it does beside reading from disk holds a processor.
_READERS = min(8, (os.cpu_count() or 1) + 2)

# A batch as the server sends it; runs in a reader's thread. None = nothing is sent.
Render = Callable[[PullBatch], Messages | None]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a stream sends, and up to where the stream is complete with it."""

    messages: Messages
    complete_to: Tso


@dataclass(frozen=True, slots=True)
class _Read:
    messages: Messages | None
    last: Tso
    size: int


class Pulls:
    """Opens streams and ends them when the Pump stops. Owned by the event loop."""

    def __init__(self, store: Store, metrics: PumpMetrics, *, memory_bytes: int) -> None:
        self._store = store
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="pull")
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        self._pinged = False
        self.room = PullRoom(memory_bytes)
        store.on_watermark(self._moved)

    def stop(self) -> None:
        """End every stream, with OK."""
        self._stopping.set()
        self._wake()

    def close(self) -> None:
        """Wait for reads that are under way."""
        self._pool.shutdown(wait=True)

    async def follow(self, after: Tso, render: Render, *, max_bytes: int, strict: bool) -> AsyncGenerator[Sent]:
        """Batches in order, for ever; an empty one now and then while nothing moves.

        Args:
            after: exclusive.
            render: makes messages of a batch.
            max_bytes: payload bytes of a batch, less when memory is short; one binlog is never cut.
            strict: refuse orphan and late commits (unary pulls cannot carry the flag).

        Raises:
            PositionCollected: ``after`` is, or has fallen, below the GC point.
            OrphanCommit, LateCommit: with ``strict``, naming the ts.
        """
        silent_since = float("-inf")
        self._metrics.pull_streams.inc()
        try:
            while not self._stopping.is_set():
                async with contextlib.AsyncExitStack() as held:
                    read = await self._read(held, after, render, max_bytes, strict=strict)
                    if read.last > after or self._loop.time() - silent_since >= SILENCE_S:
                        silent_since = self._loop.time()
                        self._metrics.pulled_bytes.inc(read.size)
                        if read.messages is not None:
                            yield Sent(read.messages, read.last)
                    after = read.last
                    del read  # a stream that waits for the tail holds nothing
                if after >= self._store.watermark:
                    await self._tail()
        finally:
            self._metrics.pull_streams.dec()

    async def _read(
        self, held: contextlib.AsyncExitStack, after: Tso, render: Render, max_bytes: int, *, strict: bool
    ) -> _Read:
        """The next batch; ``held`` gives its memory back."""
        granted = self.room.take(max_bytes)
        held.callback(self.room.give, granted)
        # Twice the grant: a single binlog may be a little larger than a batch without being an exception.
        try:
            return await self._loop.run_in_executor(
                self._pool, self._pull, after, render, granted, 2 * max_bytes, strict
            )
        except LargeBinlog as large:
            # What the kernel writes it to, and the message made of that.
            await held.enter_async_context(self.room.large(2 * large.size))
            return await self._loop.run_in_executor(self._pool, self._pull, after, render, granted, None, strict)

    def _pull(self, after: Tso, render: Render, max_bytes: int, most: int | None, strict: bool) -> _Read:
        batch = self._store.pull(after, max_bytes=max_bytes, most=most, strict=strict)
        return _Read(render(batch), batch.last, batch.size)

    async def _tail(self) -> None:
        """Wait until the watermark moves, or for a second."""
        if self._stopping.is_set():
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await waiter
        await asyncio.sleep(_GATHER_S)

    def _moved(self) -> None:
        """The store's thread says that the watermark moved; crosses over once until the loop has seen it."""
        if not self._pinged and not self._loop.is_closed():
            self._pinged = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._pinged = False
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
