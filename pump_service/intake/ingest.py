"""What a write must pass before the store sees it, in the order of the Go Pump (docs/formats.md, "WriteBinlog").

1 cluster id, 2 parses, its rows too, and its times are none of the future, 3 state (a P only when online), 4 disk space
(for a P), 5 probe, 6 store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from pump_service.intake.convert import item_of, refuse_unreadable
from pump_service.intake.payloads import Intake
from pump_service.intake.submit import Statuses, Submitter
from pump_service.node.horizon import Horizon
from pump_service.node.lifecycle import Lifecycle
from pump_service.store.groups import Done
from pump_service.store.store import Item, Store
from pumphouse.errors import BadBinlog, BinlogError, ClusterMismatch, PumpDraining, PumpUnavailable
from pumphouse.model.binlog import BinlogType
from pumphouse.model.tso import show


class Ingest:
    """Checks and submits. Owned by the event loop."""

    def __init__(
        self,
        *,
        cluster_id: int,
        horizon: Horizon,
        lifecycle: Lifecycle,
        store: Store,
        submitter: Submitter,
        check_rows: bool,
    ) -> None:
        self.cluster_id = cluster_id
        self._horizon = horizon
        self._lifecycle = lifecycle
        self._store = store
        self._submitter = submitter
        self._check_rows = check_rows

    def check_cluster(self, cluster_id: int) -> None:
        """ClusterMismatch unless the caller's cluster is ours (row W5)."""
        if cluster_id != self.cluster_id:
            raise ClusterMismatch(
                f"cluster ID are mismatch, {cluster_id} vs {self.cluster_id}", got=cluster_id, want=self.cluster_id
            )

    def take(self, intake: Intake, done: Done) -> bool:
        """Hand over payloads of our cluster if each of them passes; False, and nothing happens, if one may not.

        ``done`` is called on the event loop when they are durable, or with a status for each.
        """
        if intake.others or intake.probes or not self._horizon.covers(intake.latest):
            return False
        if self._check_rows and intake.unreadable:
            return False
        if self._refusal(prewrites=intake.prewrites > 0, outcomes=intake.prewrites < len(intake.records)) is not None:
            return False
        self._submitter.send(intake.records, done)
        return True

    async def take_soon(self, intake: Intake, done: Done) -> bool:
        """As `take`, after the cluster was asked about the times, where they are all that is in the way."""
        if intake.others or intake.probes or self._horizon.covers(intake.latest):
            return False
        try:
            await self._horizon.reaches(intake.latest)
        except PumpUnavailable:
            return False
        return self.take(intake, done)

    async def write(self, payload: bytes) -> None:
        """One payload; returns when it is durable. A probe (both times 0) stores nothing."""
        (status,) = await (await self.write_batch((payload,)))
        if status is not None:
            raise status

    async def write_batch(self, payloads: Sequence[bytes]) -> asyncio.Future[Statuses]:
        """Hand a batch over in order, as soon as there is room; the future has one status for each payload."""
        await self._submitter.room(sum(map(len, payloads)))
        statuses: Statuses = [None] * len(payloads)
        parsed: list[tuple[int, Item]] = []
        for place, payload in enumerate(payloads):
            try:
                item = item_of(payload)
                if self._check_rows:
                    refuse_unreadable(item)
                parsed.append((place, item))
            except BinlogError as error:
                statuses[place] = error
        if not self._horizon.covers(max((_latest(item) for _, item in parsed), default=0)):
            parsed = await self._without_future(parsed, statuses)
            await self._submitter.room(sum(map(len, payloads)))
        items, places = [], []
        # From here to the submission nothing waits: the state must be that of the moment at which it is handed over.
        for place, item in parsed:
            is_prewrite = item.tp == BinlogType.PREWRITE
            statuses[place] = self._refusal(prewrites=is_prewrite, outcomes=not is_prewrite)
            if statuses[place] is None and (item.start_ts or item.commit_ts):  # a probe stores nothing
                items.append(item)
                places.append(place)
        answer: asyncio.Future[Statuses] = asyncio.get_running_loop().create_future()
        if not items:
            answer.set_result(statuses)
            return answer

        self._submitter.submit(items).add_done_callback(partial(_arrange, answer, statuses, places))
        return answer

    async def _without_future(self, parsed: Sequence[tuple[int, Item]], statuses: Statuses) -> list[tuple[int, Item]]:
        """What the cluster can have given out the times of; sets the statuses of the rest. Asks at most once."""
        unavailable: PumpUnavailable | None = None
        try:
            await self._horizon.reaches(max(_latest(item) for _, item in parsed))
        except PumpUnavailable as error:
            unavailable = error
        taken = []
        for place, item in parsed:
            if self._horizon.covers(_latest(item)):
                taken.append((place, item))
            else:
                statuses[place] = unavailable or BadBinlog(
                    f"a Binlog from the future: start {show(item.start_ts)}, commit {show(item.commit_ts)}",
                    hint="take timestamps from this cluster",
                    start_ts=item.start_ts,
                    commit_ts=item.commit_ts,
                )
        return taken

    def _refusal(self, *, prewrites: bool, outcomes: bool) -> BinlogError | None:
        """Why the Pump does not take such writes now; None = it does."""
        state = self._lifecycle.state
        if prewrites and not self._lifecycle.takes_prewrites:
            return PumpDraining(f"no online: {state}", state=str(state))
        if prewrites and (full := self._store.refusal()) is not None:
            return full
        if outcomes and not self._lifecycle.takes_outcomes:
            return PumpDraining(f"this Pump takes nothing more: {state}", state=str(state))
        return None


def _arrange(
    answer: asyncio.Future[Statuses], statuses: Statuses, places: Sequence[int], stored: asyncio.Future[Statuses]
) -> None:
    """Put what the store says of its items to their places, and answer."""
    if answer.done():
        return
    try:
        for place, status in zip(places, stored.result(), strict=True):
            statuses[place] = status
    except ValueError as error:  # not one each: what is durable is not known
        answer.set_exception(error)
    else:
        answer.set_result(statuses)


def _latest(item: Item) -> int:
    return max(item.start_ts, item.commit_ts)
