"""``pd://``: PD's id and clock from stand-in members, the registry in a real etcd behind them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.registry.base import Cluster, KeepsReadable, ResolverRecord
from pumphouse.registry.open import open_cluster
from pumphouse.registry.pd import PdCluster
from pumphouse.settings import TlsSettings
from tests.support.certs import Authority
from tests.support.etcdserver import EtcdServers
from tests.support.pd import StandInPd

pytestmark = pytest.mark.row("W4")


def status(node_id: str, state: NodeState = NodeState.ONLINE) -> NodeStatus:
    return NodeStatus(node_id=node_id, host="127.0.0.1:8250", state=state, max_commit_ts=Tso(5), update_ts=Tso(9))


def advanced(ts: Tso) -> Callable[[NodeStatus | None], NodeStatus | None]:
    return lambda found: replace(found, max_commit_ts=ts) if found else None


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    with EtcdServers(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers


@pytest.fixture
def pd(etcd: EtcdServers) -> Iterator[StandInPd]:
    with StandInPd(3, etcd=etcd.endpoints[0]) as members:
        yield members


@pytest.fixture
def cluster(pd: StandInPd) -> Iterator[Cluster]:
    found = open_cluster(pd.url)
    yield found
    found.close()


def test_id_and_clock_are_pds(pd: StandInPd, cluster: Cluster) -> None:
    assert isinstance(cluster, PdCluster)
    assert cluster.cluster_id() == pd.state.cluster_id
    assert cluster.url == pd.url
    assert cluster.tso() < cluster.tso() <= pd.state.last


@pytest.mark.row("W3")
def test_nodes_lie_in_pds_etcd_where_the_go_tools_look(etcd: EtcdServers, cluster: Cluster) -> None:
    cluster.update_node(NodeKind.PUMP, "h:8250", lambda _: status("h:8250"))
    key = base64.b64encode(b"/tidb-binlog/v1/pumps/h:8250").decode()
    (kv,) = etcd.ask(0, "kv/range", {"key": key})["kvs"]
    assert json.loads(base64.b64decode(kv["value"]))["nodeId"] == "h:8250"
    assert [node.node_id for node in cluster.nodes(NodeKind.PUMP)] == ["h:8250"]
    cluster.update_node(NodeKind.PUMP, "h:8250", lambda _: None)
    assert cluster.node(NodeKind.PUMP, "h:8250") is None


def test_the_registry_outlives_members_that_go_and_the_leaders_change(pd: StandInPd, cluster: Cluster) -> None:
    cluster.update_node(NodeKind.DRAINER, "d", lambda _: status("d"))
    last = cluster.tso()
    for gone, leader in ((0, 1), (1, 2)):
        pd.stop(gone)
        pd.state.leader = leader
        ts = cluster.tso()
        assert ts > last
        last = ts
        assert cluster.update_node(NodeKind.DRAINER, "d", advanced(ts)) is not None
        pd.start(gone)
    found = cluster.node(NodeKind.DRAINER, "d")
    assert found is not None
    assert found.max_commit_ts == last
    cluster.update_node(NodeKind.DRAINER, "d", lambda _: None)


def test_resolvers_are_registered_beside_the_nodes(cluster: Cluster) -> None:
    record = ResolverRecord(resolver_id="app", host="h:1", prefixes=(b"app/",), heartbeat=time.time())
    cluster.put_resolver(record)
    assert cluster.resolvers() == [record]
    cluster.delete_resolver("app")
    assert cluster.resolvers() == []


def test_a_watch_sees_changes_through_pd(cluster: Cluster) -> None:
    assert isinstance(cluster, PdCluster)
    watch = cluster.watch_nodes(NodeKind.PUMP)
    seen: list[str] = []
    arrived = threading.Event()

    def look() -> None:
        for changes in watch:
            seen.extend(change.node_id for change in changes)
            if "w" in seen:
                arrived.set()

    looker = threading.Thread(target=look)
    looker.start()
    cluster.update_node(NodeKind.PUMP, "w", lambda _: status("w"))
    assert arrived.wait(60)
    watch.close()
    looker.join(60)
    assert not looker.is_alive()
    cluster.update_node(NodeKind.PUMP, "w", lambda _: None)


def run(*command: str, url: str) -> Any:
    """What a command says, as a process of its own: it must end by itself, and say nothing else."""
    ended = subprocess.run(
        [sys.executable, "-c", "from pumphouse.cli import main; main()", *command],
        env={**os.environ, "PUMPHOUSE_CLUSTER__URL": url},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    return json.loads(ended.stdout)


@pytest.mark.row("O3")
def test_gc_does_not_pass_what_is_read(pd: StandInPd, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(cluster, KeepsReadable)
    monkeypatch.setattr("pumphouse.registry.pd._KEPT_S", 1)
    monkeypatch.setattr("pumphouse.registry.pd._RENEWED_S", 0.1)
    ts = cluster.tso()
    with cluster.keep_readable(ts):
        assert pd.state.collect(cluster.tso()) == ts - 1
        time.sleep(1.5)  # longer than it is kept without a word
        assert pd.state.collect(cluster.tso()) == ts - 1
    later = cluster.tso()
    assert pd.state.collect(later) == later


def test_commands_work_on_pd(pd: StandInPd, cluster: Cluster) -> None:
    cluster.update_node(NodeKind.PUMP, "h:8250", lambda _: status("h:8250", NodeState.PAUSED))
    listed = run("pumps", "--json", url=pd.url)
    assert [node["node_id"] for node in listed] == ["h:8250"]
    assert run("drainers", "--json", url=pd.url) == []
    before = cluster.tso()
    assert before < run("tso", "--json", url=pd.url)["tso"] < cluster.tso()
    cluster.update_node(NodeKind.PUMP, "h:8250", lambda _: None)


@pytest.mark.row("W6")
def test_pd_and_its_etcd_over_tls(tmp_path: Path, etcd: EtcdServers) -> None:
    tls = Authority(tmp_path).settings("pump", allowed=("pump",))
    with StandInPd(tls=tls, etcd=etcd.endpoints[0]) as pd:
        cluster = open_cluster(pd.url, tls)
        cluster.update_node(NodeKind.PUMP, "t", lambda _: status("t"))
        assert cluster.tso() > 0
        cluster.update_node(NodeKind.PUMP, "t", lambda _: None)
        cluster.close()
        assert TlsSettings() != tls
