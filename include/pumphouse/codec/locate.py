"""Kernels that find each column's datum in row images."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Int32s, Ints, kernel, primitive
from pumphouse.codec.raw import load_u64, prefetch, trailing_zeros
from pumphouse.codec.wire import read_uvarint, read_varint

ABSENT = -1
DAMAGED, BAD_FLAG, BAD_ID, REPEATED, UNPAIRED, BAD_VALUE, BAD_MEMBER, NEW_FORMAT, NO_KEY = range(1, 10)
REASONS = {
    DAMAGED: "the bytes end too early or do not parse",
    BAD_FLAG: "invalid encoded key flag",
    BAD_ID: "a column id is missing",
    REPEATED: "a column id is there too often",
    UNPAIRED: "row data is corrupted: old and new columns differ",
    BAD_VALUE: "a datum does not fit its column",
    BAD_MEMBER: "a SET has bits without element",
    NO_KEY: "a column of the key is missing",
    NEW_FORMAT: "the row is in the new row format, which binlogs do not have",
}

# Bytes that 0..9 decimal digits take.
DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)


@primitive
def read_u32le(data: Bytes, pos: int) -> int:
    """Four little-endian bytes; the caller has checked that they are there."""
    return (
        np.int64(data[pos])
        | np.int64(data[pos + 1]) << 8
        | np.int64(data[pos + 2]) << 16
        | np.int64(data[pos + 3]) << 24
    )


@primitive
def skip_json(data: Bytes, pos: int, end: int) -> int:
    """Position behind a JSON value (type code and body), or -1."""
    if pos >= end:
        return -1
    code = data[pos]
    if code in (0x01, 0x03):
        if pos + 9 > end:
            return -1
        size = 1 + max(read_u32le(data, pos + 5), 8)
    elif code == 0x04:
        size = 2
    elif code in (0x09, 0x0A, 0x0B, 0x0E, 0x0F, 0x10):
        size = 9
    elif code == 0x11:
        size = 13
    elif code in (0x0C, 0x0D):
        length, at = read_uvarint(data, pos + (2 if code == 0x0D else 1), end)
        if at < 0 or length > np.uint64(end - at):
            return -1
        return at + np.int64(length)
    else:
        return -1
    return pos + size if pos + size <= end else -1


@primitive
def skip_varint(data: Bytes, pos: int, end: int) -> int:
    """Position behind a varint of at most 10 bytes, or -1."""
    stop = min(end, pos + 10)
    while pos < stop:
        if data[pos] < 0x80:
            return pos + 1
        pos += 1
    return -1


@kernel
def skip_comparable(data: Bytes, pos: int, end: int) -> int:
    """Position behind a memcomparable byte string, or -1."""
    while pos + 9 <= end:
        pos += 9
        if data[pos - 1] != 0xFF:
            return pos
    return -1


@primitive
def skip_decimal(data: Bytes, pos: int, end: int) -> int:
    """Position behind a decimal's prefix and binary, or -1."""
    if pos + 2 > end:
        return -1
    precision, scale = np.int64(data[pos]), np.int64(data[pos + 1])
    if precision < 1 or precision > 65 or scale > 30 or scale > precision:
        return -1
    whole = precision - scale
    size = 2 + whole // 9 * 4 + DIGIT_BYTES[whole % 9] + scale // 9 * 4 + DIGIT_BYTES[scale % 9]
    return pos + size if pos + size <= end else -1


@primitive
def skip_datum(data: Bytes, pos: int, end: int) -> int:  # noqa: PLR0911 - one branch a flag
    """Position behind the datum at ``pos``; -1 when it is damaged, -2 when its flag is unknown."""
    if pos >= end:
        return -1
    flag = data[pos]
    pos += 1
    if flag == 0x00:
        return pos
    if flag in (0x08, 0x09):
        return skip_varint(data, pos, end)
    if flag == 0x02:
        length, pos = read_varint(data, pos, end)
        if pos < 0 or length < 0 or length > end - pos:
            return -1
        return pos + length
    if flag in (0x03, 0x04, 0x05, 0x07):
        return pos + 8 if pos + 8 <= end else -1
    if flag == 0x06:
        return skip_decimal(data, pos, end)
    if flag == 0x0A:
        return skip_json(data, pos, end)
    if flag == 0x01:
        return skip_comparable(data, pos, end)
    return -2


# How many rows ahead the bytes of an image are asked for, and how many of them at most.
AHEAD, AHEAD_BYTES = 6, 2048

# Bytes of a decimal behind precision and scale, at precision << 5 | scale; 0 where there is no such decimal.
DECIMAL_BYTES = np.array(
    [
        2 + whole // 9 * 4 + DIGIT_BYTES[whole % 9] + scale // 9 * 4 + DIGIT_BYTES[scale % 9]
        if 1 <= precision <= 65 and scale <= 30 and (whole := precision - scale) >= 0
        else 0
        for precision in range(256)
        for scale in range(32)
    ],
    np.int64,
)


