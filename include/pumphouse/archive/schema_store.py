"""The schema timeline at rest, and what is folded from it (docs/formats.md, "Schema").

What is stored at a window's end is every DDL job up to there, by table (`pumphouse.archive.schema_parts`). It is made
from manifests alone, so two runs at one archive end make the same, and a lost object is made again. A document is
written only where a window brought DDL.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice

from pumphouse.archive.archive import Archive
from pumphouse.archive.ddl import read_groups
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.manifest import DdlEntry
from pumphouse.archive.schema_parts import (
    DOCUMENTS,
    REMEDY,
    RULES,
    File,
    Part,
    SchemaParts,
    all_jobs,
    extended,
    jobs_of_tables,
    parts_key,
    taking_in,
)
from pumphouse.archive.schema_stages import DdlRun, FoldPlan, FoldSummary, Sizes, plan_fold, tasks_of
from pumphouse.archive.standing import timed_jobs, whole_history
from pumphouse.archive.windows import Windows
from pumphouse.errors import BadManifest, ConfigError, ObjectExists
from pumphouse.model.tso import MAX_TSO, Tso, show
from pumphouse.schema.actions import Reach
from pumphouse.schema.related import touched
from pumphouse.schema.sequence import parse_setval
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob


@dataclass(frozen=True, slots=True)
class Folded:
    """A timeline and what it was folded from: the ``stored`` jobs it begins with, the ``jobs`` that came after."""

    timeline: Timeline
    stored: SchemaParts | None
    jobs: tuple[TimedJob, ...]

    @property
    def schema_version(self) -> int:
        """Of the newest job."""
        return max(self.timeline.schema_version, 0 if self.stored is None else self.stored.schema_version)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did: ``jobs`` new ones, of ``tables``, were folded, ``key`` was written ('' = nothing new)."""

    upto: Tso
    jobs: int
    tables: int
    schema_version: int
    key: str


def pending_jobs(archive: Archive, upto: Tso | None = None, *, enough: int = sys.maxsize) -> int:
    """How many DDL jobs a rebuild would have to fold; 0 = it needs no Spark session.

    They are counted until there are ``enough``. With nothing stored it is all binlogs and jobs that manifests count.
    """
    at, windows, end = _seen(archive, upto)
    if at is None:
        past = sum(each.jobs for each in archive.range().ddl)
        return max(1, archive.genesis().ddl.jobs + past + _count(windows))
    jobs = (job for each in windows.ddls() for _, some in read_groups(archive.store, each) for job in some)
    return sum(1 for _ in islice(timed_jobs(job for job in jobs if at < job.commit_ts <= end), enough))


def rebuild(archive: Archive, upto: Tso | None = None, *, anew: bool = False) -> Rebuilt:
    """Bring schema/ up to date up to ``upto`` (None = the archive's end); of what is stored that reads what it needs.

    ``anew``: a document is written there also where nothing is new.

    Raises:
        ConfigError: the archive does not cover ``upto``.
        HistoryUnavailable: a job of genesis may belong to a window that is not in the archive yet; run again.
        UnknownDdl, SchemaError: the jobs make no schema.
    """
    at, windows, end = _seen(archive, upto)
    folded = _fold_new(archive, windows, at, end)
    summary = FoldSummary.of(folded.timeline, archive.genesis().ts if at is None else at)
    kept = folded.stored is not None and not folded.jobs and (not anew or folded.stored.upto == end)
    kept = kept or not _ends_window(archive, windows, end)
    key = "" if kept else _store(archive, windows, folded, summary, end)
    return Rebuilt(end, len(folded.jobs), summary.tables, folded.schema_version, key)


def timeline_of(archive: Archive, upto: Tso | None = None) -> Timeline:
    """The whole timeline up to ``upto`` (None = the archive's end); nothing is stored. Raises as `rebuild` does."""
    at, windows, end = _seen(archive, upto)
    return fold_schema(archive, windows, at, end).timeline


def _fold_new(archive: Archive, windows: Windows, at: Tso | None, upto: Tso) -> Folded:
    """Like `fold_schema`; of tables that the new jobs do not touch it may know nothing."""
    if at is not None:
        stored = read_stored(archive, at, windows)
        found = _fold_some(archive, stored, tuple(timed_jobs(archive.jobs(windows, at, upto))))
        if found is not None:
            return found
    return fold_schema(archive, windows, at, upto)


def fold_schema(archive: Archive, windows: Windows, at: Tso | None, upto: Tso | None = None) -> Folded:
    """Fold what is stored at ``at`` (None = nothing is) and the jobs of these windows, which begin there or earlier.

    ``upto`` None = the end of the windows. Nothing else is read: neither a later window nor another stored object.
    """
    genesis = archive.genesis()
    end = windows.end if windows else genesis.ts
    if at is not None and at > end:
        raise BadManifest(
            f"{parts_key(at)} was made from windows that are not there: the archive ends at {show(end)}",
            hint="put the newest windows back; pumphouse archive verify says what is there",
            path=parts_key(at),
            reason="end",
        )
    upto = end if upto is None else upto
    if at is None:
        stored, (known, fresh) = None, whole_history(archive, windows, upto)
    else:
        stored = read_stored(archive, at, windows)
        known, fresh = all_jobs(archive.store, stored), list(timed_jobs(archive.jobs(windows, at, upto)))
    return Folded(Timeline.empty().fold(known).fold(fresh), stored, tuple(fresh))


