"""Where a target begins: empty, made to the schema of a dump's moment, filled with the dump and the log over it.

Planners of a first load (`pumphouse.loader.steps`); a restore has the same steps, and first throws away what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pumphouse import advice
from pumphouse.archive.base import Base
from pumphouse.archive.view import ArchiveView
from pumphouse.errors import LoadError
from pumphouse.loader.grants import HOLDING, hidden
from pumphouse.loader.names import require_names
from pumphouse.loader.rules import Rules, lacking_hint
from pumphouse.loader.state import BEGINNING, Checkpoint, TargetState
from pumphouse.loader.steps import Build, Equal, ForeignKeys, Given, Ready, Reset, Step, Steps, filled
from pumphouse.loader.target import TargetConnection, address
from pumphouse.loader.work import Work, base_work
from pumphouse.model.table import DbInfo
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import LoadRule


def require_new(
    connection: TargetConnection, view: ArchiveView, rules: Rules, to: Tso | None, *, begun: bool = False
) -> Base:
    """The dump that a first load begins from; LoadError where it may not begin. Changes nothing.

    ``begun``: what lies there may be of an earlier try.
    """
    upto = view.end if to is None else to
    base = view.base_for(upto, rules.leaves_out_name)
    if base is None:
        if lacking := view.lacking(upto, rules.leaves_out_name):
            raise LoadError(
                f"target {connection.name} cannot begin: no dump up to {show(upto)} has the rows of {lacking.name}, "
                f"which a rule left out: {lacking.why}",
                hint=lacking_hint(lacking.name),
                target=connection.name,
            )
        raise LoadError(
            f"target {connection.name} has no checkpoint, and the archive has no dump to begin from",
            hint=advice.saying("take one: {}; or say when it was equal: {}", advice.dump(), advice.EQUAL_AT),
            target=connection.name,
        )
    # Of what is to come, too: as long as nothing is loaded, another name costs nothing.
    require_names(connection.settings, view, rules, base.ts, view.end)
    databases = [info.name for info in databases_of(view.timeline, base.ts)]
    places = rules.routes.places(databases)
    taken = [] if begun else [f"table {each}" for each in tables_in(connection, places)]
    taken += [] if begun else programs_in(connection, places)
    if taken:
        raise LoadError(
            f"target {connection.name} has no checkpoint but has {', '.join(taken[:5])}",
            hint=(advice.RESTORE_THIS, " replaces them; ", advice.EQUAL_AT, " keeps them"),
            target=connection.name,
        )
    unseen = [] if begun else unseen_in(connection, places)
    if unseen:
        raise LoadError(
            f"target {connection.name} has no checkpoint, and its user {connection.settings.user} does not see what "
            f"lies there: {', '.join(unseen[:5])}",
            hint=f"the load drops those databases: GRANT {', '.join(HOLDING)} ON each of them TO its user, or drop "
            "those that are empty",
            target=connection.name,
        )
    return base


def plan_first(given: Given, base: Base) -> Steps:
    """First load of a target, from a dump. Databases that hold something are refused before (`require_new`)."""
    view, rules, found = given.view, given.rules, given.standing.checkpoint
    # An earlier try may have begun from another dump, and made databases that this one lacks.
    earlier = [] if found is None else databases_of(view.timeline, found.ts)
    ours = rules.routes.places([info.name for info in databases_of(view.timeline, base.ts)])
    beside = [name for name in rules.routes.places([info.name for info in earlier]) if name not in ours]
    work = base_work(view, base, given.task, given.settings, rules)
    anew = fill(given, work, ours, BEGINNING, beside=beside)
    return Steps(from_ts=base.ts, to_ts=base.ts, anew=(*anew, Ready(reason="")))


def is_beginning(checkpoint: Checkpoint) -> bool:
    """Whether a first load was begun and has not ended."""
    return checkpoint.state is TargetState.INCOMPLETE and checkpoint.reason == BEGINNING


def plan_equal(given: Given, at: Tso) -> Steps:
    """The user says that the target equals the source at a moment: the load goes on from there."""
    kept, end, target = given.view.kept, given.view.end, address(given.target)
    start = kept.start
    if not start <= at <= end:
        raise LoadError(
            f"the archive covers {show(start)} to {show(end)}, not {show(at)}{kept.aside(at)}",
            hint=advice.saying(
                "was the target equal when the archive began: {}; of a later moment: {} until the archive covers it",
                advice.load(equal_at=str(int(start))),
                advice.SNAPSHOT,
            ),
            target=target,
        )
    if given.standing.checkpoint is not None:
        raise LoadError(f"target {target} has a checkpoint already", hint="leave --equal-at out", target=target)
    return Steps(from_ts=at, to_ts=at, before=(Equal(checkpoint=ready_at(given, at)),))


def ready_at(given: Given, at: Tso) -> Checkpoint:
    """What the target says when it has begun."""
    return Checkpoint(
        task=given.task,
        ts=at,
        state=TargetState.READY,
        reason="",
        cluster_id=given.view.genesis.cluster_id,
        plan_number=0,
    )


def fill(
    given: Given,
    base: Work,
    drop: Sequence[str],
    reason: str,
    *,
    beside: Sequence[str] = (),
    taken_up: tuple[LoadRule, ...] | None = None,
) -> tuple[Step, ...]:
    """Make the target what the source was when the dump became exact; whatever the named databases held is gone.

    Its checkpoint row says `incomplete` before the first change, and stays so: another step says when it is ready.

    Args:
        given: what it is planned from.
        base: the dump's plan.
        drop: databases, as they are called there.
        reason: why it is incomplete.
        beside: as in `Reset`.
        taken_up: rules of the settings, as in `Reset`.
    """
    view, ts, routes = given.view, base.plan.to_ts, given.rules.routes
    require_names(given.target, view, given.rules, ts, ts, drop)
    checkpoint = Checkpoint(
        task=base.plan.task,
        ts=ts,
        state=TargetState.INCOMPLETE,
        reason=reason,
        cluster_id=view.genesis.cluster_id,
        plan_number=0,
    )
    made = [replace(info, name=routes.database(info.name)) for info in databases_of(view.timeline, ts)]
    left_out = base.plan.skipped
    found = [version for version in in_creation_order(view.timeline, ts) if ".".join(version.name) not in left_out]
    objects = tuple(map(routes.version, found))
    return (
        Reset(checkpoint=checkpoint, beside=tuple(beside), rules=taken_up),
        *filled(base, Build(drop=tuple(drop), databases=tuple(made), objects=objects)),
        ForeignKeys(objects=objects),
    )


def databases_of(timeline: Timeline, ts: Tso) -> list[DbInfo]:
    """Databases at a moment, without the server's own."""
    return [info for info in timeline.databases_at(ts) if not is_system(info.name)]


