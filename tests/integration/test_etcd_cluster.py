"""Clusters on real etcd servers: what lies in them, and what they survive (row W4)."""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import SecretStr

from pumphouse.errors import ClusterUnavailable, ConfigError, CorruptionError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra
from pumphouse.model.tso import Tso
from pumphouse.registry.base import NodeChange, WatchesNodes
from pumphouse.registry.etcd_client import Compacted, EtcdClient
from pumphouse.registry.etcd_nodes import EtcdNodes
from pumphouse.registry.etcd_watch import Watch
from pumphouse.registry.open import open_cluster
from pumphouse.settings import ClusterSettings, TlsSettings
from tests.support.certs import Authority
from tests.support.etcdserver import EtcdServers
from tests.support.waiting import eventually


def status(node_id: str, state: NodeState = NodeState.ONLINE, **more) -> NodeStatus:
    return NodeStatus(node_id=node_id, host="127.0.0.1:8250", state=state, **more)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def raw(servers: EtcdServers, prefix: str) -> dict[str, str]:
    """Keys and values as another client sees them."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = servers.ask(0, "kv/range", {"key": b64(prefix), "range_end": b64(end)}).get("kvs", [])
    return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]).decode() for kv in found}


def put(servers: EtcdServers, key: str, value: str) -> None:
    servers.ask(0, "kv/put", {"key": b64(key), "value": b64(value)})


@pytest.fixture
def three(tmp_path):
    with EtcdServers(tmp_path / "three", members=3) as servers:
        yield servers


@pytest.fixture
def own(tmp_path):
    """One member that a test may kill."""
    with EtcdServers(tmp_path / "own") as servers:
        yield servers


# What lies in etcd


@pytest.mark.row("W4")
@pytest.mark.timeout(60)  # a PD that is down is asked for 100 s
def test_an_etcd_named_as_pd_is_told_its_url_at_once(etcd: EtcdServers) -> None:
    with pytest.raises(ConfigError, match="is no PD") as refused:
        open_cluster(f"pd://{etcd.endpoints[0]}")
    assert f"--cluster etcd://{etcd.endpoints[0]}" in refused.value.hint


@pytest.mark.row("W3", "W4")
def test_nodes_have_the_keys_and_bytes_of_tidb_binlog_and_our_own_keys_are_elsewhere(own):
    cluster = open_cluster(own.url)
    cluster.tso()
    cluster.update_node(NodeKind.PUMP, "h:8250", lambda _: status("h:8250", max_commit_ts=Tso(7), update_ts=Tso(9)))
    extra = PumpExtra(incarnation="i", start_count=1)
    cluster.update_node(NodeKind.DRAINER, "d", lambda _: status("d", NodeState.PAUSED, label={"z": "é"}, extra=extra))
    found = raw(own, "/")
    assert found["/tidb-binlog/v1/pumps/h:8250"] == (
        '{"nodeId":"h:8250","host":"127.0.0.1:8250","state":"online","isAlive":false,"score":0,"label":null,'
        '"maxCommitTS":7,"updateTS":9}'
    )
    assert found["/tidb-binlog/v1/drainers/d"].startswith(
        '{"nodeId":"d","host":"127.0.0.1:8250","state":"paused","isAlive":false,"score":0,"label":{"labels":{"z":"é"}},'
        '"maxCommitTS":0,"updateTS":0,"pumphouse":{'
    )
    assert sorted(key for key in found if not key.startswith("/tidb-binlog/v1/")) == [
        "/pumphouse/v1/cluster",
        "/pumphouse/v1/tso",
    ]
    assert json.loads(found["/pumphouse/v1/cluster"]) == {"format_version": 1, "cluster_id": cluster.cluster_id()}
    assert int(found["/pumphouse/v1/tso"]) < cluster.tso()
    cluster.close()


@pytest.mark.row("W3", "W4")
def test_what_go_tools_wrote_is_read_and_a_damaged_value_names_its_key(etcd):
    cluster = open_cluster(f"{etcd.url}/go")
    put(
        etcd,
        "/go/tidb-binlog/v1/drainers/d:8249",
        '{"nodeId":"d:8249","host":"d:8249","state":"online","isAlive":false,"score":3,"label":{"labels":{"zone":"a"}},'
        '"maxCommitTS":400000000000000000,"updateTS":400000000000000100}',
    )
    assert cluster.nodes(NodeKind.DRAINER) == [
        NodeStatus(
            node_id="d:8249",
            host="d:8249",
            state=NodeState.ONLINE,
            score=3,
            label={"zone": "a"},
            max_commit_ts=Tso(400000000000000000),
            update_ts=Tso(400000000000000100),
        )
    ]
    put(etcd, "/go/tidb-binlog/v1/pumps/p", "{")
    with pytest.raises(CorruptionError, match="/go/tidb-binlog/v1/pumps/p"):
        cluster.nodes(NodeKind.PUMP)
    cluster.close()


@pytest.mark.row("W4")
@pytest.mark.parametrize("content", ["", "[]", '{"format_version":1}', '{"format_version":2,"cluster_id":7}'])
def test_an_unreadable_identity_is_an_error_and_not_a_new_cluster(etcd, content):
    root = f"/damaged{len(content)}"
    put(etcd, f"{root}/pumphouse/v1/cluster", content)
    with pytest.raises(CorruptionError, match="pumphouse/v1/cluster"):
        open_cluster(f"{etcd.url}{root}")


@pytest.mark.row("W4")
def test_a_cluster_made_over_a_clock_that_is_there_goes_on_from_it(etcd):
    put(etcd, "/clock/pumphouse/v1/tso", str(1 << 62))
    cluster = open_cluster(f"{etcd.url}/clock")
    assert cluster.tso() == (1 << 62) + 1
    cluster.close()


# Lost answers


class Losing(EtcdClient):
    """Loses the answer to the next transactions; `done` says for each whether etcd did it first."""

    def __init__(self, endpoints) -> None:
        super().__init__(endpoints)
        self.plan: list[bool] = []
        self.between = lambda: None

    def txn(self, *args, **more):
        if not self.plan:
            return super().txn(*args, **more)
        if self.plan.pop():
            super().txn(*args, **more)
        self.between()
        raise ClusterUnavailable("the answer was lost", sent=True)


@pytest.mark.row("W4")
@pytest.mark.parametrize("others_write", [0, 2])
def test_a_change_whose_answer_was_lost_is_done_exactly_once(etcd, others_write):
    client, other = Losing(etcd.endpoints), EtcdClient(etcd.endpoints)
    root = f"/lost{others_write}"
    nodes, others = EtcdNodes(client, root=root), EtcdNodes(other, root=root)

    def add(found: NodeStatus | None) -> NodeStatus:
        return status("p") if found is None else found.with_(score=found.score + 1)

    def interfere() -> None:
        for _ in range(others_write):
            others.update_node(NodeKind.PUMP, "p", lambda found: found and found.with_(score=found.score + 100))

    nodes.update_node(NodeKind.PUMP, "p", add)
    client.between = interfere
    client.plan = [True]
    nodes.update_node(NodeKind.PUMP, "p", add)
    client.plan = [False]
    nodes.update_node(NodeKind.PUMP, "p", add)
    client.plan = [True, False, False]
    nodes.update_node(NodeKind.PUMP, "p", add)
    assert nodes.node(NodeKind.PUMP, "p").score == 3 + 5 * 100 * others_write
    client.plan = [True]
    client.between = lambda: None
    assert nodes.update_node(NodeKind.PUMP, "p", lambda _: None) is None
    assert nodes.nodes(NodeKind.PUMP) == []
    client.close()
    other.close()


# Watches


class Listener:
    """Takes what a watch says in a thread of its own."""

    def __init__(self, watch) -> None:
        self.watch = watch
        self.heard: list[NodeChange] = []
        self.batches = 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        eventually(lambda: self.batches)

    def _run(self) -> None:
        for changes in self.watch:
            self.heard.extend(changes)
            self.batches += 1

    def close(self) -> None:
        self.watch.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.mark.row("C1", "W4")
def test_a_watch_tells_every_change_once_and_in_order_over_broken_connections(own):
    cluster = open_cluster(own.url)
    assert isinstance(cluster, WatchesNodes)
    cluster.update_node(NodeKind.PUMP, "a", lambda _: status("a"))
    listener = Listener(cluster.watch_nodes(NodeKind.PUMP))
    wanted = [NodeChange(node_id="a", status=status("a"))]
    for round_ in range(3):
        for score in range(3):
            new = status("b.c", score=10 * round_ + score)
            cluster.update_node(NodeKind.PUMP, "b.c", lambda _, new=new: new)
            wanted.append(NodeChange(node_id="b.c", status=new))
        cluster.update_node(NodeKind.DRAINER, "d", lambda _: status("d"))
        own.kill()
        own.start(0)
        own.wait()
    cluster.update_node(NodeKind.PUMP, "a", lambda _: None)
    wanted.append(NodeChange(node_id="a", status=None))
    eventually(lambda: len(listener.heard) >= len(wanted))
    assert listener.heard == wanted
    listener.close()
    cluster.close()


@pytest.mark.row("C1", "W4")
def test_a_watch_whose_history_was_compacted_lists_again_and_tells_the_differences(etcd):
    cluster = open_cluster(f"{etcd.url}/compacted")
    for name in ("stays", "goes", "changes"):
        cluster.update_node(NodeKind.PUMP, name, lambda _, name=name: status(name))
    watch = cluster.watch_nodes(NodeKind.PUMP)
    said = iter(watch)
    assert {change.node_id for change in next(said)} == {"stays", "goes", "changes"}
    cluster.update_node(NodeKind.PUMP, "goes", lambda _: None)
    cluster.update_node(NodeKind.PUMP, "changes", lambda found: found.with_(state=NodeState.PAUSED))
    cluster.update_node(NodeKind.PUMP, "comes", lambda _: status("comes"))
    revision = etcd.ask(0, "kv/range", {"key": b64("x")})["header"]["revision"]
    etcd.ask(0, "kv/compaction", {"revision": revision})
    put(etcd, "/compacted/tidb-binlog/v1/pumps/broken", "{")  # left out, and no reason to stop
    eventually(lambda: raw(etcd, "/compacted/tidb-binlog/v1/pumps/broken"))
    etcd.ask(0, "kv/deleterange", {"key": b64("/compacted/tidb-binlog/v1/pumps/broken")})
    assert sorted((change.node_id, change.status and str(change.status.state)) for change in next(said)) == [
        ("changes", "paused"),
        ("comes", "online"),
        ("goes", None),
    ]
    put(etcd, "/compacted/tidb-binlog/v1/pumps/broken", "{")
    cluster.update_node(NodeKind.PUMP, "later", lambda _: status("later"))
    assert [change.node_id for change in next(said)] == ["later"]
    watch.close()
    client = EtcdClient(etcd.endpoints)
    with pytest.raises(Compacted):
        next(iter(Watch(client, b"/compacted", 1)))
    client.close()
    cluster.close()


@pytest.mark.row("C1", "W4")
def test_a_watch_leaves_a_member_that_says_nothing_any_more(three):
    client, writer = EtcdClient(three.endpoints), EtcdClient(three.endpoints[1:])
    watch = Watch(client, b"/w/", writer.put(b"/w/a", b"0") + 1, ask_after_s=0.3)
    heard: list[bytes] = []

    def listen() -> None:
        for events in watch:
            heard.extend(event.kv.value for event in events)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    writer.put(b"/w/a", b"1")
    eventually(lambda: heard == [b"1"])
    assert client.at == 0
    three.signal(0, signal.SIGSTOP)
    until = time.monotonic() + 20
    while True:  # if it led, the others elect first
        try:
            writer.put(b"/w/a", b"2")
            break
        except ClusterUnavailable:
            assert time.monotonic() < until
    eventually(lambda: heard[-1:] == [b"2"])
    three.signal(0, signal.SIGCONT)
    writer.put(b"/w/a", b"3")
    eventually(lambda: b"3" in heard)  # a lost put of 2 may still arrive after it
    watch.close()
    thread.join(60)
    client.close()
    writer.close()


FORK_WITH_A_WATCH = """
import faulthandler, os, signal, sys, threading, time
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.registry.open import open_cluster
child = 0
faulthandler.enable()
faulthandler.register(signal.SIGALRM, chain=True)  # that a child gives itself
def stands_still():  # says where, should it, and where its child does
    faulthandler.dump_traceback()
    if child:
        os.kill(child, signal.SIGABRT)
        time.sleep(1)
    os._exit(1)
