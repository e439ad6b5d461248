"""Before a restore changes anything: is it the right server, can it take the plan, and what does it hold?

Reads only, on the target and on what it is compared with; the one thing it takes is a named lock on the target, for a
moment. `RestorePlan` says what is read and done; this says whether that server may get it. A restore of parts drops
nothing, and any server may get it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pumphouse import advice
from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.errors import ConfigError, LoadError, RestoreError, SchemaError
from pumphouse.loader import state
from pumphouse.loader.apart import is_cluster, same_server, server_name, shared_with, sources
from pumphouse.loader.begin import databases_of, in_creation_order, programs_in, tables_in, there, unseen_in
from pumphouse.loader.grants import LOADING, missing_privileges
from pumphouse.loader.rules import ddl_hint, places_of_loads
from pumphouse.loader.state import TargetState
from pumphouse.loader.target import StatementFailed, TargetConnection, address
from pumphouse.loader.unfit import of_the_server, require_engine
from pumphouse.model.table import DbInfo
from pumphouse.model.tso import show
from pumphouse.mysql.connection import named_in
from pumphouse.restore.parts import TASK, PartsPlan
from pumphouse.restore.plan import RestorePlan
from pumphouse.schema.actions import is_system
from pumphouse.schema.dialect import Dialect, charset_sql
from pumphouse.schema.ident import quote
from pumphouse.schema.render import render
from pumphouse.schema.route import Routes
from pumphouse.schema.table_sql import create_object, left_out
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import NamedTarget, ServerSettings, Settings, TargetSettings

Into = Literal["restore_target", "target"]
# A restore of parts goes there, too.
Place = Literal["restore_target", "target", "source"]

# What the statements of a load need: NOT IGNORED of an index, RENAME COLUMN, CHECK constraints that are enforced.
_OLDEST = {Dialect.MARIADB: (10, 6), Dialect.MYSQL: (8, 0, 16)}
_NAMED = 5
# What a user needs on a database that a table is renamed into, which gets its foreign keys there.
_PLACING = ("SELECT", "CREATE", "INSERT", "ALTER", "INDEX")  # a copy for a capture is renamed there, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A database that is dropped and has something in it; ``rows`` as the server guesses them."""

    database: str
    tables: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """What was found of the server that a restore replaces.

    Args:
        server: its name, as it has to be typed where it holds something: ``HOST:PORT``, or the socket's path.
        version: what it says of itself.
        holds: databases with tables in them that would be dropped.
        programs: routines and events of those that would be dropped, and where some may be that the user does not see.
        loads: what stands there of loads, in words: a restore forgets it.
        others: those of them that are of another cluster or another load: nothing of this one makes them anew.
        lacks: of a restore of parts, what its tables lack there or have otherwise, in words.
        notes: what could not be found out, one sentence each.
        beside: databases that loads made there by other rules, which the plan does not name: they are dropped, too.
    """

    server: str
    version: str
    holds: tuple[Dropped, ...]
    loads: tuple[str, ...]
    notes: tuple[str, ...]
    beside: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def require_named(self, typed: str, *, follow: bool = False, own: bool = False) -> None:
        """RestoreError unless the server holds nothing that is lost, or somebody typed its name.

        ``follow``: the state of another load counts, too. ``own``: what it holds is this restore's own, from a run that
        has not ended.
        """
        if typed and typed != self.server:
            raise RestoreError(
                f"{typed} is not the server that would be replaced, which is {self.server}",
                hint=f"look at the settings; is it the right one, type --replace {self.server}",
                server=self.server,
            )
        lost = self.lost(follow=follow)
        if lost and not typed and not own:
            raise RestoreError(
                f"{self.server} has data that would be dropped: {lost}",
                hint=f"if it may go, type the server's name: --replace {self.server}",
                server=self.server,
            )

    def lost(self, *, follow: bool = False) -> str:
        """What goes, in words; '' = nothing."""
        return ", ".join(filter(None, (self.held(), *(self.loads if follow else self.others))))

    def held(self) -> str:
        """``shop (12 tables, about 3,400 rows), …``."""
        databases = [
            f"{each.database} ({each.tables} table{'s' * (each.tables != 1)}, about {each.rows:,} rows)"
            for each in self.holds
        ]
        more = len(self.programs) - _NAMED
        programs = [*self.programs[:_NAMED], *([f"{more} more routines and events"] if more > 0 else [])]
        return ", ".join([*databases, *programs])

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return asdict(self)


