"""Kernels that write row changes as messages of package ``pb_binlog``: lengths first, then bytes at known places.

Each pass is over one column: of its values, as words (integers, floats) or as bytes behind offsets. A datum is in the
value form of the datum codec (docs/formats.md, "Files for Reparo").
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.crc import crc_more
from pumphouse.codec.jit import Bytes, Ints, UInts, kernel, primitive
from pumphouse.codec.raw import copy_bytes
from pumphouse.codec.wire import put_uvarint, uvarint_bytes

SIGNED, UNSIGNED, FLOAT = 0, 1, 2
# Flags of datums.
_NULL, _COMPACT, _FLOAT, _VARINT, _UVARINT = 0x00, 0x02, 0x05, 0x08, 0x09
# Fields: number << 3 | wire type.
EVENT, ROW, VALUE, CHANGED = 0x0A, 0x22, 0x22, 0x2A
DML_DATA, TP, COMMIT_TS = 0x1A, 0x08, 0x10
MAGIC = np.array([0x04, 0x05, 0x1B, 0x1C], np.uint8)
# Bytes of a frame before its payload, and behind it.
HEAD_BYTES, TAIL_BYTES = 12, 4
_SIGN = np.uint64(1 << 63)


@primitive
def put_u64(out: Bytes, at: int, value: np.uint64) -> int:
    """Write eight big-endian bytes; position behind them."""
    for k in range(8):
        out[at + k] = np.uint8((value >> np.uint64(56 - 8 * k)) & np.uint64(0xFF))
    return at + 8


@primitive
def zigzag(word: np.uint64) -> np.uint64:
    """A signed integer as it is before its varint."""
    signed = np.int64(word)
    return np.uint64((signed << 1) ^ (signed >> 63))


@primitive
def _word_bytes(word: np.uint64, mode: int) -> int:
    if mode == FLOAT:
        return np.int64(9)
    return 1 + uvarint_bytes(zigzag(word) if mode == SIGNED else word)


@primitive
def _text_bytes(length: int) -> int:
    return 1 + uvarint_bytes(np.uint64(length) << np.uint64(1)) + length


@kernel
def add_words(words: UInts, valid: Bytes, mode: int, inner: Ints) -> None:
    """Add to ``inner`` the bytes of a value's field."""
    for row in range(len(words)):
        size = _word_bytes(words[row], mode) if valid[row] else np.int64(1)
        inner[row] += 1 + uvarint_bytes(np.uint64(size)) + size


@kernel
def add_texts(offsets: Ints, valid: Bytes, inner: Ints) -> None:
    """As `add_words`, of byte strings."""
    for row in range(len(valid)):
        size = _text_bytes(offsets[row + 1] - offsets[row]) if valid[row] else np.int64(1)
        inner[row] += 1 + uvarint_bytes(np.uint64(size)) + size


@kernel
def add_columns(inner: Ints, total: Ints) -> None:
    """Add to ``total`` the bytes of a column's field in its event."""
    for row in range(len(inner)):
        total[row] += 1 + uvarint_bytes(np.uint64(inner[row])) + inner[row]


@kernel
def event_fields(total: Ints, sizes: Ints) -> None:
    """Bytes of each event's field in its transaction."""
    for row in range(len(total)):
        sizes[row] = 1 + uvarint_bytes(np.uint64(total[row])) + total[row]


@kernel
def open_events(out: Bytes, at: Ints, total: Ints, prefix: Bytes) -> None:
    """Begin each event: its field, its length, and what all of them begin with."""
    for row in range(len(at)):
        out[at[row]] = EVENT
        pos = put_uvarint(out, at[row] + 1, np.uint64(total[row]))
        copy_bytes(out, pos, prefix, 0, len(prefix))
        at[row] = pos + len(prefix)


@kernel
def open_columns(out: Bytes, at: Ints, inner: Ints, prefix: Bytes) -> None:
    """Begin a column of each event: its field, its length, its name and types."""
    for row in range(len(at)):
        out[at[row]] = ROW
        pos = put_uvarint(out, at[row] + 1, np.uint64(inner[row]))
        copy_bytes(out, pos, prefix, 0, len(prefix))
        at[row] = pos + len(prefix)


