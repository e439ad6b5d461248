"""Pull streams: batches of committed binlogs behind a position, then the tail as it grows (row P7).

The store is read on threads of its own pool, so that a long read never holds the event loop. A stream ends without an
error only when the Pump stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from include.model.tso import Tso
from pump_service.metrics import PumpMetrics
from pump_service.store.store import PullBatch, Store

# On the tail a moment is waited after the watermark moved, so that a busy Pump sends batches and not single binlogs.
_GATHER_S = 0.01
# A stream on which nothing moves still says so: the puller sees the watermark and who holds it.
SILENCE_S = 1.0
_READERS = 8


class Pulls:
    """Opens streams and ends them when the Pump stops. Owned by the event loop."""

    def __init__(self, store: Store, metrics: PumpMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="pull")
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        self._pinged = False
        store.on_watermark(self._moved)

    def stop(self) -> None:
        """End every stream, with OK."""
        self._stopping.set()
        self._wake()

    def close(self) -> None:
        """Wait for reads that are under way."""
        self._pool.shutdown(wait=True)

    async def follow(self, after: Tso, *, max_bytes: int, strict: bool) -> AsyncIterator[PullBatch]:
        """Batches in order, for ever; an empty one now and then while nothing moves.

        Args:
            after: exclusive.
            max_bytes: payload bytes of a batch; one binlog is never cut.
            strict: refuse orphan and late commits (unary pulls cannot carry the flag).

        Raises:
            PositionCollected: ``after`` is, or has fallen, below the GC point.
            OrphanCommit, LateCommit: with ``strict``, naming the ts.
        """
        loop = self._loop
        silent_since = float("-inf")
        self._metrics.pull_streams.inc()
        try:
            while not self._stopping.is_set():
                batch = await loop.run_in_executor(self._pool, self._read, after, max_bytes, strict)
                if batch.last > after or loop.time() - silent_since >= SILENCE_S:
                    silent_since = loop.time()
                    self._metrics.pulled_bytes.inc(batch.size)
                    yield batch
                after = batch.last
                if batch.last >= self._store.watermark:
                    await self._tail()
        finally:
            self._metrics.pull_streams.dec()

    def _read(self, after: Tso, max_bytes: int, strict: bool) -> PullBatch:
        return self._store.pull(after, max_bytes=max_bytes, strict=strict)

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
