"""Kernels that turn located datums into bytes: strings as they are; dates, times and decimals as text."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Int32s, Ints, kernel, primitive
from pumphouse.codec.locate import BAD_VALUE, DAMAGED, DIGIT_BYTES
from pumphouse.codec.raw import copy_bytes, load_u64, store_u16
from pumphouse.codec.scalars import seven_bits
from pumphouse.codec.wire import read_u64, read_uvarint, read_varint

DATE, DATETIME, TIME, DECIMAL = 0, 1, 2, 3
# Longest text of each.
WIDTHS = (10, 26, 22, 68)
POWERS = np.array([10**n for n in range(10)], np.int64)
# What the first eight bytes of a varint of nine have in common.
NINE = np.uint64(0x8080808080808080)
MINUS, DOT, ZERO = 45, 46, 48
# The two digits of 0..99, as `store_u16` writes them.
PAIRS = np.array([(ZERO + n // 10) | (ZERO + n % 10) << 8 for n in range(100)], np.uint16)


@primitive
def put_fixed(out: Bytes, at: int, value: int, width: int) -> int:
    """Write ``width`` digits; position behind them."""
    rest = np.uint32(value)
    left = at + width
    while left >= at + 2:
        left -= 2
        store_u16(out, left, PAIRS[rest % np.uint32(100)])
        rest //= np.uint32(100)
    if left > at:
        out[at] = ZERO + rest % np.uint32(10)
    return at + width


@primitive
def digits_of(value: int) -> int:
    """Decimal digits of an integer below 10**9; 1 of 0."""
    width = 1
    for n in range(1, 9):
        width += value >= POWERS[n]
    return width


@primitive
def put_uint(out: Bytes, at: int, value: np.uint64) -> int:
    """Write an unsigned integer; position behind it."""
    if value < np.uint64(1_000_000_000):
        return put_fixed(out, at, value, digits_of(value))
    width = 10
    rest = value // np.uint64(10_000_000_000)
    while rest > 0:
        width += 1
        rest //= np.uint64(10)
    for k in range(at + width - 1, at - 1, -1):
        out[k] = ZERO + value % np.uint64(10)
        value //= np.uint64(10)
    return at + width


@primitive
def put_date(out: Bytes, at: int, year: int, month: int, day: int) -> int:
    """Write ``YYYY-MM-DD``."""
    put_fixed(out, at, year, 4)
    out[at + 4] = MINUS
    put_fixed(out, at + 5, month, 2)
    out[at + 7] = MINUS
    return put_fixed(out, at + 8, day, 2)


@primitive
def put_clock(out: Bytes, at: int, hour: int, minute: int, second: int, micro: int, fsp: int) -> int:
    """Write ``hh:mm:ss`` and ``fsp`` fractional digits."""
    put_fixed(out, at, hour, 2)
    out[at + 2] = 58
    put_fixed(out, at + 3, minute, 2)
    out[at + 5] = 58
    at = put_fixed(out, at + 6, second, 2)
    if fsp > 0:
        out[at] = DOT
        at = put_fixed(out, at + 1, micro // POWERS[6 - fsp], fsp)
    return at


@kernel
def put_duration(out: Bytes, at: int, nanoseconds: int, fsp: int) -> int:
    """Write ``[-]hh:mm:ss`` and ``fsp`` fractional digits."""
    rest = np.uint64(nanoseconds)
    if nanoseconds < 0:
        rest = np.uint64(0) - rest
        out[at] = MINUS
        at += 1
    micro = np.int64(rest // np.uint64(1000) % np.uint64(1_000_000))
    seconds = np.int64(rest // np.uint64(1_000_000_000))
    hour = seconds // 3600
    if hour > 99:
        # put_clock writes the last two digits of the hour
        at = put_uint(out, at, np.uint64(hour // 100))
    return put_clock(out, at, hour % 100, seconds // 60 % 60, seconds % 60, micro, fsp)


@primitive
def put_packed(out: Bytes, at: int, packed: np.uint64, whole: bool, fsp: int) -> int:
    """Write a packed date (``whole`` false) or date-time; -1 when a part is out of range."""
    micro = np.int64(packed & np.uint64(0xFFFFFF))
    clock = np.int64((packed >> np.uint64(24)) & np.uint64(0x1FFFF))
    day_part = np.int64(packed >> np.uint64(41))
    months = day_part >> 5
    year = months // 13
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    if year > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
        return -1
    at = put_date(out, at, year, months - year * 13, day_part & 31)
    if not whole:
        return at
    out[at] = 32
    return put_clock(out, at + 1, hour, minute, second, micro, fsp)


@kernel
def put_decimal(out: Bytes, at: int, data: Bytes, pos: int) -> int:  # noqa: C901, PLR0912 - kept in one piece for speed
    """Write the text of a decimal whose size is checked; -1 when a group has too many digits."""
    precision, scale = np.int64(data[pos]), np.int64(data[pos + 1])
    pos += 2
    whole = precision - scale
    mask = np.int64(0) if data[pos] & 0x80 else np.int64(0xFF)
    flip = np.int64(0x80)
    begin = at
    if mask:
        out[at] = MINUS
        at += 1
    nonzero = False
    started = False
    width = whole % 9
    left = whole
    while left > 0:
        if width == 0:
            width = 9
        value = np.int64(0)
        for _ in range(DIGIT_BYTES[width]):
            value = value << 8 | (np.int64(data[pos]) ^ mask ^ flip)
            flip = 0
            pos += 1
        if value >= POWERS[width]:
            return -1
        if started:
            at = put_fixed(out, at, value, width)
        elif value > 0:
            at = put_uint(out, at, np.uint64(value))
            started = True
        left -= width
        width = 9
    nonzero = started
    if not started:
        out[at] = ZERO
        at += 1
    if scale > 0:
        out[at] = DOT
        at += 1
    left = scale
    while left > 0:
        width = min(left, 9)
        value = np.int64(0)
        for _ in range(DIGIT_BYTES[width]):
            value = value << 8 | (np.int64(data[pos]) ^ mask ^ flip)
            flip = 0
            pos += 1
        if value >= POWERS[width]:
            return -1
        nonzero |= value > 0
        at = put_fixed(out, at, value, width)
        left -= width
    if mask and not nonzero:
        for k in range(begin, at - 1):
            out[k] = out[k + 1]
        at -= 1
    return at


@kernel
def texts(  # noqa: C901, PLR0912 - kept in one piece for speed
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    places: Int32s,
    column: int,
    mode: int,
    fsp: int,
    fill: Bytes,
    fill_valid: bool,
    offsets: Ints,
    out: Bytes,
    valid: Bytes,
    failed: Ints,
) -> None:
    """Texts of a date, time or decimal column; ``out`` has room for the longest text (or ``fill``) a row."""
    at = 0
    offsets[0] = 0
    last = len(data) - 10
    for row in range(len(starts)):
        place = places[column, row]
        if place < 0:
            valid[row] = fill_valid
            for k in range(len(fill)):
                out[at + k] = fill[k]
            at += len(fill)
            offsets[row + 1] = at
            continue
        pos = starts[row] + place
        end = starts[row] + lengths[row]
        flag = data[pos]
        if flag == 0x00:
            valid[row] = 0
            offsets[row + 1] = at
            continue
        behind = -1
        failed[1] = row
        if mode == DECIMAL and flag == 0x06:
            behind = put_decimal(out, at, data, pos + 1)
        elif mode == TIME and flag in (0x08, 0x07):
            if flag == 0x08:
                nanoseconds, pos = read_varint(data, pos + 1, end)
                if pos < 0:
                    failed[0] = DAMAGED
                    return
            else:
                nanoseconds = np.int64(read_u64(data, pos + 1) ^ np.uint64(1 << 63))
            behind = put_duration(out, at, nanoseconds, fsp)
        elif mode <= DATETIME and flag == 0x09:
            # Of usual years it has nine bytes.
            word = load_u64(data, pos + 1) if pos <= last else np.uint64(0)
            if word & NINE == NINE and data[pos + 9] < 0x80:
                packed = seven_bits(word) | np.uint64(data[pos + 9]) << np.uint64(56)
            else:
                packed, pos = read_uvarint(data, pos + 1, end)
                if pos < 0:
                    failed[0] = DAMAGED
                    return
            behind = put_packed(out, at, packed, mode == DATETIME, fsp)
        if behind < 0:
            failed[0] = BAD_VALUE
            return
        at = behind
        valid[row] = 1
        offsets[row + 1] = at


@kernel
def string_offsets(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    places: Int32s,
    column: int,
    fill_len: int,
    fill_valid: bool,
    offsets: Ints,
    valid: Bytes,
    failed: Ints,
) -> None:
    """Offsets and validity of a string column."""
    at = 0
    offsets[0] = 0
    for row in range(len(starts)):
        place = places[column, row]
        if place < 0:
            valid[row] = fill_valid
            at += fill_len
        else:
            pos = starts[row] + place
            flag = data[pos]
            if flag == 0x02:
                length, _ = read_varint(data, pos + 1, starts[row] + lengths[row])
                at += length
                valid[row] = 1
            elif flag == 0x00:
                valid[row] = 0
            else:
                failed[0], failed[1] = BAD_VALUE, row
                return
        offsets[row + 1] = at


@kernel
def copy_strings(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    places: Int32s,
    column: int,
    fill: Bytes,
    offsets: Ints,
    out: Bytes,
) -> None:
    """Bytes of a string column, to the places that :func:`string_offsets` has found."""
    for row in range(len(starts)):
        at = offsets[row]
        length = offsets[row + 1] - at
        if length == 0:
            continue
        place = places[column, row]
        if place < 0:
            copy_bytes(out, at, fill, 0, length)
            continue
        _, pos = read_varint(data, starts[row] + place + 1, starts[row] + lengths[row])
        copy_bytes(out, at, data, pos, length)


@kernel
def copy_ranges(data: Bytes, starts: Ints, lengths: Ints, to: Ints, out: Bytes) -> None:
    """Byte ranges to their places in ``out``."""
    for row in range(len(starts)):
        copy_bytes(out, to[row], data, starts[row], lengths[row])


@kernel
def has_any(data: Bytes, wanted: Bytes) -> bool:
    """Whether one of these bytes is there."""
    step = 1 << 14  # stays in the processor's cache for all of them
    for begin in range(0, len(data), step):
        part = data[begin : begin + step]
        for byte in wanted:
            found = False
            for at in range(len(part)):
                found |= part[at] == byte
            if found:
                return True
    return False
