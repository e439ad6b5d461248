"""How a Pump comes and goes: registration, Notify, pause, close and drain."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from pumphouse.client.admin import ask_state, is_silent, wait_for_state
from pumphouse.client.closing import waits_for
from pumphouse.errors import PumpError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.proto.binlog_pb2 import Binlog
from pumphouse.proto.cistern_pb2 import NotifyReq, NotifyResp
from pumphouse.proto.cistern_pb2_grpc import CisternServicer, add_CisternServicer_to_server
from pumphouse.registry.file import FileCluster
from tests.support.frozen import freeze
from tests.support.pumpserver import PumpServer, commit, prewrite, rollback
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P13")


@pytest.fixture
def cluster(tmp_path: Path) -> FileCluster:
    return FileCluster(tmp_path / "cluster")


@pytest.fixture
def pump(tmp_path: Path, cluster: FileCluster) -> Iterator[PumpServer]:
    with PumpServer(tmp_path, cluster) as server:
        yield server


class Drainer(CisternServicer):
    """Counts notifications; answers when it is told to."""

    def __init__(self, cluster: FileCluster, name: str = "drainer-1") -> None:
        self.notified: list[NodeStatus | None] = []
        self.fail = 0
        self._cluster = cluster
        self.server = grpc.server(ThreadPoolExecutor(2))
        add_CisternServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        status = NodeStatus(node_id=name, host=f"127.0.0.1:{port}", state=NodeState.ONLINE)
        cluster.update_node(NodeKind.DRAINER, name, lambda _: status)

    def Notify(self, request: NotifyReq, context: grpc.ServicerContext) -> NotifyResp:
        self.notified.append(self._cluster.node(NodeKind.PUMP, "pump-1"))
        if self.fail:
            self.fail -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return NotifyResp()


@pytest.fixture
def drainer(cluster: FileCluster) -> Iterator[Drainer]:
    found = Drainer(cluster)
    yield found
    found.server.stop(0).wait()


@pytest.mark.row("P9")
def test_a_new_pump_notifies_online_drainers_after_registering_and_a_paused_one_does_not(
    tmp_path: Path, cluster: FileCluster, drainer: Drainer
) -> None:
    drainer.fail = 1  # tried again
    # The archive registers as paused: no starting Pump waits for it.
    cluster.update_node(
        NodeKind.DRAINER,
        "pumphouse-main",
        lambda _: NodeStatus(node_id="pumphouse-main", host="", state=NodeState.PAUSED),
    )
    pump = PumpServer(tmp_path, cluster)
    with pump.start():
        assert len(drainer.notified) == 2
        seen = drainer.notified[0]
        assert seen is not None
        assert seen.state is NodeState.ONLINE
        assert pump.stop() == 0
    assert pump.registered().state is NodeState.PAUSED
    with pump.start():
        assert len(drainer.notified) == 2


@pytest.mark.row("P9")
@pytest.mark.parametrize("found", [None, NodeState.OFFLINE])
def test_a_start_that_cannot_notify_fails_and_puts_back_the_registry_value(
    tmp_path: Path, cluster: FileCluster, found: NodeState | None
) -> None:
    before = None if found is None else NodeStatus(node_id="pump-1", host="old:1", state=found)
    cluster.update_node(NodeKind.PUMP, "pump-1", lambda _: before)
    cluster.update_node(
        NodeKind.DRAINER, "gone", lambda _: NodeStatus(node_id="gone", host="127.0.0.1:1", state=NodeState.ONLINE)
    )
    pump = PumpServer(tmp_path, cluster)
    code, log = pump.refuse_to_start()
    assert code == 1
    assert "fail to notify all living drainer" in log
    assert "gone" in log
    assert cluster.node(NodeKind.PUMP, "pump-1") == before


def test_sigterm_leaves_it_paused_with_its_watermark(pump: PumpServer) -> None:
    _, commit_ts = pump.transaction()
    with pump.pulling() as stream:
        next(stream)
        os.kill(pump.pid, signal.SIGTERM)
        list(stream)  # ends with OK
        assert pump.wait() == 0
    node = pump.registered()
    assert node.state is NodeState.PAUSED
    assert node.max_commit_ts >= commit_ts
    with pump.start():
        assert pump.registered().state is NodeState.ONLINE
        assert pump.pull_until(commit_ts)


def test_pause_refuses_prewrites_then_stops(pump: PumpServer, cluster: FileCluster) -> None:
    assert ask_state(cluster, "pump-1", "pause") == "apply action pause success!"
    assert pump.wait() == 0
    assert pump.registered().state is NodeState.PAUSED


def test_a_closing_pump_drains_before_it_goes(pump: PumpServer, cluster: FileCluster) -> None:
    """The whole choreography: gate, registry, open P, F, consumer, offline."""
    pump.consumer(0)
    open_ts, rolled_ts = cluster.tso(), cluster.tso()
    pump.write(prewrite(open_ts, b"open"))
    pump.write(prewrite(rolled_ts))
    ask_state(cluster, "pump-1", "close")
    assert wait_for_state(cluster, "pump-1", NodeState.CLOSING, 5)

    with pytest.raises(grpc.RpcError) as refused:
        pump.write(prewrite(cluster.tso()))
    assert refused.value.details() == "no online: closing"
    with pytest.raises(PumpError, match="this pump's state is closing"):
        ask_state(cluster, "pump-1", "pause")

    # C and Rollback are taken; F comes only when no P is open.
    pump.write(rollback(rolled_ts))
    time.sleep(0.5)
    assert "last_position_fixed" not in pump.log()
    assert '"waiting_for_prewrites"' in pump.log()
    waiting = waits_for(cluster, pump.registered())
    assert (waiting.prewrites, waiting.oldest) == (1, open_ts)
    commit_ts = cluster.tso()
    pump.write(commit(open_ts, commit_ts))
    eventually(lambda: "last_position_fixed" in pump.log())
    status = pump.status()
    assert status.state == "closing"
    assert status.watermark > commit_ts

    # Pulls are served and fakes go on until the consumer has passed F.
    assert pump.pull_until(commit_ts)[0].prewrite_value == b"open"
    fence = cluster.tso()
    eventually(lambda: pump.status().watermark > fence)
    pump.consumer(commit_ts)  # not above F
    time.sleep(0.6)
    assert pump.registered().state is NodeState.CLOSING
    pump.consumer(pump.status().watermark)
    assert pump.wait() == 0
    node = pump.registered()
    assert node.state is NodeState.OFFLINE
    assert node.max_commit_ts > commit_ts


def test_closing_waits_for_every_consumer_that_is_not_offline(pump: PumpServer, cluster: FileCluster) -> None:
    pump.consumer(0, name="gone", state=NodeState.OFFLINE)
    pump.consumer(0, name="slow", state=NodeState.ONLINE)
    ask_state(cluster, "pump-1", "close")
    eventually(lambda: "waiting_for_consumers" in pump.log())
    assert '"slow"' in pump.log()
    assert '"gone"' not in pump.log().split("waiting_for_consumers")[1]
    assert pump.registered().state is NodeState.CLOSING
    pump.consumer(cluster.tso(), name="slow", state=NodeState.ONLINE)
    assert pump.wait() == 0
    assert pump.registered().state is NodeState.OFFLINE


def test_sigterm_while_closing_leaves_it_paused_and_it_comes_back_whole(pump: PumpServer, cluster: FileCluster) -> None:
    pump.consumer(0)
    _, commit_ts = pump.transaction(b"kept")
    ask_state(cluster, "pump-1", "close")
    wait_for_state(cluster, "pump-1", NodeState.CLOSING, 5)
    assert pump.stop() == 0
    assert pump.registered().state is NodeState.PAUSED
    (line,) = [json.loads(line) for line in pump.log().splitlines() if "closing_was_cut_short" in line]
    assert (line["state"], line["hint"]) == ("paused", "start it, then: pumphouse offline-pump pump-1")
    with pump.start():
        assert pump.pull_until(commit_ts)[0].prewrite_value == b"kept"
        assert pump.log().count("closing_was_cut_short") <= 1


@pytest.mark.row("P13")
def test_a_pump_that_was_killed_while_it_closed_is_online_again_and_says_so(
    pump: PumpServer, cluster: FileCluster
) -> None:
    pump.consumer(0)
    ask_state(cluster, "pump-1", "close")
    wait_for_state(cluster, "pump-1", NodeState.CLOSING, 5)
    pump.kill()
    assert "closing_was_cut_short" not in pump.log()
    with pump.start():
        assert pump.registered().state is NodeState.ONLINE
        (line,) = [json.loads(line) for line in pump.log().splitlines() if "closing_was_cut_short" in line]
        assert (line["state"], line["hint"]) == ("online", "pumphouse offline-pump pump-1")


def test_no_prewrite_is_lost_or_taken_late_when_a_pump_closes_under_load(
    pump: PumpServer, cluster: FileCluster
) -> None:
    answered: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            start_ts = cluster.tso()
            try:
                pump.write(prewrite(start_ts))
            except grpc.RpcError:
                return
            answered.append(start_ts)
            pump.write(commit(start_ts, cluster.tso()))

    pump.consumer(0)
    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) > 50)
    ask_state(cluster, "pump-1", "close")
    for thread in threads:
        thread.join(60)
    stop.set()
    eventually(lambda: "last_position_fixed" in pump.log())
    fence = cluster.tso()
    eventually(lambda: pump.status().watermark > fence)
    with pump.pulling() as stream:
        pulled = []
        for response in stream:
            if (binlog := Binlog.FromString(response.entity.payload)).start_ts != binlog.commit_ts:
                pulled.append(binlog.start_ts)
            if response.entity.meta.commitTs > fence:
                break
    assert sorted(pulled) == sorted(answered)
    pump.consumer(cluster.tso())
    assert pump.wait() == 0


@pytest.mark.row("W3")
def test_a_pump_whose_node_id_another_data_directory_takes_stops_and_leaves_the_registry_to_it(
    tmp_path: Path, pump: PumpServer, cluster: FileCluster
) -> None:
    other = PumpServer(tmp_path / "other", cluster)
    other.directory.mkdir()
    freeze(pump.pid, cluster)  # while it is heard, the other one is refused
    eventually(lambda: is_silent(pump.registered()), within_s=20)
    with other.start():
        os.kill(pump.pid, signal.SIGCONT)
        assert pump.wait() == 1
        assert "another process has registered as pump-1" in pump.log()
        assert pump.registered().host == other.addr
        other.transaction()


@pytest.mark.row("W5")
def test_the_data_of_one_cluster_is_not_served_in_another(tmp_path: Path, pump: PumpServer) -> None:
    pump.transaction()
    assert pump.stop() == 0
    pump.cluster = FileCluster(tmp_path / "another")
    code, log = pump.refuse_to_start()
    assert code == 1
    assert "holds binlogs of cluster" in log
    assert pump.cluster.nodes(NodeKind.PUMP) == []