def fold_tables(archive: Archive, windows: Windows, at: Tso | None) -> Timeline:
    """Like `fold_schema` up to the windows' end, of the tables that change in them, or have changes, and no others.

    Every database is there, and each sequence where one moved. Files of other tables are not read, unless a DDL of the
    windows touches tables that it does not name: then it is the whole timeline.
    """
    if at is not None:
        stored, archived = read_stored(archive, at, windows), archive.jobs(windows, Tso(0), MAX_TSO)
        more = {*windows.table_ids()}
        if any(each.job is None and parse_setval(each.commit_ts, each.query) is not None for each in archived):
            more |= {*stored.sequences}
        found = _fold_some(archive, stored, tuple(timed_jobs(archived)), more)
        if found is not None:
            return found.timeline
    return fold_schema(archive, windows, at).timeline


def _fold_some(
    archive: Archive, stored: SchemaParts, jobs: Sequence[TimedJob], more: Collection[int] = ()
) -> Folded | None:
    """Fold jobs with what is stored of the tables that they touch, and of ``more``; None = all of it is needed."""
    tables = _touched(jobs, stored)
    if tables is None:
        return None
    known = jobs_of_tables(archive.store, stored, {*tables, *more}) if jobs or more else ()
    fresh = tuple(each for each in jobs if each.commit_ts > stored.upto)
    return Folded(Timeline.empty().fold(known).fold(fresh), stored, fresh)


def _touched(jobs: Sequence[TimedJob], stored: SchemaParts) -> set[int] | None:
    """Ids of the tables that jobs touch; None where these need more of what is stored than the jobs of such tables."""
    if not stored.by_table or not stored.precedes(each for each in jobs if each.commit_ts > stored.upto):
        return None
    tables: set[int] = set()
    for found in (touched(each.job) for each in jobs):
        if found.reach in {Reach.WHOLE_DATABASE, Reach.UNTOLD}:
            return None
        if found.reach is Reach.REPLACED:
            tables |= {*stored.views}
        tables |= {each for tie in found.ties for each in tie.tables}
    return tables


@dataclass(frozen=True, slots=True)
class WholeFold:
    """A rebuild that folds the whole history, of genesis and windows, in the stages of `schema_stages`.

    Jobs of windows after ``since`` are new; ``stored`` parts stay where they hold what the fold would give.
    ``past``: the jobs of windows that are gone.
    """

    archive: Archive
    past: tuple[DdlEntry, ...]
    windows: Windows
    upto: Tso
    since: Tso
    stored: SchemaParts | None

    def tasks(self, readers: int, sizes: Sizes) -> list[list[DdlRun]]:
        """What is read, by task; an object by no more than so many."""
        brought = [*self.past, *self.windows.ddls()]
        return tasks_of(self.archive.genesis().ddl, brought, readers=readers, jobs=sizes.task_jobs)

    def plan(self, surveys: Sequence[tuple[bytes, bytes]], sizes: Sizes) -> FoldPlan:
        """`plan_fold` of what the tasks found."""
        return plan_fold(
            surveys,
            genesis_ts=self.archive.genesis().ts,
            end=self.windows.end if self.windows else self.archive.genesis().ts,
            upto=self.upto,
            since=self.since,
            sizes=sizes,
        )

    def left(self, plan: FoldPlan) -> list[Part]:
        """Stored parts that stay: what is folded is written from where they end."""
        stored = self.stored
        if stored is None or stored.rules != RULES or plan.oldest_fresh <= stored.schema_version:
            return []
        return taking_in(stored.parts, plan.jobs_above(stored.schema_version))[0]

    def done(self, plan: FoldPlan, summaries: Sequence[FoldSummary] = (), files: Sequence[File] = ()) -> Rebuilt:
        """Write the document; ``files`` in order of their ranges. Nothing is written where no job is new."""
        tables = sum(each.tables for each in summaries)
        if self.stored is not None and not plan.fresh:
            return Rebuilt(self.upto, 0, 0, plan.upto, "")
        left = self.left(plan)
        begin = left[-1].upto if left else 0
        new = Part(after=begin, upto=plan.upto, jobs=plan.jobs_above(begin), files=tuple(files))
        key = _write_document(
            self.archive,
            self.windows,
            self.upto,
            summaries,
            (*left, new) if new.jobs else tuple(left),
        )
        return Rebuilt(self.upto, plan.fresh, tables, plan.upto, key)


