"""What a write must pass before the store sees it, in the order of the Go Pump (docs/formats.md, "WriteBinlog").

1 cluster id, 2 parses, 3 state (a P only when online), 4 disk space (for a P), 5 probe, 6 store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from include.errors import BinlogError, ClusterMismatch, PumpDraining
from include.model.binlog import BinlogType
from pump_service.api.convert import item_of
from pump_service.lifecycle import Lifecycle
from pump_service.store.store import Item, Store
from pump_service.submit import Statuses, Submitter


class Ingest:
    """Checks and submits. Owned by the event loop."""

    def __init__(self, *, cluster_id: int, lifecycle: Lifecycle, store: Store, submitter: Submitter) -> None:
        self.cluster_id = cluster_id
        self._lifecycle = lifecycle
        self._store = store
        self._submitter = submitter

    def check_cluster(self, cluster_id: int) -> None:
        """ClusterMismatch unless the caller's cluster is ours (row W5)."""
        if cluster_id != self.cluster_id:
            raise ClusterMismatch(
                f"cluster ID are mismatch, {cluster_id} vs {self.cluster_id}", got=cluster_id, want=self.cluster_id
            )

    async def write(self, payload: bytes) -> None:
        """One payload; returns when it is durable. A probe (both times 0) stores nothing."""
        await self._submitter.room(len(payload))
        item = item_of(payload)
        if self._probe_or_refuse(item):
            return
        statuses = await self._submitter.submit((item,))
        if statuses[0] is not None:
            raise statuses[0]

    async def write_batch(self, payloads: Sequence[bytes]) -> asyncio.Future[Statuses]:
        """Hand a batch over in order, as soon as there is room; the future has one status for each payload."""
        await self._submitter.room(sum(map(len, payloads)))
        statuses: Statuses = [None] * len(payloads)
        items, places = [], []
        for place, payload in enumerate(payloads):
            try:
                item = item_of(payload)
                if not self._probe_or_refuse(item):
                    items.append(item)
                    places.append(place)
            except BinlogError as error:
                statuses[place] = error
        answer: asyncio.Future[Statuses] = asyncio.get_running_loop().create_future()
        if not items:
            answer.set_result(statuses)
            return answer

        def arrange(stored: asyncio.Future[Statuses]) -> None:
            for place, status in zip(places, stored.result(), strict=True):
                statuses[place] = status
            if not answer.done():
                answer.set_result(statuses)

        self._submitter.submit(items).add_done_callback(arrange)
        return answer

    def _probe_or_refuse(self, item: Item) -> bool:
        """Whether it is a probe; raises what the Pump does not take now."""
        if item.tp == BinlogType.PREWRITE:
            if not self._lifecycle.takes_prewrites:
                state = self._lifecycle.state
                raise PumpDraining(f"no online: {state}", state=str(state))
            self._store.check_space()
        elif not self._lifecycle.takes_outcomes:
            state = self._lifecycle.state
            raise PumpDraining(f"this Pump takes nothing more: {state}", state=str(state))
        return item.start_ts == 0 and item.commit_ts == 0
