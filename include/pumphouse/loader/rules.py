"""What a load does otherwise than the source says (`load.rules`): DDLs, tables, transactions, names.

One owner of the rules. They are read once a run: those of the settings, and those that the target remembers, because a
table that was left out for a while cannot go on as if it had not been. They are applied where a `Work` is made; every
use is in the table ``rule`` of the target, with who, when and why. A rule says what the *target* executes: rows are
decoded by the source's schema history all the same.
"""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

from pumphouse import advice
from pumphouse.errors import BinlogError, LoadError, UnknownTable
from pumphouse.loader.fence import Ownership
from pumphouse.loader.state import fenced, read_all
from pumphouse.loader.target import TargetConnection, has_checkpoints
from pumphouse.model.pattern import fits
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import Reach, Rows
from pumphouse.schema.route import NO_ROUTES, Routes
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import Change, DdlEvent, TableVersion
from pumphouse.settings import LoadRule

# Why a table is parked that a resync makes anew.
RESYNC = "load --resync"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A table, or tables by a pattern, that a target does not follow.

    ``since``: they stand as they were then; 0 = they were never there. ``but``: names and patterns that it follows.
    """

    table: str
    parked: bool
    since: Tso
    who: str
    why: str
    but: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        """Whether a table, ``database.table`` in lower case, is one of them."""
        return fits(name, self.table) and not any(fits(name, each) for each in self.but)

    def __str__(self) -> str:
        since = f"since {show(self.since)}" if self.since else "from the beginning"
        return f"{'parked' if self.parked else 'skipped'} {since} by {self.who}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one run.

    ``ddls``: by job id and by commit ts. ``tables``: by name or pattern in lower case, or by id. ``txns``: by commit
    ts. ``routes``: other names on the target. ``only``: of a resync or a restore of parts: every table but these is
    left out, and no database is touched. ``unheard_of``: what rules name and nobody knows, as sentences; the rule waits
    for it.
    """

    ddls: Mapping[int, LoadRule] = field(default_factory=dict)
    tables: Mapping[str, LeftOut] = field(default_factory=dict)
    txns: Mapping[int, LoadRule] = field(default_factory=dict)
    routes: Routes = NO_ROUTES
    only: frozenset[str] = frozenset()
    unheard_of: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Sequence[LoadRule], since: Tso) -> Self:
        """Those of the settings alone: what a restore goes by, which knows nothing of the target."""
        return cls(
            ddls={rule.ddl: rule for rule in settings if rule.ddl},
            tables={
                rule.table.lower(): LeftOut(
                    table=rule.table.lower(),
                    parked=rule.do == "park",
                    since=since,
                    who=_who(rule),
                    why=rule.why,
                    but=tuple(each.lower() for each in rule.but),
                )
                for rule in settings
                if rule.table and rule.do != "route"
            },
            txns={rule.txn: rule for rule in settings if rule.txn},
            routes=routes_of(settings),
        )

    def __bool__(self) -> bool:
        return bool(self.ddls or self.tables or self.txns)

    @property
    def parked(self) -> dict[str, str]:
        """Tables in quarantine, and since when and why."""
        return {name: str(each) for name, each in sorted(self.tables.items()) if each.parked}

    def rule_of(self, event: DdlEvent) -> LoadRule | None:
        """The rule of a DDL; of some tables alone those that concern them."""
        if self.only and all(self._out(change) is True for change in event.changes):
            return None
        return self.ddls.get(event.job.id) or self.ddls.get(int(event.commit_ts))

    def skipped(self, timeline: Timeline) -> dict[str, str]:
        """Names as the timeline spells them of the tables that are left out, with the reason."""
        if not self.tables:
            return {}
        names = {".".join(version.name) for versions in timeline.versions.values() for version in versions}
        names |= {each.table for each in self.tables.values()}
        found = {name: self.left_out(name.lower()) for name in sorted(names)}
        return {name: str(each) for name, each in found.items() if each is not None}

    def left_out(self, name: str) -> LeftOut | None:
        """Why a table, ``database.table`` in lower case, is left out; None = it is not."""
        return self.tables.get(name) or next((each for each in self.tables.values() if each.covers(name)), None)

    def ruled(self, event: DdlEvent) -> DdlEvent:
        """The DDL without the tables that are left out; with a rule of its own it is no problem any more.

        But in a resync, rows that come from other tables do so whatever a rule says that the target executes.
        """
        rule = self.rule_of(event)
        if rule is not None:
            event = replace(event, problem="")
        elif event.brings_rows:
            why = "had rows when the history saw it first, and no binlog has them"
            event = replace(event, problem=f"{'.'.join(event.changes[0].known.name)} {why}")
        if rule is not None and not self.only:
            return event
        if self.only:
            event = self._of_one(event, skipped=rule is not None and rule.do == "skip")
        if not (self.tables or self.only) or not event.changes:
            return event
        out = [self._out(change) for change in event.changes]
        crossing = None in out or (event.facts.rows is Rows.SWAP and len(set(out)) > 1)
        if crossing and not event.problem:
            names = sorted({".".join(side.name) for change in event.changes for side in change.sides})
            return replace(
                event,
                problem=f"DDL job {event.job.id} moves rows between tables of which a rule leaves out some, not all: "
                f"{', '.join(names)}",
                divided=True,
            )
        changes = tuple(change for change, is_out in zip(event.changes, out, strict=True) if not is_out)
        # What is unknown of a table that is left out is nobody's problem.
        return replace(event, changes=changes, problem=event.problem if changes or not all(out) else "")

    def _of_one(self, event: DdlEvent, *, skipped: bool) -> DdlEvent:
        """Without what it does to databases; a table that went with its database cannot be followed by itself.

        ``skipped``: a rule says that the target does nothing of it, so the table went nowhere.
        """
        whole = event.db_before is not None or event.facts.reach is Reach.WHOLE_DATABASE
        if whole and not skipped and not all(self._out(change) for change in event.changes):
            why = f"DDL job {event.job.id} drops or brings back {', '.join(sorted(self.only))} with its database"
            return replace(event, db_before=None, db_after=None, problem=why)
        # A flashback of the cluster names no table, and may have changed the rows of each.
        concerns = event.changes or event.facts.reach is Reach.CLUSTER
        return replace(event, db_before=None, db_after=None, problem=event.problem if concerns else "")

    def _out(self, change: Change) -> bool | None:
        """Whether a change is of a table that is left out; None = it takes one from the one side to the other."""
        sides = {self.leaves_out(side) for side in change.sides}
        return None if len(sides) > 1 else sides == {True}

    def leaves_out(self, version: TableVersion) -> bool:
        """Whether a table is not for the target."""
        return self.leaves_out_name(".".join(version.name))

    def leaves_out_name(self, name: str) -> bool:
        """The same of ``database.table``."""
        return name.lower() not in self.only if self.only else self.left_out(name.lower()) is not None

    def require_apart(self, databases: Sequence[str], tables: Iterable[TableVersion]) -> None:
        """ConfigError where rules would make one of two databases or tables that there are at one moment."""
        if self.routes:
            self.routes.require_apart(databases, (each.name for each in tables if not self.leaves_out(each)))

    @contextmanager
    def advising(self, timeline: Timeline) -> Iterator[None]:
        """An error of the block names the table as the source does, and the rule that goes past it, where one does."""
        try:
            yield
        except BinlogError as error:
            self._name(error, timeline)
            self._advise(error)
            raise

    def _name(self, error: BinlogError, timeline: Timeline) -> None:
        table = error.facts.get("table")
        if not self.routes or not isinstance(table, str) or "job_id" in error.facts:  # a DDL's is the source's already
            return
        source = self.routes.source_of(table, (v.name for versions in timeline.versions.values() for v in versions))
        if source != table:
            error.message = f"{source}: {error.message}"
            error.advice = tuple(advice.of_table(part, table, source) for part in error.advice)
            error.facts["table"] = source
            setattr(error, "table", source)  # noqa: B010 - a fact

    def _advise(self, error: BinlogError) -> None:
        table, table_id = error.facts.get("table"), error.facts.get("table_id")
        if isinstance(error, UnknownTable) and table_id is not None:
            error.add_hint(unknown_hint(table_id))
        ruled = any(isinstance(part, advice.Rule) for part in error.advice)
        if isinstance(table, str) and "." in table and not ruled:
            error.add_hint(("to go on without this table, ", advice.Rule("park", table=table)))


