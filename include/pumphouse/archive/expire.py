"""``archive expire``: the range moves, then what nothing that is kept names is deleted (rows A5, O1).

Order: look; hold what is kept against what is there; write what the next range names; put the range; delete. A run that
is killed leaves either the old range, and objects that nobody names, or the new one, and objects below it: the next run
deletes both. Of two runs at once one puts the range; the other looks again. Nothing is deleted before the range is put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import BaseBegun
from pumphouse.archive.ddl import ArchivedJob, read_groups, write_jobs
from pumphouse.archive.declare import default_who
from pumphouse.archive.drills import Drill
from pumphouse.archive.manifest import DdlEntry
from pumphouse.archive.proofs import Proof
from pumphouse.archive.range import OldestBase, put_range
from pumphouse.archive.retention import Expiry, Hold, Policy, plan_expiry
from pumphouse.archive.schema_store import newest_schema, rebuild
from pumphouse.archive.sweep import (
    ORPHAN,
    Kept,
    Waste,
    begun_and_live,
    find_waste,
    list_objects,
    look_at_kept,
    remove,
    require_whole,
    store_now,
)
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.archive.windows import Windows
from pumphouse.errors import BadManifest, BinlogError, ManifestConflict
from pumphouse.model.tso import MAX_TSO, Tso, compose, show
from pumphouse.objectstore.base import ObjectInfo
from pumphouse.settings import DumpSettings, RetentionSettings

log = structlog.get_logger()

_TRIES = 5
_SHOWN = 1000  # orphans, by name

Tick = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireReport:
    """What expired, or would expire.

    Args:
        dry_run: nothing was done.
        policy: what is wished, in words.
        restorable_from: the first moment that can be restored then; None = none can.
        restorable_to: the last one.
        start: windows are kept from here on then.
        bases: dumps that are kept, by the moment that each is exact from.
        bases_gone: dumps that go.
        windows_gone: how many windows go.
        held: what holds more, a line each.
        why_nothing: why the range does not move; '' = it does.
        objects: how many go, by what they are of.
        bytes: theirs, by what they are of.
        orphans: names of those that no document ever named; some of them at most.
    """

    dry_run: bool
    policy: str
    restorable_from: Tso | None
    restorable_to: Tso
    start: Tso
    bases: tuple[Tso, ...]
    bases_gone: tuple[Tso, ...]
    windows_gone: int
    held: tuple[str, ...]
    why_nothing: str
    objects: dict[str, int]
    bytes: dict[str, int]
    orphans: tuple[str, ...]

    @property
    def moves(self) -> bool:
        """Whether the range moves."""
        return bool(self.bases_gone or self.windows_gone)

    @property
    def count(self) -> int:
        """How many objects go."""
        return sum(self.objects.values())

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How old, in seconds, is old: of what nobody names, and of a dump that nobody goes on with."""

    grace_s: float = RetentionSettings().grace_s
    resume_s: float = DumpSettings().resume_s


def expire(
    archive: Archive,
    ages: Ages,
    policy: Policy,
    holds: Sequence[Hold],
    *,
    now: Tso,
    orphans: bool = True,
    dry_run: bool = False,
    shown: ExpireReport | None = None,
    who: str = "",
    tick: Tick = lambda _done, _total: None,
) -> ExpireReport:
    """Let go of what the policy does not keep and nothing needs.

    Args:
        archive: which one.
        ages: how old is old.
        policy: how much is kept.
        holds: of what lies outside of the archive, targets above all.
        now: the cluster's time; days count back from it, or from the store's where that is earlier.
        orphans: what killed tasks left goes, too.
        dry_run: only say what would go.
        shown: of the dry run that somebody has agreed to: the range moves no further.
        who: for the record; '' = this user.
        tick: called with (deleted, of so many).

    Raises:
        BadManifest, BadSegment: what is kept is not whole; then nothing expires.
        ManifestConflict: others moved the range, or began dumps, again and again; or more would go than was shown.
    """
    archive = archive.by_manifests()
    for turn in range(1, _TRIES + 1):
        seen = archive.range().number
        try:
            run = _Run(archive, ages)
            expiry = _moved(run, policy, holds, now, shown=shown, dry_run=dry_run, who=who or default_who())
            break
        except _MoreThanShown:
            raise
        except BinlogError as error:
            # Another run, or a mark, moved it meanwhile, and may have deleted what this one was about to read.
            if turn == _TRIES or (archive.range().number == seen and not isinstance(error, _Begun)):
                raise
    # What was published before the range was put may name parts of what goes; what comes later sees the range.
    kept = _kept_after(run, expiry) if dry_run and expiry.moves else look_at_kept(archive, run.live)
    waste = [each for each in run.waste(kept) if orphans or each.why != ORPHAN]
    report = _report(run.view, expiry, policy, waste, dry_run=dry_run)
    if not dry_run:
        remove(archive, waste, tick)
        if waste or expiry.moves:
            log.info("archive_expired", start=int(report.start), objects=report.objects, bytes=report.bytes)
    return report


