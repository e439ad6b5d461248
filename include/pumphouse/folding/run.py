"""Fold a base and the windows behind it into the next base, in this process: decode once, fold part by part, publish.

In memory are the entries that decoders hold and one part a thread; on disk what was decoded of some tables
(`pumphouse.proof.gather`). Segments go to the archive as they are made, and `folded.json` last, by a conditional put: a
run that is killed leaves objects that nothing names, and of two at once one's base counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import structlog

from pumphouse import advice
from pumphouse.archive import layout
from pumphouse.archive.archive import Archive
from pumphouse.archive.base import Base, BaseBegun, BaseTable, require_named, write_columns
from pumphouse.archive.copyof import require_no_copy
from pumphouse.archive.manifest import SegmentEntry
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import BadSegment, BinlogError, ManifestConflict, UsageError
from pumphouse.folding.plan import FoldPlan, FoldTable, log_of, parts_of, passes, plan_fold, work_of
from pumphouse.folding.rows import cut, standing
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Decoder
from pumphouse.loader.engine import deal
from pumphouse.loader.keys import key_columns
from pumphouse.loader.plan import Plan
from pumphouse.loader.report import Counted, Progress, silent
from pumphouse.loader.tables import WantedTables
from pumphouse.loader.work import SegmentPart, Work
from pumphouse.model.tso import Tso, show
from pumphouse.proof.gather import Spill
from pumphouse.schema.dialect import Dialect
from pumphouse.settings import ArchiveSettings, LoadSettings

log = structlog.get_logger()

# Of what is decoded at once, in the archive's bytes: about as much lies on the disk.
PASS_BYTES = 32 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedTable:
    """What becomes of one table: ``rows`` None = not known before it is folded; ``named``: segments of older bases."""

    name: str
    rows: int | None
    changes: int
    rewritten: bool
    named: int
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldReport:
    """A fold, or one that is planned (``key`` is '' then).

    ``made``: False where a base of that moment was there. ``bytes_read``: payload of the tables that changed;
    ``bytes_named``: of the segments that are named and not copied. ``losses``: what the log may lack, in words.
    """

    key: str
    ts: Tso
    older_ts: Tso
    made: bool
    tables: tuple[FoldedTable, ...]
    rows: int | None
    bytes_read: int
    bytes_named: int
    bytes_written: int
    without: tuple[str, ...]
    losses: tuple[str, ...]
    seconds: float


def fold_base(
    archive: Archive,
    settings: LoadSettings,
    archive_settings: ArchiveSettings,
    at: Tso | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = silent,
    clock: Clock = SYSTEM_CLOCK,
) -> FoldReport:
    """Make the base of a moment out of the newest one before it.

    Args:
        archive: where to.
        settings: how many threads, and how large a part of a table is (``unit_bytes``).
        archive_settings: for threads that open the archive themselves.
        at: the moment; None = the archive's end.
        dry_run: plan alone.
        progress: told of each step.
        clock: for tests.

    Raises:
        UsageError: the archive does not reach the moment.
        RestoreError: no base leads there.
        FoldRefused, DuplicateKey, MissingColumn: the archive alone does not say which rows a table has then.
        ConfigError: it is a copy of another archive.
        BadManifest, BadSegment: an object that the base would name is damaged, or is not there.
        ManifestConflict: what it is made of expired meanwhile.
    """
    end = archive.end()
    at = end if at is None else at
    if at > end:
        raise UsageError(
            f"the archive ends at {show(end)}, before {show(at)}",
            hint=("`pumphouse archive base` without --at folds up to the end; ", advice.SNAPSHOT, " extends that"),
        )
    started = clock.monotonic()
    view = read_view(archive.by_manifests(), upto=at)  # the base outlives the windows that it is made from
    there = next((base for base in view.bases if base.ts == at), None)
    if there is not None:
        return _there(there)
    plan = plan_fold(view, at)
    if dry_run:
        return _planned(plan)
    require_no_copy(archive.store)
    return _Fold(archive, view, plan, settings, archive_settings, progress).run(clock, started)


class Part(NamedTuple):
    """A segment of the new base, and the rank of the key where it begins; None = it is no range of the key."""

    begin: int | None
    segment: SegmentEntry


class Job(NamedTuple):
    """Buckets of a table that are folded one after the other, and the older segment that has all of their rows.

    ``piece`` None: what the older base has of them is decoded with the log. ``begins``: a rank a bucket, or None.
    """

    table: FoldTable
    buckets: tuple[int, ...]
    begins: tuple[int | None, ...]
    piece: SegmentPart | None


def _jobs(table: FoldTable, plan: Plan, *, in_parts: bool, older: Base) -> Iterator[Job]:
    """What is folded of a table: a bucket each, or in parts an older segment each."""
    count = plan.bucket_count(table.id)
    ranged = bool(key_columns(table.version.table)) and (count == 1 or table.id in plan.ranges)
    begins = (0, *plan.ranges.get(table.id, ()))
    if not in_parts:
        yield from (Job(table, (at,), (begins[at] if ranged else None,), None) for at in range(count))
        return
    pieces: list[SegmentPart | None] = [*parts_of(older, table)] or [None]
    edges = [0, *(bisect_left(begins, rank) for rank in table.ranks), count]
    for piece, (low, high) in zip(pieces, pairwise(edges), strict=True):
        yield Job(table, tuple(range(low, high)), begins[low:high], piece)


class _Fold:
    def __init__(
        self,
        archive: Archive,
        view: ArchiveView,
        plan: FoldPlan,
        settings: LoadSettings,
        archive_settings: ArchiveSettings,
        progress: Progress,
    ) -> None:
        self._archive = archive
        self._view = view
        self._plan = plan
        self._settings = settings
        self._archive_settings = archive_settings
        self._progress = progress
        self._attempt = layout.attempt_id()

    def run(self, clock: Clock, started: float) -> FoldReport:
        """Fold, and publish."""
        at, store = self._plan.at, self._archive.store
        begun = BaseBegun(cluster_id=self._archive.cluster_id, low=at, tables=None, over=self._plan.older.begun)
        note = layout.fold_note(at, self._attempt)
        store.put(note, begun.to_json())
        try:
            self._require_kept()
            made = self._base()
        except BinlogError:
            self._give_up(note)
            raise
        base = self._archive.publish_base(made, begun=note, clock=clock)
        store.delete(note)  # a fold that is killed leaves it: it says of what lies there that nothing came of it
        return _report(self._plan, base, round(clock.monotonic() - started, 3))

    def _require_kept(self) -> None:
        """An expiry puts the range, then reads the notes of folds: what is kept now, it keeps for this one."""
        older, kept = self._plan.older, self._archive.range()
        if not kept.has(older):
            raise ManifestConflict(
                f"the base of {show(older.ts)} expired before this fold of it had begun: {kept.told()}",
                hint="begin anew: pumphouse archive base",
                key=older.key,
            )

    def _give_up(self, note: str) -> None:
        """Take away what this fold has written, the note last: else it would hold `archive expire` as one under way."""
        for each in self._archive.store.list(layout.base_folder(self._plan.at)):
            if each.key.endswith(f"-{self._attempt}.parquet"):
                self._archive.store.delete(each.key)
        self._archive.store.delete(note)

    def _base(self) -> Base:
        """Fold all that changed."""
        plan, at = self._plan, self._plan.at
        folded: dict[int, BaseTable] = {}
        for some in passes(plan.rewritten, PASS_BYTES):
            folded |= self._pass(some)
        tables = tuple(folded.get(table.id) or _as_it_was(table, at) for table in plan.tables)
        base = Base(
            begun=at, ts=at, low=at, tables=tables, columns=True, sha256="", without=plan.without,
            objects=plan.older.objects, objects_of=_kept_with(plan.older), folded=plan.older.ts,
            descends=plan.older.since,
        )  # fmt: skip
        require_named(self._archive.store, base)
        return base

    # -- one pass

    def _pass(self, tables: Sequence[FoldTable]) -> dict[int, BaseTable]:
        """Decode and fold some tables."""
        given = self._given_ranges([table for table in tables if table.in_parts])
        work = work_of(self._plan, self._view, self._settings, tables, given)
        if work.plan.buckets.keys() - given.keys():
            ranges = {**Decoder(self._context(work)).ranges(work), **work.plan.ranges}
            # A key that is met often begins two buckets, of which one has nothing.
            buckets = {**work.plan.buckets} | {table_id: len(ranks) + 1 for table_id, ranks in ranges.items()}
            work = replace(work, plan=replace(work.plan, ranges=ranges, buckets=buckets))
        context, connections = self._context(work), self._settings.connections
        jobs = [
            job
            for table in tables
            for job in _jobs(table, work.plan, in_parts=table.id in given, older=self._plan.older)
        ]
        counted = Counted(self._progress, "decoding the archive", len(work.pieces))
        made: dict[int, list[Part]] = {table.id: [] for table in tables}
        with Spill.made() as spill, ThreadPoolExecutor(connections, thread_name_prefix="fold") as pool:
            # No decoder takes changes from both sides of the older base's moment: it would make one of a key's.
            exact = self._plan.older.ts
            before = [piece for piece in work.pieces if piece.window is None or piece.after < exact]
            after = [piece for piece in work.pieces if piece.window is not None and piece.after >= exact]
            dealt = [*deal(before, connections), *deal(after, connections)]
            for ended in [pool.submit(spill.put, context, some, counted.one) for some in dealt]:
                ended.result()
            folded = pool.map(lambda job: self._fold(context, spill, job), jobs)
            for done, (job, parts) in enumerate(zip(jobs, folded, strict=True)):
                made[job.table.id] += parts
                self._progress("folding tables", done + 1, len(jobs))
        return {table.id: self._table(table, made[table.id]) for table in tables}

    def _given_ranges(self, tables: Sequence[FoldTable]) -> dict[int, tuple[int, ...]]:
        """Where buckets begin of tables that are rewritten in parts: at each part, and where the log fills several.

        A table is left out, and so rewritten whole, where the log is more than a part and no range of the key is less.
        """
        large = [table for table in tables if table.log_bytes > self._settings.unit_bytes]
        log_work = log_of(self._plan, self._view, large, self._settings.unit_bytes)
        cuts = Decoder(self._context(log_work)).ranges(log_work) if large else {}
        small = {table.id for table in tables} - {table.id for table in large}
        return {
            table.id: tuple(sorted({*table.ranks, *cuts.get(table.id, ())}))
            for table in tables
            if table.id in small | cuts.keys()
        }

    def _fold(self, context: LoadContext, spill: Spill, job: Job) -> list[Part]:
        """Some buckets that lie side by side: their rows at the moment, or the older segment that nothing changed."""
        there = {*spill.buckets(job.table.id)}
        if job.piece is not None and not there.intersection(job.buckets):
            return [Part(job.begins[0], job.piece.segment)]
        older: dict[int, list[pa.Table]] = defaultdict(list)
        for blob in Decoder(context).run([job.piece] if job.piece is not None else []):
            older[blob.bucket].append(blob.table())
        key = key_columns(job.table.version.table)
        made = []
        for number, begin in zip(job.buckets, job.begins, strict=True):
            entries = older.pop(number, [])
            entries += [spill.take_entries(job.table.id, number)] if number in there else []
            if not entries:
                continue
            rows = standing(pa.concat_tables(entries).combine_chunks(), self._plan.older.ts)
            for at, (rank, some) in enumerate(cut(rows, self._settings.unit_bytes, begin, key[0] if key else None)):
                if some.num_rows:
                    made.append(Part(rank, self._write(context, job.table, f"{number:08d}-{at}", some)))
        if older and job.piece is not None:
            key_of = job.piece.segment.key
            raise BadSegment(
                f"{key_of} holds keys that lie outside of its range", path=key_of, offset=0, reason="range"
            )
        return made

    def _write(self, context: LoadContext, table: FoldTable, name: str, rows: pa.Table) -> SegmentEntry:
        wanted = WantedTables(context).of(table.id, self._plan.at)
        if wanted is None:
            raise AssertionError(table.name)
        folder = layout.chunk_folder(self._plan.at, *table.version.name, table.id, self._plan.at)
        batches = rows.replace_schema_metadata(None).combine_chunks().to_batches()
        return write_columns(
            self._archive.store,
            f"{folder}{name}-{self._attempt}.parquet",
            wanted.table,
            self._plan.at,
            batches,
        )

    def _table(self, table: FoldTable, parts: Sequence[Part]) -> BaseTable:
        """A table of the base; its parts in the order of their buckets."""
        ranks = [part.begin for part in parts if part.begin is not None]
        ranged = bool(key_columns(table.version.table)) and len(ranks) == len(parts)
        return BaseTable(
            db=table.version.db,
            table=table.version.table.name,
            table_id=table.id,
            rows=sum(part.segment.rows for part in parts),
            segments=tuple(part.segment for part in parts),
            low=self._plan.at,
            ranks=tuple(ranks[1:]) if ranged else None,
        )

    def _context(self, work: Work) -> LoadContext:
        return LoadContext.of(work, self._view, self._archive_settings, Dialect.MARIADB, doubles=True)


def _kept_with(older: Base) -> Tso | None:
    """Names the dump that the older base's texts were kept with."""
    if not older.objects:
        return None
    return older.begun if older.objects_of is None else older.objects_of


