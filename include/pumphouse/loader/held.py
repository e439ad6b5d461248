"""Entries that a worker holds until it folds them and hands them on, bounded in bytes over all tables.

Of a change of a table with a key, its key and its order are held, and where the row's image lies among the bytes that
were read. Values are decoded when the entries are handed on, of the rows that are left then: of a row that changes
often, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse import advice
from pumphouse.codec.columnar import UPDATE, Mutations, blocks, copied, decode_images, key_hash, key_rank
from pumphouse.codec.jit import Bytes, Ints
from pumphouse.codec.layout import RowLayout
from pumphouse.errors import CodecError, ColumnMismatch, MissingColumn
from pumphouse.loader.blob import Blob, blobs_of
from pumphouse.loader.fold import COUNT_FIELD, NET, NET_FIELD, ORDER_FIELDS, LastOfKeys, fold_multiset
from pumphouse.loader.plan import Plan
from pumphouse.loader.rules import anew_hint
from pumphouse.loader.selection import Selection
from pumphouse.loader.tables import Wanted
from pumphouse.loader.unit import UnitHead

# What a worker holds, of all tables: the bytes that were read, and the entries that say what is where in them.
HELD_BYTES = 128 << 20
# Where the image of an entry lies: in which bytes, from where on, how long; and the number of its `Shape`.
_SOURCE, _START, _LENGTH, _SHAPE = (f"pumphouse:image:{name}" for name in ("source", "start", "length", "shape"))
_IMAGE_FIELDS = (
    pa.field(_SOURCE, pa.int32()), pa.field(_START, pa.int64()), pa.field(_LENGTH, pa.int64()),
    pa.field(_SHAPE, pa.int32()),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """How the image of an entry becomes values; of an entry whose row goes (DELETE) only the key is wanted."""

    wanted: Wanted
    layout: RowLayout
    op: int


@dataclass(frozen=True, slots=True)
class _Place:
    """What is folded together. ``images``: entries whose rows are images; else they have their values."""

    epoch: int
    table_id: int
    images: bool


class Held:
    """What one worker holds of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._batches: dict[_Place, list[pa.RecordBatch]] = {}
        self._bytes: dict[_Place, int] = {}
        self._sources: list[Bytes] = []
        self._shapes: list[Shape] = []
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._selections: dict[int, Selection] = {}

    def add_values(self, wanted: Wanted, rows: pa.RecordBatch, ours: list[pa.Array], fields: list[pa.Field]) -> None:
        """Entries with the values of their rows; ``ours``: order and net change, or the count of copies."""
        self._add(_Place(wanted.epoch, wanted.table_id, images=False), wanted, rows, ours, fields)

    def add_images(self, shape: Shape, keys: pa.RecordBatch, ours: list[pa.Array], part: Mutations | None) -> None:
        """Entries with the images of ``part``, or with none where only the key is wanted."""
        at = id(shape.wanted), id(shape.layout), shape.op
        if at not in self._numbers:
            self._numbers[at] = len(self._shapes)
            self._shapes.append(shape)
        source, count = -1, keys.num_rows
        starts = lengths = np.zeros(count, np.int64)
        if part is not None:
            if not self._sources or self._sources[-1] is not part.data:
                self._sources.append(part.data)
            source, starts, lengths = len(self._sources) - 1, part.row_start, part.row_len
        images = _images(np.full(count, source), starts, lengths, np.full(count, self._numbers[at]))
        place = _Place(shape.wanted.epoch, shape.wanted.table_id, images=True)
        self._add(place, shape.wanted, keys, [*ours, *images], [*ORDER_FIELDS, *_IMAGE_FIELDS])

    def _add(
        self, place: _Place, wanted: Wanted, rows: pa.RecordBatch, ours: list[pa.Array], fields: list[pa.Field]
    ) -> None:
        schema = pa.schema([*rows.schema, *fields], metadata=wanted.head(place.epoch).to_metadata())
        entries = pa.RecordBatch.from_arrays([*rows.columns, *ours], schema=schema)
        if self._plan.where:
            if id(wanted) not in self._selections:
                self._selections[id(wanted)] = Selection(self._plan.where, wanted)
            entries = entries.filter(pa.array(self._selections[id(wanted)].mask(rows)))
            if not entries.num_rows:
                return
        self._batches.setdefault(place, []).append(entries)
        self._bytes[place] = self._bytes.get(place, 0) + entries.nbytes

    def take_first_of_keys(self) -> Iterator[tuple[int, pa.Array]]:
        """Let go of everything but the first column of each key: (table id, values)."""
        for place, batches in self._batches.items():
            key = UnitHead.of(batches[0].schema).key
            if key:
                yield from ((place.table_id, batch.column(key[0])) for batch in batches)
        self._batches, self._bytes, self._sources = {}, {}, []

    def overflow(self) -> Iterator[Blob]:
        """When more is held than may be, fold it; hand on the largest until no more than half as much is left."""
        if sum(map(len, self._sources)) + sum(self._bytes.values()) < HELD_BYTES:
            return
        folded = {place: self._folded(place) for place in list(self._batches)}
        sizes = {place: _size(entries) for place, entries in folded.items()}
        while sum(sizes.values()) > HELD_BYTES // 2:
            place = max(sizes, key=sizes.__getitem__)
            del sizes[place]
            yield from self._handed_on(place, folded.pop(place))
        sources: list[Bytes] = []
        for place, entries in folded.items():
            left = self._compact(entries, sources) if isinstance(entries, LastOfKeys) else entries
            self._batches[place] = left.to_batches()
            self._bytes[place] = left.nbytes
        self._sources = sources

    def rest(self) -> Iterator[Blob]:
        """Hand on all that is left."""
        for place in list(self._batches):
            yield from self._handed_on(place, self._folded(place))

    def _folded(self, place: _Place) -> LastOfKeys | pa.Table:
        del self._bytes[place]
        entries = pa.Table.from_batches(self._batches.pop(place)).combine_chunks()
        key = UnitHead.of(entries.schema).key
        if place.images:
            return LastOfKeys.of(entries, key)
        # Each row of a dump has a key of its own.
        return entries if key else fold_multiset(entries).combine_chunks()

    def _compact(self, last: LastOfKeys, sources: list[Bytes]) -> pa.Table:
        """Entries of which the images lie in bytes of their own, so that those which were read can go."""
        entries = last.to_entries()
        source, start, length = (entries.column(name).to_numpy() for name in (_SOURCE, _START, _LENGTH))
        images = copied(self._sources, source, start, length)
        columns = _images(
            np.where(source < 0, source, len(sources)), np.cumsum(length) - length, length,
            entries.column(_SHAPE).to_numpy(),
        )  # fmt: skip
        sources.append(images)
        for field, column in zip(_IMAGE_FIELDS, columns, strict=True):
            entries = entries.set_column(entries.schema.get_field_index(field.name), field, column)
        return entries.combine_chunks()

    def _handed_on(self, place: _Place, folded: LastOfKeys | pa.Table) -> Iterator[Blob]:
        """Decoded, and cut by bucket."""
        if isinstance(folded, pa.Table):
            head = UnitHead.of(folded.schema)
            # A plan of a release that had no STORED columns in its rows ends in the same buckets.
            keys = folded.select(list(head.key)) if head.key else folded.drop_columns([COUNT_FIELD.name, *head.stored])
            buckets = self._buckets(place.table_id, keys)
            order = np.argsort(buckets, kind="stable")
            yield from _cut([(buckets[order], folded.take(pa.array(order)))])
            return
        buckets = self._buckets(place.table_id, folded.keys(UnitHead.of(folded.entries.schema).key))
        order = np.argsort(buckets, kind="stable")
        folded, buckets = folded.in_order(order), buckets[order]
        source, shape = (folded.entries.column(name).to_numpy()[folded.at] for name in (_SOURCE, _SHAPE))
        pairs = source.astype(np.int64) * len(self._shapes) + shape
        parts = []
        for pair in np.unique(pairs):
            rows = np.flatnonzero(pairs == pair)
            where, number = divmod(int(pair), len(self._shapes))
            data = self._sources[where] if where >= 0 else None
            parts.append((buckets[rows], _with_values(folded.in_order(rows), self._shapes[number], data)))
        yield from _cut(parts)

    def _buckets(self, table_id: int, keys: pa.Table) -> np.ndarray:
        count, ranges = self._plan.bucket_count(table_id), self._plan.ranges.get(table_id)
        if count == 1 or keys.num_rows == 0:
            return np.zeros(keys.num_rows, np.int64)
        whole = keys.combine_chunks().to_batches()[0]
        if ranges is None:
            return (key_hash(whole) % np.uint64(count)).astype(np.int64)
        return np.searchsorted(np.array(ranges, np.uint64), key_rank(whole.column(0)), "right")


