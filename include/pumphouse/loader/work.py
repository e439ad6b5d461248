"""What there is to do, decided before anything is done: plans with the segments, DDLs and losses of their ranges. Pure.

A `Work` comes from an `ArchiveView` alone, so a plan never reaches beyond the schema that it is decoded with, and what
a dry run shows is what a load, a restore or a retry carries out.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self, overload

import numpy as np

from pumphouse import advice
from pumphouse.archive.base import Base
from pumphouse.archive.losses import Losses, losses_of
from pumphouse.archive.manifest import Duplicate, SegmentEntry
from pumphouse.archive.view import ArchiveView
from pumphouse.archive.windows import Windows
from pumphouse.errors import LoadError, UnknownDdl
from pumphouse.loader.epochs import Epochs
from pumphouse.loader.keys import Predicate, key_columns
from pumphouse.loader.plan import ORDERED, TIDB_UNIT_BYTES, Mode, Plan, UnitId, bucket_counts
from pumphouse.loader.rules import NO_RULES, Rules, anew_hint, ddl_hint
from pumphouse.loader.state import NOTHING_BEGUN, Begun
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.render import require_known
from pumphouse.schema.sequence import SequenceState, sequence_states
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import LoadRule, LoadSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPart:
    """One segment, and what of it a plan reads: ``after < commit ts <= upto``, without what another Pump's brings.

    ``window``: start of its window, None for one of the dump. Figures by table are left out of ``segment``.
    ``table_id``: of a dump's segment of columns, which holds rows of that table alone; else None. ``number``: its place
    among those of its table.
    """

    window: Tso | None
    segment: SegmentEntry
    after: Tso
    upto: Tso
    drop: tuple[Duplicate, ...] = ()
    table_id: int | None = None
    number: int = 0

    @property
    def bytes(self) -> int:
        """Payload bytes of the whole segment."""
        return self.segment.payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A plan and all that carrying it out reads.

    Args:
        plan: its row; number 0 until it is begun.
        pieces: segments with anything of the range, in the archive's order.
        tables: ids under which the pieces may have changes; of partitions too.
        events: DDLs, each at a boundary of the plan; a boundary may have none.
        rulings: commit ts of DDLs that a rule skips or replaces.
        txn_rules: commit ts of transactions whose rows a rule leaves out.
        losses: what the range lacks, by declaration or by chance.
        lows: table id -> nothing of the table at or below this counts: its dump has it.
        sequences: where the sequences stand at the plan's end, of those that moved in the range.
        sizes: bytes by table, of a plan that is not begun; ``scanned``: tables of which a unit that deletes reads all.
    """

    plan: Plan
    pieces: Sequence[SegmentPart]
    tables: frozenset[int]
    events: tuple[DdlEvent, ...]
    losses: Losses
    lows: Mapping[int, Tso] = field(default_factory=dict)
    sequences: tuple[SequenceState, ...] = ()
    rulings: Mapping[Tso, LoadRule] = field(default_factory=dict)
    txn_rules: Mapping[Tso, LoadRule] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)
    scanned: frozenset[int] = frozenset()

    @classmethod
    def of(cls, view: ArchiveView, plan: Plan, rules: Rules = NO_RULES) -> Self:
        """Everything that a plan needs, by the rules; ConfigError where the view does not hold its range."""
        # What is left out of an open plan is what it says: some of its units are applied.
        without = plan.without if plan.number else tuple(ts for ts in sorted(rules.txns) if _reads(plan, view, ts))
        skipped = {**plan.skipped, **rules.skipped(view.timeline)}
        plan = replace(plan, skipped=skipped, without=without, only=tuple(sorted(rules.only)))
        ids = ids_of(view.timeline, rules.only) if rules.only else None
        txn_rules = {Tso(ts): rules.txns[ts] for ts in without if ts in rules.txns}
        if plan.mode is Mode.BASE:
            base = view.base_at(plan.to_ts)
            windows = view.between(base.low, base.ts)
            return cls(
                plan=plan,
                pieces=Pieces(windows, base.low, base.ts, ids, base_pieces(base, ids)),
                tables=windows.table_ids(ids)
                | {table.table_id for table in base.tables if ids is None or table.table_id in ids},
                events=(),
                txn_rules=txn_rules,
                losses=view.losses(base.since, base.ts),
                lows=base.lows,
                sequences=_sequences(view, Tso(0), plan.to_ts, rules),
            )
        windows = view.between(plan.from_ts, plan.to_ts)
        events = tuple(_boundary_events(view.timeline, plan, rules)) if plan.mode in ORDERED else ()
        ruled = {event.commit_ts: rules.rule_of(event) for event in events}
        rulings = {ts: rule for ts, rule in ruled.items() if rule is not None}
        return cls(
            # As it says itself once units are applied (`open_work`).
            plan=plan if plan.number else replace(plan, ruled=tuple(map(int, rulings))),
            pieces=Pieces(windows, plan.from_ts, plan.to_ts, ids),
            tables=windows.table_ids(ids),
            events=events,
            rulings=rulings,
            txn_rules=txn_rules,
            losses=losses_of(windows, after=plan.from_ts, upto=plan.to_ts),
            sequences=_sequences(view, plan.from_ts, plan.to_ts, rules),
        )

    def fitted(self, settings: LoadSettings, dialect: Dialect) -> Work:
        """The same, where the target needs smaller units than the settings say in more of them."""
        if dialect is not Dialect.TIDB or settings.unit_bytes <= TIDB_UNIT_BYTES:
            return self
        return self._in_buckets(settings.model_copy(update={"unit_bytes": TIDB_UNIT_BYTES}))

    def choosing(self, where: Predicate, settings: LoadSettings) -> Work:
        """The same, of these rows alone; in buckets, as nothing says how many of a segment's rows they are."""
        work = self._in_buckets(settings)
        return replace(work, plan=replace(work.plan, where=where))

    def _in_buckets(self, settings: LoadSettings) -> Work:
        return replace(
            self, plan=replace(self.plan, buckets=_buckets(self.sizes, settings, self.scanned), whole=frozenset())
        )

    def leaving_out(self, txns: Iterable[int]) -> Work:
        """The same, without the rows of these transactions, too."""
        return replace(self, plan=replace(self.plan, without=tuple(sorted({*self.plan.without, *txns}))))

    def numbered(self, number: int, ranges: Mapping[int, tuple[int, ...]]) -> Work:
        """The same, as the plan of that number, with its buckets cut at these keys."""
        return replace(self, plan=replace(self.plan, number=number, ranges=ranges))


