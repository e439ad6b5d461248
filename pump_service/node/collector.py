"""GC runs: what the consumers have, what the store may free, and who holds the rest (row P11).

G = min(checkpoint of every registered consumer that is not offline, now - retention); with no consumer retention alone,
with a warning. The store persists G before it deletes anything, and deletes below D only (`docs/formats.md`).
"""

from __future__ import annotations

import asyncio

import structlog

from pump_service.metrics import PumpMetrics
from pump_service.store.store import GcReport, Store
from pumphouse.model import strict
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.tso import Tso, compose, physical_ms
from pumphouse.registry.base import Cluster

log = structlog.get_logger()


def checkpoints(cluster: Cluster) -> dict[str, Tso]:
    """Checkpoint of each consumer that holds GC: every registered Drainer that is not offline."""
    return {
        node.node_id: node.max_commit_ts
        for node in cluster.nodes(NodeKind.DRAINER)
        if node.state is not NodeState.OFFLINE
    }


class Collector:
    """Runs GC by interval and on trigger; a trigger while one runs is ignored."""

    def __init__(
        self, *, cluster: Cluster, store: Store, retention_s: float, interval_s: float, metrics: PumpMetrics
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._retention_ms = int(retention_s * 1000)
        self._interval_s = interval_s
        self._metrics = metrics
        self._running = False

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self._running

    async def trigger(self) -> GcReport:
        """Run once; ``started`` is false when one is running already."""
        if self._running:
            return GcReport(started=False, gc_point=self._store.gc_point, deletion_limit=self._store.deletion_limit)
        self._running = True
        try:
            report = await asyncio.to_thread(self._collect)
        except BaseException:
            self._metrics.gc_runs.labels("failed").inc()
            raise
        finally:
            self._running = False
        self._metrics.gc_runs.labels("done").inc()
        self._metrics.gc_freed_bytes.inc(report.freed_bytes)
        self._metrics.deleted_keys.inc(report.deleted_keys)
        self._metrics.done_gc_ts.set(physical_ms(report.gc_point))
        return report

    async def run(self) -> None:
        """GC by interval, for ever; a failed run is logged and the next one tries again."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.trigger()
            except strict.SURVIVED as error:
                log.warning("gc_failed", error=str(error))

    def _collect(self) -> GcReport:
        # The clock before the list: a consumer that registers in between asks for nothing older than its own start.
        oldest = compose(max(physical_ms(self._cluster.tso()) - self._retention_ms, 0))
        consumers = checkpoints(self._cluster)
        if not consumers:
            log.warning("gc_without_consumer", hint="no consumer is registered: retention alone decides what goes")
        return self._store.gc.collect(consumers, oldest)