def named_target(settings: Settings, into: Place) -> TargetSettings:
    """The section's server; ConfigError where it names no address or no user: nothing is taken for one."""
    named: ServerSettings = getattr(settings, into)
    target = named if isinstance(named, TargetSettings) else TargetSettings(**dict(named))
    said = named.model_fields_set
    missing = [] if target.unix_socket or ("host" in said and target.host) else ["host"]
    missing += [] if "user" in said and target.user else ["user"]
    if missing:
        raise ConfigError(
            f"[{into}] names no {' and no '.join(missing)}: the server of a restore is never guessed",
            hint=f'write into pumphouse.toml: [{into}] host = "…", port = 3306, user = "…", password = "…", one a '
            f"line; or set PUMPHOUSE_{into.upper()}__HOST and so on",
            section=into,
        )
    return target


def require_followed(settings: Settings, into: Into) -> None:
    """ConfigError where no load would go on with the section's server."""
    if into == "target":
        return
    said = settings.restore_target
    of = said.model_dump(mode="json", exclude_unset=True, exclude={"password", "password_file"})
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in of.items()]
    raise ConfigError(
        "[restore_target] is no target of loads, so nothing would keep it up to date",
        hint="\n".join(
            [
                "give its server a section of targets, in place of [restore_target], and name that: --into replica",
                "",
                "[targets.replica]",
                *lines,
                'password = "…"',
                "",
            ]
        ),
    )


def check_target(settings: Settings, into: Into, plan: RestorePlan, view: ArchiveView, task: str) -> TargetCheck:
    """Look at the target, and change nothing.

    Args:
        settings: every server that they name: the target is compared with the others.
        into: the section whose server is replaced.
        plan: what would be carried out.
        view: the archive that the plan was made from.
        task: the load that goes on from there.

    Raises:
        ConfigError: the section names no server.
        TargetUnavailable: the target does not answer, or does not let us in.
        RestoreError: it is the source, or what loads keep up to date; or it cannot take the plan, with every reason.
    """
    target = named_target(settings, into)
    with TargetConnection.open(target, section=into) as connection:
        notes = list(_tell_apart(connection, settings, into, plan, view))
        version = str(connection.value("SELECT VERSION()"))
        dialect = Dialect.of_version(version)
        _require_none(
            target,
            *_version(version, dialect),
            *_server(connection),
            *_privileges(connection, [connection.settings.schema_name, *_touched(connection, plan)], LOADING),
            *_schema(connection, plan, view, dialect),
        )
        beside = places_beside(connection, plan, view)
        dropped = [*plan.dropped(connection.settings.schema_name), *beside]
        known = _loads(connection)
        return TargetCheck(
            server=server_name(target),
            version=version,
            holds=_held(connection, dropped),
            loads=tuple(known.values()),
            notes=tuple(notes),
            beside=tuple(beside),
            programs=(*programs_in(connection, dropped), *(f"maybe {each}" for each in unseen_in(connection, dropped))),
            others=tuple(said for key, said in known.items() if key != (view.genesis.cluster_id, task)),
        )


