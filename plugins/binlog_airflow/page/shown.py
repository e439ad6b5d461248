"""What of a look the page shows, in words and places: a line of time, tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from binlog_airflow.advice import dag_for
from pumphouse.model.tso import Tso
from pumphouse.status.findings import ago
from pumphouse.status.headline import clock, from_second
from pumphouse.status.past import Event, Past
from pumphouse.status.report import PumpState, Status, only_restored

# Choices of how much of the archive the line of time shows: name -> seconds; None = all of it.
SPANS: dict[str, float | None] = {"all": None, "30 days": 30 * 86_400.0, "1 day": 86_400.0, "1 hour": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of the line of time, in percent of its width. ``kind``: archived, restorable, behind, late or lost."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line of time, from ``start`` to ``now``; ``marks``: percent and event."""

    start: Tso
    now: Tso
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, Event], ...]


def line(status: Status, past: Past | None, span_s: float | None) -> Line | None:
    """The line of time; None where there is no archive."""
    archive = status.archive
    if archive.begin is None or archive.end is None:
        return None
    now = Tso(max(status.now, archive.end))
    start = archive.begin if span_s is None else Tso(max(archive.begin, now - (int(span_s * 1000) << 18)))
    return Line(
        start=start,
        now=now,
        bars=tuple(_bars(status, past, start, now)),
        marks=tuple(
            (_percent(each.at, start, now), each) for each in (past.events if past else ()) if each.at >= start
        ),
    )


def _percent(ts: int, start: int, now: int) -> float:
    return round(100 * min(max((ts - start) / max(now - start, 1), 0), 1), 3)


def _bars(status: Status, past: Past | None, start: Tso, now: Tso) -> Iterator[Bar]:
    archive = status.archive
    begin, end = archive.begin or start, archive.end or now

    def bar(kind: str, low: int, high: int, title: str) -> Iterator[Bar]:
        x, to = _percent(low, start, now), _percent(high, start, now)
        if to > x or (kind == "lost" and high > start):
            width = max(to - x, 0.3)
            yield Bar(kind=kind, x=min(x, 100 - width), width=width, title=title)

    restorable = archive.restorable_from or end
    yield from bar("archived", begin, restorable, f"archived from {clock(begin)} on, with no dump to restore from")
    yield from bar("restorable", restorable, end, f"restorable from {clock(from_second(restorable))} to {clock(end)}")
    yield from bar("late" if archive.late else "behind", end, now, f"not archived yet: {ago(archive.age_s)}")
    for each in past.holes if past else ():
        what = f"declared lost of Pump {each.node_id}" if each.node_id else "no restore of the whole"
        what = f"{what}, {clock(each.start)} to {clock(each.end)}: {each.why}"
        yield from bar("lost", each.start, each.end, what)


def steps(status: Status, dags: Mapping[str, str]) -> list[dict[str, Any]]:
    """What wants a hand: who, what, the command, and the installation's DAG that does it, too ('' = none does)."""
    return [
        {"severity": str(each.severity), "who": each.who, "what": each.what, "next": each.next, "dag": dag}
        for each in status.findings
        for dag in [dags.get(dag_for(each.next), "")]
    ]


def pumps(found: Iterable[PumpState]) -> list[dict[str, Any]]:
    """Rows of the table of Pumps."""
    return [
        {
            "name": each.node_id,
            "address": each.address,
            "state": "silent" if each.silent else "no answer" if each.problem else each.state,
            "bad": each.silent or each.writer_failed or each.read_only,
            "at": each.watermark or None,
            "lag": ago(each.lag_s),
            "seen": ago(each.silent_s),
            "free": size(each.available_bytes),
        }
        for each in found
    ]


def targets(status: Status) -> list[dict[str, Any]]:
    """Rows of the table of targets."""
    return [
        {
            "name": each.section.removeprefix("targets."),
            "address": each.address,
            "at": each.at,
            "lag": "restored" if only_restored(each.section) and each.at else ago(each.lag_s),
            "state": each.problem or each.failed or each.standing,
            "bad": bool(each.problem or each.failed),
            "held": each.held_by,
        }
        for each in status.targets
    ]


def size(count: int | None) -> str:
    """Bytes, for people."""
    return "-" if count is None else f"{count / (1 << 30):.1f} GiB"
