"""Where the demo meets a load: moments that the target shows from outside, chosen by chance from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """How far a first load is, as its target shows it; a load only goes forward through these."""

    STARTED = 0
    OWNED = 1
    BEGUN = 2
    MAKING = 3
    BASE_PLANNED = 4
    BASE_UNITS = 5
    BASE_CLOSED = 6
    READY = 7
    MERGE_PLANNED = 8
    MERGING = 9
    MERGED = 10

    @property
    def words(self) -> str:
        """What the demo prints for it."""
        return _WORDS[self]


_WORDS = {
    Stage.STARTED: "it has not touched the target",
    Stage.OWNED: "it owns the target",
    Stage.BEGUN: "the checkpoint says incomplete",
    Stage.MAKING: "databases and tables are being made",
    Stage.BASE_PLANNED: "the base's plan is open",
    Stage.BASE_UNITS: "units of the base are applied",
    Stage.BASE_CLOSED: "the base's plan is closed",
    Stage.READY: "the checkpoint says ready",
    Stage.MERGE_PLANNED: "the windows' plan is open",
    Stage.MERGING: "units and DDLs of the windows are applied",
    Stage.MERGED: "the windows' plan is closed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at a target: rows of our tables there, and what lies beside them."""

    owner: str = ""
    """Run that owns the target, or owned it last."""
    state: str = ""
    """Of the checkpoint."""
    objects: int = 0
    """Databases and tables of the source."""
    opened: str = ""
    """Mode of the open plan."""
    closed: frozenset[str] = frozenset()
    """Modes of closed plans."""
    units: int = 0
    """Applied ones of the open plan."""
    epoch: int = 0
    """The largest among them."""
    intents: int = 0
    """Statements of DDLs that have begun, the done ones too."""
    done: int = 0

    @property
    def stage(self) -> Stage:
        """How far the load is: the last of these that holds."""
        holds = {
            Stage.STARTED: True,
            Stage.OWNED: bool(self.owner),
            Stage.BEGUN: bool(self.state),
            Stage.MAKING: bool(self.objects),
            Stage.BASE_PLANNED: self.opened == "base",
            Stage.BASE_UNITS: self.opened == "base" and self.units > 0,
            Stage.BASE_CLOSED: "base" in self.closed,
            Stage.READY: self.state == "ready",
            Stage.MERGE_PLANNED: self.opened == "merge",
            Stage.MERGING: self.opened == "merge" and self.units + self.intents > 0,
            Stage.MERGED: "merge" in self.closed,
        }
        return max(stage for stage, true in holds.items() if true)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A moment of a load: ``count`` of a field of `Seen` at a stage, or so many seconds into it."""

    stage: Stage
    counted: str = ""
    count: int = 0
    delay_s: float = 0.0

    def reached(self, seen: Seen, stage_s: float) -> bool:
        """Whether it has come, or has been passed. ``stage_s``: for how long the stage has been seen."""
        if seen.stage is not self.stage:
            return seen.stage > self.stage
        if self.counted:
            return int(getattr(seen, self.counted)) >= self.count
        return stage_s >= self.delay_s

    def __str__(self) -> str:
        detail = f"{self.counted} >= {self.count}" if self.counted else f"for {self.delay_s} s"
        return f"{self.stage.words} ({detail})"


# Stage, what is counted there, and the largest count; or the longest delay, in seconds. Most of what a load does falls
# between two rows of the target: while a plan is open and has no unit, Spark starts, reads the archive and decodes.
_KINDS: tuple[tuple[Stage, str, float], ...] = (
    (Stage.OWNED, "", 0.1),
    (Stage.BEGUN, "", 0.05),
    (Stage.MAKING, "objects", 7),
    (Stage.BASE_PLANNED, "", 10.0),
    (Stage.BASE_UNITS, "units", 5),
    (Stage.BASE_CLOSED, "", 0.05),
    (Stage.READY, "", 0.1),
    (Stage.MERGE_PLANNED, "", 6.0),
    (Stage.MERGING, "units", 60),
    (Stage.MERGING, "epoch", 3),
    (Stage.MERGING, "intents", 4),
    (Stage.MERGING, "done", 4),
    (Stage.MERGED, "", 0.2),
)
# A load that has begun to change rows may end before it could be held.
_LAST_HOLD = Stage.MERGE_PLANNED


def choose(seed: int) -> tuple[Point, Point]:
    """Where the first load is held, and where it is killed; each kind of moment is as likely as any other."""
    rng = random.Random(seed)
    return _point(rng, [kind for kind in _KINDS if kind[0] <= _LAST_HOLD]), _point(rng, list(_KINDS))


def _point(rng: random.Random, kinds: list[tuple[Stage, str, float]]) -> Point:
    stage, counted, most = rng.choice(kinds)
    if counted:
        return Point(stage=stage, counted=counted, count=rng.randint(1, int(most)))
    return Point(stage=stage, delay_s=round(rng.uniform(0, most), 3))