def check_parts(connection: TargetConnection, plan: PartsPlan, view: ArchiveView, cluster: str) -> TargetCheck:
    """Look whether a server can take a restore of parts, and change nothing; RestoreError with every reason.

    ``cluster``: URL of the archive's, as the settings have it.
    """
    version = str(connection.value("SELECT VERSION()"))
    dialect = Dialect.of_version(version)
    found = in_creation_order(view.timeline, plan.base, dialect)
    tables = [each for each in found if has_rows(each) and not plan.rules.leaves_out(each)]
    _require_none(
        connection.settings,
        *_version(version, dialect),
        *_server(connection),
        *_own_database(connection),
        *_of_a_tidb(connection, plan, dialect, cluster),
        *_privileges(connection, [connection.settings.schema_name], (*LOADING, "CREATE TEMPORARY TABLES")),
        *_privileges(connection, plan.made, (*_PLACING, "DROP") if plan.followed else _PLACING),
        *_statements(connection, plan, plan.rules.routes, plan.infos, tables, dialect),
        *_one_name(connection, set(plan.places)),
    )
    return TargetCheck(
        server=server_name(connection.settings),
        version=version,
        holds=(),
        loads=(),
        notes=(),
        lacks=tuple(note for each in plan.restored for note in left_out(each.table, dialect)),
    )


def require_own_database(connection: TargetConnection) -> None:
    """RestoreError where the database that a restore of parts makes and drops is somebody else's."""
    _require_none(connection.settings, *_own_database(connection))


def _own_database(connection: TargetConnection) -> Iterator[str]:
    """Whether the database that a restore of parts makes and drops is somebody else's."""
    own = connection.settings.schema_name
    other = "give the section another schema_name"
    tables = {name.partition(".")[2].lower() for name in tables_in(connection, [own])}
    if "fence" not in tables and (tables or programs_in(connection, [own])):
        yield f"it has a database {own} that is none of a restore: drop it if nobody needs it, or {other}"
    elif tasks := {each.task for each in state.read_known(connection)} - {TASK}:
        yield f"its database {own} keeps the state of the load {', '.join(sorted(tasks))}: {other}"


def _of_a_tidb(connection: TargetConnection, plan: PartsPlan, dialect: Dialect, cluster: str) -> Iterator[str]:
    if dialect is Dialect.TIDB and is_cluster(connection, cluster):
        yield (
            f"it is a TiDB of the archive's cluster {cluster}: its binlogs would bring the copy, and what the restore "
            "keeps of itself, to every target; restore onto another server, and copy the rows from there"
        )
    if dialect is Dialect.TIDB and len(plan.places) > 1:
        yield (
            "it is a TiDB, which lists tables twice after one statement renames several into another database "
            "(docs/interop.md): restore one table at a time"
        )


def _require_none(target: TargetSettings, *problems: str) -> None:
    if problems:
        raise RestoreError(
            f"{address(target)} cannot take this restore: {'; '.join(problems)}",
            hint=(
                "nothing was changed; put it right, then ",
                advice.restore(into=advice.THIS, dry_run=True),
                " looks again",
            ),
            problems=list(problems),
        )


# -- which server it is -----------------------------------------------------------------------------------------------


def _tell_apart(
    connection: TargetConnection, settings: Settings, into: Into, plan: RestorePlan, view: ArchiveView
) -> Iterator[str]:
    """RestoreError when the target has what must stay; a note for each server that it could not be compared with."""
    check: advice.Hint = ("correct ", named_in(into))
    known = list(sources(settings.source, settings.history))
    for what, section, source in known:
        yield from _refuse(connection, what, source, same_server(connection, source, section), check)
    if not known and not settings.cluster.url.startswith("pd://"):  # of that one, `is_cluster` knows the servers
        yield "the source: no settings name it ([source], or a table as schema.history)"
    others: list[tuple[str, str, NamedTarget, advice.Hint]] = []
    if into == "restore_target" and "host" in settings.target.model_fields_set | _socket(settings.target):
        means = advice.joined(check, ("to build what loads keep up to date anew: ", advice.restore(into=advice.TARGET)))
        others.append(("the target of loads, [target]", advice.TARGET, settings.with_rules, means))
    for name, each in settings.targets.items():
        section = "target" if name == "target" else f"targets.{name}"
        others.append((f"another target of loads, [{section}]", section, each, check))
    if not others and into == "restore_target":
        yield "the targets of loads: no settings name one"
    dropped = [*plan.dropped(connection.settings.schema_name), *places_beside(connection, plan, view)]
    for what, section, other, hint in others:
        shared = shared_with(
            connection, other, section, cluster_id=view.genesis.cluster_id, names=view.databases, databases=dropped
        )
        yield from _refuse(connection, what, other, shared, hint)
    if is_cluster(connection, settings.cluster.url):
        raise RestoreError(
            f"{connection.name} is a TiDB of the source's cluster {settings.cluster.url}. Nothing was changed",
            hint=check,
        )


