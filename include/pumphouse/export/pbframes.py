"""Transactions as frames of binlog files (docs/formats.md, "Files for Reparo"): decoded and encoded as columns.

The payload of a transaction that is larger than `WHOLE_BYTES`, or becomes larger than `WRITTEN_BYTES`, or that the
archive has in parts, has the field ``dml_data`` several times: a protobuf reader takes them as one. Where it is cut
depends on the transaction alone, so another run writes the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pumphouse.archive.segment import lengths as lengths_of
from pumphouse.codec.columnar import INSERT, UPDATE, Mutations, blocks, decode_images, walk
from pumphouse.codec.crc import crc32c_of
from pumphouse.codec.jit import Bytes, Ints, frozen
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.retype import keeps_values
from pumphouse.errors import CodecError, ColumnMismatch, MissingColumn, SchemaError
from pumphouse.export import pbkernels as kernels
from pumphouse.export.pbrows import Events, EventShape, text_field, uvarint
from pumphouse.loader.decode import groups_of, layout_of
from pumphouse.loader.keys import key_columns
from pumphouse.loader.tables import Wanted
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion

# What is decoded and encoded at once: its payload, and what its rows become without their values. A row of few bytes
# gets the name and type of every column of its table.
WHOLE_BYTES, WRITTEN_BYTES = 8 << 20, 32 << 20
_SHAPES = 1024


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole frames, one behind the other.

    Attributes:
        data: Their bytes.
        ends: Where each ends in ``data``.
        commit_ts: Of each.
        changes: Row changes in each.
    """

    data: Bytes
    ends: Ints
    commit_ts: Ints
    changes: Ints


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the payload of a transaction that is too large for one go."""

    commit_ts: int
    start_ts: int
    data: Bytes
    changes: int


def ddl_payload(commit_ts: int, query: bytes) -> bytes:
    """The payload of a DDL."""
    return bytes([kernels.TP, 1, kernels.COMMIT_TS]) + uvarint(commit_ts) + text_field(4, query)


def framed(payload: bytes) -> bytes:
    """One payload as a frame."""
    head = kernels.MAGIC.tobytes() + len(payload).to_bytes(8, "little")
    data = frozen(np.frombuffer(payload, np.uint8))
    return head + payload + int(crc32c_of(data, 0, len(data), 0)).to_bytes(4, "little")


def large_head(commit_ts: int) -> bytes:
    """What the payload of a large transaction begins with, before its pieces."""
    return bytes([kernels.TP, 0, kernels.COMMIT_TS]) + uvarint(commit_ts)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Row changes of one kind, written at one version of a table and committed at another.

    Attributes:
        versions: The two, which so live as long as their ids count.
        name: Of the table, for people.
        op: INSERT, UPDATE or DELETE.
        layout: How the images are read.
        event: And written.
        old_names: Columns that old images have; None = all.
    """

    versions: tuple[TableVersion, TableVersion]
    name: str
    op: int
    layout: RowLayout
    event: EventShape
    old_names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _Walked:
    """Row changes of some transactions, and what each becomes: ``shape`` counts in ``shapes``, -1 = nobody wants it."""

    found: Mutations
    ts: Ints
    shape: Ints
    shapes: Sequence[_Shape]

    def take(self, rows: slice) -> _Walked:
        return _Walked(self.found.take(rows), self.ts[rows], self.shape[rows], self.shapes)

    def written(self) -> Ints:
        """Bytes of each without its values."""
        sizes = np.array([*(each.event.size for each in self.shapes), 0], np.int64)
        return sizes[self.shape]


