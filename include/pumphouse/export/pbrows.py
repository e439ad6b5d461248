"""Decoded row changes as events of ``pb_binlog`` messages, a column at a time (docs/formats.md, "Files for Reparo")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, binary_buffers, valid_of, words_of
from pumphouse.codec.jit import Bytes, Ints, UInts
from pumphouse.codec.layout import RowLayout
from pumphouse.export import pbkernels as kernels
from pumphouse.export.protowire import frozen_bytes, text_field
from pumphouse.schema.column_sql import type_name

_TYPES = {INSERT: 0, UPDATE: 1, DELETE: 2}
_LENGTH_BYTES = 6  # a field's tag and length


@dataclass(frozen=True, slots=True)
class EventShape:
    """What all row changes of one kind and version of a table have in common: the bytes that are no values.

    Attributes:
        event: What each begins with.
        columns: What each of its columns begins with.
        size: Bytes of one in which every value is NULL, or its default; about, and no fewer.
    """

    event: Bytes
    columns: tuple[Bytes, ...]
    size: int

    @classmethod
    def of(cls, db: str, table: str, op: int, layout: RowLayout) -> EventShape:
        """``layout``: the columns."""
        event = text_field(1, db) + text_field(2, table) + bytes([3 << 3, _TYPES[op]])
        columns = [
            text_field(1, each.info.name)
            + text_field(2, bytes([each.info.type.tp]))
            + text_field(3, type_name(each.info.type))
            for each in layout.columns
        ]
        values = sum(_LENGTH_BYTES + 2 * (_LENGTH_BYTES + len(each.fill_bytes)) for each in layout.columns)
        size = _LENGTH_BYTES + len(event) + sum(map(len, columns)) + values
        return cls(frozen_bytes(event), tuple(map(frozen_bytes, columns)), size)

    def rows(self, images: Sequence[pa.RecordBatch]) -> Events:
        """Row changes of this shape: the rows; of updates the old ones and the new ones."""
        return Events(self, images)


class Events:
    """Row changes of one shape: how large each is, and its bytes where they are wanted.

    Args:
        shape: of the table and the kind of change.
        images: the rows; of updates the old ones and the new ones.
    """

    def __init__(self, shape: EventShape, images: Sequence[pa.RecordBatch]) -> None:
        self._shape = shape
        self._columns = [[_values_of(batch.column(at)) for batch in images] for at in range(len(shape.columns))]
        count = images[0].num_rows
        self._inner = np.empty((len(shape.columns), count), np.int64)
        self._total = np.full(count, len(shape.event), np.int64)
        for inner, prefix, values in zip(self._inner, shape.columns, self._columns, strict=True):
            inner[:] = len(prefix)
            for each in values:
                each.add_bytes(inner)
            kernels.add_columns(inner, self._total)
        self.sizes = np.empty(count, np.int64)
        kernels.event_fields(self._total, self.sizes)

    def write(self, out: Bytes, places: Ints) -> None:
        """Write each where ``places`` says."""
        at = places.copy()
        kernels.open_events(out, at, self._total, self._shape.event)
        for inner, prefix, values in zip(self._inner, self._shape.columns, self._columns, strict=True):
            kernels.open_columns(out, at, inner, prefix)
            for field, each in zip((kernels.VALUE, kernels.CHANGED), values, strict=False):
                each.put(out, at, field)


@dataclass(frozen=True, slots=True)
class _Words:
    """Integers and floats."""

    words: UInts
    valid: Bytes
    mode: int

    def add_bytes(self, inner: Ints) -> None:
        kernels.add_words(self.words, self.valid, self.mode, inner)

    def put(self, out: Bytes, at: Ints, field: int) -> None:
        kernels.put_words(out, at, field, self.words, self.valid, self.mode)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Strings of bytes, and whatever is a text in these files: dates, times, decimals, JSON."""

    data: Bytes
    offsets: Ints
    valid: Bytes

    def add_bytes(self, inner: Ints) -> None:
        kernels.add_texts(self.offsets, self.valid, inner)

    def put(self, out: Bytes, at: Ints, field: int) -> None:
        kernels.put_texts(out, at, field, self.data, self.offsets, self.valid)


def _values_of(column: pa.Array) -> _Words | _Texts:
    if pa.types.is_floating(column.type):
        return _Words(words_of(column), valid_of(column), kernels.FLOAT)
    if pa.types.is_integer(column.type):
        signed = pa.types.is_signed_integer(column.type)
        return _Words(words_of(column), valid_of(column), kernels.SIGNED if signed else kernels.UNSIGNED)
    return _Texts(*binary_buffers(column, nulls=True), valid_of(column))