def _refuse(
    connection: TargetConnection, what: str, other: ServerSettings, found: tuple[str, str], hint: advice.Hint
) -> Iterator[str]:
    why, note = found
    if why:
        raise RestoreError(
            f"{connection.name} is {what} ({server_name(other)}): {why}. Nothing was changed",
            hint=hint,
            target=connection.name,
        )
    if note:
        yield f"{what} ({server_name(other)}): {note}"


def _socket(target: TargetSettings) -> set[str]:
    return {"host"} if target.unix_socket else set()


# -- whether it can take the plan -------------------------------------------------------------------------------------


def _version(version: str, dialect: Dialect) -> Iterator[str]:
    oldest = _OLDEST.get(dialect)
    numbers = re.findall(r"(\d+)\.(\d+)\.(\d+)", version)
    if oldest and numbers and tuple(map(int, numbers[0])) < oldest:
        yield f"it is {version}; {dialect} from {'.'.join(map(str, oldest))} on is supported"


def _server(connection: TargetConnection) -> Iterator[str]:
    yield from (f"{what}: {remedy}" for what, remedy in of_the_server(connection))
    # MariaDB 12 has words here; OFF and 0 both mean no.
    if str(connection.value("SELECT @@global.read_only")).upper() not in ("0", "OFF"):
        yield "it is read-only: SET GLOBAL read_only = OFF, if it is no replica"
    try:
        require_engine(connection)
    except LoadError as error:
        yield f"{error.message}: {error.hint}"


def _privileges(connection: TargetConnection, databases: Sequence[str], wanted: Sequence[str]) -> Iterator[str]:
    grants = [str(row[0]) for row in connection.query("SHOW GRANTS")]
    for database in dict.fromkeys(databases):
        missing = missing_privileges(grants, database, wanted)
        if missing:
            names, on = ", ".join(missing), f"{quote(database)}.*"
            yield f"user {connection.settings.user} lacks {names} there: GRANT {names} ON {on} TO …"


def _touched(connection: TargetConnection, plan: RestorePlan) -> list[str]:
    """Databases that are made, and those that are dropped because they are there."""
    dropped = plan.dropped(connection.settings.schema_name)
    return list(dict.fromkeys([*plan.made, *there(connection, dropped)]))


def _schema(connection: TargetConnection, plan: RestorePlan, view: ArchiveView, dialect: Dialect) -> Iterator[str]:
    """Names, statements and collations of everything that the plan makes there."""
    own, routes = connection.settings.schema_name, plan.routes
    clash = next((name for name in plan.made if name.casefold() == own.casefold()), None)
    if clash is not None:
        yield (
            f"the source has a database {clash!r}, and the schema {own!r} keeps the state of the load there: set "
            "schema_name in the same section to a name of its own, or give the database another name there by a rule "
            "(`route`)"
        )
    try:
        for ts in (plan.base, plan.to):
            names = [version.name for version in view.timeline.tables_at(ts)]
            routes.require_apart(plan.sources, names)
    except ConfigError as error:
        yield f"{error.message}: {error.hint}"
    databases = databases_of(view.timeline, plan.base)
    tables = in_creation_order(view.timeline, plan.base, dialect)
    yield from _statements(connection, plan, routes, databases, tables, dialect)


