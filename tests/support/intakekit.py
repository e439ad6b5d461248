"""What stands between the door and a store, put together: the gate, the checks, the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pump_service.intake.ingest import Ingest
from pump_service.intake.submit import Submitter
from pump_service.metrics import PumpMetrics
from pump_service.node.horizon import Horizon, Timestamps
from pump_service.node.lifecycle import Action, Lifecycle
from pump_service.store.store import Store
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.registry.file import FileCluster
from tests.support.storekit import settings

CLUSTER = 77


class Intake:
    """Of a Pump that is online."""

    def __init__(self, store: Store, cluster: FileCluster, queue_bytes: int, *, check_rows: bool = False) -> None:
        self.store = store
        self.cluster = cluster
        self.life = Lifecycle(None)
        self.life.apply(Action.START)
        self.metrics = PumpMetrics()
        self.submitter = Submitter(store, queue_bytes, self.metrics)
        self.ingest = Ingest(
            cluster_id=CLUSTER, horizon=Horizon(Timestamps(cluster, SYSTEM_CLOCK), SYSTEM_CLOCK), lifecycle=self.life,
            store=store, submitter=self.submitter, check_rows=check_rows,
        )  # fmt: skip


def on_a_store(
    tmp_path: Path, test: Callable[[Store, FileCluster], Awaitable[None]], *, clock: Clock = SYSTEM_CLOCK,
    opening: dict[str, Any] | None = None, **values: Any,
) -> None:  # fmt: skip
    """A test that is a coroutine, with a store that is opened on its loop."""

    async def main() -> None:
        store = Store.open(settings(tmp_path / "data", **values), clock=clock, **(opening or {}))
        try:
            await asyncio.wait_for(test(store, FileCluster(tmp_path / "cluster")), 30)
        finally:
            await asyncio.to_thread(store.close)

    asyncio.run(main())
