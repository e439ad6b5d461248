"""What an operator does to Pumps and consumers: state, registration, GC. The DAGs and the command line call the same.

binlogctl's ways are kept: pause and close are asked of the Pump by HTTP, a forced state goes into the registry.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import quote

import grpc

from pumphouse.client.go_gc import GoLimits, distance, told_gc_point
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import (
    BinlogError,
    ClusterUnavailable,
    CorruptionError,
    GapError,
    PeerRefused,
    PumpError,
    PumpUnavailable,
    UsageError,
)
from pumphouse.model import strict
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso, physical_ms
from pumphouse.proto.pumphouse_pb2 import TriggerGcRequest, TriggerGcResponse
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.base import Cluster
from pumphouse.rpc.channel import open_channel
from pumphouse.rpc.operator import Proof
from pumphouse.rpc.status import TLS_HINT, from_rpc_error
from pumphouse.rpc.tls import http_connection
from pumphouse.settings import TlsSettings

# A Pump writes its status every 2 s; one that is silent for so long is not running.
PUMP_SILENT_S = 10.0
GC_TIMEOUT_S = 600.0
HTTP_TIMEOUT_S = 10.0

Action = Literal["pause", "close"]


NAMES = {NodeKind.PUMP: "Pump", NodeKind.DRAINER: "Drainer"}
RUNNING = (NodeState.ONLINE, NodeState.PAUSING, NodeState.CLOSING)
# States in which an action has been taken already, or needs none.
REACHED: dict[Action, tuple[NodeState, ...]] = {
    "pause": (NodeState.PAUSING, NodeState.PAUSED),
    "close": (NodeState.CLOSING, NodeState.OFFLINE),
}


def age_s(status: NodeStatus, clock: Clock = SYSTEM_CLOCK) -> float:
    """Seconds since a node last wrote its status (its clock against ours)."""
    return max(0.0, clock.now() - physical_ms(status.update_ts) / 1000)


def is_silent(status: NodeStatus, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a Pump that is registered as running says nothing."""
    return status.state in RUNNING and age_s(status, clock) > PUMP_SILENT_S


