"""Kernel that prints binary JSON (the columnar side of ``json.json_text``), without recursion."""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Int32s, Ints, kernel, primitive
from pumphouse.codec.locate import BAD_VALUE, read_u32le, skip_json
from pumphouse.codec.texts import put_clock, put_date, put_duration, put_uint
from pumphouse.codec.wire import read_uvarint

MAX_DEPTH = 101
# What a step may answer instead of a position.
BROKEN, FULL, HARD = -1, -2, -3
# Room that every scalar and every escaped character fits into.
MARGIN = 64
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_LITERALS = np.frombuffer(b"null\0true\0false", np.uint8)
_TYPE = np.frombuffer(b'"base64:type', np.uint8)
_NO_FRACTION = np.frombuffer(b"e+0", np.uint8)
_POWERS = np.array([10.0**n for n in range(23)], np.float64)


@primitive
def put_all(out: Bytes, at: int, text: Bytes, begin: int, end: int) -> int:
    """Copy ``text[begin:end]``."""
    for k in range(begin, end):
        out[at + k - begin] = text[k]
    return at + end - begin


@primitive
def put_escape(out: Bytes, at: int, code: int) -> int:
    """Write a character as backslash, u and four hexadecimal digits."""
    out[at] = 92
    out[at + 1] = 117
    for k in range(4):
        out[at + 2 + k] = _HEX[code >> (12 - 4 * k) & 15]
    return at + 6


@kernel
def utf8_len(data: Bytes, pos: int, end: int) -> int:
    """Bytes of the well-formed character at ``pos`` (above ASCII), or 0."""
    lead = data[pos]
    low, high = 0x80, 0xBF
    if 0xC2 <= lead <= 0xDF:
        size = 2
    elif 0xE0 <= lead <= 0xEF:
        size = 3
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    elif 0xF0 <= lead <= 0xF4:
        size = 4
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    else:
        return 0
    if pos + size > end or data[pos + 1] < low or data[pos + 1] > high:
        return 0
    for k in range(2, size):
        if data[pos + k] & 0xC0 != 0x80:
            return 0
    return size


@primitive
def put_string(out: Bytes, at: int, data: Bytes, pos: int, end: int) -> int:
    """Write a JSON string; FULL when there is no room."""
    out[at] = 34
    at += 1
    while pos < end:
        if at + MARGIN > len(out):
            return FULL
        char = data[pos]
        if char >= 0x80:
            size = utf8_len(data, pos, end)
            if size == 0:
                at = put_escape(out, at, 0xFFFD)
                pos += 1
            elif size == 3 and char == 0xE2 and data[pos + 1] == 0x80 and data[pos + 2] in (0xA8, 0xA9):
                at = put_escape(out, at, 0x2028 + data[pos + 2] - 0xA8)
                pos += 3
            else:
                at = put_all(out, at, data, pos, pos + size)
                pos += size
            continue
        pos += 1
        if char in (34, 92):
            out[at] = 92
            out[at + 1] = char
            at += 2
        elif char >= 32:
            out[at] = char
            at += 1
        elif char in (9, 10, 13):
            out[at] = 92
            out[at + 1] = 116 if char == 9 else (110 if char == 10 else 114)
            at += 2
        else:
            at = put_escape(out, at, char)
    out[at] = 34
    return at + 1


@kernel
def put_opaque(out: Bytes, at: int, tp: int, data: Bytes, pos: int, end: int) -> int:
    """Write ``"base64:type<N>:…"``; FULL when there is no room."""
    if at + MARGIN + (end - pos + 2) // 3 * 4 > len(out):
        return FULL
    at = put_all(out, at, _TYPE, 0, len(_TYPE))
    at = put_uint(out, at, np.uint64(tp))
    out[at] = 58
    at += 1
    while pos < end:
        have = min(3, end - pos)
        group = 0
        for k in range(3):
            group = group << 8 | (np.int64(data[pos + k]) if k < have else 0)
        for k in range(4):
            out[at + k] = _BASE64[group >> (18 - 6 * k) & 63] if k <= have else 61
        at += 4
        pos += 3
    out[at] = 34
    return at + 1


