"""Fake binlogs: the watermark moves on even when no transaction does (row P8).

Anything that was taken before a fake's ts was drawn lies before the fake in the value log, and a transaction whose P
comes after it takes its commit ts after that; so a fake never passes a commit.
"""

from __future__ import annotations

import asyncio

import structlog

from pump_service.intake.submit import Submitter
from pump_service.metrics import PumpMetrics
from pump_service.node.horizon import Timestamps
from pump_service.store.records import fake
from pump_service.store.store import Store
from pumphouse.model import strict
from pumphouse.model.tso import Tso

log = structlog.get_logger()


class FakeWriter:
    """Writes fakes; where nothing can be written, publishes them unpersisted."""

    def __init__(self, timestamps: Timestamps, store: Store, submitter: Submitter, metrics: PumpMetrics) -> None:
        self._timestamps = timestamps
        self._store = store
        self._submitter = submitter
        self._metrics = metrics
        self._last = 0

    async def write(self) -> Tso | None:
        """One fake; its ts, or None when it could be neither written nor published."""
        ts = await self._timestamps.own()
        (status,) = await self._submitter.submit((fake(ts),))
        if status is None:
            self._metrics.fakes.labels("written").inc()
            self._last = ts
            return ts
        # Without it a full disk would stay full: the archive could not advance, so nothing could be freed.
        if self._store.publish_unpersisted(ts):
            self._last = ts
            self._metrics.fakes.labels("unpersisted").inc()
            return ts
        self._metrics.fakes.labels("failed").inc()
        log.warning("fake_failed", ts=ts, error=str(status))
        return None

    async def run(self, interval_s: float) -> None:
        """A fake whenever nothing but a fake has moved the watermark for an interval, for ever."""
        before = self._store.watermark
        while True:
            await asyncio.sleep(interval_s)
            now = self._store.watermark
            # One of ours that waits behind an unresolved P is enough: it moves the watermark when the P is settled.
            if now in (before, self._last) and self._last <= now:
                try:
                    await self.write()
                except strict.SURVIVED as error:
                    log.warning("fake_failed", error=str(error))
            before = self._store.watermark
