"""Restore some tables as of a moment, beside whatever a server has: `pumphouse restore --table`."""

from __future__ import annotations

import structlog

from pumphouse.archive.drills import estimate_s
from pumphouse.archive.sourced import Standing as SourceStanding
from pumphouse.archive.sourced import is_captured, standing_at
from pumphouse.archive.view import read_view
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import RestoreError
from pumphouse.executor.executor import Executor
from pumphouse.executor.own import own_target
from pumphouse.executor.places import beside, copies_left, require_free, require_free_for_copies, taken
from pumphouse.loader import state
from pumphouse.loader.begin import tables_in
from pumphouse.loader.failed import noting
from pumphouse.loader.fence import ours_there
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.state import NOTHING_RECORDED, Recorded, Standing
from pumphouse.loader.steps import Given, HandOver, Steps
from pumphouse.loader.target import TABLES, TargetConnection
from pumphouse.model.tso import Tso, compose
from pumphouse.parts import Parts
from pumphouse.restore.check import Place, TargetCheck, check_parts, named_target
from pumphouse.restore.parts import TASK, Chosen, PartsPlan, own_schema, plan_parts
from pumphouse.restore.plan import begin_at
from pumphouse.restore.report import RestoreReport, ShownPlan
from pumphouse.runs.load import check_mode, new_run_id
from pumphouse.schema.dialect import Dialect
from pumphouse.settings import Settings

log = structlog.get_logger()

_LOCK_WAIT_S = 10
_UNLOGGED = (
    "what a restore puts into the source is in no binlog, so the archive and the targets do not have it: run "
    "`pumphouse schema import`, then `pumphouse archive dump`, before anybody changes it; a copy that you drop again "
    "needs neither"
)
_FOLLOWED = (
    "the capture follows what a restore puts into the source: the archive and the targets get it too, and lose it when "
    "you drop it"
)


