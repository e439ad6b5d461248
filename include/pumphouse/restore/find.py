"""Which transactions changed what between two moments: where a restore is to stop (`pumphouse archive find`).

Manifests say which segments have rows of a table. These are read in commit order, one of each Pump at a time, and
their row changes are filtered as columns. An object is made for each transaction that is found, and for no row.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.sourced import gtids_of
from pumphouse.archive.view import ArchiveView
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE
from pumphouse.errors import UnknownTable, UsageError
from pumphouse.loader.changes import RowChanges
from pumphouse.loader.context import read_piece
from pumphouse.loader.decode import walked
from pumphouse.loader.keys import Predicate
from pumphouse.loader.report import Progress
from pumphouse.loader.work import SegmentPart, pieces_of
from pumphouse.model.pattern import fits
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import Effect, Rows, is_system
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import DdlEvent, TableVersion

ROWS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
DDL = "ddl"
NEWER = "; `pumphouse snapshot` brings in what was written since"
KINDS = (*ROWS, DDL)
_COLUMNS = ("commit_ts", "start_ts", "parts", "payload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """What is looked for in (after, upto].

    Args:
        after: commit ts, exclusive.
        upto: commit ts, inclusive.
        tables: ``database.table``, also as patterns; () = all but the system's. A table is meant under every name and
            id that it has in the range, where one of its names in the range fits.
        keys: primary keys, of several columns as a line of CSV; () = all rows.
        kinds: of `KINDS`.
        rows: a transaction has at least so many row changes of these.
    """

    after: Tso
    upto: Tso
    tables: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset(KINDS)
    rows: int = 1

    def names(self, db: str, table: str) -> bool:
        """Whether a table of this name is looked for."""
        if not self.tables:
            return not is_system(db)
        return any(fits(f"{db}.{table}", each) for each in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """Row changes of one table that were looked for; ``table``: its name when they were committed."""

    table: str
    table_id: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def rows(self) -> int:
        """All of them."""
        return self.inserted + self.updated + self.deleted

    def __str__(self) -> str:
        kinds = ((self.inserted, "inserted"), (self.updated, "updated"), (self.deleted, "deleted"))
        return f"{self.table}: {', '.join(f'{count:,} {kind}' for count, kind in kinds if count)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One transaction, or one DDL (``action`` is not '') of the tables, or the database, ``of``.

    ``gtid``: of a captured source's, '' = not known. ``renamed``: those of the tables that have another name by it.
    """

    commit_ts: Tso
    start_ts: Tso
    gtid: str = ""
    tables: tuple[Touched, ...] = ()
    action: str = ""
    job_id: int = 0
    query: str = ""
    of: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def before(self) -> Tso:
        """The newest moment without it; at ``commit_ts`` it is there."""
        return Tso(self.commit_ts - 1)

    @property
    def rows(self) -> int:
        """Row changes that were looked for."""
        return sum(each.rows for each in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {**asdict(self), "rows": self.rows, "before_ts": self.before, "at_ts": self.commit_ts}


def bounds(view: ArchiveView, after: Tso, upto: Tso | None) -> tuple[Tso, Tso]:
    """What of (after, upto] lies in the archive, None = up to its end; UsageError where nothing of it does."""
    kept, begin = view.kept, Tso(max(after, view.kept.start))
    if expired := kept.aside(after):
        raise UsageError(
            f"the archive covers {show(kept.start)} to {show(view.end)}, asked for {show(after)}{expired}",
            hint=f"--from {int(kept.start)}",
        )
    end = view.end if upto is None else Tso(min(upto, view.end))
    if begin >= end:
        raise UsageError(
            f"nothing lies between {show(after)} and {show(end if upto is None else upto)} in the archive",
            hint=f"it covers {show(kept.start)} to {show(view.end)}{NEWER}",
        )
    return begin, end


def find(archive: Archive, view: ArchiveView, sought: Sought, tell: Progress) -> Iterator[Found]:
    """What is looked for, in commit order, as it is read.

    Args:
        archive: where the segments are.
        view: of the archive from ``sought.after`` or earlier on; it reaches ``sought.upto``.
        sought: what.
        tell: told of each segment.

    Raises:
        UnknownTable: no table in the range fits.
        UsageError: a key is none of its table.
        BadSegment, CodecError: an object is damaged.
    """
    finder = _Finder(archive, view, sought, tell)
    yield from heapq.merge(finder.transactions(), finder.ddls(), key=lambda each: each.commit_ts)


class _Finder:
    def __init__(self, archive: Archive, view: ArchiveView, sought: Sought, tell: Progress) -> None:
        self._archive, self._sought, self._tell = archive, sought, tell
        self._windows = view.between(sought.after, sought.upto)
        self._timeline = view.timeline
        self._chosen = tables_called(view.timeline, sought)
        self._rows = RowChanges(view.timeline, Predicate(keys=sought.keys, exact=True))
        self._ops = np.array([op for kind, op in ROWS.items() if kind in sought.kinds], np.uint8)

    def transactions(self) -> Iterator[Found]:
        """Of rows; none where only DDLs are looked for."""
        ids = frozenset(each for each in self._windows.table_ids() if self._is_chosen(each))
        if not len(self._ops) or not ids:
            return
        sought = self._sought
        pieces = list(pieces_of(self._windows, sought.after, sought.upto, ids))
        done = itertools.count(1)
        self._tell("reading segments", 0, len(pieces))

        def told(piece: SegmentPart) -> Iterator[pa.RecordBatch]:
            yield from read_piece(self._archive.store, piece, _COLUMNS)
            self._tell("reading segments", next(done), len(pieces))

        wanted = np.array(sorted(ids), np.int64)
        for _, window in itertools.groupby(pieces, key=lambda piece: piece.window):
            of_pump: dict[str, list[SegmentPart]] = defaultdict(list)
            for piece in window:
                of_pump[piece.segment.node_id].append(piece)
            streams = []
            for some in of_pump.values():
                some.sort(key=lambda piece: piece.segment.min_commit_ts)
                batches = itertools.chain.from_iterable(map(told, some))
                streams.append(self._whole(part for batch in batches for part in self._in_batch(batch, wanted)))
            yield from heapq.merge(*streams, key=lambda each: each.commit_ts)

    def ddls(self) -> Iterator[Found]:
        """DDLs of the tables that are looked for; of all, those that a target could see."""
        sought = self._sought
        if DDL not in sought.kinds:
            return
        events = [
            each for each in self._timeline.ddls(sought.after, sought.upto) if concerns(each, sought, self._chosen)
        ]
        started = {
            each.commit_ts: each.start_ts for each in self._archive.jobs(self._windows, sought.after, sought.upto)
        }
        for event in events:
            yield Found(
                commit_ts=event.commit_ts,
                start_ts=started.get(event.commit_ts, Tso(0)),
                action=event.action.name,
                job_id=event.job.id,
                query=event.job.query,
                of=_called(event),
                renamed=_renamed(event),
            )

    def _is_chosen(self, table_id: int) -> bool:
        """Whether rows under an id, which may be a partition's, are looked for."""
        of = self._timeline.partitions.get(table_id)
        if self._sought.tables:
            return table_id in self._chosen or of in self._chosen
        known = self._timeline.versions.get(table_id) or self._timeline.versions.get(of or table_id)
        return not known or not is_system(known[-1].db)

    def _whole(self, parts: Iterator[Found]) -> Iterator[Found]:
        """Transactions, of which each may have come in several parts, that have as many rows as are looked for."""
        for _, same in itertools.groupby(parts, key=lambda each: (each.commit_ts, each.start_ts)):
            first, *more = same
            whole = replace(first, tables=_sum(each for part in (first, *more) for each in part.tables))
            if whole.rows >= self._sought.rows:
                yield whole

    def _in_batch(self, batch: pa.RecordBatch, wanted: np.ndarray) -> Iterator[Found]:
        commit_ts, start_ts, parts = (batch.column(name).to_numpy() for name in _COLUMNS[:3])
        found = walked(batch)
        found = found.take(np.isin(found.table_id, wanted) & np.isin(found.op, self._ops))
        found = found.take(self._rows.having(found, commit_ts[found.txn]))
        count = np.bincount(found.txn, minlength=batch.num_rows)
        enough = (count >= self._sought.rows) | ((parts > 1) & (count > 0))
        found = found.take(enough[found.txn])
        kinds, rows = np.unique(
            np.stack([found.txn, found.table_id, found.op.astype(np.int64)]), axis=1, return_counts=True
        )
        txns = np.unique(kinds[0])
        gtids = dict(zip(txns.tolist(), gtids_of(batch["payload"], txns).to_pylist(), strict=True))
        for txn, some in itertools.groupby(zip(*kinds.tolist(), rows.tolist(), strict=True), key=lambda each: each[0]):
            ts = Tso(int(commit_ts[txn]))
            touched = (self._touched(table_id, op, many, ts) for _, table_id, op, many in some)
            yield Found(commit_ts=ts, start_ts=Tso(int(start_ts[txn])), gtid=gtids[txn] or "", tables=_sum(touched))

    def _touched(self, table_id: int, op: int, rows: int, ts: Tso) -> Touched:
        try:
            version = self._timeline.at_ts(table_id, ts)
            name, table_id = ".".join(version.name), version.table.id
        except UnknownTable:
            name = f"table {table_id}"
        inserted, updated, deleted = (rows * (op == each) for each in (INSERT, UPDATE, DELETE))
        return Touched(table=name, table_id=table_id, inserted=inserted, updated=updated, deleted=deleted)


def tables_called(timeline: Timeline, sought: Sought) -> frozenset[int]:
    """Ids in the range of the tables that have a name which is looked for at some moment of it; UnknownTable."""
    if not sought.tables:
        return frozenset()
    return renumbered(timeline, called_so(timeline, sought), sought.after, sought.upto)


def called_so(timeline: Timeline, sought: Sought) -> frozenset[int]:
    """Ids of which the rows are, at some moment of the range, those of a table with a name that is looked for.

    Raises:
        UnknownTable: there is none.
    """
    found = set()
    for table_id, versions in timeline.versions.items():
        if any(sought.names(*each.name) for each in lived_as(versions, sought.after, sought.upto)):
            found.add(table_id)
    if not found:
        raise UnknownTable(
            f"no table is called {' or '.join(sought.tables)} between these moments",
            hint="a table is written as DATABASE.TABLE, or as a pattern (shop.%); `pumphouse schema show --at TIME` "
            "lists those of a moment",
        )
    for before, after, stay in reversed(_other_ids(timeline, sought.after, sought.upto)):
        if stay and after in found:
            found.add(before)
    return frozenset(found)


def renumbered(timeline: Timeline, ids: frozenset[int], after: Tso, upto: Tso) -> frozenset[int]:
    """Tables with the ids that DDLs of (after, upto] took from them or gave them, whatever they were called then."""
    found = set(ids)
    pairs = _other_ids(timeline, after, upto)
    for before, behind, _ in pairs:
        if before in found:
            found.add(behind)
    for before, behind, _ in reversed(pairs):
        if behind in found:
            found.add(before)
    return frozenset(found)


def _other_ids(timeline: Timeline, after: Tso, upto: Tso) -> list[tuple[int, int, bool]]:
    """(id before, id behind, whether the rows stay) of DDLs by which a table goes on under another id, in order."""
    return [
        (change.before.table.id, change.after.table.id, event.facts.rows is Rows.STAY)
        for event in timeline.ddls(after, upto)
        if event.facts.effect is Effect.RENUMBER
        for change in event.changes
        if change.before is not None and change.after is not None
    ]


def lived_as(versions: Sequence[TableVersion], after: Tso, upto: Tso) -> Iterator[TableVersion]:
    """What a table was at the moments of (after, upto] at which it was there; ``versions``: all of it, in order."""
    for version, later in itertools.zip_longest(versions, versions[1:]):
        if version.commit_ts <= upto and (later is None or later.commit_ts > after) and not version.dropped:
            yield version


def concerns(event: DdlEvent, sought: Sought, tables: frozenset[int]) -> bool:
    """Whether a target could see a DDL, and it is of the tables that are looked for; ``tables``: their ids."""
    if event.silent:
        return False
    named = any(sought.names(*side.name) for change in event.changes for side in change.sides)
    databases = {info.name for info in (event.db_before, event.db_after) if info is not None}
    whole = any(sought.names(name, "*") for name in databases)
    # Of one with a problem nobody knows what else it changed.
    return named or whole or bool(event.problem) or bool(event.table_ids & tables)


def _called(event: DdlEvent) -> tuple[str, ...]:
    """Names of what a DDL touches, just before it; of what it makes, behind it."""
    databases = {info.name for info in (event.db_before, event.db_after) if info is not None}
    return tuple(sorted(databases or {".".join(change.sides[0].name) for change in event.changes}))


def _renamed(event: DdlEvent) -> dict[str, str]:
    """Name before a DDL -> name behind it, where that is another."""
    both = ((each.before.name, each.after.name) for each in event.changes if each.before and each.after)
    return {".".join(before): ".".join(after) for before, after in both if before != after}


def _sum(touched: Iterator[Touched]) -> tuple[Touched, ...]:
    """One for each table, in the order of first touch."""
    found: dict[tuple[str, int], Touched] = {}
    for each in touched:
        at = (each.table, each.table_id)
        have = found.get(at, Touched(table=each.table, table_id=each.table_id))
        found[at] = replace(
            have, inserted=have.inserted + each.inserted, updated=have.updated + each.updated,
            deleted=have.deleted + each.deleted,
        )  # fmt: skip
    return tuple(found.values())
