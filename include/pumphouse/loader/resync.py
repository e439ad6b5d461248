"""Make one table anew, also one that a rule left out: from the dump and the log over it, up to the checkpoint."""

from __future__ import annotations

from dataclasses import replace

from pumphouse import advice
from pumphouse.errors import LoadError, UsageError
from pumphouse.loader.alone import works_alone
from pumphouse.loader.begin import databases_of, in_creation_order
from pumphouse.loader.planner import require_ready, unfinished
from pumphouse.loader.rules import RESYNC, Rules, parked
from pumphouse.loader.state import Checkpoint
from pumphouse.loader.steps import Apply, BringBack, Build, ForeignKeys, Given, Park, Step, Steps, filled
from pumphouse.loader.work import Work, ids_of
from pumphouse.model.tso import Tso, show
from pumphouse.schema.render import kept_name

_DUMP = "take a new dump (", advice.dump(), "), load beyond it, and try again"


def plan_resync(given: Given, checkpoint: Checkpoint, table: str) -> Steps:
    """Make one table what the source's is at the checkpoint. Killed, it is left out; run it again, and it goes on.

    A table that is not left out is parked for the time: a plan that is open ends without it first.

    Raises:
        UsageError: there is no such table, or a rule of the settings leaves it out.
        LoadError: the archive cannot tell this table's rows from those of others.
    """
    require_ready(given, checkpoint)
    view, name, plan = given.view, table.lower(), given.standing.plan
    if "." not in name:
        raise UsageError(f"{table} is no table", hint="a table is written as database.table")
    asked = Rules.of(given.settings.rules, checkpoint.ts)
    if asked.left_out(name) is not None or _ids_of(given, name) & asked.tables.keys():
        raise UsageError(
            f"load.rules still leaves {table} out",
            hint="take its rule away, or name it in the rule's `but`, then try again",
        )
    names = {".".join(each.name).lower() for versions in view.timeline.versions.values() for each in versions}
    if name not in names:
        # Of a pattern it would end the rule, and follow tables whose rows of the time without them are nowhere.
        raise UsageError(
            f"the source has no table {table}",
            hint="it is written as database.table; of a pattern, bring each of its tables back by its own name",
        )
    left_out = given.rules.left_out(name) is not None
    upto = checkpoint.ts if plan is None or plan.only else max(checkpoint.ts, plan.to_ts)
    _require_newest(given, table, upto, stopped=plan is not None)
    before: tuple[Step, ...] = ()
    if not left_out:
        before = (Park(table=name, since=checkpoint.ts, why=RESYNC),)
        given = replace(given, rules=parked(given.rules, name, checkpoint.ts, RESYNC))
    open_ends, work = unfinished(given)
    at = checkpoint.ts if work is None else max(checkpoint.ts, work.plan.to_ts)
    steps = Steps(from_ts=checkpoint.ts, to_ts=at, anew=_anew(given, table, at))
    if plan is not None and plan.only == (name,) and given.standing.recorded.digest == steps.digest():
        return steps
    return replace(steps, before=(*before, *open_ends, *(() if work is None else (Apply(work=work),))))


def _anew(given: Given, table: str, at: Tso) -> tuple[Step, ...]:
    """Build it, fill it from the dump and the log, follow it again."""
    view, name = given.view, table.lower()
    rules, first, later = _works(given, table, at)
    found = [v for v in in_creation_order(view.timeline, first.plan.to_ts) if ".".join(v.name).lower() == name]
    databases = {
        v.db for versions in view.timeline.versions.values() for v in versions if ".".join(v.name).lower() == name
    }
    versions = tuple(map(rules.routes.version, found))
    build = Build(
        drop_tables=tuple(_places(given, name, at)),
        # Somebody may have dropped it.
        databases=tuple(
            replace(info, name=rules.routes.database(info.name))
            for info in databases_of(view.timeline, at)
            if info.name in databases
        ),
        objects=versions,
        ddls=tuple(int(event.commit_ts) for work in later for event in work.events),
    )
    return (
        *filled(first, build),
        ForeignKeys(objects=versions),
        *(Apply(work=work) for work in later),
        BringBack(subjects=(name, *sorted(_ids_of(given, name))), patterns=_over(given, name, at)),
    )


