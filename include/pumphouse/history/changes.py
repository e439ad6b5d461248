"""Changes of one table between two moments, in commit order, in columns; its DDLs stand in their places.

Windows and segments without the table are passed over by their manifests. Of the others the transactions are merged
over the Pumps' segments as they are read, so a large window, and a large transaction, is never in memory whole.
Windows that are small are read ahead by several threads.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.sourced import gtids_of
from pumphouse.archive.view import ArchiveView
from pumphouse.errors import UnknownTable, UsageError
from pumphouse.loader.changes import Form, Images, RowChanges
from pumphouse.loader.context import read_piece
from pumphouse.loader.decode import walked
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.loader.report import Progress, silent
from pumphouse.loader.work import SegmentPart, pieces_of
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.replay.order import in_commit_order
from pumphouse.restore.find import Sought, lived_as, tables_called
from pumphouse.schema.actions import Reach
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import DdlEvent

# Windows of fewer payload bytes are read ahead: so many at once, each whole.
_SMALL_BYTES, _AHEAD = 2 << 20, 16
_READERS = 8
_COLUMNS = ("commit_ts", "start_ts", "part", "payload")
_PART_BITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked for: changes of a table in (after, upto].

    Args:
        table: ``database.table``; it is meant under every name and id that it has in the range.
        after: commit ts, exclusive.
        upto: commit ts, inclusive.
        where: of these rows, before or after the change.
        columns: only these, and the key; () = all.
    """

    table: str
    after: Tso
    upto: Tso
    where: Predicate = ALL_ROWS
    columns: tuple[str, ...] = ()

    @property
    def sought(self) -> Sought:
        """The table in the range."""
        return Sought(after=self.after, upto=self.upto, tables=(self.table,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Changes of one form of the table, in order: parallel columns.

    ``position``: place within the transaction. ``gtid``: of a captured source, else null. ``op``: of
    `codec.columnar`. ``old`` and ``new`` have the same columns, as `decode_images` makes them; a row that there is
    not is all NULL (`op` says which).
    """

    form: Form
    commit_ts: np.ndarray
    start_ts: np.ndarray
    position: np.ndarray
    gtid: pa.LargeStringArray
    op: np.ndarray
    old: pa.RecordBatch
    new: pa.RecordBatch

    def __post_init__(self) -> None:
        """ValueError for columns that are not parallel: a batch without columns has no rows."""
        if not self.old.num_rows == self.new.num_rows == len(self.op):
            raise ValueError(f"{len(self.op)} changes have {self.old.num_rows} and {self.new.num_rows} rows")

    def __len__(self) -> int:
        return len(self.op)

    def slice(self, begin: int, end: int) -> Changed:
        """Some of them."""
        return Changed(
            form=self.form,
            commit_ts=self.commit_ts[begin:end],
            start_ts=self.start_ts[begin:end],
            position=self.position[begin:end],
            gtid=self.gtid.slice(begin, end - begin),
            op=self.op[begin:end],
            old=self.old.slice(begin, end - begin),
            new=self.new.slice(begin, end - begin),
        )


class ChangeReader:
    """Reads changes of one table, wherever its pieces are dealt to.

    Args:
        timeline: that covers the range.
        asked: the range, or a part of it; rows and columns.
        tables: ids that the table has in the whole range (`tables_of`).
    """

    def __init__(self, timeline: Timeline, asked: Asked, tables: frozenset[int]) -> None:
        self._asked = asked
        self._ids = tables | {part for part, of in timeline.partitions.items() if of in tables}
        # The schema's history of these tables alone: it travels.
        self.timeline = timeline.of_tables(tables)
        self._decoder = RowChanges(self.timeline, asked.where, asked.columns, tables)

    def pieces(self, view: ArchiveView) -> list[SegmentPart]:
        """What of the segments has anything, in the archive's order."""
        asked = self._asked
        return list(pieces_of(view.between(asked.after, asked.upto), asked.after, asked.upto, self._ids))

    def ddls(self) -> list[DdlEvent]:
        """DDLs that touched the table in the range, in order, and those that may have."""
        events = self.timeline.ddls(self._asked.after, self._asked.upto)
        return [each for each in events if each.table_ids & self._ids or touches_any(each)]

    def read(self, store: ObjectStore, pieces: Sequence[SegmentPart], tell: Progress = silent) -> Iterator[Changed]:
        """Changes of pieces that are in the archive's order, in commit order; each has at least one.

        Raises:
            BadSegment: an object is missing or damaged.
            UsageError: the table has no such key, or a value has another form.
            UnknownTable, MissingColumn, CodecError, ColumnMismatch: changes cannot be told; they are never left out.
        """
        done, windows = itertools.count(1), [list(some) for _, some in itertools.groupby(pieces, lambda p: p.window)]
        tell("reading windows", 0, len(windows))
        for changes in _ahead(windows, lambda some: self._of_window(store, some)):
            yield from changes
            tell("reading windows", next(done), len(windows))

    def _of_window(self, store: ObjectStore, pieces: Sequence[SegmentPart]) -> Iterator[Changed]:
        of_pump: dict[str, list[SegmentPart]] = defaultdict(list)
        for piece in pieces:
            of_pump[piece.segment.node_id].append(piece)
        streams = [
            itertools.chain.from_iterable(read_piece(store, piece, _COLUMNS) for piece in some)
            for some in of_pump.values()
        ]
        wanted = np.array(sorted(self._ids), np.int64)
        for binlogs in in_commit_order(streams, whole=False):
            commit_ts, start_ts, parts = (binlogs.column(name).to_numpy() for name in _COLUMNS[:3])
            found = walked(binlogs)
            found = found.take(np.isin(found.table_id, wanted))
            if not len(found):
                continue
            images = list(self._decoder.decoded(found, commit_ts[found.txn]))
            position = parts[found.txn].astype(np.int64) << _PART_BITS | found.seq
            yield from _in_order(images, commit_ts, start_ts, position, found.txn, binlogs["payload"])


def changes(archive: Archive, view: ArchiveView, asked: Asked, tell: Progress = silent) -> Iterator[Changed | DdlEvent]:
    """Changes and DDLs, as they are read; a DDL behind every change up to its commit ts.

    Args:
        archive: where the segments are.
        view: of the archive from ``asked.after`` or earlier on; it reaches ``asked.upto``.
        asked: what.
        tell: told of each window.

    Raises:
        UnknownTable: no table is called so in the range.
        UsageError: the table never has such a column, or such a key; or a key is asked for that a DDL made one of other
            columns.
        BadSegment, CodecError: an object is missing or damaged.
    """
    tables = tables_of(view.timeline, asked)
    forms = forms_between(view.timeline, asked, tables)
    require_columns(asked.columns, forms)
    if asked.where:
        require_kept_key(view.timeline, forms, asked.table)
    reader = ChangeReader(view.timeline, asked, tables)
    events = deque(reader.ddls())
    for some in reader.read(archive.store, reader.pieces(view), tell):
        begin = 0
        while events and events[0].commit_ts <= some.commit_ts[-1]:
            end = int(np.searchsorted(some.commit_ts, events[0].commit_ts, "right"))
            if end > begin:
                yield some.slice(begin, end)
            yield events.popleft()
            begin = end
        if begin < len(some):
            yield some.slice(begin, len(some))
    yield from events


def touches_any(event: DdlEvent) -> bool:
    """Whether a DDL changed rows of every table, or nobody knows of which."""
    return event.facts.reach is Reach.CLUSTER or bool(event.problem and not event.changes)


def range_in(view: ArchiveView, since: Tso | None, upto: Tso | None) -> tuple[Tso, Tso]:
    """The range that is asked for; None = from where the archive is kept, to where it ends. It is never cut to fit.

    Raises:
        UsageError: the archive does not cover it.
    """
    begin, end = since or view.kept.start, upto or view.end
    if not view.kept.start <= begin < end <= view.end:
        raise UsageError(
            f"the archive covers {show(view.kept.start)} to {show(view.end)}, asked for {show(begin)} to {show(end)}"
            f"{view.kept.aside(begin)}",
            hint="without a begin and an end, all of it is meant",
        )
    return begin, end


def moment_in(view: ArchiveView, at: Tso | None) -> Tso:
    """The moment that is asked for; None = where the archive ends; UsageError where the archive does not cover it."""
    found = view.end if at is None else at
    if not view.kept.start <= found <= view.end:
        raise UsageError(
            f"the archive covers {show(view.kept.start)} to {show(view.end)}, asked for {show(found)}"
            f"{view.kept.aside(found)}"
        )
    return found


def tables_of(timeline: Timeline, asked: Asked) -> frozenset[int]:
    """Ids of the tables that are called so at some moment of the range; UnknownTable."""
    if "." not in asked.table or "*" in asked.table:
        raise UsageError(f"{asked.table!r} is no table", hint="as DATABASE.TABLE, such as shop.orders")
    return tables_called(timeline, asked.sought)


def means_the_same(timeline: Timeline, sought: Sought, after: Tso) -> bool:
    """Whether the names mean the same tables if a search of ``sought`` is asked to go on behind ``after``.

    A table is found by the names of its range: one that was renamed before ``after`` would be left out from there on.
    """
    rest, versions = replace(sought, after=after), timeline.versions
    try:
        left = tables_called(timeline, rest)
    except UnknownTable:
        return False
    whole = tables_called(timeline, sought)
    return left == {each for each in whole if any(lived_as(versions[each], after, sought.upto))}


def require_columns(columns: Sequence[str], forms: Sequence[Form]) -> None:
    """UsageError for a column that none of a table's forms has, and for a form that has none of them, and no key."""
    there = dict.fromkeys(c.name for each in forms for c in each.columns())
    for name in columns:
        if name.lower() not in {each.lower() for each in there}:
            raise UsageError(
                f"{'.'.join(forms[-1].version.name)} has no column {name} with values in binlogs",
                hint=f"it has {', '.join(there)}",
            )
    for form in forms:
        if form.only(columns) == ():
            raise UsageError(
                f"{'.'.join(form.version.name)} has no key, and at {show(form.version.commit_ts)} none of the columns "
                f"{', '.join(columns)}: its changes would have nothing to tell",
                hint="leave them out, or begin where it has one of them",
            )


def require_kept_key(timeline: Timeline, forms: Sequence[Form], table: str) -> None:
    """UsageError where a table's key becomes one of other columns: its values then are those of other rows.

    So it does too where a table with another key takes the name ``table``, as a copy does that a tool has altered.
    """
    last: dict[int, Form] = {}
    for form in forms:
        if not form.wanted.key:
            continue
        name = ".".join(form.version.name)
        # The id that its forms share, and 0 for the name.
        for known_as in (form.wanted.table_id, 0) if name.lower() == table.lower() else (form.wanted.table_id,):
            before, last[known_as] = last.get(known_as, form), form
            if not _same_key(timeline, before, form):
                ts = form.version.commit_ts
                raise UsageError(
                    f"the key of {name} is {', '.join(before.wanted.key)}, and from {show(ts)} on it is "
                    f"{', '.join(form.wanted.key)}, of other columns: a value of the one is another row's in the other",
                    hint=f"ask for the two apart: --to {ts - 1}, and --from {ts}",
                )


def _same_key(timeline: Timeline, before: Form, form: Form) -> bool:
    """Whether two forms have the key of one set of columns; those of two tables are told by their names alone."""
    if before.wanted.table_id != form.wanted.table_id:
        return [each.lower() for each in before.wanted.key] == [each.lower() for each in form.wanted.key]
    rewritten = timeline.rewritten(before.version, form.version.schema_version)
    return _key_ids(before) == [rewritten.get(each, each) for each in _key_ids(form)]


def _key_ids(form: Form) -> list[int]:
    ids = {c.name: c.id for c in form.wanted.table.public_columns}
    return [ids[name] for name in form.wanted.key]


def forms_between(timeline: Timeline, asked: Asked, tables: frozenset[int]) -> list[Form]:
    """The forms that the table has in the range, the oldest first."""
    forms, found = RowChanges(timeline), []
    for table_id in tables:
        versions = timeline.versions.get(table_id, ())
        for version, behind in itertools.zip_longest(versions, versions[1:]):
            there = version.commit_ts <= asked.upto and (behind is None or behind.commit_ts > asked.after)
            if there and not version.dropped:
                found.append(forms.form(version))
    if not found:
        raise UnknownTable(f"there is no table {asked.table} between these moments")
    return sorted(found, key=lambda form: (form.version.commit_ts, form.version.table.id))


def _ahead(
    windows: Sequence[list[SegmentPart]], read: Callable[[list[SegmentPart]], Iterator[Changed]]
) -> Iterator[Iterator[Changed]]:
    """What is read of each window, in order; of small ones by threads."""
    waiting: deque[Future[list[Changed]] | list[SegmentPart]] = deque()
    left = iter(windows)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="history") as pool:
        try:
            while True:
                for some in itertools.islice(left, _AHEAD - len(waiting)):
                    small = sum(piece.bytes for piece in some) < _SMALL_BYTES
                    waiting.append(pool.submit(lambda each: list(read(each)), some) if small else some)
                if not waiting:
                    return
                first = waiting.popleft()
                yield iter(first.result()) if isinstance(first, Future) else read(first)
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(
    images: Sequence[Images],
    commit_ts: np.ndarray,
    start_ts: np.ndarray,
    position: np.ndarray,
    txn: np.ndarray,
    payloads: pa.LargeBinaryArray,
) -> Iterator[Changed]:
    """Images of changes that lie in order, put together by form as they came; ``txn``: the binlog of each change."""
    if not images:
        return
    rows = np.concatenate([each.rows for each in images])
    of = txn[rows]
    asked = np.zeros(len(payloads), np.bool_)  # of most binlogs nothing is asked for
    asked[of] = True
    told, place = gtids_of(payloads, np.flatnonzero(asked)), np.cumsum(asked) - 1
    number = {id(form): at for at, form in enumerate({id(each.form): each.form for each in images}.values())}
    of_form = np.concatenate([np.full(len(each.rows), number[id(each.form)]) for each in images])
    # Rows of a batch are in commit order, start order, and that of their transaction.
    order = np.argsort(rows, kind="stable")
    ends = np.flatnonzero(np.diff(of_form[order])) + 1
    whole = {
        at: _together([each for each in images if number[id(each.form)] == at])
        for at in dict.fromkeys(of_form.tolist())
    }
    within = np.empty(len(rows), np.int64)  # place of each row among those of its form
    for at in whole:
        mine = of_form == at
        within[mine] = np.arange(int(mine.sum()))
    for some in np.split(order, ends):
        form, ops, old, new = whole[int(of_form[some[0]])]
        taken = pa.array(within[some])
        yield Changed(
            form=form, commit_ts=commit_ts[of[some]], start_ts=start_ts[of[some]], position=position[rows[some]],
            gtid=told.take(pa.array(place[of[some]])), op=ops[within[some]], old=old.take(taken), new=new.take(taken),
        )  # fmt: skip


def _together(images: Sequence[Images]) -> tuple[Form, np.ndarray, pa.RecordBatch, pa.RecordBatch]:
    """Images of one form, one behind the other."""
    schema = next(rows.schema for rows in (images[0].old, images[0].new) if rows is not None)
    ops = np.concatenate([np.full(len(each.rows), each.op, np.uint8) for each in images])

    def side(rows: pa.RecordBatch | None, count: int) -> pa.RecordBatch:
        if rows is not None:
            return rows
        return pa.RecordBatch.from_arrays([pa.nulls(count, field.type) for field in schema], schema=schema)

    old, new = (
        pa.concat_batches([side(rows, len(each.rows)) for each, rows in found])
        for found in ([(each, each.old) for each in images], [(each, each.new) for each in images])
    )
    return images[0].form, ops, old, new