def _reads(plan: Plan, view: ArchiveView, ts: int) -> bool:
    """Whether a plan reads transactions of a commit ts."""
    low = view.base_at(plan.to_ts).low if plan.mode is Mode.BASE else plan.from_ts
    return low < ts <= plan.to_ts


def base_work(view: ArchiveView, base: Base, task: str, settings: LoadSettings, rules: Rules = NO_RULES) -> Work:
    """The rows of a dump and what the log lays over them, into tables that were made empty."""
    plan = Plan(task=task, number=0, from_ts=base.ts, to_ts=base.ts, mode=Mode.BASE, archive=base_digest(view, base))
    segments = [segment for table in base.tables for segment in table.segments]
    sizes = _sizes(view, segments, view.between(base.low, base.ts), rules)
    whole = frozenset(_untouched(view, base, settings.unit_bytes))
    rest = {table_id: size for table_id, size in sizes.items() if table_id not in whole}
    plan = replace(plan, buckets=_buckets(rest, settings), whole=whole)
    return replace(Work.of(view, plan, rules), sizes=sizes)


def _untouched(view: ArchiveView, base: Base, most: int) -> Iterator[int]:
    """Ids of the tables that nothing of the log above their low is laid over, and of which no segment is larger."""
    if not base.columns:
        return
    newest: dict[int, Tso] = {}
    for table_id, ts in view.between(base.low, base.ts).newest().items():
        for each in {table_id, view.timeline.partitions.get(table_id, table_id)}:
            newest[each] = max(newest.get(each, Tso(0)), ts)
    for table in base.tables:
        touched = newest.get(table.table_id, Tso(0)) > (table.low or base.low)
        if not touched and all(segment.payload_bytes <= most for segment in table.segments):
            yield table.table_id


