"""What the Pumps have of one writer's transactions, and the outcomes that it gives those without one.

For a writer that has lost its own records: a prewrite says by its key what it was, and a commit that it was decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from pumphouse.client.pump import PumpConnection
from pumphouse.errors import PumpUnavailable
from pumphouse.model.node import NodeStatus
from pumphouse.model.tso import Tso
from pumphouse.proto.pumphouse_pb2 import TransactionsRequest
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.status import from_rpc_error
from pumphouse.settings import TlsSettings

_ANSWER_S = 600.0
_WRITE_S = 30.0


@dataclass(slots=True, kw_only=True)
class Held:
    """What one Pump has above a timestamp.

    Attributes:
        node_id: the Pump.
        above: start ts from where on it was asked, or an older one that is still open.
        gc_point: commits at or below it may be gone.
        prewrites: start ts -> prewrite key, of the prefix.
        open: start ts of those that have no outcome here.
        commits: start ts -> commit ts, of the prefix.
        kept_out: start ts of commits that wait for `archive accept`, of every writer.
    """

    node_id: str
    above: int
    gc_point: int = 0
    prewrites: dict[int, bytes] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    commits: dict[int, int] = field(default_factory=dict)
    kept_out: set[int] = field(default_factory=set)


def held_by(pump: NodeStatus, cluster_id: int, prefix: bytes, above: int, tls: TlsSettings | None = None) -> Held:
    """Ask a Pump of ours.

    Raises:
        PumpUnavailable: it does not answer, or not to the end.
        PumpError: it knows no such question, or refuses it.
    """
    out = Held(node_id=pump.node_id, above=above)
    whole = False
    request = TransactionsRequest(cluster_id=cluster_id, key_prefix=prefix, above=above)
    with open_channel(pump.host, tls) as channel:
        try:
            for part in PumpBatchStub(channel).Transactions(request, timeout=_ANSWER_S):
                for each in part.prewrites:
                    out.prewrites[each.start_ts] = each.prewrite_key
                    if each.open:
                        out.open.add(each.start_ts)
                # A P comes before its C, and those of others are as many as there are.
                out.commits.update(
                    (each.start_ts, each.commit_ts) for each in part.commits if each.start_ts in out.prewrites
                )
                if part.last:
                    whole = True
                    out.above, out.gc_point = part.above, part.gc_point
                    out.kept_out = {each.start_ts for each in part.kept_out}
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer=pump.node_id) from error
    if not whole:
        raise PumpUnavailable(f"Pump {pump.node_id} ended its answer too early", node_id=pump.node_id)
    out.open -= out.commits.keys()
    return out


def write_outcomes(
    pump: NodeStatus, cluster_id: int, outcomes: Mapping[Tso, bytes], tls: TlsSettings | None = None
) -> None:
    """Commits and rollbacks, by start ts, to the Pump that has their prewrites: durable on return; BinlogError."""
    connection = PumpConnection(pump.node_id, pump.host, cluster_id, tls, batch=True)
    try:
        answers: Sequence[object] = connection.write_many([*outcomes.values()], _WRITE_S)
        _raise_first(answers)
    finally:
        connection.close()


def _raise_first(answers: Iterable[object]) -> None:
    for error in answers:
        if isinstance(error, BaseException):
            raise error
