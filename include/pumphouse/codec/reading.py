"""What a reader gets of a column's values: in Arrow types that Spark, DuckDB and pandas know, and exact.

- Integers are 64 bits, and DECIMAL(20) where 64 unsigned ones are needed; DECIMAL up to 38 digits is itself.
- DATE, DATETIME and TIMESTAMP (a moment, in UTC) are themselves; TIME, JSON, ENUM and SET are text.
- A value that its type cannot hold (a zero date, text that is no UTF-8, a SET without such an element) is NULL, and
  its text stands beside it: ``exact``, by row. So nothing is bent, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.codec.columnar import binary_buffers
from pumphouse.codec.columns import bitmap
from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.layout import arrow_type
from pumphouse.model.table import ColumnInfo, FieldType, MysqlType

# Digits of a decimal that Arrow, Parquet and Spark hold.
MAX_DIGITS = 38
_WIDE = pa.decimal128(20, 0)
_MOMENT, _CIVIL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
# Years, months and days of 0 are no dates to anybody but a MySQL; others are tried.
_ZERO = r"^0000|-00"
Exact = Mapping[int, str]
_NAMED = (Kind.BYTES, Kind.ENUM, Kind.SET)
_NONE: Exact = {}


def typed_field(column: ColumnInfo) -> pa.Field:
    """Nullable field of a column, named as it."""
    return pa.field(column.name, typed_type(column.type))


def typed_type(kind: FieldType) -> pa.DataType:  # noqa: PLR0911 - one a kind
    """Arrow type that readers get of a column's values."""
    match kind_of(kind):
        case Kind.INT:
            return pa.int64()
        case Kind.UINT:
            return _WIDE if _is_wide(kind) else pa.int64()
        case Kind.FLOAT:
            return pa.float32()
        case Kind.DOUBLE:
            return pa.float64()
        case Kind.DECIMAL:
            return pa.decimal128(kind.flen, max(kind.decimal, 0)) if 0 < kind.flen <= MAX_DIGITS else pa.string()
        case Kind.DATE:
            return pa.date32()
        case Kind.DATETIME:
            return _MOMENT if kind.tp == MysqlType.TIMESTAMP else _CIVIL
        case Kind.BYTES:
            return pa.binary() if kind.charset == "binary" else pa.string()
        case Kind.TIME | Kind.JSON | Kind.ENUM | Kind.SET:
            return pa.string()
        case never:
            assert_never(never)


def typed(values: pa.Array, column: ColumnInfo) -> tuple[pa.Array, Exact]:
    """A column as `decode_images` makes it, in its reader's type; and the texts of the values that this cannot hold."""
    kind, want = column.type, typed_type(column.type)
    of = kind_of(kind)
    if of in (Kind.ENUM, Kind.SET):
        return _named(values, kind)
    if of in (Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.UINT):
        return values.cast(want), _NONE
    if pa.types.is_binary(want):
        return values.cast(want), _NONE
    if of in (Kind.DATE, Kind.DATETIME):
        zero = pc.fill_null(pc.match_substring_regex(values, _ZERO), False)
        exact = _texts(values, zero.to_numpy(zero_copy_only=False))
        if exact:
            values = pc.if_else(zero, pa.scalar(None, values.type), values)
        return _cast(values, _CIVIL if want == _MOMENT else want, exact, want)
    return _cast(values, want, _NONE, want)


def text_type(column: ColumnInfo) -> pa.DataType:
    """Arrow type of what `textual` gives."""
    return arrow_type(column) if kind_of(column.type) not in _NAMED else pa.large_string()


def textual(values: pa.Array, column: ColumnInfo) -> pa.Array:
    """A column as `decode_images` makes it, as its text in `readable` says it; numbers stay numbers."""
    of = kind_of(column.type)
    if of not in _NAMED:
        return values
    if of is Kind.BYTES and column.type.charset == "binary":
        return _hex(values)
    found, odd = typed(values, column)
    if odd:
        mask = np.zeros(len(found), np.bool_)
        mask[list(odd)] = True
        found = pc.replace_with_mask(found, pa.array(mask), pa.array([odd[at] for at in sorted(odd)], found.type))
    return found.cast(pa.large_string())


