"""One registry value that cannot be read, among good ones (row W4)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pumphouse.errors import CorruptionError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.registry.base import Cluster, NodeChange, WatchesNodes
from pumphouse.registry.etcd_client import EtcdClient
from pumphouse.registry.open import open_cluster
from tests.support.etcdserver import EtcdServers
from tests.support.waiting import eventually


def _written_anew_or_removed(cluster: Cluster, client: EtcdClient) -> None:
    key, bad = b"/tidb-binlog/v1/drainers/bad", b'{"nodeId":"bad","state":"online","maxCommitTS":1e400}'
    mine = NodeStatus(node_id="bad", host="h:1", state=NodeState.ONLINE)
    client.put(key, bad)
    with pytest.raises(CorruptionError, match="drainers/bad") as refused:
        cluster.update_node(NodeKind.DRAINER, "bad", lambda _: mine)
    assert "consumer unregister bad" in refused.value.hint
    assert cluster.update_node(NodeKind.DRAINER, "bad", lambda found: found or mine, anew=True) == mine
    assert cluster.node(NodeKind.DRAINER, "bad") == mine
    client.put(key, bad)
    assert cluster.update_node(NodeKind.DRAINER, "bad", lambda found: found, anew=True) is None
    assert cluster.node(NodeKind.DRAINER, "bad") is None


@pytest.mark.row("W4")
def test_a_node_that_cannot_be_read_hides_no_other_from_clients_and_stops_who_must_know_all(tmp_path: Path) -> None:
    with EtcdServers(tmp_path / "etcd") as etcd:
        etcd.wait()
        cluster = open_cluster(etcd.url)
        good = NodeStatus(node_id="p1", host="h:1", state=NodeState.ONLINE)
        cluster.update_node(NodeKind.PUMP, "p1", lambda _: good)
        EtcdClient(etcd.endpoints).put(b"/tidb-binlog/v1/pumps/old", b'{"nodeId":"old","host":"h","state":"unknown"}')
        assert cluster.readable_nodes(NodeKind.PUMP) == [good]
        with pytest.raises(CorruptionError, match="pumps/old"):
            cluster.nodes(NodeKind.PUMP)
        _written_anew_or_removed(cluster, EtcdClient(etcd.endpoints))
        assert isinstance(cluster, WatchesNodes)
        watch = cluster.watch_nodes(NodeKind.PUMP)
        seen: list[NodeChange] = []

        def listen() -> None:
            for changes in watch:
                seen.extend(changes)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        eventually(lambda: [each.status for each in seen] == [good])
        watch.close()
        thread.join(60)
        cluster.close()
