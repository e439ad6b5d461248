"""From segments of the archive to blobs of entries: what one worker does with its pieces of a plan.

Row changes are found (`walk`), grouped by epoch, table and the schema version they were written at, decoded with the
table info of that version, projected onto the columns that the table has at its commit ts, and cut into buckets by key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, Mutations, blocks, decode_images, key_hash, key_rank, walk
from pumphouse.codec.layout import RowLayout, arrow_field
from pumphouse.errors import CodecError, ColumnMismatch, MissingColumn
from pumphouse.loader.blob import Blob, blobs_of
from pumphouse.loader.context import LoadContext
from pumphouse.loader.fold import COUNT_FIELD, ORDER_FIELDS, LastOfKeys, fold_multiset
from pumphouse.loader.tables import Wanted, WantedTables
from pumphouse.loader.work import Piece
from pumphouse.model.tso import Tso
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion

# Entries that a worker holds, of all tables, before it folds, cuts and hands on those of the largest.
_HELD_BYTES = 128 << 20
# What is read to find where buckets begin: so much in all, of so many pieces of a table, so many changes of so many row
# groups of a piece.
_SAMPLE_BYTES, _SAMPLE_PIECES, _SAMPLE_GROUPS, _SAMPLE_CHANGES = 256 << 20, 8, 2, 4096
_COLUMNS = ("commit_ts", "start_ts", "part", "payload")


@dataclass(frozen=True, slots=True)
class _Txns:
    """Order of each payload of a batch."""

    commit_ts: np.ndarray
    start_ts: np.ndarray
    part: np.ndarray


class Decoder:
    """Decodes pieces of one plan; holds at most `_HELD_BYTES` of entries and one batch."""

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        self._plan = context.plan
        self._wanted = WantedTables(context.plan, context.timeline, context.dialect)
        self._pending: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        self._bytes: dict[tuple[int, int], int] = {}
        self._layouts = Layouts(context.timeline)

    def run(self, pieces: Iterable[Piece]) -> Iterator[Blob]:
        """Blobs of entries, each of one epoch, table and bucket."""
        for piece in pieces:
            rows = piece.table_id is not None
            for batch in self._context.read_rows(piece) if rows else self._context.read(piece, _COLUMNS):
                if piece.table_id is not None:
                    self._add_rows(piece.table_id, piece.upto, batch)
                else:
                    self._add(batch)
                while sum(self._bytes.values()) >= _HELD_BYTES:
                    yield from self._flush(max(self._bytes, key=self._bytes.__getitem__))
        for key in list(self._pending):
            yield from self._flush(key)

    def ranges(self, pieces: Sequence[Piece]) -> dict[int, tuple[int, ...]]:
        """Where the buckets of each table begin (`Plan.ranges`), so that a sample of the changes fills them alike.

        A table is left out whose key's first column has too few values for that.
        """
        for piece in _some(pieces, self._plan.buckets):
            if piece.table_id is None:
                for batch in self._context.read(piece, _COLUMNS, _SAMPLE_GROUPS):
                    self._add(batch, most=_SAMPLE_CHANGES)
            else:
                for batch in self._context.read_rows(piece):
                    step = -(-batch.num_rows // _SAMPLE_CHANGES)
                    self._add_rows(piece.table_id, piece.upto, batch.take(pa.array(np.arange(0, batch.num_rows, step))))
        ranks: dict[int, list[np.ndarray]] = defaultdict(list)
        for (_, table_id), batches in self._pending.items():
            key = self._wanted.key_of(batches[0].schema)
            if key and self._plan.bucket_count(table_id) > 1:
                ranks[table_id] += [key_rank(batch.column(key[0])) for batch in batches]
        found = {}
        for table_id, parts in ranks.items():
            whole, count = np.sort(np.concatenate(parts)), self._plan.bucket_count(table_id)
            begins = np.unique(whole[np.arange(1, count) * len(whole) // count])
            if 2 * len(begins) >= count:
                found[table_id] = tuple(map(int, begins))
        return found

    def _add(self, batch: pa.RecordBatch, most: int = 0) -> None:
        txns = _Txns(*(batch.column(name).to_numpy() for name in ("commit_ts", "start_ts", "part")))
        try:
            found = walk(batch.column("payload"))
        except CodecError as error:
            at = int(error.txn or 0)
            raise CodecError(
                f"transaction (start {txns.start_ts[at]}, commit {txns.commit_ts[at]}): {error}", **error.facts
            ) from error
        places = np.searchsorted(np.asarray(self._plan.boundaries, np.int64), txns.commit_ts)[found.txn]
        if self._plan.without:
            keep = ~np.isin(txns.commit_ts, self._plan.without)[found.txn]
            places, found = places[keep], found.take(keep)
        if self._context.lows:
            keep = _above(found.table_id, txns.commit_ts[found.txn], self._context.lows)
            places, found = places[keep], found.take(keep)
        if most and len(found) > most:
            some = np.arange(0, len(found), -(-len(found) // most))
            places, found = places[some], found.take(some)
        # Alike is what one epoch of a table wants and one version of it wrote, whatever other tables' DDLs did.
        alike: dict[tuple[int, int, int], list[np.ndarray]] = defaultdict(list)
        shapes: dict[tuple[int, int], tuple[Wanted, TableVersion]] = {}
        for rows in groups_of(places, found.table_id, found.schema_version, found.op):
            first = rows[0]
            wanted = self._wanted.of(int(found.table_id[first]), int(txns.commit_ts[found.txn[first]]))
            if wanted is not None:
                written = self._context.timeline.at_version(wanted.table_id, int(found.schema_version[first]))
                shapes[id(wanted), id(written)] = wanted, written
                alike[id(wanted), id(written), int(found.op[first])].append(rows)
        for (a, b, _), parts in alike.items():
            rows = np.sort(np.concatenate(parts))
            for block in blocks(found.row_len[rows]):
                self._decode(found.take(rows[block]), txns, *shapes[a, b])

    def _add_rows(self, table_id: int, low: Tso, batch: pa.RecordBatch) -> None:
        """Rows of a dump: they stand where no change above ``low`` says otherwise, so they count as no change."""
        wanted = self._wanted.of(table_id, low)
        if wanted is None:
            return
        rows = _projected(batch, wanted)
        if not wanted.key:
            self._keep(wanted.epoch, wanted, rows, [pa.array(np.ones(rows.num_rows, np.int64))], [COUNT_FIELD])
            return
        lows = pa.array(np.full(rows.num_rows, low, np.int64))
        order = [lows, lows, pa.array(np.zeros(rows.num_rows, np.int64))]
        self._keep_keyed(wanted.epoch, wanted, rows, order, np.zeros(rows.num_rows), put=True)

    def _decode(self, part: Mutations, txns: _Txns, wanted: Wanted, written: TableVersion) -> None:
        op, epoch = int(part.op[0]), wanted.epoch
        layout = self._layouts.of(wanted, written)
        commit_ts, start_ts = txns.commit_ts[part.txn], txns.start_ts[part.txn]
        position = txns.part[part.txn].astype(np.int64) << 40 | part.seq << 1
        # Of a row that goes, or changes, its key says which one it is.
        images = images_of(part, wanted, layout, wanted.key or None)
        old, new = images if op == UPDATE else (images, images)
        if not wanted.key:
            signed = [(new, 1)] if op == INSERT else [(old, -1)] if op == DELETE else [(old, -1), (new, 1)]
            for batch, sign in signed:
                self._keep(epoch, wanted, batch, [pa.array(np.full(batch.num_rows, sign))], [COUNT_FIELD])
            return
        order = [pa.array(commit_ts), pa.array(start_ts), pa.array(position)]
        if op == DELETE:
            self._keep_keyed(epoch, wanted, _nullable(old), order, np.full(len(part), -1), put=False)
        elif op == UPDATE:
            moved = moved_of(old, new, wanted.key)
            if moved is not None:
                before = [column.filter(moved) for column in order]
                gone = _nullable(old.filter(moved))
                self._keep_keyed(epoch, wanted, gone, before, np.full(gone.num_rows, -1), put=False)
            order[2] = pa.array(position + 1)  # after the delete of its own old key
            came = np.zeros(len(part)) if moved is None else moved.to_numpy(zero_copy_only=False)
            self._keep_keyed(epoch, wanted, new, order, came, put=True)
        else:
            self._keep_keyed(epoch, wanted, new, order, np.ones(len(part)), put=True)

    def _keep_keyed(
        self,
        epoch: int,
        wanted: Wanted,
        batch: pa.RecordBatch,
        order: list[pa.Array],
        net: np.ndarray,
        *,
        put: bool,
    ) -> None:
        stands = pa.array(np.full(batch.num_rows, put))
        self._keep(epoch, wanted, batch, [*order, stands, pa.array(net.astype(np.int32))], list(ORDER_FIELDS))

    def _keep(
        self, epoch: int, wanted: Wanted, batch: pa.RecordBatch, ours: list[pa.Array], fields: list[pa.Field]
    ) -> None:
        head = wanted.head(epoch)
        schema = pa.schema([*batch.schema, *fields], metadata=head.to_metadata())
        entries = pa.RecordBatch.from_arrays([*batch.columns, *ours], schema=schema)
        at = (epoch, wanted.table_id)
        self._pending.setdefault(at, []).append(entries)
        self._bytes[at] = self._bytes.get(at, 0) + entries.nbytes

    def _flush(self, at: tuple[int, int]) -> Iterator[Blob]:
        del self._bytes[at]
        entries = pa.Table.from_batches(self._pending.pop(at)).combine_chunks()
        key = self._wanted.key_of(entries.schema)
        if key:
            last = LastOfKeys.of(entries, key)
            buckets = self._buckets(at[1], last.keys(key))
            order = np.argsort(buckets, kind="stable")
            folded, buckets = last.in_order(order).to_entries(), buckets[order]
        else:
            folded = fold_multiset(entries)
            buckets = self._buckets(at[1], folded.drop_columns([COUNT_FIELD.name]))
            order = np.argsort(buckets, kind="stable")
            folded, buckets = folded.take(pa.array(order)), buckets[order]
        for bucket in np.unique(buckets):
            begin, end = np.searchsorted(buckets, [bucket, bucket + 1])
            yield from blobs_of(folded.slice(begin, end - begin), bucket=int(bucket))

    def _buckets(self, table_id: int, keys: pa.Table) -> np.ndarray:
        count, ranges = self._plan.bucket_count(table_id), self._plan.ranges.get(table_id)
        if count == 1 or keys.num_rows == 0:
            return np.zeros(keys.num_rows, np.int64)
        whole = keys.combine_chunks().to_batches()[0]
        if ranges is None:
            return (key_hash(whole) % np.uint64(count)).astype(np.int64)
        return np.searchsorted(np.array(ranges, np.uint64), key_rank(whole.column(0)), "right")


class Layouts:
    """How rows of one version of a table become rows of another, remembered."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._found: dict[tuple[int, int, int], RowLayout] = {}

    def of(self, wanted: Wanted, written: TableVersion) -> RowLayout:
        """From the version that a row was written at to the wanted one."""
        at = (wanted.table_id, written.schema_version, wanted.schema_version)
        if at not in self._found:
            known = {column.id for column in written.table.columns}
            rewritten = {}
            if any(column.id not in known for column in wanted.table.public_columns):
                rewritten = self._timeline.rewritten(written, wanted.schema_version)
            self._found[at] = RowLayout.of(written.table, wanted.table, wanted.key, rewritten)
        return self._found[at]


