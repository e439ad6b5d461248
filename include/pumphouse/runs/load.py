"""Load a target from the archive: what `pumphouse load`, the load DAG and the Spark job do."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence

import structlog

from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.errors import ConfigError, LoadError, UsageError
from pumphouse.loader.apart import require_not_source, shared_with
from pumphouse.loader.begin import begin_equal, begin_from_base, is_beginning, require_new
from pumphouse.loader.failed import noting
from pumphouse.loader.names import passing_own
from pumphouse.loader.plan import Plan
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.resync import resync as bring_back
from pumphouse.loader.rules import Rules, read_routes, require_in_place, routes_of, rule_text, take_up
from pumphouse.loader.run import Loader, own_target
from pumphouse.loader.run import abandon as give_up
from pumphouse.loader.state import Checkpoint, is_known, open_plan
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unfit import of_the_server
from pumphouse.model.tso import Tso, show
from pumphouse.parts import Parts
from pumphouse.replay import load as replay
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
        progress: told of each step.

    Raises:
        TargetBusy, TargetAhead, TargetIncomplete, RowRejected, DdlUncertain, LoadError, UsageError, …
    """
    target, task = target or settings.target, task or settings.load.task
    check_mode(settings)
    with Parts(settings) as parts:
        archive = parts.archive
        archive.genesis()

        def seen(since: Tso | None) -> ArchiveView:
            found = read_view(archive, since=since, touched=True)
            _require_covered(found, to)
            return found

        def ruled(view: ArchiveView) -> LoadSettings:
            rules = passing_own(settings.load.rules, view, target.schema_name)
            return settings.load.model_copy(update={"rules": rules})

        with TargetConnection.open(target, owner=True) as connection:
            first = None if is_known(connection) else seen(None)
            if first is not None:
                _require_new(connection, settings, ruled(first).rules, first, to, equal_at)
            owner, found = own_target(
                connection,
                task=task,
                cluster_id=archive.cluster_id,
                run=run_id or new_run_id(),
                take_over=take_over,
            )
            if abandon:
                give_up(connection, owner, task, abandon)
                at = Tso(0) if found is None else found.ts
                return LoadReport(target=connection.name, task=task, from_ts=at, to_ts=at)
            with noting(connection, task):
                moved = found is not None and read_routes(connection, task) != routes_of(settings.load.rules)
                opened = None if found is None else open_plan(connection, task)
                since = None if resync or moved else _since(found, opened, repeat)
                # Not the first one where another run has begun meanwhile: it may have seen more.
                view = first if first is not None and found is None else seen(since)
                load = ruled(view)
                rules = load.rules
                if found is not None and moved:
                    upto = found.ts if opened is None else max(found.ts, opened.to_ts)
                    require_in_place(connection, task, rules, view.timeline, found.ts, upto)
                if equal_at is not None:
                    found = begin_equal(connection, owner, task, view, equal_at)
                since = Tso(0) if found is None or is_beginning(found) else found.ts
                loader = Loader(
                    view=view,
                    archive_settings=settings.archive,
                    connection=connection,
                    owner=owner,
                    settings=load,
                    task=task,
                    engine=parts.engine,
                    progress=progress,
                    rules=take_up(
                        connection, owner, task, rules, since, view.timeline, None if opened is None else opened.from_ts
                    ),
                    streaming=replay,
                )
                if resync and found is not None:
                    return bring_back(loader, found, resync)
                if found is None or is_beginning(found):
                    found = begin_from_base(loader, found, to)
                return loader.forward(found, to) if repeat is None else loader.repeat(found, repeat)


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
        require_not_source(connection, settings)
        return
    unknown = ""
    try:
        require_not_source(connection, settings)
    except ConfigError as error:  # where nobody can tell, nothing that is there is touched
        unknown = error.message
    try:
        require_new(connection, view, Rules.of(rules, Tso(0)), to)
    except LoadError:
        if is_known(connection):  # by now: what lies there is another run's
            return
        places = routes_of(rules).places(view.databases)
        for name, other in settings.targets.items():
            why, _ = shared_with(
                connection, other, cluster_id=view.genesis.cluster_id, names=view.databases, databases=places
            )
            if why:
                section = "target" if name == "target" else f"targets.{name}"
                raise LoadError(
                    f"target {connection.name} is another target of loads, [{section}]: {why}. Nothing was changed",
                    hint="give the databases other names there by rules "
                    f"({rule_text('route', database='…', to='…')}) and the section a schema_name of its own, or "
                    "correct its host and port",
                    target=connection.name,
                ) from None
        raise
    if unknown:
        log.warning("target_not_compared", target=connection.name, note=unknown)


def _since(found: Checkpoint | None, opened: Plan | None, repeat: Tso | None) -> Tso | None:
    """Where the ranges of this run may begin; None = at genesis."""
    if found is None or is_beginning(found):
        return None
    return min(found.ts, found.ts if repeat is None else repeat, found.ts if opened is None else opened.from_ts)


def _require_covered(view: ArchiveView, to: Tso | None) -> None:
    """UsageError when the archive does not hold the moment that a load was asked for; it is never moved to fit."""
    start, end = view.genesis.ts, view.end
    if to is not None and to > end:
        raise UsageError(
            f"the archive ends at {show(end)}, asked for {show(to)}",
            hint="without an end (`--to`) it loads all of the archive; `pumphouse snapshot` extends that",
        )
    if to is not None and to < start:
        raise UsageError(f"the archive begins at {show(start)}, asked for {show(to)}")


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
