"""Manifest of one window: the object whose appearance makes the window visible (docs/formats.md, "Manifest")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from pumphouse.archive.document import LISTS_ALL, dump, parse, sha256
from pumphouse.archive.layout import window_key
from pumphouse.errors import BadManifest
from pumphouse.model import strict
from pumphouse.model.node import Replaced
from pumphouse.model.tso import Tso

KIND = "window"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStat:
    """What a segment holds of one table, for pruning."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """One Parquet object. ``rows`` counts rows of the file (parts of transactions), ``changes`` row changes in them."""

    node_id: str
    key: str
    sha256: str
    bytes: int
    payload_bytes: int
    rows: int
    changes: int
    ddls: int
    min_commit_ts: Tso
    max_commit_ts: Tso
    tables: dict[int, TableStat] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "node_id": self.node_id,
            "key": self.key,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "payload_bytes": self.payload_bytes,
            "rows": self.rows,
            "changes": self.changes,
            "ddls": self.ddls,
            "min_commit_ts": int(self.min_commit_ts),
            "max_commit_ts": int(self.max_commit_ts),
            "tables": {str(k): {"rows": v.rows, "bytes": v.bytes} for k, v in sorted(self.tables.items())},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            node_id=strict.text(data["node_id"]),
            key=strict.text(data["key"]),
            sha256=strict.text(data["sha256"]),
            bytes=strict.integer(data["bytes"]),
            payload_bytes=strict.integer(data["payload_bytes"]),
            rows=strict.integer(data["rows"]),
            changes=strict.integer(data["changes"]),
            ddls=strict.integer(data["ddls"]),
            min_commit_ts=Tso(strict.integer(data["min_commit_ts"])),
            max_commit_ts=Tso(strict.integer(data["max_commit_ts"])),
            tables={
                strict.integer(int(k), strict.MIN_INT64): TableStat(
                    rows=strict.integer(v["rows"]), bytes=strict.integer(v["bytes"])
                )
                for k, v in data["tables"].items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBinlog:
    """Last binlog pulled from a Go Pump, which has no incarnation: it must come again at the next pull."""

    commit_ts: Tso
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {"commit_ts": int(self.commit_ts), "sha256": self.sha256}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(commit_ts=Tso(strict.integer(data["commit_ts"])), sha256=strict.text(data["sha256"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpEntry:
    """What a window, or genesis, knows of one Pump.

    ``state`` is the registry's (``gone``: no longer registered). ``reached``: everything of this Pump with commit ts
    up to it lies in the archive. ``drained``: nothing will ever come after the window's end from this node id,
    incarnation and start count. ``lost``: declared lost up to its end; counts as drained for the same three.
    ``registry`` is the digest of the registry value, kept for a Go Pump that was seen offline. ``replaced``: the
    incarnations that it had replaced, as registered when it was planned.
    """

    node_id: str
    incarnation: str
    start_count: int
    state: str
    reached: Tso
    drained: bool = False
    lost: bool = False
    sync_log: bool = True
    batch: bool = True
    registry: str = ""
    last: LastBinlog | None = None
    replaced: tuple[Replaced, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "node_id": self.node_id,
            "incarnation": self.incarnation,
            "start_count": self.start_count,
            "state": self.state,
            "reached": int(self.reached),
            "drained": self.drained,
            "lost": self.lost,
            "sync_log": self.sync_log,
            "batch": self.batch,
            "registry": self.registry,
            "last": None if self.last is None else self.last.to_dict(),
            "replaced": [each.to_dict() for each in self.replaced],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        last = data["last"]
        return cls(
            node_id=strict.text(data["node_id"]),
            incarnation=strict.text(data["incarnation"]),
            start_count=strict.integer(data["start_count"]),
            state=strict.text(data["state"]),
            reached=Tso(strict.integer(data["reached"])),
            drained=strict.boolean(data["drained"]),
            lost=strict.boolean(data["lost"]),
            sync_log=strict.boolean(data["sync_log"]),
            batch=strict.boolean(data["batch"]),
            registry=strict.text(data["registry"]),
            last=None if last is None else LastBinlog.from_dict(last),
            replaced=tuple(Replaced.from_dict(each) for each in data.get("replaced", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """One transaction that several Pumps have: it is read from ``keep`` alone, never from those in ``drop``."""

    start_ts: Tso
    commit_ts: Tso
    keep: str
    drop: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "start_ts": int(self.start_ts),
            "commit_ts": int(self.commit_ts),
            "keep": self.keep,
            "drop": list(self.drop),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            start_ts=Tso(strict.integer(data["start_ts"])),
            commit_ts=Tso(strict.integer(data["commit_ts"])),
            keep=strict.text(data["keep"]),
            drop=tuple(strict.text(each) for each in data["drop"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEntry:
    """The object with the DDL jobs of a window, or of all history before genesis."""

    key: str
    sha256: str
    bytes: int
    jobs: int

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {"key": self.key, "sha256": self.sha256, "bytes": self.bytes, "jobs": self.jobs}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            key=strict.text(data["key"]),
            sha256=strict.text(data["sha256"]),
            bytes=strict.integer(data["bytes"]),
            jobs=strict.integer(data["jobs"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """``archive declare-lost``: what this Pump had in (from_ts, to_ts] is given up, by name and with a reason."""

    node_id: str
    incarnation: str
    from_ts: Tso
    to_ts: Tso
    reason: str
    who: str

    KIND = "declared-lost"

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "node_id": self.node_id,
            "incarnation": self.incarnation,
            "from_ts": int(self.from_ts),
            "to_ts": int(self.to_ts),
            "reason": self.reason,
            "who": self.who,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            node_id=strict.text(data["node_id"]),
            incarnation=strict.text(data["incarnation"]),
            from_ts=Tso(strict.integer(data["from_ts"])),
            to_ts=Tso(strict.integer(data["to_ts"])),
            reason=strict.text(data["reason"]),
            who=strict.text(data["who"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedCommit:
    """What would hold the window and was settled: by the archive itself (``reason`` says where it has it), or by name.

    ``kind``: ``late`` (taken), ``orphan`` (not to be had), ``unreadable`` (archived raw, and left out of what is read),
    ``ddl`` (goes without its job), ``differs`` (of a transaction that Pumps have with different contents, this one's).
    """

    node_id: str
    start_ts: Tso
    commit_ts: Tso
    kind: str  # late | orphan | unreadable | ddl | differs
    reason: str
    who: str

    KIND = "accepted-commit"
    SETTLED = "settled-commit"  # of the object that says that a manifest lists it
    UNREADABLE = "unreadable"
    DDL = "ddl"
    DIFFERS = "differs"
    ORPHAN = "orphan"
    GIVES_UP = frozenset({ORPHAN, UNREADABLE, DDL, DIFFERS})  # by name: something is in no target for it
    LATE = "late"  # the same, where its commit ts lies below the window
    KEPT_OUT = frozenset({LATE, ORPHAN})  # of its stream by the Pump, which shows it
    ARCHIVE = "archive"  # ``who`` of one that was taken by itself; its object under declared/ follows the manifest

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "node_id": self.node_id,
            "start_ts": int(self.start_ts),
            "commit_ts": int(self.commit_ts),
            "commit_kind": self.kind,
            "reason": self.reason,
            "who": self.who,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            node_id=strict.text(data["node_id"]),
            start_ts=Tso(strict.integer(data["start_ts"])),
            commit_ts=Tso(strict.integer(data["commit_ts"])),
            kind=strict.text(data["commit_kind"]),
            reason=strict.text(data["reason"]),
            who=strict.text(data["who"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Window (start, end]. ``previous`` is the sha256 of the manifest before it, or of genesis.json."""

    cluster_id: int
    attempt: str
    start: Tso
    planned_end: Tso
    end: Tso
    fence: Tso
    previous: str
    pumps: tuple[PumpEntry, ...]
    segments: tuple[SegmentEntry, ...]
    duplicates: tuple[Duplicate, ...] = ()
    ddl: DdlEntry | None = None
    declared: tuple[Declaration, ...] = ()
    accepted: tuple[AcceptedCommit, ...] = ()
    # Whether TiDB said that it skips binlogs, losing them where no Pump can see it; None = nobody could be asked.
    binlog_skipped: bool | None = None
    sha256: str = ""  # of the bytes as stored; not a field of the object

    @property
    def key(self) -> str:
        """Name of the object."""
        return window_key(self.start)

    @property
    def unsynced(self) -> tuple[str, ...]:
        """Pumps that ran without fsync: what they answered may have been lost with the power."""
        return tuple(each.node_id for each in self.pumps if not each.sync_log)

    def pump(self, node_id: str) -> PumpEntry | None:
        """Entry of one Pump."""
        return next((each for each in self.pumps if each.node_id == node_id), None)

    def dropped(self, node_id: str) -> tuple[Duplicate, ...]:
        """Transactions that are not to be read from this Pump's segments."""
        left_out = tuple(
            Duplicate(start_ts=each.start_ts, commit_ts=each.commit_ts, keep="", drop=(node_id,))
            for each in self.accepted
            if each.kind == AcceptedCommit.UNREADABLE and each.node_id == node_id
        )
        return tuple(each for each in self.duplicates if node_id in each.drop) + left_out

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(
            KIND,
            {
                "cluster_id": self.cluster_id,
                "attempt": self.attempt,
                "start": int(self.start),
                "planned_end": int(self.planned_end),
                "end": int(self.end),
                "fence": int(self.fence),
                "previous": self.previous,
                "unsynced": list(self.unsynced),
                "binlog_skipped": self.binlog_skipped,
                "pumps": [each.to_dict() for each in self.pumps],
                "segments": [each.to_dict() for each in self.segments],
                "duplicates": [each.to_dict() for each in self.duplicates],
                "ddl": None if self.ddl is None else self.ddl.to_dict(),
                "declared": [each.to_dict() for each in self.declared],
                "accepted": [each.to_dict() for each in self.accepted],
            },
        )

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Manifest:
        """Read a stored manifest; BadManifest."""

        def read(value: dict[str, Any]) -> Manifest:
            return cls(
                cluster_id=strict.integer(value["cluster_id"], high=strict.MAX_UINT64),
                attempt=strict.text(value["attempt"]),
                start=Tso(strict.integer(value["start"])),
                planned_end=Tso(strict.integer(value["planned_end"])),
                end=Tso(strict.integer(value["end"])),
                fence=Tso(strict.integer(value["fence"])),
                previous=strict.text(value["previous"]),
                pumps=tuple(PumpEntry.from_dict(each) for each in value["pumps"]),
                segments=tuple(SegmentEntry.from_dict(each) for each in value["segments"]),
                duplicates=tuple(Duplicate.from_dict(each) for each in value["duplicates"]),
                ddl=None if value["ddl"] is None else DdlEntry.from_dict(value["ddl"]),
                declared=tuple(Declaration.from_dict(each) for each in value["declared"]),
                accepted=tuple(AcceptedCommit.from_dict(each) for each in value["accepted"]),
                binlog_skipped=None if value["binlog_skipped"] is None else strict.boolean(value["binlog_skipped"]),
                sha256=sha256(data),
            )

        manifest = parse(key, data, KIND, read)
        if manifest.key != key:
            raise _broken(key, f"holds the window that begins at {manifest.start}", "name")
        if not manifest.start < manifest.end <= manifest.planned_end < manifest.fence:
            raise _broken(key, "has bounds that are not start < end <= planned end < fence", "bounds")
        return manifest


def check_link(manifest: Manifest, *, cluster_id: int, end: Tso, digest: str) -> None:
    """BadManifest unless the manifest continues an archive that ends at ``end`` with an object of that digest."""
    if manifest.cluster_id != cluster_id:
        raise _broken(manifest.key, f"belongs to cluster {manifest.cluster_id}, not {cluster_id}", "cluster")
    if manifest.start > end:
        missing = window_key(end)
        raise BadManifest(
            f"{missing} is missing: the one before ends at {end}, the next is {manifest.key}: a gap",
            hint="put it back from a copy of the archive",
            path=missing,
            offset=0,
            reason="gap",
        )
    if manifest.start < end:
        raise _broken(manifest.key, f"begins at {manifest.start}, the one before ends at {end}: an overlap", "overlap")
    if manifest.previous != digest:
        raise _broken(
            manifest.key, f"does not chain: it was written after {manifest.previous}, before it lies {digest}", "chain"
        )


def check_chain(manifests: Iterable[Manifest], *, cluster_id: int, start: Tso, digest: str) -> None:
    """BadManifest unless the manifests chain from genesis (``start``, ``digest``) without gap or overlap."""
    end = start
    for manifest in manifests:
        check_link(manifest, cluster_id=cluster_id, end=end, digest=digest)
        end, digest = manifest.end, manifest.sha256


def _broken(key: str, what: str, reason: str) -> BadManifest:
    return BadManifest(
        f"{key} {what}",
        hint=LISTS_ALL,
        path=key,
        offset=0,
        reason=reason,
    )
