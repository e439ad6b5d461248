"""Kernels that write row changes as messages of package ``slave.binlog``: lengths first, then bytes at known places.

Each pass is over one column: of its values, as words (integers, floats) or as bytes behind offsets.
"""

# mypy: disable-error-code="assignment"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, UInts, kernel
from pumphouse.codec.raw import copy_bytes
from pumphouse.codec.wire import put_uvarint, uvarint_bytes

# Fields: number << 3 | wire type. Of Column; a NULL has its flag alone.
IS_NULL, INT64, UINT64, DOUBLE, BYTES, STRING = 0x08, 0x10, 0x18, 0x21, 0x2A, 0x32
# Of Row, TableMutation, Table, DMLData, Binlog.
COLUMN = 0x0A
KIND, ROW, CHANGE_ROW = 0x08, 0x12, 0x1A
MUTATION = 0x22
TABLE = 0x0A
TYPE, COMMIT_TS, DML_DATA = 0x08, 0x10, 0x1A


@kernel
def add_words(words: UInts, valid: Bytes, tag: int, row: Ints) -> None:
    """Add to ``row`` the bytes of a column."""
    for at in range(len(words)):
        if not valid[at]:
            row[at] += 4
        elif tag == DOUBLE:
            row[at] += 11
        else:
            row[at] += 3 + uvarint_bytes(words[at])


@kernel
def add_texts(offsets: Ints, valid: Bytes, row: Ints) -> None:
    """As `add_words`, of byte strings."""
    for at in range(len(valid)):
        if not valid[at]:
            row[at] += 4
            continue
        length = offsets[at + 1] - offsets[at]
        size = 1 + uvarint_bytes(np.uint64(length)) + length
        row[at] += 1 + uvarint_bytes(np.uint64(size)) + size


@kernel
def add_row(row: Ints, total: Ints) -> None:
    """Add to ``total`` the bytes of a row's field in its row change."""
    for at in range(len(row)):
        total[at] += 1 + uvarint_bytes(np.uint64(row[at])) + row[at]


@kernel
def mutation_fields(total: Ints, sizes: Ints) -> None:
    """Bytes of each row change's field in its table."""
    for at in range(len(total)):
        sizes[at] = 1 + uvarint_bytes(np.uint64(total[at])) + total[at]


@kernel
def open_mutations(out: Bytes, at: Ints, total: Ints, kind: int) -> None:
    """Begin each row change: its field, its length, its kind."""
    for row in range(len(at)):
        out[at[row]] = MUTATION
        pos = put_uvarint(out, at[row] + 1, np.uint64(total[row]))
        out[pos] = KIND
        out[pos + 1] = kind
        at[row] = pos + 2


@kernel
def open_rows(out: Bytes, at: Ints, size: Ints, tag: int) -> None:
    """Begin a row of each row change: its field, its length."""
    for row in range(len(at)):
        out[at[row]] = tag
        at[row] = put_uvarint(out, at[row] + 1, np.uint64(size[row]))


@kernel
def put_words(out: Bytes, at: Ints, words: UInts, valid: Bytes, tag: int) -> None:
    """Write a column of each row."""
    for row in range(len(at)):
        pos = at[row]
        out[pos] = COLUMN
        if not valid[row]:
            out[pos + 1] = 2
            out[pos + 2] = IS_NULL
            out[pos + 3] = 1
            at[row] = pos + 4
            continue
        word = words[row]
        out[pos + 2] = tag
        if tag == DOUBLE:
            out[pos + 1] = 9
            for k in range(8):
                out[pos + 3 + k] = np.uint8((word >> np.uint64(8 * k)) & np.uint64(0xFF))
            at[row] = pos + 11
        else:
            out[pos + 1] = np.uint8(1 + uvarint_bytes(word))
            at[row] = put_uvarint(out, pos + 3, word)


@kernel
def put_texts(out: Bytes, at: Ints, data: Bytes, offsets: Ints, valid: Bytes, tag: int) -> None:
    """As `put_words`, of byte strings."""
    for row in range(len(at)):
        pos = at[row]
        out[pos] = COLUMN
        if not valid[row]:
            out[pos + 1] = 2
            out[pos + 2] = IS_NULL
            out[pos + 3] = 1
            at[row] = pos + 4
            continue
        length = offsets[row + 1] - offsets[row]
        pos = put_uvarint(out, pos + 1, np.uint64(1 + uvarint_bytes(np.uint64(length)) + length))
        out[pos] = tag
        pos = put_uvarint(out, pos + 1, np.uint64(length))
        copy_bytes(out, pos, data, offsets[row], length)
        at[row] = pos + length


@kernel
def put_tables(
    out: Bytes, at: Ints, inner: Ints, table: Ints, heads: Bytes, head_ends: Ints, tails: Bytes, tail_ends: Ints
) -> None:
    """Write of each table what stands before its row changes, and behind them; ``head_ends`` and so on begin with 0."""
    for run in range(len(at)):
        out[at[run]] = TABLE
        pos = put_uvarint(out, at[run] + 1, np.uint64(inner[run]))
        begin, tail = head_ends[table[run]], tail_ends[table[run]]
        length, tail_length = head_ends[table[run] + 1] - begin, tail_ends[table[run] + 1] - tail
        copy_bytes(out, pos, heads, begin, length)
        copy_bytes(out, pos + inner[run] - tail_length, tails, tail, tail_length)


@kernel
def open_messages(out: Bytes, at: Ints, commit_ts: Ints, bodies: Ints) -> None:
    """Write of each message what stands before its tables."""
    for frame in range(len(at)):
        pos = at[frame]
        out[pos] = TYPE
        out[pos + 1] = 0
        out[pos + 2] = COMMIT_TS
        pos = put_uvarint(out, pos + 3, np.uint64(commit_ts[frame]))
        out[pos] = DML_DATA
        put_uvarint(out, pos + 1, np.uint64(bodies[frame]))
