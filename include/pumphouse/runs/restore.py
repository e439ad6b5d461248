"""Restore a target to a moment: what `pumphouse restore`, the restore DAG and the Spark job do."""

from __future__ import annotations

import dataclasses
from typing import Any

import structlog

from pumphouse.archive.drills import estimate_s
from pumphouse.archive.objects import kept_with
from pumphouse.archive.sourced import standing_at
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import RestoreError
from pumphouse.executor.executor import Executor
from pumphouse.executor.own import own_target
from pumphouse.loader import fence, state
from pumphouse.loader.begin import ready_at
from pumphouse.loader.failed import noting
from pumphouse.loader.fence import Ownership
from pumphouse.loader.planner import plan_load
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.rules import Rules
from pumphouse.loader.state import Standing
from pumphouse.loader.steps import Follow, Given
from pumphouse.loader.target import TargetConnection, address
from pumphouse.model.tso import Tso, compose, show
from pumphouse.parts import Parts
from pumphouse.restore.check import Into, check_target, named_target, places_beside, require_followed
from pumphouse.restore.plan import begin_at, plan_restore
from pumphouse.restore.report import RestoreReport, ShownPlan
from pumphouse.runs.load import check_mode, load_owned, new_run_id, ruled, seen
from pumphouse.settings import Settings

log = structlog.get_logger()


def run(
    settings: Settings,
    *,
    into: Into = "restore_target",
    to: Tso | None = None,
    base: Tso | None = None,
    shown: ShownPlan | None = None,
    dry_run: bool,
    task: str | None = None,
    run_id: str = "",
    take_over: bool = False,
    accept_losses: bool = False,
    replace: str = "",
    anew: bool = False,
    once: str = "",
    plan_only: bool = False,
    follow: bool = False,
    progress: Progress = silent,
) -> RestoreReport:
    """Restore a target to a moment in the archive's range, also in the middle of a window.

    Every database that the source ever had is dropped on the target and built again. The target stays `incomplete`
    until the restore has ended; then the load ``task`` goes on from ``to``: the next one, or with ``follow`` this run.

    Args:
        settings: all settings.
        into: section of the settings whose server is replaced. It names all of that server itself, and is no server
            that the other sections name (`pumphouse.restore.check`).
        to: last commit ts, inclusive; None = the archive's end, which the plan in the report then names.
        base: the dump to begin from, by the ts that it is exact from on; None = the newest that leads to ``to``.
        shown: the plan that somebody saw (`RestoreReport` of a dry run): it and no other is carried out.
        dry_run: only plan, and look at the target; nothing is changed.
        task: whose checkpoint the target gets; ``settings.load.task`` unless given.
        run_id: the same id may take over from itself.
        take_over: end another run that holds the target.
        accept_losses: restore although something in the range is lost; without it that is a RestoreError.
        replace: the target's name, as ``check.server`` of the report says it: its data may go. What a run of the same
            steps that has not ended put there goes without.
        anew: a restore to the same moment that did not end begins anew, in place of going on where it stopped.
        once: digest of a yes that counts for one restore: a later try with it finds the restore done; '' = no such yes.
        plan_only: a dry run that does not look at the target.
        follow: then load on, to the archive's end of that time. One that was killed in its load goes on with that.
        progress: told of each step.

    Raises:
        ConfigError, TargetUnreachable, RestoreError, TargetUnavailable, TargetBusy, RowRejected, LoadError, …
    """
    if follow:
        require_followed(settings, into)
    target, task = named_target(settings, into), task or settings.load.task
    check_mode(settings)
    with Parts(settings) as parts:
        to, base = (to, base) if shown is None else (shown.to, shown.base)
        view = read_view(parts.readable_archive, end=None if shown is None else shown.end, upto=to)
        view = begin_at(view, base, to)
        load = ruled(settings, target, view)
        wall = compose(int(SYSTEM_CLOCK.now() * 1000))
        plan = plan_restore(view, to, task=task, settings=load, wall=wall)
        if shown is not None:
            plan.require_shown(shown.digest)
        if plan.losses:
            log.warning("restore_has_losses", to=int(plan.to), losses=plan.losses.lines())
        rules = Rules.of(load.rules, Tso(0))
        given = Given(view=view, standing=Standing(), rules=rules, settings=load, task=task, target=target)
        report, lacks = LoadReport.of(given), kept_with(parts.readable_archive, view.base_at(plan.base))
        estimate = estimate_s(parts.readable_archive, plan.base_rows + plan.rows) if dry_run else None
        told: dict[str, Any] = {
            "plan": plan, "target": address(target), "lacks": lacks, "estimate_s": estimate,
            "source": standing_at(parts.readable_archive, view.windows, plan.to) if dry_run else None,
        }  # fmt: skip
        on = plan.follow(view.genesis.cluster_id) if follow else None
        if dry_run and plan_only:
            report = report.planned(plan.steps(given).followed(on))
            return RestoreReport(dry_run=True, load=report, followed=_load_on(parts, given, on), **told)
        check = check_target(settings, into, plan, view, task)
        if check.notes:
            log.warning("restore_target_not_compared", server=address(target), notes=check.notes)
        with TargetConnection.open(target, owner=not dry_run, section=into) as connection:
            # By an earlier run of this command, whose load has not ended, or by an earlier try with the same yes, which
            # was to what the server held then: nothing is dropped.
            restored = _is_restored(connection, task, known_by := "" if anew else once if on is None else on.digest)
            owner, digest = None, plan.steps(given).followed(on).digest()
            if not dry_run:
                if not restored:
                    plan.require_accepted(accept_losses)
                    check.require_named(
                        replace, follow=follow, own=not anew and state.has_begun(connection, task, digest)
                    )
                owner = own_target(
                    connection,
                    task=task,
                    cluster_id=view.genesis.cluster_id,
                    run=run_id or new_run_id(),
                    take_over=take_over,
                    any_task=True,
                )
                # Under the lock once more: the run that had begun it may have ended it meanwhile.
                if not (restored := restored or _is_restored(connection, task, known_by)):
                    check.require_named(
                        replace, follow=follow, own=not anew and state.has_begun(connection, task, digest)
                    )
                    if shown is not None:
                        _require_no_later(connection, view)
            steps = plan.steps(given, places_beside(connection, plan, view)).followed(on, once=once)
            if restored:
                report = report.planned(steps, steps.all_done, dry_run=dry_run)
            elif owner is None:
                report = report.planned(steps, state.recorded(connection, task))
            else:
                executor = Executor(given, connection, owner, parts.engine, settings.archive, progress)
                with noting(connection, task):  # what a load before it failed by is over
                    report = executor.carry_out(steps, again=anew)
            there = connection if restored or owner is not None else None
            followed = _load_on(parts, given, on, there, owner, progress)
    return RestoreReport(dry_run=dry_run, check=check, load=report, followed=followed, **told)


