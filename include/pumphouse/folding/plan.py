"""What a fold reads, names and writes, and why one would not be exact. Pure: from a view of the archive alone.

A fold has no server that could carry DDL out. It takes all changes since the older base at once, as rows of the table
as it is at the moment, as a proof does (`pumphouse.proof.plan`). What a DDL made of rows without a binlog it cannot
say: such a table is refused by name, for a dump of it alone mends that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pumphouse import advice
from pumphouse.archive.base import Base, BaseTable, TableWithout
from pumphouse.archive.losses import Losses
from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.errors import FoldRefused
from pumphouse.loader.keys import key_columns
from pumphouse.loader.plan import Mode, Plan, bucket_counts
from pumphouse.loader.rules import NO_RULES
from pumphouse.loader.work import SegmentPart, Work, base_pieces, pieces_of
from pumphouse.model.tso import Tso, show
from pumphouse.proof.plan import untold
from pumphouse.restore.plan import unreachable
from pumphouse.schema.alter import recomputed
from pumphouse.schema.versions import DdlEvent, TableVersion
from pumphouse.settings import LoadSettings

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldTable:
    """A table with rows at the moment.

    Args:
        version: as it is then.
        older: what the older base has of it; None = it was born since, and the log has all of it.
        rewritten: it changed; else the older base's segments are named.
        in_parts: of what changed only the key ranges with changes are rewritten: the older base has it cut by them.
        changes: row changes in the log's segments.
        older_bytes: payload of its segments in the older base.
        log_bytes: of its changes.
    """

    version: TableVersion
    older: BaseTable | None
    rewritten: bool
    in_parts: bool
    changes: int
    older_bytes: int
    log_bytes: int

    @property
    def bytes(self) -> int:
        """All that a fold of it may read."""
        return self.older_bytes + self.log_bytes

    @property
    def ranks(self) -> tuple[int, ...]:
        """Where its parts but the first begin, of one that is rewritten in parts."""
        return (self.older.ranks or ()) if self.older is not None else ()

    @property
    def name(self) -> str:
        """``database.table``."""
        return ".".join(self.version.name)

    @property
    def id(self) -> int:
        """Table id."""
        return self.version.table.id


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """One fold. ``without``: tables that the older base lacks by a rule; ``losses``: what the log does not say."""

    at: Tso
    older: Base
    tables: tuple[FoldTable, ...]
    without: tuple[TableWithout, ...]
    losses: Losses

    @property
    def rewritten(self) -> tuple[FoldTable, ...]:
        """Tables that changed."""
        return tuple(table for table in self.tables if table.rewritten)


def plan_fold(view: ArchiveView, at: Tso) -> FoldPlan:
    """Plan a fold.

    Args:
        view: the whole archive, from genesis on.
        at: the moment, which the view reaches.

    Raises:
        RestoreError: no base leads to the moment.
        FoldRefused: the archive alone does not say which rows a table has at the moment.
    """
    older = view.base_for(at, lambda _: True)
    if older is None:
        raise unreachable(at, view, lambda _: True)
    changes, sizes = _changes(view, older, at)
    events = view.timeline.ddls(older.low, at)
    _require_known([event for event in events if event.commit_ts > older.ts], at)
    had = {table.table_id: table for table in older.tables}
    left_out = {table.table_id: table for table in older.without}
    tables, without, why = [], [], {}
    for version in view.timeline.tables_at(at):
        if not has_rows(version):
            continue
        id_, before = version.table.id, had.get(version.table.id)
        if id_ in left_out:
            without.append(TableWithout(db=version.db, table=version.table.name, table_id=id_, why=left_out[id_].why))
            continue
        table = _table(view, older, version, before, changes[id_], sizes[id_])
        reason = _refusal(view, older, table, events)
        if reason:
            why[table.name] = reason
        tables.append(table)
    if why:
        raise _refused(at, why)
    losses = view.losses(older.since, at)
    return FoldPlan(at=at, older=older, tables=tuple(tables), without=tuple(without), losses=losses)


def _require_known(events: Sequence[DdlEvent], at: Tso) -> None:
    """FoldRefused where a DDL stops a restore: behind a base of a later moment nobody would be told of it."""
    stop = next((event.problem for event in events if event.problem), "")
    twice = next((after for before, after in pairwise(events) if before.commit_ts == after.commit_ts), None)
    if twice is not None and not stop:
        stop = f"the schema history has two DDLs at {show(twice.commit_ts)}"
    if stop:
        raise FoldRefused(
            f"no restore leads to {show(at)}, and a base of it would hide that: {stop}",
            hint=("fold a moment before it (--at); a new dump leads on: ", advice.dump()),
        )


def _table(
    view: ArchiveView, older: Base, version: TableVersion, before: BaseTable | None, changes: int, size: int
) -> FoldTable:
    now = view.timeline.at_ts(version.table.id, older.ts) if before is not None else None
    same = older.columns and now is not None and _shape(now) == _shape(version)
    there = before is not None and bool(before.segments)
    return FoldTable(
        version=version,
        older=before,
        rewritten=bool(changes) or (there and not same),
        in_parts=same and before is not None and before.ranks is not None,
        changes=changes,
        older_bytes=0 if before is None else sum(segment.payload_bytes for segment in before.segments),
        log_bytes=size,
    )


def _shape(version: TableVersion) -> tuple[object, ...]:
    """What of a table its rows in a base depend on; its own name is none of it."""
    table = version.table
    return tuple((c.id, c.name, c.type, c.generated) for c in table.public_columns), key_columns(table)


def _changes(view: ArchiveView, older: Base, at: Tso) -> tuple[Counter[int], Counter[int]]:
    """Changes and bytes by table of what of the log is laid over the older base; those of partitions count there."""
    lows = {table.table_id: table.low or older.low for table in older.tables}
    changes, sizes = Counter[int](), Counter[int]()
    for some in view.between(older.low, at).changed():
        for physical, rows, size, first, last in zip(*(each.tolist() for each in some), strict=True):
            for id_ in {physical, view.timeline.partitions.get(physical, physical)}:
                if last > lows.get(id_, older.low) and first <= at:
                    changes[id_] += rows
                    sizes[id_] += size
    return changes, sizes


def _refusal(view: ArchiveView, older: Base, table: FoldTable, events: list[DdlEvent]) -> str:
    """Why a table's rows at the moment are not known, or ''."""
    if table.older is None and not _born(table, events):
        return f"the base of {show(older.ts)} does not have it, and the log does not say how its rows came"
    remedy = "a dump of the table says them"
    since = older.low if table.older is None else older.ts
    events = [event for event in events if event.commit_ts > since]
    if why := untold(table.version, events, NO_RULES, remedy):
        return why
    if why := _computed_anew(table.version, events):
        return f"{why}; {remedy}"
    if table.changes and (at := _other_key(view, older, table)):
        return f"its rows were told apart by another key until {show(at)}; {remedy}"
    return ""