NO_RULES = Rules()


def routes_of(settings: Iterable[LoadRule]) -> Routes:
    """What the rules say of names on the target."""
    routes = [rule for rule in settings if rule.do == "route"]
    return Routes.of(
        {rule.database: rule.to for rule in routes if rule.database},
        {rule.table: rule.to for rule in routes if rule.table},
    )


def unknown_ids(rules: Iterable[LoadRule]) -> frozenset[int]:
    """Ids of tables that no DDL names and whose rows a rule leaves out: also exports go by these."""
    return frozenset(int(rule.table) for rule in rules if rule.table.isdigit() and rule.do != "route")


def unknown_hint(table_id: object) -> advice.Hint:
    """To go on where no DDL names a table."""
    return "to go on without its rows, ", advice.Rule("skip", table=str(table_id))


def ddl_hint(job_id: int) -> advice.Hint:
    """To go past a DDL."""
    return "to go past it, ", advice.Rule("skip", ddl=job_id), """or do = "replace" with sql = ["…"]"""


def lacking_hint(table: str) -> advice.Hint:
    """Where each dump that leads to a moment lacks a table."""
    dumped = ("to have it from now on, take its rule out of dump.without, then ", advice.dump(table))
    return advice.joined(dumped, ("to go on without it, ", advice.Rule("park", table=table)))


