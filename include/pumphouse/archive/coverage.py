"""Whether a Pump's part of a window can be complete: pure judgement over registry, last manifest and declarations.

The rules are those of docs/formats.md, "Completeness": nobody is left out in silence. A Pump is pulled, or it was
drained, or its loss was declared; everything else holds the window, by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pumphouse.archive.manifest import Declaration, PumpEntry
from pumphouse.archive.window import Action, PullReport
from pumphouse.model.node import NodeStatus, Replaced
from pumphouse.model.tso import Tso, show

GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``declared`` is the declaration that fills this Pump's hole, where one does (also with PULL).

    ``needed``: the Pump is pulled only because of it; else it is for the case that the Pump does not answer.
    """

    node_id: str
    action: Action
    why: str = ""
    hint: str = ""
    declared: Declaration | None = None
    needed: bool = False


def registry_digest(status: NodeStatus) -> str:
    """Digest of a registry value: a Go Pump that is offline may not have changed since it was first seen so."""
    return hashlib.sha256(status.to_json()).hexdigest()


# -- which start of which Pump -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PumpStart:
    """One start of the Pump that has a node id. A Go Pump does not tell its starts apart: '' and 0."""

    incarnation: str
    start_count: int


class Started(Protocol):
    """What says which start of a Pump it is about: an entry of a manifest, of a plan, of a pull, a frame."""

    @property
    def incarnation(self) -> str:
        """'' for a Go Pump."""
        ...

    @property
    def start_count(self) -> int:
        """0 for a Go Pump."""
        ...


def start_of(pump: NodeStatus | Started | None) -> PumpStart:
    """The start that is registered, archived, planned or pulled; None = nobody knows of one."""
    told = pump.extra if isinstance(pump, NodeStatus) else pump
    return PumpStart("", 0) if told is None else PumpStart(told.incarnation, told.start_count)


def same_start(one: NodeStatus | Started, other: NodeStatus | Started) -> bool:
    """Whether both are about one start of one Pump (of a node id that the caller knows to be the same)."""
    return start_of(one) == start_of(other)


def same_incarnation(one: NodeStatus | Started, other: NodeStatus | Started) -> bool:
    """Whether both are about one data directory, started once or often."""
    return start_of(one).incarnation == start_of(other).incarnation


def replaced_by(pump: NodeStatus | PumpEntry | None) -> tuple[Replaced, ...]:
    """The incarnations that this one has replaced; none for a Go Pump."""
    told = pump.extra if isinstance(pump, NodeStatus) else pump
    return () if told is None else told.replaced


# -- whether anything can still come -----------------------------------------------------------------------------------


def is_done(entry: PumpEntry) -> bool:
    """Whether windows go on without this start of the Pump: it is drained or given up."""
    return entry.drained or entry.lost


def only_given_up(entry: PumpEntry) -> bool:
    """Whether it is given up and nobody has seen that nothing comes from it."""
    return entry.lost and not entry.drained


def drained_at_genesis(now: NodeStatus) -> bool:
    """Whether nothing of a Pump is the archive's: what an offline one once held lies before genesis."""
    return now.left


def still_drained(now: Started | None, before: PumpEntry | None) -> bool:
    """Whether a start that was pulled is the one that the last manifest, or genesis, has as drained.

    Never a Go Pump: it cannot be told from one that was started again, so it has to prove it anew.
    """
    if now is None or before is None or not now.incarnation:
        return False
    return before.drained and same_start(now, before)


def may_be_gone(now: NodeStatus | None, before: PumpEntry | None, declared: Sequence[Declaration] = ()) -> bool:
    """Whether nothing can come from a Pump that is offline, or not registered: it was drained before, or given up."""
    gone = now is None or now.left
    return gone and before is not None and is_done(before) and _unchanged(now, before, declared)


def drained_or_lost(report: PullReport, before: PumpEntry | None, end: Tso) -> tuple[bool, bool]:
    """What a manifest that ends at ``end`` says of a Pump: (drained, lost), never both.

    Drained: nothing real lies in (end, F3]. One that was given up stays lost, not drained, until it is pulled again:
    nobody has seen that nothing comes from it.
    """
    if report.action is Action.DRAINED:
        lost = before is not None and only_given_up(before)
        return not lost, lost
    if report.action is not Action.PULL or report.tail_from:
        return False, report.action is Action.LOST
    proved = bool(report.drained_to) and all(each.max_commit_ts <= end for each in report.segments)
    # Once drained stays drained for the same start, as a closing Pump takes no prewrites: nothing came since.
    return proved or (still_drained(report, before) and not report.segments), False


