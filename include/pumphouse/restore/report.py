"""What a restore tells: the plan, what was found of the target, the steps, what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pumphouse.archive.objects import SourceObjects
from pumphouse.archive.proofs import Proof
from pumphouse.archive.sourced import Standing
from pumphouse.loader.report import LoadReport
from pumphouse.model.tso import Tso
from pumphouse.restore.check import TargetCheck
from pumphouse.restore.plan import RestorePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPlan:
    """Which plan somebody saw: enough to make it again from the archive, whatever was published since."""

    to: Tso
    end: Tso
    base: Tso
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """What a proof of what was restored would read.

    Args:
        at: the moment.
        tables: those whose rows it would prove, with their bytes in the archive; the largest first.
        unproven: the others, and why.
        estimate_s: how long it would take by the last drills; None: there were none.
    """

    at: Tso
    tables: Mapping[str, int]
    unproven: Mapping[str, str]
    estimate_s: float | None

    @property
    def bytes(self) -> int:
        """Of all tables."""
        return sum(self.tables.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What was planned, what was found of the target (None: nobody looked), and the steps, done or to do.

    ``proof``: what was found when the rows were held against the archive; None: nobody asked. ``lacks``: what the
    source had and no restore builds, kept as text with the dump; or why nothing is known of it. ``estimate_s``: of
    a dry run, how long it would take by the last drills; None: there were none. ``followed``: the load from the
    moment on, done or to do; None: nobody asked for it. ``proving``: of a dry run, what its proof would read.
    ``source``: of a dry run, where the captured source was at the moment; None: it is not known.
    """

    plan: RestorePlan
    target: str
    dry_run: bool
    load: LoadReport
    check: TargetCheck | None = None
    proof: Proof | None = None
    lacks: SourceObjects | str = ""
    estimate_s: float | None = None
    followed: LoadReport | None = None
    proving: ProofPlan | None = None
    source: Standing | None = None

    @property
    def before(self) -> bool:
        """Whether an earlier run has restored the target: only its load goes on, or nothing is left to do."""
        return bool(self.load.steps) and all(step["state"] == "done before" for step in self.load.steps)

    @property
    def shown(self) -> ShownPlan:
        """What has to be said for exactly this plan to be carried out."""
        return ShownPlan(to=self.plan.to, end=self.plan.end, base=self.plan.base, digest=self.plan.digest())

    def to_dict(self) -> dict[str, Any]:
        """Small JSON: the plan's totals and the load's."""
        plan, last = self.plan.to_dict(), None if self.source is None else self.source.last
        windows = plan.pop("windows")
        return {
            "to": int(self.plan.to),
            "target": self.target,
            "dry_run": self.dry_run,
            "check": None if self.check is None else self.check.to_dict(),
            "plan": {**plan, "windows": len(windows), "last_window_cut": any(w["cut"] for w in windows)},
            "source": None
            if last is None
            else {"gtid": last.transaction, "time": last.time, "commit_ts": last.commit_ts},
            "estimate_s": self.estimate_s,
            "load": self.load.to_dict(),
            "followed": None if self.followed is None else self.followed.to_dict(),
            "lacks": self.lacks if isinstance(self.lacks, str) else self.lacks.counts(),
            "proof": None if self.proof is None else self.proof.summary(),
            "proving": None if self.proving is None else asdict(self.proving) | {"bytes": self.proving.bytes},
        }