def _statements(
    connection: TargetConnection,
    plan: RestorePlan,
    routes: Routes,
    made: Sequence[DbInfo],
    first: Sequence[TableVersion],
    dialect: Dialect,
) -> Iterator[str]:
    """Of databases and tables that are made, and of the DDLs that follow: what cannot be said, or is unknown there."""
    own, needed = connection.settings.schema_name, set[str]()
    databases, tables = list(made), list(first)
    for event, rulings in ((event, work.rulings) for work in plan.works for event in work.events):
        if event.commit_ts in rulings:
            continue
        try:
            render(routes.event(event), dialect, keep_schema=own)
        except SchemaError as error:
            way = advice.worded(ddl_hint(event.job.id))
            yield f"the DDL of job {event.job.id} ({event.action.name}): {error.message}; {way}"
        databases += [event.db_after] if event.db_after is not None else []
        tables += [change.after for change in event.changes if change.after is not None]
    for info in databases:
        needed |= _collation(dialect, info.charset, info.collate)
    for version in (each for each in tables if not is_system(each.db)):
        try:
            create_object(version.db, routes.version(version).table, dialect)
        except SchemaError as error:
            yield f"table {version.db}.{version.table.name}: {error.message}"
            continue
        checked = not version.table.of_tidb
        needed |= _collation(dialect, version.table.charset, version.table.collate, checked=checked)
        for column in version.table.public_columns:
            needed |= _collation(dialect, column.type.charset, column.type.collate, checked=checked)
    lacking = sorted(needed - _known_collations(connection))
    if lacking:
        yield f"it has no collation {', '.join(lacking)}: use a newer server"
    yield from _one_name(connection, {routes.table(*version.name) for version in tables})


def _collation(dialect: Dialect, charset: str, collate: str, *, checked: bool = False) -> set[str]:
    """The collation that the target is told; none where it is told none."""
    try:
        words = charset_sql(dialect, charset, collate, checked=checked).split()
    except SchemaError:
        return set()  # the statement itself says so, where it is used
    return {words[-1].replace("utf8mb3_", "utf8_")} if "COLLATE" in words else set()


def _known_collations(connection: TargetConnection) -> set[str]:
    try:
        # MariaDB lists those of several character sets under a short name elsewhere.
        rows = connection.query(
            "SELECT full_collation_name FROM information_schema.collation_character_set_applicability"
        )
    except StatementFailed:
        rows = connection.query("SELECT collation_name FROM information_schema.collations")
    return {str(name).replace("utf8mb3_", "utf8_") for (name,) in rows}


def _one_name(connection: TargetConnection, names: set[tuple[str, str]]) -> Iterator[str]:
    """Objects that the source tells apart by case and a server that folds names would make one of."""
    if not int(connection.value("SELECT @@lower_case_table_names")):
        return
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for name in sorted(names):
        first = seen.setdefault((name[0].lower(), name[1].lower()), name)
        if first != name:
            yield f"it takes {'.'.join(first)} and {'.'.join(name)} for one: lower_case_table_names must be 0 there"


# -- what it holds ----------------------------------------------------------------------------------------------------


def places_beside(connection: TargetConnection, plan: RestorePlan, view: ArchiveView) -> list[str]:
    """Databases of loads that routed otherwise, which the plan does not name; never that of our own tables."""
    places = places_of_loads(connection, view.genesis.cluster_id, view.databases)
    own = connection.settings.schema_name.casefold()
    return [name for name in places if name not in plan.databases and name.casefold() != own]


def _loads(connection: TargetConnection) -> dict[tuple[int, str], str]:
    """Loads that have come somewhere there, by cluster and task; an incomplete one has nothing that could be lost."""
    return {
        (each.cluster_id, each.task): f"the state of the load {each.task}, {each.state} at {show(each.ts)} of cluster "
        f"{each.cluster_id}"
        for each in state.read_known(connection)
        if each.state is not TargetState.INCOMPLETE
    }


def _held(connection: TargetConnection, databases: Sequence[str]) -> tuple[Dropped, ...]:
    """Those of the databases that have a table or a view; without regard to case, as some servers drop them so."""
    wanted = {name.casefold() for name in databases}
    rows = connection.query(
        "SELECT table_schema, COUNT(*), SUM(COALESCE(table_rows, 0)) FROM information_schema.tables"
        " GROUP BY table_schema ORDER BY 1"
    )
    return tuple(
        Dropped(database=str(name), tables=int(tables), rows=int(count or 0))
        for name, tables, count in rows
        if str(name).casefold() in wanted
    )
