"""Where a target begins: empty, made to the schema of genesis, filled with the dump that the archive holds.

The same steps serve a restore, which first throws away what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from include.archive.genesis import Genesis
from include.errors import LoadError
from include.loader import state
from include.loader.ddl import forget_ddl
from include.loader.plan import Mode
from include.loader.run import Loader, databases_between
from include.loader.state import Checkpoint, TargetState
from include.loader.target import StatementFailed, TargetConnection
from include.model.table import DbInfo
from include.model.tso import Tso, show
from include.schema.actions import is_system
from include.schema.dialect import Dialect
from include.schema.ident import qualified, quote
from include.schema.table_sql import create_database, create_object
from include.schema.timeline import TableVersion, Timeline

BEGINNING = "the first load has not ended"


def begin_from_base(loader: Loader) -> Checkpoint:
    """First load of a target: refuses databases that have tables already, unless this very step was killed before."""
    connection = loader.connection
    found = state.read(connection, loader.task)
    databases = databases_of(loader.timeline, loader.archive.genesis().ts)
    resumed = found is not None and found.state is TargetState.INCOMPLETE and found.reason == BEGINNING
    if lacks_dump(loader.archive.genesis(), loader.timeline):
        raise LoadError(
            f"target {connection.name} has no checkpoint, and the archive has no dump to begin from",
            hint="say from where it is equal to the source: `pumphouse load --equal-at TIME`",
            target=connection.name,
        )
    # Of what is to come, too: as long as nothing is loaded, another name costs nothing.
    loader.require_own_schema(databases_between(loader.timeline, loader.archive.genesis().ts, loader.archive.end()))
    if not resumed:
        taken = tables_in(connection, databases)
        if taken:
            raise LoadError(
                f"target {connection.name} has no checkpoint but has tables: {', '.join(taken[:5])}",
                hint="`pumphouse restore --to …` replaces them; `pumphouse load --equal-at TIME` keeps them",
                target=connection.name,
            )
    return build(loader, [info.name for info in databases], BEGINNING)


def begin_equal(loader: Loader, at: Tso) -> Checkpoint:
    """The user says that the target equals the source at a moment: the load goes on from there."""
    connection, archive = loader.connection, loader.archive
    start, end = archive.genesis().ts, archive.end()
    if not start <= at <= end:
        raise LoadError(
            f"the archive covers {show(start)} to {show(end)}, not {show(at)}",
            hint=f"was the target equal when the archive began: `pumphouse load --equal-at {int(start)}`; of a later "
            "moment: `pumphouse snapshot` first, until the archive covers it",
            target=connection.name,
        )
    if state.read(connection, loader.task) is not None:
        raise LoadError(
            f"target {connection.name} has a checkpoint already", hint="leave --equal-at out", target=connection.name
        )
    checkpoint = Checkpoint(
        task=loader.task, ts=at, state=TargetState.READY, reason="", cluster_id=archive.cluster_id, plan_number=0
    )
    state.write(connection, loader.owner, checkpoint)
    return checkpoint


def build(loader: Loader, databases: Sequence[str], reason: str, *, keep_incomplete: bool = False) -> Checkpoint:
    """Make the target what the source was at genesis; whatever the named databases held is gone.

    The checkpoint row says `incomplete` before the first change; it stays so with ``keep_incomplete``, because a
    restore goes on from here.
    """
    connection, genesis = loader.connection, loader.archive.genesis()
    loader.require_own_schema([*databases, *(info.name for info in databases_of(loader.timeline, genesis.ts))])
    checkpoint = Checkpoint(
        task=loader.task,
        ts=genesis.ts,
        state=TargetState.INCOMPLETE,
        reason=reason,
        cluster_id=loader.archive.cluster_id,
        plan_number=0,
    )
    state.reset(connection, loader.owner, checkpoint)
    forget_ddl(connection)
    dialect = Dialect.of_version(str(connection.value("SELECT VERSION()")))
    for name in databases:
        connection.execute(f"DROP DATABASE IF EXISTS {quote(name)}")
    for info in databases_of(loader.timeline, genesis.ts):
        connection.execute(create_database(info, dialect))
    objects = in_creation_order(loader.timeline, genesis.ts, dialect)
    for version in objects:
        if not version.table.is_view:
            connection.execute(create_object(version.db, version.table, dialect))
    loader.report.notes += _create_views(connection, [v for v in objects if v.table.is_view], dialect)
    loader.run_plan(loader.begin(loader.plan_of(Mode.BASE, genesis.ts, genesis.ts)))
    if not keep_incomplete:
        state.set_state(connection, loader.owner, loader.task, TargetState.READY, "")
    found = state.read(connection, loader.task)
    if found is None:
        raise LoadError("the checkpoint row is gone", target=connection.name)
    loader.report.from_ts = genesis.ts
    return found


def lacks_dump(genesis: Genesis, timeline: Timeline) -> bool:
    """Whether rows may be missing at genesis: there is no dump, and there were tables that could have had some."""
    return genesis.base is None and any(
        not is_system(version.db)
        and not version.table.is_view
        and not version.table.is_sequence
        and not int(version.table.raw.get("temp_table_type") or 0)
        for version in timeline.tables_at(genesis.ts)
    )


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
                refused[view.name] = error.message
        if len(refused) == len(waiting):
            break
        waiting = [view for view in waiting if view.name in refused]
    return [f"the view {qualified(*name)} is left out: {reason}" for name, reason in refused.items()]


def tables_in(connection: TargetConnection, databases: list[DbInfo]) -> list[str]:
    """Tables that lie in these databases on the target."""
    if not databases:
        return []
    marks = ",".join(["%s"] * len(databases))
    rows = connection.query(
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ({marks})"  # noqa: S608
        " ORDER BY 1, 2",
        [info.name for info in databases],
    )
    return [f"{db}.{name}" for db, name in rows]
