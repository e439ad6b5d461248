"""Decoded row changes as ``slave.binlog.TableMutation``, a column at a time (docs/formats.md, "Messages for Kafka")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, binary_buffers, valid_of, words_of
from pumphouse.codec.datum import Kind
from pumphouse.codec.jit import Bytes, Ints, UInts, frozen
from pumphouse.codec.layout import OutputColumn, RowLayout
from pumphouse.export import slavekernels as kernels
from pumphouse.export.protowire import int_field, text_field
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo
from pumphouse.schema.column_sql import type_name
from pumphouse.schema.versions import TableVersion

_KINDS = {INSERT: 0, UPDATE: 1, DELETE: 2}
_LENGTH_BYTES = 6  # a field's tag and length


@dataclass(frozen=True, slots=True)
class MutationShape:
    """What all row changes of one kind and version of a table have in common.

    Attributes:
        head: What the message of their table has before them: names and columns.
        tail: And behind them: its unique keys.
        kind: Of the row change.
        tags: The field that holds a value, for each column.
        widths: Bytes of a BIT, for each column; 0 of others.
        size: Bytes of one in which every value is NULL, or its default, with a table of its own; about, and no fewer.
    """

    head: bytes
    tail: bytes
    kind: int
    tags: tuple[int, ...]
    widths: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, version: TableVersion, op: int, layout: RowLayout) -> MutationShape:
        """``layout``: the columns."""
        head = text_field(1, version.db) + text_field(2, version.table.name)
        head += b"".join(text_field(3, _column(each)) for each in layout.columns)
        tail = _keys(version.table, {each.info.name for each in layout.columns})
        values = sum(2 * (2 * _LENGTH_BYTES + len(each.fill_bytes)) for each in layout.columns)
        return cls(
            head,
            tail,
            _KINDS[op],
            tuple(map(_tag, layout.columns)),
            tuple(max(each.info.type.flen + 7, 8) // 8 if _is_bit(each) else 0 for each in layout.columns),
            4 * _LENGTH_BYTES + len(head) + len(tail) + values,
        )

    def rows(self, images: Sequence[pa.RecordBatch]) -> TableMutations:
        """Row changes of this shape: the rows; of updates the old ones and the new ones."""
        return TableMutations(self, images)


def _column(column: OutputColumn) -> bytes:
    """ColumnInfo."""
    held = column.info.type
    return (
        text_field(1, column.info.name)
        + text_field(2, type_name(held))
        + int_field(3, bool(held.flag & ColumnFlag.PRI_KEY))
        + int_field(4, _int32(held.flen))
        + int_field(5, _int32(held.decimal))
    )


def _int32(value: int) -> int:
    """The low 32 bits, signed: TiDB has 4294967295 of some types, where others have -1."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def _keys(table: TableInfo, names: set[str]) -> bytes:
    """Keys that are in force, of columns that the message has."""
    keys = [("PRIMARY", [part.name for part in table.primary_key()])] if table.pk_is_handle else []
    keys += [
        (index.name, [part.name for part in index.columns])
        for index in table.indexes
        if (index.unique or index.primary) and index.public
    ]
    return b"".join(
        text_field(5, text_field(1, name) + b"".join(text_field(2, each) for each in columns))
        for name, columns in keys
        if names.issuperset(columns)
    )


def _is_bit(column: OutputColumn) -> bool:
    return column.info.type.tp == MysqlType.BIT


def _tag(column: OutputColumn) -> int:
    if column.info.type.tp == MysqlType.YEAR:
        return kernels.STRING
    if _is_bit(column) or column.kind is Kind.JSON:
        return kernels.BYTES
    if column.kind is Kind.BYTES:
        return kernels.BYTES if column.info.type.charset == "binary" else kernels.STRING
    words = {Kind.INT: kernels.INT64, Kind.FLOAT: kernels.DOUBLE, Kind.DOUBLE: kernels.DOUBLE}
    unsigned = dict.fromkeys((Kind.UINT, Kind.ENUM, Kind.SET), kernels.UINT64)
    return (words | unsigned).get(column.kind, kernels.STRING)


class TableMutations:
    """Row changes of one shape: how large each is, and its bytes where they are wanted.

    Args:
        shape: of the table and the kind of change.
        images: the rows; of updates the old ones and the new ones.
    """

    def __init__(self, shape: MutationShape, images: Sequence[pa.RecordBatch]) -> None:
        self._shape = shape
        # The new row stands before the old one.
        self._rows = [
            [_values_of(*of) for of in zip(batch.columns, shape.tags, shape.widths, strict=True)]
            for batch in reversed(images)
        ]
        count = images[0].num_rows
        self._sizes = np.zeros((len(images), count), np.int64)
        self._total = np.full(count, 2, np.int64)
        for size, columns in zip(self._sizes, self._rows, strict=True):
            for each in columns:
                each.add_bytes(size)
            kernels.add_row(size, self._total)
        self.sizes = np.empty(count, np.int64)
        kernels.mutation_fields(self._total, self.sizes)

    def write(self, out: Bytes, places: Ints) -> None:
        """Write each where ``places`` says."""
        at = places.copy()
        kernels.open_mutations(out, at, self._total, self._shape.kind)
        for tag, size, columns in zip((kernels.ROW, kernels.CHANGE_ROW), self._sizes, self._rows, strict=False):
            kernels.open_rows(out, at, size, tag)
            for each in columns:
                each.put(out, at)


@dataclass(frozen=True, slots=True)
class _Words:
    """Integers and floats."""

    words: UInts
    valid: Bytes
    tag: int

    def add_bytes(self, row: Ints) -> None:
        kernels.add_words(self.words, self.valid, self.tag, row)

    def put(self, out: Bytes, at: Ints) -> None:
        kernels.put_words(out, at, self.words, self.valid, self.tag)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Strings of bytes, and whatever is a text in these messages."""

    data: Bytes
    offsets: Ints
    valid: Bytes
    tag: int

    def add_bytes(self, row: Ints) -> None:
        kernels.add_texts(self.offsets, self.valid, row)

    def put(self, out: Bytes, at: Ints) -> None:
        kernels.put_texts(out, at, self.data, self.offsets, self.valid, self.tag)


def _values_of(column: pa.Array, tag: int, width: int) -> _Words | _Texts:
    valid = valid_of(column)
    if width:
        big = words_of(column).astype(">u8").view(np.uint8).reshape(-1, 8)
        data = frozen(np.ascontiguousarray(big[:, 8 - width :]).reshape(-1))
        return _Texts(data, frozen(np.arange(len(column) + 1, dtype=np.int64) * width), valid, tag)
    if tag in (kernels.BYTES, kernels.STRING):
        texts = column.cast(pa.large_string()) if pa.types.is_integer(column.type) else column
        return _Texts(*binary_buffers(texts, nulls=True), valid, tag)
    return _Words(words_of(column), valid, tag)
