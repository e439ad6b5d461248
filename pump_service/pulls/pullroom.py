"""How much memory all pull streams together may hold (setting ``pull_memory_bytes``).

A stream that is not taken keeps what was granted to it until its peer reads or hangs up, so nobody waits for room that
somebody else holds: when little is left, streams get small batches, never none. So the sum is at most the limit and
`LEAST` a batch.

A transaction that is larger than that cannot be made smaller. Such ones have the same limit once more, together; one
that exceeds it alone is sent alone. A stream has one of them at a time. Who waits for room ends a stream that does not
take its own within `PATIENCE_S` and the time that `LEAST_RATE` gives it, and the stream says so.
Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog

from pumphouse.errors import PullTooSlow

log = structlog.get_logger(__name__)

LEAST = 128 << 10
PATIENCE_S = 60.0
LEAST_RATE = 4 << 20  # bytes a second: a peer on a slow line that takes them all the time is none to be ended


@dataclass(frozen=True, slots=True, eq=False)
class _Holder:
    end: Callable[[PullTooSlow], None]
    size: int
    since: float


class PullRoom:
    """Bytes that are granted to batches between the disk and their peers."""

    def __init__(self, limit: int, *, patience_s: float = PATIENCE_S, least_rate: int = LEAST_RATE) -> None:
        self.limit = limit
        self.taken = 0
        self._patience_s = patience_s
        self._least_rate = least_rate
        self._large: list[_Holder] = []
        self._freed = asyncio.Event()

    def take(self, want: int) -> int:
        """Bytes for one batch, at once; at least `LEAST` where that much is wanted. Give them back."""
        granted = min(want, max(self.limit - self.taken, LEAST))
        self.taken += granted
        return granted

    def give(self, granted: int) -> None:
        """The batch is with its peer."""
        self.taken -= granted

    @contextlib.asynccontextmanager
    async def large(self, size: int, end: Callable[[PullTooSlow], None]) -> AsyncIterator[None]:
        """Room for one large transaction while it is read and sent; ``end`` is called when others wait too long."""
        while self._large and sum(each.size for each in self._large) + size > self.limit:
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s / 10):
                    await self._freed.wait()
            self._end_the_slow()
        mine = _Holder(end, size, asyncio.get_running_loop().time())
        self._large.append(mine)
        try:
            yield
        finally:
            self._large.remove(mine)
            self._freed.set()

    def _end_the_slow(self) -> None:
        now = asyncio.get_running_loop().time()
        for each in self._large:
            held_s = round(now - each.since)
            if now - each.since > self._patience_s + each.size / self._least_rate:
                log.warning("slow_puller_ended", transaction_bytes=each.size, seconds=held_s)
                each.end(
                    PullTooSlow(
                        f"this pull has not taken a transaction of {each.size:,} bytes for {held_s} s, and others wait "
                        "for its room",
                        hint="pull again from where it stood; is the puller, or what it writes to, too slow?",
                        size=each.size,
                        seconds=held_s,
                    )
                )
