"""One window under way, as values: its plan, each Pump's part of it, a pull's report, and what was published.

They are what one step of a snapshot hands to the next. How they travel between tasks is the tasks' business
(`binlog_airflow.xcom`): nothing here knows of JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pumphouse.archive.manifest import Declaration, LastBinlog, Manifest, SegmentEntry
from pumphouse.errors import UsageError
from pumphouse.model.node import Replaced
from pumphouse.model.tso import Tso


class Action(StrEnum):
    """What is to be done with one Pump in one window."""

    PULL = "pull"  # its stream proves its part
    DRAINED = "drained"  # nothing can come from it any more
    LOST = "lost"  # given up by declaration
    HELD = "held"  # the window waits


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
    declared: Declaration | None = None
    needed: bool = False  # without that declaration the Pump would hold the window
    last: LastBinlog | None = None
    replaced: tuple[Replaced, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """One window to fetch: (start, end], end <= until. ``previous`` is the digest of what it will chain to."""

    start: Tso
    end: Tso
    until: Tso
    fence: Tso
    previous: str
    run: str
    pumps: tuple[PlannedPump, ...]  # by node id
    declared: tuple[Declaration, ...] = ()  # every one in force, shown by every plan

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Whom to pull, in the order of the plan."""
        return tuple(each.node_id for each in self.pumps)

    def pump(self, node_id: str) -> PlannedPump:
        """One Pump's part; UsageError."""
        for each in self.pumps:
            if each.node_id == node_id:
                return each
        raise UsageError(f"no Pump {node_id!r} is in the plan", hint=f"it has {', '.join(self.node_ids) or 'none'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """What holds a window by its name: a late or orphan commit that a Pump shows, or a payload that cannot be read.

    ``digest`` of its content, '' where the Pump has none (orphan); ``why`` it cannot be read.
    """

    kind: str  # late | orphan | unreadable
    start_ts: Tso
    commit_ts: Tso
    digest: str
    why: str = ""


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
    segments: tuple[SegmentEntry, ...] = ()
    drained_to: Tso = Tso(0)
    tail_from: Tso = Tso(0)
    last: LastBinlog | None = None
    seen: tuple[LastBinlog, ...] = ()
    pending: tuple[PendingCommit, ...] = ()
    declared: Declaration | None = None
    replaced: tuple[Replaced, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWindow:
    """What a commit did: the window (start, end] is visible. ``manifest`` is its key, ``more``: the plan went on.

    ``rows``: transactions (parts of them); ``changes``: row changes; ``ddls``: DDL jobs; ``bytes``: of its segments.
    """

    start: Tso
    end: Tso
    manifest: str
    more: bool
    segments: int
    rows: int
    changes: int
    payload_bytes: int
    bytes: int
    ddls: int
    duplicates: int
    declared: tuple[Declaration, ...]
    unsynced: tuple[str, ...]
    binlog_skipped: bool | None

    @classmethod
    def of(cls, manifest: Manifest, until: Tso) -> PublishedWindow:
        """The window of a manifest that is there; ``until``: where the run that wants it ends."""
        return cls(
            start=manifest.start,
            end=manifest.end,
            manifest=manifest.key,
            more=manifest.end < until,
            segments=len(manifest.segments),
            rows=sum(each.rows for each in manifest.segments),
            changes=sum(each.changes for each in manifest.segments),
            payload_bytes=sum(each.payload_bytes for each in manifest.segments),
            bytes=sum(each.bytes for each in manifest.segments),
            ddls=0 if manifest.ddl is None else manifest.ddl.jobs,
            duplicates=len(manifest.duplicates),
            declared=manifest.declared,
            unsynced=manifest.unsynced,
            binlog_skipped=manifest.binlog_skipped,
        )