def delete_orphans(archive: Archive, ages: Ages, *, tick: Tick = lambda _done, _total: None) -> tuple[Waste, ...]:
    """Delete what no document names and no task that runs can name any more; nothing else, and the range stays.

    BadManifest: what is kept is not whole.
    """
    archive = archive.by_manifests()
    run = _Run(archive, ages)
    kept = look_at_kept(archive, run.live)
    require_whole(archive.store, run.listed, kept.named(archive))
    waste = tuple(each for each in run.waste(kept) if each.why == ORPHAN)
    remove(archive, waste, tick)
    if waste:
        log.info("orphans_deleted", objects=len(waste), bytes=sum(each.info.size for each in waste))
    return waste


class _Begun(ManifestConflict):
    """A dump was begun or ended between the plan and the put."""


class _MoreThanShown(ManifestConflict):
    """The plan goes further than what somebody has agreed to."""


def _moved(
    run: _Run,
    policy: Policy,
    holds: Sequence[Hold],
    now: Tso,
    *,
    shown: ExpireReport | None,
    dry_run: bool,
    who: str,
) -> Expiry:
    """What expires; the range has moved then."""
    begun = run.live()
    expiry = plan_expiry(run.view, policy, [*holds, *run.holds(begun)], run.counted_from(now))
    if not expiry.moves:
        return expiry
    if shown is not None and not _within(expiry, shown):
        raise _MoreThanShown(
            "more would expire by now than was shown: a dump or a target went on meanwhile; nothing was deleted",
            hint="look again: pumphouse archive expire --dry-run",
        )
    require_whole(run.archive.store, run.listed, _kept_after(run, expiry).named(run.archive))
    if not dry_run:
        _move(run, expiry, begun, who)
    return expiry


def _within(expiry: Expiry, shown: ExpireReport) -> bool:
    oldest = None if expiry.base is None else expiry.base.ts
    if shown.restorable_from is None or oldest is None:
        return shown.restorable_from == oldest
    return shown.moves and expiry.start <= shown.start and oldest <= shown.restorable_from


class _Run:
    """One look: what is listed, then what is kept; BadManifest where the dump is lost that the range begins from."""

    def __init__(self, archive: Archive, ages: Ages) -> None:
        self.archive = archive
        self._grace_s, self._resume_s = ages.grace_s, ages.resume_s
        self._live_s = max(self._grace_s, self._resume_s)
        self._now_s = store_now(archive)
        self.listed = list_objects(archive)
        self.view = read_view(archive)
        oldest = self.view.kept.base
        if oldest is not None and oldest not in (OldestBase.of(base) for base in self.view.bases):
            key = oldest.key
            raise BadManifest(
                f"{key} is not there as {self.view.kept.key} names it, and the range begins from it: nothing expires",
                hint="put it back from a copy of the archive",
                path=key,
                offset=0,
                reason="missing",
            )

    @property
    def at_ms(self) -> int:
        """When it was."""
        return int(self._now_s * 1000)

    def counted_from(self, now: Tso) -> Tso:
        """Days count back from here: a host with a wrong clock may have moved the cluster's time ahead for good."""
        return Tso(min(now, compose(self.at_ms)))

    def waste(self, kept: Kept) -> list[Waste]:
        """What may go."""
        return find_waste(
            self.archive, self.listed, kept, now_s=self._now_s, grace_s=self._grace_s, resume_s=self._resume_s
        )

    def live(self) -> list[BaseBegun]:
        """Dumps that are under way now."""
        return begun_and_live(self.archive, now_s=self._now_s, for_s=self._live_s)

    def holds(self, begun: Sequence[BaseBegun]) -> Iterator[Hold]:
        """What the archive itself knows to need something; ``begun``: the dumps that are under way."""
        for mark in self.view.kept.marks:
            yield Hold(who="mark", ts=mark.ts, restorable=True, why=f"{show(mark.ts)} ({mark.reason}, {mark.who})")
        yield from self._dumps(begun)
        yield from self._proofs()
        yield from self._drills()

    def _dumps(self, begun: Sequence[BaseBegun]) -> Iterator[Hold]:
        for each in begun:
            who, again = ("fold", f"archive base --at {int(each.low)}") if each.folds else ("dump", "archive dump")
            why = f"that was begun at {show(each.low)} and has not ended"
            hint = f"`pumphouse {again}` ends it; killed, it holds for {self._live_s / 3600:g} h after its last object"
            yield Hold(who=who, ts=each.low, restorable=False, why=why, hint=hint)
            over = next((base for base in self.view.bases if base.begun == each.over), None)
            if over is not None:
                why += ", and takes tables of an earlier base"
                yield Hold(who=who, ts=over.ts, restorable=True, why=why, hint=hint)

    def _proofs(self) -> Iterator[Hold]:
        for each in self._young(layout.PROOFS):
            proof = Proof.from_json(each.key, self.archive.store.get(each.key))
            if proof.ended_ms is None:
                why = f"of {proof.target} at {show(proof.at)}, which has not ended"
                yield Hold(who="proof", ts=proof.base, restorable=True, why=why)

    def _drills(self) -> Iterator[Hold]:
        for each in self._young(layout.DRILLS):
            drill = Drill.from_json(each.key, self.archive.store.get(each.key))
            if drill.ended_ms is None:  # its moment may not be drawn yet: then everything is needed
                why = f"into {drill.into}, which has not ended"
                yield Hold(who="drill", ts=drill.at, restorable=True, why=why)

    def _young(self, prefix: str) -> Iterator[ObjectInfo]:
        """What was put so lately that its writer may still run; one that was killed leaves what looks alike."""
        return (each for each in self.archive.store.list(prefix) if self._now_s - each.put_s <= self._grace_s)


