"""A pull that holds the room of a large transaction while others wait is ended, and told why."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from pump_service.api.batch_api import PumpBatchApi
from pump_service.api.grpc_api import PumpApi
from pump_service.api.rights import Rights
from pump_service.door.server import Server
from pump_service.metrics import PumpMetrics
from pump_service.process import listen
from pump_service.pulls.pullroom import PullRoom
from pump_service.pulls.pulls import Pulls
from pump_service.store.store import Store
from pumphouse.errors import BinlogError, PullTooSlow
from pumphouse.model.tso import Tso
from pumphouse.proto.pump_pb2 import PullBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub, add_PumpServicer_to_server
from pumphouse.proto.pumphouse_pb2 import PullBatchesRequest, PullBatchesResponse
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub, add_PumpBatchServicer_to_server
from pumphouse.rpc.status import from_rpc_error
from pumphouse.settings import TlsSettings
from tests.support.storekit import commit, prewrite, settings, store_all

_MIB = 1 << 20
# So that what the client has not asked for stays with the server.
_OPTIONS = [("grpc.http2.lookahead_bytes", 65536), ("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)]


async def _end_of(stream: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        while await stream.read() is not grpc.aio.EOF:
            pass
    return raised.value


@pytest.mark.row("P7", "P17")
@pytest.mark.parametrize("call", ["PullBatches", "PullBinlogs"])
def test_a_pull_that_does_not_read_is_ended_with_its_reason_when_another_needs_its_room(
    call: str, tmp_path: Path
) -> None:
    store = Store.open(settings(tmp_path / "data"))
    store_all(store, prewrite(100, bytes(8 * _MIB)), commit(100, 110))

    async def run() -> tuple[grpc.RpcError, int]:
        pulls = Pulls(store, PumpMetrics(), memory_bytes=_MIB)
        pulls.room = PullRoom(_MIB, patience_s=0.3)
        ingest: Any = SimpleNamespace(check_cluster=lambda _cluster: None)
        operations: Any = SimpleNamespace(pull_response=lambda batch: PullBatchesResponse(watermark=batch.last))
        with closing(listen.bind_http("127.0.0.1:0")) as listening:
            server = Server(listening)
            add_PumpServicer_to_server(
                PumpApi(ingest, pulls, PumpMetrics(), pull_bytes=_MIB, rights=Rights(TlsSettings())), server
            )  # type: ignore[no-untyped-call]
            batches = PumpBatchApi(
                ingest, None, pulls, operations, PumpMetrics(), pull_bytes=_MIB, rights=Rights(TlsSettings())
            )
            add_PumpBatchServicer_to_server(batches, server)  # type: ignore[no-untyped-call]
            await server.start()
            addr = f"127.0.0.1:{listening.getsockname()[1]}"
            async with (
                grpc.aio.insecure_channel(addr, _OPTIONS) as idle,
                grpc.aio.insecure_channel(addr, _OPTIONS) as busy,
            ):
                stalled: Any
                if call == "PullBatches":
                    stalled = PumpBatchStub(idle).PullBatches(PullBatchesRequest())  # type: ignore[no-untyped-call]
                else:
                    stalled = PumpStub(idle).PullBinlogs(PullBinlogReq())  # type: ignore[no-untyped-call]
                await stalled.initial_metadata()
                reading: Any = PumpBatchStub(busy).PullBatches(PullBatchesRequest(until=110))  # type: ignore[no-untyped-call]
                taken = sum([len(each.frame) async for each in reading])
                error = await _end_of(stalled)
            pulls.stop()
            await server.stop(0)
            pulls.close()
        return error, taken

    try:
        error, taken = asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        store.close()
    assert taken > 8 * _MIB
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "others wait" in (error.details() or "")
    told: BinlogError = from_rpc_error(error, peer="pump-1")
    if call == "PullBatches":  # the Go protocol has no details: a foreign client reads code and text
        assert isinstance(told, PullTooSlow)
        assert told.size > 8 * _MIB
        assert told.retryable


@pytest.mark.row("P7", "P17")
def test_a_pull_that_takes_its_time_over_large_transactions_is_not_ended_by_its_own_next_one(tmp_path: Path) -> None:
    store = Store.open(settings(tmp_path / "data"))
    for start in (100, 200, 300):
        store_all(store, prewrite(start, bytes(8 * _MIB)), commit(start, start + 10))
    ended: list[PullTooSlow] = []

    async def run() -> list[int]:
        pulls = Pulls(store, PumpMetrics(), memory_bytes=_MIB)
        pulls.room = PullRoom(_MIB, patience_s=0.2)
        taken: list[int] = []
        async for sent in pulls.follow(
            Tso(0), lambda batch: [batch.size], max_bytes=_MIB, strict=False, end=ended.append
        ):
            await asyncio.sleep(0.5)  # longer than the patience, and it moves all the time
            taken.append(int(sent.complete_to))
            if sent.complete_to >= 310:
                break
        pulls.stop()
        pulls.close()
        return taken

    try:
        taken = asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        store.close()
    assert ended == []
    assert taken == [110, 210, 310]


@pytest.mark.row("P7", "P17")
def test_the_larger_a_transaction_the_longer_others_wait_until_its_pull_is_ended() -> None:
    ended: list[int] = []

    async def waits(size: int) -> float:
        room = PullRoom(_MIB, patience_s=0.1, least_rate=size * 2)
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()

        def end(error: PullTooSlow) -> None:
            ended.append(error.size or 0)
            gone.set()

        async def hold() -> None:
            async with room.large(size, end):
                await gone.wait()

        holder = loop.create_task(hold())
        await asyncio.sleep(0)
        began = loop.time()
        async with room.large(size, end):
            waited = loop.time() - began
        await holder
        return waited

    assert asyncio.run(asyncio.wait_for(waits(8 * _MIB), 20)) >= 0.6
    assert ended == [8 * _MIB]
