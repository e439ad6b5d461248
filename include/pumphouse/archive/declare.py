"""The recorded ways past a hole: ``declare-lost`` and ``accept``. Both are objects of the archive, put once."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.content import parse_binlog
from pumphouse.archive.coverage import replaced_by, start_of
from pumphouse.archive.document import LISTS_ALL, dump, parse
from pumphouse.archive.manifest import AcceptedCommit, Declaration, PumpEntry
from pumphouse.archive.publish import put_once
from pumphouse.archive.puller import Puller, kept_out, open_puller
from pumphouse.archive.stats import table_stats
from pumphouse.errors import BadManifest, BinlogError, PositionCollected, UsageError
from pumphouse.model.node import NodeKind, NodeStatus
from pumphouse.model.tso import Tso, show
from pumphouse.registry.base import Cluster
from pumphouse.rpc.operator import Proof
from pumphouse.settings import TlsSettings

_FIRST_BINLOG_S = 15.0


def declarations(archive: Archive) -> list[Declaration]:
    """Every declared loss, also those that no window needed in the end."""
    return [each for each in _recorded(archive, accepted=False) if isinstance(each, Declaration)]


def accepted_commits(archive: Archive, wanted: Callable[[str], bool] = lambda _: True) -> list[AcceptedCommit]:
    """What was accepted by name; of the objects with these keys alone, as all come to many."""
    found = _recorded(archive, accepted=True, wanted=wanted)
    return [each for each in found if isinstance(each, AcceptedCommit)]


def read_declared(key: str, data: bytes) -> Declaration | AcceptedCommit:
    """One object under declared/; BadManifest where its content is not what its name says."""
    found: Declaration | AcceptedCommit
    if _names_accepted(key):
        found = parse(key, data, AcceptedCommit.KIND, AcceptedCommit.from_dict)
        names = {layout.accepted_key(found.node_id, found.start_ts, found.commit_ts)}
    else:
        found = parse(key, data, Declaration.KIND, Declaration.from_dict)
        names = {
            layout.declared_key(found.node_id, found.from_ts),
            layout.extended_key(found.node_id, found.from_ts, found.to_ts),
        }
    _require_name(key, names)
    return found


def read_settled(key: str, data: bytes) -> AcceptedCommit:
    """One object under settled/; BadManifest where its content is not what its name says."""
    found = parse(key, data, AcceptedCommit.SETTLED, AcceptedCommit.from_dict)
    _require_name(key, {layout.settled_key(found.node_id, found.start_ts, found.commit_ts)})
    return found


def _require_name(key: str, names: Collection[str]) -> None:
    if key not in names:
        raise BadManifest(
            f"{key} holds what belongs to {min(names)}", hint=LISTS_ALL, path=key, offset=0, reason="name"
        )


def settled_of(archive: Archive, node_id: str) -> frozenset[str]:
    """Keys of the records of one Pump's late and orphan commits that manifests list (`layout.settled_key`)."""
    return frozenset(each.key for each in archive.store.list(layout.settled_prefix(node_id)))


def accept_with(archive: Archive, lost: Declaration, start_ts: Tso, commit_ts: Tso) -> AcceptedCommit:
    """Record that an orphan is left out, by the word of who declared its prewrite lost.

    Returns the record that is there, which may be another's by now: a manifest lists that one.
    """
    record = AcceptedCommit(
        node_id=lost.node_id,
        start_ts=start_ts,
        commit_ts=commit_ts,
        kind=AcceptedCommit.ORPHAN,
        reason=f"its prewrite was declared lost: {lost.reason}",
        who=lost.who,
    )
    return _put_record(archive, record)


def _put_record(archive: Archive, record: AcceptedCommit) -> AcceptedCommit:
    """Put a record of a commit; returns the first one that was put."""
    key = layout.accepted_key(record.node_id, record.start_ts, record.commit_ts)
    found = put_once(archive.store, key, dump(AcceptedCommit.KIND, record.to_dict()), lambda _: True)
    return parse(key, found, AcceptedCommit.KIND, AcceptedCommit.from_dict)


def record_settled(archive: Archive, accepted: AcceptedCommit) -> None:
    """Record that a manifest lists a late or orphan commit. A record that is there stays as it is."""
    key = layout.settled_key(accepted.node_id, accepted.start_ts, accepted.commit_ts)
    put_once(archive.store, key, dump(AcceptedCommit.SETTLED, accepted.to_dict()), lambda _: True)


class KnownPump(NamedTuple):
    """A Pump as the archive's end and the registry know it; at least one of them does."""

    archived: PumpEntry | None
    registered: NodeStatus | None


def known_pump(archive: Archive, cluster: Cluster, node_id: str) -> KnownPump:
    """UsageError names the known ones where neither archive nor registry knows this one.

    Of the registry only its own entry has to be readable: a Pump is given up when things are broken.
    """
    last = archive.last()
    archived = {each.node_id: each for each in (archive.genesis().pumps if last is None else last.pumps)}
    found = KnownPump(archived.get(node_id), cluster.node(NodeKind.PUMP, node_id))
    if found == (None, None):
        known = sorted({*archived, *(each.node_id for each in cluster.readable_nodes(NodeKind.PUMP))})
        raise UsageError(f"no Pump {node_id!r} is known", hint=f"known are: {', '.join(known) or 'none'}")
    return found


