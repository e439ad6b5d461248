"""The answer of a look: frozen values, fit for JSON. Moments are TSOs, ages and lags seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pumphouse.model.tso import Tso


class Severity(StrEnum):
    """How bad a finding is."""

    WARNING = "warning"  # goes on, but needs attention
    ERROR = "error"  # something stands still, or cannot be restored


# Exit codes: 1 and 2 are those of a command that failed or was called wrongly.
EXIT_CODES = {Severity.WARNING: 3, Severity.ERROR: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that wants a hand: who, what, and the command to type."""

    severity: Severity
    who: str
    what: str
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBy:
    """Whom the archive cannot go past, why, and what to do."""

    who: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillStatus:
    """The last drill that has ended. ``again``: the command that tries the same; ``why``: of one that failed."""

    verdict: str
    green: bool
    at: Tso
    into: str
    age_s: float
    why: str
    again: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RedProof:
    """A proof that found a difference: of which server and task, at which moment, and in which tables."""

    target: str
    task: str
    at: Tso
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatus:
    """The copy of ``archive.copy_root``. ``end`` None: none was begun. ``windows``: how many it lacks.

    ``behind_s``: from its end to the archive's. ``problem``: why nothing is known ('' = all is).
    """

    url: str
    end: Tso | None = None
    behind_s: float | None = None
    windows: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What no restore of the whole passes: a DDL, or a loss that nobody accepted.

    ``at``: the last moment before it; ``why``: in words.
    """

    at: Tso
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStatus:
    """The archive: from when to when one can restore (None: not at all), and since when that has not moved.

    ``verified_to`` None: nobody wrote down that it was verified. ``problem``: why nothing more is known ('' = all is).
    ``held_by``: what holds its next window, whether Pumps answer or not. ``declared_lost``: ranges of Pumps.
    ``interval_s``: length of its newest windows, the longest of them. ``failed``: snapshot or dump -> how it failed,
    and has not ended well since. ``without``: tables that its newest dump lacks by a rule, with the reason.
    ``next``: what has to be typed before `archive init` where there is no archive ('' = nothing).
    ``doubts``: why it cannot be relied on as it is: a rule that deletes its objects, a note that is damaged; to what
    to type next.
    ``expired``: from when on it is kept, '' = from genesis on. ``marks``: moment -> why it is kept.
    ``copy`` None: the settings name none.
    ``late_s``: an end that is older is late, as far as the length of its windows tells.
    ``drill`` None: none has ended. ``red``: proofs that found a difference, which no later one found gone.
    ``stops``: what no restore of the whole passes, until the next dump; None: that is not known.
    ``binlog_skipped``: whether TiDB said at its newest window that it skips binlogs; None: nobody could be asked.
    ``unsynced``: Pumps that run without fsync.
    """

    url: str
    begin: Tso | None = None
    end: Tso | None = None
    restorable_from: Tso | None = None
    restorable_to: Tso | None = None
    age_s: float | None = None
    verified_to: Tso | None = None
    checkpoint: Tso | None = None
    held_by: tuple[HeldBy, ...] = ()
    declared_lost: int = 0
    interval_s: float | None = None
    late_s: float | None = None
    failed: dict[str, str] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)
    next: str = ""
    doubts: dict[str, str] = field(default_factory=dict)
    drill: DrillStatus | None = None
    red: tuple[RedProof, ...] = ()
    expired: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    copy: CopyStatus | None = None
    stops: tuple[Stop, ...] | None = ()
    binlog_skipped: bool | None = None
    unsynced: tuple[str, ...] = ()
    problem: str = ""

    @property
    def late(self) -> bool:
        """Whether it stands still for longer than it should, whatever the runs that extend it look like."""
        return self.age_s is not None and self.late_s is not None and self.age_s > self.late_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpState:
    """One Pump: its own word where it answers, else the registry's.

    ``silent_s``: since its last heartbeat. ``lag_s`` None: it has only just started, and has no watermark.
    ``in_clear``: where it listens beyond the loopback without TLS.
    ``open_s`` and ``open_ts``: age and start ts of its oldest prewrite without an outcome.
    """

    node_id: str
    address: str
    state: str
    silent_s: float
    silent: bool
    answers: bool
    watermark: Tso
    lag_s: float | None
    available_bytes: int | None = None
    value_log_bytes: int | None = None
    read_only: bool = False
    writer_failed: bool = False
    unresolved: int | None = None
    in_clear: tuple[str, ...] = ()
    open_s: float | None = None
    open_ts: Tso | None = None
    problem: str = ""


def only_restored(section: str) -> bool:
    """Whether it names a server that restores replace and no load keeps up to date; Airflow may have several."""
    return section.partition(".")[0] == "restore_target"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """One load of one target, or a target that has none yet (``task`` '').

    ``held_by``: the run that owns the target now. ``lag_s``: how far it is behind now; None of a server
    that was restored: nothing keeps it up to date. ``parked``: tables that a rule
    has put in quarantine, and since when and why. ``left_out``: tables that a rule left out which is gone from the
    settings. ``stopped_before``: end of a plan that nobody goes on with now. ``last_run``: who had the target last.
    ``failed``: when and how the last load failed, with the way out.
    ``tables``: how many tables lie there without a checkpoint.
    """

    section: str
    address: str
    task: str = ""
    at: Tso | None = None
    lag_s: float | None = None
    state: str = ""
    reason: str = ""
    held_by: str = ""
    problem: str = ""
    parked: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    stopped_before: Tso | None = None
    last_run: str = ""
    failed: str = ""
    tables: int = 0

    @property
    def standing(self) -> str:
        """The state of a load or of a whole restore; without one, what lies there."""
        return self.state or (f"{self.tables} tables" if self.tables else "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    """Who reads the Pumps, and holds their GC from its checkpoint on.

    ``reader``: an archive, or registered by hand: no process, so that the registry has it as paused all the time.
    """

    node_id: str
    state: str
    checkpoint: Tso
    age_s: float
    stale: bool
    holds_gc: bool
    reader: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """Who follows a source's binlog. ``state``: running, stopped, failed, or silent; ``gtid``: what the Pumps have.

    ``semi_sync``: whether commits of the source wait for it; None: it does not ask for that.
    """

    capture_id: str
    source: str
    host: str
    state: str
    silent_s: float
    gtid: str
    lag_s: float
    transactions: int
    semi_sync: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All of it, and what wants a hand, the worst first.

    ``unread``: the consumer ('' = a capture) whose registered value cannot be read, and why not; one of each kind.
    """

    cluster: str
    now: Tso
    archive: ArchiveStatus
    pumps: tuple[PumpState, ...]
    targets: tuple[TargetStatus, ...]
    consumers: tuple[ConsumerStatus, ...]
    captures: tuple[CaptureStatus, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def red(self) -> tuple[tuple[RedProof, TargetStatus], ...]:
        """Red proofs with what they are of; of none that was restored to an earlier moment since, or is no target."""
        return tuple(
            (proof, each)
            for proof in self.archive.red
            for each in self.targets
            if (each.address, each.task) == (proof.target, proof.task) and each.at is not None and each.at >= proof.at
        )

    @property
    def severity(self) -> Severity | None:
        """The worst; None = all is well."""
        return self.findings[0].severity if self.findings else None

    @property
    def exit_code(self) -> int:
        """0 = all is well; else by severity."""
        return EXIT_CODES[self.severity] if self.severity else 0

    @property
    def next(self) -> str:
        """The next command to type; '' = none."""
        return self.findings[0].next if self.findings else ""

    def to_dict(self) -> dict[str, Any]:
        """JSON object; TSOs as text, because JSON numbers lose their last digits in browsers."""
        return {"severity": str(self.severity or "ok"), "next": self.next, **_plain(asdict(self))}


_TSOS = frozenset(
    {
        "now",
        "begin",
        "end",
        "restorable_from",
        "restorable_to",
        "verified_to",
        "checkpoint",
        "watermark",
        "at",
        "stopped_before",
        "open_ts",
    }
)


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {each: _plain(found, each) for each, found in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return round(value, 3)
    return str(value) if name in _TSOS and value is not None else value