def works_between(
    view: ArchiveView,
    after: Tso,
    upto: Tso,
    task: str,
    settings: LoadSettings,
    rules: Rules = NO_RULES,
    mode: Mode = Mode.MERGE,
) -> Iterator[Work]:
    """(after, upto] in one plan or several: a plan ends at the window that fills it.

    UnknownDdl behind the plan that ends before a DDL which nothing can be loaded past.
    """
    ids = ids_of(view.timeline, rules.only) if rules.only else None
    while after < upto:
        end = _reach(view, after, upto, settings.max_plan_bytes, ids)
        ruled = (rules.ruled(event) for event in view.timeline.ddls(after, end))
        stop = next((event for event in ruled if event.problem), None)
        if stop is not None:
            end = Tso(stop.commit_ts - 1)
            if end == after:
                try:
                    require_known(stop)
                except UnknownDdl as error:
                    error.add_hint(ddl_hint(stop.job.id))
                    if stop.brings_rows:
                        error.advice = anew_hint(".".join(stop.changes[0].known.name))
                    raise
        work = _merge_work(view, after, end, task, settings, rules)
        yield work if mode is Mode.MERGE else replace(work, plan=replace(work.plan, mode=mode, buckets={}))
        after = end


def repeat_work(
    view: ArchiveView, after: Tso, upto: Tso, task: str, settings: LoadSettings, rules: Rules = NO_RULES
) -> Work:
    """A finished range once more: tables that have a key and whose shape did not change in it."""
    return _merge_work(view, after, upto, task, settings, rules, repeat=True)


def open_work(
    view: ArchiveView, plan: Plan, target: str, rules: Rules = NO_RULES, begun: Begun = NOTHING_BEGUN
) -> Work:
    """Work of a plan that an earlier run began on a target, by the rules and the schema history of now.

    Epochs are what the plan says, as the units that were applied are counted by them. A DDL that is none any more
    leaves its boundary; one that has come gets one, where nothing behind it was begun: the work's plan differs then.

    Raises:
        LoadError: the archive is not what the plan was made from, or a DDL has come too late for some tables.
    """
    base = plan.mode is Mode.BASE
    if (base_digest(view, view.base_at(plan.to_ts)) if base else archive_digest(view, plan)) != plan.archive:
        raise LoadError(
            f"plan {plan.number} of task {plan.task} was made from other manifests than the archive has now",
            hint="load from the archive that the plan began with",
            target=target,
        )
    work = Work.of(view, plan, rules)
    work = replace(work, plan=replace(work.plan, ruled=tuple(_ruled_now(plan, work, begun))))
    missing = [event for event in work.events if int(event.commit_ts) not in plan.boundaries]
    if not missing:
        return work
    first = missing[0]
    if begun.ddl >= first.commit_ts or any(_went_beyond(plan, event, begun.units) for event in missing):
        tables = sorted({".".join(c.known.name) for event in missing for c in event.changes})
        raise LoadError(
            f"plan {plan.number} of task {plan.task} went beyond the DDL at {show(first.commit_ts)} without it: the "
            f"schema history did not have it then: {first.job.query}",
            hint=(
                "the others go on when what it changed is left out: ",
                *(advice.Rule("park", table=name) for name in tables),
            ),
            target=target,
            tables=tables,
            differing=[show(event.commit_ts) for event in missing[:5]],
        )
    if plan.touched is None:
        ends = dict.fromkeys(plan.boundaries, ()) | _ends(missing)
        return replace(work, plan=replace(work.plan, boundaries=tuple(sorted(ends)), touched=None))
    return replace(
        work, plan=_ending(work.plan, dict(zip(plan.boundaries, plan.touched, strict=True)) | _ends(missing))
    )


def _ruled_now(plan: Plan, work: Work, begun: Begun) -> Iterator[int]:
    """DDLs that a rule stands in for: by the rules of now, but where rows were loaded by those of then."""
    for event in work.events:
        late = begun.ddl >= event.commit_ts or _went_beyond(plan, event, begun.units)
        if event.commit_ts in (plan.ruled if late else work.rulings):
            yield int(event.commit_ts)


def _went_beyond(plan: Plan, event: DdlEvent, applied: Iterable[UnitId]) -> bool:
    """Whether a unit is applied that holds a change from behind a DDL of its table."""
    epochs, everything = Epochs(plan), plan.touched is None
    return any(
        unit.epoch >= epochs.of(unit.table_id, event.commit_ts)
        for unit in applied
        if everything or unit.table_id in event.table_ids
    )


def _ends(events: Iterable[DdlEvent]) -> dict[int, tuple[int, ...]]:
    """Boundary -> the tables whose epochs end there."""
    return {int(event.commit_ts): tuple(sorted(event.table_ids)) for event in events}


def _ending(plan: Plan, ends: Mapping[int, tuple[int, ...]]) -> Plan:
    return replace(plan, boundaries=tuple(sorted(ends)), touched=tuple(ends[ts] for ts in sorted(ends)))


