"""The checkpoint of an archive on the Pumps, set as a release did that registered no digest with it."""

from __future__ import annotations

from pumphouse.archive.consumer import consumer_id
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.registry.base import Cluster


def set_checkpoint(cluster: Cluster, archive_id: str, checkpoint: int) -> Tso:
    """Register the archive with it, or move the one that is registered."""
    node_id, ts = consumer_id(archive_id), Tso(checkpoint)
    now = cluster.tso()

    def change(found: NodeStatus | None) -> NodeStatus:
        made = found or NodeStatus(node_id=node_id, host="", state=NodeState.PAUSED)
        return made.with_(max_commit_ts=ts, update_ts=now, unknown={})

    cluster.update_node(NodeKind.DRAINER, node_id, change)
    return ts