def _images(source: np.ndarray, start: np.ndarray, length: np.ndarray, shape: np.ndarray) -> list[pa.Array]:
    found = zip((source, start, length, shape), _IMAGE_FIELDS, strict=True)
    return [pa.array(values.astype(field.type.to_pandas_dtype(), copy=False)) for values, field in found]


def _size(folded: LastOfKeys | pa.Table) -> int:
    """Bytes that it takes by itself."""
    if isinstance(folded, pa.Table):
        return int(folded.nbytes)
    entries = folded.entries
    share = len(folded.at) / max(entries.num_rows, 1)
    return int(entries.nbytes * share) + int(entries.column(_LENGTH).to_numpy()[folded.at].sum())


def _cut(parts: Sequence[tuple[np.ndarray, pa.Table]]) -> Iterator[Blob]:
    """Blobs of each bucket; ``parts``: the bucket of each row, ascending, and the rows."""
    for bucket in np.unique(np.concatenate([buckets for buckets, _ in parts])) if parts else ():
        ranges = [(np.searchsorted(buckets, [bucket, bucket + 1]), rows) for buckets, rows in parts]
        rows = pa.concat_tables([rows.slice(begin, end - begin) for (begin, end), rows in ranges if begin < end])
        yield from blobs_of(rows.combine_chunks(), bucket=int(bucket))


