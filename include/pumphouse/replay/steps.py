"""The order of statements for some groups: few statements of many rows, each group's changes in their order.

A change is a delete of its old row and a put of its new one. Levels alternate: even ones delete, odd ones put. Each
half of a change takes the first level of its kind that is not before that of the change before with one of its keys; so
independent rows share statements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from pumphouse.replay.change import Change, Shape


class Safety(Enum):
    """What is held against what the target has."""

    STRICT = auto()  # each row that comes is new, each that goes is there
    CLEARED = auto()  # each row that comes is new; of those that go some are not there
    ONCE = auto()  # a row that stands under the lasting key of one that comes gives way; by another key none does
    AGAIN = auto()  # changes may come a second time: whatever stands in the way gives way, and comes again itself

    @property
    def replaces(self) -> bool:
        """Whether a row may stand under the key of one that comes."""
        return self in (Safety.ONCE, Safety.AGAIN)


@dataclass(slots=True)
class Step:
    """One kind of statement for rows of one table, in their order."""

    put: bool
    shape: Shape
    changes: list[Change] = field(default_factory=list)


def steps_of(groups: Iterable[Sequence[Change]], *, safe: bool) -> list[Step]:
    """The steps.

    Args:
        groups: each a group's changes, in their order.
        safe: an update whose row stays the same one is its REPLACE alone, which removes the old row itself.
    """
    levels: list[dict[Shape, Step]] = []
    for group in groups:
        reached: dict[Hashable, int] = {}
        for change in group:
            level = max([reached.get(key, 0) for key in change.keys], default=0)
            if change.old is not None and (not safe or change.new is None or change.moved):
                level += level & 1
                _at(levels, level, change).changes.append(change)
            if change.new is not None:
                level |= 1
                _at(levels, level, change).changes.append(change)
            if len(group) > 1:
                reached.update(dict.fromkeys(change.keys, level))
    return [step for level in levels for step in level.values()]


def _at(levels: list[dict[Shape, Step]], level: int, change: Change) -> Step:
    while len(levels) <= level:
        levels.append({})
    found = levels[level].get(change.shape)
    if found is None:
        found = levels[level][change.shape] = Step(bool(level & 1), change.shape)
    return found
