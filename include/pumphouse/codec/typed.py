"""Rows as other tools read them, and back: typed columns, and beside one what its type cannot hold, exactly.

The loader's form of a value is what a target takes: text as bytes, ENUM and SET as numbers, decimals and dates as text.
`typed` makes of these what DuckDB, pandas and Spark know by themselves; what a value would lose by that (zero dates, an
ENUM's number that no element has, text that is no UTF-8) is NULL there, and stands in the loader's form in a column
``<name>__exact``, which there is only where a row needs it. `untyped` gives exactly the loader's form back, by the
fields' metadata alone: ``form``, and ``elements`` or ``fsp`` (docs/formats.md, "Base").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.codec import exact
from pumphouse.codec.columnar import binary_buffers
from pumphouse.codec.columns import bitmap
from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.jit import Ints
from pumphouse.codec.time import fsp_of
from pumphouse.model.table import ColumnInfo, MysqlType

FORM, ELEMENTS, FSP, EXACT = b"form", b"elements", b"fsp", b"exact"
_SUFFIX = "__exact"


class Form(StrEnum):
    """What became of a column, in the metadata of its field."""

    TEXT = "text"
    ENUM = "enum"
    SET = "set"
    DECIMAL = "decimal"
    DATE = "date"
    DATETIME = "datetime"


def typed(rows: pa.Table, columns: Mapping[int, ColumnInfo]) -> pa.Table:
    """Rows in the loader's form, typed.

    Args:
        rows: with the fields of `pumphouse.codec.layout.arrow_field`.
        columns: by id, those of the table.
    """
    out, fields = [], []
    taken = {name.lower() for name in rows.schema.names}
    for at, field in enumerate(rows.schema):
        values = rows.column(at).combine_chunks()
        made = _field_of(field, columns[int(field.metadata[b"id"])])
        if made is None:
            fields.append(field)
            out.append(values)
            continue
        column = _typed(values, made)
        left = pc.and_(values.is_valid(), column.is_null())
        fields.append(made)
        out.append(column)
        if pc.any(left).as_py():
            name = field.name + _SUFFIX
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
            fields.append(pa.field(name, field.type, metadata={EXACT: field.metadata[b"id"]}))
            out.append(pc.if_else(left, values, pa.scalar(None, field.type)))
    return pa.Table.from_arrays(out, schema=pa.schema(fields))


def untyped(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in the loader's form; as they are where they are in it."""
    metadata = [field.metadata or {} for field in rows.schema]
    beside = {each[EXACT]: rows.column(at) for at, each in enumerate(metadata) if EXACT in each}
    out, fields = [], []
    for at, (field, said) in enumerate(zip(rows.schema, metadata, strict=True)):
        if EXACT in said:
            continue
        if FORM not in said:
            fields.append(field)
            out.append(rows.column(at))
            continue
        kept = {name: value for name, value in said.items() if name not in (FORM, ELEMENTS, FSP)}
        values = _untyped(rows.column(at), field)
        if said[b"id"] in beside:
            values = pc.coalesce(values, beside[said[b"id"]])
        fields.append(pa.field(field.name, values.type, metadata=kept))
        out.append(values)
    return pa.RecordBatch.from_arrays(out, schema=pa.schema(fields))


def low_cardinality(schema: pa.Schema) -> list[str]:
    """Names of the columns of which a file keeps each value once."""
    return [field.name for field in schema if (field.metadata or {}).get(FORM) in (b"enum", b"set")]


def _field_of(field: pa.Field, column: ColumnInfo) -> pa.Field | None:
    """The typed field of a column; None where it stays as it is."""
    kind, of = kind_of(column.type), column.type
    said: dict[bytes, bytes] = {}
    if kind is Kind.BYTES and of.charset != "binary":
        form, type_ = Form.TEXT, pa.large_string()
    elif kind in (Kind.ENUM, Kind.SET) and _plain(of.elems):
        form, type_ = Form(kind.name.lower()), pa.large_string()
        said[ELEMENTS] = json.dumps(list(of.elems)).encode()
    elif kind is Kind.DECIMAL and 1 <= of.flen <= exact.MOST_DIGITS and max(of.decimal, 0) <= of.flen:
        form, type_ = Form.DECIMAL, pa.decimal128(of.flen, max(of.decimal, 0))
    elif kind is Kind.DATE:
        form, type_ = Form.DATE, pa.date32()
    elif kind is Kind.DATETIME:
        zone = "UTC" if of.tp == MysqlType.TIMESTAMP else None
        form, type_ = Form.DATETIME, pa.timestamp("us", zone)
        said[FSP] = str(fsp_of(of.decimal)).encode()
    else:
        return None
    return pa.field(field.name, type_, metadata={**field.metadata, FORM: form.encode(), **said})


def _plain(elements: Sequence[str]) -> bool:
    """Whether all of them are text: bytes that are no UTF-8 reach a table info as one code unit each."""
    return bool(elements) and not any("\ud800" <= each <= "\udfff" for each in "".join(elements))


