"""What a Pump that leaves the cluster still waits for (row P13): open prewrites, then consumers that are behind."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from pumphouse.client.admin import behind
from pumphouse.errors import BinlogError
from pumphouse.model.node import NodeStatus
from pumphouse.model.tso import show
from pumphouse.proto.pumphouse_pb2 import StatusRequest
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.base import Cluster
from pumphouse.rpc.channel import open_channel
from pumphouse.settings import TlsSettings

# It is asked beside a wait, again and again: an answer that does not come is no news.
_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is known of it; nothing, where neither the Pump nor the registry answers."""

    node_id: str
    prewrites: int = 0
    oldest: int = 0  # start ts of the prewrite that has waited longest; 0 = not known
    consumers: tuple[str, ...] = ()

    def __str__(self) -> str:
        """``; open prewrite …, 3 in all; behind it: …``, to be put behind a sentence."""
        parts = []
        if self.oldest:
            parts.append(f"open prewrite {show(self.oldest)}, {self.prewrites:,} in all")
        elif self.prewrites:
            parts.append(f"{self.prewrites:,} open prewrites")
        if self.consumers:
            parts.append(f"behind it: {', '.join(self.consumers)}")
        return "".join(f"; {part}" for part in parts)

    @property
    def next_steps(self) -> str:
        """What to type."""
        steps = []
        if self.prewrites:
            start_ts = self.oldest or "START_TS"
            steps.append(
                f"`pumphouse pump status {self.node_id}` lists open prewrites: each ends with its transaction, or when "
                f"its resolver answers; the last way out, for who knows which it was: `pumphouse pump settle {start_ts}"
                " --reason WHY` with --committed TIME or --rolled-back"
            )
        if self.consumers:
            steps.append(
                "`pumphouse snapshot` lets an archive catch up, `pumphouse drainers` shows how far each consumer is"
            )
        return "; ".join(steps)


def waits_for(cluster: Cluster, status: NodeStatus | None, tls: TlsSettings | None = None) -> Waiting:
    """What keeps a Pump that was asked to close. Never fails: it is said beside something else."""
    if status is None or status.left:
        return Waiting(node_id=status.node_id if status is not None else "")
    try:
        cluster_id = cluster.cluster_id()
        names = tuple(each.node_id for each in behind(cluster, status.max_commit_ts))
    except (BinlogError, OSError):
        return Waiting(node_id=status.node_id)
    count, oldest = _open_prewrites(cluster_id, status, tls) if status.extra is not None else (0, 0)
    return Waiting(node_id=status.node_id, prewrites=count, oldest=oldest, consumers=names)


def _open_prewrites(cluster_id: int, status: NodeStatus, tls: TlsSettings | None) -> tuple[int, int]:
    try:
        with open_channel(status.host, tls) as channel:
            answer = PumpBatchStub(channel).Status(StatusRequest(cluster_id=cluster_id), timeout=_TIMEOUT_S)
    except (BinlogError, OSError, grpc.RpcError):
        return 0, 0
    return int(answer.unresolved), next((int(each.start_ts) for each in answer.oldest_unresolved), 0)