def _as_it_was(table: FoldTable, at: Tso) -> BaseTable:
    """A table that did not change."""
    if table.older is None or table.rewritten:
        return BaseTable(
            db=table.version.db, table=table.version.table.name, table_id=table.id, rows=0, segments=(), low=at
        )
    return replace(table.older, db=table.version.db, table=table.version.table.name, low=at)


def _there(base: Base) -> FoldReport:
    """A base of the moment is there."""
    return FoldReport(
        key=base.key,
        ts=base.ts, older_ts=base.ts if base.folded is None else base.folded, made=False, tables=(), rows=base.rows,
        bytes_read=0, bytes_named=0, bytes_written=0, without=tuple(each.name for each in base.without), losses=(),
        seconds=0.0,
    )  # fmt: skip


def _planned(plan: FoldPlan) -> FoldReport:
    """What a fold would do."""
    tables = [
        FoldedTable(
            name=table.name, rows=_rows_before(table), changes=table.changes, rewritten=table.rewritten,
            named=0 if table.rewritten or table.older is None else len(table.older.segments), written=0,
        )
        for table in plan.tables
    ]  # fmt: skip
    kept = [table.older for table in plan.tables if not table.rewritten and table.older is not None]
    return FoldReport(
        key="", ts=plan.at, older_ts=plan.older.ts, made=False, tables=tuple(tables), rows=None,
        bytes_read=sum(table.bytes for table in plan.rewritten),
        bytes_named=sum(segment.bytes for table in kept for segment in table.segments), bytes_written=0,
        without=tuple(each.name for each in plan.without), losses=tuple(plan.losses.lines()), seconds=0.0,
    )  # fmt: skip