def images_of(part: Mutations, wanted: Wanted, layout: RowLayout, old_names: Sequence[str] | None) -> Any:
    """Images of row changes of one kind and table version: a batch, of updates a pair (`decode_images`)."""
    name = f"{wanted.db}.{wanted.table.name}"
    try:
        return decode_images(part.data, part.row_start, part.row_len, int(part.op[0]), layout, old_names)
    except MissingColumn as error:
        raise MissingColumn(
            f"{name}: {error}",
            hint=f"a DROP COLUMN of {name} was under way when these rows were written, and its end lies beyond "
            "what was asked for: nothing of this plan was done; load again when the archive has it "
            "(`pumphouse snapshot`), or restore to a moment after it",
            **(error.facts | {"table": name}),
        ) from error
    except CodecError as error:
        raise CodecError(f"{name}: {error}", **error.facts) from error
    except ColumnMismatch as error:
        raise ColumnMismatch(f"{name}: {error}", **(error.facts | {"table": name})) from error


def _some(pieces: Sequence[Piece], tables: Mapping[int, int]) -> Iterator[Piece]:
    """Pieces to sample, some of each table's dump and some of the log."""
    by_table: dict[int | None, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if piece.table_id is None or piece.table_id in tables:
            by_table[piece.table_id].append(piece)
    left = _SAMPLE_BYTES if tables else 0
    for found in by_table.values():
        for piece in found[:: -(-len(found) // _SAMPLE_PIECES)]:
            if left > 0:
                left -= piece.segment.bytes
                yield piece


def _above(table_id: np.ndarray, commit_ts: np.ndarray, lows: Mapping[int, int]) -> np.ndarray:
    """Mask of the changes that no dump of their table holds already."""
    ids, where = np.unique(table_id, return_inverse=True)
    low = np.array([lows.get(int(each), 0) for each in ids], np.int64)
    above: np.ndarray = commit_ts > low[where]
    return above


def _projected(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """A dump's columns as the table has them, by column id; ColumnMismatch."""
    by_id = {int(field.metadata[b"id"]): at for at, field in enumerate(batch.schema)}
    columns, fields = [], []
    for column in wanted.table.public_columns:
        if column.generated:
            continue
        field = arrow_field(column)
        at = by_id.get(column.id)
        if at is None or batch.schema.field(at).type != field.type:
            raise ColumnMismatch(
                f"the dump of {wanted.db}.{wanted.table.name} has no column {column.name} (id {column.id}) of type "
                f"{field.type}",
                hint="take a new one: pumphouse archive dump",
                table_id=wanted.table_id,
            )
        columns.append(batch.column(at))
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


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


def _nullable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same with a schema that allows NULL: only the key of it is there."""
    schema = pa.schema([field.with_nullable(True) for field in batch.schema], metadata=batch.schema.metadata)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
