"""Timestamps of the cluster: ``physical_ms << 18 | logical``, one order over all nodes.

A clock time means ``ms << 18``, inclusive. Times are shown as TSO and as clock time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NewType

Tso = NewType("Tso", int)
LOGICAL_BITS = 18
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
MAX_TSO = Tso((1 << 63) - 1)
# The clock of this machine may lag behind that of the cluster by this much.
_AHEAD_MS = 10_000


def compose(physical_ms: int, logical: int = 0) -> Tso:
    """Build a TSO from milliseconds since the epoch and a logical counter."""
    return Tso(physical_ms << LOGICAL_BITS | logical)


def physical_ms(ts: int) -> int:
    """Milliseconds since the epoch."""
    return ts >> LOGICAL_BITS


def lies_ahead(ts: int, wall: int) -> bool:
    """Whether a moment lies in the future by this machine's clock, which may lag behind that of the cluster."""
    return physical_ms(ts) > physical_ms(wall) + _AHEAD_MS


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
