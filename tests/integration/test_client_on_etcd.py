"""The pump client on a registry that tells of changes: a real etcd (row C1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.client.pump_client import PumpClient
from pumphouse.codec.payload import make_prewrite
from pumphouse.errors import PumpUnavailable
from pumphouse.model.node import NodeState
from pumphouse.registry.base import Cluster
from pumphouse.registry.open import open_cluster
from tests.support.etcdserver import EtcdServers
from tests.support.fakepump import FakePump
from tests.support.waiting import eventually


@pytest.fixture
def cluster(etcd: EtcdServers) -> Iterator[Cluster]:
    opened = open_cluster(etcd.url)
    yield opened
    opened.close()


@pytest.fixture
def pumps(cluster: Cluster) -> Iterator[dict[str, FakePump]]:
    made = {name: FakePump(name, cluster) for name in ("told-a", "told-b")}
    made["told-a"].register(label={"zone": "a"})
    made["told-b"].register(label={"zone": "b"})
    yield made
    for pump in made.values():
        pump.register(NodeState.OFFLINE)
        pump.stop()


@pytest.mark.row("C1", "W4")
def test_changes_of_state_arrive_at_once_though_nobody_looks(cluster: Cluster, pumps: dict[str, FakePump]) -> None:
    # A look every two minutes: what arrives before that was told.
    with PumpClient(cluster, watch_interval_s=120) as client:

        def available() -> set[str]:
            return {status.node_id for status in client.available()} & set(pumps)

        assert available() == {"told-a", "told-b"}
        for state, left in ((NodeState.CLOSING, {"told-b"}), (NodeState.ONLINE, {"told-a", "told-b"})):
            pumps["told-a"].register(state)
            eventually(lambda left=left: available() == left)
        third = FakePump("told-c", cluster).register()
        try:
            eventually(lambda: "told-c" in {status.node_id for status in client.available()})
        finally:
            third.register(NodeState.OFFLINE)
            third.stop()


@pytest.mark.row("C2")
def test_labels_decide_through_the_registry(cluster: Cluster, pumps: dict[str, FakePump]) -> None:
    with PumpClient(cluster, strategy="label", labels={"zone": "b"}, write_timeout_s=0.5) as client:
        for _ in range(4):
            start_ts = cluster.tso()
            assert client.write_prewrite(make_prewrite(start_ts, b"k", b"v"), start_ts) == "told-b"
        pumps["told-b"].register(NodeState.PAUSED, label={"zone": "b"})
        eventually(lambda: "told-b" not in {status.node_id for status in client.available()})
        with pytest.raises(PumpUnavailable):
            client.write_prewrite(make_prewrite(start_ts, b"k", b"v"), start_ts)
    assert pumps["told-a"].taken == []
