"""The columnar codec: row changes and their values as arrays and Arrow batches, no Python object a row.

Three steps, each over whole buffers: :func:`walk` finds the row changes in Binlog payloads, :func:`decode_images` turns
the images of one table version into Arrow columns, :func:`key_hash` hashes key columns. The readable reference is
``tests/support/rowreference.py``; property tests hold both sides equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pumphouse.codec import hashing, locate, texts
from pumphouse.codec import walk as walk_kernels
from pumphouse.codec.columns import Images, build, check
from pumphouse.codec.jit import Bytes, Ints, UInts, frozen
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.retype import keeps_values, retyped
from pumphouse.errors import CodecError, ColumnMismatch, MissingColumn

INSERT, UPDATE, DELETE = 0, 1, 2
_KINDS = ("inserted", "updated", "deleted")
_BLOCK_BYTES, _MIN_BLOCK, _MAX_BLOCK = 1 << 20, 512, 16384
# Bytes of a payload for each of its row changes, more or less.
_USUAL_CHANGE = 256
_NO_HANDLE: Ints = frozen(np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Mutations:
    """Row changes of many transactions: parallel arrays, one entry a row change.

    Attributes:
        data: The one buffer that ``row_start`` counts in (of the payloads given to :func:`walk`).
        txn: Index of the payload.
        table_id: Logical table id.
        schema_version: Schema version of the writer.
        op: 0 insert, 1 update, 2 delete.
        seq: Place within the transaction, from 0.
        row_start: Where the row image starts in ``data``.
        row_len: Bytes of the row image.
    """

    data: Bytes
    txn: Ints
    table_id: Ints
    schema_version: Ints
    op: Bytes
    seq: Ints
    row_start: Ints
    row_len: Ints

    def __len__(self) -> int:
        return len(self.txn)

    def take(self, rows: NDArray[Any] | slice) -> Mutations:
        """The entries with these indices, or those where a mask is true; the buffer is shared."""
        if not isinstance(rows, slice) and rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        return Mutations(self.data, *(column[rows] for column in self._columns()))

    def with_room(self, used: int, room: int) -> Mutations:
        """The first ``used`` entries and, behind them, what is to be filled, up to ``room``."""
        columns = self._columns()
        return Mutations(
            self.data, *(np.concatenate([each[:used], np.empty(room - used, each.dtype)]) for each in columns)
        )

    def _columns(self) -> list[NDArray[Any]]:
        return [getattr(self, field.name) for field in fields(self)[1:]]

    def table_stats(self) -> dict[int, tuple[int, int]]:
        """Row changes and their bytes by table id."""
        ids, where = np.unique(self.table_id, return_inverse=True)
        rows = np.bincount(where, minlength=len(ids))
        sizes = np.zeros(len(ids), np.int64)
        np.add.at(sizes, where, self.row_len)
        return {int(i): (int(r), int(s)) for i, r, s in zip(ids, rows, sizes, strict=True)}


def binary_buffers(array: pa.Array | pa.ChunkedArray, *, nulls: bool = False) -> tuple[Bytes, Ints]:
    """Bytes and ``len + 1`` offsets of a binary or string array, without copying the bytes.

    Raises:
        CodecError: the array has nulls (and ``nulls`` does not allow them) or is of another type.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if array.null_count and not nulls:
        raise CodecError("an array of payloads has nulls")
    if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
        width: type[np.int32 | np.int64] = np.int64
    elif pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        width = np.int32
    else:
        raise CodecError(f"an array of payloads is {array.type}, not binary or text")
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offsets_buffer is None:
        return frozen(np.zeros(0, np.uint8)), frozen(np.zeros(len(array) + 1, np.int64))
    offsets = np.frombuffer(offsets_buffer, width)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return frozen(data), frozen(offsets.astype(np.int64, copy=False))