@primitive
def behind_usual(word: np.uint64, pos: int) -> int:
    """Position behind the datum at ``pos``, of which ``word`` has the first six bytes; 0 = look closer (`skip_datum`).

    What it says may lie behind the end of the row.
    """
    flag = word & np.uint64(0xFF)
    if flag == 0x08 or flag == 0x09:  # noqa: PLR1714 - numba has no quick `in` here
        stops = ~word & np.uint64(0x808080808000)
        return pos + (trailing_zeros(stops) + 1 >> 3) if stops else 0
    if flag == 0x02:
        length = np.int64(word >> np.uint64(8) & np.uint64(0xFF))
        if length >= 0x80:
            if word & np.uint64(0x800000):
                return 0
            length += (np.int64(word >> np.uint64(16) & np.uint64(0x7F)) << 7) - 0x80
            pos += 1
        return 0 if length & 1 else pos + 2 + (length >> 1)
    if flag == 0x04 or flag == 0x05 or flag == 0x03 or flag == 0x07:  # noqa: PLR1714
        return pos + 9
    if flag == 0x06:
        scale = word >> np.uint64(16) & np.uint64(0xFF)
        size = DECIMAL_BYTES[word >> np.uint64(3) & np.uint64(0x1FE0) | scale & np.uint64(31)] if scale < 32 else 0
        return pos + 1 + size if size else 0
    return pos + 1 if flag == 0x00 else 0


@primitive
def find_column(ids: Ints, column_id: int, guess: int) -> int:
    """Index of a column id, searched from ``guess`` on and around; -1 when it is not there."""
    for at in range(guess, len(ids)):
        if ids[at] == column_id:
            return at
    for at in range(min(guess, len(ids))):
        if ids[at] == column_id:
            return at
    return -1


@kernel
def locate(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one pass over a row, kept in one piece for speed
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    ids: Ints,
    handle_columns: Ints,
    keys: Ints,
    partial: bool,
    first: Int32s,
    second: Int32s,
    failed: Ints,
) -> None:
    """Find the datum of each wanted column in each image.

    Args:
        data: The buffer.
        starts: Where the images start.
        lengths: Their bytes.
        ids: Wanted column ids.
        handle_columns: Of an inserted row: for each datum of the handle its index in ``ids``, or -1; else empty.
        keys: Indices in ``ids`` of the columns that no row may lack.
        partial: Leave an image where every wanted column was found in it.
        first: Out, (columns, rows), all -1 before: offset of the datum from the image's start, -1 where absent.
        second: Out, the same for the new image of an updated row; of shape (0, 0) for other rows.
        failed: Out: reason, row, and the column of a NO_KEY; reason 0 when all is well.
    """
    columns = len(ids)
    paired = second.shape[0] > 0
    last = len(data) - 8
    for row in range(len(starts)):
        begin = starts[row]
        end = begin + lengths[row]
        pos = begin
        failed[1] = row
        # Rows lie apart, and each is read from datum to datum: without this, every line of it would be waited for.
        ahead = min(row + AHEAD, len(starts) - 1)
        for at in range(starts[ahead], starts[ahead] + min(lengths[ahead], AHEAD_BYTES), 64):
            prefetch(data, at)
        for part in range(len(handle_columns)):
            at = pos
            pos = skip_datum(data, pos, end)
            if pos < 0:
                failed[0] = DAMAGED if pos == -1 else BAD_FLAG
                return
            if handle_columns[part] >= 0:
                first[handle_columns[part], row] = at - begin
        list_start = pos - begin
        if pos < end and data[pos] == 0x80:
            failed[0] = NEW_FORMAT
            return
        if end - pos == 1 and data[pos] == 0:
            pos = end
        guess = 0
        balance = 0
        left = columns if partial else -1
        while pos < end and left != 0:
            # An id of one byte and a datum whose first six bytes say how long it is: all in one load.
            word = load_u64(data, pos) if pos <= last else np.uint64(0)
            at = pos + 2
            behind = behind_usual(word >> np.uint64(16), at) if word & np.uint64(0x81FF) == 0x08 else 0
            if behind == 0 or behind > end:
                if data[pos] != 0x08:
                    failed[0] = BAD_ID
                    return
                column_id, at = read_varint(data, pos + 1, end)
                if at < 0:
                    failed[0] = DAMAGED
                    return
                pos = skip_datum(data, at, end)
                if pos < 0:
                    failed[0] = DAMAGED if pos == -1 else BAD_FLAG
                    return
                if column_id < 0:
                    continue
            else:
                column_id = np.int64(word >> np.uint64(9) & np.uint64(0x3F))
                pos = behind
            column = guess
            if guess >= columns or ids[guess] != column_id:
                column = find_column(ids, column_id, guess)
                if column < 0:
                    continue
            guess = column + 1
            # A handle's datum lies before the list, and the list wins.
            if first[column, row] < list_start:
                first[column, row] = at - begin
                balance += 1
                left -= not paired
            elif paired and second[column, row] == ABSENT:
                second[column, row] = at - begin
                balance -= 1
                left -= 1
            else:
                failed[0] = REPEATED
                return
        if paired and balance != 0:
            failed[0] = UNPAIRED
            return
        for key in keys:
            if first[key, row] == ABSENT:
                failed[0] = NO_KEY
                failed[2] = key
                return
