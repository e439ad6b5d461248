"""``binlog.Pump`` as TiDB's pump client and the Drainer call it (rows W1, W5). Translates only.

Refusals are UNKNOWN with the Go Pump's text, because that is what those clients read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc

from pump_service.api.ending import ender
from pump_service.api.frame import binlog_messages
from pump_service.api.rights import Rights, caller_of
from pump_service.door.group import Messages
from pump_service.intake.ingest import Ingest
from pump_service.metrics import PumpMetrics
from pump_service.pulls.pulls import Pulls
from pump_service.store.batch import PullBatch
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso
from pumphouse.proto.pump_pb2 import PullBinlogReq, WriteBinlogReq, WriteBinlogResp
from pumphouse.proto.pump_pb2_grpc import PumpServicer
from pumphouse.rpc.status import code_and_reason, go_abort

Context = grpc.aio.ServicerContext[Any, Any]
_DURABLE = WriteBinlogResp()


class PumpApi(PumpServicer):
    """The two calls of TiDB Binlog."""

    def __init__(self, ingest: Ingest, pulls: Pulls, metrics: PumpMetrics, *, pull_bytes: int, rights: Rights) -> None:
        self._ingest = ingest
        self._pulls = pulls
        self._metrics = metrics
        self._pull_bytes = pull_bytes
        self._rights = rights
        self._written = metrics.rpc_seconds.labels("WriteBinlog", "succ")
        self._failed = metrics.rpc_seconds.labels("WriteBinlog", "fail")

    async def WriteBinlog(self, request: WriteBinlogReq, context: Context) -> WriteBinlogResp:  # noqa: N802
        """Durable when it answers."""
        began = time.perf_counter()
        try:
            self._ingest.check_cluster(request.clusterID)
            await self._ingest.write(request.payload)
        except BinlogError as error:
            self._failed.observe(time.perf_counter() - began)
            await self._refuse(context, error)
        self._written.observe(time.perf_counter() - began)
        return _DURABLE

    async def PullBinlogs(self, request: PullBinlogReq, context: Context) -> AsyncIterator[Messages]:  # noqa: N802
        """Every committed binlog with a commit ts above ``startFrom.offset``, one a message, many at once."""
        try:
            self._ingest.check_cluster(request.clusterID)
            after = Tso(request.startFrom.offset)
            proved = self._rights.proves(caller_of(context))
            end = ender(context, go_abort)
            stream = self._pulls.follow(
                after, _messages, max_bytes=self._pull_bytes, strict=True, end=end, proved=proved
            )
            async with contextlib.aclosing(stream):
                async for sent in stream:
                    yield sent.messages
        except BinlogError as error:
            await self._refuse(context, error)

    async def _refuse(self, context: Context, error: BinlogError) -> NoReturn:
        self._metrics.refused.labels(code_and_reason(error)[1]).inc()
        await context.abort(*go_abort(error))
        raise AssertionError("abort returned")


def _messages(batch: PullBatch) -> Messages | None:
    return binlog_messages(batch.binlogs) if len(batch) else None
