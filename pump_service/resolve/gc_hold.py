"""Keeps TiDB's GC below the oldest prewrite that waits for its outcome.

After GC a transaction that was committed can look as if it had never been: its versions are gone where newer ones
cover them, and whole ranges where a table was dropped. A service safe point in PD stops that. It belongs to one node,
lives on for a while after that node's last word, and goes when nothing waits any more.

GC at X cleans what newer versions cover up to X inclusive: so the hold for a start ts lies one below it.

A prewrite is found by its start ts when it is indexed. While the index lags by more than a renewal, what lies before it
is not known: GC is kept where it is, which was below every transaction that was alive when it was written.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

import structlog

from pumphouse.model import strict
from pumphouse.model.tso import show

log = structlog.get_logger()

INTERVAL_S = 10.0


class SafePoints(Protocol):
    """What PD says and takes about GC; `pumphouse.registry.pd_client.PdClient` has it."""

    def gc_safe_point(self) -> int:
        """What GC may have cleaned up to, inclusive."""
        ...

    def hold_gc(self, service_id: str, safe_point: int, ttl_s: int) -> int:
        """Set a service's safe point; the smallest of all services."""
        ...

    def release_gc(self, service_id: str) -> None:
        """Remove it."""
        ...


class GcHold:
    """One node's service safe point. Blocking but for `run`."""

    def __init__(
        self,
        pd: SafePoints,
        node_id: str,
        oldest: Callable[[], int | None],
        prewrites: Callable[[], tuple[int, int]],
        *,
        ttl_s: float,
        caught_up: Callable[[], object] = lambda: None,
    ) -> None:
        """Hold nothing yet.

        Args:
            pd: where safe points are kept.
            node_id: of this Pump.
            oldest: smallest start ts of an indexed prewrite without an outcome, or None.
            prewrites: how many were written, and how many of those are indexed.
            ttl_s: how long a hold lives after it was renewed last.
            caught_up: waits until what was answered is indexed, for some seconds at most.
        """
        self.service_id = f"pumphouse-pump-{node_id}"
        self._pd = pd
        self._oldest = oldest
        self._prewrites = prewrites
        self._due = 0  # prewrites that were written at the last renewal
        self._ttl_s = max(1, int(ttl_s))
        self._caught_up = caught_up
        self._held = True  # by an earlier life of this node, for all we know
        self._lock = threading.Lock()
        self._warned = 0

    def renew(self, *, last: bool = False) -> None:
        """Hold, move or remove the safe point, as what waits now has it.

        ``last``: no renewal follows, so what was written a moment ago and is not indexed yet counts now.
        """
        if last:
            self._caught_up()
        with self._lock:
            # Before the oldest is looked up: what is indexed from here on is in it, or behind at the next renewal.
            written, indexed = self._prewrites()
            oldest = self._oldest()
            lags, self._due = indexed < (written if last else self._due), written
            if lags:
                self._stop(oldest)
            elif oldest is not None:
                self._hold(oldest)
            elif self._held:
                self._pd.release_gc(self.service_id)
                self._held = False

    def reached(self, start_ts: int) -> int:
        """How far GC can have come by now, whatever it is about to do.

        The larger of PD's GC safe point and the smallest safe point of all services: TiDB destroys the ranges of
        dropped tables up to the latter before it moves the former.
        """
        with self._lock:
            _, indexed = self._prewrites()
            oldest = self._oldest()
            oldest = start_ts if oldest is None else min(oldest, start_ts)
            smallest = self._stop(oldest) if indexed < self._due else self._hold(oldest)
        return max(smallest, self._pd.gc_safe_point())

    async def run(self) -> None:
        """Renew for ever, and once more at the end: a Pump that leaves nothing open holds nothing."""
        try:
            while True:
                await self._try()
                await asyncio.sleep(min(INTERVAL_S, self._ttl_s / 3))
        finally:
            await self._try(last=True)

    async def _try(self, *, last: bool = False) -> None:
        try:
            await asyncio.to_thread(self.renew, last=last)
        except strict.SURVIVED as error:
            log.warning("gc_hold_failed", error=str(error))

    def _stop(self, oldest: int | None) -> int:
        """Keep GC where it is now."""
        safe_point = self._pd.gc_safe_point()
        if oldest is not None:
            safe_point = min(safe_point, oldest - 1)
        smallest = self._pd.hold_gc(self.service_id, safe_point, self._ttl_s)
        self._held = True
        if smallest > safe_point:  # refused: some service's, perhaps ours of before, is above it, and so are all
            smallest = self._pd.hold_gc(self.service_id, smallest, self._ttl_s)
        return smallest

    def _hold(self, start_ts: int) -> int:
        smallest = self._pd.hold_gc(self.service_id, start_ts - 1, self._ttl_s)
        self._held = True
        if smallest >= start_ts:
            # Too late for this one. What waits behind it can still be kept where GC is now.
            if self._warned != start_ts:
                self._warned = start_ts
                log.warning("gc_passed_prewrite", start_ts=start_ts, started=show(start_ts), safe_point=show(smallest))
            smallest = self._pd.hold_gc(self.service_id, smallest, self._ttl_s)
        return smallest