def anew_hint(table: str) -> advice.Hint:
    """So that a table begins again from the rows as the source has them."""
    park, back = advice.Rule("park", table=table), advice.load(resync=table)
    what = "{}then {}, {}, take the rule away, and {}, which begins from the rows as the source has them now"
    return advice.saying(what, park, advice.dump(), advice.load(), back)


def read_left_out(connection: TargetConnection, task: str) -> dict[str, LeftOut]:
    """Tables that a task leaves out on this target."""
    if not connection.has_table("rule"):
        return {}
    rows = connection.query(
        f"SELECT subject, ts, rule, who, why FROM {connection.table('rule')}"
        " WHERE task = %s AND ended_at IS NULL AND subject LIKE 'table %%'",
        (task,),
    )
    found = {}
    for subject, ts, rule, who, why in rows:
        name = str(subject).removeprefix("table ")
        said = LoadRule.model_validate_json(rule)
        found[name] = LeftOut(
            table=name,
            parked=said.do == "park",
            since=Tso(int(ts)),
            who=str(who),
            why=str(why),
            but=tuple(each.lower() for each in said.but),
        )
    return found


def read_routes(connection: TargetConnection, task: str) -> Routes:
    """The routes that a task's rows came to this target by."""
    return routes_of(_recorded(connection, task))


def places_of_loads(connection: TargetConnection, cluster_id: int, databases: Iterable[str]) -> list[str]:
    """Where loads and restores of a cluster put its databases until now, by the rules of then; [] where none was."""
    if not has_checkpoints(connection):
        return []
    names = list(databases)
    tasks = [each.task for each in read_all(connection) if each.cluster_id == cluster_id]
    return sorted({place for task in tasks for place in read_routes(connection, task).places(names)})


def _recorded(connection: TargetConnection, task: str) -> list[LoadRule]:
    """Routes in the table ``rule`` that are in force."""
    if not connection.has_table("rule"):
        return []
    rows = connection.query(
        f"SELECT rule FROM {connection.table('rule')} WHERE task = %s AND ended_at IS NULL AND subject LIKE 'route %%'",
        (task,),
    )
    return [LoadRule.model_validate_json(text) for (text,) in rows]


def require_in_place(
    connection: TargetConnection, task: str, settings: Sequence[LoadRule], timeline: Timeline, at: Tso, upto: Tso
) -> None:
    """LoadError where the settings would have a table elsewhere than where its rows are.

    Args:
        connection: the target.
        task: whose tables.
        settings: rules of now.
        timeline: of all tables.
        at: the checkpoint.
        upto: up to where more may have been made: the end of an open plan, else the checkpoint.
    """
    was, now, out = read_routes(connection, task), routes_of(settings), read_left_out(connection, task)
    never = Rules(tables={name: each for name, each in out.items() if not each.since})
    there = {version.name for version in timeline.tables_at(at) if not never.leaves_out(version)}
    for event in timeline.ddls(at, upto):
        there |= {change.after.name for change in event.changes if change.after is not None}
    for name in sorted(there):
        old, new = was.table(*name), now.table(*name)
        if old != new:
            raise LoadError(
                f"load.rules routes {'.'.join(name)} to {'.'.join(new)}, and on target {connection.name} its rows "
                f"are in {'.'.join(old)}: they would be in two places",
                hint=advice.saying(
                    "put the rule back as it was (the target's table `rule` has it); or, with the new one, {} builds "
                    "the target anew",
                    advice.restore(to="latest", into=advice.THIS),
                ),
                table=".".join(name),
                target=connection.name,
            )


