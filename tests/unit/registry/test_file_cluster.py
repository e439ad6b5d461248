"""The registry in a directory: nodes, resolvers, identity; across processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from include.errors import ConfigError, CorruptionError, ResolverOverlap, UsageError
from include.model.node import NodeKind, NodeState, NodeStatus, PumpExtra
from include.model.tso import Tso
from include.registry.base import ResolverRecord
from include.registry.file import FileCluster
from include.registry.open import open_cluster
from include.registry.resolvers import is_live, resolver_for


def status(node_id: str, state: NodeState = NodeState.ONLINE, **more) -> NodeStatus:
    return NodeStatus(node_id=node_id, host="127.0.0.1:8250", state=state, **more)


@pytest.fixture
def cluster(tmp_path):
    return FileCluster(tmp_path / "cluster")


@pytest.mark.row("W4")
@pytest.mark.row("W5")
def test_everyone_who_opens_a_directory_sees_the_same_cluster_id(tmp_path):
    first = FileCluster(tmp_path / "a")
    assert first.cluster_id() == FileCluster(tmp_path / "a").cluster_id() > 0
    assert first.cluster_id() != FileCluster(tmp_path / "b").cluster_id()


@pytest.mark.row("W4")
def test_processes_that_make_a_cluster_at_once_agree_on_one(tmp_path):
    code = "import sys; from include.registry.open import open_cluster; print(open_cluster(sys.argv[1]).cluster_id())"
    url = f"file://{tmp_path / 'new' / 'cluster'}"
    runs = [subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    ids = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert len(ids) == 1
    assert int(ids.pop()) == open_cluster(url).cluster_id()


def test_a_cluster_is_not_made_by_who_only_wants_to_look(tmp_path):
    with pytest.raises(ConfigError, match="there is no cluster"):
        open_cluster(f"file://{tmp_path}/nothing", create=False)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format_version":1}', b'{"format_version":2,"cluster_id":7}'])
def test_an_unreadable_identity_is_an_error_and_not_a_new_cluster(tmp_path, content):
    FileCluster(tmp_path)
    (tmp_path / "cluster.json").write_bytes(content)
    with pytest.raises(CorruptionError, match=r"cluster\.json"):
        FileCluster(tmp_path)


@pytest.mark.row("W4")
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("pd://127.0.0.1:2379", "later release"),
        ("etcd://", "names no etcd"),
        ("etcd://host", "no address of etcd"),
        ("etcd://user:secret@host:2379", "no address of etcd"),
        ("http://x", "no cluster URL"),
        ("/tmp/x", "no cluster URL"),
        ("", "no cluster URL"),
        ("file://", "names no directory"),
    ],
)
def test_a_url_that_cannot_be_opened_says_what_can(url, says):
    with pytest.raises(ConfigError, match=says) as error:
        open_cluster(url)
    assert "file:///" in str(error.value) or "etcd://10.0.0.1:2379" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.row("W3")
def test_a_node_lies_under_the_key_path_of_tidb_binlog_with_its_json(cluster, tmp_path):
    cluster.update_node(NodeKind.PUMP, "h:8250", lambda _: status("h:8250", max_commit_ts=Tso(7), update_ts=Tso(9)))
    text = (tmp_path / "cluster" / "tidb-binlog" / "v1" / "pumps" / "h:8250").read_text()
    assert text == (
        '{"nodeId":"h:8250","host":"127.0.0.1:8250","state":"online","isAlive":false,"score":0,"label":null,'
        '"maxCommitTS":7,"updateTS":9}'
    )


@pytest.mark.row("W3")
def test_what_a_go_tool_wrote_is_read_and_what_it_does_not_know_survives_us(cluster, tmp_path):
    path = tmp_path / "cluster" / "tidb-binlog" / "v1" / "drainers" / "d:8249"
    path.write_text(
        '{"nodeId":"d:8249","host":"d:8249","state":"online","isAlive":false,"score":3,"label":{"labels":{"zone":"a"}},'
        '"maxCommitTS":400000000000000000,"updateTS":400000000000000100,"future":{"x":1}}'
    )
    found = cluster.node(NodeKind.DRAINER, "d:8249")
    assert found.label == {"zone": "a"}
    assert found.max_commit_ts == 400000000000000000
    cluster.update_node(NodeKind.DRAINER, "d:8249", lambda old: old.with_(state=NodeState.PAUSED))
    assert json.loads(path.read_text()) | {"state": "online"} == {
        "nodeId": "d:8249", "host": "d:8249", "state": "online", "isAlive": False, "score": 3,
        "label": {"labels": {"zone": "a"}}, "maxCommitTS": 400000000000000000, "updateTS": 400000000000000100,
        "future": {"x": 1},
    }  # fmt: skip


@pytest.mark.row("W4")
def test_nodes_are_listed_by_kind_and_id_with_offline_ones(cluster):
    for name in ("b", "a", "c"):
        state = NodeState.OFFLINE if name == "a" else NodeState.ONLINE
        cluster.update_node(NodeKind.PUMP, name, lambda _, name=name, state=state: status(name, state))
    cluster.update_node(NodeKind.DRAINER, "d", lambda _: status("d"))
    assert [(node.node_id, node.state) for node in cluster.nodes(NodeKind.PUMP)] == [
        ("a", "offline"),
        ("b", "online"),
        ("c", "online"),
    ]
    assert [node.node_id for node in cluster.nodes(NodeKind.DRAINER)] == ["d"]


@pytest.mark.row("W4")
def test_a_change_returns_what_is_stored_and_none_deletes(cluster):
    extra = PumpExtra(incarnation="i", start_count=2, http="127.0.0.1:1")
    stored = cluster.update_node(NodeKind.PUMP, "p", lambda found: status("p", extra=extra) if found is None else found)
    assert stored == cluster.node(NodeKind.PUMP, "p") == status("p", extra=extra)
    assert cluster.update_node(NodeKind.PUMP, "p", lambda _: None) is None
    assert cluster.node(NodeKind.PUMP, "p") is None
    assert cluster.update_node(NodeKind.PUMP, "p", lambda found: found) is None


@pytest.mark.row("W4")
def test_a_change_that_raises_or_changes_nothing_leaves_the_file_alone(cluster, tmp_path):
    cluster.update_node(NodeKind.PUMP, "p", lambda _: status("p"))
    path = tmp_path / "cluster" / "tidb-binlog" / "v1" / "pumps" / "p"
    before = path.stat().st_ino

    def fail(_):
        raise UsageError("no")

    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, "p", fail)
    cluster.update_node(NodeKind.PUMP, "p", lambda found: found)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("node_id", ["a/b", "..", ".hidden", "sp ace", "ü", "%2F"])
def test_any_node_id_has_a_file_of_its_own(cluster, node_id):
    cluster.update_node(NodeKind.PUMP, node_id, lambda _: status(node_id))
    assert [node.node_id for node in cluster.nodes(NodeKind.PUMP)] == [node_id]
    assert cluster.node(NodeKind.PUMP, node_id) == status(node_id)


@pytest.mark.parametrize("node_id", ["", "x" * 300])
def test_a_node_id_that_no_file_can_have_is_refused(cluster, node_id):
    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, node_id, lambda _: status(node_id))


def test_a_status_is_not_stored_under_another_id(cluster):
    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, "a", lambda _: status("b"))


def test_a_damaged_status_names_its_file(cluster, tmp_path):
    path = tmp_path / "cluster" / "tidb-binlog" / "v1" / "pumps" / "p"
    path.write_text("{")
    with pytest.raises(CorruptionError, match="pumps/p"):
        cluster.nodes(NodeKind.PUMP)


@pytest.mark.row("W4")
def test_no_update_is_lost_between_threads_and_processes(cluster, tmp_path):
    cluster.update_node(NodeKind.PUMP, "p", lambda _: status("p"))
    code = (
        "import sys; from pathlib import Path; from include.registry.file import FileCluster;"
        "from include.model.node import NodeKind\n"
        "c = FileCluster(Path(sys.argv[1]))\n"
        "for _ in range(40): c.update_node(NodeKind.PUMP, 'p', lambda s: s.with_(score=s.score + 1))"
    )
    runs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cluster")]) for _ in range(2)]

    def add():
        for _ in range(40):
            cluster.update_node(NodeKind.PUMP, "p", lambda found: found.with_(score=found.score + 1))

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.wait(60) for run in runs] == [0, 0]
    assert cluster.node(NodeKind.PUMP, "p").score == 160


# Resolvers


class SetClock:
    def __init__(self) -> None:
        self.value = 1000.0

    def now(self) -> float:
        return self.value

    def monotonic(self) -> float:
        return self.value

    def sleep(self, seconds: float) -> None:
        self.value += seconds


def record(name: str, *prefixes: bytes, at: float = 1000.0) -> ResolverRecord:
    return ResolverRecord(resolver_id=name, host=f"{name}:1", prefixes=prefixes, heartbeat=at)


@pytest.mark.row("P6")
def test_a_resolver_is_registered_replaced_by_its_id_and_removed(tmp_path):
    cluster = FileCluster(tmp_path, clock=SetClock())
    cluster.put_resolver(record("bank", b"\x00bin/", b"b"))
    cluster.put_resolver(record("bank", b"c"))
    assert cluster.resolvers() == [record("bank", b"c")]
    cluster.delete_resolver("bank")
    cluster.delete_resolver("bank")
    assert cluster.resolvers() == []


@pytest.mark.row("P6")
@pytest.mark.parametrize(("mine", "theirs"), [(b"ab", b"a"), (b"a", b"ab"), (b"a", b"a"), (b"", b"x"), (b"x", b"")])
def test_prefixes_that_overlap_those_of_a_live_resolver_are_refused(tmp_path, mine, theirs):
    clock = SetClock()
    cluster = FileCluster(tmp_path, clock=clock)
    cluster.put_resolver(record("one", theirs))
    with pytest.raises(ResolverOverlap) as error:
        cluster.put_resolver(record("two", b"zz", mine))
    assert (error.value.resolver_id, error.value.other) == ("two", "one")
    clock.value += 10
    cluster.put_resolver(record("two", b"zz", mine, at=clock.value))
    with pytest.raises(ResolverOverlap):  # the old one comes back too late
        cluster.put_resolver(record("one", theirs, at=clock.value))


@pytest.mark.row("P6")
def test_a_key_belongs_to_the_live_resolver_whose_prefix_it_begins_with():
    records = [
        record("old", b"k", at=980.0),
        record("a", b"a"),
        record("k", b"ka", b"kb"),
        record("ahead", b"z", at=2e9),
    ]
    assert resolver_for(records, b"kbx", 1000.0).resolver_id == "k"
    assert resolver_for(records, b"kc", 1000.0) is None
    assert resolver_for(records, b"z", 1000.0) is None
    assert is_live(records[1], 1009.9)
    assert not is_live(records[1], 1010.0)


def test_a_damaged_resolver_record_is_an_error(tmp_path):
    cluster = FileCluster(tmp_path)
    for text in ("{", "{}", '{"format_version":9,"id":"a","host":"h","prefixes":[],"heartbeat":1}'):
        (tmp_path / "resolvers" / "x").write_text(text)
        with pytest.raises(CorruptionError):
            cluster.resolvers()
