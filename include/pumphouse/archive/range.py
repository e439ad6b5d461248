"""The range document: from when on the archive is kept, by which dump, and which moments are marked (row A5).

Each version is an object of its own, ``range/<number>.json``, put once: of several writers of one number one wins, and
the others look again. The newest counts. It names what the chain of windows hangs on there, as genesis does where the
chain begins, and the DDL jobs of the windows that are gone. Its start never goes back. Whatever is deleted is deleted
after it has moved (`pumphouse.archive.sweep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pumphouse.archive import layout
from pumphouse.archive.base import Base
from pumphouse.archive.ddl import ArchivedJob, read_jobs
from pumphouse.archive.document import dump, parse, sha256
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.gone import RANGE_KIND, told
from pumphouse.archive.losses import Losses
from pumphouse.archive.manifest import DdlEntry, PumpEntry
from pumphouse.archive.publish import put_once
from pumphouse.errors import BadManifest, UsageError
from pumphouse.model.record import ASIDE, UNSAID, Named, Record, Uint64, Within
from pumphouse.model.strict import MAX_INT64
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Record):
    """A moment that stays restorable until somebody takes the mark away."""

    ts: Tso
    reason: str
    who: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestBase(Record):
    """The oldest base that is kept: the moments that can be restored begin at ``ts``. ``begun`` names it.

    ``folded``: it is no dump.
    """

    begun: Tso
    ts: Tso
    sha256: str
    folded: Annotated[bool, UNSAID] = False

    @classmethod
    def of(cls, base: Base) -> Self:
        """What the document says of a dump."""
        return cls(begun=base.begun, ts=base.ts, sha256=base.sha256, folded=base.folded is not None)

    @property
    def key(self) -> str:
        """Key of the document of a later dump, or of a folded base."""
        return layout.folded_document(self.begun) if self.folded else layout.base_document(self.begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Record):
    """What is kept. Number 0 stands for no document: everything from genesis on.

    Args:
        cluster_id: of the archive.
        genesis: digest of its ``genesis.json``.
        number: of this version, from 1 on.
        previous: digest of the version before; '' of the first.
        start: the first window that is kept begins here.
        window: digest of what its manifest hangs on: of the manifest that ended here, or of genesis.
        pumps: as that manifest, or genesis, lists them.
        ddl: the DDL binlogs of the windows up to ``start``, in commit order; those of genesis have its object.
        base: the oldest dump that is kept; None = nothing has expired.
        losses: what the windows up to ``start`` lacked and a base that is kept lacks, too: it descends from a dump
            before them.
        who: who made this version.
        at_ms: and when, Unix time.
        expired_by: who let go of what lies before ``start``, '' = nobody.
        expired_ms: and when.
        marks: by moment.
    """

    cluster_id: Uint64
    genesis: Annotated[str, Named("genesis_sha256")]
    number: Annotated[int, Within(1, MAX_INT64)]
    previous: str
    start: Tso
    window: Annotated[str, Named("window_sha256")]
    pumps: tuple[PumpEntry, ...]
    ddl: tuple[DdlEntry, ...] = ()
    base: OldestBase | None = None
    losses: Annotated[Losses, UNSAID] = Losses()
    who: str = ""
    at_ms: int = 0
    expired_by: str = ""
    expired_ms: int = 0
    marks: tuple[Mark, ...] = ()
    sha256: Annotated[str, ASIDE] = ""  # of the bytes as stored

    @classmethod
    def whole(cls, genesis: Genesis) -> Self:
        """An archive that has no range document."""
        return cls(
            cluster_id=genesis.cluster_id,
            genesis=genesis.sha256,
            number=0,
            previous="",
            start=genesis.ts,
            window=genesis.sha256,
            pumps=genesis.pumps,
        )

    @property
    def key(self) -> str:
        """Its name in the archive."""
        return layout.range_key(self.number)

    def has(self, base: Base) -> bool:
        """Whether a dump is kept: it is not older than the oldest one, and the log that it needs is there."""
        return self.base is None or (base.ts >= self.base.ts and base.low >= self.start)

    def told(self) -> str:
        """What is not there any more and why, for an error; '' where nothing has expired."""
        if self.base is None:
            return ""
        return told(self.base.ts, self.start, self.expired_by, self.expired_ms)

    def aside(self, ts: Tso) -> str:
        """The same behind a sentence that refuses a moment; '' where that lies behind ``start``."""
        return f"; {self.told()}" if self.base is not None and ts < self.start else ""

    def next(self, *, who: str, at_ms: int, **changed: Any) -> Range:
        """The version after this one."""
        return replace(self, number=self.number + 1, previous=self.sha256, who=who, at_ms=at_ms, sha256="", **changed)

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(RANGE_KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes, genesis: Genesis) -> Range:
        """Read the stored object; BadManifest, also when it is another archive's."""
        found = parse(key, data, RANGE_KIND, lambda value: cls.read(value, sha256=sha256(data)))
        if key != found.key or (found.cluster_id, found.genesis) != (genesis.cluster_id, genesis.sha256):
            raise BadManifest(f"{key} is of another archive or another version", path=key, offset=0, reason="archive")
        if found.start < genesis.ts or (found.base is None and found.start != genesis.ts):
            raise BadManifest(f"{key} begins where nothing is kept", path=key, offset=0, reason="range")
        return found


def read_range(store: ObjectStore, genesis: Genesis) -> Range:
    """The newest version; BadManifest when it is damaged."""
    newest = max((each.key for each in store.list(layout.RANGE)), default=None)
    return Range.whole(genesis) if newest is None else Range.from_json(newest, store.get(newest), genesis)


def put_range(store: ObjectStore, found: Range) -> None:
    """Make it the one that counts; ManifestConflict when another writer has put this number."""
    data = found.to_json()
    put_once(store, found.key, data, lambda there: there == data)


def expired_jobs(store: ObjectStore, found: Range, upto: Tso) -> list[ArchivedJob]:
    """DDL binlogs of windows that are gone, with commit ts up to ``upto``, in commit order; BadSegment."""
    return [job for entry in found.ddl for job in read_jobs(store, entry) if job.commit_ts <= upto]


def with_mark(found: Range, mark: Mark, end: Tso) -> Range:
    """The version that has this mark too, in the place of an earlier one of its moment; UsageError.

    Args:
        found: the newest version.
        mark: what is added.
        end: of the archive.
    """
    if not mark.reason.strip():
        raise UsageError("a moment is marked with a reason", hint="--reason 'before the migration of 2026-11-21'")
    if found.base is not None and mark.ts < found.base.ts:
        raise UsageError(f"{show(mark.ts)} cannot be marked: {found.told()}", hint="pumphouse archive ls")
    if mark.ts > end:
        raise UsageError(
            f"{show(mark.ts)} cannot be marked: the archive ends at {show(end)}",
            hint="`pumphouse snapshot` extends it",
        )
    return found.next(who=mark.who, at_ms=mark.at_ms, marks=_by_moment([*_others(found, mark.ts), mark]))


def without_mark(found: Range, ts: Tso, *, who: str, at_ms: int) -> Range:
    """The version that lacks the mark of this moment; UsageError where there is none."""
    others = _others(found, ts)
    if len(others) == len(found.marks):
        there = ", ".join(show(each.ts) for each in found.marks) or "none"
        raise UsageError(f"{show(ts)} is not marked", hint=f"marked are: {there}")
    return found.next(who=who, at_ms=at_ms, marks=_by_moment(others))


def _others(found: Range, ts: Tso) -> list[Mark]:
    return [each for each in found.marks if each.ts != ts]


def _by_moment(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda each: each.ts))
