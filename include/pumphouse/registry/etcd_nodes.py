"""The registry in etcd: nodes and resolvers, with the keys and values of TiDB Binlog (docs/formats.md, "Registry").

    <root>/tidb-binlog/v1/pumps/<node id>     one node status, compact JSON; drainers/ likewise
    <root>/pumphouse/v1/resolvers/<id>        one registered resolver
    <root>/pumphouse/v1/captures/<id>         one registered capture

Serves ``etcd://`` and, over PD's client URLs, ``pd://``. ``<root>`` is empty unless the cluster URL names one; the Go
tools know only the empty one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BinlogError, ClusterUnavailable, CorruptionError, UsageError
from pumphouse.library_log import library_logger
from pumphouse.model.node import REGISTRY_ROOT, NodeKind, NodeStatus, is_node_id
from pumphouse.registry import captures, resolvers
from pumphouse.registry.base import CaptureRecord, NodeChange, ResolverRecord, unreadable
from pumphouse.registry.etcd_client import (
    Compacted,
    EtcdClient,
    KeyValue,
    delete_op,
    mod_is,
    none_written_since,
    put_op,
)
from pumphouse.registry.etcd_watch import Watch

log = library_logger(__name__)

OWN_ROOT = "/pumphouse/v1"
# An election takes a few seconds; a change goes on for so long over unanswered calls.
PATIENCE_S = 15.0
_RETRY_WAIT_S = 0.1
_LIST_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A write on top of a revision of its key; ``value`` None deletes."""

    revision: int
    wanted: NodeStatus | None
    value: bytes | None


