"""Pull streams: batches of committed binlogs behind a position, then the tail as it grows (row P7).

The store is read on threads of its own pool, so that a long read never holds the event loop. While the server sends a
batch of a stream the next is read, and no more. A stream ends without an error only when the Pump stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from pump_service.door.group import Messages
from pump_service.metrics import PumpMetrics
from pump_service.pulls.pullroom import PullRoom
from pump_service.store.batch import LargeBinlog, PullBatch
from pump_service.store.store import Store
from pumphouse.errors import CorruptionError, PullTooSlow, PumpUnavailable
from pumphouse.model.tso import Tso

log = structlog.get_logger()

# On the tail a moment is waited after the watermark moved, so that a busy Pump sends batches and not single binlogs.
_GATHER_S = 0.01
_FEW = 4
_SAY_AGAIN_S = 10.0
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
    more: bool
    large: bool  # it holds the room of large transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Want:
    after: Tso
    render: Render
    max_bytes: int
    strict: bool
    end: Callable[[PullTooSlow], None]


class _Ahead:
    """The reads of one stream: while a batch is being taken, the next is read."""

    def __init__(
        self, pulls: Pulls, render: Render, max_bytes: int, *, strict: bool, end: Callable[[PullTooSlow], None]
    ) -> None:
        self._pulls = pulls
        self._render = render
        self._max_bytes = max_bytes
        self._strict = strict
        self._end = end
        self._task: asyncio.Task[tuple[_Read, contextlib.AsyncExitStack]] | None = None

    @contextlib.asynccontextmanager
    async def next(self, after: Tso) -> AsyncGenerator[_Read]:
        """The batch behind a position; it holds its memory while the context is open."""
        task, self._task = self._task or self._begin(after), None
        try:
            read, held = await task
        except BaseException:
            _release(task)
            raise
        async with held:
            if read.more and not read.large:  # the next may be large too, and would wait for this one's room
                self._task = self._begin(read.last)
            yield read

    def drop(self) -> None:
        """The stream ends: nobody takes what is read ahead."""
        if self._task is not None:
            _release(self._task)

    def _begin(self, after: Tso) -> asyncio.Task[tuple[_Read, contextlib.AsyncExitStack]]:
        want = _Want(
            after=after, render=self._render, max_bytes=self._max_bytes, strict=self._strict, end=self._end,
        )  # fmt: skip
        return asyncio.get_running_loop().create_task(self._read(want))

    async def _read(self, want: _Want) -> tuple[_Read, contextlib.AsyncExitStack]:
        async with contextlib.AsyncExitStack() as held:
            return await self._pulls.read(want, held), held.pop_all()
        raise AssertionError("an exit stack passes errors on")


def _release(task: asyncio.Task[tuple[_Read, contextlib.AsyncExitStack]]) -> None:
    """Give back what a read holds, when it is done."""

    async def release() -> None:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            _, held = await task
            await held.aclose()

    task.cancel()
    _releasing.add(made := asyncio.get_running_loop().create_task(release()))
    made.add_done_callback(_releasing.discard)


_releasing: set[asyncio.Task[None]] = set()


class Pulls:
    """Opens streams and ends them when the Pump stops. Owned by the event loop."""

    def __init__(self, store: Store, metrics: PumpMetrics, *, memory_bytes: int, most_streams: int = 128) -> None:
        self._most = most_streams
        self._said_full = float("-inf")
        self._open = {False: 0, True: 0}  # of strangers, and of those who prove to be none
        self._store = store
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(max_workers=_READERS, thread_name_prefix="pull")
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        self._pinged = False
        self._damaged: set[tuple[str, int]] = set()  # places that the log has named
        self.room = PullRoom(memory_bytes)
        store.on_watermark(self._moved)

    def stop(self) -> None:
        """End every stream, with OK."""
        self._stopping.set()
        self._wake()

    def close(self) -> None:
        """Wait for reads that are under way."""
        self._pool.shutdown(wait=True)

    async def follow(
        self,
        after: Tso,
        render: Render,
        *,
        max_bytes: int,
        strict: bool,
        end: Callable[[PullTooSlow], None],
        proved: bool = False,
    ) -> AsyncGenerator[Sent]:
        """Batches in order, for ever; an empty one now and then while nothing moves.

        Args:
            after: exclusive. Below 0 is 0 where nothing was ever collected, as on a Go Pump.
            render: makes messages of a batch.
            max_bytes: payload bytes of a batch, less when memory is short; one binlog is never cut.
            strict: refuse orphan and late commits (unary pulls cannot carry the flag).
            end: ends the call at once, wherever it waits: others need the room of what its peer does not take.
            proved: the caller has shown a certificate or a token; strangers cannot take its place.

        Raises:
            PumpUnavailable: there are too many streams.
            PositionCollected: ``after`` is, or has fallen, below the GC point.
            OrphanCommit, LateCommit: with ``strict``, naming the ts.
            CorruptionError: what comes next is damaged; the log names each place once, however often it is pulled.
        """
        if after < 0 and not self._store.gc_point:
            after = Tso(0)
        ahead = _Ahead(self, render, max_bytes, strict=strict, end=end)
        silent_since = float("-inf")
        self._admit(proved=proved)
        self._metrics.pull_streams.inc()
        try:
            while not self._stopping.is_set():
                async with ahead.next(after) as read:
                    if read.last > after or self._loop.time() - silent_since >= SILENCE_S:
                        silent_since = self._loop.time()
                        self._metrics.pulled_bytes.inc(read.size)
                        if read.messages is not None:
                            yield Sent(read.messages, read.last)
                    after = read.last
                    del read  # a stream that waits for the tail holds nothing
                if after >= self._store.watermark:
                    await self._tail()
        except CorruptionError as error:
            self._name_damage(error)
            raise
        finally:
            self._open[proved] -= 1
            self._metrics.pull_streams.dec()
            ahead.drop()

    def _admit(self, *, proved: bool) -> None:
        if self._open[proved] >= self._most:
            if self._loop.time() >= self._said_full + _SAY_AGAIN_S:
                self._said_full = self._loop.time()
                log.warning("pulls_refused", limit=self._most, setting="pump.max_pull_streams")
            raise PumpUnavailable(
                f"{self._open[proved]} pull streams are open, pump.max_pull_streams allows no more",
                hint="end some, or raise pump.max_pull_streams; who shows a certificate or cluster.operator_token has "
                "as many of their own",
                limit=self._most,
            )
        self._open[proved] += 1

    def _name_damage(self, error: CorruptionError) -> None:
        path, offset = os.path.abspath(error.path or ""), int(error.offset or 0)  # noqa: PTH100 - no look at the disk
        if (path, offset) not in self._damaged:
            self._damaged.add((path, offset))
            log.error("pull_met_damage", path=path, offset=offset, reason=error.reason, hint=error.hint)

    async def read(self, want: _Want, held: contextlib.AsyncExitStack) -> _Read:
        """One batch; ``held`` gives its memory back."""
        granted = self.room.take(want.max_bytes)
        held.callback(self.room.give, granted)
        # A single binlog may be a little larger than a batch without being an exception.
        try:
            return await self._loop.run_in_executor(self._pool, self._pull, want, granted, 2 * want.max_bytes)
        except LargeBinlog as large:
            # What the kernel writes it to, and the message made of that.
            await held.enter_async_context(self.room.large(2 * large.size, want.end))
            return await self._loop.run_in_executor(self._pool, self._pull, want, granted, None)

    def _pull(self, want: _Want, max_bytes: int, most: int | None) -> _Read:
        batch = self._store.stream.pull(want.after, max_bytes=max_bytes, most=most, strict=want.strict)
        return _Read(want.render(batch), batch.last, batch.size, batch.more, large=most is None)

    async def _tail(self) -> None:
        """Wait until the watermark moves, or for a second."""
        if self._stopping.is_set():
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await waiter
        # All streams together look so often, however many they are: writes must not wait for who only waits for them.
        await asyncio.sleep(_GATHER_S * max(1.0, sum(self._open.values()) / _FEW))

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
