"""The archive as a consumer of the Pumps: whose genesis counts, and the checkpoint that holds their GC.

It is registered as a Drainer in state ``paused``, so that no starting Pump tries to notify it. Its checkpoint is the
archive's end, moved by each snapshot. Where GC follows the load a snapshot moves nothing, and GC publishes what every
target has too (`pumphouse.loader.confirmed`).

The registration says which archive it belongs to: the digest of its ``genesis.json``, the bytes of that object and the
place. The checkpoint of one archive is never moved by another one under the same id: the Pumps would free what the
first does not have. A ``genesis.json`` that is lost is put back from here; one with so many tables that the registry
would not take it is kept beside itself in the store, and the registration has its digest.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from pumphouse import advice
from pumphouse.archive import layout
from pumphouse.archive.copyof import require_no_copy
from pumphouse.archive.document import sha256
from pumphouse.archive.head import Head
from pumphouse.errors import BadManifest, BinlogError, ConfigError, CorruptionError, ObjectNotFound
from pumphouse.model import strict
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import MAX_TSO, Tso, show
from pumphouse.objectstore.probe import put_again
from pumphouse.registry.base import Cluster, anew_hint
from pumphouse.settings import AirflowSettings

if TYPE_CHECKING:
    from pumphouse.archive.archive import Archive

log = structlog.get_logger()

# Moves nothing: the checkpoint never goes back.
NOTHING = Tso(0)
# In the registry's value, beside the fields of TiDB Binlog: whoever does not know it keeps it or drops it.
_FIELD = "pumphouseArchive"
_DIGEST = re.compile("([0-9a-f]{64})?")
# Of a genesis.json: far more than one has, and no more memory than that for what somebody put there.
_MOST_BYTES = 64 << 20
# Of the same, packed, in the registry: etcd takes 1.5 MiB in one request, and each window writes the value again.
_MOST_PACKED = 256 << 10


def consumer_id(archive_id: str) -> str:
    """Node id in the registry."""
    return f"pumphouse-{archive_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What the registry says of the archive under an id.

    ``genesis_sha256`` is the digest of ``genesis.json`` and ``root`` its place. Both are empty while the archive is
    begun, and in the registration of a release that kept neither. ``document``: the object as stored, packed; empty
    where it is too large, and then in the store too (`layout.genesis_copy`). ``attempt``: who begins it.
    """

    checkpoint: Tso = Tso(0)
    root: str = ""
    genesis_sha256: str = ""
    document: str = ""
    attempt: str = ""

    def field(self) -> dict[str, Any]:
        """JSON object beside the fields of TiDB Binlog; formats.md, "Registry"."""
        return {"root": self.root, "genesis": self.genesis_sha256, "document": self.document, "attempt": self.attempt}

    def of_genesis(self, archive: Archive, genesis: bytes) -> Registered:
        """With a ``genesis.json``, which is kept here or in the store."""
        digest, packed = sha256(genesis), base64.b64encode(zlib.compress(genesis)).decode()
        if len(packed) > _MOST_PACKED:
            packed = ""
            archive.store.put(layout.genesis_copy(digest), genesis)
        return replace(self, root=archive.url, genesis_sha256=digest, document=packed, attempt="")

    def genesis(self, archive: Archive) -> bytes:
        """``genesis.json`` as stored; CorruptionError where nothing is kept, or what is kept is something else."""
        copy = layout.genesis_copy(self.genesis_sha256)
        try:
            kept = _unpacked(self.document) if self.document else archive.store.get(copy)
        except ObjectNotFound:
            kept = b""
        if sha256(kept) != self.genesis_sha256:
            raise CorruptionError(
                f"genesis.json of {self.root} is lost, and so is {copy}, which is kept to put it back",
                hint="put either of them back from a copy of the archive",
                path=copy,
                reason="genesis",
            )
        return kept

    @classmethod
    def of(cls, status: NodeStatus) -> Registered:
        """Read it; CorruptionError."""
        field = status.unknown.get(_FIELD)
        if field is None:
            return cls(checkpoint=status.max_commit_ts)
        try:
            root, digest, packed, attempt = (
                strict.text(field[each]) for each in ("root", "genesis", "document", "attempt")
            )
            if not _DIGEST.fullmatch(digest) or (packed and sha256(_unpacked(packed)) != digest):
                raise ValueError(f"{digest:.80} is not the digest of the document")  # noqa: TRY301
            found = cls(
                checkpoint=status.max_commit_ts, root=root, genesis_sha256=digest, document=packed, attempt=attempt
            )
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise CorruptionError(
                f"the registration of the consumer {status.node_id} is damaged: {_FIELD}: {error!r}",
                hint=anew_hint(status.node_id),
                path=status.node_id,
                reason=_FIELD,
            ) from error
        return found