def walk(payloads: pa.Array | pa.ChunkedArray) -> Mutations:
    """Find the row changes of merged Binlog payloads, in order.

    Args:
        payloads: Binary array of Binlogs; those without a prewrite value (DDL, fakes) have no row changes.

    Raises:
        CodecError: a payload does not parse, uses obsolete fields or has an unknown mutation type. Facts: txn.
    """
    data, offsets = binary_buffers(payloads)
    failed, state, cursors = np.zeros(2, np.int64), np.zeros(3, np.int64), np.zeros(4, np.int64)
    found = _none(data).with_room(0, int(offsets[-1] - offsets[0]) // _USUAL_CHANGE + 16)
    while True:
        walk_kernels.fill_rows(
            data,
            offsets,
            found.txn,
            found.table_id,
            found.schema_version,
            found.op,
            found.seq,
            found.row_start,
            found.row_len,
            cursors,
            state,
            failed,
        )
        if failed[0]:
            reason = walk_kernels.REASONS[int(failed[0])]
            raise CodecError(f"payload {failed[1]} cannot be read: {reason}", txn=int(failed[1]), reason=reason)
        used = int(state[1])
        if not state[2]:
            return found.take(slice(used))
        found = found.with_room(used, 2 * (used + int(state[2])))


def _none(data: Bytes) -> Mutations:
    empty = np.zeros(0, np.int64)
    return Mutations(data, empty, empty, empty, np.zeros(0, np.uint8), empty, empty, empty)


def blocks(lengths: Ints) -> Iterator[slice]:
    """Cut row images into blocks, each for one call of :func:`decode_images`.

    Every column is a pass over the images: as long as they stay in the processor's cache, that is twice as fast.
    Smaller blocks cost more around the calls than they save, so all are of about one size.
    """
    most = min(max(_BLOCK_BYTES * len(lengths) // max(int(lengths.sum()), 1), _MIN_BLOCK), _MAX_BLOCK)
    count = max(-(-len(lengths) // most), 1)
    step = max(-(-len(lengths) // count), 1)
    for at in range(0, len(lengths), step):
        yield slice(at, at + step)


def decode_images(
    data: Bytes, starts: Ints, lengths: Ints, kind: int, layout: RowLayout, old_names: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Turn row images of one table version into Arrow columns.

    Args:
        data: Buffer, usually :attr:`Mutations.data`.
        starts: Where the images start in it.
        lengths: Their bytes.
        kind: INSERT, UPDATE or DELETE: all images are of this kind.
        layout: :meth:`RowLayout.of` the rows' version and the wanted one.
        old_names: Columns that are wanted of old images (of updates and deletes); the others are NULL. None = all.

    Returns:
        One batch of ``layout.schema`` in the order of the images; of updates a pair: old values, new values.

    Raises:
        CodecError: an image is damaged or does not fit the table. Facts: row (index into ``starts``).
        MissingColumn: an image lacks a column that tells which row it is.
        ColumnMismatch: old images have a column in a type that it had before.
    """
    starts = frozen(np.ascontiguousarray(starts, np.int64))
    lengths = frozen(np.ascontiguousarray(lengths, np.int64))
    data = frozen(np.ascontiguousarray(data, np.uint8))
    _check_ranges(data, starts, lengths)
    shape = (len(layout.ids), len(starts))
    first = np.full(shape, locate.ABSENT, np.int32)
    second = np.full(shape if kind == UPDATE else (0, 0), locate.ABSENT, np.int32)
    handle = layout.handle_columns if kind == INSERT else _NO_HANDLE
    failed = np.zeros(3, np.int64)
    locate.locate(data, starts, lengths, layout.ids, handle, layout.needed[kind], layout.partial, first, second, failed)
    if failed[0] == locate.NO_KEY:
        raise _missing(layout, int(failed[2]), int(failed[1]), f"of {len(starts)} {_KINDS[kind]} rows")
    check(failed, f"of {len(starts)} {_KINDS[kind]} rows")
    if kind == INSERT:
        _check_rewritten(first, layout)
    if kind == UPDATE:
        second[layout.kept] = first[layout.kept]
    batches = []
    for places in (first, second) if kind == UPDATE else (first,):
        images = Images(data, starts, lengths, places)
        old = kind != INSERT and places is first
        only = old_names if old else None
        arrays = [
            pa.nulls(len(starts), layout.schema.field(index).type)
            if only is not None and column.info.name not in only
            else _old_values(images, layout, index)
            if old and index in layout.former
            else build(images, index, column)
            for index, column in enumerate(layout.columns)
        ]
        batches.append(_batch(arrays, layout.schema, len(starts)))
    return (batches[0], batches[1]) if kind == UPDATE else batches[0]


def copied(sources: Sequence[Bytes], source: NDArray[Any], starts: Ints, lengths: Ints) -> Bytes:
    """Byte ranges of several buffers, one behind the other; ``source``: index of each range's, -1 of an empty one."""
    out = np.empty(int(lengths.sum()), np.uint8)
    to = np.cumsum(lengths) - lengths
    for at, data in enumerate(sources):
        rows = np.flatnonzero(source == at)
        _check_ranges(data, starts[rows], lengths[rows])
        texts.copy_ranges(data, frozen(starts[rows]), frozen(lengths[rows]), frozen(to[rows]), out)
    return frozen(out)


def _missing(layout: RowLayout, index: int, row: int, what: str) -> MissingColumn:
    name = layout.columns[index].info.name
    return MissingColumn(f"row image {row}, {what}: the column {name} is missing", row=row, column=name)


def _check_rewritten(places: NDArray[np.int32], layout: RowLayout) -> None:
    """MissingColumn where an insert has no value of a column that was rewritten, and that is not a NULL left out."""
    for index, before in layout.rewritten.items():
        lacking = places[index] == locate.ABSENT
        if not layout.columns[index].info.type.not_null:
            lacking &= places[before] != locate.ABSENT if before >= 0 else np.False_
        if lacking.any():
            raise _missing(layout, index, int(lacking.argmax()), f"of {places.shape[1]} inserted rows")


def _old_values(images: Images, layout: RowLayout, index: int) -> pa.Array:
    """Old values of a column that was rewritten since: in the type that it had before, else in the one that it has."""
    column, (at, before) = layout.columns[index], layout.former[index]
    rewritten = images.places[at] == locate.ABSENT
    lacking = rewritten & (images.places[index] == locate.ABSENT)
    if index in layout.told and lacking.any():
        raise _missing(layout, index, int(lacking.argmax()), f"of {len(images)} old rows")
    if rewritten.all():
        return build(images, index, column)
    if not keeps_values(before.info.type, column.info.type):
        raise ColumnMismatch(
            f"the type of column {column.info.name} was changed while these rows were written, and what its old values "
            "are in the new type is not known here",
            column=column.info.name,
        )
    try:
        values = retyped(build(images, at, before), column.arrow)
    except pa.ArrowInvalid as error:
        raise CodecError(f"column {column.info.name}: {error}") from error
    return pc.if_else(pa.array(rewritten), build(images, index, column), values) if rewritten.any() else values


def _batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    # A batch without columns keeps its row count only in this way.
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def _check_ranges(data: Bytes, starts: Ints, lengths: Ints) -> None:
    if len(starts) != len(lengths):
        raise CodecError(f"{len(starts)} starts but {len(lengths)} lengths of row images")
    if len(starts) and (int(starts.min()) < 0 or int(lengths.min()) < 0 or int((starts + lengths).max()) > len(data)):
        raise CodecError("row images lie outside their buffer")
    if len(lengths) and int(lengths.max()) >= 1 << 31:
        raise CodecError("a row image has more than 2 GiB")


def key_hash(batch: pa.RecordBatch, key_columns: Sequence[str | int] | None = None) -> UInts:
    """Hash the key columns of each row, the same in every process and release (rows are bucketed by it).

    Integers hash by their 64 bits, floats by those of the double, strings by their bytes; NULL is a value of its own.

    Args:
        batch: As :func:`decode_images` makes it, or of the same types.
        key_columns: Names or indexes, in key order; None is all columns.
    """
    hashes = np.zeros(batch.num_rows, np.uint64)
    for name in range(batch.num_columns) if key_columns is None else key_columns:
        column = batch.column(name)
        valid = valid_of(column)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            hashing.hash_words(words_of(column), valid, hashes)
        else:
            data, offsets = binary_buffers(column, nulls=True)
            hashing.hash_bytes(data, offsets, valid, hashes)
    return hashes


def key_rank(column: pa.Array) -> UInts:
    """A number for each value that keeps their order, the same in every process and release; 0 for NULL.

    Integers by value, strings by their first eight bytes, floats by their bits (equal ones alike, in no order).

    Args:
        column: As :func:`decode_images` makes it.
    """
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        ranks = words_of(column)
        if pa.types.is_signed_integer(column.type):
            ranks = ranks ^ np.uint64(1 << 63)
    else:
        data, offsets = binary_buffers(column, nulls=True)
        ranks = np.empty(len(column), np.uint64)
        hashing.prefixes(data, offsets, ranks)
    return frozen(np.where(valid_of(column) == 1, ranks, np.uint64(0)))


def valid_of(column: pa.Array) -> Bytes:
    """One byte a row: 1, or 0 for NULL."""
    bitmap = column.buffers()[0]
    if bitmap is None:
        return frozen(np.ones(len(column), np.uint8))
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return frozen(np.ascontiguousarray(bits[column.offset : column.offset + len(column)]))


def words_of(column: pa.Array) -> UInts:
    """64 bits a row; of NULLs any.

    The buffers are read, because pyarrow's ``to_numpy`` would import pandas: a second in every Spark task.
    """
    buffer = column.buffers()[1]
    letter = "f" if pa.types.is_floating(column.type) else "u" if pa.types.is_unsigned_integer(column.type) else "i"
    kind = np.dtype(f"{letter}{column.type.bit_width // 8}")
    values = np.zeros(0, kind) if buffer is None else np.frombuffer(buffer, kind)
    values = values[column.offset : column.offset + len(column)]
    if kind.kind == "f":
        # Adding 0.0 makes one zero of the two. What lies under a NULL may be anything, a signalling NaN too.
        with np.errstate(all="ignore"):
            return frozen((values.astype(np.float64) + 0.0).view(np.uint64))
    return frozen(values.astype(np.int64 if kind.kind == "i" else np.uint64, copy=False).view(np.uint64))