def _typed(values: pa.Array, field: pa.Field) -> pa.Array:
    """NULL where a value is not held exactly."""
    form = Form(field.metadata[FORM].decode())
    if form is Form.TEXT:
        return _text(values)
    if form is Form.ENUM:
        return _named(values, field, ["", *json.loads(field.metadata[ELEMENTS])])
    if form is Form.SET:
        return _set(values, field)
    data, offsets = binary_buffers(values, nulls=True)
    valid, ok = _valid(values), np.empty(len(values), np.uint8)
    if form is Form.DECIMAL:
        words = np.empty(2 * len(values), np.uint64)
        exact.read_decimals(data, offsets, valid, field.type.precision, field.type.scale, words, ok)
        return pa.Array.from_buffers(field.type, len(values), [bitmap(ok), pa.py_buffer(words)])
    found = np.empty(len(values), np.int64)
    exact.read_moments(data, offsets, valid, form is Form.DATETIME, _fsp(field), found, ok)
    numbers = found if form is Form.DATETIME else found.astype(np.int32)
    return pa.Array.from_buffers(field.type, len(values), [bitmap(ok), pa.py_buffer(numbers)])


def _untyped(values: pa.Array, field: pa.Field) -> pa.Array:
    form = Form(field.metadata[FORM].decode())
    if form is Form.TEXT:
        return values.cast(pa.large_binary())
    if form is Form.ENUM:
        return _number(values, ["", *json.loads(field.metadata[ELEMENTS])])
    if form is Form.SET:
        found = values.dictionary_encode()
        return _masks(found.dictionary, json.loads(field.metadata[ELEMENTS])).take(found.indices)
    valid = _valid(values)
    if form is Form.DECIMAL:
        words = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset : 2 * (values.offset + len(values))]
        offsets, out = np.empty(len(values) + 1, np.int64), np.empty(41 * len(values), np.uint8)
        exact.write_decimals(words, valid, values.type.scale, offsets, out, np.empty(45, np.uint8))
        return _strings(valid, offsets, out[: offsets[-1]].copy())
    whole, fsp = form is Form.DATETIME, _fsp(field)
    found = np.frombuffer(values.buffers()[1], np.int64 if whole else np.int32)
    numbers: Ints = found[values.offset : values.offset + len(values)].astype(np.int64)
    numbers[valid == 0] = 0  # what lies under a NULL may be anything
    width = 10 if not whole else 19 if fsp == 0 else 20 + fsp
    out = np.empty(width * len(values), np.uint8)
    exact.write_moments(numbers, whole, fsp, out)
    return _strings(valid, np.arange(len(values) + 1, dtype=np.int64) * width, out)


def _fsp(field: pa.Field) -> int:
    return int(field.metadata.get(FSP, b"0"))


def _valid(values: pa.Array) -> np.ndarray:
    """One byte a row."""
    found: np.ndarray = np.asarray(values.is_valid()).view(np.uint8)
    return found


def _strings(valid: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_string(), len(valid), [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _text(values: pa.Array) -> pa.Array:
    """Bytes as text, NULL where they are no UTF-8."""
    try:
        return values.cast(pa.large_string())
    except pa.ArrowInvalid:
        data, offsets = binary_buffers(values, nulls=True)
        ok = np.empty(len(values), np.uint8)
        exact.mark_utf8(data, offsets, ok)
        return pc.if_else(pa.array(ok.view(np.bool_)), values, pa.scalar(None, values.type)).cast(pa.large_string())


def _named(values: pa.Array, field: pa.Field, names: list[str]) -> pa.Array:
    """Names by their numbers, where these come back from them."""
    known = pc.if_else(pc.less(values, pa.scalar(len(names), pa.uint64())), values, pa.scalar(None, pa.uint64()))
    # Where an element is '', that is its name: the number 0 has none then.
    found = pa.array(names, field.type)
    back = _number(found, names)
    good = pc.if_else(pc.equal(back, pa.array(np.arange(len(names), dtype=np.uint64))), found, None)
    return good.take(known)


def _number(values: pa.Array, names: list[str]) -> pa.Array:
    """The last number that has the name."""
    count = len(names)
    at = pc.index_in(values, value_set=pa.array(names[::-1], values.type))
    return pc.subtract(pa.scalar(count - 1, pa.uint64()), at.cast(pa.uint64()))


def _set(values: pa.Array, field: pa.Field) -> pa.Array:
    elements = json.loads(field.metadata[ELEMENTS])
    found = values.dictionary_encode()
    masks = found.dictionary.to_numpy()
    if not len(masks):
        return pa.nulls(len(values), field.type)
    # Of nothing but NULLs no text is made: each begins with one that is empty, and so with a comma.
    parts: list[Any] = [pa.array([""] * len(masks), field.type)]
    for at, name in enumerate(elements):
        has = pa.array((masks >> np.uint64(at) & np.uint64(1)).astype(np.bool_))
        parts.append(pc.if_else(has, pa.scalar(name, field.type), pa.scalar(None, field.type)))
    joined = pc.binary_join_element_wise(*parts, pa.scalar(",", field.type), null_handling="skip")
    texts = pc.utf8_replace_slice(joined, 0, 1, "")
    back = _masks(texts, elements)
    return pc.if_else(pc.equal(back, found.dictionary), texts, pa.scalar(None, field.type)).take(found.indices)


def _masks(texts: pa.Array, elements: list[str]) -> pa.Array:
    """The numbers of sets."""
    if not len(texts):
        return pa.array([], pa.uint64())
    parts = pc.split_pattern(texts, ",")
    at = pc.fill_null(pc.index_in(parts.flatten(), value_set=pa.array(elements, texts.type)).cast(pa.int64()), -1)
    numbers = at.to_numpy(zero_copy_only=False)
    bits = np.where(numbers >= 0, np.uint64(1) << np.maximum(numbers, 0).astype(np.uint64), np.uint64(0))
    begins = np.asarray(parts.offsets)
    return pa.array(np.bitwise_or.reduceat(bits, begins[:-1] - begins[0]))
