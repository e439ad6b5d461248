"""What operators and the archive ask of a running Pump, whatever door they come through.

Owned by the event loop; store and cluster calls that may block run on threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog

from pump_service.api import debug_page
from pump_service.api.fields import InMemory
from pump_service.node.collector import Collector
from pump_service.node.heartbeat import Registrar
from pump_service.node.horizon import Timestamps
from pump_service.node.lifecycle import OPERATOR_ACTIONS, Action, Lifecycle
from pump_service.node.shared import Shared
from pump_service.resolve.asker import Asker
from pump_service.resolve.base import NoAnswer, Resolver
from pump_service.store import store as store_types
from pump_service.store.batch import PullBatch
from pump_service.store.frame import Meta, read_meta
from pump_service.store.store import Store, Unresolved
from pumphouse.errors import BinlogError, ClusterUnavailable, PumpDraining, UsageError
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.tso import physical_ms, show
from pumphouse.proto.pumphouse_pb2 import (
    Blocker,
    Commit,
    PendingCommit,
    Prewrite,
    PullBatchesResponse,
    StatusResponse,
    TransactionsResponse,
    TriggerGcResponse,
)
from pumphouse.registry.base import Cluster

log = structlog.get_logger()

_WRONG_PARAMETER = 3
_OK = 200
_CLUSTER_DEADLINE_S = 5.0


class Operations:
    """The calls behind HTTP and ``PumpBatch``."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        timestamps: Timestamps,
        registrar: Registrar,
        lifecycle: Lifecycle,
        store: Store,
        asker: Asker,
        collector: Collector,
        resolver: Resolver,
        sync_log: bool,
        in_clear: Sequence[str] = (),
        request: Callable[[Action], None],
    ) -> None:
        self._timestamps = timestamps
        self._pumps = Shared(lambda: cluster.readable_nodes(NodeKind.PUMP), "pumps")
        self._drainers = Shared(lambda: cluster.readable_nodes(NodeKind.DRAINER), "drainers")
        self._registrar = registrar
        self._lifecycle = lifecycle
        self._store = store
        self._asker = asker
        self._collector = collector
        self._resolver = resolver
        self._sync_log = sync_log
        self._in_clear = in_clear
        self._request = request
        self._version = _version()
        self._gc: asyncio.Task[None] | None = None
        self._dumping = asyncio.Lock()

    # ---- state -------------------------------------------------------------------------------------------------

    def change_state(self, node_id: str, action: str) -> tuple[int, str]:
        """``PUT /state/{nodeID}/{action}``: code and message of the Go Pump; begins the change."""
        mine = self._registrar.node_id
        if node_id != mine:
            return _WRONG_PARAMETER, f"invalide nodeID {node_id}, this pump's nodeID is {mine}"
        if not self._lifecycle.takes_prewrites:
            return _WRONG_PARAMETER, f"this pump's state is {self._lifecycle.state}, apply {action} failed!"
        if action not in OPERATOR_ACTIONS:
            return _WRONG_PARAMETER, f"invalide action {action}"
        try:
            self._request(OPERATOR_ACTIONS[action])
        except PumpDraining as error:
            return _WRONG_PARAMETER, error.message
        return _OK, f"apply action {action} success!"

    # ---- lists -------------------------------------------------------------------------------------------------

    async def http_status(self) -> dict[str, Any]:
        """Body of ``GET /status``."""
        try:
            async with asyncio.timeout(_CLUSTER_DEADLINE_S):
                nodes, now = await asyncio.gather(self._pumps.fresh(), self._timestamps.current())
        except (BinlogError, OSError) as error:  # a TimeoutError is an OSError
            message = str(error) or f"the cluster does not answer within {_CLUSTER_DEADLINE_S:g} s"
            return {"status": None, "CommitTS": 0, "Checkpoint": {}, "ErrMsg": message}
        status = {node.node_id: node.to_dict() for node in nodes}
        return {"status": status, "CommitTS": now, "Checkpoint": {}, "ErrMsg": ""}

    async def drainers(self) -> list[NodeStatus]:
        """Every registered consumer."""
        try:
            async with asyncio.timeout(_CLUSTER_DEADLINE_S):
                return await self._drainers.fresh()
        except TimeoutError as error:
            raise ClusterUnavailable(f"the cluster does not answer within {_CLUSTER_DEADLINE_S:g} s") from error

    async def status(self) -> StatusResponse:
        """Everything that holds something, with its ts."""
        status = await asyncio.to_thread(self._store.status)
        return StatusResponse(
            node_id=self._registrar.node_id,
            incarnation=status.incarnation,
            start_count=status.start_count,
            state=str(self._lifecycle.state),
            watermark=status.watermark,
            gc_point=status.gc_point,
            deletion_limit=status.deletion_limit,
            gc_held_by=status.gc_held_by,
            unresolved=status.unresolved,
            oldest_unresolved=[self._blocker(p) for p in status.oldest_unresolved],
            late=[_pending(c) for c in status.late],
            orphans=[_pending(c) for c in status.orphans],
            value_log_bytes=status.value_log_bytes,
            value_log_files=status.value_log_files,
            available_bytes=status.available_bytes,
            read_only=status.read_only,
            writer_failed=status.writer_failed,
            sync_log=status.sync_log,
            slow_mode=status.slow_mode,
            duplicate_commits=status.duplicate_commits,
            version=self._version,
            in_clear=self._in_clear,
        )

    def pull_response(self, batch: PullBatch) -> PullBatchesResponse:
        """What goes beside the frame of a batch. Any thread."""
        blocking = self._store.prewrites.oldest(1)
        return PullBatchesResponse(
            watermark=batch.last,
            node_id=self._registrar.node_id,
            incarnation=self._store.incarnation,
            start_count=self._store.start_count,
            sync_log=self._sync_log,
            gc_point=self._store.gc_point,
            blocker=self._blocker(blocking[0]) if blocking else None,
        )

    async def transactions(self, prefix: bytes, above: int) -> AsyncIterator[TransactionsResponse]:
        """What is here of a writer's transactions, part by part."""
        listed = self._store.transactions
        floor = await asyncio.to_thread(listed.floor, prefix, above)
        parts = listed.read(prefix, floor)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            yield TransactionsResponse(
                prewrites=[
                    Prewrite(start_ts=ts, prewrite_key=key, open=is_open) for ts, key, is_open in part.prewrites
                ],
                commits=[Commit(start_ts=start_ts, commit_ts=commit_ts) for start_ts, commit_ts in part.commits],
            )
        # GC may have passed while this was read: how far is said behind it.
        yield TransactionsResponse(
            gc_point=self._store.gc_point,
            above=floor,
            kept_out=[Commit(start_ts=start_ts, commit_ts=commit_ts) for start_ts, commit_ts in listed.kept_out(floor)],
            last=True,
        )

    # ---- acts --------------------------------------------------------------------------------------------------

    async def accept(self, start_ts: int, commit_ts: int, reason: str) -> None:
        """The archive has taken a late or orphan commit by name."""
        await asyncio.to_thread(self._store.accept, start_ts, commit_ts, reason)

    async def settle(self, start_ts: int, commit_ts: int, *, reason: str, who: str) -> None:
        """The recorded way out for a P whose outcome nobody answers; ``commit_ts`` 0 = rolled back."""
        if not reason.strip():
            raise UsageError("settling a prewrite needs a reason", hint="--reason")
        if not self._store.prewrites.is_open(start_ts):
            await asyncio.to_thread(self._store.wait_for_index)
        if not self._store.prewrites.is_open(start_ts):
            raise UsageError(
                f"no unresolved prewrite has start ts {show(start_ts)}",
                hint="is it on another Pump: leave out --node, then each is asked; `pumphouse pump status NODE_ID`"
                " lists what is open",
                start_ts=start_ts,
            )
        log.warning("prewrite_settled_by_hand", start_ts=start_ts, commit_ts=commit_ts, reason=reason, who=who)
        if not commit_ts:
            await self._asker.rolled_back(start_ts, reason=reason, who=who)
            return
        if commit_ts <= start_ts:
            raise UsageError(f"commit ts {commit_ts} is not above start ts {start_ts}", start_ts=start_ts)
        now = await self._timestamps.fresh()
        if commit_ts > now:
            raise UsageError(f"commit ts {show(commit_ts)} lies in the future, now is {show(now)}", commit_ts=commit_ts)
        await self._asker.committed(start_ts, commit_ts, reason=reason, who=who)

    async def trigger_gc(self) -> TriggerGcResponse:
        """Run GC and say what came of it; ``started`` false when one is running."""
        report = await self._collector.trigger()
        return TriggerGcResponse(
            started=report.started,
            gc_point=report.gc_point,
            deletion_limit=report.deletion_limit,
            held_by=list(report.held_by),
            freed_files=report.freed_files,
            freed_bytes=report.freed_bytes,
            kept_files=report.kept_files,
            requested_by_retention=report.requested_by_retention,
            requested_by_checkpoints=report.requested_by_checkpoints,
        )

    def start_gc(self) -> bool:
        """Begin a GC run and do not wait; False when one is running."""
        if self._collector.running or (self._gc is not None and not self._gc.done()):
            return False

        async def run() -> None:
            try:
                await self._collector.trigger()
            except (BinlogError, OSError) as error:
                log.warning("gc_failed", error=str(error))

        self._gc = asyncio.get_running_loop().create_task(run())
        return True

    async def dump(self, ts: int) -> str:
        """What is stored under a ts, in words; for a P also what its resolver says. The text is bounded."""
        # One at a time: reading and showing a large one takes a thread for a while.
        async with self._dumping:
            shown = await asyncio.to_thread(self._shown, ts)
        if shown is None:
            return f"no binlog is stored under ts {show(ts)}"
        text, meta = shown
        if meta.prewrite_key and ts == meta.start_ts:
            try:
                outcome = await self._resolver.ask(meta.start_ts, meta.prewrite_key, decide=False)
                text += f"transaction: {outcome.fate.value} commit_ts: {outcome.commit_ts}\n"
            except NoAnswer as error:
                text += f"transaction: {error}\n"
            try:
                text += await self._resolver.evidence(meta.start_ts, meta.prewrite_key)
            except NoAnswer as error:
                text += f"mvcc: {error}\n"
        return text

    def _shown(self, ts: int) -> tuple[str, Meta] | None:
        stored = self._store.stream.stored(ts)
        if stored is None:
            return None
        if isinstance(stored, bytes):
            return debug_page.describe(InMemory(stored)), read_meta(stored)
        return debug_page.describe(stored, stored.command), stored.meta()

    # ---- parts -------------------------------------------------------------------------------------------------

    def _blocker(self, prewrite: Unresolved) -> Blocker:
        age_ms = physical_ms(self._registrar.approximate_tso()) - physical_ms(prewrite.start_ts)
        return Blocker(start_ts=prewrite.start_ts, age_ms=max(age_ms, 0), prewrite_key=prewrite.prewrite_key)


def _pending(commit: store_types.PendingCommit) -> PendingCommit:
    return PendingCommit(start_ts=commit.start_ts, commit_ts=commit.commit_ts, accepted=commit.accepted)


def _version() -> str:
    try:
        return version("pumphouse")
    except PackageNotFoundError:
        return "unknown"