def _over(given: Given, name: str, at: Tso) -> tuple[str, ...]:
    """Patterns of rules that the settings have no more, and that leave out no table but this one at a moment."""
    wanted = {rule.table.lower() for rule in given.settings.rules}
    there = {".".join(version.name).lower() for version in given.view.timeline.tables_at(at)} - {name}
    return tuple(
        sorted(
            pattern
            for pattern, rule in given.rules.tables.items()
            if "*" in pattern and pattern not in wanted and not any(map(rule.covers, there))
        )
    )


def _require_newest(given: Given, table: str, at: Tso, *, stopped: bool) -> None:
    """UsageError where a dump that read the table lies above what the target has: it would be made without that.

    ``stopped``: a load has not ended, maybe because of this table.
    """
    ids = _ids_of(given, table.lower())
    newer = [
        base.ts
        for base in given.view.bases
        for each in base.tables
        if base.ts > at and str(each.table_id) in ids and (each.low or base.begun) >= base.begun
    ]
    if newer:
        back = ("load beyond it, then bring the table back: ", advice.load(), ", then ", advice.load(resync=table))
        park = advice.Rule("park", table=table)
        past = (f"if that load stops at {table}, ", park, "load, and take the rule away") if stopped else ()
        raise UsageError(
            f"the archive has a newer dump of {table}, exact from {show(newer[-1])} on, and the target stands at "
            f"{show(at)}: the table would be made from an older one",
            hint=advice.joined(back, past),
        )


def _places(given: Given, name: str, at: Tso) -> list[tuple[str, str]]:
    """What is to go of a table, ``database.table`` in lower case: it under each spelling that the source had of it.

    And what was kept of it for a recovery, where the table is there: a resync that was killed may have left that.
    """
    timeline, own = given.view.timeline, given.target.schema_name
    names = {version.name for versions in timeline.versions.values() for version in versions}
    there = {version.table.id for version in timeline.tables_at(at)}
    kept = {kept_name(own, int(each)) for each in _ids_of(given, name) if int(each) in there}
    return sorted(kept | {given.rules.routes.table(*each) for each in names if ".".join(each).lower() == name})


def _ids_of(given: Given, name: str) -> set[str]:
    """Ids that a table, ``database.table`` in lower case, ever had, and those of its partitions."""
    return set(map(str, ids_of(given.view.timeline, {name})))


def _works(given: Given, table: str, at: Tso) -> tuple[Rules, Work, tuple[Work, ...]]:
    """The rules, the dump's plan and those behind it that make one table what it is at a moment."""
    view, task, settings = given.view, given.task, given.settings
    # By id: tables that the archive knows nothing of, whose rows are met all the same.
    ids = _ids_of(given, table.lower())
    by_id = {name: each for name, each in given.rules.tables.items() if name.isdecimal() and name not in ids}
    # Not those by which an open plan passed DDLs: the table is made by the settings of now.
    ddls = Rules.of(settings.rules, at).ddls
    rules = replace(given.rules, ddls=ddls, tables=by_id, only=frozenset({table.lower()}))
    base = view.base_for(at, rules.leaves_out_name)
    if base is None:
        without = view.lacking(at, rules.leaves_out_name)
        of = "" if without is None else f" has the rows of {table}, as a rule left it out ({without.why}), and"
        raise LoadError(f"no dump{of} leads to {show(at)}, where the target stands", hint=_DUMP)
    what = f"{table} cannot be brought back by itself"
    first, *later = works_alone(view, base, at, task, settings, rules, what=what, hint=_DUMP)
    return rules, first, tuple(later)
