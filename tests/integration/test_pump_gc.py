"""GC by checkpoint on a real Pump: what goes, what stays, and who holds it (row P11; acceptance 7 of the issue)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import grpc
import pytest

from pumphouse.client.admin import trigger_gc
from pumphouse.errors import PositionCollected
from pumphouse.model.node import NodeState
from pumphouse.proto import pumphouse_pb2 as v1
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.status import from_rpc_error
from tests.support.pumpserver import PumpServer, commit, prewrite
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P11")


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[PumpServer]:
    cluster = FileCluster(tmp_path / "cluster")
    # Small files, so that a few transactions fill several; retention near nothing, so that checkpoints decide.
    with PumpServer(tmp_path, cluster, value_log_file_bytes=8192, retention_s=0.001) as server:
        yield server


def files(pump: PumpServer) -> list[str]:
    return sorted(path.name for path in (pump.data_dir / "value").glob("*.vlog"))


def fill(pump: PumpServer, count: int = 20) -> list[tuple[int, int]]:
    return [pump.transaction(b"x" * 2000) for _ in range(count)]


def freeing(pump: PumpServer) -> v1.TriggerGcResponse:
    """The first GC run that frees files: positions that hold files are persisted once a second."""

    def run() -> v1.TriggerGcResponse | None:
        report = pump.gc()
        return report if report.freed_files else None

    return eventually(run)


def past(pump: PumpServer) -> int:
    """A ts that the Pump's watermark has passed."""
    fence = pump.cluster.tso()
    eventually(lambda: pump.status().watermark > fence)
    return fence


def test_a_prewrite_before_the_checkpoint_keeps_its_payload_until_its_commit_is_confirmed(pump: PumpServer) -> None:
    """P before the checkpoint, files rotated, GC, then its C: the payload is there."""
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts, b"precious" * 100))
    fill(pump, 30)
    assert len(files(pump)) > 5
    checkpoint = pump.cluster.tso()
    pump.consumer(checkpoint)
    report = pump.gc()
    assert report.deletion_limit <= start_ts
    commit_ts = pump.cluster.tso()
    assert commit_ts > checkpoint
    pump.write(commit(start_ts, commit_ts))
    fence = past(pump)
    report = pump.gc()  # committed above the checkpoint: still needed
    assert report.gc_point <= checkpoint
    assert report.deletion_limit <= start_ts
    (found,) = pump.pull_until(fence, after=checkpoint)
    assert (found.start_ts, found.commit_ts, found.prewrite_value) == (start_ts, commit_ts, b"precious" * 100)

    pump.kill()
    pump.start()
    (found,) = pump.pull_until(fence, after=checkpoint)
    assert found.prewrite_value == b"precious" * 100

    pump.consumer(past(pump))
    freeing(pump)
    assert "000000.vlog" not in files(pump)


def test_gc_frees_what_every_consumer_has_confirmed_and_names_who_holds_the_rest(pump: PumpServer) -> None:
    done = fill(pump)
    half = done[9][1]
    pump.consumer(half, name="slow")
    pump.consumer(past(pump), name="quick")
    pump.consumer(0, name="gone", state=NodeState.OFFLINE)
    before = files(pump)
    report = freeing(pump)
    assert report.started
    assert report.gc_point == half
    # Requested: up to the slowest consumer; the retention of the fixture is next to nothing.
    assert report.requested_by_checkpoints == half
    assert done[-1][1] < report.requested_by_retention < pump.cluster.tso()
    assert any("slow" in holder for holder in report.held_by)
    assert report.freed_bytes > 0
    assert files(pump) == before[report.freed_files :]
    # Nothing that `slow` has not confirmed is gone.
    wanted = [pair for pair in done if pair[1] > half]
    assert [(b.start_ts, b.commit_ts) for b in pump.pull_until(done[-1][1], after=half)] == wanted
    # The point never goes back, whatever a consumer says later.
    pump.consumer(0, name="slow")
    assert pump.gc().gc_point == half
    assert pump.status().gc_point == half


