"""From located datums to Arrow arrays, one column at a time: allocates, calls the kernels, names what failed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pumphouse.codec import jsontext, locate, scalars, texts
from pumphouse.codec.datum import Kind
from pumphouse.codec.jit import Bytes, Int32s, Ints
from pumphouse.codec.json import json_text
from pumphouse.codec.layout import OutputColumn
from pumphouse.errors import CodecError

_INTEGER_MODES = {
    Kind.INT: scalars.SIGNED,
    Kind.UINT: scalars.UNSIGNED,
    Kind.ENUM: scalars.ENUM,
    Kind.SET: scalars.SET,
}
_TEXT_MODES = {
    Kind.DATE: texts.DATE,
    Kind.DATETIME: texts.DATETIME,
    Kind.TIME: texts.TIME,
    Kind.DECIMAL: texts.DECIMAL,
}


@dataclass(frozen=True, slots=True)
class Images:
    """Row images of one layout and where each column's datum lies in them (:func:`pumphouse.codec.locate.locate`)."""

    data: Bytes
    starts: Ints
    lengths: Ints
    places: Int32s

    def __len__(self) -> int:
        return len(self.starts)


def bitmap(valid: Bytes) -> pa.Buffer | None:
    """Arrow validity of one byte a row; None when all are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def check(failed: Ints, what: str) -> None:
    """Raise CodecError for what a kernel has reported. Facts: row."""
    if failed[0]:
        raise CodecError(f"row image {failed[1]}, {what}: {locate.REASONS[int(failed[0])]}", row=int(failed[1]))


def build(images: Images, index: int, column: OutputColumn) -> pa.Array:
    """Arrow array of column ``index``.

    Raises:
        CodecError: a datum does not fit the column. Facts: row.
    """
    match column.kind:
        case Kind.INT | Kind.UINT | Kind.ENUM | Kind.SET:
            return _integers(images, index, column)
        case Kind.FLOAT | Kind.DOUBLE:
            return _floats(images, index, column)
        case Kind.BYTES:
            return _strings(images, index, column)
        case Kind.JSON:
            return _json(images, index, column)
        case Kind.DECIMAL | Kind.DATE | Kind.DATETIME | Kind.TIME:
            return _texts(images, index, column)
        case never:
            assert_never(never)


def _what(column: OutputColumn) -> str:
    return f"column {column.info.name}"


def _fixed(column: OutputColumn, values: NDArray[Any], valid: Bytes) -> pa.Array:
    return pa.Array.from_buffers(column.arrow, len(values), [bitmap(valid), pa.py_buffer(values)])


def _variable(column: OutputColumn, offsets: Ints, out: Bytes, valid: Bytes) -> pa.Array:
    used = int(offsets[-1])
    # Kernels write into room for the worst case; a batch should not hold on to that.
    kept = out[:used] if used * 2 >= len(out) else out[:used].copy()
    buffers = [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(kept)]
    return pa.Array.from_buffers(column.arrow, len(valid), buffers)


def _integers(images: Images, index: int, column: OutputColumn) -> pa.Array:
    out = np.empty(len(images), np.uint64)
    valid = np.empty(len(images), np.uint8)
    failed = np.zeros(2, np.int64)
    mode = _INTEGER_MODES[column.kind]
    if column.handle and mode == scalars.UNSIGNED:
        mode = scalars.UNSIGNED_HANDLE
    fill = column.fill if isinstance(column.fill, int) else 0
    scalars.integers(
        images.data,
        images.starts,
        images.lengths,
        images.places,
        index,
        mode,
        column.elements,
        np.uint64(fill & ((1 << 64) - 1)),
        column.fill is not None,
        out,
        valid,
        failed,
    )
    check(failed, _what(column))
    return _fixed(column, out, valid)


def _floats(images: Images, index: int, column: OutputColumn) -> pa.Array:
    out = np.empty(len(images), np.float64)
    valid = np.empty(len(images), np.uint8)
    failed = np.zeros(2, np.int64)
    scalars.floats(
        images.data,
        images.starts,
        images.places,
        index,
        column.fill if isinstance(column.fill, float) else 0.0,
        column.fill is not None,
        out.view(np.uint64),
        out,
        valid,
        failed,
    )
    check(failed, _what(column))
    if column.kind is Kind.FLOAT or column.arrow == pa.float32():
        with np.errstate(over="ignore"):
            single = out.astype(np.float32)
        too_large = np.isinf(single) & np.isfinite(out)
        if too_large.any():
            failed[:] = locate.BAD_VALUE, int(too_large.argmax())
            check(failed, _what(column))
        return _fixed(column, single if column.arrow == pa.float32() else single.astype(np.float64), valid)
    return _fixed(column, out, valid)


def _texts(images: Images, index: int, column: OutputColumn) -> pa.Array:
    count = len(images)
    mode = _TEXT_MODES[column.kind]
    fill = column.fill_bytes
    out = np.empty(count * max(texts.WIDTHS[mode], len(fill)), np.uint8)
    offsets = np.empty(count + 1, np.int64)
    valid = np.empty(count, np.uint8)
    failed = np.zeros(2, np.int64)
    texts.texts(
        images.data,
        images.starts,
        images.lengths,
        images.places,
        index,
        mode,
        column.fsp,
        fill,
        column.fill is not None,
        offsets,
        out,
        valid,
        failed,
    )
    check(failed, _what(column))
    return _variable(column, offsets, out, valid)


def _strings(images: Images, index: int, column: OutputColumn) -> pa.Array:
    count = len(images)
    fill = column.fill_bytes
    offsets = np.empty(count + 1, np.int64)
    valid = np.empty(count, np.uint8)
    failed = np.zeros(2, np.int64)
    where = (images.data, images.starts, images.lengths, images.places, index)
    texts.string_offsets(*where, len(fill), column.fill is not None, offsets, valid, failed)
    check(failed, _what(column))
    out = np.empty(int(offsets[-1]), np.uint8)
    texts.copy_strings(*where, fill, offsets, out)
    return _variable(column, offsets, out, valid)


def _json(images: Images, index: int, column: OutputColumn) -> pa.Array:
    count = len(images)
    fill = column.fill_bytes
    out = np.empty(2 * int(images.lengths.sum()) + (jsontext.MARGIN + len(fill)) * (count + 1), np.uint8)
    offsets = np.empty(count + 1, np.int64)
    offsets[0] = 0
    valid = np.empty(count, np.uint8)
    failed = np.zeros(2, np.int64)
    stack = np.empty((jsontext.MAX_DEPTH, 5), np.int64)
    row = 0
    where = (images.data, images.starts, images.lengths, images.places, index, fill, column.fill is not None)
    while True:
        row, why = jsontext.json_texts(*where, column.doubles, row, offsets, out, valid, stack, failed)
        check(failed, _what(column))
        if not why:
            return _variable(column, offsets, out, valid)
        used = int(offsets[row])
        text = b""
        if why == jsontext.HARD:
            # A double of 16 or 17 digits, or an exponent: rare enough for the reference.
            text = _reference_json(images, index, row, column.doubles)
            offsets[row + 1] = used + len(text)
            valid[row] = 1
        if why == jsontext.FULL or used + len(text) > len(out):
            grown = np.empty(2 * len(out) + len(text), np.uint8)
            grown[:used] = out[:used]
            out = grown
        if text:
            out[used : used + len(text)] = np.frombuffer(text, np.uint8)
            row += 1


def _reference_json(images: Images, index: int, row: int, doubles: bool) -> bytes:
    start = int(images.starts[row] + images.places[index, row]) + 1
    end = locate.skip_json(images.data, start, int(images.starts[row] + images.lengths[row]))
    try:
        return json_text(images.data[start:end].tobytes(), doubles=doubles).encode()
    except (CodecError, struct.error, IndexError) as error:
        raise CodecError(f"row image {row}: {error}", row=row) from error
