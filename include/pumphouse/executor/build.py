"""What makes databases, tables, views and foreign keys on a target, and gives them their places; each may run twice."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from pumphouse.errors import BinlogError, DdlRefused, LoadError
from pumphouse.executor.places import copied_beside, databases_there, not_waiting, require_free, taken
from pumphouse.loader.begin import tables_in, there
from pumphouse.loader.ddl import forget_ddl, forget_ddl_of
from pumphouse.loader.rules import Rules
from pumphouse.loader.steps import Build, ForeignKeys, HandOver, Leave
from pumphouse.loader.target import NO_SUCH_EXPRESSION, StatementFailed, TargetConnection
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.table_sql import (
    create_database,
    create_object,
    foreign_keys,
    index_sql,
    late_indexes,
    left_out,
)
from pumphouse.schema.versions import TableVersion

log = structlog.get_logger()

_INDEXES = "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s"


def make(
    connection: TargetConnection, task: str, rules: Rules, step: Build | ForeignKeys | HandOver | Leave
) -> list[str]:
    """Carry a step out. Returns notes on what is otherwise than at the source."""
    match step:
        case Build():
            return build(connection, task, rules, step)
        case ForeignKeys(objects=objects):
            return create_foreign_keys(connection, objects)
        case HandOver():
            return hand_over(connection, step)
        case Leave():
            leave(connection)
    return []


def build(connection: TargetConnection, task: str, rules: Rules, step: Build) -> list[str]:
    """Drop what the step names, make what it makes; DdlRefused names an object. Returns notes on what is otherwise."""
    dialect = connection.dialect
    if step.ddls is None:
        forget_ddl(connection)
    else:
        forget_ddl_of(connection, task, step.ddls)
    for name in there(connection, step.drop):
        connection.execute(f"DROP DATABASE IF EXISTS {quote(name)}")
    for info in step.databases:
        connection.execute(create_database(info, dialect))
    make_databases(connection, rules)
    for table in step.drop_tables:
        with not_waiting(connection):
            connection.execute(f"DROP TABLE IF EXISTS {qualified(*table)}")
    notes: list[str] = []
    objects = [each for each in step.objects if not (each.table.is_sequence and dialect is Dialect.MYSQL)]
    for version in objects:
        if not version.table.is_view:
            notes += _create(connection, version)
    notes += _create_views(connection, [each for each in objects if each.table.is_view])
    # A view may name an index, and a foreign key of a table that stays may need one: so they are there until now.
    for version in step.late:
        _drop_late(connection, version)
    return notes


def make_databases(connection: TargetConnection, rules: Rules) -> None:
    """Those that rules of tables name, which no DDL of the source makes."""
    for name in sorted(rules.routes.beside):
        connection.execute(f"CREATE DATABASE IF NOT EXISTS {quote(name)}")


def _create(connection: TargetConnection, version: TableVersion) -> list[str]:
    """Create a table or sequence. Returns notes on what of it is otherwise there."""
    dialect, bare = connection.dialect, False
    statement = create_object(version.db, version.table, dialect)
    plainer = create_object(version.db, version.table, dialect, bare=True)
    try:
        try:
            connection.execute(statement)
        except StatementFailed as error:
            if error.code not in NO_SUCH_EXPRESSION or plainer == statement:
                raise
            bare = True
            connection.execute(plainer)
    except StatementFailed as error:
        raise _refused(connection, f"to create {qualified(*version.name)}", version, error) from error
    return left_out(version.table, dialect, bare=bare)


def _create_views(connection: TargetConnection, views: Sequence[TableVersion]) -> list[str]:
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
                connection.execute(create_object(view.db, view.table, connection.dialect))
            except StatementFailed as error:
                if error.of_the_server:
                    raise
                refused[view.name] = error.message
        if len(refused) == len(waiting):
            break
        waiting = [view for view in waiting if view.name in refused]
    return [f"the view {qualified(*name)} is left out: {reason}" for name, reason in refused.items()]


def _refused(connection: TargetConnection, what: str, version: TableVersion, error: StatementFailed) -> BinlogError:
    """The server's condition is none of the table's."""
    if error.condition:
        return error
    return DdlRefused(
        f"target {connection.name} refused {what}: {error.message}",
        code=error.code,
        statement=error.statement,
        table=".".join(version.name),
    )


def _drop_late(connection: TargetConnection, version: TableVersion) -> None:
    """All of a table that is empty, or none where the server needs one of them."""
    drops = ", ".join(f"DROP KEY {quote(index.name)}" for index in late_indexes(version.table, connection.dialect))
    if not drops:
        return
    try:
        connection.execute(f"ALTER TABLE {qualified(*version.name)} {drops}")
    except StatementFailed as error:
        if error.condition:
            raise
        log.info("indexes_kept", table=".".join(version.name), reason=error.message)


def create_indexes(connection: TargetConnection, objects: Sequence[TableVersion]) -> None:
    """Those of `late_indexes` that are not there yet, of each table in one statement, which is done or not."""
    dialect = connection.dialect
    for version in objects:
        name = qualified(*version.name)
        have = {str(row[0]).lower() for row in connection.query(_INDEXES, version.name)}
        missing = [index for index in late_indexes(version.table, dialect) if index.name.lower() not in have]
        if not missing:
            continue
        adds = ", ".join(f"ADD {index_sql(index, dialect)}" for index in missing)
        try:
            with not_waiting(connection):
                connection.execute(f"ALTER TABLE {name} {adds}")
        except StatementFailed as error:
            raise _refused(connection, f"indexes of {name}", version, error) from error


def create_foreign_keys(connection: TargetConnection, objects: Sequence[TableVersion]) -> list[str]:
    """Those that are not there yet; returns a note on each that had to be left out."""
    notes = []
    for version in objects:
        keys = foreign_keys(version.db, version.table, connection.dialect).values()
        have = _keys_of(connection, version.name) if keys else set()
        for key in keys:
            if key.name.lower() in have:  # of this step, which was killed
                continue
            try:
                with not_waiting(connection):
                    connection.execute(f"ALTER TABLE {qualified(*version.name)} ADD {key.sql}")
            except StatementFailed as error:
                if error.condition:
                    raise
                notes.append(f"a foreign key of {qualified(*version.name)} is left out: {error.message}")
    return notes


def _keys_of(connection: TargetConnection, table: tuple[str, str]) -> set[str]:
    rows = connection.query(
        "SELECT constraint_name FROM information_schema.table_constraints"
        " WHERE table_schema = %s AND table_name = %s AND constraint_type = 'FOREIGN KEY'",
        table,
    )
    return {str(name).lower() for (name,) in rows}


def hand_over(connection: TargetConnection, step: HandOver) -> list[str]:
    """Tables of our schema get their places, in one statement; LoadError where one of these is taken. Returns notes."""
    own = connection.settings.schema_name
    made = {*taken(connection, [(own, name) for name, _ in step.tables])}
    waiting = [(name, place) for name, place in step.tables if f"{own}.{name}" in made]
    require_free(connection, [place for _, place in waiting])
    if len(waiting) + len(taken(connection, [place for _, place in step.tables])) < len(step.tables):
        raise LoadError(
            f"target {connection.name} has tables no more that this restore made: somebody dropped them",
            hint="begin again with --anew",
            target=connection.name,
        )
    have = databases_there(connection, [info.name for info in step.databases])
    for info in (each for each in step.databases if each.name not in have):
        connection.execute(create_database(info, connection.dialect))
    notes = []
    if step.where:
        ((name, place),) = step.tables
        copy = qualified(own, name) if waiting else qualified(*place)
        notes.append(step.where.found(int(connection.value(f"SELECT COUNT(*) FROM {copy}"))))  # noqa: S608
    moves = [((own, name), place) for name, place in waiting]
    if step.followed and waiting:
        copies = copied_beside(connection, waiting)
        # In the same statement, what was copied gets another name: whoever comes back finds all of it done, or nothing.
        moves = [*copies, *(((own, name), (own, f"{name}_copied")) for name, _ in waiting)]
    if moves:
        with not_waiting(connection):
            named = (f"{qualified(*name)} TO {qualified(*place)}" for name, place in moves)
            connection.execute(f"RENAME TABLE {', '.join(named)}")
    return notes


def leave(connection: TargetConnection) -> None:
    """Drop our schema; the last tables in one statement: a run that is killed has done this, or does it again."""
    own, last = connection.settings.schema_name, ("checkpoint", "step", "fence")
    names = (name.partition(".")[2] for name in tables_in(connection, [own]))
    for name in (name for name in names if name not in last):
        connection.execute(f"DROP TABLE IF EXISTS {qualified(own, name)}")
    connection.execute(f"DROP TABLE IF EXISTS {', '.join(qualified(own, name) for name in last)}")
    connection.execute(f"DROP DATABASE IF EXISTS {quote(own)}")