watchdog = threading.Timer(100, stands_still)
watchdog.daemon = True
watchdog.start()
cluster = open_cluster(sys.argv[1])
heard = threading.Semaphore(0)
def listen():
    for changes in watch:
        heard.release()
watch = cluster.watch_nodes(NodeKind.PUMP)
thread = threading.Thread(target=listen, daemon=True)
thread.start()
for number in range(5):
    assert heard.acquire(timeout=60), number
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        node = NodeStatus(node_id=f"n{number}", host="h", state=NodeState.ONLINE)
        cluster.update_node(NodeKind.PUMP, node.node_id, lambda _: node)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, number
assert heard.acquire(timeout=60)
watch.close()
thread.join(60)
cluster.close()
"""


@pytest.mark.row("C1", "W4")
def test_a_process_that_watches_may_fork_and_both_sides_go_on(etcd):
    command = [sys.executable, "-W", "ignore", "-c", FORK_WITH_A_WATCH, f"{etcd.url}/forks"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


# Members that stop


@pytest.mark.row("W4")
def test_the_cluster_goes_on_when_its_leader_freezes_and_when_the_member_in_use_does(three):
    cluster = open_cluster(three.url)
    listener = Listener(cluster.watch_nodes(NodeKind.PUMP))
    last = cluster.tso()
    for number in range(2):
        frozen = three.leader() if number == 0 else cluster._client.at
        three.signal(frozen, signal.SIGSTOP)
        for _ in range(3):
            ts = cluster.tso()
            assert ts > last
            last = ts
        cluster.update_node(NodeKind.PUMP, "p", lambda _, number=number: status("p", score=number + 1))
        assert cluster.node(NodeKind.PUMP, "p").score == number + 1
        three.signal(frozen, signal.SIGCONT)
        three.wait()
    assert cluster.tso() > last
    eventually(lambda: [change.status.score for change in listener.heard] == [1, 2], within_s=30)
    listener.close()
    cluster.close()


@pytest.mark.row("W4")
def test_without_etcd_every_call_ends_in_time_with_its_name_and_works_again_when_it_is_back(own):
    cluster = open_cluster(own.url)
    last = cluster.tso()
    own.kill()
    client = EtcdClient(own.endpoints, timeout_s=0.5)
    for call in (lambda: client.get(b"k"), lambda: client.put(b"k", b"v"), lambda: client.txn([], [])):
        with pytest.raises(ClusterUnavailable, match=own.endpoints[0]) as error:
            call()
        assert not error.value.sent
        assert error.value.retryable
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cluster.tso)  # rides over a restart
        time.sleep(0.3)
        own.start(0)
        assert waiting.result(timeout=30) > last
    own.wait()
    assert client.put(b"k", b"v") > 0
    client.close()
    with pytest.raises(ClusterUnavailable, match="closed"):
        client.get(b"k")
    cluster.close()


@pytest.mark.row("W4")
def test_whoever_starts_before_etcd_waits_for_it_as_often_as_the_setting_says(tmp_path):
    servers = EtcdServers(tmp_path / "late")
    with pytest.raises(ClusterUnavailable):
        open_cluster(ClusterSettings(url=servers.url, init_tries=1))
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_cluster, servers.url)
        time.sleep(0.5)
        with servers:
            cluster = opening.result(timeout=30)
            assert cluster.tso() > 0
            cluster.close()


@pytest.mark.row("W4")
def test_an_etcd_whose_quota_is_used_up_is_named_with_the_way_out(tmp_path):
    with EtcdServers(tmp_path / "full", arguments=("--quota-backend-bytes=1048576",)) as servers:
        cluster = open_cluster(servers.url)
        client = EtcdClient(servers.endpoints)
        with pytest.raises(ClusterUnavailable, match="auto-compaction") as error:
            for number in range(200):
                client.put(b"%d" % number, bytes(500_000))
        assert not error.value.sent
        assert cluster.nodes(NodeKind.PUMP) == []  # reads go on
        client.close()
        cluster.close()


TAKE = """
import os, sys, time
from pumphouse.registry.open import open_cluster
cluster = open_cluster(sys.argv[1])
out = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while True:
    asked = time.monotonic_ns()
    ts = cluster.tso()
    os.write(out, b"%d %d %d\\n" % (asked, time.monotonic_ns(), ts))
