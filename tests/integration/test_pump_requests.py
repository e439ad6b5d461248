"""Requests that are large, too large, or many of both at once, on both transports (rows W1, P15)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pumphouse.client.pump import PumpConnection
from pumphouse.errors import BadBinlog
from pumphouse.proto.pump_pb2 import WriteBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.proto.pumphouse_pb2 import WriteBinlogsRequest
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_channel
from tests.support.pumpserver import PumpServer, prewrite

LIMIT = 4 << 20


@pytest.fixture(scope="module", params=["builtin", "grpcio"])
def pump(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PumpServer]:
    directory = tmp_path_factory.mktemp("pump")
    cluster = FileCluster(directory / "cluster")
    # Of 32 requests of 3 MB most wait for others: that many bytes, and a window of each, are below twice the setting.
    with PumpServer(
        directory, cluster, max_message_bytes=LIMIT, incomplete_bytes=32 << 20, transport=request.param
    ) as server:
        yield server


@pytest.mark.row("W1", "O3")
def test_a_request_over_the_limit_is_refused_with_the_words_that_tidb_looks_for(pump: PumpServer) -> None:
    payload = prewrite(pump.cluster.tso(), bytes(LIMIT))
    unary = WriteBinlogReq(clusterID=pump.cluster_id, payload=payload)
    batch = WriteBinlogsRequest(cluster_id=pump.cluster_id, payloads=[payload])
    fits = WriteBinlogsRequest(cluster_id=pump.cluster_id, payloads=[prewrite(pump.cluster.tso(), bytes(LIMIT // 2))])

    def through_the_stream() -> list[Any]:
        return list(pump.batch.WriteBinlogs(iter([fits, batch, fits]), timeout=60))

    calls: list[tuple[int, Any]] = [(unary.ByteSize(), lambda: pump.write(payload))]
    # Often: the refusal comes while the answer to the first is on its way, or before it.
    calls += [(batch.ByteSize(), through_the_stream)] * 10
    for size, call in calls:
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.value.details() == f"grpc: received message larger than max ({size} vs. {LIMIT})"
    with pytest.raises(grpc.RpcError) as error:  # a few kilobytes before they are inflated
        PumpStub(pump.channel).WriteBinlog(unary, timeout=30, compression=grpc.Compression.Gzip)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "grpc: received message larger than max (" in (error.value.details() or "")
    ours = PumpConnection(pump.node_id, pump.addr, pump.cluster_id)
    with pytest.raises(BadBinlog) as refused:
        ours.write(payload, 10)
    ours.close()
    assert (refused.value.size, refused.value.limit) == (unary.ByteSize(), LIMIT)
    pump.transaction()


@pytest.mark.row("W1")
def test_a_request_as_large_as_the_limit_passes(pump: PumpServer) -> None:
    payload = prewrite(pump.cluster.tso(), bytes(LIMIT - 100))
    request = WriteBinlogReq(clusterID=pump.cluster_id, payload=payload)
    payload = prewrite(pump.cluster.tso(), bytes(LIMIT - 100 + LIMIT - request.ByteSize()))
    assert WriteBinlogReq(clusterID=pump.cluster_id, payload=payload).ByteSize() == LIMIT
    pump.write(payload)


@pytest.mark.row("W1", "P15")
@pytest.mark.parametrize("connections", [1, 8])
def test_large_requests_at_once_are_all_taken(pump: PumpServer, connections: int) -> None:
    value = os.urandom(3 << 20)
    channels = [open_channel(pump.addr) for _ in range(connections)]
    try:
        calls = []
        for n in range(32):
            request = WriteBinlogReq(clusterID=pump.cluster_id, payload=prewrite(pump.cluster.tso(), value))
            calls.append(PumpStub(channels[n % connections]).WriteBinlog.future(request, timeout=120))
        for call in calls:
            call.result()
    finally:
        for channel in channels:
            channel.close()
