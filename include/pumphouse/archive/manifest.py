"""Manifest of one window: the object whose appearance makes the window visible (docs/formats.md, "Manifest")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pumphouse.archive.document import LISTS_ALL, dump, parse, sha256
from pumphouse.archive.layout import window_key
from pumphouse.errors import BadManifest
from pumphouse.model.node import Replaced
from pumphouse.model.record import ASIDE, LATER, Int64, Named, Record, Uint64
from pumphouse.model.tso import Tso

KIND = "window"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStat(Record):
    """What a segment holds of one table, for pruning."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry(Record):
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
    tables: dict[Int64, TableStat] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBinlog(Record):
    """Last binlog pulled from a Go Pump, which has no incarnation: it must come again at the next pull."""

    commit_ts: Tso
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpEntry(Record):
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
    replaced: Annotated[tuple[Replaced, ...], LATER] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Record):
    """One transaction that several Pumps have: it is read from ``keep`` alone, never from those in ``drop``."""

    start_ts: Tso
    commit_ts: Tso
    keep: str
    drop: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEntry(Record):
    """The object with the DDL jobs of a window, or of all history before genesis."""

    key: str
    sha256: str
    bytes: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Record):
    """``archive declare-lost``: what this Pump had in (from_ts, to_ts] is given up, by name and with a reason."""

    node_id: str
    incarnation: str
    from_ts: Tso
    to_ts: Tso
    reason: str
    who: str

    KIND = "declared-lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedCommit(Record):
    """What would hold the window and was settled: by the archive itself (``reason`` says where it has it), or by name.

    ``kind``: ``late`` (taken), ``orphan`` (not to be had), ``unreadable`` (archived raw, and left out of what is read),
    ``ddl`` (goes without its job), ``differs`` (of a transaction that Pumps have with different contents, this one's).
    """

    node_id: str
    start_ts: Tso
    commit_ts: Tso
    kind: Annotated[str, Named("commit_kind")]  # late | orphan | unreadable | ddl | differs
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Record):
    """Window (start, end]. ``previous`` is the sha256 of the manifest before it, or of genesis.json."""

    cluster_id: Uint64
    attempt: str
    start: Tso
    planned_end: Tso
    end: Tso
    fence: Tso
    previous: str
    # Whether TiDB said that it skips binlogs, losing them where no Pump can see it; None = nobody could be asked.
    binlog_skipped: bool | None = None
    pumps: tuple[PumpEntry, ...]
    segments: tuple[SegmentEntry, ...]
    duplicates: tuple[Duplicate, ...] = ()
    ddl: DdlEntry | None = None
    declared: tuple[Declaration, ...] = ()
    accepted: tuple[AcceptedCommit, ...] = ()
    sha256: Annotated[str, ASIDE] = ""  # of the bytes as stored

    BEHIND: ClassVar = {"unsynced": "previous"}

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
        return dump(KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Manifest:
        """Read a stored manifest; BadManifest."""
        manifest = parse(key, data, KIND, lambda value: cls.read(value, sha256=sha256(data)))
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