def _born(table: FoldTable, events: Iterable[DdlEvent]) -> bool:
    """Whether it began without a row above the older base."""
    return any(
        event.begins_empty and any(each.after is not None and each.after.table.id == table.id for each in event.changes)
        for event in events
    )


def _computed_anew(version: TableVersion, events: Iterable[DdlEvent]) -> str:
    """What made other values of a STORED column, or ''. A target that computes the column has them; a base has not."""
    for event in events:
        for change in event.changes:
            if change.before is None or change.after is None or change.after.table.id != version.table.id:
                continue
            if change.before.table.id == version.table.id:
                for column in recomputed(event.job, change.before.table, change.after.table):
                    return f"the DDL at {show(event.commit_ts)} ({event.action.name}) computed {column.name} anew"
    return ""


def _other_key(view: ArchiveView, older: Base, table: FoldTable) -> Tso | None:
    """When another key than now's told the rows apart above the older base: two of them may have had one of this."""
    key = _key(table.version)
    versions = [each for each in view.timeline.versions[table.id] if each.commit_ts <= table.version.commit_ts]
    for before, after in pairwise(versions):
        if after.commit_ts > older.ts and not before.dropped and _key(before) != key:
            return after.commit_ts
    return None


def _key(version: TableVersion) -> tuple[int, ...]:
    ids = {column.name: column.id for column in version.table.columns}
    return tuple(ids[name] for name in key_columns(version.table))


