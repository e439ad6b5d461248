"""Composition root of a Pump: builds the stages, starts them in order, stops them in order.

Order of a start: identity, ports, store (recovered), registered, serving, Drainers notified, and only then online for
itself; a start that fails puts back the registry value that it found. Order of an end: gate, registry, streams and
calls, store, registry. Whatever stage dies stops the process: nothing limps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pump_service.api.batch_api import PumpBatchApi
from pump_service.api.browsers import Names
from pump_service.api.grpc_api import PumpApi
from pump_service.api.http_api import HttpApi
from pump_service.api.rights import Rights, exposed
from pump_service.api.services import add_services
from pump_service.api.writes import BatchWrites, GroupWrites
from pump_service.node import heartbeat, notify
from pump_service.node.horizon import BELIEVED_S
from pump_service.node.lifecycle import Action, must_notify
from pump_service.node.node_id import check_cluster, has_node_id, keep_cluster, node_id_of, refuse_second
from pump_service.process import front
from pump_service.process.compiler import Leash, compile_apart
from pump_service.process.drain import drained
from pump_service.process.footprint import share_heaps
from pump_service.process.push import push
from pump_service.process.stages import Stages, build_stages
from pump_service.process.warm import warm
from pump_service.process.warm_reads import warm_reads
from pump_service.store.store import Elsewhere, Store
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import CorruptionError
from pumphouse.model import address, strict
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.tso import physical_ms, show
from pumphouse.registry.base import Cluster
from pumphouse.settings import PumpSettings, TlsSettings

log = structlog.get_logger()

_GRACE_S = 5.0
_THREADS = 16
_REGISTER_AGAIN_S = 1.0
_WRITER_LOOK_S = 0.5
_IN_CLEAR = (
    "whoever reaches it can read and write every transaction, and a token on the way can be read: tls.ca, tls.cert, "
    "tls.key and tls.cert_allowed_cn, or a network of its own (docs/security.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a Pump says when it serves."""

    node_id: str
    grpc: str
    http: str
    pid: int


class _Stopped(Exception):
    """It was told to stop before it served."""


