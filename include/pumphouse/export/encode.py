"""Row changes of an archive in the form that somebody reads: decoded and encoded as columns, whatever the form.

A transaction that has more than `WHOLE_BYTES` in the archive, or becomes larger than `WRITTEN_BYTES`, or that the
archive has in parts, comes in pieces: each is the field ``dml_data`` of its message, and a protobuf reader takes them
as one. Where it is cut depends on the transaction alone, so another run writes the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from pumphouse.archive.segment import lengths as lengths_of
from pumphouse.codec.columnar import INSERT, UPDATE, Mutations, blocks, decode_images, walk
from pumphouse.codec.jit import Bytes, Ints, frozen
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.retype import keeps_values
from pumphouse.errors import CodecError, ColumnMismatch, MissingColumn, SchemaError, UnknownTable
from pumphouse.loader.decode import groups_of, layout_of
from pumphouse.loader.keys import key_columns
from pumphouse.loader.rules import unknown_hint
from pumphouse.loader.tables import Wanted
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion

# What is decoded and encoded at once: its payload, and what its rows become without their values. A row of few bytes
# gets the name and type of every column of its table.
WHOLE_BYTES, WRITTEN_BYTES = 8 << 20, 32 << 20
_SHAPES = 1024


class Rows(Protocol):
    """Row changes of one shape: how large each is, and its bytes where they are wanted."""

    sizes: Ints

    def write(self, out: Bytes, places: Ints) -> None:
        """Write each where ``places`` says."""


class Shape(Protocol):
    """What all row changes of one kind and version of a table have in common.

    Attributes:
        size: Bytes of one in which every value is NULL, or its default, with its share of what stands around it; about,
            and no fewer.
    """

    @property
    def size(self) -> int:  # noqa: D102
        ...

    def rows(self, images: Sequence[pa.RecordBatch]) -> Rows:
        """Row changes of this shape: the rows; of updates the old ones and the new ones."""


S = TypeVar("S", bound=Shape)


@dataclass(frozen=True, slots=True)
class Chosen(Generic[S]):
    """The row changes that are wanted, in their order.

    Attributes:
        found: As they were walked.
        shape: Index in ``shapes`` of each.
        shapes: Theirs, and maybe others.
        sizes: Bytes of each.
    """

    found: Mutations
    shape: Ints
    shapes: Sequence[S]
    sizes: Ints


@dataclass(frozen=True, slots=True)
class Laid:
    """A buffer for some row changes, in which everything but these is written.

    Attributes:
        out: The buffer.
        at: Where each row change goes.
        ends: Where each frame ends.
        txn: The transaction of each frame.
        close: Called when the row changes are written.
    """

    out: Bytes
    at: Ints
    ends: Ints
    txn: Ints
    close: Callable[[], None] = lambda: None


class Form(Protocol[S]):
    """How transactions are written."""

    def shape(self, version: TableVersion, op: int, layout: RowLayout) -> S:
        """Of changes of one kind to the rows of a table, as it is at their commit."""

    def frames(self, chosen: Chosen[S], commit_ts: Ints) -> Laid:
        """One frame for each transaction that has row changes; ``commit_ts`` of each transaction."""

    def piece(self, chosen: Chosen[S]) -> Laid:
        """One field ``dml_data`` with all of them."""


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


@dataclass(frozen=True, slots=True)
class _Shape:
    """Row changes of one kind, written at one version of a table and committed at another.

    Attributes:
        versions: The two, which so live as long as their ids count.
        name: Of the table, for people.
        op: INSERT, UPDATE or DELETE.
        layout: How the images are read.
        form: And written.
        old_names: Columns that old images have; None = all.
    """

    versions: tuple[TableVersion, TableVersion]
    name: str
    op: int
    layout: RowLayout
    form: Shape
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
        sizes = np.array([*(each.form.size for each in self.shapes), 0], np.int64)
        return sizes[self.shape]


class Encoder:
    """Row changes of an archive as frames.

    Args:
        timeline: the schema over the range.
        tables: ids of the tables that are wanted; None = all but the system's.
        form: how they are written.
        skipped: ids of tables that no DDL names and whose rows are left out.
    """

    def __init__(
        self, timeline: Timeline, tables: frozenset[int] | None, form: Form[Any], skipped: frozenset[int] = frozenset()
    ) -> None:
        self._timeline, self._tables, self._form, self._skipped = timeline, tables, form, skipped
        self._ends = np.array([each.commit_ts for each in timeline.events], np.int64)
        self._shapes: OrderedDict[tuple[int, int, int], _Shape] = OrderedDict()

    def encode(self, batch: pa.RecordBatch) -> Iterator[Frames | Piece]:
        """A batch of `transactions`, in its order. Of a large transaction come its pieces, maybe in several batches.

        Raises:
            CodecError: a payload or a row image cannot be read.
            UnknownTable: nobody knows what the rows of a table are, so they may be of one that is wanted.
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
        chosen, parts = self._chosen(walked)
        laid = self._form.frames(chosen, frozen(np.ascontiguousarray(commit_ts)))
        _write(laid, parts)
        changes = np.bincount(chosen.found.txn, minlength=len(commit_ts))[laid.txn]
        return Frames(frozen(laid.out), laid.ends, commit_ts[laid.txn], changes)

    def _pieces(self, walked: _Walked, commit_ts: int, start_ts: int) -> Iterator[Piece]:
        read, written = np.cumsum(walked.found.row_len), np.cumsum(walked.written())
        at = 0
        while at < len(read):
            room = (
                np.searchsorted(sums, (int(sums[at - 1]) if at else 0) + most, "right")
                for sums, most in ((read, WHOLE_BYTES), (written, WRITTEN_BYTES))
            )
            stop = max(int(min(room)), at + 1)
            chosen, parts = self._chosen(walked.take(slice(at, stop)))
            at = stop
            if len(chosen.found):
                laid = self._form.piece(chosen)
                _write(laid, parts)
                yield Piece(commit_ts, start_ts, frozen(laid.out), len(chosen.found))

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

    def _chosen(self, walked: _Walked) -> tuple[Chosen[Any], list[tuple[Ints, Rows]]]:
        """The row changes that are wanted; and what they become, with the row changes that it is of."""
        kept = np.flatnonzero(walked.shape >= 0)
        found, ts, of = walked.found.take(kept), walked.ts[kept], walked.shape[kept]
        parts: list[tuple[Ints, Rows]] = []
        for rows in groups_of(of):
            parts += self._encoded(found, rows, ts, walked.shapes[of[rows[0]]])
        sizes = np.empty(len(found), np.int64)
        for rows, made in parts:
            sizes[rows] = made.sizes
        return Chosen(found, of, [each.form for each in walked.shapes], sizes), parts

    def _encoded(self, found: Mutations, rows: Ints, ts: Ints, shape: _Shape) -> Iterator[tuple[Ints, Rows]]:
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
            yield part, shape.form.rows(images if shape.op == UPDATE else (images,))

    def _shape(self, table_id: int, schema_version: int, op: int, ts: int) -> _Shape | None:
        """What row changes become at a commit; None where they are not wanted or have no place to go."""
        try:
            version = self._timeline.at_ts(table_id, ts)
        except UnknownTable as error:
            if table_id in self._skipped:
                return None
            error.add_hint(unknown_hint(table_id))
            raise
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
            raise SchemaError(f"{name} has rows and no column but generated ones: no export can say so")
        form = self._form.shape(version, op, layout)
        return _Shape((version, written), name, op, layout, form, _old_names(wanted, layout, op))


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


def _write(laid: Laid, parts: Sequence[tuple[Ints, Rows]]) -> None:
    for rows, made in parts:
        made.write(laid.out, laid.at[rows])
    laid.close()
