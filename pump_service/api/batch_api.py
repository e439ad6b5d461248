"""``pumphouse.v1.PumpBatch``: batches instead of single messages, and the calls of operation. Translates only.

Refusals are a gRPC code with google.rpc.ErrorInfo (`pumphouse.rpc.status`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import structlog

from pump_service.api.ending import ender
from pump_service.api.frame import frame_message
from pump_service.api.operations import Operations
from pump_service.api.rights import Rights, caller_of
from pump_service.api.writes import BatchWrites
from pump_service.door.group import Messages
from pump_service.intake.ingest import Ingest
from pump_service.metrics import PumpMetrics
from pump_service.pulls.pulls import Pulls
from pump_service.store.batch import PullBatch
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso
from pumphouse.proto.pumphouse_pb2 import (
    AcceptRequest,
    AcceptResponse,
    PullBatchesRequest,
    SettleRequest,
    SettleResponse,
    StatusRequest,
    StatusResponse,
    TransactionsRequest,
    TransactionsResponse,
    TriggerGcRequest,
    TriggerGcResponse,
)
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchServicer
from pumphouse.rpc.status import abort_details, code_and_reason

log = structlog.get_logger()
Context = grpc.aio.ServicerContext[Any, Any]

# Batches of one stream that wait for their fsync at once; the bytes are bounded by the submitter.
_BATCHES_IN_FLIGHT = 64
_MIN_FRAME_BYTES = 4096


class PumpBatchApi(PumpBatchServicer):
    """The seven calls."""

    def __init__(
        self,
        ingest: Ingest,
        writes: BatchWrites,
        pulls: Pulls,
        operations: Operations,
        metrics: PumpMetrics,
        *,
        pull_bytes: int,
        rights: Rights,
    ) -> None:
        self._ingest = ingest
        self._writes = writes
        self._pulls = pulls
        self._operations = operations
        self._metrics = metrics
        self._pull_bytes = pull_bytes
        self._rights = rights

    async def WriteBinlogs(  # noqa: N802
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """Batch after batch, as serialized messages; several are in flight, answers keep the order."""
        answers: asyncio.Queue[asyncio.Future[bytes] | Exception | None] = asyncio.Queue(_BATCHES_IN_FLIGHT)

        async def take() -> None:
            try:
                async for request in request_iterator:
                    await answers.put(await self._writes.write_batch(request))
            except Exception as error:  # noqa: BLE001 - raised where the answers are given
                await answers.put(error)
            else:
                await answers.put(None)

        taker = asyncio.create_task(take())
        # A caller that goes away ends this call by itself; what the reading said then is of no use.
        taker.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, BinlogError):
                    await self._refuse(context, answer)
                if isinstance(answer, Exception):
                    raise answer
                yield await answer
        finally:
            taker.cancel()

    async def PullBatches(  # noqa: N802
        self, request: PullBatchesRequest, context: Context
    ) -> AsyncIterator[Messages]:
        """Frames; ``watermark`` of a frame says up to where the stream is complete with it."""

        def render(batch: PullBatch) -> Messages:
            return frame_message(batch.binlogs, self._operations.pull_response(batch).SerializeToString())

        try:
            self._ingest.check_cluster(request.cluster_id)
            size = max(min(request.max_frame_bytes or self._pull_bytes, self._pull_bytes), _MIN_FRAME_BYTES)
            proved = self._rights.proves(caller_of(context))
            end = ender(context, abort_details)
            stream = self._pulls.follow(
                Tso(request.start_from), render, max_bytes=size, strict=False, end=end, proved=proved
            )
            async with contextlib.aclosing(stream):
                async for sent in stream:
                    yield sent.messages
                    if request.until and sent.complete_to >= request.until:
                        return
        except BinlogError as error:
            await self._refuse(context, error)

    async def Transactions(  # noqa: N802
        self, request: TransactionsRequest, context: Context
    ) -> AsyncIterator[TransactionsResponse]:
        """What is here of a writer's transactions; the last part says so, and how far GC is."""
        try:
            self._ingest.check_cluster(request.cluster_id)
            async for part in self._operations.transactions(request.key_prefix, request.above):
                yield part
        except BinlogError as error:
            await self._refuse(context, error)

    async def Status(self, request: StatusRequest, context: Context) -> StatusResponse:  # noqa: N802
        """What holds what."""
        try:
            self._ingest.check_cluster(request.cluster_id)
            return await self._operations.status()
        except BinlogError as error:
            await self._refuse(context, error)

    async def Accept(self, request: AcceptRequest, context: Context) -> AcceptResponse:  # noqa: N802
        """Take a late or orphan commit by name."""
        try:
            self._ingest.check_cluster(request.cluster_id)
            await self._operations.accept(request.start_ts, request.commit_ts, request.reason)
        except BinlogError as error:
            await self._refuse(context, error)
        return AcceptResponse()

    async def Settle(self, request: SettleRequest, context: Context) -> SettleResponse:  # noqa: N802
        """Say what became of a transaction that nobody answers for."""
        try:
            self._ingest.check_cluster(request.cluster_id)
            await self._operations.settle(request.start_ts, request.commit_ts, reason=request.reason, who=request.who)
        except BinlogError as error:
            await self._refuse(context, error)
        return SettleResponse()

    async def TriggerGc(self, request: TriggerGcRequest, context: Context) -> TriggerGcResponse:  # noqa: N802
        """Run GC now; it answers when the run is done."""
        try:
            self._ingest.check_cluster(request.cluster_id)
            return await self._operations.trigger_gc()
        except BinlogError as error:
            await self._refuse(context, error)

    async def _refuse(self, context: Context, error: BinlogError) -> NoReturn:
        self._metrics.refused.labels(code_and_reason(error)[1]).inc()
        await context.abort(*abort_details(error))
        raise AssertionError("abort returned")