def _is_restored(connection: TargetConnection, task: str, known_by: str) -> bool:
    """Whether what is written down of a restored target is of that digest; '' = of none."""
    return bool(known_by) and state.is_ready_with(connection, task, known_by)


def _load_on(
    parts: Parts,
    given: Given,
    on: Follow | None,
    connection: TargetConnection | None = None,
    owner: Ownership | None = None,
    progress: Progress = silent,
) -> LoadReport | None:
    """The load of the target behind the restore, under the same lock; without ``owner`` what it does.

    ``given``: of the restore. ``connection``: to the target where it is restored.
    """
    if on is None:
        return None
    if connection is None:
        view, found = seen(parts, on.ts, None), ready_at(given, on.ts)
        load = ruled(parts.settings, given.target, view)
        rules = Rules.of(load.rules, Tso(0))
        given = dataclasses.replace(given, view=view, standing=Standing(checkpoint=found), settings=load, rules=rules)
        return LoadReport.of(given).planned(plan_load(given, found, None))
    if owner is None:
        return load_owned(parts, connection, None, task=given.task)
    if not state.is_ready_with(connection, given.task, on.digest):
        raise RestoreError(
            f"target {connection.name} was restored or loaded by others since this run looked at it",
            hint="run this again: it looks again",
            target=connection.name,
        )
    return load_owned(parts, connection, fence.raise_again(connection, owner), task=given.task, progress=progress)


def _require_no_later(connection: TargetConnection, view: ArchiveView) -> None:
    """RestoreError when the target has what came after the plan was shown: the plan does not know what to drop."""
    reached = state.reach(connection, view.genesis.cluster_id)
    if reached > view.end:
        raise RestoreError(
            f"target {connection.name} went on to {show(reached)} since the plan was shown, which saw the archive up "
            f"to {show(view.end)}",
            hint="nothing was changed; look at the plan again",
            target=connection.name,
        )