def in_creation_order(timeline: Timeline, ts: Tso, dialect: Dialect | None = None) -> list[TableVersion]:
    """Objects at a moment: sequences, tables, then views by age; with ``dialect`` those that such a server can have."""
    found = [
        version
        for version in timeline.tables_at(ts)
        if not is_system(version.db)
        and not int(version.table.raw.get("temp_table_type") or 0)
        and not (version.table.is_sequence and dialect is Dialect.MYSQL)
    ]
    rank = {True: 0, False: 1}
    return sorted(found, key=lambda v: (2, v.table.id) if v.table.is_view else (rank[v.table.is_sequence], 0))


def there(connection: TargetConnection, databases: Sequence[str]) -> list[str]:
    """Those of these databases that the target has, or has under a name that differs in case alone."""
    found = {str(name).casefold() for (name,) in connection.query("SHOW DATABASES")}
    return [name for name in databases if name.casefold() in found]


def tables_in(connection: TargetConnection, databases: Sequence[str]) -> list[str]:
    """Tables that lie in these databases on the target."""
    if not databases:
        return []
    marks = ",".join(["%s"] * len(databases))
    rows = connection.query(
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ({marks})"  # noqa: S608
        " ORDER BY 1, 2",
        databases,
    )
    return [f"{db}.{name}" for db, name in rows]


def programs_in(connection: TargetConnection, databases: Sequence[str]) -> list[str]:
    """Routines and events that lie in these databases on the target, as far as its user sees them."""
    found = there(connection, databases)
    if not found:
        return []
    marks = ",".join(["%s"] * len(found))
    rows = connection.query(
        "SELECT routine_schema, LOWER(routine_type), routine_name FROM information_schema.routines"  # noqa: S608
        f" WHERE routine_schema IN ({marks})"
        " UNION ALL SELECT event_schema, 'event', event_name FROM information_schema.events"
        f" WHERE event_schema IN ({marks}) ORDER BY 1, 2, 3",
        [*found, *found],
    )
    return [f"{kind} {db}.{name}" for db, kind, name in rows]


def unseen_in(connection: TargetConnection, databases: Sequence[str]) -> list[str]:
    """What may lie in these databases on the target and its user does not see; a TiDB has no such things."""
    found = [] if connection.dialect is Dialect.TIDB else there(connection, databases)
    grants = [str(row[0]) for row in connection.query("SHOW GRANTS")] if found else []
    return [f"{each} to see them" for db in found for each in hidden(grants, db, HOLDING)]