def _unpacked(document: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b64decode(document), _MOST_BYTES)


def registered(cluster: Cluster, archive_id: str) -> Registered | None:
    """What is registered under an archive's id; None = nothing. CorruptionError."""
    found = cluster.node(NodeKind.DRAINER, consumer_id(archive_id))
    return None if found is None else Registered.of(found)


def begin(archive: Archive, cluster: Cluster, attempt: str) -> Registered:
    """Register an archive that is to be begun with checkpoint 0, which holds all GC; what is registered stays.

    Whoever begins an archive that another attempt began and did not end takes its registration over.
    """

    def change(found: Registered) -> Registered:
        if found.genesis_sha256 or found.checkpoint:
            return found
        return replace(found, root=archive.url, attempt=attempt)

    return _write(archive, cluster, change)


def withdraw(archive: Archive, cluster: Cluster, attempt: str) -> None:
    """Take the registration of an attempt that failed back, unless an archive came of it or another attempt has it."""

    def change(found: NodeStatus | None) -> NodeStatus | None:
        if found is None:
            return None
        of = Registered.of(found)
        return found if of.genesis_sha256 or of.checkpoint or of.attempt != attempt else None

    cluster.update_node(NodeKind.DRAINER, consumer_id(archive.archive_id), change)


def claim(archive: Archive, cluster: Cluster, genesis: bytes) -> Registered:
    """Register the ``genesis.json`` that is about to be put, unless another is registered; the one that is now."""
    mine = Registered().of_genesis(archive, genesis)
    return _write(
        archive, cluster, lambda found: found if found.genesis_sha256 else replace(mine, checkpoint=found.checkpoint)
    )


def require(archive: Archive, cluster: Cluster) -> Registered | None:
    """What is registered under the archive's id; ConfigError when it is another archive, with both places."""
    found = registered(cluster, archive.archive_id)
    if found is not None and found.genesis_sha256:
        _require_same(archive, found)
    return found


def move(archive: Archive, cluster: Cluster, checkpoint: Tso) -> Tso:
    """Publish a checkpoint. It never goes back: a later one that is there already stays; returns the one in force.

    A registration without a digest, by an earlier release, is taken up: it gets that of the archive.

    Raises:
        ConfigError: another archive is registered under the id, or this is a copy.
    """
    require_no_copy(archive.store)
    genesis, known = archive.genesis(), registered(cluster, archive.archive_id)
    if known is not None and known.genesis_sha256:
        mine = known
    else:
        mine = Registered().of_genesis(archive, archive.store.get(layout.GENESIS))

    def change(found: Registered) -> Registered:
        if found.genesis_sha256:
            _require_same(archive, found)
        elif 0 < found.checkpoint < genesis.ts:
            raise another(archive, found)  # one that has windows from before this one began
        of = found if found.genesis_sha256 else mine
        return replace(of, root=archive.url, checkpoint=Tso(max(found.checkpoint, checkpoint)), attempt="")

    return _write(archive, cluster, change).checkpoint


def put_back(archive: Archive, cluster: Cluster) -> None:
    """Register an archive that is begun in place of a registration that cannot be read; one that can be stays.

    The Pumps keep what is above its checkpoint, or above genesis where that cannot be read either: in no moment is
    there no consumer.

    Raises:
        ConfigError: this is a copy, or what can be read of the registration is another archive's.
    """
    require_no_copy(archive.store)
    genesis = archive.genesis()
    mine = Registered().of_genesis(archive, archive.store.get(layout.GENESIS))
    node_id, now = consumer_id(archive.archive_id), cluster.tso()

    def change(found: NodeStatus | None) -> NodeStatus:
        try:
            if found is not None:
                Registered.of(found)
                return found
        except CorruptionError:
            whose = None if found is None else _whose(found)
            if whose is not None:
                _require_same(archive, whose)
        checkpoint = genesis.ts if found is None else found.max_commit_ts
        log.warning("archive_registered_anew", node_id=node_id, root=archive.url, checkpoint=int(checkpoint))
        return NodeStatus(
            node_id=node_id,
            host="",
            state=NodeState.PAUSED,
            max_commit_ts=checkpoint,
            update_ts=now,
            unknown={_FIELD: mine.field()},
        )

    cluster.update_node(NodeKind.DRAINER, node_id, change, anew=True)
    require(archive, cluster)  # it may have been mended meanwhile, as another archive's


def _whose(status: NodeStatus) -> Registered | None:
    """Of a registration whose rest cannot be read: place and digest. None = they cannot be read either."""
    try:
        field = status.unknown[_FIELD]
        root, digest = strict.text(field["root"]), strict.text(field["genesis"])
    except (KeyError, TypeError, ValueError):
        return None
    if not (root and digest and _DIGEST.fullmatch(digest)):
        return None
    return Registered(checkpoint=status.max_commit_ts, root=root, genesis_sha256=digest)


