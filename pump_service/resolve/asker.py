"""Asks about each P that has waited: early and again without power, with it after max-txn-timeout (row P6).

A P leaves the wait only by an outcome. No answer is never "not committed": the Pump goes on asking, names the start ts
and raises a metric.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from pump_service.metrics import PumpMetrics
from pump_service.node.horizon import Horizon, Timestamps
from pump_service.resolve.base import Fate, NoAnswer, Outcome, Resolver
from pump_service.store.store import Status, Store, Unresolved
from pumphouse.clock import Clock
from pumphouse.errors import BinlogError
from pumphouse.model import strict
from pumphouse.model.tso import physical_ms, show
from pumphouse.settings import PumpSettings

log = structlog.get_logger()

# A P whose C is on its way is not asked about.
EARLIEST_S = 1.0
_AT_ONCE = 16
_A_ROUND = 1000
_NAMED_EVERY_S = 30.0


class Asker:
    """One loop; owned by the event loop."""

    def __init__(
        self,
        *,
        store: Store,
        resolver: Resolver,
        timestamps: Timestamps,
        horizon: Horizon,
        settings: PumpSettings,
        metrics: PumpMetrics,
        clock: Clock,
    ) -> None:
        self._store = store
        self._resolver = resolver
        self._timestamps = timestamps
        self._horizon = horizon
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._named_at = float("-inf")

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            await asyncio.sleep(self._settings.resolve_interval_s)
            try:
                await self.round()
            except strict.SURVIVED as error:
                log.warning("resolving_failed", error=str(error))

    async def round(self) -> None:
        """Ask once about every P that has waited long enough, oldest first."""
        now = self._clock.monotonic()
        due = [p for p in self._store.prewrites.oldest(_A_ROUND, keys=False) if now - p.arrived >= EARLIEST_S]
        if not due:
            self._metrics.unanswered.set(0)
            return
        # Ages by the cluster's own clock: a start ts was drawn from it, this machine's clock may differ.
        now_ms = physical_ms(await self._timestamps.current())
        at_once = asyncio.Semaphore(_AT_ONCE)
        unanswered: list[Unresolved] = []

        async def one(prewrite: Unresolved) -> None:
            overdue = now_ms - physical_ms(prewrite.start_ts) > self._settings.max_txn_timeout_s * 1000
            async with at_once:
                if not await self._settle(prewrite, decide=overdue) and overdue:
                    unanswered.append(prewrite)

        # Whatever breaks one question that nobody foresaw ends the others with the round: the next one asks them again.
        async with asyncio.TaskGroup() as questions:
            for prewrite in due:
                questions.create_task(one(prewrite))
        self._metrics.unanswered.set(len(unanswered))
        if unanswered and now - self._named_at >= _NAMED_EVERY_S:
            self._named_at = now
            oldest = min(unanswered, key=lambda p: p.start_ts)
            log.error(
                "prewrite_unanswered",
                start_ts=oldest.start_ts,
                started=show(oldest.start_ts),
                pointer=str(oldest.pointer),
                others=len(unanswered) - 1,
                hint="it holds the watermark; start its resolver, or: pumphouse pump settle",
            )

    async def _settle(self, prewrite: Unresolved, *, decide: bool) -> bool:
        start_ts = prewrite.start_ts
        try:
            key, outcome = await self._ask(prewrite, decide=decide)
        except (BinlogError, OSError) as error:  # whatever it is, it says nothing of the transaction
            self._metrics.resolver_questions.labels("none").inc()
            log.debug("resolver_no_answer", start_ts=start_ts, error=str(error))
            return False
        self._metrics.resolver_questions.labels(outcome.fate.value).inc()
        try:
            return await self._record(start_ts, outcome, key)
        except (BinlogError, OSError) as error:
            log.warning("outcome_not_recorded", start_ts=start_ts, error=str(error))
            return False

    async def _ask(self, prewrite: Unresolved, *, decide: bool) -> tuple[bytes, Outcome]:
        try:
            # Read from the value log, a whole record with its checksum: a wrong key could be answered by "rolled back".
            key = await asyncio.to_thread(self._store.prewrites.key, prewrite)
        except (BinlogError, OSError) as error:
            raise NoAnswer(f"its prewrite key cannot be read: {error}") from error
        outcome = await self._resolver.ask(prewrite.start_ts, key, decide=decide)
        if not await self._horizon.reaches(outcome.commit_ts):
            commit_ts = show(outcome.commit_ts)
            log.error("resolver_answer_impossible", start_ts=prewrite.start_ts, commit_ts=commit_ts)
            raise NoAnswer(f"the commit ts that was answered, {commit_ts}, lies in the future")
        return key, outcome

    async def _record(self, start_ts: int, outcome: Outcome, key: bytes) -> bool:
        if outcome.fate is Fate.COMMITTED:
            await self.committed(start_ts, outcome.commit_ts, key=key)
        elif outcome.fate is Fate.ROLLED_BACK:
            await self.rolled_back(start_ts)
        return outcome.fate is not Fate.PENDING

    async def committed(
        self, start_ts: int, commit_ts: int, *, key: bytes = b"", reason: str = "", who: str = ""
    ) -> None:
        """Complete a P by the Pump's own C; durable on return, or kept in memory where nothing can be written.

        Raises what kept it from being written where it cannot be kept in memory either: the P stays open.
        """
        recorded, done = self._crossing()
        committed = self._store.settling.committed
        await asyncio.to_thread(committed, start_ts, commit_ts, key=key, reason=reason, who=who, done=done)
        await recorded
        log.info("commit_completed", start_ts=start_ts, commit_ts=commit_ts)

    async def rolled_back(self, start_ts: int, *, reason: str = "", who: str = "") -> None:
        """Drop a P of which it is promised that no commit can follow; as durable as `committed`."""
        recorded, done = self._crossing()
        await asyncio.to_thread(self._store.settling.rolled_back, start_ts, reason=reason, who=who, done=done)
        await recorded
        log.info("prewrite_rolled_back", start_ts=start_ts)

    @staticmethod
    def _crossing() -> tuple[asyncio.Future[None], Callable[[Status], None]]:
        """A future, and the callback that sets it from the store's thread."""
        loop = asyncio.get_running_loop()
        recorded: asyncio.Future[None] = loop.create_future()

        def finish(status: Status) -> None:
            if recorded.done():
                return
            if status is None:
                recorded.set_result(None)
            else:
                recorded.set_exception(status)

        def done(status: Status) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, status)

        return recorded, done