def _refused(at: Tso, why: dict[str, str]) -> FoldRefused:
    told = "; ".join(f"{name}: {reason}" for name, reason in sorted(why.items())[:_SHOWN])
    more = f"; and {len(why) - _SHOWN} more tables" if len(why) > _SHOWN else ""
    names = sorted(why)
    return FoldRefused(
        f"the archive alone does not say which rows a base of {show(at)} would have of {len(why)} "
        f"table{'s' * (len(why) > 1)}: {told}{more}",
        hint=("dump what it lacks, then fold a moment behind that: ", advice.dump(*names[:_SHOWN])),
        tables=names,
    )


def work_of(
    plan: FoldPlan,
    view: ArchiveView,
    settings: LoadSettings,
    tables: Sequence[FoldTable],
    ranges: Mapping[int, tuple[int, ...]],
) -> Work:
    """What is decoded of some tables: the log, and all of the older base of those that are not rewritten in parts.

    Args:
        plan: of the fold.
        view: what it was made from.
        settings: how large a part is.
        tables: which.
        ranges: table id -> where its buckets but the first begin, of those that are rewritten in parts.
    """
    ids = {table.id for table in tables}
    scanned = {table.id for table in tables if not key_columns(table.version.table)}
    sizes = {table.id: table.bytes for table in tables if table.id not in ranges}
    buckets = bucket_counts(sizes, unit_bytes=settings.unit_bytes, connections=settings.connections, scanned=scanned)
    buckets |= {table_id: len(ranks) + 1 for table_id, ranks in ranges.items() if ranks}
    given = {table_id: ranks for table_id, ranks in ranges.items() if ranks}
    return _work(plan, view, tables, buckets, given, base_pieces(plan.older, ids - ranges.keys()))


def log_of(plan: FoldPlan, view: ArchiveView, tables: Sequence[FoldTable], unit_bytes: int) -> Work:
    """What the log has of some tables, in as many buckets as its bytes fill: to find where these begin."""
    buckets = {table.id: -(-table.log_bytes // unit_bytes) for table in tables}
    return _work(plan, view, tables, buckets, {}, ())


def _work(
    plan: FoldPlan,
    view: ArchiveView,
    tables: Sequence[FoldTable],
    buckets: dict[int, int],
    ranges: Mapping[int, tuple[int, ...]],
    older: Iterable[SegmentPart],
) -> Work:
    ids = frozenset(table.id for table in tables)
    ids |= {part for part, table_id in view.timeline.partitions.items() if table_id in ids}
    low, exact = plan.older.low, plan.older.ts
    windows = view.between(low, plan.at)
    return Work(
        plan=Plan(
            task="base",
            number=0,
            from_ts=plan.older.ts,
            to_ts=plan.at,
            mode=Mode.REPEAT,  # so rows are of the table as it is at the end
            buckets=buckets,
            ranges=ranges,
            only=tuple(sorted(table.name.lower() for table in tables)),
        ),
        # Cut where the older base is exact: what lies before it only makes it so.
        pieces=(
            *older,
            *pieces_of(view.between(low, exact), low, exact, ids),
            *pieces_of(view.between(exact, plan.at), exact, plan.at, ids),
        ),
        tables=ids | windows.table_ids(ids),
        events=(),
        losses=plan.losses,
        lows=plan.older.lows,
        sizes={table.id: table.bytes for table in tables},
    )


def parts_of(older: Base, table: FoldTable) -> list[SegmentPart]:
    """The older base's segments of a table, each of which is a range of its key."""
    return list(base_pieces(older, {table.id}))


def passes(tables: Iterable[FoldTable], most: int) -> Iterator[list[FoldTable]]:
    """Tables that are decoded together: about so many bytes, of which the disk holds what is decoded."""
    some: list[FoldTable] = []
    held = 0
    for table in tables:
        if some and held + table.bytes > most:
            yield some
            some, held = [], 0
        some.append(table)
        held += table.bytes
    if some:
        yield some