def _subject(rule: LoadRule) -> str:
    return f"route {(rule.table or rule.database).lower()} to {rule.to}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What a run writes down of its rules: subjects that are history, and (subject, ts, rule) that are used now."""

    ended: tuple[str, ...] = ()
    begun: tuple[tuple[str, Tso, LoadRule], ...] = ()

    def write_down(self, connection: TargetConnection, owner: Ownership, task: str) -> None:
        """In the table ``rule``."""
        for subject in self.ended:
            end_rules(connection, owner, task, subject)
        for subject, ts, rule in self.begun:
            record(connection, owner, task, subject, ts, rule)


def rules_of_run(
    connection: TargetConnection,
    task: str,
    settings: Sequence[LoadRule],
    since: Tso,
    timeline: Timeline,
    begun: Tso | None = None,
) -> tuple[Rules, Uses]:
    """The rules of a run: the target's and those of the settings, which are to be written down there. Changes nothing.

    ``since``: the checkpoint; 0 where the target has none yet. ``timeline``: at least of what changes from there on.
    ``begun``: where an open plan begins that goes on.
    """
    known = read_left_out(connection, task)
    asked = Rules.of(settings, since)
    unheard_of: list[str] = []
    routes = {_subject(rule): rule for rule in settings if rule.do == "route"}
    recorded = {_subject(rule) for rule in _recorded(connection, task)}
    # Routes that are gone, which no table had any more, are history.
    ended = [*(recorded - routes.keys())]
    used = [(subject, since, routes[subject]) for subject in routes.keys() - recorded]
    for rule in settings:
        name = rule.table.lower()
        if not name or rule.do == "route":
            continue
        wanted, have = asked.tables[name], known.get(name)
        if have is None and not _is_heard_of(connection, name, asked.routes, timeline):
            unheard_of.append(f"load.rules names {name}: the target has no such table, and none changes in this load")
            continue
        # What was left out for a while cannot just go on: only a resync takes a table out of a pattern.
        but = wanted.but if have is None else tuple(each for each in wanted.but if each in have.but)
        if have is None or (have.parked, have.but) != (wanted.parked, but):
            # Parked or skipped: since when it was left out stays the same.
            known[name] = replace(wanted, since=since if have is None else have.since, but=but)
            used.append((f"table {name}", known[name].since, rule.model_copy(update={"but": but})))
    # A DDL that was passed by a rule stays so, also when the rule is gone before its plan has ended. The checkpoint may
    # be inside that plan. When no plan goes on, how one passed DDLs is history.
    after = since if begun is None else min(since, begun)
    passed = _passed(connection, task, after)
    if begun is None:
        ended += [f"ddl {ts}" for ts in passed]
    ddls = asked.ddls if begun is None else {**passed, **asked.ddls}
    unheard_of += [
        *_unheard_routes(connection, asked.routes, timeline),
        *_unheard_ddls(connection, asked.ddls, timeline),
    ]
    rules = replace(asked, ddls=ddls, tables=known, unheard_of=tuple(unheard_of))
    return rules, Uses(ended=tuple(ended), begun=tuple(used))


def _is_heard_of(connection: TargetConnection, name: str, routes: Routes, timeline: Timeline) -> bool:
    """Whether a rule's table may be meant: a pattern, an id, or a table of the source or the target."""
    db, dot, table = name.partition(".")
    if not dot or "*" in name:
        return True
    if any(".".join(v.name).lower() == name for versions in timeline.versions.values() for v in versions):
        return True
    places = {name, ".".join(routes.table(db, table)).lower()}
    found = connection.query(
        "SELECT 1 FROM information_schema.tables WHERE LOWER(CONCAT(table_schema, '.', table_name)) IN %s LIMIT 1",
        (sorted(places),),
    )
    return bool(found)


def _unheard_routes(connection: TargetConnection, routes: Routes, timeline: Timeline) -> Iterator[str]:
    """Routes that fit nothing: what is meant comes to the target under its own name."""
    databases = {
        v.info.name.lower() for versions in timeline.databases.values() for v in versions if v.info is not None
    }
    tables = {version.name for versions in timeline.versions.values() for version in versions}
    for name, _ in routes.databases:
        if name not in databases:
            yield f"load.rules routes {name}: the source has no such database"
    for name, to in routes.tables:
        one = Routes(tables=((name, to),))
        if any(one.table(*each) != each for each in tables):
            continue
        place = to.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%").replace("*", "%")
        if not connection.query(
            "SELECT 1 FROM information_schema.tables WHERE CONCAT(table_schema, '.', table_name) LIKE %s LIMIT 1",
            (place,),
        ):
            yield f"load.rules routes {name}: the target has no table {to}, and none of that name changes in this load"


