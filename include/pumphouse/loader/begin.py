"""Where a target begins: empty, made to the schema of a dump's moment, filled with the dump and the log over it.

The same steps serve a restore, which first throws away what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pumphouse.archive.base import Base
from pumphouse.archive.view import ArchiveView
from pumphouse.errors import DdlRefused, LoadError
from pumphouse.loader import state
from pumphouse.loader.ddl import forget_ddl
from pumphouse.loader.fence import Ownership
from pumphouse.loader.names import require_names
from pumphouse.loader.rules import Rules, lacking_hint
from pumphouse.loader.run import Loader
from pumphouse.loader.state import BEGINNING, Checkpoint, TargetState
from pumphouse.loader.target import NO_SUCH_EXPRESSION, StatementFailed, TargetConnection
from pumphouse.loader.work import Work, base_work
from pumphouse.model.table import DbInfo
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.generated import notes_of
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.table_sql import add_foreign_keys, create_database, create_object
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion


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
            hint="take one: `pumphouse archive dump`; or say from where the target is equal to the source: "
            "`pumphouse load --equal-at TIME`",
            target=connection.name,
        )
    # Of what is to come, too: as long as nothing is loaded, another name costs nothing.
    require_names(connection, view, rules, base.ts, view.end)
    databases = [info.name for info in databases_of(view.timeline, base.ts)]
    taken = [] if begun else tables_in(connection, rules.routes.places(databases))
    if taken:
        raise LoadError(
            f"target {connection.name} has no checkpoint but has tables: {', '.join(taken[:5])}",
            hint="`pumphouse restore --into target --to …` replaces them; `pumphouse load --equal-at TIME` keeps them",
            target=connection.name,
        )
    return base


def begin_from_base(loader: Loader, found: Checkpoint | None, to: Tso | None) -> Checkpoint:
    """First load of a target, from the newest dump at or below ``to``.

    Refuses databases that have tables already, unless this very step was killed before.
    """
    connection, view, rules = loader.connection, loader.view, loader.rules
    base = require_new(connection, view, rules, to, begun=found is not None)
    work = base_work(view, base, loader.task, loader.settings, rules)
    # An earlier try may have begun from another dump, and made databases that this one lacks.
    times = [base.ts] if found is None else [base.ts, found.ts]
    databases = dict.fromkeys(info.name for ts in times for info in databases_of(view.timeline, ts))
    checkpoint = build(loader, work, rules.routes.places(databases), BEGINNING)
    state.set_state(connection, loader.owner, loader.task, TargetState.READY, "")
    return replace(checkpoint, state=TargetState.READY, reason="")


def is_beginning(checkpoint: Checkpoint) -> bool:
    """Whether a first load was begun and has not ended."""
    return checkpoint.state is TargetState.INCOMPLETE and checkpoint.reason == BEGINNING


def begin_equal(connection: TargetConnection, owner: Ownership, task: str, view: ArchiveView, at: Tso) -> Checkpoint:
    """The user says that the target equals the source at a moment: the load goes on from there."""
    start, end = view.genesis.ts, view.end
    if not start <= at <= end:
        raise LoadError(
            f"the archive covers {show(start)} to {show(end)}, not {show(at)}",
            hint=f"was the target equal when the archive began: `pumphouse load --equal-at {int(start)}`; of a later "
            "moment: `pumphouse snapshot` first, until the archive covers it",
            target=connection.name,
        )
    if state.read(connection, task) is not None:
        raise LoadError(
            f"target {connection.name} has a checkpoint already", hint="leave --equal-at out", target=connection.name
        )
    checkpoint = Checkpoint(
        task=task, ts=at, state=TargetState.READY, reason="", cluster_id=view.genesis.cluster_id, plan_number=0
    )
    state.write(connection, owner, checkpoint)
    return checkpoint


def build(loader: Loader, base: Work, databases: Sequence[str], reason: str) -> Checkpoint:
    """Make the target what the source was when the dump became exact; whatever the named databases held is gone.

    ``databases``: as they are called there.
    The checkpoint row says `incomplete` before the first change, and stays so: who called says when it is ready.
    """
    connection, view = loader.connection, loader.view
    ts, routes = base.plan.to_ts, loader.rules.routes
    require_names(connection, view, loader.rules, ts, ts, databases)
    checkpoint = Checkpoint(
        task=loader.task,
        ts=ts,
        state=TargetState.INCOMPLETE,
        reason=reason,
        cluster_id=view.genesis.cluster_id,
        plan_number=0,
    )
    state.reset(connection, loader.owner, checkpoint)
    forget_ddl(connection)
    dialect = Dialect.of_version(str(connection.value("SELECT VERSION()")))
    for name in there(connection, databases):
        connection.execute(f"DROP DATABASE IF EXISTS {quote(name)}")
    for info in databases_of(view.timeline, ts):
        connection.execute(create_database(replace(info, name=routes.database(info.name)), dialect))
    loader.make_databases()
    objects = in_creation_order(view.timeline, ts, dialect)
    left_out = base.plan.skipped
    objects = [routes.version(version) for version in objects if ".".join(version.name) not in left_out]
    for version in objects:
        if not version.table.is_view:
            with loader.rules.advising(view.timeline):
                loader.report.notes += create(connection, version, dialect)
    loader.report.notes += _create_views(connection, [v for v in objects if v.table.is_view], dialect)
    begun = loader.begin(base)
    loader.run(begun)
    loader.report.notes += create_foreign_keys(connection, objects)
    return replace(checkpoint, plan_number=begun.plan.number)


def databases_of(timeline: Timeline, ts: Tso) -> list[DbInfo]:
    """Databases at a moment, without the server's own."""
    return [info for info in timeline.databases_at(ts) if not is_system(info.name)]


