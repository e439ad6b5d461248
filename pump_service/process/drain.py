"""Leaving the cluster without taking anything along (row P13).

When this begins, the gate for Ps is closed already and `closing` is registered. Then: no P unresolved -> F, a fake, so
F lies above every commit ts of this Pump -> every consumer that is not offline has passed F. Fakes and pulls go on
meanwhile, C and Rollback are taken.
"""

from __future__ import annotations

import asyncio

import structlog

from pump_service.intake.fakes import FakeWriter
from pump_service.node.collector import checkpoints
from pump_service.store.store import Store
from pumphouse.model import strict
from pumphouse.model.tso import Tso, show
from pumphouse.registry.base import Cluster

log = structlog.get_logger()

_LOOK_S = 0.2
_CONSUMERS_EVERY_S = 1.0  # as the Go Pump: it is a read of the registry
_NAMED_EVERY_S = 10.0


async def drained(cluster: Cluster, store: Store, fakes: FakeWriter) -> Tso:
    """Wait until the Pump may go; returns F. Without any consumer nothing is waited for after F."""
    await _nothing_unresolved(store)
    last = await _last_position(store, fakes)
    log.info("last_position_fixed", ts=last)
    named: set[str] = set()
    named_at = float("-inf")
    while True:
        behind = await _behind(cluster, last)
        if not behind:
            return last
        now = asyncio.get_running_loop().time()
        if behind.keys() != named or now - named_at >= _NAMED_EVERY_S:
            named, named_at = set(behind), now
            log.info(
                "waiting_for_consumers",
                ts=last,
                behind={name: show(ts) for name, ts in behind.items()},
                hint="`pumphouse snapshot` lets an archive catch up, `pumphouse drainers` shows how far each is",
            )
        await asyncio.sleep(_CONSUMERS_EVERY_S)


async def _nothing_unresolved(store: Store) -> None:
    named_at = float("-inf")
    while count := store.prewrites.count:
        now = asyncio.get_running_loop().time()
        if now - named_at >= _NAMED_EVERY_S:
            named_at = now
            oldest = store.prewrites.lowest()  # None: what is open is not indexed yet
            log.info(
                "waiting_for_prewrites",
                count=count,
                oldest=None if oldest is None else show(oldest),
                hint="`pumphouse pump status` lists them; each ends with its transaction or by its resolver;"
                " last way out, for who knows which: `pumphouse pump settle START_TS --reason WHY` with"
                " --committed TIME or --rolled-back",
            )
        await asyncio.sleep(_LOOK_S)


async def _last_position(store: Store, fakes: FakeWriter) -> Tso:
    while True:
        try:
            ts = await fakes.write()
        except strict.SURVIVED as error:
            log.warning("fake_failed", error=str(error))  # no timestamp now: the cluster may be back in a moment
            ts = None
        if ts is not None:
            break
        await asyncio.sleep(_LOOK_S)
    while store.watermark < ts:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    return ts


async def _behind(cluster: Cluster, last: Tso) -> dict[str, Tso]:
    try:
        found = await asyncio.to_thread(checkpoints, cluster)
    except strict.SURVIVED as error:
        # Not knowing is not the same as nobody waiting.
        log.warning("consumers_unreadable", error=str(error))
        return {"unknown": Tso(0)}
    return {name: ts for name, ts in found.items() if ts < last}