def is_running(status: NodeStatus, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether a Pump is registered as running, and says so."""
    return status.state in RUNNING and age_s(status, clock) <= PUMP_SILENT_S


def find_node(cluster: Cluster, node_id: str, kind: NodeKind = NodeKind.PUMP) -> NodeStatus:
    """Status of a Pump or Drainer; UsageError names the registered ones."""
    status = cluster.node(kind, node_id)
    if status is None:
        known = ", ".join(node.node_id for node in cluster.readable_nodes(kind)) or "none"
        raise UsageError(
            f"no {NAMES[kind]} {node_id!r} is registered", hint=f"registered are: {known}", node_id=node_id
        )
    return status


def ask_state(
    cluster: Cluster,
    node_id: str,
    action: Action,
    *,
    kind: NodeKind = NodeKind.PUMP,
    tls: TlsSettings | None = None,
    proof: Proof = (),
) -> str:
    """Ask a running Pump or Drainer to pause, or to close (drain and go offline); returns its answer at once.

    One that is on its way there already is not asked again. ``proof``: shown to our Pumps alone.

    Raises:
        UsageError: no such node, or one that takes no orders.
        PeerRefused: it takes this from operators, and we have not proved to be one.
        PumpUnavailable: it does not answer.
        PumpError: it refuses, as one that is not online does.
    """
    status = find_node(cluster, node_id, kind)
    if status.state in REACHED.get(action, ()) and not (status.state in RUNNING and age_s(status) > PUMP_SILENT_S):
        return f"it is {status.state} already."
    # The Go Pump serves HTTP on the port of gRPC; ours says where.
    host = status.extra.http if status.extra is not None and status.extra.http else status.host
    if not host:
        raise UsageError(
            f"{node_id} is no process that could be asked: an archive, or a consumer registered by hand",
            hint="pause the DAG that runs it; `pumphouse consumer unregister` gives up what it has not read",
            node_id=node_id,
        )
    ours = kind is NodeKind.PUMP and status.extra is not None
    path = f"/state/{quote(node_id, safe='')}/{action}"
    answer = _put(host, path, tls or TlsSettings(), node_id, NAMES[kind], proof if ours else ())
    message = str(answer.get("message", ""))
    if answer.get("code") != http.client.OK:
        hint = ""
        # A Go Pump or Drainer that is closing and gets SIGTERM is offline.
        if ours and status.state in (NodeState.PAUSING, NodeState.CLOSING):
            hint = "it is on its way: SIGTERM ends it as paused, and `pumphouse pump run` brings it back online"
        elif status.state != NodeState.ONLINE:
            hint = "only one that is online takes this: start it, then ask again"
        raise PumpError(
            f"{NAMES[kind]} {node_id} refuses: {message}", hint=hint, node_id=node_id, state=str(status.state)
        )
    return message


def wait_for_state(
    cluster: Cluster,
    node_id: str,
    wanted: NodeState,
    timeout_s: float,
    *,
    kind: NodeKind = NodeKind.PUMP,
    progress: Callable[[NodeStatus | None], None] | None = None,
    away: Callable[[Exception], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> NodeStatus | None:
    """Watch the registry until a Pump or Drainer has a state: its status then, None when the time is up before.

    A registry that does not answer is asked again until then; ``away`` is told of each time.

    Raises:
        ClusterUnavailable, OSError: the time is up, and the registry did not answer the last time.
    """
    until = clock.monotonic() + timeout_s
    while True:
        silence: Exception | None = None
        try:
            status = cluster.node(kind, node_id)
        except (ClusterUnavailable, OSError) as error:
            silence = error
            if away is not None:
                away(error)
        else:
            if progress is not None:
                progress(status)
            if status is not None and status.state == wanted:
                return status
        if clock.monotonic() >= until:
            if silence is not None:
                raise silence
            return None
        clock.sleep(0.5)


def force_state(cluster: Cluster, node_id: str, state: NodeState, kind: NodeKind = NodeKind.PUMP) -> NodeStatus:
    """Write a node's state into the registry without asking it (binlogctl's update-pump and update-drainer).

    Only the state changes: the maxCommitTS that stays there is no evidence of anything.
    """
    forced = find_node(cluster, node_id, kind).with_(state=state)

    def change(found: NodeStatus | None) -> NodeStatus:
        nonlocal forced
        if found is None:
            raise UsageError(f"{NAMES[kind]} {node_id!r} is not registered any more", node_id=node_id)
        forced = found.with_(state=state)
        return forced

    cluster.update_node(kind, node_id, change)
    return forced


def register_consumer(cluster: Cluster, node_id: str, checkpoint: Tso) -> NodeStatus:
    """Register a consumer whose checkpoint holds the Pumps' GC.

    Its state is ``paused``, so that a starting Pump does not try to notify it. UsageError if the id is taken.
    """
    wanted = NodeStatus(
        node_id=node_id, host="", state=NodeState.PAUSED, max_commit_ts=checkpoint, update_ts=cluster.tso()
    )

    def change(found: NodeStatus | None) -> NodeStatus:
        if found is not None:
            raise UsageError(f"consumer {node_id!r} is registered already", hint="see `pumphouse consumer list`")
        return wanted

    cluster.update_node(NodeKind.DRAINER, node_id, change)
    return wanted


def unregister_consumer(cluster: Cluster, node_id: str) -> NodeStatus | None:
    """Remove a consumer; what it has not read is no longer kept for it.

    Returns what was registered; None = its value cannot be read, and went.
    """
    try:
        found = cluster.node(NodeKind.DRAINER, node_id)
    except CorruptionError:
        found = cluster.update_node(NodeKind.DRAINER, node_id, lambda now: now, anew=True)
        if found is None:
            return None
    if found is None:
        known = ", ".join(each.node_id for each in cluster.readable_nodes(NodeKind.DRAINER)) or "none"
        raise UsageError(f"no consumer {node_id!r} is registered", hint=f"registered are: {known}", node_id=node_id)
    cluster.update_node(NodeKind.DRAINER, node_id, lambda _: None)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpGc:
    """What was asked of one Pump's GC and what it did, or why it was not asked.

    ``requested_by_…``: the ts up to which retention and the lowest checkpoint allow GC. None where nothing was done,
    there is no consumer, or the Pump is older and does not say.
    """

    node_id: str
    asked: bool
    started: bool = False
    requested_by_retention: int | None = None
    requested_by_checkpoints: int | None = None
    gc_point: int = 0
    deletion_limit: int = 0
    held_by: tuple[str, ...] = ()
    freed_files: int = 0
    freed_bytes: int = 0
    kept_files: int = 0
    note: str = ""
    error: str = ""
    # Of a Go Pump: where the archive stands, up to where the Pump may have freed, and how far these are apart.
    archived: int | None = None
    gone_upto: int | None = None
    left_s: float | None = None

    @property
    def requested(self) -> int | None:
        """Up to where GC was asked for: the lower of both."""
        said = [ts for ts in (self.requested_by_retention, self.requested_by_checkpoints) if ts is not None]
        return min(said, default=None)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return asdict(self) | {"requested": self.requested, "held_by": list(self.held_by)}


def trigger_gc(
    cluster: Cluster,
    *,
    tls: TlsSettings | None = None,
    proof: Proof = (),
    timeout_s: float = GC_TIMEOUT_S,
    go_limits: GoLimits | None = None,
) -> list[PumpGc]:
    """Run GC on every Pump that is not offline, one after the other; a Pump that fails has its ``error`` set.

    A Go Pump cannot be asked; ``go_limits``: it has an ``error`` where the archive is not far enough ahead of its GC.
    """
    return [
        _gc_of_go(cluster, pump, tls or TlsSettings(), go_limits)
        if pump.extra is None
        else _gc_of(cluster.cluster_id(), pump, tls, proof, timeout_s)
        for pump in cluster.nodes(NodeKind.PUMP)
        if not pump.left
    ]


def _gc_of_go(cluster: Cluster, pump: NodeStatus, tls: TlsSettings, limits: GoLimits | None) -> PumpGc:
    note = "a Go Pump: its GC goes by age alone and cannot be held by a checkpoint"
    found = None
    if limits is not None:
        try:
            found = distance(pump, limits, cluster.tso(), told_gc_point(pump, tls))
        except (BinlogError, OSError) as error:  # those behind it have their turn all the same
            return PumpGc(node_id=pump.node_id, asked=False, note=note, error=f"it was not compared: {error}")
    if found is None:
        unknown = "" if limits is None else "; there is no archive to compare with it"
        return PumpGc(node_id=pump.node_id, asked=False, note=note + unknown)
    return PumpGc(
        node_id=pump.node_id,
        asked=False,
        note=f"{note}; {found.text()}" if found.enough else note,
        error="" if found.enough else f"the archive is not ahead of this Go Pump's GC: {found.text()}",
        archived=found.archived,
        gone_upto=found.gone_upto,
        left_s=found.left_s,
    )


def _gc_of(cluster_id: int, pump: NodeStatus, tls: TlsSettings | None, proof: Proof, timeout_s: float) -> PumpGc:
    with open_channel(pump.host, tls) as channel:
        try:
            request = TriggerGcRequest(cluster_id=cluster_id)
            answer = PumpBatchStub(channel).TriggerGc(request, timeout=timeout_s, metadata=proof)
        except grpc.RpcError as error:
            return PumpGc(node_id=pump.node_id, asked=True, error=str(from_rpc_error(error, peer=pump.node_id)))
    return PumpGc(
        node_id=pump.node_id,
        asked=True,
        started=answer.started,
        requested_by_retention=_said(answer, "requested_by_retention"),
        requested_by_checkpoints=_said(answer, "requested_by_checkpoints"),
        gc_point=answer.gc_point,
        deletion_limit=answer.deletion_limit,
        held_by=tuple(answer.held_by),
        freed_files=answer.freed_files,
        freed_bytes=answer.freed_bytes,
        kept_files=answer.kept_files,
        note="" if answer.started else "a GC is running already",
    )


def _said(answer: TriggerGcResponse, name: str) -> int | None:
    return int(getattr(answer, name)) if answer.HasField(name) else None


def _put(host: str, path: str, tls: TlsSettings, node_id: str, name: str, proof: Proof) -> dict[str, Any]:
    asked = False
    try:
        with closing(http_connection(host, tls, HTTP_TIMEOUT_S)) as connection:
            connection.connect()
            asked = True
            connection.request("PUT", path, headers=dict(proof))
            response = connection.getresponse()
            body = response.read()
    except (OSError, http.client.HTTPException) as error:
        # One that takes the connection and ends it without an answer runs.
        cut = isinstance(error, (ssl.SSLError, ConnectionResetError, http.client.BadStatusLine))
        raise PumpUnavailable(
            f"{name} {node_id} does not answer on {host}: {error}",
            hint=TLS_HINT
            if cut
            else f"it has the order and may yet obey: see `pumphouse {name.lower()}s`"
            if asked and isinstance(error, TimeoutError)
            else f"only a running {name} can pause or drain: start it, then ask again",
            node_id=node_id,
        ) from error
    try:
        answer = strict.loads(body)
        if isinstance(answer, dict) and response.status == http.client.FORBIDDEN:
            raise PeerRefused(f"{name} {node_id}: {answer.get('message')}", node_id=node_id)
        if isinstance(answer, dict):
            return answer
    except ValueError:
        pass
    raise PumpError(f"{name} {node_id} answers HTTP {response.status}: {body[:200]!r}", node_id=node_id)


def failures(reports: list[PumpGc]) -> BinlogError | None:
    """One error for all Pumps whose GC failed, or None."""
    failed = [report for report in reports if report.error]
    if not failed:
        return None
    what = "; ".join(f"{report.node_id}: {report.error}" for report in failed)
    behind = [report for report in failed if report.archived is not None]
    if behind:
        # Nothing that another try could mend.
        first = min(behind, key=lambda report: report.left_s or 0)
        return GapError(
            f"GC: {what}",
            hint="extend the archive now: `pumphouse snapshot`; until it keeps up, start the Go Pumps with a larger "
            "`gc`, and set archive.go_pump_gc_s to it",
            node_id=first.node_id,
            archived=first.archived,
            gone_upto=first.gone_upto,
        )
    return PumpUnavailable(
        f"GC failed on {what}", hint="`pumphouse status` says what is wrong", node_id=failed[0].node_id
    )


def behind(cluster: Cluster, ts: Tso) -> list[NodeStatus]:
    """Consumers that are not offline and have not read up to ``ts``."""
    return [node for node in cluster.nodes(NodeKind.DRAINER) if not node.left and node.max_commit_ts < ts]


def not_reached(
    status: NodeStatus,
    wanted: NodeState,
    waited_s: float,
    why: str,
    kind: NodeKind = NodeKind.PUMP,
    *,
    next_steps: str = "",
) -> PumpError:
    """Error for a state that did not come in time."""
    if is_silent(status):
        goes_on = f"it has said nothing for {age_s(status):.0f} s: where it is dead, start it and ask again"
    else:
        goes_on = "it goes on by itself"
    return PumpError(
        f"{NAMES[kind]} {status.node_id} is {status.state} and not {wanted} after {waited_s:g} s{why}",
        hint=f"{goes_on}; {next_steps or f'see `pumphouse {kind} --show-offline`'}",
        node_id=status.node_id,
        state=str(status.state),
    )