def whole_fold(archive: Archive, upto: Tso | None = None, *, few: int) -> WholeFold | None:
    """The fold of the whole history where a rebuild needs it, or has more than ``few`` new jobs.

    None = `rebuild` does it in one process: what is stored tells tables apart, nothing is new, there are few jobs at
    all, or ``upto`` lies within a window, where nothing is stored.
    """
    at, windows, end = _seen(archive, upto)
    genesis = archive.genesis()
    stored = None if at is None else read_stored(archive, at, windows)
    if not _ends_window(archive, windows, end):
        return None
    if stored is not None and _count(windows.between(stored.upto, MAX_TSO)) <= few:
        fresh = list(timed_jobs(archive.jobs(windows, stored.upto, end)))
        if not fresh or _touched(fresh, stored) is not None:
            return None
    every, past = archive.windows(genesis.ts), archive.range().ddl
    if genesis.ddl.jobs + sum(each.jobs for each in past) + _count(every) <= few:
        return None
    return WholeFold(archive, past, every, end, genesis.ts if stored is None else stored.upto, stored)


def _count(windows: Windows) -> int:
    """DDL binlogs of windows."""
    return sum(each.jobs for each in windows.ddls())


def newest_schema(archive: Archive, upto: Tso | None = None) -> Tso | None:
    """Ts of the newest stored schema at or below ``upto`` (None = of all); None when there is none.

    One from before the archive's range counts no more: nothing that is kept says where it comes from.
    """
    start = archive.range().start
    named = (re.fullmatch(rf"{DOCUMENTS}(\d{{20}})\.json", each.key) for each in archive.store.list(DOCUMENTS))
    found = [Tso(int(name.group(1))) for name in named if name]
    return max((each for each in found if each >= start and (upto is None or each <= upto)), default=None)


def _ends_window(archive: Archive, windows: Windows, ts: Tso) -> bool:
    """Only at a window's end is a name's content the same for every writer, whatever came after."""
    return ts == archive.genesis().ts or windows.digest_at(ts) is not None


def _store(archive: Archive, windows: Windows, folded: Folded, summary: FoldSummary, upto: Tso) -> str:
    """Write what is new of a fold, and the document that names all of it; returns the document's name."""
    before, summaries = folded.stored, [summary]
    parts: tuple[Part, ...] = ()
    if before is not None and before.rules == RULES and before.precedes(folded.jobs):
        parts = before.parts
        summaries.append(FoldSummary(whole=False, sequences=before.sequences, views=before.views, tables=0))
    return _write_document(archive, windows, upto, summaries, extended(archive.store, parts, folded.timeline))


def _write_document(
    archive: Archive,
    windows: Windows,
    upto: Tso,
    summaries: Sequence[FoldSummary],
    parts: tuple[Part, ...],
) -> str:
    document = SchemaParts(
        upto=upto,
        genesis=archive.genesis().sha256,
        window=_window_digest(archive.genesis(), windows, upto),
        rules=RULES,
        whole=any(each.whole for each in summaries),
        sequences=tuple(sorted({table for each in summaries for table in each.sequences})),
        views=tuple(sorted({table for each in summaries for table in each.views})),
        parts=parts,
    )
    try:
        archive.store.put_if_absent(document.key, document.to_json())
    except ObjectExists:
        # Another run, or our own retried put: what is there says the same, or its digest would not have been made.
        found = SchemaParts.from_json(document.key, archive.store.get(document.key))
        _check_origin(document.key, found, document.genesis, document.window)
    return document.key


def _window_digest(genesis: Genesis, windows: Windows, ts: Tso) -> str:
    """Digest of the manifest that ends at ``ts`` (of genesis where that is its ts), as these windows chain to it."""
    if ts == genesis.ts:
        return genesis.sha256
    if windows and windows.start == ts:
        return windows.previous
    return windows.digest_at(ts) or "no window ends there"


def read_stored(archive: Archive, upto: Tso, windows: Windows) -> SchemaParts:
    """What is stored at ``upto``, made from the window that ends there; BadManifest."""
    genesis, key = archive.genesis(), parts_key(upto)
    found = SchemaParts.from_json(key, archive.store.get(key))
    _check_origin(key, found, genesis.sha256, _window_digest(genesis, windows, upto))
    return found


def _check_origin(key: str, found: SchemaParts, genesis: str, window: str) -> None:
    if found.genesis != genesis:
        raise BadManifest(f"{key} was made from another genesis", hint=REMEDY, path=key, reason="genesis")
    if found.window != window:
        raise BadManifest(f"{key} was made from another window", hint=REMEDY, path=key, reason="window")


def _seen(archive: Archive, upto: Tso | None) -> tuple[Tso | None, Windows, Tso]:
    """Newest stored schema at or below ``upto``, the windows from there on, and ``upto`` (None = where they end)."""
    kept = archive.range()
    at = newest_schema(archive, upto)
    windows = archive.windows(kept.start if at is None else at)
    end = windows.end if windows else kept.start
    if upto is not None and not kept.start <= upto <= end:
        raise ConfigError(
            f"the archive covers {show(kept.start)} to {show(end)}, asked for {show(upto)}{kept.aside(upto)}",
            hint="pumphouse archive ls",
        )
    return at, windows, end if upto is None else upto