def archive_digest(view: ArchiveView, plan: Plan) -> str:
    """Digest of the manifests that a plan's range lies in."""
    return _digest(view, view.genesis.sha256, plan.from_ts, plan.to_ts)


def base_digest(view: ArchiveView, base: Base) -> str:
    """Digest of a dump and of the manifests that are laid over it."""
    return _digest(view, base.sha256, base.low, base.ts)


def _digest(view: ArchiveView, first: str, after: Tso, upto: Tso) -> str:
    digest = hashlib.sha256(first.encode())
    for each in view.between(after, upto).digests():
        digest.update(each.encode())
    return digest.hexdigest()


def skipped_ddls(timeline: Timeline, after: Tso, upto: Tso, rules: Rules) -> list[DdlEvent]:
    """DDLs in (after, upto] that a rule skips."""
    events = timeline.ddls(after, upto) if rules.ddls else []
    return [each for each in events if (rule := rules.rule_of(each)) is not None and rule.do == "skip"]


def databases_between(timeline: Timeline, after: Tso, upto: Tso, rules: Rules) -> list[str]:
    """Names of the databases that there are at `after` or come up to `upto`, by a DDL that no rule skips."""
    names = {info.name for info in timeline.databases_at(after)}
    skipped = {each.commit_ts for each in skipped_ddls(timeline, after, upto, rules)}
    for versions in timeline.databases.values():
        names |= {
            v.info.name
            for v in versions
            if v.info is not None and after < v.commit_ts <= upto and v.commit_ts not in skipped
        }
    return sorted(names)


def _merge_work(
    view: ArchiveView,
    after: Tso,
    upto: Tso,
    task: str,
    settings: LoadSettings,
    rules: Rules,
    *,
    repeat: bool = False,
) -> Work:
    plan = Plan(task=task, number=0, from_ts=after, to_ts=upto, mode=Mode.MERGE)
    sizes = _sizes(view, (), view.between(after, upto), rules)
    scanned = _keyless(view, upto)
    plan = replace(plan, archive=archive_digest(view, plan), buckets=_buckets(sizes, settings, scanned))
    plan = _ending(plan, _ends(_boundary_events(view.timeline, plan, rules)))
    if repeat:
        skipped = _unrepeatable(view.timeline, after, upto)
        plan = replace(plan, mode=Mode.REPEAT, boundaries=(), touched=(), skipped=skipped)
    return replace(Work.of(view, plan, rules), sizes=sizes, scanned=scanned)


def _boundary_events(timeline: Timeline, plan: Plan, rules: Rules) -> list[DdlEvent]:
    """DDLs of the range that a target can see. Two with one commit ts cannot both end an epoch: LoadError."""
    found = (event for event in timeline.ddls(plan.from_ts, plan.to_ts) if not event.silent)
    events = [event for event in map(rules.ruled, found) if not event.silent or rules.rule_of(event)]
    for before, after in itertools.pairwise(events):
        if before.commit_ts >= after.commit_ts:
            raise LoadError(
                f"the schema history has two DDLs at {show(after.commit_ts)}, or out of order: each has a commit ts of "
                "its own",
                hint="look at it with `pumphouse schema show`; the archive's ddl/ objects say where they come from",
                commit_ts=after.commit_ts,
            )
    return events


def _sequences(view: ArchiveView, after: Tso, upto: Tso, rules: Rules) -> tuple[SequenceState, ...]:
    found = sequence_states(view.timeline, view.setvals, after, upto)
    return tuple(each for each in found if not rules.leaves_out(each.version))


def ids_of(timeline: Timeline, names: Container[str]) -> frozenset[int]:
    """Ids that tables, ``database.table`` in lower case, ever had, and those of their partitions."""
    ids = {
        table_id
        for table_id, versions in timeline.versions.items()
        if any(".".join(version.name).lower() in names for version in versions)
    }
    return frozenset(ids | {part for part, of in timeline.partitions.items() if of in ids})


def base_pieces(base: Base, tables: Collection[int] | None) -> Iterator[SegmentPart]:
    """Segments of a base with rows of one of these tables; None = of all."""
    for table in base.tables:
        for number, segment in enumerate(table.segments if tables is None or table.table_id in tables else ()):
            if segment.rows:
                yield SegmentPart(
                    window=None,
                    segment=replace(segment, tables={}),
                    after=Tso(segment.min_commit_ts - 1),
                    upto=segment.max_commit_ts,
                    table_id=table.table_id if base.columns else None,
                    number=number,
                )


