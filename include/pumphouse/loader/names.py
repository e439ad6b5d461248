"""Names of the source that may not meet on a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pumphouse import advice
from pumphouse.archive.view import ArchiveView
from pumphouse.errors import LoadError
from pumphouse.loader.rules import Rules, routes_of
from pumphouse.loader.state import our_schemas
from pumphouse.loader.target import address
from pumphouse.loader.work import databases_between, skipped_ddls
from pumphouse.model.tso import Tso
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import LoadRule, TargetSettings

_GONE = "a database with the name of our own schema, which the history has dropped again"


def require_names(
    target: TargetSettings, view: ArchiveView, rules: Rules, after: Tso, upto: Tso, more: Iterable[str] = ()
) -> None:
    """Refuse names of the source that would meet on a target, with each other or with a schema of ours.

    LoadError when a database (``more``: also one of these) would replace the schema of our tables or that of restores
    of parts, without regard to case: some servers make one of both. ConfigError when rules make one of two.
    """
    routes, where = rules.routes, address(target)
    databases = databases_between(view.timeline, after, upto, rules)
    for ts in (after, upto):
        rules.require_apart(databases, view.timeline.tables_at(ts))
    # Never made there: a load that met it without the rule was refused.
    left = {each.db_before.name for each in skipped_ddls(view.timeline, after, upto, rules) if each.db_before}
    names = {routes.database(name): name for name in (*databases, *more) if name not in left}
    names |= {name: name for name in routes.beside}
    ours = {each.casefold(): each for each in our_schemas(target.schema_name)}
    clash = next(((name, ours[there.casefold()]) for there, name in names.items() if there.casefold() in ours), None)
    if clash is not None:
        name, own = clash
        use = (
            "keeps the state of the load"
            if own == target.schema_name
            else "is that of restores of tables, or of drills"
        )
        raise LoadError(
            f"the source has a database {name!r}, and on target {where} the schema {own!r} {use}",
            hint=advice.saying(
                "was it imported by mistake: `pumphouse schema import --drop {}` on the source, then load to a moment "
                "after that. Is it the source's: give it another name there, {}or, for a target that is empty or to be "
                "restored, set schema_name in {} to a name of its own",
                name,
                advice.Rule("route", database=name, to=advice.ANY),
                advice.Section(),
            ),
            target=where,
            database=name,
        )


def passing_own(rules: Sequence[LoadRule], view: ArchiveView, own: str) -> tuple[LoadRule, ...]:
    """The rules, and one that skips each DDL of a database which has the name of a schema of ours and is gone again.

    It came into the history by mistake, from a server that is no source, and was dropped in it. If it has rows, or if
    a DDL moves a table out of it or into it, it is the source's, and nothing is added: `require_names` refuses it.

    Args:
        rules: those of the settings.
        view: what the run sees.
        own: the schema on the target that keeps the state of loads; its name is in those of the others.
    """
    return (*rules, *(rule for name in our_schemas(own) for rule in _passing(rules, view, name)))


def _passing(rules: Sequence[LoadRule], view: ArchiveView, own: str) -> tuple[LoadRule, ...]:
    routes, timeline = routes_of(rules), view.timeline

    def is_own(db: str) -> bool:
        return routes.database(db).casefold() == own.casefold()

    events = [each for each in timeline.ddls(view.start, view.reach) if any(map(is_own, _databases_of(each)))]
    if not events or any(is_own(info.name) for info in timeline.databases_at(view.reach)):
        return ()
    tables = {
        each
        for versions in timeline.versions.values()
        for version in versions
        if is_own(version.db)
        for each in (version.table.id, *version.table.partition_ids)
    }
    moved = any(not is_own(db) for each in events for db in _databases_of(each))
    if moved or not tables.isdisjoint(view.windows.table_ids()):
        return ()
    return tuple(LoadRule(do="skip", ddl=int(each.commit_ts), why=_GONE) for each in events)


def _databases_of(event: DdlEvent) -> set[str]:
    sides = [side.db for change in event.changes for side in (change.before, change.after) if side is not None]
    return {*sides, *(info.name for info in (event.db_before, event.db_after) if info is not None)}
