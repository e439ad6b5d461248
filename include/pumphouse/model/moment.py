"""Moments as people say them: a clock time in some zone, ``yesterday 14:00``, ``gtid 0-1-1234``.

What is read is told back with its offset and its TSO. What could mean two moments is refused.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pumphouse.errors import UsageError
from pumphouse.model.tso import MAX_TSO, Tso, compose, from_datetime, physical_ms, to_datetime

# A plain integer below this is no TSO: it would lie before the year 2000.
_SMALLEST_TSO = compose(946_684_800_000)
_TSO_DIGITS = 19
_UNITS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}
_WORDS = re.compile(r"\d+(?:\.\d+)?|[^\W\d]+|\S")
# What happened, in place of when.
_HAPPENED = re.compile(rf"(before (?:ddl|txn)) (\d{{1,{_TSO_DIGITS}}})|((?:before )?gtid) (\S+)", re.IGNORECASE)
_SOURCE_TIME = re.compile(r"source time (.+)", re.IGNORECASE)
_DAY = re.compile(r"(today|yesterday)\b ?(.*)", re.IGNORECASE)
# A name behind the digits of a clock time; a T or a W there is ISO's.
_NAMED = re.compile(r"((?:\d{4}|today |yesterday ).*\d) ?(?![TW]\d)([A-Z][A-Z0-9_+/-]*)", re.IGNORECASE)
_APART = re.compile(r" ([+-]\d\d:?\d\d)$")

# (before ddl, before txn, gtid, before gtid or source time; number, GTID or ISO time) -> the moment.
Find = Callable[[str, str], Tso]


@dataclass(frozen=True, slots=True)
class Moment:
    """What somebody said, and the moment that it is. ``local``: it, in the zone that was meant; None of a TSO."""

    text: str
    ts: Tso
    local: datetime | None = None

    def __str__(self) -> str:
        if self.local is None:
            return f"{self.text!r} is TSO {self.ts}, {to_datetime(self.ts).isoformat(' ', 'milliseconds')}"
        named = f" ({self.local.tzinfo})" if isinstance(self.local.tzinfo, ZoneInfo) else ""
        return f"{self.text!r} is {self.local.isoformat(' ', 'milliseconds')}{named}, TSO {self.ts}"


_known_zones = cache(available_timezones)  # it reads many files


def zone_of(name: str) -> tzinfo:
    """The zone of a name of the tz database, as ``Europe/Berlin``; ``UTC`` needs no database. UsageError."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = _known_zones()
        near = difflib.get_close_matches(name, known, n=3) or [each for each in known if each.endswith(f"/{name}")]
        hint = f"did you mean {' or '.join(near)}?" if near else "as in Europe/Berlin"
        raise UsageError(
            f"no time zone {name!r} is known here",
            hint=hint
            if known
            else "this machine has no time zones: `pip install tzdata`, or write the offset, as +01:00",
        ) from None


def parse_time(
    text: str, now: Callable[[], Tso], *, zone: tzinfo = UTC, find: Find | None = None, word: str = "now"
) -> Moment:
    """Read TIME as the commands take it; UsageError.

    Args:
        text: what somebody said.
        now: asked where it counts from now; the cluster's clock, where there is one.
        zone: of a clock time that names none.
        find: finds the moment of what happened at the source; None where no archive is at hand.
        word: the word that the error names last, where a caller takes another than ``now``.
    """
    said = " ".join(text.split())
    if said == "now":
        return Moment(said, now())
    if said.isdecimal():
        value = int(said[: _TSO_DIGITS + 1])
        if not _SMALLEST_TSO <= value <= MAX_TSO:
            raise UsageError(
                f"{said} is not a TSO", hint="a TSO is milliseconds since 1970 << 18; or give a clock time"
            )
        return Moment(said, Tso(value))
    happened, there = _HAPPENED.fullmatch(said), _SOURCE_TIME.fullmatch(said)
    if (happened or there) and find is None:
        raise UsageError(f"{said!r} has no meaning here", hint="only what reads an archive finds it")
    if there and find:
        return Moment(said, find("source time", _clock_time(there[1], now, zone, word).isoformat()))
    if happened and find:
        kind, what = filter(None, happened.groups())
        return Moment(said, find(kind.lower(), what))
    words = _WORDS.findall(said.lower())
    if words[-1:] == ["ago"]:
        ms = physical_ms(now()) - _ms_of(said, [each for each in words[:-1] if each not in (",", "and")])
        if ms < 0:
            raise UsageError(f"{said!r} is before all clocks")
        ts = compose(ms)
        return Moment(said, ts, to_datetime(ts).astimezone(zone))
    local = _clock_time(said, now, zone, word)
    return Moment(said, from_datetime(local), local)


def _ms_of(said: str, words: Sequence[str]) -> int:
    """``1 hour 30 minutes``."""
    total = 0.0
    for count, unit in itertools.zip_longest(words[::2], words[1::2], fillvalue=""):
        seconds = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
        if seconds is None or not (count in ("a", "an") or count[:1].isdecimal()):
            raise UsageError(f"{said!r} is no time", hint="as in '1 hour 30 minutes ago'; a day has 24 hours")
        total += (float(count) if count[:1].isdecimal() else 1) * seconds
    return int(min(total, 1e15) * 1000)


def _clock_time(said: str, now: Callable[[], Tso], zone: tzinfo, word: str) -> datetime:
    """An aware time; UsageError where it is none, or two."""
    text, meant = _APART.sub(r"\1", said), zone
    if named := _NAMED.fullmatch(text):
        text, zone = named[1], zone_of(named[2])
    if day := _DAY.fullmatch(text):
        if not day[2]:
            raise UsageError(f"{said!r} is a whole day", hint=f"which time of it? As '{day[1]} 14:00'")
        date = to_datetime(now()).astimezone(zone).date() - timedelta(days=day[1].lower() == "yesterday")
        text = f"{date.isoformat()} {day[2]}"
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{said!r} is no time",
            hint=f"give a TSO, a time as 2026-11-21T07:30:00Z ({meant} where no zone is given; or with +01:00 or "
            f"Europe/Berlin), 'yesterday 14:00', '10 minutes ago', 'before DDL JOB', 'before TXN TS', "
            f"'gtid GTID', 'before GTID GTID', 'source time TIME', or {word}",
        ) from None
    if named and local.tzinfo is not None:
        raise UsageError(f"{said!r} names two zones", hint="leave one of them out")
    return _in_zone(said, local, zone) if local.tzinfo is None else local


def _in_zone(said: str, local: datetime, zone: tzinfo) -> datetime:
    """A time of a zone's clocks; UsageError where they show it twice, or never."""
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first
    there = first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local
    offsets = [each.isoformat()[-6:] for each in (first, second)]
    raise UsageError(
        f"{said!r} is there twice in {zone}: the clocks were set back from {offsets[0]} to {offsets[1]}"
        if there
        else f"{said!r} is never there in {zone}: the clocks were set from {offsets[0]} to {offsets[1]}",
        hint=f"write the offset: {' or '.join(f'{local.isoformat()}{each}' for each in offsets)}",
    )
