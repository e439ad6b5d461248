"""Names of the source that may not meet on a target."""

from __future__ import annotations

from collections.abc import Iterable

from pumphouse.archive.view import ArchiveView
from pumphouse.errors import LoadError
from pumphouse.loader.rules import Rules, rule_text
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import databases_between
from pumphouse.model.tso import Tso


def require_names(
    connection: TargetConnection, view: ArchiveView, rules: Rules, after: Tso, upto: Tso, more: Iterable[str] = ()
) -> None:
    """Refuse names of the source that would meet there, with each other or with our own schema.

    LoadError when a database (``more``: also one of these) would replace the schema of our tables, without regard
    to case: some servers make one of both. ConfigError when rules make one of two.
    """
    routes, own = rules.routes, connection.settings.schema_name
    databases = databases_between(view.timeline, after, upto)
    for ts in (after, upto):
        rules.require_apart(databases, view.timeline.tables_at(ts))
    names = {routes.database(name): name for name in (*databases, *more)} | {name: name for name in routes.beside}
    clash = next((name for there, name in names.items() if there.casefold() == own.casefold()), None)
    if clash is not None:
        raise LoadError(
            f"the source has a database {clash!r}, and on target {connection.name} the schema {own!r} keeps "
            "the state of the load",
            hint=f"give the database another name there, {rule_text('route', database=clash, to='…')}or, for a "
            "target that is empty or to be restored, set target.schema_name (restore_target.schema_name) to a "
            "name of its own",
            target=connection.name,
            database=clash,
        )