def declare_lost(archive: Archive, cluster: Cluster, node_id: str, reason: str, *, who: str = "") -> Declaration:
    """Give up what one Pump had after the archive's end: the next window goes on without it.

    The range is (the archive's end, a fresh TSO], so it never covers what is archived. Where the Pump has another
    incarnation by now, the one that is lost is the one that the archive knows. Said twice, the first stays, unless the
    Pump ran after its end and was replaced.

    Raises:
        UsageError: no reason, or neither registry nor archive knows this Pump.
        ManifestConflict: somebody declared the same range with another reason.
    """
    if not reason.strip():
        raise UsageError("a loss is declared with a reason", hint="--reason 'disk of pump-1 died, 2026-11-21'")
    before, now = known_pump(archive, cluster, node_id)
    incarnation = before.incarnation if before is not None else start_of(now).incarnation if now is not None else ""
    declaration = Declaration(
        node_id=node_id,
        incarnation=incarnation,
        from_ts=archive.end(),
        to_ts=cluster.tso(),
        reason=reason.strip(),
        who=who or default_who(),
    )
    key = layout.declared_key(node_id, declaration.from_ts)
    existing = max(
        (each for each in declarations(archive) if (each.node_id, each.from_ts) == (node_id, declaration.from_ts)),
        key=lambda each: each.to_ts,
        default=None,
    )
    if existing is not None:
        if now is None or all(each.update_ts <= existing.to_ts for each in replaced_by(now)):
            return existing
        key = layout.extended_key(node_id, declaration.from_ts, declaration.to_ts)
    data = dump(Declaration.KIND, declaration.to_dict())
    put_once(archive.store, key, data, lambda found: found == data)
    return declaration


def accept(
    archive: Archive,
    cluster: Cluster,
    node_id: str,
    start_ts: Tso,
    commit_ts: Tso,
    reason: str,
    *,
    who: str = "",
    tls: TlsSettings | None = None,
    proof: Proof = (),
) -> tuple[AcceptedCommit, bool]:
    """Settle by name what holds a window, and tell the Pump. Returns the record and whether the Pump was told.

    Twice is no harm: the first record stays, and is returned.

    A late commit is taken; one below the archive's end stays out, the next window's manifest says so, and its snapshot
    tells the Pump. An orphan, and a transaction whose payload cannot be read, are left out. A DDL binlog goes
    without its job where the history has none. Any other transaction is the one to be read where another Pump has
    another content of it.

    Raises:
        UsageError: no reason, no such Pump, or the Pump has no such transaction.
    """
    if not reason.strip():
        raise UsageError(
            "a commit is accepted with a reason", hint="--reason 'the transaction was rolled forward by …'"
        )
    status = cluster.node(NodeKind.PUMP, node_id)
    if status is None:
        raise UsageError(f"no Pump {node_id!r} is registered", hint="pumphouse pumps", node_id=node_id)
    puller = open_puller(status, archive.cluster_id, tls, proof)
    try:
        commits = kept_out(puller.status())
        kind = next((kind for kind, each in commits if (each.start_ts, each.commit_ts) == (start_ts, commit_ts)), None)
        told_of = kind is not None
        if kind != AcceptedCommit.ORPHAN:
            # A late one that cannot be read is left out, like any other.
            found = _kind_of(puller, start_ts, commit_ts)
            kind = found if kind is None or found == AcceptedCommit.UNREADABLE else kind
        if kind is None:
            raise UsageError(
                f"Pump {node_id} shows no late or orphan commit of {show(start_ts)} at {show(commit_ts)}, and has no "
                "such transaction",
                hint=f"it shows: {', '.join(f'{e.start_ts} {e.commit_ts}' for _, e in commits) or 'none'}",
            )
        record = _put_record(
            archive,
            AcceptedCommit(
                node_id=node_id,
                start_ts=start_ts,
                commit_ts=commit_ts,
                kind=kind,
                reason=reason.strip(),
                who=who or default_who(),
            ),
        )
        if told_of and _has_passed(archive, commit_ts):
            # Nothing brings it any more: the next window's manifest has to say so before the Pump shows it as settled.
            return record, False
        if told_of:
            try:
                puller.accept(start_ts, commit_ts, record.reason)
            except BinlogError:
                return record, False
        return record, True
    finally:
        puller.close()


def _has_passed(archive: Archive, commit_ts: Tso) -> bool:
    return archive.begun() and commit_ts <= archive.end()


def _kind_of(puller: Puller, start_ts: Tso, commit_ts: Tso) -> str | None:
    """What a transaction in the Pump's stream is accepted as; None where the Pump has none with these times."""
    found = None
    with suppress(PositionCollected):  # below the Pump's GC point nothing can be looked at
        found = puller.first_after(Tso(commit_ts - 1), _FIRST_BINLOG_S)
    if found is None or found[0] != commit_ts:
        return None
    binlog = parse_binlog(found[1])
    if binlog.start_ts != start_ts or start_ts == commit_ts:
        return None
    if table_stats(pa.array([found[1]], pa.large_binary())).unreadable:
        return AcceptedCommit.UNREADABLE
    return AcceptedCommit.DDL if binlog.ddl_job_id > 0 else AcceptedCommit.DIFFERS


def default_who() -> str:
    """User and host, for the record."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


def _names_accepted(key: str) -> bool:
    return key.rpartition("/")[2].startswith("accept-")


def _recorded(
    archive: Archive, *, accepted: bool, wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[Declaration | AcceptedCommit]:
    for each in archive.store.list(layout.DECLARED):
        if _names_accepted(each.key) == accepted and wanted(each.key):
            yield read_declared(each.key, archive.store.get(each.key))