def promote(archive: Archive, cluster: Cluster, before: Registered | None) -> Tso:
    """Let the cluster know the archive at this place from now on, and no other; returns the checkpoint in force.

    It is no later than the archive's end here, so that the Pumps keep what the place does not have, as far as they
    still have it. Whoever writes to the place before is refused from then on.

    Args:
        archive: where it lies now; it may still be a copy.
        cluster: which one.
        before: what was registered when somebody decided this.

    Raises:
        ConfigError: another archive is registered, or another registration than ``before``.
    """
    end = archive.end()
    mine = Registered().of_genesis(archive, archive.store.get(layout.GENESIS))

    def change(found: Registered) -> Registered:
        if found.genesis_sha256 not in ("", mine.genesis_sha256):
            raise another(archive, found)
        if found.root != (before.root if before is not None else ""):
            raise ConfigError(
                f"the archive was registered at {found.root} meanwhile", hint="look again: pumphouse archive ls"
            )
        of = found if found.genesis_sha256 else mine
        return replace(of, root=archive.url, checkpoint=Tso(min(found.checkpoint or end, end)), attempt="")

    return _write(archive, cluster, change).checkpoint


def another(archive: Archive, found: Registered) -> ConfigError:
    """The archive of the settings is not the one that is registered under its id."""
    node_id = consumer_id(archive.archive_id)
    at = f"lies at {found.root}" if found.root else "was registered by an earlier release, without its place"
    digest = f", genesis {found.genesis_sha256[:12]}" if found.genesis_sha256 else ""
    return ConfigError(
        f"the archive {archive.archive_id!r} that the cluster knows {at} (it has everything up to "
        f"{show(found.checkpoint)}{digest}); the settings name {archive.url}, which is not that archive. If its "
        "checkpoint moved, the Pumps would free what the known archive does not have",
        hint=f"1. is it a slip: set archive.root to the known one. 2. for a second archive beside it: set "
        f"archive.archive_id to a name of its own. 3. to give the known archive up for good: pumphouse consumer "
        f"unregister {node_id}",
        registered=found.root,
        url=archive.url,
    )


def _require_same(archive: Archive, found: Registered) -> None:
    try:
        same = archive.genesis().sha256 == found.genesis_sha256
    except ConfigError as error:
        if not error.missing or found.root == archive.url:
            raise  # lost, and not another: `archive init` puts it back
        same = False
    if not same:
        raise another(archive, found)
    if found.root and found.root != archive.url:
        # Of two places with one genesis, each would free what the other does not have.
        raise ConfigError(
            f"the cluster knows this archive at {found.root}, and the settings name {archive.url}: only one of the two "
            "may go on",
            hint="is archive.root right? If the archive lies there from now on: pumphouse archive promote",
            registered=found.root,
            url=archive.url,
        )


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
        ConfigError: they know another archive under this id, or this is a copy.
    """
    require_no_copy(archive.store)
    known = require(archive, cluster)
    have = None if known is None else known.checkpoint
    head = archive.head()
    last = archive.last() if head is not None else archive.listed().last
    if head is None and have is None and last is not None:
        raise BadManifest(
            f"{archive.url}/{layout.HEAD} is missing, and the Pumps know no checkpoint that would prove the end",
            hint=("put it back; or, if no window is missing, `pumphouse archive init`, then ", advice.SNAPSHOT),
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
    if known is None or moves or not known.genesis_sha256 or not known.root:
        return move(archive, cluster, wanted)
    return known.checkpoint


def checkpoint(cluster: Cluster, archive_id: str) -> Tso | None:
    """The registered checkpoint; None when the archive is not registered."""
    found = cluster.node(NodeKind.DRAINER, consumer_id(archive_id))
    return None if found is None else found.max_commit_ts


def _write(archive: Archive, cluster: Cluster, wanted: Callable[[Registered], Registered]) -> Registered:
    node_id = consumer_id(archive.archive_id)
    now = cluster.tso()

    def change(found: NodeStatus | None) -> NodeStatus:
        if found is None:
            found = NodeStatus(node_id=node_id, host="", state=NodeState.PAUSED)
        of = wanted(Registered.of(found))
        return found.with_(
            # Offline means that GC does not wait for it any more; the archive is in use, so it must.
            state=NodeState.PAUSED,
            max_commit_ts=of.checkpoint,
            update_ts=now,
            unknown={**found.unknown, _FIELD: of.field()},
        )

    stored = cluster.update_node(NodeKind.DRAINER, node_id, change)
    if stored is None:
        raise BinlogError(f"the registry did not keep the consumer {node_id}", node_id=node_id)
    return Registered.of(stored)