"""


@pytest.mark.row("W4")
@pytest.mark.parametrize("seconds", [2.5, pytest.param(120.0, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_timestamps_of_four_processes_rise_strictly_over_kills_of_them_and_of_etcd(own, tmp_path, seconds):
    log = tmp_path / "taken"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-W", "ignore", "-c", TAKE, own.url, str(log)])

    dice = random.Random(1)
    runs = [start() for _ in range(4)]
    try:
        eventually(lambda: log.exists() and log.stat().st_size > 20_000, within_s=60)
        until = time.monotonic() + seconds
        kills = 0
        while time.monotonic() < until:
            time.sleep(dice.uniform(0.3, 0.8))
            kills += 1
            if kills % 3 == 2:
                own.kill()
                own.start(0)
                own.wait()
                continue
            at = dice.randrange(4)
            runs[at].kill()
            runs[at].wait()
            runs[at] = start()
    finally:
        for run in runs:
            run.kill()
            run.wait()
    taken = sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines())
    assert len(taken) > 300
    assert len({ts for _, _, ts in taken}) == len(taken)
    # What was answered before another was asked for is below it.
    answered = sorted((end, ts) for _, end, ts in taken)
    highest, at = 0, 0
    for asked, _, ts in taken:
        while answered[at][0] < asked:
            highest = max(highest, answered[at][1])
            at += 1
        assert ts > highest


# Access


@pytest.mark.row("W4")
def test_etcd_with_users_needs_ours_and_a_token_that_was_lost_is_asked_for_again(own):
    for name, role in (("root", "root"), ("pump", "root"), ("guest", "")):
        own.ask(0, "auth/user/add", {"name": name, "password": f"{name} secret"})
        if name == "root":
            own.ask(0, "auth/role/add", {"name": "root"})
        if role:
            own.ask(0, "auth/user/grant", {"user": name, "role": role})
    own.ask(0, "auth/enable")

    def settings(user: str, password: str) -> ClusterSettings:
        return ClusterSettings(url=own.url, user=user, password=SecretStr(password))

    for user, password in (("", ""), ("pump", "wrong"), ("guest", "guest secret")):
        with pytest.raises(ConfigError, match="refuses user") as error:
            open_cluster(settings(user, password))
        assert "secret" not in str(error.value)
    cluster = open_cluster(settings("pump", "pump secret"))
    quiet = open_cluster(settings("pump", "pump secret"))  # no watch that would notice first
    listener = Listener(cluster.watch_nodes(NodeKind.PUMP))
    last = cluster.tso()
    own.kill()
    own.start(0)
    eventually(lambda: _up(own))
    assert quiet.tso() > last
    cluster.update_node(NodeKind.PUMP, "p", lambda _: status("p"))
    eventually(lambda: listener.heard)
    listener.close()
    quiet.close()
    cluster.close()


def _up(servers: EtcdServers) -> bool:
    try:
        return bool(servers.ask(0, "auth/authenticate", {"name": "root", "password": "root secret"}))
    except OSError:
        return False


@pytest.mark.row("W6")
def test_etcd_is_reached_over_mutual_tls_and_not_without_a_certificate(tmp_path):
    authority = Authority(tmp_path / "ca")
    cert, key = authority.leaf("etcd")
    tls = TlsSettings(ca=authority.ca, cert=cert, key=key)
    with EtcdServers(tmp_path / "etcd", tls=tls) as servers:
        cluster = open_cluster(servers.url, tls)
        assert cluster.tso() > 0
        cluster.close()
        for wrong in (None, TlsSettings(ca=authority.ca)):
            client = EtcdClient(servers.endpoints, wrong, timeout_s=1.0)
            with pytest.raises(ClusterUnavailable):
                client.get(b"k")
            client.close()
