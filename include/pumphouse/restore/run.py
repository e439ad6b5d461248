"""Carry a restore out: empty the target, build the dump's schema, load it, then the windows up to the moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pumphouse.loader import state
from pumphouse.loader.begin import build
from pumphouse.loader.report import LoadReport
from pumphouse.loader.rules import end_rules, take_up
from pumphouse.loader.run import Loader
from pumphouse.loader.state import TargetState
from pumphouse.model.tso import Tso, show
from pumphouse.restore.check import TargetCheck, places_beside
from pumphouse.restore.plan import RestorePlan
from pumphouse.schema.ident import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPlan:
    """Which plan somebody saw: enough to make it again from the archive, whatever was published since."""

    to: Tso
    end: Tso
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What was planned, what was found of the target (None: nobody looked) and, unless a dry run, what was done."""

    plan: RestorePlan
    target: str
    dry_run: bool
    check: TargetCheck | None = None
    load: LoadReport | None = None

    @property
    def shown(self) -> ShownPlan:
        """What has to be said for exactly this plan to be carried out."""
        return ShownPlan(to=self.plan.to, end=self.plan.end, digest=self.plan.digest())

    def to_dict(self) -> dict[str, Any]:
        """Small JSON: the plan's totals and the load's."""
        plan = self.plan.to_dict()
        windows = plan.pop("windows")
        return {
            "to": int(self.plan.to),
            "target": self.target,
            "dry_run": self.dry_run,
            "check": None if self.check is None else self.check.to_dict(),
            "plan": {**plan, "windows": len(windows), "last_window_cut": any(w["cut"] for w in windows)},
            "load": None if self.load is None else self.load.to_dict(),
        }


def restore(loader: Loader, plan: RestorePlan) -> LoadReport:
    """Restore the target that the loader owns. Killed anywhere, it leaves the target `incomplete`; run it again.

    It begins from the dump each time: what an earlier attempt left is thrown away like everything else.
    """
    base, *works = plan.works
    why = f"a restore to {show(plan.to)} has not ended"
    _drop_what_other_rules_made(loader, plan, why)
    # What was left out until now comes back; the settings' rules are written down anew.
    end_rules(loader.connection, loader.owner, None)
    loader.tell_unheard(
        take_up(loader.connection, loader.owner, loader.task, loader.settings.rules, Tso(0), loader.view.timeline)
    )
    at = build(loader, base, plan.dropped(loader.connection.settings.schema_name), why).ts
    for work in works:
        at = loader.run(loader.begin(work))
    # Only now may the target be loaded further; until here a load is refused.
    state.set_state(loader.connection, loader.owner, loader.task, TargetState.READY, f"restored to {show(plan.to)}")
    loader.report.from_ts = plan.base
    return loader.finish(at)


def _drop_what_other_rules_made(loader: Loader, plan: RestorePlan, why: str) -> None:
    """Databases of loads that routed otherwise; their rules are history only when these are gone."""
    connection = loader.connection
    beside = places_beside(connection, plan, loader.view)
    for each in state.read_all(connection) if beside else ():
        state.set_state(connection, loader.owner, each.task, TargetState.INCOMPLETE, why)
    for name in beside:
        connection.execute(f"DROP DATABASE IF EXISTS {quote(name)}")
