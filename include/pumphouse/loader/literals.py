r"""Arrow batches as ``INSERT … VALUES`` statements, for servers whose LOAD DATA is no part of a transaction.

Numbers stand as they are; texts in quotes, in utf8mb4, so that the server converts them to a column's character set;
bytes as ``_binary'…'``. Backslash escapes: sessions of ours have no NO_BACKSLASH_ESCAPES.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.loader.columns import Column, columns_of
from pumphouse.loader.textrows import buffer_of, escaped
from pumphouse.mysql import SQL_MODE
from pumphouse.schema.ident import columns as column_list

# What a script sets before such statements.
SESSION = f"""SET NAMES utf8mb4, time_zone = '+00:00', sql_mode = '{SQL_MODE}';
SET SESSION foreign_key_checks = 1, unique_checks = 1, sql_safe_updates = 0;
SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ;
"""
# A statement aims at so many bytes: larger ones are no faster, and servers keep each in memory several times.
STATEMENT_BYTES = 256 << 10
_ESCAPES = ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0"))
_NOTHING = pa.scalar(b"", pa.large_binary())


def inserts(table: str, batch: pa.RecordBatch, *, most: int = STATEMENT_BYTES) -> Iterator[tuple[bytes, int]]:
    """Statements that insert the batch, in its order, each with its number of rows.

    ``table``: quoted. A statement is longer than ``most`` only where one row is.
    """
    if batch.num_rows == 0:
        return
    head = f"INSERT INTO {table} ({column_list(batch.schema.names)}) VALUES ".encode()  # noqa: S608 - names are quoted
    for values, rows in _cut(_bracketed(batch), most - len(head)):
        yield head + values, rows


def literals(batch: pa.RecordBatch) -> list[pa.Array]:
    """Each column as large_binary SQL; NULL stays NULL."""
    return [_field(values, column) for values, column in zip(batch.columns, columns_of(batch.schema), strict=True)]


def lists(column: pa.Array, *, most: int = STATEMENT_BYTES) -> Iterator[tuple[bytes, int]]:
    """The values of one column of numbers, none NULL, as ``1,2,3``, each with how many they are."""
    text = column.cast(pa.large_string()).cast(pa.large_binary())
    yield from _cut(pc.binary_join_element_wise(text, pa.scalar(b",", pa.large_binary()), _NOTHING), most)


def _bracketed(batch: pa.RecordBatch) -> pa.Array:
    """``(1,'a',NULL),`` for each row."""
    fields = literals(batch)
    comma = pa.scalar(b",", pa.large_binary())
    rows = (
        pc.binary_join_element_wise(*fields, comma, null_handling="replace", null_replacement="NULL")
        if len(fields) > 1
        else pc.fill_null(fields[0], b"NULL")
    )
    return _framed(b"(", rows, b"),")


def _field(values: pa.Array, column: Column) -> pa.Array:
    """One column as large_binary SQL; NULL stays NULL."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    if pa.types.is_float32(kind):
        # Widened first: the shortest text of the double is read back to the same double, hence to the same float.
        values = values.cast(pa.float64())
    if pa.types.is_floating(values.type):
        # In quotes: without an exponent it would be a DECIMAL.
        return _framed(b"'", values.cast(pa.large_string()).cast(pa.large_binary()), b"'")
    if not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        quote = b"_binary'" if column.binary else b"'"
        return _framed(quote, escaped(values.cast(pa.large_binary()), _ESCAPES), b"'")
    return values.cast(pa.large_string()).cast(pa.large_binary())


def _framed(before: bytes, values: pa.Array, after: bytes) -> pa.Array:
    left, right = pa.scalar(before, pa.large_binary()), pa.scalar(after, pa.large_binary())
    return pc.binary_join_element_wise(left, values, right, _NOTHING)


def _cut(texts: pa.Array, most: int) -> Iterator[tuple[bytes, int]]:
    """Texts that end with a comma, joined to pieces of at most so many bytes where one text is not longer by itself."""
    data, offsets = buffer_of(texts)
    at, count = 0, len(offsets) - 1
    while at < count:
        # A piece loses its last comma.
        end = max(int(np.searchsorted(offsets, offsets[at] + most + 1, "right")) - 1, at + 1)
        yield bytes(data[int(offsets[at]) : int(offsets[end]) - 1]), end - at
        at = end