class PumpApp:
    """One Pump in this process. `run` returns the exit code."""

    def __init__(
        self,
        settings: PumpSettings,
        cluster: Cluster,
        tls: TlsSettings,
        *,
        announce: Callable[[Serving], None],
        operator_tokens: Sequence[str] = (),
        before_serving: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._tls = tls
        self._announce = announce
        self._rights = Rights(
            tls,
            tokens=operator_tokens,
            open_to_all=settings.open_operations,
            trust_loopback=settings.trust_loopback,
        )
        self._has_token = bool(operator_tokens)
        self._before_serving = before_serving
        self._clock = clock
        self._event_loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._compiler = Leash()
        self._in_turn = asyncio.Lock()
        # What heartbeats repeat: the state that was registered last. The gate moves before it.
        self._shown = NodeState.ONLINE
        self._failure: BaseException | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._change: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Start, serve until told to stop, stop. 0 = stopped in order, 1 = a stage failed."""
        loop = asyncio.get_running_loop()
        # Work on the store and, one at a time each, GC, its hold, resolvers and drain, which may wait for the cluster.
        loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="pump"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            async with contextlib.AsyncExitStack() as undo:
                stages = await self._start(undo)
                await self._stopped.wait()
                await self._finish(stages)
        except _Stopped:
            log.info("pump_stopped", state="it has not served")
            return 0
        if isinstance(self._failure, heartbeat.Superseded):
            log.error("pump_superseded", error=self._failure.message, hint=self._failure.hint)
            return 1
        if self._failure is not None:
            log.error("pump_failed", error=str(self._failure), exc_info=self._failure)
            return 1
        return 0

    def stop(self) -> None:
        """End in order, as on SIGTERM; a start ends before its next step."""
        self._stopped.set()
        self._compiler.let_go()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    # ---- start -------------------------------------------------------------------------------------------------

    async def _start(self, undo: contextlib.AsyncExitStack) -> Stages:
        settings = self._settings
        share_heaps()
        undo.callback(self._compiler.close)
        serving = front.bind(settings, self._tls, self._rights)
        undo.push_async_callback(serving.close)
        addr, http_addr = serving.addr, serving.http_addr
        in_clear = exposed((addr, http_addr), self._tls)
        if in_clear:
            log.warning("listens_in_clear", addr=", ".join(in_clear), operator_token=self._has_token, hint=_IN_CLEAR)
        advertised, had_id = settings.advertise_addr or address.reachable(addr), has_node_id(settings.data_dir)
        node_id = node_id_of(settings.data_dir, settings.node_id, advertised)

        registrar = await asyncio.to_thread(heartbeat.Registrar, self._cluster, node_id, advertised, self._clock)
        undo.push_async_callback(registrar.close)
        cluster_id = await asyncio.to_thread(self._cluster.cluster_id)
        check_cluster(settings.data_dir, cluster_id)
        for step in (partial(compile_apart, self._compiler), warm, warm_reads):
            await asyncio.to_thread(step)
            self._go_on()
        store = await self._open_store(undo, registrar, addr, cluster_id, stored_id=not had_id)
        store.on_fault(self._store_died)
        stages = build_stages(
            settings,
            cluster=self._cluster,
            tls=self._tls,
            clock=self._clock,
            store=store,
            registrar=registrar,
            http=address.reachable(http_addr),
            in_clear=in_clear,
            request=self._request,
        )
        undo.push_async_callback(stages.resolver.close)
        undo.callback(stages.pulls.close)
        self._stages = stages

        self._offer(serving, stages)
        unnotified = notify.Unnotified(settings.data_dir)
        was = registrar.found.state if registrar.found is not None else None
        if must_notify(was):
            await asyncio.to_thread(unnotified.set)
        self._go_on()
        # From here to the last line a failure puts back what the registry held.
        failed = await undo.enter_async_context(contextlib.AsyncExitStack())
        failed.push_async_callback(registrar.try_to_put_back)
        await registrar.register(NodeState.ONLINE, stages.report())
        self._front = serving
        self._before_serving()
        names = Names((addr, http_addr, advertised, address.reachable(http_addr)), settings.http_hosts)
        api = HttpApi(stages.operations, stages.metrics, self._tls, self._rights, names)
        await serving.serve(api.application())
        await self._notify_drainers(unnotified)
        self._go_on()
        failed.pop_all()

        stages.lifecycle.apply(Action.START)
        self._run_loops(stages)
        if was is NodeState.CLOSING:
            _cut_short(node_id, NodeState.ONLINE)
        self._announce(
            Serving(node_id=node_id, grpc=address.reachable(addr), http=address.reachable(http_addr), pid=os.getpid())
        )
        log.info("pump_serving", node_id=node_id, grpc=addr, http=http_addr, incarnation=store.incarnation)
        return stages

    async def _open_store(
        self, undo: contextlib.AsyncExitStack, registrar: heartbeat.Registrar, addr: str, cluster_id: int, *,
        stored_id: bool,
    ) -> Store:  # fmt: skip
        data_dir = self._settings.data_dir
        known = registrar.found.extra if registrar.found is not None else None
        elsewhere = await asyncio.to_thread(_elsewhere, registrar, data_dir, addr, stored=stored_id)
        store = await asyncio.to_thread(
            Store.open, self._settings, clock=self._clock, registered=known, elsewhere=elsewhere
        )
        undo.push_async_callback(asyncio.to_thread, store.close)
        await asyncio.to_thread(keep_cluster, data_dir, cluster_id)
        # A fresh one: the process before may have published until the store was ours.
        check_clock(await asyncio.to_thread(self._cluster.tso), store.watermark)
        return store

    def _offer(self, serving: front.Front, stages: Stages) -> None:
        """Put the services on the server."""
        pull_bytes = self._settings.pull_batch_bytes
        batches = BatchWrites(stages.ingest, stages.submitter)
        add_services(
            serving.server,
            PumpApi(stages.ingest, stages.pulls, stages.metrics, pull_bytes=pull_bytes, rights=self._rights),
            PumpBatchApi(
                stages.ingest,
                batches,
                stages.pulls,
                stages.operations,
                stages.metrics,
                pull_bytes=pull_bytes,
                rights=self._rights,
            ),
            max_message_bytes=self._settings.max_message_bytes,
        )
        if serving.door is not None:
            groups = GroupWrites(stages.ingest, stages.submitter, stages.metrics)
            serving.door.add_group_method("/binlog.Pump/WriteBinlog", groups.write_group)
            stages.submitter.hold_back(serving.door.pause_reading, serving.door.resume_reading)

    async def _notify_drainers(self, unnotified: notify.Unnotified) -> None:
        if unnotified.is_set:
            nodes = await asyncio.to_thread(self._cluster.nodes, NodeKind.DRAINER)
            await notify.notify([node for node in nodes if node.state is NodeState.ONLINE], self._tls)
            await asyncio.to_thread(unnotified.clear)

    def _run_loops(self, stages: Stages) -> None:
        settings = self._settings
        self._loop("fakes", stages.fakes.run(settings.gen_binlog_interval_s))
        self._loop("resolve", stages.asker.run())
        if stages.gc_hold is not None:
            self._loop("gc_hold", stages.gc_hold.run())
        self._loop("gc", stages.collector.run())
        self._loop("writer", self._watch_writer(stages))
        if settings.metrics_push_addr and settings.metrics_push_interval_s:
            self._loop(
                "push",
                push(
                    stages.metrics,
                    settings.metrics_push_addr,
                    settings.metrics_push_interval_s,
                    stages.registrar.node_id,
                ),
            )
        self._loop(
            "heartbeat",
            heartbeat.beat(
                stages.registrar,
                settings.heartbeat_interval_s,
                lambda: self._shown,
                stages.report,
                stages.metrics,
                self._in_turn,
            ),
        )

    def _loop(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._died)
        self._loops.append(task)

    def _died(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _store_died(self, error: BaseException) -> None:
        """Called by a thread of the store that ended by a bug."""
        self._event_loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()

    # ---- changes of state --------------------------------------------------------------------------------------

    def _request(self, action: Action) -> None:
        """Begin a change: the gate closes here and now, everything after it takes its time."""
        stages = self._stages
        stages.lifecycle.apply(action)
        work = self._close(stages) if action is Action.CLOSE else self._pause(stages)
        self._change = asyncio.get_running_loop().create_task(work, name=str(action))
        self._change.add_done_callback(self._died)

    async def _pause(self, stages: Stages) -> None:
        await stages.submitter.settled()
        await self._register(stages)
        self.stop()

    async def _close(self, stages: Stages) -> None:
        # Ps that were taken before the gate closed are on disk before anybody reads `closing`.
        await stages.submitter.settled()
        await self._register(stages)
        await drained(self._cluster, stages.store, stages.fakes)
        stages.lifecycle.refuse_outcomes()
        await stages.submitter.settled()
        stages.lifecycle.apply(Action.DRAINED)
        await self._register(stages)
        self.stop()

    async def _watch_writer(self, stages: Stages) -> None:
        """After EIO or a failed fsync: no more writes, reads go on, the exit code says so."""
        while stages.store.writer_error is None:  # noqa: ASYNC110 - changes on the store's thread
            await asyncio.sleep(_WRITER_LOOK_S)
        self._failure = self._failure or stages.store.writer_error
        log.error("serving_reads_only", error=str(self._failure), hint="mend the disk, then restart this Pump")
        if stages.lifecycle.state is NodeState.ONLINE:
            stages.lifecycle.apply(Action.PAUSE)
            await self._register(stages)

    async def _register(self, stages: Stages) -> None:
        """Register the state; again and again until the registry takes it."""
        while True:
            try:
                async with self._in_turn:
                    self._shown = stages.lifecycle.state
                    await stages.registrar.register(self._shown, stages.report())
            except heartbeat.Superseded:
                raise
            except strict.SURVIVED as error:
                log.warning("registration_failed", state=str(stages.lifecycle.state), error=str(error))
                await asyncio.sleep(_REGISTER_AGAIN_S)
            else:
                return

    # ---- end ---------------------------------------------------------------------------------------------------

    async def _finish(self, stages: Stages) -> None:
        if self._change is not None and not self._change.done():
            self._change.cancel()  # SIGTERM while closing: paused, and to be closed again after the next start
            if stages.lifecycle.state is NodeState.CLOSING and self._failure is None:
                _cut_short(stages.registrar.node_id, NodeState.PAUSED)
            await asyncio.wait([self._change])
        if stages.lifecycle.state in (NodeState.ONLINE, NodeState.CLOSING):
            stages.lifecycle.apply(Action.PAUSE)
        superseded = isinstance(self._failure, heartbeat.Superseded)
        if stages.lifecycle.state is NodeState.PAUSING and not superseded:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._register(stages)
        stages.pulls.stop()
        await self._front.stop(_GRACE_S)
        stages.lifecycle.refuse_outcomes()
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await stages.submitter.settled()
        await asyncio.to_thread(stages.store.close)
        if stages.lifecycle.state is NodeState.PAUSING:
            stages.lifecycle.apply(Action.STOPPED)
        if not superseded:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._register(stages)
        log.info("pump_stopped", node_id=stages.registrar.node_id, state=str(stages.lifecycle.state))


def _elsewhere(registrar: heartbeat.Registrar, data_dir: Path, bound: str, *, stored: bool) -> Elsewhere | None:
    found = registrar.elsewhere(bound)
    refuse_second(data_dir, found, stored=stored)
    return found


def _cut_short(node_id: str, state: NodeState) -> None:
    start = "start it, then: " if state is NodeState.PAUSED else ""
    log.warning(
        "closing_was_cut_short", node_id=node_id, state=str(state), hint=f"{start}pumphouse offline-pump {node_id}"
    )


def check_clock(now: int, published: int) -> None:
    """CorruptionError when the cluster's clock went back below what this Pump has published: all would come late."""
    if physical_ms(now) + BELIEVED_S * 1000 < physical_ms(published):
        raise CorruptionError(
            f"the cluster's clock stands at {show(now)}, this Pump has published up to {show(published)}: it went back",
            hint="set the clock forward (PD: allocated ts; etcd: its key), above every ts ever given out",
        )
