"""Try a restore, prove it, throw it away: what `pumphouse drill` and the DAG `binlog_drill` do.

The tables of a moment are built in a schema of drills on some server (`pumphouse.restore.parts`), their rows are held
against the archive (`pumphouse.proof`), and the schema is dropped. Nothing else on that server is touched. The schema's
lock is held all the while, so a second drill there is refused. What a drill that was killed has left goes with the
next one, or by `clean`. How each ended is kept in the archive (`pumphouse.archive.drills`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import structlog

from pumphouse.archive.archive import Archive
from pumphouse.archive.drills import FAILED, Drill, write_drill
from pumphouse.archive.layout import attempt_id
from pumphouse.archive.proofs import Outcome, Proof
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import BinlogError, LoadError, TargetBusy, TargetUnreachable, UnknownDdl, UsageError
from pumphouse.executor.build import leave
from pumphouse.executor.executor import Executor
from pumphouse.executor.own import own_target
from pumphouse.loader.begin import there
from pumphouse.loader.fence import ours_there
from pumphouse.loader.report import Progress, silent
from pumphouse.loader.state import Standing
from pumphouse.loader.steps import Given
from pumphouse.loader.target import TargetConnection, address
from pumphouse.model.tso import Tso, show
from pumphouse.parts import Parts
from pumphouse.proof.servers import known_dialect
from pumphouse.restore.check import Into, check_parts, named_target, require_own_database
from pumphouse.restore.parts import TASK, Chosen, own_schema, plan_parts
from pumphouse.restore.report import RestoreReport
from pumphouse.runs.load import check_mode, new_run_id
from pumphouse.runs.proof import prove_restored
from pumphouse.runs.restore_parts import left_over
from pumphouse.settings import Settings

log = structlog.get_logger()

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
    run_id: str = "",
    take_over: bool = False,
    progress: Progress = silent,
) -> DrillReport:
    """Restore the tables of `drill.tables` as of a moment, prove them, and drop them again.

    Args:
        settings: all settings.
        into: section of the settings that names the server.
        named: what the server is called by who asks, for the record.
        at: the moment; None = one is drawn from all that can be restored.
        seed: by which it is drawn: the same one is drawn again while the archive ends where it does. None = another.
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
            ),
            settings.drill.keep,
        )
        try:
            with TargetConnection.open(target, owner=True, section=into) as connection:
                known_dialect(connection)
                return _carried_out(settings, parts, connection, kept, into, at, run_id, take_over, progress)
        except BaseException as error:
            if kept.begun:
                _clean_up(settings, into, run_id)
            # What was typed wrongly is no drill, and neither is one that was refused.
            mistaken = (UsageError, TargetBusy, *([] if at is None else [TargetUnreachable]))
            if isinstance(error, BinlogError) and not isinstance(error, mistaken):
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
    moments = iter([at]) if at is not None else _drawn(read_view(kept.archive), chosen, kept.drill.seed or 0)
    for moment in moments:
        kept.drill = replace(kept.drill, at=moment)
        log.info("drill", moment=show(moment), seed=kept.drill.seed, server=connection.name, again=kept.drill.again)
        view = read_view(kept.archive, upto=moment)
        try:
            plan = plan_parts(view, moment, chosen=chosen, target=target, settings=settings.load, drill=True)
            break
        except LoadError as error:
            # Behind a DDL that cannot be carried out, up to the next dump. Of a named moment it is the answer.
            if at is not None or not isinstance(error.__cause__, UnknownDdl):
                raise
            log.warning("drill_moment_passed_over", moment=show(moment), why=error.message)
            refused = error
    else:
        raise refused
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
    kept.begun = True
    kept.put(tables=len(plan.placed), rows=plan.base_rows + plan.rows, payload_bytes=plan.base_bytes + plan.bytes)
    given = Given(view=view, standing=Standing(), rules=plan.rules, settings=settings.load, task=TASK, target=target)
    steps = plan.steps(given, left_over(connection))
    load = Executor(given, connection, owner, parts.engine, settings.archive, progress).carry_out(steps, again=True)
    report = RestoreReport(plan=plan, target=load.target, dry_run=False, check=check, load=load)
    proof = prove_restored(settings, report, into=into, progress=progress)
    leave(connection)
    kept.put(
        ended_ms=_now_ms(),
        verdict=proof.verdict,
        proof=proof.key,
        unproven=len(proof.of(Outcome.UNPROVEN)),
        restore_ms=max(1, int(load.seconds * 1000)),
        proof_ms=0 if proof.ended_ms is None else proof.ended_ms - proof.begun_ms,
    )
    return DrillReport(drill=kept.drill, proof=proof)


def new_seed() -> int:
    """What a moment is drawn by, where nobody chooses."""
    return secrets.randbelow(1_000_000)


def clean(settings: Settings, into: Into, *, run_id: str = "", take_over: bool = False) -> bool:
    """Drop what a drill that was killed has left on a server; whether there was anything. TargetBusy while one runs."""
    target = own_schema(named_target(settings, into), drill=True)
    with TargetConnection.open(target, owner=True, section=into) as connection:
        if not there(connection, [target.schema_name]):
            return False
        require_own_database(connection)
        run = run_id or new_run_id()
        with ours_there(connection):
            own_target(connection, task=TASK, cluster_id=0, run=run, take_over=take_over, any_task=True)
        leave(connection)
    return True


def _clean_up(settings: Settings, into: Into, run_id: str) -> None:
    """After an error, over a connection of its own: the other one may be gone, or within a statement."""
    try:
        clean(settings, into, run_id=run_id)
    except BinlogError as error:
        log.warning("drill_left_behind", into=into, why=error.message, next="the next drill there drops it")


class _Kept:
    """What is kept of a drill in the archive. ``begun``: the server is ours, and has what it may leave behind."""

    def __init__(self, archive: Archive, drill: Drill, keep: int) -> None:
        self.archive, self.drill, self._keep = archive, drill, keep
        self.begun = False

    def put(self, **found: Any) -> None:
        """What is known by now."""
        self.drill = replace(self.drill, **found)
        write_drill(self.archive, self.drill, keep=self._keep)


def _drawn(view: ArchiveView, chosen: Chosen, seed: int) -> Iterator[Tso]:
    """Moments at which there is a table, some of them at most; UsageError where there is none."""
    rng = Random(seed)  # noqa: S311 - nobody guesses it
    low = view.bases[0].ts if view.bases else view.genesis.ts
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
