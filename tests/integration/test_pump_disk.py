"""A Pump whose disk is full, or fails (row P15): what it refuses, what goes on, and how it ends."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pumphouse.model.node import NodeState
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.registry.file import FileCluster
from tests.support.pumpserver import PumpServer, commit, prewrite, rollback
from tests.support.smalldisk import failing_disk
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P15")


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[PumpServer]:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster")) as server:
        yield server


@pytest.mark.row("P8")
def test_below_the_stop_mark_prewrites_are_refused_and_outcomes_and_fakes_go_on(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    with PumpServer(tmp_path, cluster) as pump:
        open_ts, rolled_ts = cluster.tso(), cluster.tso()
        pump.write(prewrite(open_ts, b"rows"))
        pump.write(prewrite(rolled_ts))
        pump.kill()
    limit = 1 << 60
    with PumpServer(tmp_path, cluster, stop_write_at_available_bytes=limit) as pump:
        for payload in (prewrite(cluster.tso()), b""):
            with pytest.raises(grpc.RpcError) as refused:
                pump.write(payload)
            assert refused.value.code() is grpc.StatusCode.UNKNOWN
            said = refused.value.details()
            assert said.startswith("no available space, available: ")
            assert said.endswith(f", StopWriteAtAvailableSpace: {limit}")
        assert pump.status().read_only
        commit_ts = cluster.tso()
        pump.write(commit(open_ts, commit_ts))
        pump.write(rollback(rolled_ts))
        (found,) = pump.pull_until(commit_ts)
        assert found.prewrite_value == b"rows"
        fence = cluster.tso()
        eventually(lambda: pump.status().watermark > fence)
        assert pump.registered().state is NodeState.ONLINE
        assert pump.registered().score == 0
        assert pump.stop() == 0


def test_a_write_that_fails_ends_writing_for_good_while_reads_go_on(pump: PumpServer) -> None:
    before = [pump.transaction(b"x" * 1000) for _ in range(20)]
    open_ts = pump.cluster.tso()
    pump.write(prewrite(open_ts, b"open"))
    # From now on the kernel refuses to let any file of the process grow beyond this: no ENOSPC, a failed write.
    resource.prlimit(pump.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    lost_ts = pump.cluster.tso()
    with pytest.raises(grpc.RpcError) as refused:
        pump.write(prewrite(lost_ts, b"y" * 200_000))
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert "writing failed" in refused.value.details()
    eventually(lambda: pump.registered().state is NodeState.PAUSING)
    with pytest.raises(grpc.RpcError) as refused:
        pump.write(commit(open_ts, pump.cluster.tso()))  # small enough to fit: refused all the same
    assert "writing failed" in refused.value.details()
    with pytest.raises(grpc.RpcError) as refused:
        pump.write(b"")
    assert refused.value.details() == "no online: pausing"
    status = pump.status()
    assert status.writer_failed
    assert [(b.start_ts, b.commit_ts) for b in pump.pull_until(before[-1][1])] == before
    assert "serving_reads_only" in pump.log()
    assert pump.stop() == 1
    assert pump.registered().state is NodeState.PAUSED

    pump.start()
    assert [(b.start_ts, b.commit_ts) for b in pump.pull_until(before[-1][1])] == before
    assert open_ts in {b.start_ts for b in pump.status().oldest_unresolved}
    for left in pump.status().oldest_unresolved:  # the refused one may lie in the log, unanswered
        assert left.start_ts in (open_ts, lost_ts)
        pump.write(rollback(left.start_ts) if left.start_ts == lost_ts else commit(open_ts, pump.cluster.tso()))
    assert pump.stop() == 0


@pytest.mark.row("P8")
def test_where_nothing_can_be_written_the_watermark_goes_on_unpersisted(pump: PumpServer) -> None:
    _, commit_ts = pump.transaction()
    resource.prlimit(pump.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    with pytest.raises(grpc.RpcError):
        pump.write(prewrite(pump.cluster.tso(), b"y" * 200_000))
    size = pump.status().value_log_bytes
    fence = pump.cluster.tso()
    eventually(lambda: pump.status().watermark > fence)
    assert pump.status().value_log_bytes == size
    rows = pump.pull_batches(until=fence)
    assert [row["commit_ts"] for row in rows] == [commit_ts]
    assert {Binlog.FromString(row["payload"]).tp for row in rows} == {BinlogType.Commit}


@pytest.mark.row("P3")
def test_a_medium_that_fails_at_a_sync_ends_writing_and_its_group_is_not_answered(tmp_path: Path) -> None:
    """The write into the page cache succeeds; only the sync learns of it, and a second sync would know nothing."""
    with failing_disk(tmp_path / "disk", claims=96 << 20, holds=24 << 20) as disk:
        pump = PumpServer(tmp_path, FileCluster(tmp_path / "cluster"))
        pump.data_dir = disk / "data"
        with pump:
            answered = 0
            with pytest.raises(grpc.RpcError) as refused:
                for _ in range(10_000):
                    pump.write(prewrite(pump.cluster.tso(), os.urandom(30_000)))
                    answered += 1
            assert "writing failed" in refused.value.details()
            assert "Input/output error" in refused.value.details()
            assert 100 < answered < 1_000
            with pytest.raises(grpc.RpcError) as refused:
                pump.write(rollback(pump.cluster.tso()))
            assert "writing failed" in refused.value.details()
            assert pump.status().writer_failed
            pump.kill()
