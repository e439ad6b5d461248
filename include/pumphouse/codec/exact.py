"""Kernels between the texts of dates, date-times and decimals and the numbers that Arrow and Parquet hold of them.

A text is taken only in the one spelling that the number gives back: `read_…` marks what is none. So zero dates, dates
that no calendar has, years before 1, and decimals with other digits than their column's stay texts.
"""

# mypy: disable-error-code="arg-type, assignment, return-value"
# (inside kernels there is one kind of integer)

from __future__ import annotations

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, UInts, kernel, primitive
from pumphouse.codec.texts import DOT, MINUS, POWERS, ZERO, put_clock, put_date

DAY_US = 86_400_000_000
# What 128 bits hold of decimal digits, whatever they are.
MOST_DIGITS = 38
_LOW = np.uint64(0xFFFFFFFF)
_BILLION = np.uint64(1_000_000_000)


@primitive
def _digits(data: Bytes, at: int, count: int) -> int:
    """The number that some digits are; -1 where one is none."""
    value = 0
    for k in range(at, at + count):
        digit = np.int64(data[k]) - ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@primitive
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar (Hinnant, "chrono-Compatible Low-Level Date")."""
    of = year - (month <= 2)
    era = of // 400
    in_era = of - era * 400
    in_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + in_era * 365 + in_era // 4 - in_era // 100 + in_year - 719_468


@primitive
def _month_days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@kernel
def read_moments(data: Bytes, offsets: Ints, valid: Bytes, whole: bool, fsp: int, out: Ints, ok: Bytes) -> None:
    """``YYYY-MM-DD`` to days, ``YYYY-MM-DD hh:mm:ss[.f]`` (``whole``) to microseconds since 1970; ``ok``: it is one."""
    width = 10 if not whole else 19 if fsp == 0 else 20 + fsp
    for row in range(len(out)):
        out[row] = 0
        ok[row] = 0
        at = offsets[row]
        if not valid[row] or offsets[row + 1] - at != width or data[at + 4] != MINUS or data[at + 7] != MINUS:
            continue
        year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
        if year < 1 or month < 1 or month > 12 or day < 1 or day > _month_days(year, month):
            continue
        days = _days(year, month, day)
        if not whole:
            out[row] = days
            ok[row] = 1
            continue
        if data[at + 10] != 32 or data[at + 13] != 58 or data[at + 16] != 58 or (fsp > 0 and data[at + 19] != DOT):
            continue
        hour, minute, second = _digits(data, at + 11, 2), _digits(data, at + 14, 2), _digits(data, at + 17, 2)
        micro = _digits(data, at + 20, fsp) * POWERS[6 - fsp] if fsp > 0 else 0
        if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59 or micro < 0:
            continue
        out[row] = days * DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
        ok[row] = 1


@kernel
def write_moments(values: Ints, whole: bool, fsp: int, out: Bytes) -> None:
    """The texts of `read_moments`, each of the same width; of a row that has no value any."""
    width = 10 if not whole else 19 if fsp == 0 else 20 + fsp
    for row in range(len(values)):
        rest = values[row] % DAY_US if whole else 0
        days = (values[row] - rest) // DAY_US if whole else values[row]
        shifted = days + 719_468
        era = shifted // 146_097
        of_era = shifted - era * 146_097
        in_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
        in_year = of_era - (365 * in_era + in_era // 4 - in_era // 100)
        shifted_month = (5 * in_year + 2) // 153
        day = in_year - (153 * shifted_month + 2) // 5 + 1
        month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
        year = in_era + era * 400 + (month <= 2)
        at = row * width
        put_date(out, at, year, month, day)
        if whole:
            out[at + 10] = 32
            seconds = rest // 1_000_000
            put_clock(out, at + 11, seconds // 3600, seconds // 60 % 60, seconds % 60, rest % 1_000_000, fsp)


@kernel
def read_decimals(data: Bytes, offsets: Ints, valid: Bytes, precision: int, scale: int, out: UInts, ok: Bytes) -> None:
    """``[-]digits[.digits]`` with ``scale`` decimals to two words a row, the lower one first; ``ok``: it is one."""
    for row in range(len(ok)):
        ok[row] = 0
        out[2 * row] = np.uint64(0)
        out[2 * row + 1] = np.uint64(0)
        at, end = offsets[row], offsets[row + 1]
        if not valid[row] or at == end:
            continue
        negative = data[at] == MINUS
        at += negative
        whole = end - at - (scale + 1 if scale > 0 else 0)
        digits = whole + scale
        # A number below 1 has a zero before its point, which is no digit of the column's.
        significant = digits - 1 if whole == 1 and data[at] == ZERO and scale > 0 else digits
        if whole < 1 or significant > precision or (whole > 1 and data[at] == ZERO):
            continue
        if scale > 0 and data[at + whole] != DOT:
            continue
        low, high = np.uint64(0), np.uint64(0)
        good = True
        for k in range(at, end):
            if scale > 0 and k == at + whole:
                continue
            digit = np.int64(data[k]) - ZERO
            if digit < 0 or digit > 9:
                good = False
                break
            first = (low & _LOW) * np.uint64(10) + np.uint64(digit)
            second = (low >> np.uint64(32)) * np.uint64(10) + (first >> np.uint64(32))
            low = (second << np.uint64(32)) | (first & _LOW)
            high = high * np.uint64(10) + (second >> np.uint64(32))
        zero = low == np.uint64(0) and high == np.uint64(0)
        if not good or (negative and zero):
            continue
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
        out[2 * row] = low
        out[2 * row + 1] = high
        ok[row] = 1


@kernel
def write_decimals(words: UInts, valid: Bytes, scale: int, offsets: Ints, out: Bytes, digits: Bytes) -> None:
    """The texts of `read_decimals`; ``out`` has room for 41 bytes a row, ``digits`` for 45."""
    at = 0
    for row in range(len(valid)):
        offsets[row] = at
        if not valid[row]:
            continue
        low, high = words[2 * row], words[2 * row + 1]
        if high >> np.uint64(63):
            out[at] = MINUS
            at += 1
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
        count = 0
        # Nine digits a step, the lowest first: 128 bits as four of 32, each with what is left of the ones above it.
        while count == 0 or low != np.uint64(0) or high != np.uint64(0):
            rest = np.uint64(0)
            if high == np.uint64(0):
                rest = low % _BILLION
                low = low // _BILLION
            else:
                part = high >> np.uint64(32)
                a, rest = part // _BILLION, part % _BILLION
                part = (rest << np.uint64(32)) | (high & _LOW)
                b, rest = part // _BILLION, part % _BILLION
                part = (rest << np.uint64(32)) | (low >> np.uint64(32))
                c, rest = part // _BILLION, part % _BILLION
                part = (rest << np.uint64(32)) | (low & _LOW)
                d, rest = part // _BILLION, part % _BILLION
                high, low = (a << np.uint64(32)) | b, (c << np.uint64(32)) | d
            for _ in range(9):
                digits[count] = ZERO + np.int64(rest % np.uint64(10))
                rest = rest // np.uint64(10)
                count += 1
        while count > scale + 1 and digits[count - 1] == ZERO:
            count -= 1
        while count < scale + 1:
            digits[count] = ZERO
            count += 1
        for k in range(count - 1, -1, -1):
            out[at] = digits[k]
            at += 1
            if k == scale and scale > 0:
                out[at] = DOT
                at += 1
    offsets[len(valid)] = at


@primitive
def _is_utf8(data: Bytes, at: int, end: int) -> bool:
    """Whether some bytes are UTF-8 (RFC 3629): no overlong form, no surrogate, nothing above U+10FFFF."""
    while at < end:
        first = np.int64(data[at])
        at += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if at + more > end:
            return False
        second = np.int64(data[at])
        low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for k in range(at + 1, at + more):
            if np.int64(data[k]) & 0xC0 != 0x80:
                return False
        at += more
    return True


@kernel
def mark_utf8(data: Bytes, offsets: Ints, ok: Bytes) -> None:
    """Which rows are UTF-8."""
    for row in range(len(ok)):
        ok[row] = _is_utf8(data, offsets[row], offsets[row + 1])