def in_creation_order(timeline: Timeline, ts: Tso, dialect: Dialect) -> list[TableVersion]:
    """Objects at a moment: sequences, tables, then views by age."""
    found = [
        version
        for version in timeline.tables_at(ts)
        if not is_system(version.db)
        and not int(version.table.raw.get("temp_table_type") or 0)
        and not (version.table.is_sequence and dialect is Dialect.MYSQL)
    ]
    rank = {True: 0, False: 1}
    return sorted(found, key=lambda v: (2, v.table.id) if v.table.is_view else (rank[v.table.is_sequence], 0))


def create(connection: TargetConnection, version: TableVersion, dialect: Dialect) -> list[str]:
    """Create a table or sequence; DdlRefused names it. Returns notes on generated columns that are otherwise there."""
    statement = create_object(version.db, version.table, dialect)
    plainer = create_object(version.db, version.table, dialect, bare=True)
    bare = False
    try:
        try:
            connection.execute(statement)
        except StatementFailed as error:
            if error.code not in NO_SUCH_EXPRESSION or plainer == statement:
                raise
            bare = True
            connection.execute(plainer)
    except StatementFailed as error:
        if error.condition:
            raise
        raise DdlRefused(
            f"target {connection.name} refused to create {qualified(*version.name)}: {error.message}",
            code=error.code,
            statement=error.statement,
            table=".".join(version.name),
        ) from error
    return notes_of(version.table, dialect, bare=bare)


def _create_views(connection: TargetConnection, views: Sequence[TableVersion], dialect: Dialect) -> list[str]:
    """Create views whatever the order they read each other in; returns a note on each that had to be left out.

    Age says little: CREATE OR REPLACE gives a view a new id, and those that read it keep their older ones. A source
    also keeps views whose tables are gone; no server would create them, and nothing that can be read is lost.
    """
    refused: dict[tuple[str, str], str] = {}
    waiting = list(views)
    while waiting:
        refused = {}
        for view in waiting:
            try:
                connection.execute(create_object(view.db, view.table, dialect))
            except StatementFailed as error:
                if error.of_the_server:
                    raise
                refused[view.name] = error.message
        if len(refused) == len(waiting):
            break
        waiting = [view for view in waiting if view.name in refused]
    return [f"the view {qualified(*name)} is left out: {reason}" for name, reason in refused.items()]


def create_foreign_keys(connection: TargetConnection, objects: Sequence[TableVersion]) -> list[str]:
    """After the rows, which the source has checked; returns a note on each that had to be left out."""
    notes = []
    for version in objects:
        for statement in add_foreign_keys(version.db, version.table, connection.dialect):
            try:
                connection.execute(statement)
            except StatementFailed as error:
                if error.condition:
                    raise
                notes.append(f"a foreign key of {qualified(*version.name)} is left out: {error.message}")
    return notes


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