@kernel
def put_words(out: Bytes, at: Ints, field: int, words: UInts, valid: Bytes, mode: int) -> None:
    """Write a value's field of each event."""
    for row in range(len(at)):
        pos = at[row]
        out[pos] = field
        if not valid[row]:
            out[pos + 1] = 1
            out[pos + 2] = _NULL
            at[row] = pos + 3
            continue
        word = words[row]
        out[pos + 1] = np.uint8(_word_bytes(word, mode))
        pos += 2
        if mode == FLOAT:
            out[pos] = _FLOAT
            at[row] = put_u64(out, pos + 1, ~word if word & _SIGN else word | _SIGN)
        elif mode == SIGNED:
            out[pos] = _VARINT
            at[row] = put_uvarint(out, pos + 1, zigzag(word))
        else:
            out[pos] = _UVARINT
            at[row] = put_uvarint(out, pos + 1, word)


@kernel
def put_texts(out: Bytes, at: Ints, field: int, data: Bytes, offsets: Ints, valid: Bytes) -> None:
    """As `put_words`, of byte strings."""
    for row in range(len(at)):
        pos = at[row]
        out[pos] = field
        if not valid[row]:
            out[pos + 1] = 1
            out[pos + 2] = _NULL
            at[row] = pos + 3
            continue
        length = offsets[row + 1] - offsets[row]
        pos = put_uvarint(out, pos + 1, np.uint64(_text_bytes(length)))
        out[pos] = _COMPACT
        pos = put_uvarint(out, pos + 1, np.uint64(length) << np.uint64(1))
        copy_bytes(out, pos, data, offsets[row], length)
        at[row] = pos + length


@primitive
def put_number(out: Bytes, at: int, value: int, width: int) -> int:
    """Write a little-endian integer; position behind it."""
    for k in range(width):
        out[at + k] = np.uint8((np.uint64(value) >> np.uint64(8 * k)) & np.uint64(0xFF))
    return at + width


@kernel
def lay_out(
    txn: Ints, sizes: Ints, commit_ts: Ints, at: Ints, frames: Ints, starts: Ints, lengths: Ints, bodies: Ints
) -> int:
    """Where each event of some transactions goes (``at``), one frame a transaction that has any.

    Of each frame: its transaction, the begin and the length of its payload, the bytes of its events. Returns how many.
    """
    count = 0
    end = np.int64(0)
    first = 0
    while first < len(txn):
        stop = first
        data = np.int64(0)
        while stop < len(txn) and txn[stop] == txn[first]:
            data += sizes[stop]
            stop += 1
        length = 4 + uvarint_bytes(np.uint64(commit_ts[txn[first]])) + uvarint_bytes(np.uint64(data)) + data
        frames[count] = txn[first]
        starts[count] = end + HEAD_BYTES
        lengths[count] = length
        bodies[count] = data
        count += 1
        place = end + HEAD_BYTES + length - data
        while first < stop:
            at[first] = place
            place += sizes[first]
            first += 1
        end = place + TAIL_BYTES
    return count


@kernel
def open_frames(out: Bytes, commit_ts: Ints, starts: Ints, lengths: Ints, bodies: Ints) -> None:
    """Write of each frame what stands before its events."""
    for frame in range(len(starts)):
        pos = starts[frame] - HEAD_BYTES
        copy_bytes(out, pos, MAGIC, 0, 4)
        put_number(out, pos + 4, lengths[frame], 8)
        pos += HEAD_BYTES
        out[pos] = TP
        out[pos + 1] = 0
        out[pos + 2] = COMMIT_TS
        pos = put_uvarint(out, pos + 3, np.uint64(commit_ts[frame]))
        out[pos] = DML_DATA
        put_uvarint(out, pos + 1, np.uint64(bodies[frame]))


@kernel
def close_frames(out: Bytes, starts: Ints, lengths: Ints) -> None:
    """Write the checksum behind each payload."""
    for frame in range(len(starts)):
        end = starts[frame] + lengths[frame]
        put_number(out, end, crc_more(out, starts[frame], end, 0), TAIL_BYTES)
