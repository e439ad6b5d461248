"""The archive as a consumer of the Pumps: its checkpoint holds their GC and lets closing Pumps go.

It is registered as a Drainer in state ``paused``, so that no starting Pump tries to notify it. Its checkpoint is the
archive's end, moved by each snapshot. Where GC follows the load a snapshot moves nothing, and GC publishes what every
target has too (`pumphouse.loader.confirmed`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from pumphouse.archive import layout
from pumphouse.archive.head import Head
from pumphouse.errors import BadManifest, BinlogError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import MAX_TSO, Tso, show
from pumphouse.objectstore.probe import put_again
from pumphouse.registry.base import Cluster
from pumphouse.settings import AirflowSettings

if TYPE_CHECKING:
    from pumphouse.archive.archive import Archive

log = structlog.get_logger()

# Moves nothing: the checkpoint never goes back.
NOTHING = Tso(0)


def consumer_id(archive_id: str) -> str:
    """Node id in the registry."""
    return f"pumphouse-{archive_id}"


def register(cluster: Cluster, archive_id: str) -> Tso:
    """Register with checkpoint 0, which holds all GC, unless it is registered; returns the checkpoint in force."""
    return _write(cluster, archive_id, Tso(0))


def move(cluster: Cluster, archive_id: str, checkpoint: Tso) -> Tso:
    """Publish a checkpoint. It never goes back: a later one that is there already stays; returns the one in force."""
    return _write(cluster, archive_id, checkpoint)


def of_snapshot(settings: AirflowSettings, end: Tso = MAX_TSO) -> Tso:
    """Up to where a snapshot may move the checkpoint: the archive's end, or nothing where GC follows the load."""
    return NOTHING if settings.gc_follows == "load" else end


def publish(archive: Archive, cluster: Cluster, upto: Tso) -> Tso:
    """Publish the archive's end, no more than ``upto``; returns the checkpoint in force.

    A commit may have been killed behind its manifest, before the store refused the same bytes again: it must do so
    before any Pump lets go of its data (UnsafeStore). A HEAD that is lost is written again here, and nowhere else: all
    windows up to the checkpoint are there, and the Pumps still have what came after it. Where GC follows the load the
    checkpoint may lie far below: a target that had loaded windows which are missing says so at its next load.

    Raises:
        BadManifest: the Pumps know the archive further than it goes.
    """
    have = checkpoint(cluster, archive.archive_id)
    head = archive.head()
    last = archive.last() if head is not None else next(reversed(archive.listed()), None)
    if head is None and have is None and last is not None:
        raise BadManifest(
            f"{archive.url}/{layout.HEAD} is missing, and the Pumps know no checkpoint that would prove the end",
            hint="put it back; or, if no window is missing, pumphouse archive init, then pumphouse snapshot",
            path=layout.HEAD,
            offset=0,
            reason="missing",
        )
    end = archive.genesis().ts if last is None else last.end
    if have is not None and have > end:
        raise BadManifest(
            f"the Pumps know the archive up to {show(have)}, it ends at {show(end)}: its newest windows are missing",
            hint="put them back; pumphouse archive verify says what is there",
            path=archive.url,
            offset=0,
            reason="checkpoint",
        )
    newest, wanted = Head.of(last or archive.genesis()), Tso(min(end, upto))
    moves = have is None or have < wanted
    if moves or head != newest:
        put_again(archive.store, newest.manifest, archive.store.get(newest.manifest))
    if head is None and have is not None and have < end:
        log.warning("head_written_again", archive_end=int(end), proven=int(have))
    if head != newest:
        archive.write_head(last)
    return move(cluster, archive.archive_id, wanted) if moves or have is None else have


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
