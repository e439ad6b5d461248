"""The cluster as every part sees it: id, clock, registered nodes, resolvers (row W4).

One Protocol, three back ends: ``pd://host:port[,…]``, ``etcd://host:port[,…]`` and ``file:///dir``
(`pumphouse.registry.open.open_cluster`). A back end is safe to use from several
threads and, after a fork, from the child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Protocol, runtime_checkable

from pumphouse.errors import BinlogError, CorruptionError
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.record import LATER, Named, Record
from pumphouse.model.tso import Tso

RESOLVER_TTL_S = 10.0
CAPTURE_TTL_S = 15.0
STOPPED = 0.0  # heartbeat of a resolver that was stopped in order, or whose record cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverRecord:
    """An application that answers for the transactions whose prewrite key starts with one of its prefixes."""

    resolver_id: str
    host: str
    prefixes: tuple[bytes, ...]
    heartbeat: float  # seconds since the epoch; live = younger than RESOLVER_TTL_S, or STOPPED


class CaptureState(StrEnum):
    """What a capture says of itself."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRecord(Record):
    """A capture of one source: who runs it, and how far it is.

    ``source``: address without secrets; ``server``: identity of the server behind it. ``owner``: of the process that
    runs it, random; only that one decides while its ``heartbeat`` (seconds since the epoch) is younger than
    CAPTURE_TTL_S. ``gtid``: what the Pumps have of the source, all of it; ``moment``: when the source committed the
    last of it, seconds since the epoch, 0 = nothing yet. ``start_ts``, ``commit_ts``: of that last one; a commit ts
    of 0: nothing was decided since the journal began, which was then. ``anew``: the history does not say yet that
    rows before that are unknown. ``semi_sync``: whether commits of the source wait for it; None: it does not ask for
    that, or has not looked yet. ``reason``: why it FAILED, or is behind. ``paused``: since when it is to stand still,
    seconds since the epoch, 0 = it is not: whoever says so, and not the process that runs it.
    """

    capture_id: Annotated[str, Named("id")]
    source: str
    server: str
    owner: str
    host: str
    state: CaptureState
    reason: str = ""
    heartbeat: float
    gtid: str
    moment: float = 0.0
    lag_s: float = 0.0
    transactions: int = 0
    start_ts: int = 0
    commit_ts: int = 0
    anew: bool = False
    semi_sync: Annotated[bool | None, LATER] = None
    paused: Annotated[float, LATER] = 0.0


def anew_hint(node_id: str) -> str:
    """What to do about the registration of a consumer, an archive or another, that cannot be read."""
    unregister = f"`pumphouse consumer unregister {node_id}`"
    return (
        "1. If it is that of the archive in use, `pumphouse archive init`, with its settings, registers it anew; if "
        "genesis.json is lost too, put that back from a copy first. 2. If that archive is lost and a copy takes its "
        f"place: {unregister}, then `pumphouse archive promote`. 3. If it is of no archive: {unregister}"
    )


def unreadable(kind: NodeKind, node_id: str, where: str, error: BinlogError) -> CorruptionError:
    """What is said of a registered value that is no status of a node. ``where``: its file or key."""
    hint = (
        "if a newer release wrote it, use that one; else put back what was there. If that is lost, 1. let no snapshot "
        "and no capture run: they would go on without this Pump; 2. delete the value, and start the Pump unless it "
        "runs; 3. go on once `pumphouse pumps` shows it"
    )
    if kind is NodeKind.DRAINER:
        hint = f"until this is repaired, no Pump frees anything. {anew_hint(node_id)}"
    return CorruptionError(
        f"{where}: {error.message}", hint=hint, path=where, reason=error.facts.get("reason"), node_id=node_id
    )


class Cluster(Protocol):
    """Registry, clock and identity of one cluster."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    def cluster_id(self) -> int:
        """The id that every write and pull must carry (row W5)."""
        ...

    def tso(self) -> Tso:
        """A fresh timestamp, above every one given out before by anyone, also across restarts and processes."""
        ...

    def tsos(self, count: int) -> Sequence[Tso]:
        """So many fresh ones at once, ascending: for who needs them all now."""
        ...

    def nodes(self, kind: NodeKind) -> list[NodeStatus]:
        """Every registered node of a kind, sorted by id; offline ones too. CorruptionError where one cannot be read.

        For archive, GC and drain: a node that is left out is a gap.
        """
        ...

    def readable_nodes(self, kind: NodeKind) -> list[NodeStatus]:
        """`nodes` without those that cannot be read, which are logged: for clients, which need one that works."""
        ...

    def node(self, kind: NodeKind, node_id: str) -> NodeStatus | None:
        """One node, or None."""
        ...

    def update_node(
        self,
        kind: NodeKind,
        node_id: str,
        change: Callable[[NodeStatus | None], NodeStatus | None],
        *,
        anew: bool = False,
    ) -> NodeStatus | None:
        """Read, change and write one node atomically; ``change`` may run again after a conflict.

        Returning None deletes the node; returning its argument leaves it alone; raising leaves it alone too.
        ``anew``: a value that cannot be read is None to ``change``, which deletes it by returning None. Returns what
        is stored now.
        """
        ...

    def resolvers(self) -> list[ResolverRecord]:
        """Every registered resolver, live or not.

        A record that cannot be read counts as stopped, and claims every key unless its prefixes can be read.
        """
        ...

    def put_resolver(self, record: ResolverRecord) -> None:
        """Register or heartbeat a resolver; overlap with another live one raises ResolverOverlap."""
        ...

    def delete_resolver(self, resolver_id: str) -> None:
        """Forget a resolver and the keys that it claims; a missing one is no error."""
        ...

    def readable_captures(self) -> list[CaptureRecord]:
        """`captures` without those that cannot be read, which are logged: for who shows what there is."""
        ...

    def captures(self) -> list[CaptureRecord]:
        """Every registered capture, sorted by id; CorruptionError where one cannot be read."""
        ...

    def update_capture(
        self, capture_id: str, change: Callable[[CaptureRecord | None], CaptureRecord | None]
    ) -> CaptureRecord | None:
        """Read, change and write one capture atomically; None deletes it, raising leaves it alone.

        ``change`` may run again, also on what it gave before, if the first answer was lost.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """A node was registered or changed, or removed (``status`` None)."""

    node_id: str
    status: NodeStatus | None


class NodeWatch(Protocol):
    """Changes of the nodes of a kind. One thread iterates, any may close."""

    def __iter__(self) -> Iterator[list[NodeChange]]:
        """First every node that is registered (perhaps none), then each change; for ever, whatever breaks."""
        ...

    def close(self) -> None:
        """End the iteration."""
        ...


@runtime_checkable
class WatchesNodes(Protocol):
    """A cluster that tells of changes; the others are asked again and again."""

    def watch_nodes(self, kind: NodeKind) -> NodeWatch:
        """Begin to watch; connects when it is iterated."""
        ...


@runtime_checkable
class KeepsReadable(Protocol):
    """A cluster whose database collects old versions of rows, and can be kept from it."""

    def keep_readable(self, ts: Tso) -> AbstractContextManager[None]:
        """While the block lasts, and a minute after this process is gone, the database can be read as it was at ts."""
        ...