# -- verdicts ----------------------------------------------------------------------------------------------------------


def judge_all(
    nodes: Iterable[NodeStatus], before: Iterable[PumpEntry], declared: Sequence[Declaration], start: Tso
) -> list[Verdict]:
    """One verdict for each Pump that is registered or that the last manifest (or genesis) names, sorted by id."""
    now = {each.node_id: each for each in nodes}
    known = {each.node_id: each for each in before}
    return [judge(now.get(node_id), known.get(node_id), declared, start) for node_id in sorted(now.keys() | known)]


def judge(now: NodeStatus | None, before: PumpEntry | None, declared: Sequence[Declaration], start: Tso) -> Verdict:
    """Verdict on one Pump for the window that begins after ``start``.

    Args:
        now: its registry value, read after the fence was taken; None = no longer registered.
        before: its entry in the last manifest, or in genesis; None = it is new.
        declared: every declaration of the archive.
        start: where the window begins; a declaration counts for exactly the window that it was made for.
    """
    node_id = now.node_id if now is not None else before.node_id if before is not None else ""
    hole = _declaration(node_id, before, now, declared, start)
    if may_be_gone(now, before, declared):
        return Verdict(node_id=node_id, action=Action.DRAINED)
    if now is None or now.left:
        if hole is not None:
            return Verdict(node_id=node_id, action=Action.LOST, declared=hole)
        return Verdict(node_id=node_id, action=Action.HELD, why=_why_gone(now, before), hint=_way_out(node_id))
    fresh = replaced_since(replaced_by(now), before)
    why = _why_another(now, before, fresh, declared)
    hint = (
        "is it on the wrong data directory: stop it, keep that directory, start it on the old one. Is the old one "
        f"gone, was damage accepted, or did both take writes: pumphouse archive declare-lost {node_id} --reason …"
    )
    if not why:
        why = _why_back_too_late(now, before, declared, start)
        hint = (
            f"that can only be given up: pumphouse archive declare-lost {node_id} --reason …; then it is pulled again"
        )
    if not why:
        return Verdict(node_id=node_id, action=Action.PULL, declared=hole)
    if hole is not None:
        alive = [each for each in fresh if each.update_ts > hole.to_ts]
        if not alive:
            return Verdict(node_id=node_id, action=Action.PULL, declared=hole, needed=True)
        why = f"its loss is declared up to {show(hole.to_ts)}, and {_named(alive[-1])} ran after that"
    return Verdict(node_id=node_id, action=Action.HELD, why=why, hint=hint)


def replaced_since(replaced: Sequence[Replaced], before: PumpEntry | None) -> list[Replaced]:
    """Those incarnations that were replaced since the last manifest."""
    return [each for each in replaced if before is None or each not in before.replaced]


def accounted_for(fresh: Sequence[Replaced], before: PumpEntry) -> bool:
    """Whether what was replaced is exactly the start of the Pump that the last manifest says nothing comes from."""
    return [start_of(each) for each in fresh] == [start_of(before)]


def given_up(now: NodeStatus | None, before: PumpEntry, verdict: Verdict) -> bool:
    """Whether the start that is registered is given up with the Pump: then it is the one that is lost from here on.

    It, and whatever else had its node id since the last manifest, has not shown anything after the declared range.
    One that has stays another start than the lost one, and so holds the next window.
    """
    if verdict.action is not Action.LOST or verdict.declared is None or now is None or now.extra is None:
        return False
    upto = verdict.declared.to_ts
    return now.seen_ts <= upto and all(each.update_ts <= upto for each in replaced_since(replaced_by(now), before))


