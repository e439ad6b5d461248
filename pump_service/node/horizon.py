"""Which timestamps the cluster can have given out already.

One commit or fake from the future would lift the watermark above every commit to come, and all of them would be late.
Writers and resolvers draw their timestamps from the same cluster as we do, so what lies above a fresh one of ours is
made up. To ask for each write would be dear. A cluster whose clock is this machine's tells what is past by itself
(`FileTso.is_past`). Else what lies in the milliseconds that have passed since the last question is
believed, because the cluster's clock goes on. It may do so in steps (PD's are of 50 ms), or stand still for a while
where it was ahead of the time of day (a new leader of PD, an etcd:// cluster of machines that disagree): so one that is
made up can be believed early, by `BELIEVED_S` at most. Whatever was drawn from the cluster is never refused, and never
above the cluster's clock, so of those that draw their timestamps no commit comes late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pump_service.node.shared import Shared
from pumphouse.clock import Clock
from pumphouse.errors import BinlogError, PumpUnavailable
from pumphouse.model.tso import Tso, physical_ms
from pumphouse.registry.base import Cluster

# After so long the cluster is asked again, so this much of the future is believed at most.
BELIEVED_S = 0.1
_SHORTEST_S = 0.0002


class Timestamps(Shared[Tso]):
    """Draws timestamps for all parts of a Pump; knows the largest, and how old the last answer is."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        """Draw from ``cluster``; ``clock`` is this machine's."""
        super().__init__(lambda: Tso(cluster.tso()), "tso")
        self._clock = clock
        self._drawing = asyncio.Lock()
        self.latest = 0
        self.physical_ms = 0  # of the last answer, which came at
        self.answered_at = float("-inf")  # monotonic

    async def own(self) -> Tso:
        """A fresh timestamp that no other caller of `own` gets."""
        async with self._drawing:
            return await self.fresh()

    async def _run(self) -> Tso:
        now = await super()._run()
        self.latest = max(self.latest, now)
        self.physical_ms = physical_ms(now)
        self.answered_at = self._clock.monotonic()
        return now


class Horizon:
    """Asks the cluster only about what it cannot tell by itself. Owned by the event loop."""

    def __init__(
        self,
        timestamps: Timestamps,
        clock: Clock,
        *,
        patience_s: float = 0.0,
        is_past: Callable[[int], bool] = lambda _ts: False,
    ) -> None:
        """Know nothing yet.

        Args:
            timestamps: the cluster's; whatever is drawn there, for any purpose, is known here.
            clock: this machine's.
            patience_s: how long a timestamp may wait until it is believed, rather than cost a question. For clusters
                whose clock is a server: many commits are of the millisecond in which that was asked last.
            is_past: tells what lies in the past, where that takes no server (`FileTso.is_past`); does not block.
        """
        self._timestamps = timestamps
        self._patience_s = patience_s
        self._is_past = is_past
        self._clock = clock

    def covers(self, ts: int) -> bool:
        """Whether a timestamp, and so every smaller one, is known to lie in the past; False = ask `reaches`."""
        known = self._timestamps
        if ts <= known.latest or self._is_past(ts):
            return True
        elapsed_s = self._clock.monotonic() - known.answered_at
        return elapsed_s < BELIEVED_S and physical_ms(ts) < known.physical_ms + int(elapsed_s * 1000)

    async def reaches(self, ts: int) -> bool:
        """Whether the cluster can have given out a timestamp. Raises PumpUnavailable when it cannot be asked."""
        asked = False
        while not self.covers(ts):
            if asked:
                return False
            if soon := self._believed_in(ts):
                await asyncio.sleep(soon)
                continue
            question, asked = self._timestamps.question()
            # A question that was under way may have been answered before this timestamp was drawn: then once more.
            # Whoever waits for the same one goes on in the same turn of the loop, and so into the same group.
            try:
                await asyncio.shield(question)
            except (BinlogError, OSError) as error:
                raise PumpUnavailable(
                    f"the cluster cannot be asked for a timestamp to compare with: {error}", hint="try again"
                ) from error
        return True

    def _believed_in(self, ts: int) -> float:
        """Seconds after which `covers` will be true by itself; 0 = not within our patience."""
        elapsed_s = self._clock.monotonic() - self._timestamps.answered_at
        due_s = (physical_ms(ts) + 1 - self._timestamps.physical_ms) / 1000
        wait_s = max(due_s - elapsed_s, _SHORTEST_S)
        return wait_s if wait_s <= self._patience_s and elapsed_s + wait_s < BELIEVED_S else 0.0