@primitive
def put_double(out: Bytes, at: int, bits: np.uint64, value: float, doubles: bool) -> int:
    """Write a double of at most 15 digits; HARD when its shortest text needs more thought."""
    if bits >> np.uint64(63):
        out[at] = 45
        at += 1
        value = -value
    if not value < 9007199254740992.0:
        return HARD
    if value == np.floor(value):
        at = put_uint(out, at, np.uint64(value))
        return put_all(out, at, _NO_FRACTION, 0, len(_NO_FRACTION)) if doubles else at
    if value < 1e-6:
        return HARD
    for scale in range(1, 23):
        # At most 15 digits: product and quotient below are exact enough to find the one decimal that reads back.
        digits = np.floor(value * _POWERS[scale] + 0.5)
        if digits >= 1e15:
            return HARD
        if digits / _POWERS[scale] == value:
            number = np.uint64(digits)
            power = np.uint64(1)
            for _ in range(min(scale, 19)):
                power *= np.uint64(10)
            at = put_uint(out, at, number // power if scale < 20 else np.uint64(0))
            out[at] = 46
            rest = number % power if scale < 20 else number
            for k in range(at + scale, at, -1):
                out[k] = 48 + rest % np.uint64(10)
                rest //= np.uint64(10)
            return at + scale + 1
    return HARD


@primitive
def read_u64le(data: Bytes, pos: int) -> np.uint64:
    """Eight little-endian bytes; the caller has checked that they are there."""
    value = np.uint64(0)
    for k in range(7, -1, -1):
        value = value << np.uint64(8) | np.uint64(data[pos + k])
    return value


@kernel
def put_moment(out: Bytes, at: int, code: int, bits: np.uint64) -> int:
    """Write a date or date-time; HARD when a part has more digits than usual."""
    year = np.int64(bits >> np.uint64(50))
    micro = np.int64(bits >> np.uint64(4) & np.uint64(0xFFFFF))
    if year > 9999 or micro > 999_999:
        return HARD
    out[at] = 34
    month, day = np.int64(bits >> np.uint64(46) & np.uint64(15)), np.int64(bits >> np.uint64(41) & np.uint64(31))
    at = put_date(out, at + 1, year, month, day)
    if code != 0x0E:
        out[at] = 32
        hour = np.int64(bits >> np.uint64(36) & np.uint64(31))
        minute = np.int64(bits >> np.uint64(30) & np.uint64(63))
        second = np.int64(bits >> np.uint64(24) & np.uint64(63))
        at = put_clock(out, at + 1, hour, minute, second, micro, 6)
    out[at] = 34
    return at + 1


@primitive
def put_number(out: Bytes, at: int, code: int, data: Bytes, pos: int, doubles: bool) -> int:
    """Write a scalar of fixed size whose bytes are checked."""
    bits = read_u64le(data, pos)
    if code == 0x0A:
        return put_uint(out, at, bits)
    if code == 0x09:
        if bits >> np.uint64(63):
            out[at] = 45
            return put_uint(out, at + 1, np.uint64(0) - bits)
        return put_uint(out, at, bits)
    if code == 0x0B:
        return put_double(out, at, bits, np.uint64(bits).view(np.float64), doubles)
    if code == 0x11:
        out[at] = 34
        at = put_duration(out, at + 1, np.int64(bits), 6)
        out[at] = 34
        return at + 1
    return put_moment(out, at, code, bits)


@primitive
def put_literal(out: Bytes, at: int, code: int) -> int:
    """Write null, true or false; BROKEN for another code."""
    if code > 2:
        return BROKEN
    return put_all(out, at, _LITERALS, code * 5, code * 5 + (5 if code == 2 else 4))


@primitive
def put_scalar(  # noqa: PLR0911 - one a type
    out: Bytes,
    at: int,
    code: int,
    data: Bytes,
    pos: int,
    end: int,
    budget: int,
    doubles: bool,
) -> tuple[int, int]:
    """Write what is no container; position and what is left of the bytes that one value may use."""
    if at + MARGIN > len(out):
        return FULL, budget
    if code == 0x04:
        if pos >= end:
            return BROKEN, 0
        return put_literal(out, at, data[pos]), budget
    if code in (0x0C, 0x0D):
        if pos >= end:
            return BROKEN, 0
        tp = data[pos]
        raw, pos = read_uvarint(data, pos + (1 if code == 0x0D else 0), end)
        if pos < 0 or raw > np.uint64(min(end - pos, budget)):
            return BROKEN, 0
        length = np.int64(raw)
        if code == 0x0C:
            return put_string(out, at, data, pos, pos + length), budget - length
        return put_opaque(out, at, tp, data, pos, pos + length), budget - length
    size = 12 if code == 0x11 else 8
    if code not in (0x09, 0x0A, 0x0B, 0x0E, 0x0F, 0x10, 0x11) or pos + size > end or budget < size:
        return BROKEN, 0
    return put_number(out, at, code, data, pos, doubles), budget - size


@kernel
def put_json(  # noqa: C901, PLR0911, PLR0912, PLR0915 - a machine with an explicit stack
    out: Bytes, at: int, data: Bytes, pos: int, end: int, stack: Ints, doubles: bool
) -> int:
    """Write the text of the value (type code and body) that fills ``pos`` to ``end`` (``doubles``: `json_text`).

    Answers the position behind it, or BROKEN, FULL (more room is needed), HARD (the reference must print it).
    """
    budget = end - pos
    depth = 0
    code = np.int64(data[pos])
    pos += 1
    while True:
        if code in (0x01, 0x03):
            if depth >= MAX_DEPTH or pos < 0 or pos + 8 > end:
                return BROKEN
            count, size = read_u32le(data, pos), read_u32le(data, pos + 4)
            head = 8 + (11 if code == 0x01 else 5) * count
            budget -= head
            if size < head or pos + size > end or budget < 0:
                return BROKEN
            if at + MARGIN > len(out):
                return FULL
            out[at] = 123 if code == 0x01 else 91
            at += 1
            stack[depth, 0] = pos
            stack[depth, 1] = end
            stack[depth, 2] = count
            stack[depth, 3] = 0
            stack[depth, 4] = code
            end = pos + size
            depth += 1
        else:
            at, budget = put_scalar(out, at, code, data, pos, end, budget, doubles)
            if at < 0:
                return at
        # What comes next: the next child of the innermost container that has one.
        while depth > 0 and stack[depth - 1, 3] == stack[depth - 1, 2]:
            if at + MARGIN > len(out):
                return FULL
            depth -= 1
            out[at] = 125 if stack[depth, 4] == 0x01 else 93
            at += 1
            end = stack[depth, 1]
        if depth == 0:
            return at
        base, count, index = stack[depth - 1, 0], stack[depth - 1, 2], stack[depth - 1, 3]
        stack[depth - 1, 3] += 1
        if at + MARGIN > len(out):
            return FULL
        if index > 0:
            out[at] = 44
            out[at + 1] = 32
            at += 2
        entry = base + 8 + 5 * index
        if stack[depth - 1, 4] == 0x01:
            entry += 6 * count
            key = base + 8 + 6 * index
            key_at = base + read_u32le(data, key)
            key_len = np.int64(data[key + 4]) | np.int64(data[key + 5]) << 8
            budget -= key_len
            if key_at + key_len > end or budget < 0:
                return BROKEN
            at = put_string(out, at, data, key_at, key_at + key_len)
            if at < 0 or at + MARGIN > len(out):
                return FULL
            out[at] = 58
            out[at + 1] = 32
            at += 2
        code = np.int64(data[entry])
        pos = entry + 1 if code == 0x04 else base + read_u32le(data, entry + 1)


@kernel
def json_texts(
    data: Bytes,
    starts: Ints,
    lengths: Ints,
    places: Int32s,
    column: int,
    fill: Bytes,
    fill_valid: bool,
    doubles: bool,
    first: int,
    offsets: Ints,
    out: Bytes,
    valid: Bytes,
    stack: Ints,
    failed: Ints,
) -> tuple[int, int]:
    """Texts of a JSON column from row ``first`` on.

    Answers the row at which it stopped and why: 0 (done), FULL (``out`` must grow, go on with this row) or HARD (the
    reference must print this row; its offset is to be set by the caller).
    """
    at = offsets[first]
    for row in range(first, len(starts)):
        place = places[column, row]
        if place < 0:
            if at + len(fill) > len(out):
                return row, FULL
            valid[row] = fill_valid
            at = put_all(out, at, fill, 0, len(fill))
        elif data[starts[row] + place] == 0x00:
            valid[row] = 0
        else:
            pos = starts[row] + place
            behind = np.int64(BROKEN)
            if data[pos] == 0x0A:
                end = skip_json(data, pos + 1, starts[row] + lengths[row])
                behind = put_json(out, at, data, pos + 1, end, stack, doubles)
            if behind in (FULL, HARD):
                return row, behind
            if behind < 0:
                failed[0], failed[1] = BAD_VALUE, row
                return row, 0
            valid[row] = 1
            at = behind
        offsets[row + 1] = at
    return len(starts), 0
