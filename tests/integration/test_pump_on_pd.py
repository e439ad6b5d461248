"""A Pump of a TiDB cluster: its prewrites are resolved by TiKV, PD's GC waits for them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from pumphouse.cli import Context
from pumphouse.client.resolver import PENDING, ResolverServer, committed
from pumphouse.commands.pump import pump as pump_command
from pumphouse.errors import UsageError
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.tso import compose, physical_ms
from pumphouse.registry.base import Cluster
from pumphouse.registry.open import open_cluster
from tests.support.etcdserver import EtcdServers
from tests.support.pd import GC_WORKER, StandInPd
from tests.support.percolator import Lock
from tests.support.pumpserver import PumpServer, prewrite
from tests.support.tikv import StandInTikv
from tests.support.waiting import eventually

pytestmark = [pytest.mark.row("P6"), pytest.mark.row("W4")]

HOLD = "pumphouse-pump-pump-1"


def key(number: int) -> bytes:
    return b"t\x80" + bytes(6) + b"\x41" + b"_r" + number.to_bytes(8, "big")


@pytest.fixture(scope="module")
def pd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInPd]:
    with EtcdServers(tmp_path_factory.mktemp("etcd")) as etcd, StandInPd(2, etcd=etcd.endpoints[0]) as members:
        yield members


@pytest.fixture(scope="module")
def tikv(pd: StandInPd) -> Iterator[StandInTikv]:
    with StandInTikv(pd) as stores:
        yield stores


@pytest.fixture(scope="module")
def cluster(pd: StandInPd) -> Iterator[Cluster]:
    found = open_cluster(pd.url)
    yield found
    found.close()


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster, tikv: StandInTikv) -> Iterator[PumpServer]:
    """One Pump for all: each test leaves nothing open, and looks only above its own start ts."""
    directory = tmp_path_factory.mktemp("pump")
    with PumpServer(directory, cluster, max_txn_timeout_s=2.5, gc_hold_ttl_s=3.0) as server:
        yield server


def test_it_is_registered_in_pds_etcd_with_pds_cluster_id(pd: StandInPd, pump: PumpServer, cluster: Cluster) -> None:
    node = cluster.node(NodeKind.PUMP, "pump-1")
    assert node is not None
    assert node.state is NodeState.ONLINE
    assert pump.cluster_id == pd.state.cluster_id


def test_a_lost_commit_is_completed_from_tikv_early(pump: PumpServer, tikv: StandInTikv, cluster: Cluster) -> None:
    tikv.asked.clear()
    start_ts = cluster.tso()
    tikv.data.prewrite(key(1), Lock(start_ts, key(1), 60_000))
    pump.write(prewrite(start_ts, b"rows", key=key(1)))
    commit_ts = cluster.tso()
    tikv.data.commit(key(1), start_ts, commit_ts)
    (found,) = pump.pull_until(commit_ts, after=start_ts)
    assert (found.start_ts, found.commit_ts, found.prewrite_value) == (start_ts, commit_ts, b"rows")
    assert {kind for kind, _, _ in tikv.asked} == {"look"}


def test_a_transaction_that_never_came_is_dropped_after_the_time_out_and_gc_waits_until_then(
    pd: StandInPd, pump: PumpServer, tikv: StandInTikv, cluster: Cluster
) -> None:
    start_ts = cluster.tso()
    pump.write(prewrite(start_ts, key=key(2)))
    eventually(lambda: pd.state.services.get(HOLD, (0, 0))[0] == start_ts - 1, what="GC is held")
    assert pd.state.collect(cluster.tso()) == start_ts - 1
    eventually(lambda: pump.status().unresolved == 0)
    assert ("check", 1, 1) in tikv.asked
    eventually(lambda: HOLD not in pd.state.services, what="GC goes on")
    pd.state.services.pop(GC_WORKER)
    fence = cluster.tso()
    assert pump.pull_until(fence, after=start_ts) == []


def test_what_gc_may_have_taken_is_held_and_named(
    pd: StandInPd, pump: PumpServer, tikv: StandInTikv, cluster: Cluster
) -> None:
    start_ts = compose(physical_ms(cluster.tso()) - 10_000)
    pd.state.gc_safe_point = start_ts + 5
    pump.write(prewrite(start_ts, b"rows", key=key(3)))
    commit_ts = cluster.tso()
    eventually(lambda: f'"start_ts": {start_ts}' in pump.log(), what="the log names the start ts", within_s=40)
    command = ["settle", str(start_ts), "--rolled-back", "--reason", "x"]
    asked = CliRunner().invoke(pump_command, command, obj=Context(None, {"cluster.url": pd.url}))
    assert isinstance(asked.exception, UsageError)  # needs a yes
    assert "TiKV answers for its key" in asked.stderr
    assert pump.status().unresolved == 1
    pd.state.gc_safe_point = 0
    tikv.data.key(key(3)).writes.clear()
    tikv.data.prewrite(key(3), Lock(start_ts, key(3), 60_000))
    tikv.data.commit(key(3), start_ts, commit_ts)
    eventually(lambda: pump.status().unresolved == 0)
    assert [b.start_ts for b in pump.pull_until(commit_ts, after=start_ts)][-1] == start_ts


@pytest.mark.row("P12")
def test_debug_binlog_shows_the_versions_of_a_prewrites_key(
    pump: PumpServer, tikv: StandInTikv, cluster: Cluster
) -> None:
    start_ts = cluster.tso()
    tikv.data.prewrite(key(4), Lock(start_ts, key(4), 60_000))
    pump.write(prewrite(start_ts, key=key(4)))
    commit_ts = cluster.tso()
    tikv.data.commit(key(4), start_ts, commit_ts)
    pump.pull_until(commit_ts, after=start_ts)
    with urlopen(f"http://{pump.http}/debug/binlog/{start_ts}") as page:
        text = page.read().decode()
    assert f"transaction: committed commit_ts: {commit_ts}" in text
    assert f"mvcc of {key(4).hex()}:" in text
    assert f"commit_ts: {commit_ts}" in text.partition("mvcc")[2]


def test_an_application_that_registered_for_a_key_is_asked_and_tikv_is_not(
    pump: PumpServer, tikv: StandInTikv, cluster: Cluster
) -> None:
    asked = len(tikv.asked)
    outcomes: dict[int, int] = {}
    server = ResolverServer(cluster, "app", [key(5)[:11]], lambda ts, k, decide: committed(outcomes[ts]))
    try:
        time.sleep(1.1)  # the Pump reads the registry once a second
        start_ts = cluster.tso()
        pump.write(prewrite(start_ts, b"theirs", key=key(5)))
        commit_ts = outcomes[start_ts] = cluster.tso()
        (found,) = pump.pull_until(commit_ts, after=start_ts)
    finally:
        server.unregister()  # one that is only stopped keeps its keys, and those of other tests lie among them
    assert found.prewrite_value == b"theirs"
    assert len(tikv.asked) == asked
    time.sleep(1.1)


def test_keys_that_cannot_be_tidbs_are_never_asked_of_tikv(
    pump: PumpServer, tikv: StandInTikv, cluster: Cluster
) -> None:
    asked = len(tikv.asked)
    start_ts = cluster.tso()
    pump.write(prewrite(start_ts, key=b"app/1"))
    time.sleep(3)  # past the time-out after which it is asked with power
    assert pump.status().unresolved == 1
    assert len(tikv.asked) == asked
    from pumphouse.proto import pumphouse_pb2 as v1

    pump.batch.Settle(v1.SettleRequest(cluster_id=pump.cluster_id, start_ts=start_ts, reason="test", who="test"))
    eventually(lambda: pump.status().unresolved == 0)


def test_a_pump_that_stops_leaves_gc_held_only_for_what_is_open(
    tmp_path: Path, pd: StandInPd, tikv: StandInTikv, cluster: Cluster
) -> None:
    hold = "pumphouse-pump-pump-2"
    with PumpServer(tmp_path, cluster, node_id="pump-2") as pump:
        start_ts = cluster.tso()
        pump.write(prewrite(start_ts, key=key(7)))
        eventually(lambda: pump.status().unresolved == 1)
        pump.stop()
        assert pd.state.services[hold][0] == start_ts - 1
        pump.start()
        tikv.data.prewrite(key(7), Lock(start_ts, key(7), 60_000))
        tikv.data.commit(key(7), start_ts, cluster.tso())
        eventually(lambda: pump.status().unresolved == 0)
        pump.stop()
        assert hold not in pd.state.services


def test_it_serves_on_through_a_change_of_pds_leader(
    pd: StandInPd, pump: PumpServer, tikv: StandInTikv, cluster: Cluster
) -> None:
    for gone, leader in ((0, 1), (1, 0)):
        pd.stop(gone)
        pd.state.leader = leader
        start_ts = cluster.tso()
        tikv.data.prewrite(key(6), Lock(start_ts, key(6), 60_000))
        pump.write(prewrite(start_ts, key=key(6)))
        commit_ts = cluster.tso()
        tikv.data.commit(key(6), start_ts, commit_ts)
        assert [b.start_ts for b in pump.pull_until(commit_ts, after=start_ts)] == [start_ts]
        fence = cluster.tso()
        eventually(lambda fence=fence: pump.status().watermark > fence, what="fakes go on")  # type: ignore[misc]
        pd.start(gone)
    node = cluster.node(NodeKind.PUMP, "pump-1")
    assert node is not None
    assert node.state is NodeState.ONLINE
    assert json.loads(urlopen(f"http://{pump.http}/status").read())["CommitTS"] > 0


def test_the_transactions_of_an_application_that_was_stopped_wait_for_it_whatever_their_keys_look_like(
    pump: PumpServer, tikv: StandInTikv, cluster: Cluster
) -> None:
    start_ts = cluster.tso()
    shaped = key(99)
    with ResolverServer(cluster, "app", [shaped[:5]], lambda *_: PENDING):
        pass
    tikv.asked.clear()
    pump.write(prewrite(start_ts, b"rows", key=shaped))
    commit_ts = cluster.tso()  # not before the prewrite is there: a fake in between would make it late
    time.sleep(3.5)  # past max-txn-timeout
    assert pump.status().unresolved == 1
    assert tikv.asked == []
    server = ResolverServer(cluster, "app", [shaped[:5]], lambda *_: committed(commit_ts))
    eventually(lambda: pump.status().unresolved == 0)
    server.unregister()
    assert [b.start_ts for b in pump.pull_until(commit_ts, after=start_ts - 1)] == [start_ts]
