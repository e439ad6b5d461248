"""Whether a Pump's part of a window can be complete: pure judgement over registry, last manifest and declarations.

The rules are those of docs/formats.md, "Completeness": nobody is left out in silence. A Pump is pulled, or it was
drained, or its loss was declared; everything else holds the window, by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pumphouse.archive.manifest import Declaration, PumpEntry
from pumphouse.model.node import NodeState, NodeStatus, Replaced
from pumphouse.model.tso import Tso, show

GONE = "gone"


class Action(StrEnum):
    """What is to be done with one Pump in one window."""

    PULL = "pull"  # its stream proves its part
    DRAINED = "drained"  # nothing can come from it any more
    LOST = "lost"  # given up by declaration
    HELD = "held"  # the window waits


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


def incarnation_of(status: NodeStatus) -> str:
    """Incarnation as registered, '' for a Go Pump."""
    return "" if status.extra is None else status.extra.incarnation


def start_count_of(status: NodeStatus) -> int:
    """Count of starts as registered, 0 for a Go Pump."""
    return 0 if status.extra is None else status.extra.start_count


def replaced_by(status: NodeStatus) -> tuple[Replaced, ...]:
    """The incarnations that this one has replaced, as registered; none for a Go Pump."""
    return () if status.extra is None else status.extra.replaced


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
    if now is None or now.state is NodeState.OFFLINE:
        if before is not None and (before.drained or before.lost) and _unchanged(now, before, declared):
            return Verdict(node_id=node_id, action=Action.DRAINED)
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
    return [(each.incarnation, each.start_count) for each in fresh] == [(before.incarnation, before.start_count)]


def given_up(now: NodeStatus | None, before: PumpEntry, verdict: Verdict) -> bool:
    """Whether the start that is registered is given up with the Pump: then it is the one that is lost from here on.

    It, and whatever else had its node id since the last manifest, has not said anything after the declared range.
    One that has stays another start than the lost one, and so holds the next window.
    """
    if verdict.action is not Action.LOST or verdict.declared is None or now is None or now.extra is None:
        return False
    upto = verdict.declared.to_ts
    return now.update_ts <= upto and all(each.update_ts <= upto for each in replaced_since(replaced_by(now), before))


def _why_another(
    now: NodeStatus, before: PumpEntry | None, fresh: Sequence[Replaced], declared: Sequence[Declaration]
) -> str:
    """Why this incarnation cannot simply go on where the archive stands; '' = it can.

    What another incarnation answered lies in its data directory alone, and that is not the one that answers now.
    """
    if before is None:
        return f"it replaced {_named(fresh[-1])}, which no manifest knows" if fresh else ""
    if before.incarnation == incarnation_of(now):
        return f"{_named(fresh[-1])} ran under its node id since the last window" if fresh else ""
    if before.drained or before.lost:
        return _why_not_that(before, fresh, declared)
    return (
        f"it came back as another incarnation ({incarnation_of(now) or 'a Go Pump'}, the archive knows "
        f"{before.incarnation or 'a Go Pump'}): was its data directory emptied, put back, or damaged?"
    )


def _why_back_too_late(now: NodeStatus, before: PumpEntry | None, declared: Sequence[Declaration], start: Tso) -> str:
    """Why a lost Pump whose own directory is there again cannot simply go on; '' = it can.

    Windows went on without it, also above the declared range. It may have answered all that time, cut off from the
    registry alone: what lies between is in no window, and a pull from the archive's end does not bring it.
    """
    if before is None or not before.lost or before.drained or before.incarnation != incarnation_of(now):
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
    if before.lost and not before.drained and fresh[-1].update_ts > upto:
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
    incarnations = {each for each in (before and before.incarnation, now and incarnation_of(now)) if each is not None}
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
        return before.incarnation == "" and before.registry in ("", registry_digest(now))
    if before.lost and not before.drained and now.update_ts > _given_up_to(before, declared):
        return False
    return (now.extra.incarnation, now.extra.start_count) == (before.incarnation, before.start_count)


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
