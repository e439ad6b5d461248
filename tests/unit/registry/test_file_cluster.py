"""The registry in a directory: nodes, resolvers, identity; across processes."""

from __future__ import annotations

import json

import pytest

from pumphouse.errors import ConfigError, CorruptionError, UsageError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.registry.base import ResolverRecord
from pumphouse.registry.file import FileCluster
from pumphouse.registry.open import open_cluster
from pumphouse.registry.resolvers import is_live
from tests.support.setclock import SetClock


def status(node_id: str, state: NodeState = NodeState.ONLINE, **more) -> NodeStatus:
    return NodeStatus(node_id=node_id, host="127.0.0.1:8250", state=state, **more)


@pytest.fixture
def cluster(tmp_path):
    return FileCluster(tmp_path / "cluster")


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
        ("pd://", "names no PD"),
        ("pd://host", "no address of PD"),
        ("pd://user:secret@host:2379", "no address of PD"),
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
    assert any(example in str(error.value) for example in ("file:///", "etcd://10.0.0.1:2379", "pd://10.0.0.1:2379"))
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


@pytest.mark.parametrize("node_id", ["", "x" * 300, "rack1/pump", "a\nb", "a\x00"])
def test_a_node_id_that_no_file_can_have_is_refused(cluster, node_id):
    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, node_id, lambda _: status(node_id))


def test_a_damaged_status_names_its_file(cluster, tmp_path):
    path = tmp_path / "cluster" / "tidb-binlog" / "v1" / "pumps" / "p"
    path.write_text("{")
    with pytest.raises(CorruptionError, match="pumps/p"):
        cluster.nodes(NodeKind.PUMP)
    cluster.update_node(NodeKind.PUMP, "q", lambda _: status("q"))
    assert [each.node_id for each in cluster.readable_nodes(NodeKind.PUMP)] == ["q"]


# Resolvers


def record(name: str, *prefixes: bytes, at: float = 1000.0) -> ResolverRecord:
    return ResolverRecord(resolver_id=name, host=f"{name}:1", prefixes=prefixes, heartbeat=at)


@pytest.mark.row("P6")
def test_a_resolver_is_live_for_ten_seconds_after_its_heartbeat():
    found = record("a", b"a")
    assert is_live(found, 1009.9)
    assert not is_live(found, 1010.0)
    assert not is_live(record("ahead", b"z", at=2e9), 1000.0)


@pytest.mark.row("P6")
@pytest.mark.parametrize(
    ("text", "prefixes"),
    [
        ("{", (b"",)),
        ("{}", (b"",)),
        ('{"format_version":1,"id":"x","host":"h","prefixes":["zz"],"heartbeat":1}', (b"",)),
        ('{"format_version":9,"id":"x","host":"h","prefixes":["6b"],"heartbeat":9e9}', (b"k",)),
    ],
)
def test_a_resolver_record_that_cannot_be_read_claims_what_it_may_and_is_in_nobodys_way(tmp_path, text, prefixes):
    cluster = FileCluster(tmp_path, clock=SetClock())
    (tmp_path / "resolvers" / "x").write_text(text)
    mine = record("k", b"k")
    cluster.put_resolver(mine)
    found = {each.resolver_id: each for each in cluster.resolvers()}
    assert found["k"] == mine
    assert found["x"].prefixes == prefixes
    assert not is_live(found["x"], 1000.0)