class Pieces(Sequence[SegmentPart]):
    """Pieces of a base and of the log behind it; those of the log are made when they are asked for.

    Args:
        first: of the base.
        windows: with the log's segments.
        after: with `upto`, the range of commit ts.
        upto: see ``after``.
        tables: only segments with changes under one of these ids; None = all.
    """

    __slots__ = ("_after", "_count", "_first", "_tables", "_upto", "_windows", "bytes")

    def __init__(
        self,
        windows: Windows,
        after: Tso,
        upto: Tso,
        tables: Collection[int] | None = None,
        first: Iterable[SegmentPart] = (),
    ) -> None:
        self._first, self._windows, self._tables = tuple(first), windows, tables
        self._after, self._upto = after, upto
        read = windows.read_of(after, upto, tables)
        self._count = len(self._first) + int(read.segments.sum())
        self.bytes = sum(piece.bytes for piece in self._first) + int(read.payload_bytes.sum())

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[SegmentPart]:
        yield from self._first
        yield from pieces_of(self._windows, self._after, self._upto, self._tables)

    @overload
    def __getitem__(self, at: int) -> SegmentPart: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[SegmentPart]: ...

    def __getitem__(self, at: int | slice) -> SegmentPart | Sequence[SegmentPart]:
        return tuple(self)[at]

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)


def pieces_of(windows: Windows, after: Tso, upto: Tso, tables: Collection[int] | None = None) -> Iterator[SegmentPart]:
    """What of the log's segments has anything with after < commit ts <= upto.

    ``tables``: only segments with changes under one of these ids; None = all.
    """
    for start, end, segment, manifest in windows.placed(tables):
        if segment.changes and segment.max_commit_ts > after and segment.min_commit_ts <= upto:
            yield SegmentPart(
                window=start,
                segment=segment,
                after=Tso(max(after, start)),
                upto=Tso(min(upto, end)),
                drop=() if manifest is None else manifest.dropped(segment.node_id),
            )


def _keyless(view: ArchiveView, ts: Tso) -> frozenset[int]:
    """Ids of the tables without a key."""
    return frozenset(version.table.id for version in view.timeline.tables_at(ts) if not key_columns(version.table))


def _sizes(view: ArchiveView, segments: Iterable[SegmentEntry], windows: Windows, rules: Rules) -> dict[int, int]:
    """Bytes of each table that the rules choose; those of partitions count for their table."""
    ids = ids_of(view.timeline, rules.only) if rules.only else None
    sizes: dict[int, int] = defaultdict(int)
    for table_id, stat in chain(windows.stats().items(), *(segment.tables.items() for segment in segments)):
        if ids is None or table_id in ids:
            sizes[view.timeline.partitions.get(table_id, table_id)] += stat.bytes
    return dict(sizes)


def _buckets(sizes: Mapping[int, int], settings: LoadSettings, scanned: Container[int] = ()) -> dict[int, int]:
    return bucket_counts(
        sizes,
        unit_bytes=settings.unit_bytes,
        connections=settings.connections,
        fixed=settings.buckets,
        scanned=scanned,
    )


def _reach(view: ArchiveView, after: Tso, upto: Tso, most: int, tables: Collection[int] | None) -> Tso:
    """Where a plan that begins after `after` ends: at `upto`, or at the window that fills it."""
    windows = view.between(after, upto)
    fills = np.flatnonzero(np.cumsum(windows.payload_sizes(tables)) >= most)
    return Tso(min(int(windows.ends[fills[0]]), upto)) if fills.size else upto


def _unrepeatable(timeline: Timeline, after: Tso, upto: Tso) -> dict[str, str]:
    skipped: dict[str, str] = {}
    for version in timeline.tables_at(upto):
        if not is_system(version.db) and not key_columns(version.table):
            skipped[f"{version.db}.{version.table.name}"] = "it has no key"
    for event in timeline.ddls(after, upto):
        for change in event.changes:
            if change.after is not None:
                skipped[f"{change.after.db}.{change.after.table.name}"] = f"DDL at {show(event.commit_ts)}"
    return skipped


def total_bytes(works: Sequence[Work]) -> int:
    """Payload bytes that these read."""
    found = (work.pieces for work in works)
    return sum(each.bytes if isinstance(each, Pieces) else sum(piece.bytes for piece in each) for each in found)