def _rows_before(table: FoldTable) -> int | None:
    """Rows of a table that does not change."""
    if table.rewritten:
        return None
    return 0 if table.older is None else table.older.rows


def _report(plan: FoldPlan, base: Base, seconds: float) -> FoldReport:
    """What was done."""
    made = layout.base_folder(base.begun)
    changes = {table.id: table for table in plan.tables}
    written = [s for table in base.tables for s in table.segments if s.key.startswith(made)]
    return FoldReport(
        key=base.key, ts=base.ts, older_ts=plan.older.ts, made=True,
        tables=tuple(
            FoldedTable(
                name=f"{each.db}.{each.table}", rows=each.rows, changes=changes[each.table_id].changes,
                rewritten=changes[each.table_id].rewritten,
                named=sum(not segment.key.startswith(made) for segment in each.segments),
                written=sum(segment.key.startswith(made) for segment in each.segments),
            )
            for each in base.tables
        ),
        rows=base.rows, bytes_read=sum(table.bytes for table in plan.rewritten),
        bytes_named=sum(s.bytes for t in base.tables for s in t.segments if not s.key.startswith(made)),
        bytes_written=sum(segment.bytes for segment in written),
        without=tuple(each.name for each in base.without), losses=tuple(plan.losses.lines()), seconds=seconds,
    )  # fmt: skip
