"""The columnar codec: row changes and their values as arrays and Arrow batches, no Python object a row.

Three steps, each over whole buffers: :func:`walk` finds the row changes in Binlog payloads, :func:`decode_images` turns
the images of one table version into Arrow columns, :func:`key_hash` hashes key columns. The readable references are
``payload.row_changes`` and :mod:`include.codec.row`; property tests hold both sides equal.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from include.codec import walk as walk_kernels
from include.codec.jit import Bytes, Ints, frozen
from include.errors import CodecError

INSERT, UPDATE, DELETE = 0, 1, 2


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

    def take(self, rows: NDArray[Any]) -> Mutations:
        """The entries with these indices, or those where a mask is true; the buffer is shared."""
        names = [f.name for f in fields(self)][1:]
        return Mutations(self.data, *(getattr(self, name)[rows] for name in names))

    def table_stats(self) -> dict[int, tuple[int, int]]:
        """Row changes and their bytes by table id."""
        ids, where = np.unique(self.table_id, return_inverse=True)
        rows = np.bincount(where, minlength=len(ids))
        sizes = np.zeros(len(ids), np.int64)
        np.add.at(sizes, where, self.row_len)
        return {int(i): (int(r), int(s)) for i, r, s in zip(ids, rows, sizes, strict=True)}


def binary_buffers(array: pa.Array | pa.ChunkedArray) -> tuple[Bytes, Ints]:
    """Bytes and ``len + 1`` offsets of a binary or string array, without copying the bytes.

    Raises:
        CodecError: the array has nulls or is of another type.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    if array.null_count:
        raise CodecError("an array of payloads has nulls")
    if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
        width: type[np.int32 | np.int64] = np.int64
    elif pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        width = np.int32
    else:
        raise CodecError(f"an array of payloads is {array.type}, not binary")
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
    failed = np.zeros(2, np.int64)
    count = walk_kernels.count_rows(data, offsets, failed)
    found = Mutations(
        data,
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.uint8),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )
    if not failed[0]:
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
            failed,
        )
    if failed[0]:
        reason = walk_kernels.REASONS[int(failed[0])]
        raise CodecError(f"payload {failed[1]} cannot be read: {reason}", txn=int(failed[1]))
    return found
