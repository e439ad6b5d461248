"""Operators' calls at a running Pump, on both transports: who may, and what a web page may not (row W8)."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pump_service.api.rights import TABLE, Right
from pumphouse.archive.puller import BatchPuller
from pumphouse.client.admin import ask_state, trigger_gc
from pumphouse.errors import PeerRefused, UsageError
from pumphouse.model.node import NodeState
from pumphouse.model.tso import Tso
from pumphouse.proto import pumphouse_pb2 as v1
from pumphouse.proto.pump_pb2 import PullBinlogReq
from pumphouse.proto.pump_pb2_grpc import PumpStub
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.file import FileCluster
from pumphouse.rpc.operator import Proof, proof
from pumphouse.rpc.status import from_rpc_error
from pumphouse.settings import ClusterSettings
from tests.stack.pumps import CLI
from tests.support.pumpserver import PumpServer, commit, prewrite
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("W8")
TOKEN = "0123456789abcdef-operator"
MOST_PULLS = 3
OURS = proof(ClusterSettings(operator_token=f"{TOKEN}\nthe-token-before-that"))  # type: ignore[arg-type]
WRONG: Proof = (("authorization", "Bearer 0123456789abcdef-another"),)


@pytest.fixture(scope="module", params=["grpcio", "builtin"])
def pump(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PumpServer]:
    """One whose loopback proves nothing, as behind a proxy: every caller of the test is a stranger."""
    directory = tmp_path_factory.mktemp("rights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUMPHOUSE_CLUSTER__OPERATOR_TOKEN", TOKEN)
        with PumpServer(
            directory,
            FileCluster(directory / "cluster"),
            transport=request.param,
            trust_loopback=False,
            max_pull_streams=MOST_PULLS,
        ) as server:
            yield server


def ask(pump: PumpServer, method: str, path: str, **headers: str) -> tuple[int, str]:
    host, port = pump.http.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_stranger_writes_and_pulls_and_nothing_else(pump: PumpServer) -> None:
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts))
    pump.write(commit(start_ts, pump.cluster.tso()))
    assert pump.status().node_id == "pump-1"
    assert [ask(pump, "GET", path)[0] for path in ("/status", "/drainers", "/metrics")] == [200, 200, 200]
    puller = BatchPuller(pump.registered(), pump.cluster_id)
    assert puller.first_after(Tso(start_ts), 10) is not None
    puller.close()
    for method, path in (
        ("GET", f"/debug/binlog/{start_ts}"),
        ("POST", "/debug/gc/trigger"),
        ("HEAD", "/debug/binlog/1"),
    ):
        status, text = ask(pump, method, path)
        assert status == 403
        assert method == "HEAD" or "is for operators" in text
    with pytest.raises(PeerRefused, match="PUT /state"):
        ask_state(pump.cluster, "pump-1", "close")
    assert pump.registered().state is NodeState.ONLINE
    for authorization in (None, WRONG):
        (report,) = trigger_gc(pump.cluster, proof=authorization or ())
        assert "TriggerGc is for operators" in report.error
        with pytest.raises(PeerRefused) as refused:
            settle(pump, start_ts, authorization or ())
        assert refused.value.hint
        puller = BatchPuller(pump.registered(), pump.cluster_id, None, authorization or ())
        with pytest.raises(PeerRefused):
            puller.accept(Tso(1), Tso(2), "because")
        puller.close()


def settle(pump: PumpServer, start_ts: int, shown: Proof) -> None:
    with grpc.insecure_channel(pump.addr) as channel:
        request = v1.SettleRequest(cluster_id=pump.cluster_id, start_ts=start_ts, reason="x", who="x")
        try:
            PumpBatchStub(channel).Settle(request, timeout=10, metadata=shown)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


def test_the_token_opens_every_operation(pump: PumpServer) -> None:
    start_ts = pump.cluster.tso()
    pump.write(prewrite(start_ts))
    bearer = dict(OURS)["authorization"]
    eventually(lambda: "app/k" in ask(pump, "GET", f"/debug/binlog/{start_ts}", Authorization=bearer)[1])
    assert ask(pump, "POST", "/debug/gc/trigger", Authorization=bearer)[0] == 200
    assert ask(pump, "PUT", "/state/pump-1/explode", Authorization=bearer)[0] == 200
    (report,) = trigger_gc(pump.cluster, proof=OURS)
    assert not report.error
    settle(pump, start_ts, OURS)
    eventually(lambda: pump.status().unresolved == 0)
    puller = BatchPuller(pump.registered(), pump.cluster_id, None, OURS)
    with pytest.raises(UsageError):  # it was let in, and there is no such commit
        puller.accept(Tso(1), Tso(2), "because")
    puller.close()


def test_commands_show_the_token_of_the_settings_and_say_what_is_missing_without_one(pump: PumpServer) -> None:
    for given, code in (({}, 1), ({"cluster.operator_token": TOKEN}, 0)):
        start_ts = pump.cluster.tso()
        pump.write(prewrite(start_ts))
        eventually(lambda ts=start_ts: any(each.start_ts == ts for each in pump.status().oldest_unresolved))
        settled = command(
            pump,
            given,
            "pump",
            "settle",
            str(start_ts),
            "--rolled-back",
            "--reason",
            "test",
            "--node",
            "pump-1",
            "--yes",
        )
        assert settled[0] == code, settled[1]
        gc = command(pump, given, "gc")
        assert gc[0] == code, gc[1]
        if code:
            assert "cluster.operator_token" in settled[1]
            settle(pump, start_ts, OURS)
    refused = command(pump, {}, "pause-pump", "pump-1")
    assert refused[0] == 1
    assert "PUT /state" in refused[1]
    assert pump.registered().state is NodeState.ONLINE


def command(pump: PumpServer, given: dict[str, str], *words: str) -> tuple[int, str]:
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    done = subprocess.run(
        [*CLI, "--set", f"cluster.url={pump.cluster.url}", *sets, *words],
        env={name: value for name, value in os.environ.items() if not name.startswith("PUMPHOUSE_")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_refused_change_of_state_reads_like_any_other_answer(pump: PumpServer) -> None:
    status, text = ask(pump, "PUT", "/state/pump-1/close")
    answer = json.loads(text)
    assert (status, answer["code"], answer["data"]) == (403, 403, None)
    assert "pump.open_operations = state" in answer["message"]


def test_a_web_page_can_do_nothing_at_all(pump: PumpServer) -> None:
    """Also where its browser would be let in: the token stands for the loopback here."""
    bearer = dict(OURS)["authorization"]
    for path in ("/debug/gc/trigger", "/status", "/metrics"):
        method = "POST" if "gc" in path else "GET"
        assert ask(pump, method, path, Host="evil.example", Authorization=bearer)[0] == 421
        assert ask(pump, method, path, Origin="http://evil.example", Authorization=bearer)[0] == 403
    assert ask(pump, "PUT", "/state/pump-1/close", Sec_Fetch_Site="cross-site", Authorization=bearer)[0] == 403
    assert ask(pump, "GET", "/status", Host=socket.gethostname())[0] == 200
    assert pump.registered().state is NodeState.ONLINE


def test_pull_streams_of_strangers_are_bounded_and_take_no_operators_place(pump: PumpServer) -> None:
    kept = pump.status().gc_point  # another test may have run GC
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(pump.addr))

        def pull(shown: Proof = ()) -> Any:
            request = v1.PullBatchesRequest(cluster_id=pump.cluster_id, start_from=kept)
            call = PumpBatchStub(channel).PullBatches(request, timeout=60, metadata=shown)
            stack.callback(call.cancel)
            return call

        open_ones = [pull() for _ in range(MOST_PULLS)]
        for each in open_ones:
            next(each)
        with pytest.raises(grpc.RpcError) as refused:
            next(pull())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "pump.max_pull_streams" in refused.value.details()
        with pytest.raises(grpc.RpcError, match="max_pull_streams"):
            next(PumpStub(channel).PullBinlogs(PullBinlogReq(clusterID=pump.cluster_id), timeout=60))
        own = [pull(OURS) for _ in range(MOST_PULLS)]
        for each in own:
            next(each)
        open_ones[0].cancel()

        def comes_in() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return next(pull()) is not None
            return False

        eventually(comes_in)


def test_every_call_that_there_is_has_its_right(pump: PumpServer) -> None:
    calls = {f"/{service.full_name}/{method}" for service in services() for method in service.methods_by_name}
    assert {name for name in TABLE if name.startswith("/")} == calls
    for what, right in TABLE.items():
        if not what.startswith("/") and right not in (Right.WRITE, Right.PULL, Right.LOOK):
            method, _, path = what.partition(" ")
            assert ask(pump, method, path.format(ts=1, node_id="x", action="y"))[0] == 403, what


def services() -> list[object]:
    from pumphouse.proto import pump_pb2

    return [pump_pb2.DESCRIPTOR.services_by_name["Pump"], v1.DESCRIPTOR.services_by_name["PumpBatch"]]


def test_the_loopback_is_an_operator_and_a_port_in_clear_is_said(tmp_path: Path) -> None:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster")) as pump:
        assert ask(pump, "GET", "/debug/binlog/1")[0] == 200
        (report,) = trigger_gc(pump.cluster)
        assert not report.error
        assert "listens_in_clear" not in pump.log()
        assert not pump.status().in_clear
        pump.stop()
        port = pump.addr.rsplit(":", 1)[1]
        pump.addr = f"0.0.0.0:{port}"
        with pump.start():
            assert "listens_in_clear" in pump.log()
            pump.addr = f"127.0.0.1:{port}"
            assert list(pump.status().in_clear) == [f"0.0.0.0:{port}"]
