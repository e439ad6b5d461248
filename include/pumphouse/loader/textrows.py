r"""Arrow batches as the text that LOAD DATA reads: tab between fields, newline after rows, backslash escapes, \N.

The text is utf8mb4: the server converts character columns to their own charset, and a MariaDB takes binary ones as they
are. A MySQL checks every field against the charset of the whole, so there rows with bytes are read as bytes.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.codec.columnar import binary_buffers
from pumphouse.codec.jit import frozen
from pumphouse.codec.texts import has_any
from pumphouse.loader.columns import Column, columns_of
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import columns as column_list
from pumphouse.schema.ident import quote

Escapes = tuple[tuple[bytes, bytes], ...]
_ESCAPES: Escapes = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"))
_TAB, _NEWLINE, _NOTHING = (pa.scalar(text, pa.large_binary()) for text in (b"\t", b"\n", b""))


def statement(
    table: str, columns: list[Column], dialect: Dialect, unsent: Container[str] = (), *, bent: bool = False
) -> str:
    """``LOAD DATA LOCAL … REPLACE``: always REPLACE, because without it bad values are bent and reported as success.

    ``unsent``: columns that lines have and the table does not get. ``bent``: text that is none may become NULL.
    """
    sent = [(at, c) for at, c in enumerate(columns) if c.name not in unsent]
    values = {at: f"CAST(@v{at} AS UNSIGNED)" for at, c in sent if c.through_variable}
    charset = "utf8mb4"
    if dialect is Dialect.MYSQL and (bent or any(c.binary for c in columns)):
        # Bytes that are no UTF-8 are refused there (1300), whatever column they are for; text says what it is.
        charset = "binary"
        values |= {at: f"CONVERT(@v{at} USING utf8mb4)" for at, c in sent if c.is_text}
    if values:
        # With a SET the server forgets what the row itself gave: 0 in an AUTO_INCREMENT column becomes a new number.
        values |= {at: f"@v{at}" for at, c in sent if c.is_number}
    named = {at: quote(c.name) for at, c in sent if at not in values}
    targets = ",".join(named.get(at, f"@v{at}") for at in range(len(columns)))
    casts = ",".join(f"{quote(columns[at].name)} = {values[at]}" for at in sorted(values))
    return (
        f"LOAD DATA LOCAL INFILE 'pumphouse' REPLACE INTO TABLE {table} CHARACTER SET {charset} "
        r"FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' "
        f"({targets})" + (f" SET {casts}" if casts else "")
    )


def render(batch: pa.RecordBatch) -> memoryview:
    """The rows as text. Column order is the batch's."""
    if batch.num_rows == 0:
        return memoryview(b"")
    data, offsets = buffer_of(lines(batch))
    return data[int(offsets[0]) : int(offsets[-1])]


def lines(batch: pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """The rows as text, one large_binary each, with the newline."""
    *fields, last = [_field(column) for column in batch.columns]
    # The newline goes behind the last field, not behind the row: that would copy all of it once more.
    last = pc.binary_join_element_wise(last, _NEWLINE, _NOTHING, null_handling="replace", null_replacement="\\N")
    if not fields:
        return last
    return pc.binary_join_element_wise(*fields, last, _TAB, null_handling="replace", null_replacement="\\N")


def buffer_of(texts: pa.Array | pa.ChunkedArray) -> tuple[memoryview, np.ndarray]:
    """The values of a large_binary array without NULL, which lie one after another, and where each begins and ends."""
    chunk = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    offsets = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return memoryview(chunk.buffers()[2]), offsets


def _field(column: pa.Array) -> pa.Array:
    """One column as large_binary text, escaped; NULL stays NULL."""
    kind = column.type
    if pa.types.is_float32(kind):
        # Widened first: the shortest text of the double is read back to the same double, hence to the same float.
        column = column.cast(pa.float64())
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    if not (pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)):
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            return escaped(column.cast(pa.large_binary()), _ESCAPES)
        # Digits, sign, point and exponent: nothing to escape.
        return column.cast(pa.large_string()).cast(pa.large_binary())
    return escaped(column.cast(pa.large_binary()), _ESCAPES)


def escaped(column: pa.Array, escapes: Escapes) -> pa.Array:
    """Each of these bytes replaced, in their order; the same array where there is none of them."""
    data, offsets = binary_buffers(column, nulls=True)
    specials = frozen(np.array([plain[0] for plain, _ in escapes], np.uint8))
    if not has_any(data[offsets[0] : offsets[-1]], specials):
        return column
    for plain, replacement in escapes:
        column = pc.replace_substring(column, pattern=plain, replacement=replacement)
    return column


def names(columns: list[Column]) -> str:
    """Quoted comma list."""
    return column_list([c.name for c in columns])


def columns_in(batch: pa.RecordBatch) -> list[Column]:
    """Columns of a batch."""
    return columns_of(batch.schema)
