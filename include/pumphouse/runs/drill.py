"""Try a restore, prove it, throw it away: what `pumphouse drill` and the DAG `binlog_drill` do.

The tables of a moment are built in a schema of drills on some server (`pumphouse.restore.parts`), their rows are held
against the archive (`pumphouse.proof`), and the schema is dropped. Nothing else on that server is touched. The schema's
lock is held all the while, so a second drill there is refused. What a drill that was killed has left goes with the
next one, or by `clean`. How each ended is kept in the archive (`pumphouse.archive.drills`).

A *whole* drill restores everything, under the names that a restore gives (`pumphouse.restore.plan`). It begins on a
server that has no database at all. From then on our schema there says that it is a whole drill's, by the name of its
task; so whatever databases of the source are found beside that are a drill's, and go. That schema goes last.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

import structlog

from pumphouse.archive.archive import Archive
from pumphouse.archive.drills import FAILED, Drill, write_drill
from pumphouse.archive.layout import attempt_id
from pumphouse.archive.proofs import DRILL, Outcome, Proof
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import (
    BinlogError,
    FenceLost,
    LoadError,
    RestoreError,
    TargetBusy,
    TargetUnreachable,
    UnknownDdl,
    UsageError,
)
from pumphouse.executor.build import leave
from pumphouse.executor.executor import Executor
from pumphouse.executor.own import own_target
from pumphouse.loader import state
from pumphouse.loader.begin import there
from pumphouse.loader.fence import ours_there, require_last
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.rules import Rules
from pumphouse.loader.state import Standing
from pumphouse.loader.steps import Given
from pumphouse.loader.target import TargetConnection, address
from pumphouse.model.tso import Tso, show
from pumphouse.parts import Parts
from pumphouse.proof.servers import known_dialect
from pumphouse.restore.check import Into, check_parts, check_target, named_target, require_own_database
from pumphouse.restore.parts import TASK, Chosen, PartsPlan, own_schema, plan_parts
from pumphouse.restore.plan import RestorePlan, plan_restore
from pumphouse.restore.report import RestoreReport
from pumphouse.runs.load import check_mode, new_run_id, ruled
from pumphouse.runs.proof import prove_restored
from pumphouse.runs.restore_parts import left_over
from pumphouse.schema.actions import is_system
from pumphouse.schema.ident import quote
from pumphouse.settings import Settings

log = structlog.get_logger()
P = TypeVar("P", bound=RestorePlan)

# Moments that are drawn before it is said that there was never a table.
_DRAWN = 100
# And before it is said that none of them can be restored.
_PLANNED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """How a drill ended, and what its proof found."""

    drill: Drill
    proof: Proof


def run(
    settings: Settings,
    *,
    into: Into,
    named: str,
    at: Tso | None = None,
    seed: int | None = None,
    whole: bool = False,
    run_id: str = "",
    take_over: bool = False,
    progress: Progress = silent,
) -> DrillReport:
    """Restore the tables of `drill.tables`, or everything, as of a moment, prove it, and drop it again.

    Args:
        settings: all settings.
        into: section of the settings that names the server.
        named: what the server is called by who asks, for the record.
        at: the moment; None = one is drawn from all that can be restored.
        seed: by which it is drawn: the same one is drawn again while the archive ends where it does. None = another.
        whole: everything, onto a server that has nothing but drills.
        run_id: the same id may take over from itself.
        take_over: end another drill on that server.
        progress: told of each step.

    Raises:
        UsageError, TargetBusy: nothing was begun, and nothing is kept.
        BinlogError: the drill has failed, which is kept.
    """
    target = own_schema(named_target(settings, into), drill=True)
    check_mode(settings)
    run_id = run_id or new_run_id()
    if at is None and seed is None:
        seed = new_seed()
    with Parts(settings) as parts:
        archive = parts.readable_archive
        archive.genesis()
        kept = _Kept(
            archive,
            Drill(
                cluster_id=archive.cluster_id,
                attempt=attempt_id(),
                begun_ms=_now_ms(),
                seed=None if at is not None else seed,
                into=named,
                target=address(target),
                whole=whole,
            ),
            settings.drill.keep,
        )
        try:
            with TargetConnection.open(target, owner=True, section=into) as connection:
                known_dialect(connection)
                if _of_whole(connection):
                    clean(settings, into, run_id=run_id, take_over=take_over)
                carried_out = _whole_carried_out if whole else _carried_out
                return carried_out(settings, parts, connection, kept, into, at, run_id, take_over, progress)
        except BaseException as error:
            taken = kept.connection_id is not None and _clean_up(settings, into, run_id, kept.connection_id)
            # What was typed wrongly is no drill, and neither is one that was refused, or that another try took over.
            mistaken = (UsageError, TargetBusy, *([] if at is None else [TargetUnreachable]))
            if isinstance(error, BinlogError) and not taken and not isinstance(error, mistaken):
                with suppress(BinlogError):  # of the two errors the first one counts
                    kept.put(ended_ms=_now_ms(), verdict=FAILED, why=error.message[:2000], hint=error.hint[:2000])
            raise


def _carried_out(
    settings: Settings,
    parts: Parts,
    connection: TargetConnection,
    kept: _Kept,
    into: Into,
    at: Tso | None,
    run_id: str,
    take_over: bool,
    progress: Progress,
) -> DrillReport:
    target, chosen = connection.settings, Chosen(tables=settings.drill.tables)

    def planned(view: ArchiveView, moment: Tso) -> PartsPlan:
        return plan_parts(view, moment, chosen=chosen, target=target, settings=settings.load, drill=True)

    view, plan = _planned(kept, connection.name, at, chosen, planned)
    check = check_parts(connection, plan, view, settings.cluster.url)
    with ours_there(connection):  # another drill may come to its end
        owner = own_target(
            connection,
            task=TASK,
            cluster_id=view.genesis.cluster_id,
            run=run_id,
            take_over=take_over,
            any_task=True,
        )
    kept.connection_id = connection.connection_id
    kept.put(tables=len(plan.placed), rows=plan.base_rows + plan.rows, payload_bytes=plan.base_bytes + plan.bytes)
    given = Given(view=view, standing=Standing(), rules=plan.rules, settings=settings.load, task=TASK, target=target)
    steps = plan.steps(given, left_over(connection))
    executor = Executor(given, connection, owner, parts.engine, settings.archive, progress)
    load = executor.carry_out(steps, again=True)
    report = RestoreReport(plan=plan, target=load.target, dry_run=False, check=check, load=load)
    proof = prove_restored(settings, report, into=into, progress=progress)
    leave(connection)
    return _ended(kept, load, proof)


def _ended(kept: _Kept, load: LoadReport, proof: Proof) -> DrillReport:
    """How it ended is kept."""
    kept.put(
        ended_ms=_now_ms(),
        verdict=proof.verdict,
        proof=proof.key,
        unproven=len(proof.of(Outcome.UNPROVEN)),
        restore_ms=max(1, int(load.seconds * 1000)),
        proof_ms=0 if proof.ended_ms is None else proof.ended_ms - proof.begun_ms,
    )
    return DrillReport(drill=kept.drill, proof=proof)


def _planned(
    kept: _Kept, server: str, at: Tso | None, chosen: Chosen, plan: Callable[[ArchiveView, Tso], P]
) -> tuple[ArchiveView, P]:
    """The archive up to the moment, or up to one that is drawn; and the plan of the restore."""
    moments = iter([at]) if at is not None else _drawn(read_view(kept.archive), chosen, kept.drill.seed or 0)
    for moment in moments:
        kept.drill = replace(kept.drill, at=moment)
        log.info("drill", moment=show(moment), seed=kept.drill.seed, server=server, again=kept.drill.again)
        view = read_view(kept.archive, upto=moment)
        try:
            return view, plan(view, moment)
        except LoadError as error:
            # Behind a DDL that cannot be carried out, up to the next dump. Of a named moment it is the answer.
            if at is not None or not isinstance(error.__cause__, UnknownDdl):
                raise
            log.warning("drill_moment_passed_over", moment=show(moment), why=error.message)
            refused = error
    raise refused


def _whole_carried_out(
    settings: Settings,
    parts: Parts,
    connection: TargetConnection,
    kept: _Kept,
    into: Into,
    at: Tso | None,
    run_id: str,
    take_over: bool,
    progress: Progress,
) -> DrillReport:
    target = connection.settings
    settings = settings.model_copy(update={into: target})
    _require_empty(connection)

    def planned(view: ArchiveView, moment: Tso) -> RestorePlan:
        return plan_restore(view, moment, task=DRILL, settings=ruled(settings, target, view))

    view, plan = _planned(kept, connection.name, at, Chosen(tables=("%.%",)), planned)
    load = ruled(settings, target, view)
    check = check_target(settings, into, plan, view, DRILL)
    with ours_there(connection):  # another drill may come to its end
        owner = own_target(
            connection,
            task=DRILL,
            cluster_id=view.genesis.cluster_id,
            run=run_id,
            take_over=take_over,
            any_task=True,
        )
    kept.connection_id = connection.connection_id
    _require_empty(connection)  # once more: now nobody else begins
    kept.put(tables=plan.tables, rows=plan.base_rows + plan.rows, payload_bytes=plan.base_bytes + plan.bytes)
    rules = Rules.of(load.rules, Tso(0))
    given = Given(view=view, standing=Standing(), rules=rules, settings=load, task=DRILL, target=target)
    executor = Executor(given, connection, owner, parts.engine, settings.archive, progress)
    done = executor.carry_out(plan.steps(given), again=True)
    report = RestoreReport(plan=plan, target=done.target, dry_run=False, check=check, load=done)
    proof = prove_restored(settings, report, into=into, task=DRILL, progress=progress)
    _leave_whole(settings, connection, ours=True)
    return _ended(kept, done, proof)


def _require_empty(connection: TargetConnection, but: Sequence[str] = ()) -> None:
    """RestoreError where the server has a database that is not its own, that of our state, or one of these."""
    ours = {name.casefold() for name in (connection.settings.schema_name, *but)}
    found = [str(name) for (name,) in connection.query("SHOW DATABASES")]
    others = [name for name in found if not is_system(name) and name.casefold() not in ours]
    if others:
        raise RestoreError(
            f"{connection.name} has databases that are no drill's: {', '.join(others[:5])}",
            hint="a whole drill begins, and drops what one that was killed has left, where there is nothing else: name "
            "a server of its own, or drop them if nobody needs them",
        )


def _of_whole(connection: TargetConnection) -> bool:
    """Whether what is there is of a whole drill."""
    return any(each.task == DRILL for each in state.read_known(connection))


def _leave_whole(settings: Settings, connection: TargetConnection, *, ours: bool) -> None:
    """Drop every database that the source ever had, and our schema last; RestoreError where there are others.

    ``ours``: this run has made them, and others that came meanwhile are no obstacle.
    """
    with Parts(settings) as parts:
        view = read_view(parts.readable_archive)
    rules = Rules.of(ruled(settings, connection.settings, view).rules, Tso(0))
    places = rules.routes.places(view.databases)
    if not ours:
        _require_empty(connection, places)
    for name in there(connection, places):
        connection.execute(f"DROP DATABASE IF EXISTS {quote(name)}")
    leave(connection)


def require_scratch(settings: Settings, named: str) -> None:
    """UsageError unless a server is one of drills, by the settings as they were read."""
    found = settings.targets.get(named)
    if found is None or not found.scratch:
        raise UsageError(
            f"everything is restored onto a server for drills alone, and {named} is none",
            hint="name one that has no data: [targets.NAME] with `scratch = true`, and --into NAME",
        )


def new_seed() -> int:
    """What a moment is drawn by, where nobody chooses."""
    return secrets.randbelow(1_000_000)


def clean(
    settings: Settings, into: Into, *, run_id: str = "", take_over: bool = False, ours: int | None = None
) -> bool:
    """Drop what a drill that was killed has left on a server; whether there was anything. TargetBusy while one runs.

    ``ours``: it was this run's, by that connection; FenceLost where another one has had the server since.
    """
    target = own_schema(named_target(settings, into), drill=True)
    with TargetConnection.open(target, owner=True, section=into) as connection:
        if not there(connection, [target.schema_name]):
            return False
        if ours is not None:
            require_last(connection, ours)
        if not _of_whole(connection):
            require_own_database(connection)
        run = run_id or new_run_id()
        with ours_there(connection):
            own_target(connection, task=TASK, cluster_id=0, run=run, take_over=take_over, any_task=True)
        if _of_whole(connection):
            _leave_whole(settings, connection, ours=ours is not None)
        else:
            leave(connection)
    return True


def _clean_up(settings: Settings, into: Into, run_id: str, connection_id: int) -> bool:
    """After an error, over a connection of its own: the other one may be gone, or within a statement.

    Whether another try of the same run has had the server since: what is there is that one's.
    """
    try:
        clean(settings, into, run_id=run_id, ours=connection_id)
    except FenceLost as error:
        if error.found is None:
            return False  # nothing of it is there any more
        log.warning("drill_taken_over", into=into, why=error.message)
        return True
    except BinlogError as error:
        log.warning("drill_left_behind", into=into, why=error.message, next="the next drill there drops it")
    return False


class _Kept:
    """What is kept of a drill in the archive.

    ``connection_id``: the server is that one's, and has what it may leave behind.
    """

    def __init__(self, archive: Archive, drill: Drill, keep: int) -> None:
        self.archive, self.drill, self._keep = archive, drill, keep
        self.connection_id: int | None = None

    def put(self, **found: Any) -> None:
        """What is known by now."""
        self.drill = replace(self.drill, **found)
        write_drill(self.archive, self.drill, keep=self._keep)


def _drawn(view: ArchiveView, chosen: Chosen, seed: int) -> Iterator[Tso]:
    """Moments at which there is a table, some of them at most; UsageError where there is none."""
    rng = Random(seed)  # noqa: S311 - nobody guesses it
    low = view.bases[0].ts if view.bases else view.kept.start
    left = _PLANNED
    for draw in range(_DRAWN):
        at = Tso(rng.randrange(low, view.end + 1))
        try:
            chosen.of(view.timeline, at)
        except UsageError:
            if draw == _DRAWN - 1 and left == _PLANNED:
                raise
            continue
        yield at
        left -= 1
        if not left:
            return


def _now_ms() -> int:
    return int(SYSTEM_CLOCK.now() * 1000)