class Encoder:
    """Row changes of an archive as frames.

    Args:
        timeline: the schema over the range.
        tables: ids of the tables that are wanted; None = all but the system's.
    """

    def __init__(self, timeline: Timeline, tables: frozenset[int] | None) -> None:
        self._timeline, self._tables = timeline, tables
        self._ends = np.array([each.commit_ts for each in timeline.events], np.int64)
        self._shapes: OrderedDict[tuple[int, int, int], _Shape] = OrderedDict()

    def encode(self, batch: pa.RecordBatch) -> Iterator[Frames | Piece]:
        """A batch of `transactions`, in its order. Of a large transaction come its pieces, maybe in several batches.

        Raises:
            CodecError, UnknownTable: a payload or a row image cannot be read.
            MissingColumn: an image lacks a column that tells which row it is.
            ColumnMismatch: an old image has such a column in a type that it had before.
        """
        behind = np.cumsum(lengths_of(batch.column("payload")))
        at = 0
        while at < batch.num_rows:
            below = int(behind[at - 1]) if at else 0
            stop = max(int(np.searchsorted(behind, below + WHOLE_BYTES, "right")), at + 1)
            yield from self._some(batch.slice(at, stop - at))
            at = stop

    def _some(self, batch: pa.RecordBatch) -> Iterator[Frames | Piece]:
        """Transactions that are `WHOLE_BYTES` of payload in all, or one that is larger."""
        commit_ts, start_ts = (batch.column(name).to_numpy() for name in ("commit_ts", "start_ts"))
        walked = self._walk(batch, commit_ts)
        ends = np.searchsorted(walked.found.txn, np.arange(batch.num_rows), "right")
        behind = np.concatenate([[0], np.cumsum(walked.written())])
        written = np.diff(behind[ends], prepend=0)
        large = (batch.column("parts").to_numpy() > 1) | (written > WRITTEN_BYTES)
        large |= lengths_of(batch.column("payload")) > WHOLE_BYTES
        at = 0
        while at < batch.num_rows:
            begin = int(ends[at - 1]) if at else 0
            if large[at]:
                yield from self._pieces(walked.take(slice(begin, int(ends[at]))), int(commit_ts[at]), int(start_ts[at]))
                at += 1
                continue
            others = np.flatnonzero(large[at:])
            stop = at + int(others[0]) if others.size else batch.num_rows
            room = int(np.searchsorted(behind[ends[at:stop]], behind[begin] + WRITTEN_BYTES, "right"))
            stop = at + max(room, 1)
            yield self._frames(walked.take(slice(begin, int(ends[stop - 1]))), commit_ts)
            at = stop

    def _frames(self, walked: _Walked, commit_ts: Ints) -> Frames:
        found, parts = self._events(walked)
        sizes = _scattered(len(found), ((rows, events.sizes) for rows, events in parts))
        at = np.empty(len(found), np.int64)
        frames, starts, lengths, bodies = (np.empty(len(commit_ts), np.int64) for _ in range(4))
        commit_ts = frozen(np.ascontiguousarray(commit_ts))
        count = kernels.lay_out(frozen(found.txn), sizes, commit_ts, at, frames, starts, lengths, bodies)
        frames, starts, lengths, bodies = frames[:count], starts[:count], lengths[:count], bodies[:count]
        ends = starts + lengths + kernels.TAIL_BYTES
        out = np.empty(int(ends[-1]) if count else 0, np.uint8)
        kernels.open_frames(out, commit_ts[frames], starts, lengths, bodies)
        for rows, events in parts:
            events.write(out, at[rows])
        kernels.close_frames(out, starts, lengths)
        changes = np.bincount(found.txn, minlength=len(commit_ts))[frames]
        return Frames(frozen(out), ends, commit_ts[frames], changes)

    def _pieces(self, walked: _Walked, commit_ts: int, start_ts: int) -> Iterator[Piece]:
        read, written = np.cumsum(walked.found.row_len), np.cumsum(walked.written())
        at = 0
        while at < len(read):
            room = (
                np.searchsorted(sums, (int(sums[at - 1]) if at else 0) + most, "right")
                for sums, most in ((read, WHOLE_BYTES), (written, WRITTEN_BYTES))
            )
            stop = max(int(min(room)), at + 1)
            found, parts = self._events(walked.take(slice(at, stop)))
            at = stop
            if not len(found):
                continue
            sizes = _scattered(len(found), ((rows, events.sizes) for rows, events in parts))
            ends = np.cumsum(sizes)
            head = np.frombuffer(bytes([kernels.DML_DATA]) + uvarint(int(ends[-1])), np.uint8)
            out = np.empty(len(head) + int(ends[-1]), np.uint8)
            out[: len(head)] = head
            places = ends - sizes + len(head)
            for rows, events in parts:
                events.write(out, places[rows])
            yield Piece(commit_ts, start_ts, frozen(out), len(found))

    def _walk(self, batch: pa.RecordBatch, commit_ts: Ints) -> _Walked:
        try:
            found = walk(batch.column("payload"))
        except CodecError as error:
            at = int(error.txn or 0)
            start, commit = (batch.column(name)[at].as_py() for name in ("start_ts", "commit_ts"))
            raise CodecError(f"transaction (start {start}, commit {commit}): {error}", **error.facts) from error
        ts = commit_ts[found.txn]
        places = np.searchsorted(self._ends, ts, "right")
        of, shapes = np.full(len(found), -1, np.int64), dict[int, tuple[int, _Shape]]()
        for rows in groups_of(places, found.table_id, found.schema_version, found.op):
            first = rows[0]
            table_id, version, op = (int(each[first]) for each in (found.table_id, found.schema_version, found.op))
            shape = self._shape(table_id, version, op, int(ts[first]))
            if shape is not None:
                of[rows] = shapes.setdefault(id(shape), (len(shapes), shape))[0]
        return _Walked(found, ts, of, [shape for _, shape in shapes.values()])

    def _events(self, walked: _Walked) -> tuple[Mutations, list[tuple[Ints, Events]]]:
        """The row changes that are wanted, in their order; and their events, with the row changes that they are of."""
        kept = np.flatnonzero(walked.shape >= 0)
        found, ts, of = walked.found.take(kept), walked.ts[kept], walked.shape[kept]
        parts: list[tuple[Ints, Events]] = []
        for rows in groups_of(of):
            parts += self._encoded(found, rows, ts, walked.shapes[of[rows[0]]])
        return found, parts

    def _encoded(self, found: Mutations, rows: Ints, ts: Ints, shape: _Shape) -> Iterator[tuple[Ints, Events]]:
        name = shape.name
        for block in blocks(found.row_len[rows]):
            part = rows[block]
            try:
                images = decode_images(
                    found.data, found.row_start[part], found.row_len[part], shape.op, shape.layout, shape.old_names
                )
            except (CodecError, ColumnMismatch) as error:
                when = ts[part[min(int(error.facts.get("row", 0)), len(part) - 1)]]
                hint = f"leave {name} out (--table names the others), or export up to {when - 1} and go on by a restore"
                missing = isinstance(error, MissingColumn | ColumnMismatch)
                raise type(error)(
                    f"{name}, the transaction at {show(Tso(int(when)))}: {error}",
                    hint=f"a DDL of {name} was under way: {hint}" if missing else hint,
                    **(error.facts | {"table": name}),
                ) from error
            yield part, Events(shape.event, images if shape.op == UPDATE else (images,))

    def _shape(self, table_id: int, schema_version: int, op: int, ts: int) -> _Shape | None:
        """What row changes become at a commit; None where they are not wanted or have no place to go."""
        version = self._timeline.at_ts(table_id, ts)
        if version.dropped or (is_system(version.db) if self._tables is None else version.table.id not in self._tables):
            return None
        written = self._timeline.at_version(version.table.id, schema_version)
        at = id(version), id(written), op
        shape = self._shapes.pop(at, None) or self._shape_of(version, written, op)
        self._shapes[at] = shape
        if len(self._shapes) > _SHAPES:
            self._shapes.popitem(last=False)
        return shape

    def _shape_of(self, version: TableVersion, written: TableVersion, op: int) -> _Shape:
        wanted = Wanted(
            table_id=version.table.id, db=version.db, table=version.table, schema_version=version.schema_version,
            key=key_columns(version.table), epoch=0,
        )  # fmt: skip
        layout, name = layout_of(self._timeline, wanted, written), ".".join(version.name)
        if not layout.columns:
            raise SchemaError(f"{name} has rows and no column but generated ones: a binlog file cannot say so")
        event = EventShape.of(version.db, version.table.name, op, layout)
        return _Shape((version, written), name, op, layout, event, _old_names(wanted, layout, op))


def _old_names(wanted: Wanted, layout: RowLayout, op: int) -> tuple[str, ...] | None:
    """Columns that old images have: those that tell the row, and all others whose old values are known.

    Of a column that was given another type while its rows were written, the old value may be of the former type and
    have no known twin in the new one. A reader finds the row by a unique key, and needs none of the rest.
    """
    if op == INSERT or not wanted.key:
        return None
    unknown = {
        layout.columns[at].info.name
        for at, (_, before) in layout.former.items()
        if not keeps_values(before.info.type, layout.columns[at].info.type)
    }
    unique = {part.name.lower() for index in wanted.table.indexes if index.unique for part in index.columns}
    unknown = {name for name in unknown if name not in wanted.key and name.lower() not in unique}
    return tuple(each.info.name for each in layout.columns if each.info.name not in unknown) if unknown else None


def _scattered(count: int, parts: Iterator[tuple[Ints, Ints]]) -> Ints:
    out = np.empty(count, np.int64)
    for rows, values in parts:
        out[rows] = values
    return out
