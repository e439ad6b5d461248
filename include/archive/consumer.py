"""The archive as a consumer of the Pumps: its checkpoint holds their GC and lets closing Pumps go.

It is registered as a Drainer in state ``paused``, so that no starting Pump tries to notify it.
"""

from __future__ import annotations

from include.errors import BinlogError
from include.model.node import NodeKind, NodeState, NodeStatus
from include.model.tso import Tso
from include.registry.base import Cluster


def consumer_id(archive_id: str) -> str:
    """Node id in the registry."""
    return f"pumphouse-{archive_id}"


def register(cluster: Cluster, archive_id: str) -> Tso:
    """Register with checkpoint 0, which holds all GC, unless it is registered; returns the checkpoint in force."""
    return _write(cluster, archive_id, Tso(0))


def move(cluster: Cluster, archive_id: str, checkpoint: Tso) -> Tso:
    """Publish a checkpoint. It never goes back: a later one that is there already stays; returns the one in force."""
    return _write(cluster, archive_id, checkpoint)


def checkpoint(cluster: Cluster, archive_id: str) -> Tso | None:
    """The registered checkpoint; None when the archive is not registered."""
    found = cluster.node(NodeKind.DRAINER, consumer_id(archive_id))
    return None if found is None else found.max_commit_ts


def _write(cluster: Cluster, archive_id: str, wanted: Tso) -> Tso:
    node_id = consumer_id(archive_id)
    now = cluster.tso()

    def change(found: NodeStatus | None) -> NodeStatus:
        if found is None:
            return NodeStatus(node_id=node_id, host="", state=NodeState.PAUSED, max_commit_ts=wanted, update_ts=now)
        # Offline means that GC does not wait for it any more; the archive is in use, so it must.
        return found.with_(state=NodeState.PAUSED, max_commit_ts=Tso(max(found.max_commit_ts, wanted)), update_ts=now)

    stored = cluster.update_node(NodeKind.DRAINER, node_id, change)
    if stored is None:
        raise BinlogError(f"the registry did not keep the consumer {node_id}", node_id=node_id)
    return stored.max_commit_ts