def _with_values(last: LastOfKeys, shape: Shape, data: Bytes | None) -> pa.Table:
    """Entries of one shape, the images in ``data``, as entries with values."""
    entries, schema = last.entries, shape.layout.schema
    if data is None:
        keys = last.keys(shape.wanted.key)
        values = [
            keys.column(field.name) if field.name in shape.wanted.key else pa.nulls(len(last.at), field.type)
            for field in schema
        ]
    else:
        starts, lengths = (entries.column(name).to_numpy()[last.at] for name in (_START, _LENGTH))
        batches = []
        for block in blocks(lengths):
            images = images_of(data, starts[block], lengths[block], shape.op, shape.wanted, shape.layout, ())
            batches.append(images[1] if shape.op == UPDATE else images)
        values = pa.Table.from_batches(batches, schema).columns
    order = entries.select([field.name for field in ORDER_FIELDS if field.name != NET]).take(pa.array(last.at))
    fields = [*schema, *order.schema, NET_FIELD]
    return pa.Table.from_arrays(
        [*values, *order.columns, pa.array(last.net)], schema=pa.schema(fields, metadata=entries.schema.metadata)
    )


def images_of(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    op: int,
    wanted: Wanted,
    layout: RowLayout,
    old_names: Sequence[str] | None,
) -> Any:
    """Images of row changes of one kind and table version: a batch, of updates a pair (`decode_images`)."""
    name = f"{wanted.db}.{wanted.table.name}"
    try:
        return decode_images(data, starts, lengths, op, layout, old_names)
    except MissingColumn as error:
        raise MissingColumn(
            f"{name}: {error}",
            hint=advice.saying(
                "a DROP COLUMN of it was under way when these rows were written. If its end lies beyond what was "
                "asked for, nothing of this plan was done: load again when the archive has it ({}), or restore to a "
                "moment after it. If a rule stands in for it, take that away and make the target take the DDL; or, in "
                "a load, {}",
                advice.SNAPSHOT,
                anew_hint(name),
            ),
            **(error.facts | {"table": name}),
        ) from error
    except CodecError as error:
        raise CodecError(f"{name}: {error}", **error.facts) from error
    except ColumnMismatch as error:
        raise ColumnMismatch(f"{name}: {error}", **(error.facts | {"table": name})) from error
