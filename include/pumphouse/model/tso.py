"""Timestamps of the cluster: ``physical_ms << 18 | logical``, one order over all nodes.

A clock time means ``ms << 18``, inclusive. Times are shown as TSO and as clock time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NewType

from pumphouse.errors import UsageError

Tso = NewType("Tso", int)
LOGICAL_BITS = 18
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
MAX_TSO = Tso((1 << 63) - 1)
# A plain integer below this is no TSO: it would lie before the year 2000.
_SMALLEST_TSO = 946_684_800_000 << LOGICAL_BITS


def compose(physical_ms: int, logical: int = 0) -> Tso:
    """Build a TSO from milliseconds since the epoch and a logical counter."""
    return Tso(physical_ms << LOGICAL_BITS | logical)


def physical_ms(ts: int) -> int:
    """Milliseconds since the epoch."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """The logical counter, 0 to 262143."""
    return ts & LOGICAL_MASK


def to_datetime(ts: int) -> datetime:
    """Clock time of a TSO, in UTC."""
    return datetime.fromtimestamp(physical_ms(ts) / 1000, tz=UTC)


def from_datetime(moment: datetime) -> Tso:
    """TSO of a clock time; a time without zone is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    delta = aware - datetime.fromtimestamp(0, tz=UTC)
    return compose((delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000)


def show(ts: int) -> str:
    """``470592258683437056 (2026-11-21 07:30:00.123Z)``."""
    if not 0 < physical_ms(ts) < 253_402_300_800_000:
        return str(ts)
    return f"{ts} ({to_datetime(ts).strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]}Z)"


def name20(ts: int) -> str:
    """Twenty digits, zero-padded, so that names sort as numbers."""
    return f"{ts:020d}"


def parse_time(text: str, now: Callable[[], Tso], *, word: str = "now") -> Tso:
    """Read TIME as the commands take it: a TSO, an ISO time, or ``now`` (asks the cluster's clock).

    ``word``: what the error names beside TSO and ISO time, where a caller takes another word.
    """
    text = text.strip()
    if text == "now":
        return now()
    if text.isdecimal():
        value = int(text)
        if not _SMALLEST_TSO <= value <= MAX_TSO:
            raise UsageError(f"{text} is not a TSO", hint="a TSO is milliseconds since 1970 << 18; or give an ISO time")
        return Tso(value)
    try:
        return from_datetime(datetime.fromisoformat(text))
    except ValueError:
        raise UsageError(
            f"{text!r} is no time",
            hint=f"give a TSO, an ISO time as 2026-11-21T07:30:00Z (UTC where no zone is given), or {word}",
        ) from None
