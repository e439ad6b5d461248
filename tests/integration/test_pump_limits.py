"""The largest transaction, at its full size, through a real Pump (row P17)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from pump_service.store import frame
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.proto.binlog_pb2 import Binlog
from pumphouse.proto.pump_pb2 import Pos, PullBinlogReq
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.channel import open_channel
from tests.support.pumpserver import PumpServer, commit

MIB = 1 << 20


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[PumpServer]:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster"), popen=subprocess.Popen) as server:
        yield server


def resident(pid: int, field: str = "VmRSS") -> int:
    """Bytes of memory that a process holds, or has held at most (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


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