def run(
    settings: Settings,
    *,
    chosen: Chosen,
    into: Place = "restore_target",
    to: Tso | None = None,
    base: Tso | None = None,
    shown: ShownPlan | None = None,
    dry_run: bool,
    run_id: str = "",
    take_over: bool = False,
    accept_losses: bool = False,
    anew: bool = False,
    plan_only: bool = False,
    progress: Progress = silent,
) -> RestoreReport:
    """Restore tables as of a moment in the archive's range, beside what is there (`pumphouse.restore.parts`).

    Args:
        settings: all settings.
        chosen: which tables, and where to.
        into: section of the settings whose server gets them: also the source, and a target of loads.
        to: last commit ts, inclusive; None = the archive's end, which the plan in the report then names.
        base: the dump to begin from, by the ts that it is exact from on; None = the newest that leads to ``to``.
        shown: the plan that somebody saw: it and no other is carried out.
        dry_run: only plan, and look at the server; nothing is changed.
        run_id: the same id may take over from itself.
        take_over: end another run of a restore of parts on that server.
        accept_losses: restore although something in the range is lost; without it that is a RestoreError.
        anew: what an unfinished restore of parts has built there in our schema goes, and this one begins.
        plan_only: a dry run that does not look at the server.
        progress: told of each step.

    Raises:
        ConfigError, UsageError, TargetUnreachable, RestoreError, TargetUnavailable, TargetBusy, LoadError, …
    """
    target = own_schema(named_target(settings, into))
    check_mode(settings)
    with Parts(settings) as parts:
        to, base = (to, base) if shown is None else (shown.to, shown.base)
        view = read_view(parts.readable_archive, end=None if shown is None else shown.end, upto=to)
        view = begin_at(view, base, to)
        wall = compose(int(SYSTEM_CLOCK.now() * 1000))
        followed = into == "source" and is_captured(parts.readable_archive)
        plan = plan_parts(view, to, chosen=chosen, target=target, settings=settings.load, wall=wall, followed=followed)
        if shown is not None:
            plan.require_shown(shown.digest)
        if plan.losses:
            log.warning("restore_has_losses", to=int(plan.to), losses=plan.losses.lines())
        given = Given(
            view=view, standing=Standing(), rules=plan.rules, settings=settings.load, task=TASK, target=target
        )
        estimate = estimate_s(parts.readable_archive, plan.base_rows + plan.rows) if dry_run else None
        source = standing_at(parts.readable_archive, view.windows, plan.to) if dry_run else None
        if dry_run and plan_only:
            load = LoadReport.of(given).planned(plan.steps(given))
            return _report(plan, into, load, estimate=estimate, source=source)
        with TargetConnection.open(target, owner=not dry_run, section=into) as connection:
            if connection.dialect is not Dialect.TIDB:
                # A name there may be one that a live table's foreign key waits for: who works on it goes first.
                connection.execute(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
            check = check_parts(connection, plan, view, settings.cluster.url)
            steps = plan.steps(given)
            with ours_there(connection):  # another run of it may come to its end
                recorded = _require_possible(connection, plan, steps, anew=anew)
            if dry_run:
                return _report(plan, into, LoadReport.of(given).planned(steps, recorded), check, estimate, source)
            plan.require_accepted(accept_losses)
            with ours_there(connection):
                owner = own_target(
                    connection,
                    task=TASK,
                    cluster_id=view.genesis.cluster_id,
                    run=run_id or new_run_id(),
                    take_over=take_over,
                    any_task=True,
                )
            # Once more: another run may have begun meanwhile, or ended.
            _require_possible(connection, plan, steps, anew=anew)
            steps = plan.steps(given, left_over(connection), copies_left(connection))
            executor = Executor(given, connection, owner, parts.engine, settings.archive, progress)
            with noting(connection, TASK):
                report = executor.carry_out(steps, again=anew)
        for note in (each for each in report.notes if each.startswith("!")):
            log.warning("restore_has_note", to=int(plan.to), note=note)
    return _report(plan, into, report, check)


def _require_possible(connection: TargetConnection, plan: PartsPlan, steps: Steps, *, anew: bool) -> Recorded:
    """What an earlier run has done of the same steps; RestoreError where others have not ended, or a name is taken."""
    # Looked at first: a run that begins meanwhile has written down its steps before it is known.
    known = [] if anew else state.read_known(connection)
    recorded = NOTHING_RECORDED if anew else state.recorded(connection, TASK)
    same = recorded.digest == steps.digest()
    if known and not same and state.is_known(connection):  # and has not ended meanwhile
        (found,) = known
        own = connection.settings.schema_name
        raise RestoreError(
            f"on {connection.name} {found.reason}, and this one is another: its arguments differ, or the archive has a "
            "newer dump by now",
            hint="the same command with that moment as a number (`--to N`, not latest) goes on with it; --anew gives "
            f"it up, drops what it built in the database {own}, and begins this one",
        )
    until = next(number for number, step in enumerate(steps.anew) if isinstance(step, HandOver))
    if same and until in recorded.done:
        gone = {".".join(place) for place in plan.places}.difference(taken(connection, plan.places))
        if gone:
            raise RestoreError(
                f"{connection.name} has {', '.join(sorted(gone)[:5])} no more, which an earlier run of this restore "
                "had put there: somebody dropped or renamed it since",
                hint="--anew gives that run up and restores again",
            )
    elif not (same and all(number in recorded.done for number in range(until))):
        require_free(connection, plan.places)
        if plan.followed:
            own = connection.settings.schema_name
            require_free_for_copies(connection, [beside(own, each.staged, each.place) for each in plan.placed])
    return recorded if same else NOTHING_RECORDED


def left_over(connection: TargetConnection) -> list[str]:
    """What was made in our schema beside our tables."""
    names = (name.partition(".")[2] for name in tables_in(connection, [connection.settings.schema_name]))
    return [name for name in names if name not in TABLES]


def _report(
    plan: PartsPlan,
    into: Place,
    load: LoadReport,
    check: TargetCheck | None = None,
    estimate: float | None = None,
    source: SourceStanding | None = None,
) -> RestoreReport:
    of_source = [_FOLLOWED if plan.followed else _UNLOGGED] if into == "source" else []
    load.notes = [*plan.left, *of_source, *load.notes]
    return RestoreReport(
        plan=plan, target=load.target, dry_run=load.dry_run, check=check, load=load, estimate_s=estimate, source=source
    )