def _why_another(
    now: NodeStatus, before: PumpEntry | None, fresh: Sequence[Replaced], declared: Sequence[Declaration]
) -> str:
    """Why this incarnation cannot simply go on where the archive stands; '' = it can.

    What another incarnation answered lies in its data directory alone, and that is not the one that answers now.
    """
    if before is None:
        return f"it replaced {_named(fresh[-1])}, which no manifest knows" if fresh else ""
    if same_incarnation(before, now):
        return f"{_named(fresh[-1])} ran under its node id since the last window" if fresh else ""
    if is_done(before):
        return _why_not_that(before, fresh, declared)
    return (
        f"it came back as another incarnation ({start_of(now).incarnation or 'a Go Pump'}, the archive knows "
        f"{before.incarnation or 'a Go Pump'}): was its data directory emptied, put back, or damaged?"
    )


def _why_back_too_late(now: NodeStatus, before: PumpEntry | None, declared: Sequence[Declaration], start: Tso) -> str:
    """Why a lost Pump whose own directory is there again cannot simply go on; '' = it can.

    Windows went on without it, also above the declared range. It may have answered all that time, cut off from the
    registry alone: what lies between is in no window, and a pull from the archive's end does not bring it.
    """
    if before is None or not only_given_up(before) or not same_incarnation(before, now):
        return ""
    # One that begins here fills no window before this one: it is the way out.
    earlier = (each.to_ts for each in declared if each.node_id == before.node_id and each.from_ts < start)
    upto = Tso(max(earlier, default=0))
    if start <= upto:
        return ""
    return (
        f"it was declared lost up to {show(upto)} and is back; the archive ends at {show(start)}: what it answered in "
        "between is in no window"
    )


def _why_not_that(before: PumpEntry, fresh: Sequence[Replaced], declared: Sequence[Declaration]) -> str:
    """Why a new incarnation may not be the successor of the start that is drained or lost."""
    done = "drained" if before.drained else "declared lost"
    known = f"the archive has start {before.start_count} of {before.incarnation or 'a Go Pump'} as {done}"
    if not fresh:
        # Taken out of the registry when it was done: nothing was there for this one to replace.
        return "" if before.state == GONE else f"{known}; that it replaced that one is not registered"
    if not accounted_for(fresh, before):
        return f"{known}; it replaced {_named(fresh[-1])}"
    upto = _given_up_to(before, declared)
    if only_given_up(before) and fresh[-1].update_ts > upto:
        return f"{known} up to {show(upto)}, and it ran after that"
    return ""


def _named(replaced: Replaced) -> str:
    if not replaced.incarnation:
        return "a Go Pump"
    return f"incarnation {replaced.incarnation}, start {replaced.start_count}"


def _given_up_to(before: PumpEntry, declared: Sequence[Declaration]) -> Tso:
    """Up to where a lost Pump is given up: the declared range may reach above the windows so far."""
    return Tso(max([before.reached, *(each.to_ts for each in declared if each.node_id == before.node_id)]))


def _declaration(
    node_id: str,
    before: PumpEntry | None,
    now: NodeStatus | None,
    declared: Sequence[Declaration],
    start: Tso,
) -> Declaration | None:
    incarnations = {start_of(each).incarnation for each in (before, now) if each is not None}
    found = [
        each
        for each in declared
        if each.node_id == node_id and each.from_ts == start and each.incarnation in incarnations
    ]
    return max(found, key=lambda each: each.to_ts, default=None)


def _unchanged(now: NodeStatus | None, before: PumpEntry, declared: Sequence[Declaration]) -> bool:
    """Whether a Pump that was drained or lost is still that one, and a lost one has not run since."""
    if now is None:
        return True
    if now.extra is None:
        return same_incarnation(before, now) and before.registry in ("", registry_digest(now))
    if only_given_up(before) and now.seen_ts > _given_up_to(before, declared):
        return False
    return same_start(now, before)


def _why_gone(now: NodeStatus | None, before: PumpEntry | None) -> str:
    if now is None:
        return "it is gone from the registry and was not drained"
    if before is None:
        return "it is offline and no manifest knows it"
    if before.drained:
        return "it is offline; it was drained before, but it has run again since"
    if before.lost:
        return "it is offline; it was declared lost, but it has run since"
    return "it is offline and was not drained: was the state forced?"


def _way_out(node_id: str) -> str:
    return f"start it again, or: pumphouse archive declare-lost {node_id} --reason …"
