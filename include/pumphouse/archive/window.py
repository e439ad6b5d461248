"""What one task tells the next: plan, progress and report as small JSON objects (they travel through XCom)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from pumphouse.archive.coverage import Action
from pumphouse.archive.manifest import Declaration, LastBinlog, SegmentEntry
from pumphouse.model.node import Replaced
from pumphouse.model.tso import Tso


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """Where one Pump's pull stands. ``waiting_for`` says in words what holds it, '' = it moves.

    ``silent_at``: the address of a Pump that does not answer now, '' = it does.
    """

    node_id: str
    start: Tso
    end: Tso
    reached: Tso
    rows: int
    payload_bytes: int
    waiting_for: str = ""
    silent_at: str = ""

    @property
    def part(self) -> float:
        """0 to 1, by time."""
        return min(max((self.reached - self.start) / max(self.end - self.start, 1), 0.0), 1.0)


ProgressSink = Callable[[PullProgress], None]


def silent(progress: PullProgress) -> None:
    """Show nothing."""
    del progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPump:
    """One Pump in a plan."""

    node_id: str
    action: Action
    incarnation: str
    start_count: int
    state: str
    registry: str = ""  # digest of a Go Pump's registry value when it was first seen offline
    drained: bool = False  # the last manifest says so, for this very start of the Pump
    declared: Declaration | None = None
    needed: bool = False  # without that declaration the Pump would hold the window
    last: LastBinlog | None = None
    replaced: tuple[Replaced, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "node_id": self.node_id,
            "action": str(self.action),
            "incarnation": self.incarnation,
            "start_count": self.start_count,
            "state": self.state,
            "registry": self.registry,
            "drained": self.drained,
            "declared": None if self.declared is None else self.declared.to_dict(),
            "needed": self.needed,
            "last": None if self.last is None else self.last.to_dict(),
            "replaced": [each.to_dict() for each in self.replaced],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        declared, last = data["declared"], data["last"]
        return cls(
            node_id=str(data["node_id"]),
            action=Action(data["action"]),
            incarnation=str(data["incarnation"]),
            start_count=int(data["start_count"]),
            state=str(data["state"]),
            registry=str(data["registry"]),
            drained=bool(data["drained"]),
            declared=None if declared is None else Declaration.from_dict(declared),
            needed=bool(data["needed"]),
            last=None if last is None else LastBinlog.from_dict(last),
            replaced=tuple(Replaced.from_dict(each) for each in data["replaced"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """A late or orphan commit that a Pump shows; ``digest`` of its content, '' where the Pump has none (orphan)."""

    kind: str  # late | orphan
    start_ts: Tso
    commit_ts: Tso
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "kind": self.kind,
            "start_ts": int(self.start_ts),
            "commit_ts": int(self.commit_ts),
            "digest": self.digest,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            kind=str(data["kind"]),
            start_ts=Tso(int(data["start_ts"])),
            commit_ts=Tso(int(data["commit_ts"])),
            digest=str(data["digest"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """What one Pump's pull gave.

    ``reached``: complete up to there. ``drained_to``: F3 of a closing Pump, 0 = it was not tried; ``tail_from``: the
    smallest real commit ts that came above ``reached``, 0 = none. ``declared``: the declaration that was needed.
    ``last``: what the manifest before knows of a Go Pump; ``seen``: binlogs of it pulled since, in order, a sample.
    """

    node_id: str
    action: Action
    reached: Tso
    incarnation: str
    start_count: int
    state: str
    sync_log: bool = True
    batch: bool = True
    registry: str = ""
    drained: bool = False  # the manifest before says so, for the start of the Pump that was pulled
    segments: tuple[SegmentEntry, ...] = ()
    drained_to: Tso = Tso(0)
    tail_from: Tso = Tso(0)
    last: LastBinlog | None = None
    seen: tuple[LastBinlog, ...] = ()
    pending: tuple[PendingCommit, ...] = ()
    declared: Declaration | None = field(default=None)
    replaced: tuple[Replaced, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "node_id": self.node_id,
            "action": str(self.action),
            "reached": int(self.reached),
            "incarnation": self.incarnation,
            "start_count": self.start_count,
            "state": self.state,
            "sync_log": self.sync_log,
            "batch": self.batch,
            "registry": self.registry,
            "drained": self.drained,
            "segments": [each.to_dict() for each in self.segments],
            "drained_to": int(self.drained_to),
            "tail_from": int(self.tail_from),
            "last": None if self.last is None else self.last.to_dict(),
            "seen": [each.to_dict() for each in self.seen],
            "pending": [each.to_dict() for each in self.pending],
            "declared": None if self.declared is None else self.declared.to_dict(),
            "replaced": [each.to_dict() for each in self.replaced],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        last, declared = data["last"], data["declared"]
        return cls(
            node_id=str(data["node_id"]),
            action=Action(data["action"]),
            reached=Tso(int(data["reached"])),
            incarnation=str(data["incarnation"]),
            start_count=int(data["start_count"]),
            state=str(data["state"]),
            sync_log=bool(data["sync_log"]),
            batch=bool(data["batch"]),
            registry=str(data["registry"]),
            drained=bool(data["drained"]),
            segments=tuple(SegmentEntry.from_dict(each) for each in data["segments"]),
            drained_to=Tso(int(data["drained_to"])),
            tail_from=Tso(int(data["tail_from"])),
            last=None if last is None else LastBinlog.from_dict(last),
            seen=tuple(LastBinlog.from_dict(each) for each in data["seen"]),
            pending=tuple(PendingCommit.from_dict(each) for each in data["pending"]),
            declared=None if declared is None else Declaration.from_dict(declared),
            replaced=tuple(Replaced.from_dict(each) for each in data["replaced"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """One window to fetch: (start, end], end <= until. ``previous`` is the digest of what it will chain to.

    As JSON, ``pumps`` is an object keyed by node id, so that a mapped task takes its keys.
    """

    start: Tso
    end: Tso
    until: Tso
    fence: Tso
    previous: str
    run: str
    pumps: dict[str, PlannedPump]
    declared: tuple[Declaration, ...] = ()  # every one in force, shown by every plan

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "start": int(self.start),
            "end": int(self.end),
            "until": int(self.until),
            "fence": int(self.fence),
            "previous": self.previous,
            "run": self.run,
            "pumps": {key: value.to_dict() for key, value in self.pumps.items()},
            "declared": [each.to_dict() for each in self.declared],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(
            start=Tso(int(data["start"])),
            end=Tso(int(data["end"])),
            until=Tso(int(data["until"])),
            fence=Tso(int(data["fence"])),
            previous=str(data["previous"]),
            run=str(data["run"]),
            pumps={str(key): PlannedPump.from_dict(value) for key, value in data["pumps"].items()},
            declared=tuple(Declaration.from_dict(each) for each in data["declared"]),
        )
