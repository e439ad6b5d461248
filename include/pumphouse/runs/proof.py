"""Hold the rows of a server against the archive: what `archive prove` and `restore --verify` do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pumphouse.archive.archive import Archive
from pumphouse.archive.drills import estimate_s
from pumphouse.archive.layout import attempt_id
from pumphouse.archive.proofs import DRILL, Outcome, Proof, read_proofs
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import LoadError, TargetAhead, UsageError
from pumphouse.loader.names import passing_own
from pumphouse.loader.report import Progress, silent
from pumphouse.loader.rules import Rules, read_left_out
from pumphouse.loader.target import TargetConnection, address
from pumphouse.model.tso import Tso, show
from pumphouse.mysql import DUMP
from pumphouse.parts import Parts
from pumphouse.proof.plan import digest_of, sizes_of, subjects
from pumphouse.proof.prove import Given, Prover
from pumphouse.proof.servers import Stand, known_dialect, require_known, stand_of
from pumphouse.restore.check import Into, Place, named_target
from pumphouse.restore.parts import TASK, PartsPlan, own_schema
from pumphouse.restore.plan import RestorePlan, plan_restore
from pumphouse.restore.report import ProofPlan, RestoreReport
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.route import Routes
from pumphouse.settings import LoadRule, LoadSettings, Settings, TargetSettings


def prove(
    settings: Settings,
    *,
    on: Into = "target",
    at: Tso | None = None,
    task: str | None = None,
    tables: Collection[str] = (),
    restored: bool = False,
    progress: Progress = silent,
    clock: Clock = SYSTEM_CLOCK,
) -> Proof:
    """Compare each table of a target with the archive, and keep what was found there.

    The archive's side is computed from a dump and the windows up to the moment alone; the target's side by SQL. A proof
    of the same target that was killed goes on.

    Args:
        settings: all settings.
        on: section of the settings that names the server.
        at: the moment, which has to be where the target stands; None = where it stands.
        task: the load or restore whose rows these are; ``settings.load.task`` unless given.
        tables: only these, ``database.table`` of the source; () = all.
        restored: its rows have just been built: one that was killed goes on only if it is of the target as it stands.
        progress: told of each step.
        clock: for when it was begun and ended.

    Raises:
        LoadError, TargetIncomplete, TargetBusy, TargetAhead: the target stands at no moment, or at another one.
        UsageError: a table that is named is not there at the moment; the target is a TiDB.
        RestoreError, TargetUnreachable: no dump leads to the moment.
    """
    target, task = getattr(settings, on), task or settings.load.task
    only = tuple(sorted({each.lower() for each in tables}))
    with Parts(settings) as parts:
        archive = parts.readable_archive
        archive.genesis()
        with TargetConnection.open(target, session=DUMP, section=on) as connection:
            dialect, stand = known_dialect(connection), stand_of(connection, task)
            left_out = read_left_out(connection, task)
        if stand.cluster_id != archive.cluster_id:
            raise LoadError(
                f"target {address(target)} has rows of cluster {stand.cluster_id}, the archive is of "
                f"{archive.cluster_id}",
                hint="are cluster.url and the target those that belong together?",
                target=address(target),
            )
        begun = _unfinished(archive, address(target), stand, only, at, moved=not restored)
        moment = stand.at if begun is None else begun.at
        _require_there(stand, moment if at is None else at, begun, address(target))
        if moment > archive.end():
            raise TargetAhead(
                f"target {address(target)} is at {show(moment)}, the archive ends at {show(archive.end())}",
                hint="this is not the archive that the target was loaded from, or it was cut",
                target=address(target),
                checkpoint=moment,
                archive_end=archive.end(),
            )
        view, load, rules, plan = _whole(settings, archive, target, moment, task)
        if begun is not None and moment != stand.at and begun.plan_sha256 != digest_of(plan, rules.routes):
            # The archive's side is another one by now, and the target has gone on: it is asked where it stands.
            begun, moment = None, stand.at
            _require_there(stand, moment if at is None else at, begun, address(target))
            view, load, rules, plan = _whole(settings, archive, target, moment, task)
        found = subjects(view, plan, rules, left_out, only)
        unknown = sorted(set(only) - {each.name.lower() for each in found})
        if unknown:
            raise UsageError(f"there is no table {', '.join(unknown)} at {show(moment)}", hint="pumphouse schema show")
        given = Given(
            archive=archive,
            view=view,
            plan=plan,
            subjects=found,
            searched=() if only else plan.made,
            target=target,
            section=on,
            stand=stand,
            dialect=dialect,
            routes=rules.routes,
            load=load,
            archive_settings=settings.archive,
        )
        return _carried_out(given, begun, only, task, progress, clock)


def _whole(
    settings: Settings, archive: Archive, target: TargetSettings, moment: Tso, task: str
) -> tuple[ArchiveView, LoadSettings, Rules, RestorePlan]:
    """What a proof of all of a target is made from: that of a restore to the moment, by the rules of its load."""
    view = read_view(archive, upto=moment)
    load = settings.load.model_copy(update={"rules": passing_own(settings.load.rules, view, target.schema_name)})
    plan = plan_restore(view, moment, task=task, settings=load)
    return view, load, Rules.of(load.rules, Tso(0)), plan


def plan_proof(settings: Settings, report: RestoreReport, *, into: Place, task: str | None = None) -> ProofPlan:
    """What `prove_restored` would read when the restore is done; arguments as there.

    Raises:
        UsageError: no proof can ask such a server.
    """
    plan, target, check = report.plan, named_target(settings, into), report.check
    if check is not None:
        require_known(Dialect.of_version(check.version), check.server)
    with Parts(settings) as parts:
        archive = parts.readable_archive
        if isinstance(plan, PartsPlan):
            only = [each.table.lower() for each in plan.placed]
            found = subjects(read_view(archive, upto=plan.to), plan, plan.rules, {}, only)
        else:
            at = plan.to if report.followed is None else report.followed.to_ts
            view, _, rules, plan = _whole(settings, archive, target, at, task or settings.load.task)
            found = subjects(view, plan, rules, {})
        estimate = estimate_s(archive, plan.base_rows + plan.rows, proof=True)
    sizes = sizes_of(plan)
    tables = {each.name: sizes.get(each.version.table.id, 0) for each in found if not each.why}
    return ProofPlan(
        at=plan.to,
        tables=dict(sorted(tables.items(), key=lambda each: (-each[1], each[0]))),
        unproven={each.name: each.why for each in found if each.why},
        estimate_s=estimate,
    )


def prove_restored(
    settings: Settings, report: RestoreReport, *, into: Place, task: str | None = None, progress: Progress = silent
) -> Proof:
    """Compare what a restore has built with the archive: `pumphouse restore --verify`.

    Of a restore of parts, or a drill, its tables at their places; nothing says there that nobody has changed them
    since. Of a restore that its load has followed, where the target stands by then.

    Args:
        settings: as the restore had them.
        report: of the restore.
        into: section of the settings that names the server.
        task: as the restore had it.
        progress: told of each step.
    """
    plan = report.plan
    if not isinstance(plan, PartsPlan):
        on: Into = "target" if into == "target" else "restore_target"
        at = plan.to if report.followed is None else None
        return prove(settings, on=on, at=at, task=task, restored=True, progress=progress)
    target, only = own_schema(named_target(settings, into)), tuple(sorted(each.table.lower() for each in plan.placed))
    with Parts(settings) as parts:
        archive = parts.readable_archive
        view = read_view(archive, upto=plan.to)
        with TargetConnection.open(target, session=DUMP, section=into) as connection:
            dialect = known_dialect(connection)
        given = Given(
            archive=archive,
            view=view,
            plan=plan,
            subjects=subjects(view, plan, plan.rules, {}, only),
            searched=(),
            target=target,
            section=into,
            stand=None,
            dialect=dialect,
            routes=Routes.of({}, {each.table: ".".join(each.place) for each in plan.placed}),
            load=settings.load,
            archive_settings=settings.archive,
        )
        where = str(plan.where) if plan.where else ""
        return _carried_out(given, None, only, DRILL if plan.drill else TASK, progress, SYSTEM_CLOCK, where)


def hold_against(
    settings: Settings,
    target: TargetSettings,
    *,
    section: str,
    rules: Sequence[LoadRule] = (),
    at: Tso | None = None,
    databases: Collection[str] = (),
    progress: Progress = silent,
) -> Proof:
    """Compare the tables of any server with the archive at a moment: `pumphouse diff --archive-at`. Nothing is kept.

    Args:
        settings: all settings.
        target: the server. Nobody says where it stands.
        section: what names it, for errors.
        rules: what tables are called there, and which ones are left out.
        at: the moment; None = the archive's end.
        databases: only these, as the source calls them; () = all.
        progress: told of each step.

    Raises:
        UsageError: there is nothing to compare, or the server is a TiDB.
        RestoreError, TargetUnreachable: no dump leads to the moment.
    """
    with Parts(settings) as parts:
        archive = parts.readable_archive
        view = read_view(archive, upto=at)
        with TargetConnection.open(target, session=DUMP, section=section) as connection:
            dialect = known_dialect(connection)
        load = settings.load.model_copy(update={"rules": passing_own(tuple(rules), view, target.schema_name)})
        followed = Rules.of(load.rules, Tso(0))
        plan = plan_restore(view, at, task=TASK, settings=load)
        there = [version.name for version in view.timeline.tables_at(plan.to)]
        asked = {each.lower() for each in databases}
        if unknown := asked - {db.lower() for db, _ in there}:
            raise UsageError(f"the archive has no table of {', '.join(sorted(unknown))} at {show(plan.to)}")
        only = tuple(sorted(".".join(name).lower() for name in there if name[0].lower() in asked))
        found = subjects(view, plan, followed, {}, only)
        if not found:
            raise UsageError(f"there is nothing to compare: the archive has no table at {show(plan.to)}")
        given = Given(
            archive=archive,
            view=view,
            plan=plan,
            subjects=found,
            searched={followed.routes.database(db) for db, _ in there if db.lower() in asked} or plan.made,
            target=target,
            section=section,
            stand=None,
            dialect=dialect,
            routes=followed.routes,
            load=load,
            archive_settings=settings.archive,
            kept=False,
        )
        return _carried_out(given, None, only, TASK, progress, SYSTEM_CLOCK)


def _carried_out(
    given: Given,
    begun: Proof | None,
    only: tuple[str, ...],
    task: str,
    progress: Progress,
    clock: Clock,
    where: str = "",
) -> Proof:
    """The proof, gone on with where it was begun from the same archive. ``where``: of which rows, in words."""
    plan, digest = given.plan, digest_of(given.plan, given.routes)
    if begun is None or begun.plan_sha256 != digest:
        begun = Proof(
            cluster_id=given.archive.cluster_id,
            attempt=attempt_id(),
            at=plan.to,
            base=plan.base,
            plan_sha256=digest,
            target=address(given.target),
            task=task,
            fence=0 if given.stand is None else given.stand.fence,
            only=only,
            begun_ms=int(clock.now() * 1000),
            losses=tuple(plan.losses.lines()),
            where=where,
            ruled=tuple(f"{what} ({why})" for what, why in plan.ruled.items()),
        )
    return Prover(given, begun, progress, clock).run()


def _unfinished(
    archive: Archive, target: str, stand: Stand, only: tuple[str, ...], at: Tso | None, *, moved: bool
) -> Proof | None:
    """The newest proof of the target that has not ended and can: the target stands as it did, or was asked already.

    ``moved``: also one of a target that has gone on since, where it was asked already.
    """
    for proof in reversed(read_proofs(archive)):
        if (proof.target, proof.task, proof.only) != (target, stand.task, only) or proof.ended_ms is not None:
            continue
        same = (proof.at, proof.fence) == (stand.at, stand.fence)
        asked = bool(proof.tables) and all(
            table.ranges and all(each.target is not None for each in table.ranges) for table in proof.of(Outcome.OPEN)
        )
        if (same or (moved and asked)) and at in (None, proof.at):
            return proof
    return None


def _require_there(stand: Stand, at: Tso, begun: Proof | None, target: str) -> None:
    """TargetAhead, UsageError where the target does not stand at the moment; one that was asked already need not."""
    if at == stand.at or (begun is not None and begun.at == at):
        return
    if at < stand.at:
        raise TargetAhead(
            f"target {target} is at {show(stand.at)}, beyond {show(at)}, which was asked for",
            hint="a target is proved where it stands: leave --to out",
            target=target,
            checkpoint=stand.at,
            to=at,
        )
    raise UsageError(
        f"target {target} is at {show(stand.at)}, and has not come to {show(at)}",
        hint="a target is proved where it stands: leave --to out; or load up to there first",
    )
