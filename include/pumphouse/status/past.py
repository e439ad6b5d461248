"""What lies along an archive: its dumps and folded bases, proofs, drills and marks, and what it lacks.

A look says how it all stands now (`look`), by few requests. This takes one for each of these, however many windows
there are, and little of it changes from one hour to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from pumphouse.archive.archive import Archive
from pumphouse.archive.declare import declarations
from pumphouse.archive.drills import Drill, latest_drills
from pumphouse.archive.losses import losses_of
from pumphouse.archive.proofs import DRILL, Proof, read_proofs
from pumphouse.archive.view import read_view
from pumphouse.errors import BinlogError
from pumphouse.loader.rules import Rules
from pumphouse.model.tso import MAX_TSO, Tso
from pumphouse.parts import Parts
from pumphouse.settings import LoadRule, Settings
from pumphouse.status.stops import stopping

log = structlog.get_logger()
# Of proofs and drills the latest.
_LATEST = 16


class Kind(StrEnum):
    """What something along the archive is."""

    DUMP = "dump"
    FOLDED = "folded base"
    PROOF = "proof"
    DRILL = "drill"
    MARK = "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something at a moment of the archive.

    ``good``, ``ended_ms``, a Unix time, and ``of``, what was compared: of a proof or a drill.
    """

    kind: Kind
    at: Tso
    good: bool = True
    ended_ms: int | None = None
    of: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """What a Pump had in (start, end] was declared lost; of no Pump (''): what else no restore of the whole passes.

    ``why``: in words.
    """

    start: Tso
    end: Tso
    node_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """All of it, each in order of its moment."""

    events: tuple[Event, ...] = ()
    holes: tuple[Hole, ...] = ()

    @property
    def proven(self) -> Event | None:
        """The last proof or drill that ended, and found everything equal."""
        green = (each for each in self.events if each.good and each.ended_ms is not None)
        return max(green, key=lambda each: each.ended_ms or 0, default=None)


def past_of(settings: Settings) -> Past:
    """Ask the archive that the settings name."""
    with Parts(settings) as parts:
        return past(parts.readable_archive, settings.load.rules)


def judged_of(settings: Settings) -> Past:
    """Proofs and drills alone."""
    with Parts(settings) as parts:
        return Past(events=tuple(sorted(_judgements(parts.readable_archive), key=lambda each: each.at)))


def past(archive: Archive, rules: Sequence[LoadRule] = ()) -> Past:
    """Ask the archive. ``rules``: of loads, by which a DDL need not stop them."""
    genesis, kept, end = archive.genesis(), archive.range(), archive.end()
    events = [Event(kind=Kind.MARK, at=each.ts, text=each.reason) for each in kept.marks]
    if genesis.base is not None and genesis.ts >= kept.start:
        events.append(Event(kind=Kind.DUMP, at=genesis.ts))
    events += [
        Event(kind=Kind.DUMP if base.folded is None else Kind.FOLDED, at=base.ts) for base in archive.bases(MAX_TSO)
    ]
    events += _judgements(archive)
    holes = [
        Hole(start=each.from_ts, end=each.to_ts, node_id=each.node_id, why=each.reason)
        for each in declarations(archive)
        if each.to_ts > kept.start
    ]
    bases = sorted(each.at for each in events if each.kind in (Kind.DUMP, Kind.FOLDED))
    holes += _stopping(archive, kept.start, end, bases, Rules.of(rules, Tso(0)))
    return Past(
        events=tuple(sorted(events, key=lambda each: each.at)),
        holes=tuple(sorted(holes, key=lambda each: each.start)),
    )


def _judgements(archive: Archive) -> Iterator[Event]:
    for proof in read_proofs(archive, last=_LATEST):
        if proof.ended_ms is not None and proof.task != DRILL:
            yield _judged(Kind.PROOF, proof, proof.equal, proof.subject)
    for drill in latest_drills(archive, _LATEST):
        if drill.ended_ms is not None and drill.at:
            yield _judged(Kind.DRILL, drill, drill.green, f"a drill into {drill.into}")


def _stopping(archive: Archive, start: Tso, end: Tso, bases: Sequence[Tso], rules: Rules) -> Iterator[Hole]:
    """What no restore of the whole passes and no Pump lost.

    From each DDL that no load or restore carries out to the next dump: other tables by themselves are restorable. And
    where TiDB skipped binlogs.
    """
    try:
        view = read_view(archive, end=end)
    except BinlogError as error:
        log.warning("ddls_not_looked_at", error=error.message)
        return
    for stop in stopping(view.timeline, start, end, rules):
        behind = (base for base in bases if base > stop.at)
        yield Hole(start=stop.at, end=next(behind, end), node_id="", why=stop.why)
    for each in losses_of(view.windows, after=start, upto=end).binlog_skipped:
        yield Hole(start=each.start, end=each.end, node_id="", why="TiDB skipped binlogs")


def _judged(kind: Kind, found: Proof | Drill, good: bool, of: str) -> Event:
    return Event(kind=kind, at=Tso(found.at), good=good, ended_ms=found.ended_ms, of=of, text=f"{of}: {found.verdict}")
