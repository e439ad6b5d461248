"""Dates and times of the datum codec: packed 64-bit date-times, durations in nanoseconds, both to and from text.

TIMESTAMP values are UTC on both sides: the codec never converts a zone. Zero and partial-zero dates keep their zeros.
The fractional precision (``fsp``, 0..6) comes from the column, never from the value.
"""

from __future__ import annotations

import re

from pumphouse.errors import CodecError

_DATETIME = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?)?\Z")
_DURATION = re.compile(r"(-?)(\d{1,7}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?\Z")
NS = 1_000_000_000


def fsp_of(decimal: int) -> int:
    """Fractional digits that a column's ``Decimal`` stands for; -1 (unspecified) is 0."""
    return decimal if 0 <= decimal <= 6 else 0


def pack_datetime(text: str) -> int:
    """Packed form of ``YYYY-MM-DD[ hh:mm:ss[.ffffff]]``; CodecError when it is none."""
    match = _DATETIME.match(text)
    if match is None:
        raise CodecError(f"{text!r} is no date or date-time")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise CodecError(f"{text!r} is no date or date-time")
    micro = int((match[7] or "").ljust(6, "0"))
    day_part = (year * 13 + month) << 5 | day
    return (day_part << 17 | hour << 12 | minute << 6 | second) << 24 | micro


def unpack_datetime(packed: int) -> tuple[int, int, int, int, int, int, int]:
    """Year, month, day, hour, minute, second, microsecond; CodecError when a part is out of range."""
    micro = packed & 0xFFFFFF
    clock = packed >> 24 & 0x1FFFF
    day_part = packed >> 41
    year, month = divmod(day_part >> 5, 13)
    parts = (year, month, day_part & 31, clock >> 12, clock >> 6 & 63, clock & 63, micro)
    if year > 9999 or parts[3] > 23 or parts[4] > 59 or parts[5] > 59 or micro > 999_999:
        raise CodecError(f"{packed:#x} is no packed date-time")
    return parts


def date_text(packed: int) -> str:
    """``YYYY-MM-DD``."""
    year, month, day = unpack_datetime(packed)[:3]
    return f"{year:04d}-{month:02d}-{day:02d}"


def datetime_text(packed: int, fsp: int) -> str:
    """``YYYY-MM-DD hh:mm:ss`` and ``fsp`` fractional digits."""
    year, month, day, hour, minute, second, micro = unpack_datetime(packed)
    text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
    return f"{text}.{micro:06d}"[: 20 + fsp] if fsp else text


def parse_duration(text: str) -> int:
    """Nanoseconds of ``[-]hh:mm:ss[.ffffff]``; CodecError when it is none."""
    match = _DURATION.match(text)
    if match is None or int(match[3]) > 59 or int(match[4]) > 59:
        raise CodecError(f"{text!r} is no time")
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4])
    value = seconds * NS + int((match[5] or "").ljust(6, "0")) * 1000
    return -value if match[1] else value


def duration_text(nanoseconds: int, fsp: int) -> str:
    """``[-]hh:mm:ss`` and ``fsp`` fractional digits."""
    seconds, rest = divmod(abs(nanoseconds), NS)
    sign = "-" if nanoseconds < 0 else ""
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{f'{rest // 1000:06d}'[:fsp]}" if fsp else text
