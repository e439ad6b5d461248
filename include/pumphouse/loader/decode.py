"""From segments of the archive to blobs of entries: what one worker does with its pieces of a plan.

Row changes are found (`walk`), grouped by epoch, table and the schema version they were written at, decoded with the
table info of that version as far as their key, and held (`Held`), which folds them, decodes what is left, projects it
onto the columns that the table has at its commit ts, and cuts it into buckets by key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse import advice
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, Mutations, blocks, key_rank, walk
from pumphouse.codec.defaults import missing_value, with_digits
from pumphouse.codec.layout import RowLayout, arrow_field
from pumphouse.errors import BinlogError, CodecError, ColumnMismatch, StoreError
from pumphouse.loader.blob import Blob, Stored
from pumphouse.loader.context import LoadContext
from pumphouse.loader.fold import COUNT_FIELD, GAP, GAP_TS, ORDER_FIELDS, POSITION, START, TS
from pumphouse.loader.held import Held, Shape, images_of
from pumphouse.loader.plan import Phase
from pumphouse.loader.tables import Wanted, WantedTables
from pumphouse.loader.work import SegmentPart, Work
from pumphouse.model.table import ColumnInfo, MysqlType
from pumphouse.model.tso import Tso
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion

# What a row without a key counts for, of each image of a change.
_SIGNS = {INSERT: (1,), DELETE: (-1,), UPDATE: (-1, 1)}
# What is read to find where buckets begin: so much in all, so many changes at most of each place, and so many places.
# Two places a bucket keep it below twice its size where keys ascend with time; one place for two, below four times.
_SAMPLE_BYTES, _SAMPLE_CHANGES = 128 << 20, 4096
_PLACES_OF_A_BUCKET, _FEWEST_PLACES, _MOST_PLACES, _LEAST_OF_A_PLACE = 2, 8, 2048, 64 << 10
_BUCKETS_OF_A_VALUE = 2
# Strings stay as they are.
_TOLD = r'("(?:[^"\\]|\\.)*")|(\b[0-9]+)e\+0\b'
_COLUMNS = ("commit_ts", "start_ts", "part", "payload")


@dataclass(frozen=True, slots=True)
class _Txns:
    """Order of each payload of a batch."""

    commit_ts: np.ndarray
    start_ts: np.ndarray
    part: np.ndarray


class Decoder:
    """Decodes pieces of one plan; holds at most `HELD_BYTES` of entries and one batch."""

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        self._plan = context.plan
        self._wanted = WantedTables(context)
        self._held = Held(context.plan)
        self._layouts = Layouts(context.timeline)

    def run(self, pieces: Iterable[SegmentPart]) -> Iterator[Blob]:
        """Blobs of entries, each of one epoch, table and bucket; and of units that are a segment (`Plan.whole`)."""
        for piece in pieces:
            if piece.table_id in self._plan.whole:
                yield from self._unit(piece)
                continue
            rows = piece.table_id is not None
            for batch in self._context.read_rows(piece) if rows else self._context.read(piece, _COLUMNS):
                if piece.table_id is not None:
                    self._add_rows(piece.table_id, piece.upto, batch)
                else:
                    self._add(batch)
                yield from self._held.overflow()
        yield from self._held.rest()

    def _unit(self, piece: SegmentPart) -> Iterator[Blob]:
        """A dump's segment as it is to be inserted; nothing is read yet."""
        table_id = piece.table_id or 0
        wanted = self._wanted.of(table_id, piece.upto)
        if wanted is None:
            return
        head = wanted.head(wanted.epoch)
        head = replace(head, unit=replace(head.unit, phase=int(Phase.INSERT), bucket=piece.number))

        context, dumped = self._context, self._dumped(table_id, piece.upto)

        def read() -> Iterator[pa.RecordBatch]:
            for batch in context.read_rows(piece):
                yield _projected(batch, wanted, dumped).replace_schema_metadata(head.to_metadata())

        content = Stored(head=head, size=piece.bytes, read=read)
        yield Blob(wanted.epoch, wanted.table_id, piece.number, int(Phase.INSERT), 0, piece.segment.rows, content)

    def _dumped(self, table_id: int, low: Tso) -> TableVersion:
        return self._context.timeline.at_ts(table_id, max(low, self._plan.from_ts))

    def ranges(self, work: Work) -> dict[int, tuple[int, ...]]:
        """Where the buckets of each table begin (`Plan.ranges`), so that a sample of the changes fills them alike.

        A table gets no ranges where one value of its key's first column fills several buckets, and where it was met at
        too few places. A hash of the key divides it then, which fills all alike.
        """
        ranks: dict[int, list[np.ndarray]] = defaultdict(list)  # an array a place
        for piece, at, most in _places(work):
            try:
                for met in self._sample(piece, at, most):
                    for table_id, parts in met.items():
                        ranks[table_id].append(np.concatenate(parts))
            except StoreError:
                raise
            except BinlogError:
                continue  # What is damaged, or cannot be decoded, is named by the load itself, which reads all of it.
        found = {}
        for table_id, places in ranks.items():
            whole, count = np.sort(np.concatenate(places)), self._plan.bucket_count(table_id)
            begins, times = np.unique(whole[np.arange(1, count) * len(whole) // count], return_counts=True)
            if times.max() <= _BUCKETS_OF_A_VALUE and 2 * len(places) >= count:
                found[table_id] = tuple(map(int, begins))
        return found

    def _sample(self, piece: SegmentPart, at: Sequence[float], most: int) -> Iterator[dict[int, list[np.ndarray]]]:
        """Of each place, ranks of the keys by table."""
        for batch in self._context.peek(piece, None if piece.table_id is not None else _COLUMNS, at, most):
            if piece.table_id is None:
                self._add(batch, most=_SAMPLE_CHANGES)
            else:
                some = np.arange(0, batch.num_rows, -(-batch.num_rows // _SAMPLE_CHANGES))
                self._add_rows(piece.table_id, piece.upto, batch.take(pa.array(some)))
            met: dict[int, list[np.ndarray]] = defaultdict(list)
            for table_id, values in self._held.take_first_of_keys():
                if self._plan.bucket_count(table_id) > 1:
                    met[table_id].append(key_rank(values))
            yield met

    def _add(self, batch: pa.RecordBatch, most: int = 0) -> None:
        txns = _Txns(*(batch.column(name).to_numpy() for name in ("commit_ts", "start_ts", "part")))
        found = walked(batch)
        places = np.searchsorted(np.asarray(self._plan.boundaries, np.int64), txns.commit_ts)[found.txn]
        left_out = np.isin(txns.commit_ts, self._plan.without)
        if self._context.lows:
            keep = _above(found.table_id, txns.commit_ts[found.txn], self._context.lows)
            places, found = places[keep], found.take(keep)
        if most and len(found) > most:
            some = np.arange(0, len(found), -(-len(found) // most))
            places, found = places[some], found.take(some)
        # Alike is what one epoch of a table wants and one version of it wrote, whatever other tables' DDLs did.
        alike: dict[tuple[int, int, int, bool], list[np.ndarray]] = defaultdict(list)
        shapes: dict[tuple[int, int], tuple[Wanted, TableVersion]] = {}
        for rows in groups_of(places << 1 | left_out[found.txn], found.table_id, found.schema_version, found.op):
            first = rows[0]
            gap = bool(left_out[found.txn[first]])
            with suppress(BinlogError) if gap else nullcontext():  # that it cannot be loaded may be why it is left out
                wanted = self._wanted.of(int(found.table_id[first]), int(txns.commit_ts[found.txn[first]]))
                if wanted is not None:
                    written = self._context.timeline.at_version(wanted.table_id, int(found.schema_version[first]))
                    shapes[id(wanted), id(written)] = wanted, written
                    alike[id(wanted), id(written), int(found.op[first]), gap].append(rows)
        for (a, b, _, gap), parts in alike.items():
            part = found.take(np.sort(np.concatenate(parts)))
            if not gap:
                self._decode(part, txns, *shapes[a, b])
            elif shapes[a, b][0].key:
                with suppress(BinlogError):
                    self._note_gaps(part, *shapes[a, b])

    def _add_rows(self, table_id: int, low: Tso, batch: pa.RecordBatch) -> None:
        """Rows of a dump: they stand where no change above ``low`` says otherwise, so they count as no change."""
        wanted = self._wanted.of(table_id, low)
        if wanted is None:
            return
        rows = _projected(batch, wanted, self._dumped(table_id, low))
        count = rows.num_rows
        if not wanted.key:
            self._held.add_values(wanted, rows, [pa.array(np.ones(count, np.int64))], [COUNT_FIELD])
            return
        lows = pa.array(np.full(count, low, np.int64))
        order = [lows, lows, pa.array(np.zeros(count, np.int64))]
        self._held.add_values(wanted, rows, [*order, *_effect(np.zeros(count), put=True)], list(ORDER_FIELDS))

    def _decode(self, part: Mutations, txns: _Txns, wanted: Wanted, written: TableVersion) -> None:
        op = int(part.op[0])
        if not wanted.key:
            layout = self._layouts.of(wanted, written)
            for block in blocks(part.row_len):
                images = images_of(part.data, part.row_start[block], part.row_len[block], op, wanted, layout, None)
                for batch, sign in zip(images if op == UPDATE else (images,), _SIGNS[op], strict=True):
                    count = pa.array(np.full(batch.num_rows, sign))
                    self._held.add_values(wanted, batch, [count], [COUNT_FIELD])
            return
        layout = self._layouts.of(wanted, written, wanted.key)
        images = images_of(part.data, part.row_start, part.row_len, op, wanted, layout, None)
        position = txns.part[part.txn].astype(np.int64) << 40 | part.seq << 1
        order = [pa.array(each) for each in (txns.commit_ts[part.txn], txns.start_ts[part.txn], position)]
        whole = self._layouts.of(wanted, written)
        going, staying = Shape(wanted, whole, DELETE), Shape(wanted, whole, op)
        if op == DELETE:
            self._held.add_images(going, images, [*order, *_effect(np.full(len(part), -1), put=False)], None)
            return
        came = np.ones(len(part))
        if op == UPDATE:
            old, images = images
            moved = moved_of(old, images, wanted.key)
            if moved is not None:
                before = [column.filter(moved) for column in order]
                gone = old.filter(moved)
                self._held.add_images(going, gone, [*before, *_effect(np.full(gone.num_rows, -1), put=False)], None)
            order[2] = pa.array(position + 1)  # after the delete of its own old key
            came = np.zeros(len(part)) if moved is None else moved.to_numpy(zero_copy_only=False)
        self._held.add_images(staying, images, [*order, *_effect(came, put=True)], part)

    def _note_gaps(self, part: Mutations, wanted: Wanted, written: TableVersion) -> None:
        """The keys of changes that the plan leaves out: what those of the others add up to says nothing."""
        layout, op = self._layouts.of(wanted, written, wanted.key), int(part.op[0])
        images = images_of(part.data, part.row_start, part.row_len, op, wanted, layout, None)
        for keys in images if op == UPDATE else (images,):
            order = [pa.array(np.full(len(part), GAP_TS)) for _ in (TS, START, POSITION)]
            gaps = _effect(np.full(len(part), GAP), put=False)
            self._held.add_images(Shape(wanted, self._layouts.of(wanted, written), DELETE), keys, [*order, *gaps], None)


def _effect(net: np.ndarray, *, put: bool) -> list[pa.Array]:
    """Whether the row stands after the change, and its net change."""
    return [pa.array(np.full(len(net), put)), pa.array(net.astype(np.int32))]


def walked(batch: pa.RecordBatch | pa.Table) -> Mutations:
    """Row changes of binlogs (``commit_ts``, ``start_ts``, ``payload``); a CodecError names the transaction."""
    try:
        return walk(batch.column("payload"))
    except CodecError as error:
        at = error.txn or 0
        start_ts, commit_ts = (batch.column(name)[at].as_py() for name in ("start_ts", "commit_ts"))
        raise CodecError(f"transaction (start {start_ts}, commit {commit_ts}): {error}", **error.facts) from error


class Layouts:
    """How rows of one version of a table become rows of another, remembered."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._found: dict[tuple[int, int, int, Sequence[str] | None], RowLayout] = {}

    def of(self, wanted: Wanted, written: TableVersion, only: tuple[str, ...] | None = None) -> RowLayout:
        """From the version that a row was written at to the wanted one; ``only``: of these columns."""
        at = (wanted.table_id, written.schema_version, wanted.schema_version, only)
        if at not in self._found:
            self._found[at] = layout_of(self._timeline, wanted, written, only)
        return self._found[at]


def layout_of(
    timeline: Timeline, wanted: Wanted, written: TableVersion, only: tuple[str, ...] | None = None
) -> RowLayout:
    """How rows of one version of a table become rows of another (`Layouts.of`)."""
    known = {column.id for column in written.table.columns}
    rewritten = {}
    if any(column.id not in known for column in wanted.table.public_columns):
        rewritten = timeline.rewritten(written, wanted.schema_version)
    return RowLayout.of(written.table, wanted.table, wanted.key, rewritten, only, doubles=wanted.doubles)


def _places(work: Work) -> Iterator[tuple[SegmentPart, Sequence[float], int]]:
    """Pieces to sample, where in each, and how many bytes at each place: evenly over the bytes of dumps and log.

    In all no more than the tables in buckets have: of one among many, most of what is read is others' changes.
    """
    buckets = work.plan.buckets
    found = [piece for piece in work.pieces if piece.bytes and (piece.table_id is None or piece.table_id in buckets)]
    if not found:
        return
    count = min(max(_PLACES_OF_A_BUCKET * sum(buckets.values()), _FEWEST_PLACES), _MOST_PLACES)
    budget = min(_SAMPLE_BYTES, sum(work.sizes.get(table_id, 0) for table_id in buckets))
    most = max(budget // count, _LEAST_OF_A_PLACE)
    ends = np.cumsum([piece.bytes for piece in found])
    places = (np.arange(count) + 0.5) * ends[-1] / count
    owners = np.searchsorted(ends, places, "right")
    for owner in np.unique(owners):
        piece = found[owner]
        yield piece, ((places[owners == owner] - ends[owner]) / piece.bytes + 1).tolist(), most


def _above(table_id: np.ndarray, commit_ts: np.ndarray, lows: Mapping[int, int]) -> np.ndarray:
    """Mask of the changes that no dump of their table holds already."""
    ids, where = np.unique(table_id, return_inverse=True)
    low = np.array([lows.get(int(each), 0) for each in ids], np.int64)
    above: np.ndarray = commit_ts > low[where]
    return above


def _projected(batch: pa.RecordBatch, wanted: Wanted, dumped: TableVersion) -> pa.RecordBatch:
    """A dump's columns as the table has them, by column id; ColumnMismatch.

    ``dumped``: the table when the dump was exact. A column that is younger has its default in these rows.
    """
    by_id = {int(field.metadata[b"id"]): at for at, field in enumerate(batch.schema)}
    columns, fields = [], []
    for column in wanted.table.public_columns:
        if column.generated:
            continue
        field = arrow_field(column)
        at = by_id.get(column.id)
        if at is None and column.name in wanted.computed:  # older releases took no STORED columns
            columns.append(pa.nulls(batch.num_rows, field.type))
            fields.append(field)
            continue
        if at is None and dumped.table.column_by_id(column.id) is None:
            columns.append(pa.repeat(_default(column, field), batch.num_rows))
            fields.append(field)
            continue
        if at is None or batch.schema.field(at).type != field.type:
            raise ColumnMismatch(
                f"the dump of {wanted.db}.{wanted.table.name} has no column {column.name} (id {column.id}) of type "
                f"{field.type}",
                hint=("take a new one: ", advice.dump()),
                table_id=wanted.table_id,
            )
        told = column.type.tp == MysqlType.JSON and not wanted.doubles
        columns.append(_untold(batch.column(at)) if told else batch.column(at))
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _untold(values: pa.Array) -> pa.Array:
    """JSON texts of a folded base without what tells a double from an integer (`json_text`)."""
    if not pc.any(pc.match_substring(values, "e+0")).as_py():
        return values
    return pc.replace_substring_regex(values, _TOLD, r"\1\2")


def _default(column: ColumnInfo, field: pa.Field) -> pa.Scalar:
    """What a row has in a column that is younger than it."""
    value = with_digits(column.type, missing_value(column))
    return pa.scalar(
        value.encode() if isinstance(value, str) and pa.types.is_large_binary(field.type) else value, field.type
    )


def groups_of(*keys: np.ndarray) -> Iterator[np.ndarray]:
    """Row indices of each distinct combination, ascending within it."""
    if not len(keys[0]):
        return
    order = np.lexsort(keys[::-1])
    changed = np.zeros(len(order) - 1, np.bool_)
    for key in keys:
        changed |= key[order][1:] != key[order][:-1]
    yield from np.split(order, np.flatnonzero(changed) + 1)


def moved_of(old: pa.RecordBatch, new: pa.RecordBatch, key: tuple[str, ...]) -> pa.Array | None:
    """Mask of the updates that change their key, or None."""
    moved = None
    for name in key:
        differs = pc.fill_null(pc.not_equal(old.column(name), new.column(name)), True)
        moved = differs if moved is None else pc.or_(moved, differs)
    return moved if pc.any(moved).as_py() else None