def _kept_after(run: _Run, expiry: Expiry) -> Kept:
    """What is kept when the range has moved; its DDL jobs are those of the range before, until they are written."""
    kept, view = run.view.kept, run.view
    after = expiry.after(kept, kept.ddl, who="", at_ms=0)
    windows = view.windows.between(expiry.start, MAX_TSO)
    later = (each for each in run.archive.every_base() if after.has(each))  # also those that a base of their ts hides
    return Kept(range=after, windows=windows, bases=(*(each for each in expiry.bases if not each.columns), *later))


def _move(run: _Run, expiry: Expiry, begun: Sequence[BaseBegun], who: str) -> None:
    """Write what the next range needs, and put it; ManifestConflict. ``begun``: the dumps that the plan knew of."""
    archive, view = run.archive, run.view
    # HEAD may name an older window, which goes; and a stored schema from before the range counts no more.
    archive.write_head(view.windows.last)
    stored = newest_schema(archive, expiry.start)
    if stored is not None and stored < expiry.start:
        rebuild(archive, expiry.start, anew=True)
    ddl = _joined(archive, view.kept.ddl, expiry.windows_gone)
    moved = expiry.after(view.kept, ddl, who=who, at_ms=run.at_ms)
    if run.live() != list(begun):
        raise _Begun("dumps are begun or end again and again", hint="run again when none does")
    put_range(archive.store, moved)
    log.info(
        "range_moved", number=moved.number, start=int(moved.start), restorable_from=int(expiry.bases[0].ts), who=who
    )


def _joined(archive: Archive, known: Sequence[DdlEntry], gone: Windows) -> tuple[DdlEntry, ...]:
    """The DDL jobs of windows that go, in an object behind those of earlier ones.

    It takes in the objects before it while they have no more jobs than it has: so there are few, and a job is written
    again only into an object at least twice as large.
    """
    fresh = [*gone.ddls()]
    left, jobs = list(known), sum(each.jobs for each in fresh)
    if not jobs:
        return tuple(known)
    while left and left[-1].jobs <= jobs:
        fresh.insert(0, left.pop())
        jobs += fresh[0].jobs

    def every() -> Iterator[ArchivedJob]:
        for entry in fresh:
            for _, some in read_groups(archive.store, entry):
                yield from some

    return (*left, write_jobs(archive.store, layout.expired_ddl_key(layout.attempt_id()), every()))


def _report(
    view: ArchiveView, expiry: Expiry, policy: Policy, waste: Sequence[Waste], *, dry_run: bool
) -> ExpireReport:
    objects: dict[str, int] = {}
    size: dict[str, int] = {}
    for each in waste:
        objects[each.what] = objects.get(each.what, 0) + 1
        size[each.what] = size.get(each.what, 0) + each.info.size
    return ExpireReport(
        dry_run=dry_run,
        policy=str(policy),
        restorable_from=None if expiry.base is None else expiry.base.ts,
        restorable_to=view.end,
        start=expiry.start,
        bases=tuple(base.ts for base in expiry.bases),
        bases_gone=tuple(base.ts for base in expiry.bases_gone),
        windows_gone=len(expiry.windows_gone),
        held=tuple(f"{each}" for each in expiry.held),
        why_nothing=expiry.why_nothing,
        objects=objects,
        bytes=size,
        orphans=tuple(each.info.key for each in waste if each.why == ORPHAN)[:_SHOWN],
    )