class EtcdNodes:
    """Nodes and resolvers of one cluster."""

    def __init__(self, client: EtcdClient, *, root: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self._etcd = client
        self._root = root
        self._clock = clock

    @property
    def _client(self) -> EtcdClient:
        return self._etcd

    def nodes(self, kind: NodeKind) -> list[NodeStatus]:
        """Every registered node of a kind, sorted by id; linearizable. CorruptionError where one cannot be read."""
        found = self._client.prefix(self.folder(kind))
        return sorted((_status(kind, kv) for kv in found.kvs), key=lambda status: status.node_id)

    def readable_nodes(self, kind: NodeKind) -> list[NodeStatus]:
        """`nodes` without those that cannot be read, which are logged."""
        return self.listed(kind)[0]

    def listed(self, kind: NodeKind) -> tuple[list[NodeStatus], int]:
        """The nodes that can be read, and the revision of etcd that they were read at; the others are logged.

        For those who look for a node that works: one bad value must not hide the good ones.
        """
        found = self._client.prefix(self.folder(kind))
        readable = filter(None, (_readable(kind, kv) for kv in found.kvs))
        return sorted(readable, key=lambda status: status.node_id), found.revision

    def node(self, kind: NodeKind, node_id: str) -> NodeStatus | None:
        """One node, or None; linearizable."""
        kv = self._client.get(self._key(kind, node_id))
        return None if kv is None else _status(kind, kv)

    def update_node(
        self,
        kind: NodeKind,
        node_id: str,
        change: Callable[[NodeStatus | None], NodeStatus | None],
        *,
        anew: bool = False,
    ) -> NodeStatus | None:
        """Read, change and write one node, as a transaction on the revision that was read.

        ``change`` runs again after a conflict. A write whose outcome is unknown is looked up in the key's history.
        """
        key = self._key(kind, node_id)
        until = self._clock.monotonic() + PATIENCE_S
        unknown: list[_Attempt] = []
        while True:
            try:
                kv = self._client.get(key)
                revision = 0 if kv is None else kv.mod_revision
                for attempt in unknown:
                    if self._was_done(key, kv, attempt):
                        return attempt.wanted
                # One on top of this revision may still arrive; any older one cannot take place any more.
                unknown = [attempt for attempt in unknown if attempt.revision == revision]
                found = None if kv is None else _readable(kind, kv) if anew else _status(kind, kv)
                wanted = change(found)
                if wanted == found and (found is not None or kv is None):
                    return wanted
                if found is None and wanted is not None and not is_node_id(node_id):
                    raise UsageError(
                        f"{node_id!r} cannot be a node id", hint="printable characters, no slash", node_id=node_id
                    )
                if wanted is not None and wanted.node_id != node_id:
                    raise UsageError(f"the status of node {wanted.node_id!r} cannot be stored under {node_id!r}")
                attempt = _Attempt(revision, wanted, None if wanted is None else wanted.to_json())
                if self._write(key, attempt, unknown):
                    return wanted
            except ClusterUnavailable:
                if self._clock.monotonic() >= until:
                    raise
                self._clock.sleep(_RETRY_WAIT_S)

    def _write(self, key: bytes, attempt: _Attempt, unknown: list[_Attempt]) -> bool:
        write = delete_op(key) if attempt.value is None else put_op(key, attempt.value)
        try:
            return self._client.txn([mod_is(key, attempt.revision)], [write]).succeeded
        except ClusterUnavailable as error:
            if error.sent:
                unknown.append(attempt)
            raise

    def watch_nodes(self, kind: NodeKind) -> EtcdNodeWatch:
        """Watch the nodes of a kind."""
        return EtcdNodeWatch(self._client, self, kind)

    # Resolvers

    def resolvers(self) -> list[ResolverRecord]:
        """Every registered resolver, sorted by id, live or not."""
        found = self._client.prefix(self._resolver_key(""))
        return sorted(map(self._resolver, found.kvs), key=lambda record: record.resolver_id)

    def put_resolver(self, record: ResolverRecord) -> None:
        """Register or heartbeat; the same id replaces, an overlap with another live one raises ResolverOverlap."""
        if not record.resolver_id:
            raise UsageError("a resolver needs an id")
        folder, key = self._resolver_key(""), self._resolver_key(record.resolver_id)
        until = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                found = self._client.prefix(folder)
                others = [self._resolver(kv) for kv in found.kvs]
                resolvers.refuse_overlap(record, others, self._clock.now())
                put = put_op(key, resolvers.to_json(record))
                if self._client.txn([none_written_since(folder, found.revision)], [put]).succeeded:
                    return
            except ClusterUnavailable:
                # Putting the same record again is harmless, so the outcome does not matter.
                if self._clock.monotonic() >= until:
                    raise
                self._clock.sleep(_RETRY_WAIT_S)

    def delete_resolver(self, resolver_id: str) -> None:
        """Remove; a missing one is no error."""
        self._client.delete(self._resolver_key(resolver_id))

    # Captures

    def captures(self) -> list[CaptureRecord]:
        """Every registered capture, sorted by id."""
        found = self._client.prefix(self._capture_key(""))
        return sorted(map(_capture, found.kvs), key=lambda record: record.capture_id)

    def readable_captures(self) -> list[CaptureRecord]:
        """`captures` without those that cannot be read."""
        found = self._client.prefix(self._capture_key(""))
        return captures.readable((kv.value, _place(kv)) for kv in found.kvs)

    def update_capture(
        self, capture_id: str, change: Callable[[CaptureRecord | None], CaptureRecord | None]
    ) -> CaptureRecord | None:
        """Read, change and write one capture, as a transaction on the revision that was read.

        A write whose answer was lost is read back: then ``change`` is given what it gave.
        """
        key = self._capture_key(capture_id)
        until = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                kv = self._client.get(key)
                found = None if kv is None else _capture(kv)
                wanted = change(found)
                if wanted == found:
                    return wanted
                write = delete_op(key) if wanted is None else put_op(key, captures.to_json(wanted))
                if self._client.txn([mod_is(key, 0 if kv is None else kv.mod_revision)], [write]).succeeded:
                    return wanted
            except ClusterUnavailable:
                if self._clock.monotonic() >= until:
                    raise
                self._clock.sleep(_RETRY_WAIT_S)

    # Keys

    def _capture_key(self, capture_id: str) -> bytes:
        return f"{self._root}{OWN_ROOT}/captures/{capture_id}".encode()

    def folder(self, kind: NodeKind) -> bytes:
        """What all keys of a kind begin with."""
        return f"{self._root}{REGISTRY_ROOT}/{kind.value}/".encode()

    def _key(self, kind: NodeKind, node_id: str) -> bytes:
        if not node_id:
            raise UsageError("a node id cannot be empty", node_id=node_id)
        return self.folder(kind) + node_id.encode()

    def _resolver_key(self, resolver_id: str) -> bytes:
        return f"{self._root}{OWN_ROOT}/resolvers/{resolver_id}".encode()

    def _resolver(self, kv: KeyValue) -> ResolverRecord:
        return resolvers.read(kv.key[len(self._resolver_key("")) :].decode("utf-8", "replace"), kv.value)

    def _was_done(self, key: bytes, now: KeyValue | None, attempt: _Attempt) -> bool:
        """Whether a write is in the key's history: it was the next one on top of its revision, or was none."""
        if attempt.value is None:
            return now is None
        while now is not None and now.mod_revision > attempt.revision:
            try:
                older = self._client.get(key, revision=now.mod_revision - 1)
            except Compacted:
                return False
            if older is None or older.mod_revision <= attempt.revision:
                return now.value == attempt.value
            now = older
        return False


class EtcdNodeWatch:
    """Nodes of a kind as they change; see `pumphouse.registry.base.NodeWatch`."""

    def __init__(self, client: EtcdClient, nodes: EtcdNodes, kind: NodeKind) -> None:
        self._client = client
        self._nodes = nodes
        self._kind = kind
        self._folder = nodes.folder(kind)
        self._known: dict[str, NodeStatus] = {}
        self._closed = threading.Event()
        self._watch: Watch | None = None

    def __iter__(self) -> Iterator[list[NodeChange]]:
        """The nodes that are there, then each change; lists again where etcd has dropped what was not seen."""
        first = True
        while not self._closed.is_set():
            try:
                listed, revision = self._nodes.listed(self._kind)
            except BinlogError as error:
                log.warning("node_list_failed", kind=self._kind.value, error=str(error))
                self._closed.wait(_LIST_AGAIN_S)
                continue
            changes = self._differences({status.node_id: status for status in listed})
            if changes or first:
                first = False
                yield changes
            watch = self._watch = Watch(self._client, self._folder, revision + 1)
            if self._closed.is_set():
                return
            try:
                for events in watch:
                    changes = [change for event in events if (change := self._change(event.kv, event.deleted))]
                    if changes:
                        yield changes
            except Compacted as error:
                log.info("node_watch_lists_again", kind=self._kind.value, reason=str(error))

    def close(self) -> None:
        """End the iteration."""
        self._closed.set()
        if self._watch is not None:
            self._watch.close()

    def _differences(self, now: dict[str, NodeStatus]) -> list[NodeChange]:
        gone = [NodeChange(node_id=node_id, status=None) for node_id in self._known if node_id not in now]
        new = [
            NodeChange(node_id=node_id, status=status)
            for node_id, status in now.items()
            if self._known.get(node_id) != status
        ]
        self._known = now
        return gone + new

    def _change(self, kv: KeyValue, deleted: bool) -> NodeChange | None:
        node_id = kv.key[len(self._folder) :].decode("utf-8", "replace")
        if deleted:
            self._known.pop(node_id, None)
            return NodeChange(node_id=node_id, status=None)
        status = _readable(self._kind, kv)
        if (
            status is None
        ):  # whoever wrote it will write again; what was known before is all that can be said until then
            return None
        self._known[node_id] = status
        return NodeChange(node_id=node_id, status=status)


def _capture(kv: KeyValue) -> CaptureRecord:
    return captures.from_json(kv.value, _place(kv))


def _place(kv: KeyValue) -> str:
    return f"etcd key {kv.key.decode('utf-8', 'replace')}"


def _readable(kind: NodeKind, kv: KeyValue) -> NodeStatus | None:
    try:
        return _status(kind, kv)
    except CorruptionError as error:
        log.warning("node_status_unreadable", error=str(error))
        return None


def _status(kind: NodeKind, kv: KeyValue) -> NodeStatus:
    try:
        return NodeStatus.from_json(kv.value)
    except BinlogError as error:
        key = kv.key.decode("utf-8", "replace")
        raise unreadable(kind, key.partition(f"/{kind.value}/")[2], f"etcd key {key}", error) from error