@pytest.mark.row("P7")
def test_a_pull_below_the_gc_point_is_refused_with_both_positions(pump: PumpServer) -> None:
    done = fill(pump)
    pump.consumer(done[9][1])
    pump.gc()
    with pytest.raises(grpc.RpcError) as refused:
        next(pump.batch.PullBatches(v1.PullBatchesRequest(cluster_id=pump.cluster_id, start_from=done[3][1])))
    error = from_rpc_error(refused.value)
    assert isinstance(error, PositionCollected)
    assert (error.start_from, error.gc_point) == (done[3][1], done[9][1])
    with pytest.raises(grpc.RpcError) as refused:
        pump.pull_until(done[-1][1], after=done[3][1])
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert str(done[9][1]) in refused.value.details()
    assert pump.pull_until(done[-1][1], after=done[9][1])


@pytest.mark.row("P7")
def test_a_pull_that_falls_below_the_gc_point_while_it_runs_ends_with_a_refusal(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    # Each read of the store brings one binlog, and the client stops reading: the stream stands still in the middle.
    with PumpServer(tmp_path, cluster, retention_s=0.001, pull_batch_bytes=4096) as pump:
        done = [pump.transaction(b"x" * 200_000) for _ in range(60)]
        with pump.pulling() as stream:
            while not next(stream).entity.meta.commitTs > done[0][0]:
                pass
            pump.consumer(past(pump))
            assert pump.gc().gc_point > done[-1][1]
            seen = 0
            with pytest.raises(grpc.RpcError) as refused:
                for response in stream:
                    seen = max(seen, response.entity.meta.commitTs)
        assert seen < done[-1][1]
        assert refused.value.code() is grpc.StatusCode.UNKNOWN
        assert "were asked for, this Pump keeps what is above" in refused.value.details()


def test_without_a_consumer_retention_alone_decides_and_the_log_warns(pump: PumpServer) -> None:
    fill(pump)
    past(pump)
    report = freeing(pump)
    assert report.HasField("requested_by_retention")
    assert not report.HasField("requested_by_checkpoints")
    assert "gc_without_consumer" in pump.log()


def test_gc_runs_by_interval_without_being_asked(tmp_path: Path) -> None:
    """Again and again: what a consumer confirms after a run goes with a later one."""
    cluster = FileCluster(tmp_path / "cluster")
    with PumpServer(tmp_path, cluster, value_log_file_bytes=8192, retention_s=0.001, gc_interval_s=0.2) as pump:
        pump.consumer(0)
        for _ in range(2):
            done = fill(pump)
            here = files(pump)
            assert len(here) > 3
            pump.consumer(past(pump))
            eventually(lambda here=here: here[0] not in files(pump))
            eventually(lambda done=done: pump.status().gc_point > done[-1][1])
        assert pump.log().count('"gc_done"') > 1


def test_a_new_consumer_with_checkpoint_0_holds_everything(pump: PumpServer) -> None:
    fill(pump)
    pump.consumer(0)
    past(pump)
    report = pump.gc()
    assert report.freed_files == 0
    assert any("pumphouse-main" in holder for holder in report.held_by)


def test_retention_keeps_what_is_young_whatever_the_checkpoint(tmp_path: Path) -> None:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster"), value_log_file_bytes=8192, retention_s=3600.0) as pump:
        fill(pump)
        pump.consumer(past(pump))
        report = pump.gc()
        assert report.freed_files == 0
        assert any("retention" in holder for holder in report.held_by)


@pytest.mark.row("P12")
def test_gc_by_http_runs_in_the_background(pump: PumpServer) -> None:
    fill(pump)
    pump.consumer(past(pump))
    with urlopen(Request(f"http://{pump.http}/debug/gc/trigger", method="POST")) as answer:
        assert answer.read() == b"trigger gc success\n"
    eventually(lambda: '"gc_done"' in pump.log())
    assert pump.status().gc_point > 0


def test_the_operators_call_reports_each_pump(pump: PumpServer) -> None:
    fill(pump)
    pump.consumer(past(pump))
    (report,) = eventually(lambda: [r for r in trigger_gc(pump.cluster) if r.freed_files])
    assert report.started
    assert not report.error


def test_everything_above_the_gc_point_survives_gc_and_kill_9(pump: PumpServer) -> None:
    done = fill(pump, 40)
    pump.consumer(done[25][1])
    pump.gc()
    pump.kill()
    pump.start()
    assert pump.status().gc_point == done[25][1]
    wanted = [pair for pair in done if pair[1] > done[25][1]]
    assert [(b.start_ts, b.commit_ts) for b in pump.pull_until(done[-1][1], after=done[25][1])] == wanted
