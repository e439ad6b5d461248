"""Many pullers at once, some of which do not read, and transactions up to the limit (rows P7, P17)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from pumphouse.proto import pumphouse_pb2 as v1
from pumphouse.proto.binlog_pb2 import Binlog
from pumphouse.proto.pump_pb2 import Pos, PullBinlogReq
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_channel
from tests.bench.h2_pull import Puller
from tests.support.pumpserver import PumpServer, commit, prewrite

TRANSPORTS = ("grpcio", "builtin")
_MIB = 1 << 20


def fill(pump: PumpServer, count: int, size: int) -> int:
    """Write transactions by the batch call; the last commit ts."""
    value = os.urandom(size)
    starts = [int(pump.cluster.tso()) for _ in range(count)]
    send(pump, ([prewrite(start, value)] for start in starts))
    ends = [int(pump.cluster.tso()) for _ in range(count)]  # behind the answers, as writers do
    send(pump, iter([[commit(start, end) for start, end in zip(starts, ends, strict=True)]]))
    return ends[-1]


def send(pump: PumpServer, batches: Iterator[list[bytes]]) -> None:
    requests = (
        v1.WriteBinlogsRequest(cluster_id=pump.cluster_id, batch_id=number, payloads=payloads)
        for number, payloads in enumerate(batches)
    )
    for answer in pump.batch.WriteBinlogs(requests, timeout=60):
        assert not any(status.code for status in answer.statuses)


@pytest.mark.row("P7")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_64_pullers_work_at_once_and_those_that_do_not_read_cost_no_memory(transport: str, tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    with (
        PumpServer(tmp_path, cluster, transport=transport, pull_memory_bytes=8 * _MIB) as pump,
        contextlib.ExitStack() as cleanup,
    ):
        last = fill(pump, 600, 40_000)
        pump.pull_batches(last)
        pump.pull_until(last)
        process = psutil.Process(pump.pid)
        before = process.memory_info().rss
        request = v1.PullBatchesRequest(cluster_id=pump.cluster_id).SerializeToString()
        stalled = [Puller(pump.addr, b"/pumphouse.v1.PumpBatch/PullBatches", request) for _ in range(40)]
        one_by_one = PullBinlogReq(clusterID=pump.cluster_id, startFrom=Pos(offset=0)).SerializeToString()
        stalled += [Puller(pump.addr, b"/binlog.Pump/PullBinlogs", one_by_one) for _ in range(8)]
        for each in stalled:
            cleanup.callback(each.socket.close)
        peak = [before]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                peak[0] = max(peak[0], process.memory_info().rss)

        found: list[int] = []

        def pull() -> None:
            with open_channel(pump.addr) as channel:
                request = v1.PullBatchesRequest(cluster_id=pump.cluster_id, until=last)
                frames = PumpBatchStub(channel).PullBatches(request, timeout=120)
                found.append(sum(len(each.frame) for each in frames))

        threads = [threading.Thread(target=watch), *(threading.Thread(target=pull) for _ in range(16))]
        time.sleep(1)  # they have got what their sockets hold, and more is ready
        for thread in threads:
            thread.start()
        for thread in threads[1:]:
            thread.join(120)
        done.set()
        threads[0].join()
        assert len(found) == 16
        assert all(size > 24_000_000 for size in found)
        # Sent one after the other this history is 24 MB for each puller; two full batches for each would be 400 MB.
        assert peak[0] - before < 150 * _MIB, f"{(peak[0] - before) / _MIB:.0f} MiB more"
        cleanup.close()
        assert pump.transaction()[1] > last


@pytest.mark.row("P17")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transaction_at_the_limit_is_written_and_pulled_and_one_over_it_is_refused(
    transport: str, tmp_path: Path
) -> None:
    limit = 24 * _MIB  # at its full size: test_pump_limits.py
    cluster = FileCluster(tmp_path / "cluster")
    with PumpServer(tmp_path, cluster, transport=transport, max_message_bytes=limit) as pump:
        value = os.urandom(_MIB) * (limit // _MIB - 1)
        start_ts, commit_ts = pump.transaction(value)
        (binlog,) = pump.pull_until(commit_ts)
        assert (binlog.start_ts, len(binlog.prewrite_value), binlog.prewrite_value == value) == (
            start_ts, len(value), True,
        )  # fmt: skip
        (row,) = pump.pull_batches(commit_ts)
        assert Binlog.FromString(row["payload"]).prewrite_value == value
        with pytest.raises(grpc.RpcError) as raised:
            pump.write(prewrite(cluster.tso(), value + bytes(_MIB)))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(limit) in (raised.value.details() or "")
        pump.transaction()
