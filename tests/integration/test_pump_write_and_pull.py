"""A Pump process, written and pulled by both protocols."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.errors import ClusterMismatch, UsageError
from pumphouse.proto import pumphouse_pb2 as v1
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.proto.pump_pb2 import PullBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.status import from_rpc_error
from tests.support.pumpserver import PumpServer, commit, prewrite, rollback
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("W1")


@pytest.fixture(scope="module", params=["grpcio", "builtin"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PumpServer]:
    """For tests that leave nothing open behind; they look only at what lies above their own first ts."""
    directory = tmp_path_factory.mktemp("shared")
    with PumpServer(directory, FileCluster(directory / "cluster"), transport=request.param) as server:
        yield server


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[PumpServer]:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster")) as server:
        yield server


@pytest.mark.row("P7", "W2")
def test_a_commit_is_pulled_with_the_payload_of_its_prewrite_and_a_rollback_is_not(shared: PumpServer) -> None:
    rolled_back = shared.cluster.tso()
    shared.write(prewrite(rolled_back))
    shared.write(rollback(rolled_back))
    start_ts, commit_ts = shared.transaction(b"rows", ddl_query=b"create table t(a int)", ddl_job_id=7)
    second = shared.transaction(b"more")
    found = shared.pull_until(second[1], after=rolled_back)
    assert [(b.start_ts, b.commit_ts) for b in found] == [(start_ts, commit_ts), second]
    assert found[0].prewrite_value == b"rows"
    assert found[0].ddl_query == b"create table t(a int)"
    assert found[0].ddl_job_id == 7
    assert found[0].tp == BinlogType.Commit
    assert [b.commit_ts for b in shared.pull_until(second[1], after=commit_ts)] == [second[1]]


@pytest.mark.row("P7")
def test_a_pull_follows_the_tail(shared: PumpServer) -> None:
    with shared.pulling(after=shared.cluster.tso()) as stream:
        for value in (b"1", b"2", b"3"):
            start_ts, commit_ts = shared.transaction(value)
            for response in stream:
                if response.entity.meta.startTs == start_ts:
                    assert response.entity.meta.commitTs == commit_ts
                    assert Binlog.FromString(response.entity.payload).prewrite_value == value
                    break
            else:
                pytest.fail("the stream ended")


@pytest.mark.row("W5")
def test_another_clusters_writes_and_pulls_are_refused_by_name_on_both_protocols(shared: PumpServer) -> None:
    ours = shared.cluster_id
    with pytest.raises(grpc.RpcError) as refused:
        shared.write(prewrite(1), cluster_id=5)
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details() == f"cluster ID are mismatch, 5 vs {ours}"
    with pytest.raises(grpc.RpcError) as refused:
        next(PumpStub(shared.channel).PullBinlogs(PullBinlogReq(clusterID=6), timeout=60))
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details() == f"cluster ID are mismatch, 6 vs {ours}"
    with pytest.raises(grpc.RpcError) as refused:
        shared.batch.Status(v1.StatusRequest(cluster_id=7), timeout=60)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    error = from_rpc_error(refused.value)
    assert isinstance(error, ClusterMismatch)
    assert (error.got, error.want) == (7, ours)
    assert not shared.status().unresolved


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff\xff",
        Binlog(tp=BinlogType.PreDDL, start_ts=1, commit_ts=2).SerializeToString(),
        b"\x08\x09\x10\x05",  # type 9
        Binlog(tp=BinlogType.Commit, start_ts=9, commit_ts=9).SerializeToString(),
        Binlog(tp=BinlogType.Rollback, start_ts=9, commit_ts=11).SerializeToString(),
    ],
)
def test_what_is_no_binlog_is_refused_loudly_and_not_stored(shared: PumpServer, payload: bytes) -> None:
    eventually(lambda: shared.status().unresolved == 0, what="the commits before are in the index")
    before = shared.status().value_log_bytes
    with pytest.raises(grpc.RpcError) as refused:
        shared.write(payload)
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details().startswith("proto: ")
    assert shared.status().unresolved == 0
    assert shared.status().value_log_bytes - before < 2000  # fakes


@pytest.mark.row("C5")
def test_a_probe_is_answered_and_stores_nothing(shared: PumpServer) -> None:
    eventually(lambda: shared.status().unresolved == 0, what="the commits before are in the index")
    shared.write(b"")
    assert shared.status().unresolved == 0


@pytest.mark.row("P8")
def test_the_watermark_moves_without_transactions_and_after_rollbacks_alone(shared: PumpServer) -> None:
    fence = shared.cluster.tso()
    eventually(lambda: shared.status().watermark > fence)
    start_ts = shared.cluster.tso()
    shared.write(prewrite(start_ts))
    shared.write(rollback(start_ts))
    fence = shared.cluster.tso()
    eventually(lambda: shared.status().watermark > fence)
    with shared.pulling(after=start_ts) as stream:
        fake = Binlog.FromString(next(stream).entity.payload)
    assert fake.tp == BinlogType.Rollback
    assert fake.start_ts == fake.commit_ts > start_ts
    assert not fake.prewrite_value


@pytest.mark.row("P6", "P8")
def test_an_open_prewrite_holds_the_watermark_and_one_fake_waits_behind_it(pump: PumpServer) -> None:
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts))
    fence = pump.cluster.tso()
    time.sleep(0.5)
    size = pump.status().value_log_bytes
    time.sleep(0.5)  # several fake intervals
    status = pump.status()
    assert status.watermark < fence
    assert status.value_log_bytes == size
    assert [b.start_ts for b in status.oldest_unresolved] == [start_ts]
    assert status.oldest_unresolved[0].prewrite_key == b"app/k"
    pump.write(commit(start_ts, pump.cluster.tso()))
    eventually(lambda: pump.status().watermark > fence)


def test_a_batch_stream_answers_each_payload_in_order_and_pulls_bring_arrow_frames(shared: PumpServer) -> None:
    stamps = [(shared.cluster.tso(), i) for i in range(50)]
    requests = [
        v1.WriteBinlogsRequest(
            cluster_id=shared.cluster_id,
            batch_id=7,
            payloads=[prewrite(ts, b"v%d" % i) for ts, i in stamps] + [b"\xff\xff", b""],
        )
    ]
    commits = {ts: shared.cluster.tso() for ts, _ in stamps}
    requests.append(
        v1.WriteBinlogsRequest(
            cluster_id=shared.cluster_id, batch_id=8, payloads=[commit(ts, commits[ts]) for ts, _ in stamps]
        )
    )
    answers = list(shared.batch.WriteBinlogs(iter(requests), timeout=60))
    assert [a.batch_id for a in answers] == [7, 8]
    assert [s.code for s in answers[0].statuses] == [0] * 50 + [grpc.StatusCode.INVALID_ARGUMENT.value[0], 0]
    assert answers[0].statuses[50].reason == "BAD_BINLOG"
    assert {s.code for s in answers[1].statuses} == {0}
    rows = shared.pull_batches(until=max(commits.values()), after=stamps[0][0])
    assert [(r["start_ts"], r["commit_ts"]) for r in rows] == [(ts, commits[ts]) for ts, _ in stamps]
    assert [Binlog.FromString(r["payload"]).prewrite_value for r in rows] == [b"v%d" % i for _, i in stamps]
    assert {r["flag"] for r in rows} == {0}
    unary = shared.pull_until(max(commits.values()), after=stamps[0][0])
    assert [b.SerializeToString() for b in unary] == [r["payload"] for r in rows]


def test_a_frame_never_claims_more_than_it_and_those_before_it_brought(shared: PumpServer) -> None:
    began = shared.cluster.tso()
    for i in range(40):
        last = shared.transaction(bytes([i]) * 3000)
    request = v1.PullBatchesRequest(
        cluster_id=shared.cluster_id, start_from=began, until=last[1], max_frame_bytes=10_000
    )
    seen = began
    frames = 0
    import pyarrow as pa

    for response in shared.batch.PullBatches(request, timeout=60):
        assert response.incarnation
        assert response.node_id == "pump-1"
        if response.frame:
            frames += 1
            with pa.ipc.open_stream(response.frame) as reader:
                stamps = reader.read_all()["commit_ts"].to_pylist()
            assert min(stamps) > seen
            assert max(stamps) <= response.watermark
        seen = response.watermark
    assert frames >= 10
    assert seen >= last[1]


def test_a_batch_pull_ends_at_its_bound_only_when_nothing_below_it_can_come(shared: PumpServer) -> None:
    open_ts = shared.cluster.tso()
    shared.write(prewrite(open_ts, b"late one"))
    until = shared.cluster.tso()
    request = v1.PullBatchesRequest(cluster_id=shared.cluster_id, start_from=open_ts, until=until)
    stream = shared.batch.PullBatches(request, timeout=60)
    held = next(r for r in stream if r.blocker.start_ts)
    assert held.blocker.start_ts == open_ts
    assert held.blocker.prewrite_key == b"app/k"
    assert held.watermark < until
    commit_ts = shared.cluster.tso()
    shared.write(commit(open_ts, commit_ts))
    assert list(stream)[-1].watermark >= until


@pytest.mark.row("P7")
def test_a_commit_without_prewrite_is_refused_to_unary_pulls_until_it_is_accepted(pump: PumpServer) -> None:
    start_ts = pump.cluster.tso()
    first = pump.transaction(b"before")
    orphan_ts = pump.cluster.tso()
    pump.write(commit(start_ts, orphan_ts))
    after = pump.transaction(b"after")
    with pytest.raises(grpc.RpcError) as refused:
        pump.pull_until(after[1])
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert str(start_ts) in refused.value.details()
    assert str(orphan_ts) in refused.value.details()
    assert refused.value.details().endswith("; see pumphouse archive accept")
    rows = pump.pull_batches(until=after[1])
    assert [(r["start_ts"], r["commit_ts"], r["flag"]) for r in rows] == [
        (*first, 0),
        (start_ts, orphan_ts, 1),
        (*after, 0),
    ]
    status = pump.status()
    assert [(c.start_ts, c.commit_ts, c.accepted) for c in status.orphans] == [(start_ts, orphan_ts, False)]
    pump.batch.Accept(
        v1.AcceptRequest(cluster_id=pump.cluster_id, start_ts=start_ts, commit_ts=orphan_ts, reason="seen elsewhere")
    )
    assert [b.commit_ts for b in pump.pull_until(after[1])] == [first[1], after[1]]
    assert all(c.accepted for c in pump.status().orphans)


@pytest.mark.row("P7")
def test_a_commit_below_the_published_watermark_is_late(pump: PumpServer) -> None:
    start_ts, late_ts = pump.cluster.tso(), pump.cluster.tso()
    fence = pump.cluster.tso()
    pump.write(prewrite(start_ts))
    pump.write(rollback(start_ts))
    eventually(lambda: pump.status().watermark > fence)
    pump.write(commit(start_ts, late_ts))
    after = pump.transaction()
    eventually(lambda: len(pump.status().late) + len(pump.status().orphans) == 1)
    with pytest.raises(grpc.RpcError) as refused:
        pump.pull_until(after[1])
    assert str(late_ts) in refused.value.details()
    assert refused.value.details().endswith("; see pumphouse archive accept")
    # A puller that has passed it sees it in the status alone; one that comes later sees it flagged.
    assert all(row["flag"] == 0 for row in pump.pull_batches(until=after[1], after=fence))
    assert [(c.start_ts, c.commit_ts) for c in pump.status().late] == [(start_ts, late_ts)]
    rows = pump.pull_batches(until=after[1])
    assert (start_ts, late_ts) in {(r["start_ts"], r["commit_ts"]) for r in rows if r["flag"] != 0}


@pytest.mark.row("P7", "O3")
def test_what_a_drainer_is_told_to_type_lets_it_go_on_where_there_is_no_archive(
    pump: PumpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start_ts, orphan_ts = pump.cluster.tso(), pump.cluster.tso()
    pump.write(commit(start_ts, orphan_ts))
    after = pump.transaction(b"after")
    with pytest.raises(grpc.RpcError) as refused:
        pump.pull_until(after[1])
    command = refused.value.details().rpartition("; see pumphouse ")[2].split()
    args = ["--cluster", pump.cluster.url, *command, "pump-1", str(start_ts), str(orphan_ts), "--reason", "looked at"]
    accepted = CliRunner().invoke(cli, args)
    assert accepted.exit_code == 0, accepted.output
    assert accepted.stdout.startswith("accepted: orphan commit")
    assert [b.commit_ts for b in pump.pull_until(after[1])] == [after[1]]


@pytest.mark.row("P7")
def test_a_pull_from_below_zero_begins_at_the_beginning(pump: PumpServer) -> None:
    first = pump.transaction(b"first")
    assert [b.commit_ts for b in pump.pull_until(first[1], after=-1)] == [first[1]]
    assert [row["commit_ts"] for row in pump.pull_batches(until=first[1], after=-(1 << 63))] == [first[1]]


def test_a_repeated_commit_is_counted_and_ignored(shared: PumpServer) -> None:
    before = shared.status().duplicate_commits
    start_ts, commit_ts = shared.transaction()
    shared.write(commit(start_ts, commit_ts))
    after = shared.transaction()
    assert [b.commit_ts for b in shared.pull_until(after[1], after=start_ts)] == [commit_ts, after[1]]
    assert shared.status().duplicate_commits == before + 1
    assert not shared.status().late


def test_several_megabytes_pass_both_ways(shared: PumpServer) -> None:
    value = bytes(range(256)) * (24 << 12)  # 24 MiB
    start_ts, commit_ts = shared.transaction(value)
    assert shared.pull_until(commit_ts, after=start_ts)[0].prewrite_value == value
    rows = shared.pull_batches(until=commit_ts, after=start_ts)
    assert Binlog.FromString(rows[0]["payload"]).prewrite_value == value


def test_settling_what_is_not_open_is_refused(shared: PumpServer) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        shared.batch.Settle(
            v1.SettleRequest(cluster_id=shared.cluster_id, start_ts=5, reason="?", who="me"), timeout=10
        )
    assert isinstance(from_rpc_error(refused.value), UsageError)


def test_the_registry_says_where_it_serves(shared: PumpServer) -> None:
    node = shared.registered()
    assert node.host == shared.addr
    assert node.extra is not None
    assert node.extra.http == shared.http
    assert json.loads(node.to_json())["state"] == "online"
