"""Whether a Pump's part of a window can be complete: pure judgement over registry, last manifest and declarations.

The rules are those of docs/formats.md, "Completeness": nobody is left out in silence. A Pump is pulled, or it was
drained, or its loss was declared; everything else holds the window, by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from include.archive.manifest import Declaration, PumpEntry
from include.model.node import NodeState, NodeStatus
from include.model.tso import Tso

GONE = "gone"


class Action(StrEnum):
    """What is to be done with one Pump in one window."""

    PULL = "pull"  # its stream proves its part
    DRAINED = "drained"  # nothing can come from it any more
    LOST = "lost"  # given up by declaration
    HELD = "held"  # the window waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``declared`` is the declaration that fills this Pump's hole, where one does (also with PULL)."""

    node_id: str
    action: Action
    why: str = ""
    hint: str = ""
    declared: Declaration | None = None


def registry_digest(status: NodeStatus) -> str:
    """Digest of a registry value: a Go Pump that is offline may not have changed since it was first seen so."""
    return hashlib.sha256(status.to_json()).hexdigest()


def incarnation_of(status: NodeStatus) -> str:
    """Incarnation as registered, '' for a Go Pump."""
    return "" if status.extra is None else status.extra.incarnation


def start_count_of(status: NodeStatus) -> int:
    """Count of starts as registered, 0 for a Go Pump."""
    return 0 if status.extra is None else status.extra.start_count


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
        if before is not None and (before.drained or before.lost) and _unchanged(now, before):
            return Verdict(node_id=node_id, action=Action.DRAINED)
        if hole is not None:
            return Verdict(node_id=node_id, action=Action.LOST, declared=hole)
        return Verdict(node_id=node_id, action=Action.HELD, why=_why_gone(now, before), hint=_way_out(node_id))
    if before is None or before.drained or before.lost or incarnation_of(now) == before.incarnation:
        return Verdict(node_id=node_id, action=Action.PULL, declared=hole)
    if hole is not None:
        return Verdict(node_id=node_id, action=Action.PULL, declared=hole)
    return Verdict(
        node_id=node_id,
        action=Action.HELD,
        why=f"it came back as another incarnation ({incarnation_of(now) or 'a Go Pump'}, the archive knows "
        f"{before.incarnation or 'a Go Pump'}): was its data directory emptied or put back?",
        hint=_way_out(node_id),
    )


def _declaration(
    node_id: str,
    before: PumpEntry | None,
    now: NodeStatus | None,
    declared: Sequence[Declaration],
    start: Tso,
) -> Declaration | None:
    incarnations = {each for each in (before and before.incarnation, now and incarnation_of(now)) if each is not None}
    return next(
        (
            each
            for each in declared
            if each.node_id == node_id and each.from_ts == start and each.incarnation in incarnations
        ),
        None,
    )


def _unchanged(now: NodeStatus | None, before: PumpEntry) -> bool:
    """Whether a drained Pump is still the one that was drained."""
    if now is None:
        return True
    if now.extra is None:
        return before.incarnation == "" and before.registry in ("", registry_digest(now))
    return (now.extra.incarnation, now.extra.start_count) == (before.incarnation, before.start_count)


def _why_gone(now: NodeStatus | None, before: PumpEntry | None) -> str:
    if now is None:
        return "it is gone from the registry and was not drained"
    if before is None:
        return "it is offline and no manifest knows it"
    if before.drained:
        return "it is offline; it was drained before, but it has run again since"
    return "it is offline and was not drained: was the state forced?"


def _way_out(node_id: str) -> str:
    return f"start it again, or: pumphouse archive declare-lost {node_id} --reason …"