def _hex(values: pa.Array) -> pa.Array:
    data, offsets = binary_buffers(values, nulls=True)
    data = data[offsets[0] : offsets[-1]]
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    pairs = np.stack([digits[data >> 4], digits[data & 15]], axis=1).reshape(-1)
    valid = np.asarray(values.is_valid()).view(np.uint8)
    buffers = [bitmap(valid), pa.py_buffer(2 * (offsets - offsets[0])), pa.py_buffer(pairs)]
    texts = pa.Array.from_buffers(pa.large_string(), len(values), buffers)
    start, between = (pa.scalar(each, pa.large_string()) for each in ("0x", ""))
    return pc.binary_join_element_wise(start, texts, between)


def readable(value: Any, kind: FieldType) -> int | float | str | None:
    """A value of an image, as people and JSON get it: exact, bytes as ``0x…``, ENUM and SET by their elements."""
    if value is None:
        return None
    found: int | float | str
    match kind_of(kind):
        case Kind.ENUM | Kind.SET:
            found = named(value, kind)
        case Kind.BYTES:
            found = _string(bytes(value), kind)
        case Kind.FLOAT:
            found = float(str(np.float32(value)))  # its own digits, not those of the double
        case Kind.INT | Kind.UINT | Kind.DOUBLE | Kind.DECIMAL | Kind.DATE | Kind.DATETIME | Kind.TIME | Kind.JSON:
            found = value
        case never:
            assert_never(never)
    return found


def _string(value: bytes, kind: FieldType) -> str:
    if kind.charset != "binary":
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return f"0x{value.hex()}"


def named(value: int, kind: FieldType) -> str:
    """An ENUM or a SET by its elements; a number where there is no element, as ENUM's 0."""
    elems = kind.elems
    if kind_of(kind) is Kind.ENUM:
        return elems[value - 1] if 0 < value <= len(elems) else str(value)
    return ",".join(each for at, each in enumerate(elems) if value >> at & 1) if value < 1 << len(elems) else str(value)


def _is_wide(kind: FieldType) -> bool:
    return kind.tp == MysqlType.LONGLONG or (kind.tp == MysqlType.BIT and kind.flen > 63)


def _named(values: pa.Array, kind: FieldType) -> tuple[pa.Array, Exact]:
    found = pc.unique(values.drop_null())
    names = [_name(each, kind) for each in found.to_pylist()]
    texts = pa.array(names, pa.string()).take(pc.index_in(values, found))
    odd = pc.and_(values.is_valid(), texts.is_null())
    return texts, _exact(values, odd.to_numpy(zero_copy_only=False), str)


def _name(value: int, kind: FieldType) -> str | None:
    """Of an ENUM or a SET; '' is the ENUM of 0 where no element has that name. None: there is none."""
    count = len(kind.elems)
    if kind_of(kind) is Kind.ENUM and value == 0:
        return None if "" in kind.elems else ""
    return named(value, kind) if value < (1 << count if kind_of(kind) is Kind.SET else count + 1) else None


def _cast(values: pa.Array, to: pa.DataType, exact: Exact, want: pa.DataType) -> tuple[pa.Array, Exact]:
    """By Arrow; where it refuses, value by value."""
    try:
        found = values.cast(to)
    except pa.ArrowException:
        fits = np.array([_fits(values[at], to) for at in range(len(values))], np.bool_)
        exact = {**exact, **_texts(values, ~fits)}
        found = pc.if_else(pa.array(fits), values, pa.scalar(None, values.type)).cast(to)
    return (found if to == want else found.cast(want)), exact


def _fits(value: pa.Scalar, to: pa.DataType) -> bool:
    try:
        value.cast(to)
    except pa.ArrowException:
        return False
    return True


def _texts(values: pa.Array, rows: np.ndarray) -> Exact:
    return _exact(values, rows, lambda each: each if isinstance(each, str) else f"0x{each.hex()}")


def _exact(values: pa.Array, rows: np.ndarray, text: Callable[[Any], str]) -> Exact:
    return {int(at): text(values[int(at)].as_py()) for at in np.flatnonzero(rows)} if rows.any() else _NONE
