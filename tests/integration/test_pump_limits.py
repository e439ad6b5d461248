"""Many pullers, slow pullers, and the largest transaction: what they may cost a real Pump (rows P7, P17)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from pump_service.store import frame
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.proto.binlog_pb2 import Binlog
from pumphouse.proto.pump_pb2 import Pos, PullBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.proto.pumphouse_pb2 import PullBatchesRequest, WriteBinlogsRequest
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_channel
from tests.support.pumpserver import PumpServer, commit, prewrite
from tests.support.waiting import eventually

MIB = 1 << 20


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[PumpServer]:
    # A stream may hold a few frames; 64 of them shall not matter here.
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster"), pull_batch_bytes=256 << 10) as server:
        yield server


def resident(pid: int, field: str = "VmRSS") -> int:
    """Bytes of memory that a process holds, or has held at most (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def write_transactions(pump: PumpServer, count: int, size: int) -> list[int]:
    """Commit ts of that many transactions, written in batches."""
    starts = [int(pump.cluster.tso()) for _ in range(count)]
    value = os.urandom(size)

    def batches(payloads: list[bytes]) -> Iterator[WriteBinlogsRequest]:
        for at in range(0, count, 20):
            yield WriteBinlogsRequest(cluster_id=pump.cluster_id, payloads=payloads[at : at + 20])

    commits: list[int] = []
    for payloads in ([prewrite(start, value) for start in starts], []):
        if not payloads:
            commits = [int(pump.cluster.tso()) for _ in range(count)]
            payloads = [commit(start, ts) for start, ts in zip(starts, commits, strict=True)]
        for answer in pump.batch.WriteBinlogs(batches(payloads), timeout=60):
            assert not any(status.code for status in answer.statuses)
    eventually(lambda: pump.status().watermark >= commits[-1])
    return commits


class Slow:
    """A puller that takes one message and then nothing."""

    def __init__(self, pump: PumpServer, *, batch: bool) -> None:
        self._channel = open_channel(pump.addr)
        self._batch = batch
        if batch:
            self._stream = PumpBatchStub(self._channel).PullBatches(PullBatchesRequest(cluster_id=pump.cluster_id))
        else:
            request = PullBinlogReq(clusterID=pump.cluster_id, startFrom=Pos(offset=0))
            self._stream = PumpStub(self._channel).PullBinlogs(request)
        first = next(self._stream)
        self._count = 0 if batch else int(first.entity.meta.startTs != first.entity.meta.commitTs)

    def drain_to(self, ts: int) -> int:
        """Go on after all, up to a commit ts; the number of transactions that a unary pull brought in all."""
        for response in self._stream:
            if self._batch:
                if response.watermark >= ts:
                    return 0
                continue
            meta = response.entity.meta
            self._count += meta.startTs != meta.commitTs
            if meta.commitTs >= ts:
                return self._count
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()


@pytest.mark.row("P7")
def test_64_pullers_work_at_once_and_the_slow_ones_among_them_cost_no_memory(pump: PumpServer) -> None:
    commits = write_transactions(pump, 600, 100_000)
    before = resident(pump.pid)
    slow = [Slow(pump, batch=n % 2 == 0) for n in range(8)]
    got: list[list[int]] = []
    failed: list[BaseException] = []
    after, last = commits[-31], commits[-1]

    def pull(number: int) -> None:
        try:
            if number % 2:
                got.append([binlog.commit_ts for binlog in pump.pull_until(last, after)])
            else:
                got.append([row["commit_ts"] for row in pump.pull_batches(last, after)])
        except BaseException as error:
            failed.append(error)

    pullers = [threading.Thread(target=pull, args=(n,)) for n in range(56)]
    for thread in pullers:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in pullers):
        most = max(most, resident(pump.pid))
        time.sleep(0.05)
    assert not failed
    assert got == [commits[-30:]] * 56
    # While they were served the others stood still; 60 MB wait for each of them.
    time.sleep(1.0)
    most = max(most, resident(pump.pid))
    assert most - before < 160 * MIB, f"{(most - before) / MIB:.0f} MiB more"
    assert pump.transaction(b"more")[1] > last
    slow[0].drain_to(last)
    assert slow[1].drain_to(last) == 600
    for each in slow:
        each.close()


def raw_write(pump: PumpServer, head: bytes, fill: int) -> None:
    """A WriteBinlog whose payload is ``head`` and one more field 5 (prewrite_value) of ``fill`` bytes.

    The request is put together by hand, so that this process holds it once and not five times.
    """
    value = b"\x2a" + frame.varint(fill)
    size = len(head) + len(value) + fill
    begin = b"\x08" + frame.varint(pump.cluster_id) + b"\x12" + frame.varint(size) + head + value
    with open_channel(pump.addr) as channel:
        call = channel.unary_unary("/binlog.Pump/WriteBinlog")
        call(b"".join((begin, bytes(fill))), timeout=600)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.row("P17")
def test_a_transaction_at_the_limit_passes_and_one_above_it_is_refused_with_the_limit(
    pump: PumpServer, record_property: Callable[[str, object], None]
) -> None:
    """Takes 16 GB of memory; PUMPHOUSE_LARGEST asks for less, and then leaves out the refusal."""
    largest = int(os.environ.get("PUMPHOUSE_LARGEST", MAX_TRANSACTION_BYTES))
    start_ts = pump.cluster.tso()
    head = Binlog(tp=0, start_ts=start_ts, commit_ts=0, prewrite_key=b"app/k").SerializeToString()
    fill = largest - len(head) - 6 - 4  # tag and length of the value; ddl_job_id and ddl_schema_state
    if largest == MAX_TRANSACTION_BYTES:
        with pytest.raises(grpc.RpcError) as refused:
            raw_write(pump, head, fill + 100)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"received message larger than max ({largest + 100} vs. {largest})" in (refused.value.details() or "")
    begun = time.monotonic()
    raw_write(pump, head, fill)
    commit_ts = pump.cluster.tso()
    pump.write(commit(start_ts, commit_ts))
    with open_channel(pump.addr) as channel:
        # Bytes as they come: parsing them would take as much memory again.
        request = PullBinlogReq(clusterID=pump.cluster_id, startFrom=Pos(offset=start_ts)).SerializeToString()
        for response in channel.unary_stream("/binlog.Pump/PullBinlogs")(request, timeout=600):
            if len(response) > fill:
                break
    assert response.count(0) >= fill
    record_property("bytes", largest)
    record_property("seconds_through", round(time.monotonic() - begun, 1))
    record_property("most_memory", resident(pump.pid, "VmHWM"))
