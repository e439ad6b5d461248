"""Load a target from the archive: what `pumphouse load`, the load DAG and the Spark job do."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import structlog

from pumphouse import advice
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.errors import ConfigError, LoadError, UsageError
from pumphouse.executor.executor import Executor
from pumphouse.executor.own import give_up, own_target, require_ours
from pumphouse.loader.apart import require_not_source, shared_with, sources
from pumphouse.loader.begin import is_beginning, plan_equal, plan_first, ready_at, require_new
from pumphouse.loader.failed import noting
from pumphouse.loader.fence import Ownership, raise_again
from pumphouse.loader.names import passing_own
from pumphouse.loader.planner import plan_abandon, plan_load, plan_repeat
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.resync import plan_resync
from pumphouse.loader.rules import Rules, read_routes, require_in_place, routes_of, rules_of_run
from pumphouse.loader.state import NOTHING_RECORDED, Standing, end_follow, is_known, read_standing
from pumphouse.loader.steps import Given, Steps
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unfit import of_the_server
from pumphouse.model.tso import Tso, show
from pumphouse.parts import Parts
from pumphouse.settings import LoadRule, LoadSettings, Settings, TargetSettings

log = structlog.get_logger()


def run(
    settings: Settings,
    *,
    target: TargetSettings | None = None,
    task: str | None = None,
    to: Tso | None = None,
    run_id: str = "",
    take_over: bool = False,
    repeat: Tso | None = None,
    equal_at: Tso | None = None,
    abandon: str = "",
    resync: str = "",
    anew: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> LoadReport:
    """Bring a target to ``to`` (the archive's end), in one plan or several.

    Args:
        settings: all settings; ``load.engine`` says where the stages run.
        target: the downstream; ``settings.target`` unless given.
        task: name of the load; ``settings.load.task`` unless given.
        to: last commit ts, inclusive; also in the middle of a window.
        run_id: the same id may take over from itself (a retry whose first attempt still lives).
        take_over: end another run that holds the target.
        repeat: apply (repeat, checkpoint] once more, by force.
        equal_at: first load only: the target equals the source at this moment.
        abandon: give the open plan up for this reason; the target is inconsistent then.
        resync: a table that is made anew, also one that a rule left out; nothing else is done but what is open.
        anew: a first load or a resync that did not end begins anew, in place of going on where it stopped.
        dry_run: only plan; the report has the steps, and nothing is changed.
        progress: told of each step.

    Raises:
        TargetBusy, TargetAhead, TargetIncomplete, RowRejected, DdlUncertain, LoadError, UsageError, …
    """
    target, task = target or settings.target, task or settings.load.task
    check_mode(settings)
    with Parts(settings) as parts:
        archive = parts.readable_archive
        archive.genesis()

        with TargetConnection.open(target, owner=not dry_run) as connection:
            first = None if is_known(connection) else seen(parts, None, to)
            if first is not None:
                rules = ruled(settings, target, first).rules
                _require_new(connection, settings, rules, first, to, equal_at)
            owner = None
            if not dry_run:
                run_id = run_id or new_run_id()
                owner = own_target(
                    connection, task=task, cluster_id=archive.cluster_id, run=run_id, take_over=take_over
                )
            elif first is None:
                require_ours(connection, task, archive.cluster_id)
            if abandon:
                return _abandon(connection, owner, task, abandon)
            return load_owned(
                parts, connection, owner, task=task, first=first, to=to, repeat=repeat, equal_at=equal_at,
                resync=resync, anew=anew, progress=progress,
            )  # fmt: skip


def load_owned(
    parts: Parts,
    connection: TargetConnection,
    owner: Ownership | None,
    *,
    task: str,
    first: ArchiveView | None = None,
    to: Tso | None = None,
    repeat: Tso | None = None,
    equal_at: Tso | None = None,
    resync: str = "",
    anew: bool = False,
    progress: Progress = silent,
) -> LoadReport:
    """What `run` does with a target that is its own; ``owner`` None: only plan.

    ``first``: the whole archive, where the target knew of no load when it was looked at. The others are those of `run`.
    """
    settings, target = parts.settings, connection.settings
    with nullcontext() if owner is None else noting(connection, task):
        standing = Standing() if owner is None and first is not None else read_standing(connection, task)
        standing = replace(standing, recorded=NOTHING_RECORDED) if anew else standing
        found, plan = standing.checkpoint, standing.plan
        moved = found is not None and read_routes(connection, task) != routes_of(settings.load.rules)
        # Not the first one where another run has begun meanwhile: it may have seen more.
        view = first if found is None else None
        view = view or seen(parts, None if resync or moved else _since(standing, repeat), to)
        load = ruled(settings, target, view)
        if found is not None and moved:
            upto = found.ts if plan is None else max(found.ts, plan.to_ts)
            require_in_place(connection, task, load.rules, view.timeline, found.ts, upto)
        since = (equal_at or Tso(0)) if found is None or is_beginning(found) else found.ts
        begun = None if plan is None or standing.untouched else plan.from_ts
        rules, uses = rules_of_run(connection, task, load.rules, since, view.timeline, begun)
        given = Given(view=view, standing=standing, rules=rules, settings=load, task=task, target=target)
        with _left_out_until_the_end(resync, given):
            steps = _plan(connection, given, to=to, repeat=repeat, equal_at=equal_at, resync=resync)
        if owner is None:
            return LoadReport.of(given).planned(steps, standing.recorded)
        uses.write_down(connection, owner, task)
        executor = Executor(given, connection, owner, parts.engine, settings.archive, progress)
        with _left_out_until_the_end(resync):
            report = executor.carry_out(steps, again=anew)
        if to is None and standing.recorded.digest:
            end_follow(connection, raise_again(connection, owner), task)
        return report


def seen(parts: Parts, since: Tso | None, to: Tso | None) -> ArchiveView:
    """The archive as it is now; UsageError where it does not hold the moment that was asked for."""
    found = read_view(parts.readable_archive, since=since, touched=True)
    _require_covered(found, to)
    return found


def ruled(settings: Settings, target: TargetSettings, view: ArchiveView) -> LoadSettings:
    """The section [load], with the rules that a target needs for what is called as our schema there."""
    rules = passing_own(settings.load.rules, view, target.schema_name)
    return settings.load.model_copy(update={"rules": rules})


def _abandon(connection: TargetConnection, owner: Ownership | None, task: str, reason: str) -> LoadReport:
    """Give the open plan up; without ``owner`` only say so."""
    steps = plan_abandon(read_standing(connection, task), task, connection.name, reason)
    if owner is not None:
        give_up(connection, owner, steps)
    report = LoadReport(target=connection.name, task=task, from_ts=steps.from_ts, to_ts=steps.to_ts)
    return report.planned(steps, dry_run=owner is None)


def _plan(
    connection: TargetConnection,
    given: Given,
    *,
    to: Tso | None,
    repeat: Tso | None,
    equal_at: Tso | None,
    resync: str,
) -> Steps:
    """The steps of what was asked for."""
    found = given.standing.checkpoint
    begin: Steps | None = None
    if equal_at is not None:
        begin = plan_equal(given, equal_at)
    elif resync and found is not None:
        return plan_resync(given, found, resync)
    elif found is None or is_beginning(found):
        begin = plan_first(given, require_new(connection, given.view, given.rules, to, begun=found is not None))
    if begin is not None:
        found = ready_at(given, begin.to_ts)
        given = replace(given, standing=Standing(checkpoint=found))
    if found is None:
        raise AssertionError
    on = plan_load(given, found, to) if repeat is None else plan_repeat(given, found, repeat)
    return on if begin is None else replace(on, before=(*begin.before, *on.before), anew=begin.anew)


@contextmanager
def _left_out_until_the_end(table: str, given: Given | None = None) -> Iterator[None]:
    """An error of a resync says that its table is left out until that has ended; with ``given`` only where it is."""
    try:
        yield
    except LoadError as error:
        if table and (given is None or given.rules.left_out(table.lower()) is not None):
            again = (f"{table} is left out until ", advice.load(resync=table), " has ended: run it again")
            error.advice = advice.joined(again, error.advice)
        raise


def _require_new(
    connection: TargetConnection,
    settings: Settings,
    rules: Sequence[LoadRule],
    view: ArchiveView,
    to: Tso | None,
    equal_at: Tso | None,
) -> None:
    """Before anything is made on a target that no load has met: LoadError unless one may begin there."""
    if problems := of_the_server(connection):
        raise LoadError(
            f"target {connection.name} cannot take a first load: {'; '.join(what for what, _ in problems)}. Nothing was"
            " changed",
            hint=f"there: {'; '.join(remedy for _, remedy in problems)}; then run this again",
            target=connection.name,
        )
    if equal_at is not None:
        require_not_source(connection, sources(settings.source, settings.history), settings.cluster.url)
        return
    unknown = ""
    try:
        require_not_source(connection, sources(settings.source, settings.history), settings.cluster.url)
    except ConfigError as error:  # where nobody can tell, nothing that is there is touched
        unknown = error.message
    try:
        require_new(connection, view, Rules.of(rules, Tso(0)), to)
    except LoadError:
        if is_known(connection):  # by now: what lies there is another run's
            return
        places = routes_of(rules).places(view.databases)
        for name, other in settings.targets.items():
            section = "target" if name == "target" else f"targets.{name}"
            why, _ = shared_with(
                connection, other, section, cluster_id=view.genesis.cluster_id, names=view.databases, databases=places
            )
            if why:
                raise LoadError(
                    f"target {connection.name} is another target of loads, [{section}]: {why}. Nothing was changed",
                    hint=(
                        "give the databases other names there by rules (",
                        advice.Rule("route", database=advice.ANY, to=advice.ANY),
                        ") and the section a schema_name of its own, or correct its host and port",
                    ),
                    target=connection.name,
                ) from None
        raise
    if unknown:
        log.warning("target_not_compared", server=connection.name, note=unknown)


def _since(standing: Standing, repeat: Tso | None) -> Tso | None:
    """Where the ranges of this run may begin; None = at genesis."""
    found, plan = standing.checkpoint, standing.plan
    if found is None or is_beginning(found):
        return None
    return min(found.ts, found.ts if repeat is None else repeat, found.ts if plan is None else plan.from_ts)


def _require_covered(view: ArchiveView, to: Tso | None) -> None:
    """UsageError when the archive does not hold the moment that a load was asked for; it is never moved to fit."""
    start, end = view.kept.start, view.end
    if to is not None and to > end:
        raise UsageError(
            f"the archive ends at {show(end)}, asked for {show(to)}",
            hint=("without an end (`--to`) it loads all of the archive; ", advice.SNAPSHOT, " extends that"),
        )
    if to is not None and to < start:
        raise UsageError(f"the archive begins at {show(start)}, asked for {show(to)}{view.kept.aside(to)}")


def check_mode(settings: Settings) -> None:
    """ConfigError for what this release does not do."""
    if not settings.load.safe_mode and settings.load.mode == "merge":
        raise ConfigError(
            "load.safe_mode = false has no meaning for load.mode = 'merge': its delete phase is what makes it safe",
            hint="leave it on",
        )


def new_run_id() -> str:
    """A run id that nobody else has."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"