def _unheard_ddls(connection: TargetConnection, ddls: Mapping[int, LoadRule], timeline: Timeline) -> Iterator[str]:
    """Rules for DDLs that do not come now, and never came by that rule."""
    known = {int(each) for event in timeline.events for each in (event.job.id, event.commit_ts)}
    if not ddls.keys() - known or not connection.has_table("rule"):
        return
    used = connection.query(f"SELECT rule FROM {connection.table('rule')} WHERE subject LIKE 'ddl %%'")
    known |= {LoadRule.model_validate_json(text).ddl for (text,) in used}
    for ddl in sorted(ddls.keys() - known):
        yield f"load.rules names the DDL {ddl}: this load has none of that job id or commit ts"


def _passed(connection: TargetConnection, task: str, since: Tso) -> dict[int, LoadRule]:
    """By commit ts, the rules by which DDLs behind a moment were passed."""
    if not connection.has_table("rule"):
        return {}
    rows = connection.query(
        f"SELECT ts, rule FROM {connection.table('rule')}"
        " WHERE task = %s AND ended_at IS NULL AND subject LIKE 'ddl %%' AND ts > %s",
        (task, since),
    )
    return {int(ts): LoadRule.model_validate_json(rule) for ts, rule in rows}


def record(connection: TargetConnection, owner: Ownership, task: str, subject: str, ts: Tso, rule: LoadRule) -> None:
    """Write a use down, in a transaction of its own; the same use again changes nothing."""
    text = rule.model_dump_json(exclude_defaults=True)
    with fenced(connection, owner):
        connection.execute(
            f"INSERT INTO {connection.table('rule')} (task, subject, ts, rule, who, why)"
            " VALUES (%s, %s, %s, %s, %s, %s)"
            " ON DUPLICATE KEY UPDATE used_at = IF(rule = VALUES(rule) AND ended_at IS NULL, used_at, NOW(6)),"
            " who = IF(rule = VALUES(rule) AND ended_at IS NULL, who, VALUES(who)), why = VALUES(why),"
            " rule = VALUES(rule), ended_at = NULL",
            (task, subject, ts, text, _who(rule), rule.why),
        )


def end_rules(connection: TargetConnection, owner: Ownership, task: str | None, subject: str | None = None) -> None:
    """They are history: of every task where a restore begins, or of one table that was brought back."""
    with fenced(connection, owner):
        connection.execute(
            f"UPDATE {connection.table('rule')} SET ended_at = NOW(6) WHERE ended_at IS NULL"
            " AND (%s IS NULL OR task = %s) AND (%s IS NULL OR subject = %s)",
            (task, task, subject, subject),
        )


def parked(rules: Rules, name: str, since: Tso, why: str) -> Rules:
    """The rules when a table, ``database.table`` in lower case, is left out from now on (`park`)."""
    who = _who(LoadRule(do="park", table=name, why=why))
    left_out = LeftOut(table=name, parked=True, since=since, who=who, why=why)
    return replace(rules, tables={**rules.tables, name: left_out})


def park(connection: TargetConnection, owner: Ownership, task: str, name: str, since: Tso, why: str) -> None:
    """A table is left out from now on: that is written down."""
    record(connection, owner, task, f"table {name}", since, LoadRule(do="park", table=name, why=why))


def bring_back(connection: TargetConnection, owner: Ownership, task: str, name: str) -> None:
    """One table is followed again: its own rule is history, and patterns leave it in from now on."""
    end_rules(connection, owner, task, f"table {name}")
    rows = connection.query(
        f"SELECT subject, ts, rule FROM {connection.table('rule')}"
        " WHERE task = %s AND ended_at IS NULL AND subject LIKE 'table %%'",
        (task,),
    )
    known = read_left_out(connection, task)
    for subject, ts, text in rows:
        rule = LoadRule.model_validate_json(text)
        if known[str(subject).removeprefix("table ")].covers(name):
            but = rule.model_copy(update={"but": (*rule.but, name)})
            record(connection, owner, task, str(subject), Tso(int(ts)), but)


def _who(rule: LoadRule) -> str:
    """Who wrote the rule, where it says so; else the user of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return rule.by or f"{user}@{socket.gethostname()}"
