"""What a restore of parts reads and does: tables as of a moment, beside whatever is there. Pure (rows R2, R3).

- **Which tables**: those of the names and patterns at the moment. A name that no table has then is refused, so is a
  view; views and sequences that a pattern fits are passed over. Triggers are in no archive.
- **What is read**: the newest dump that leads to the moment and has these tables, and the segments of the log with
  their ids. DDLs of other tables neither cut a plan nor stop it.
- **Rows that move between tables** (a rename, EXCHANGE PARTITION, FLASHBACK … TO): the other table is taken along. It
  is built too, and nobody gets it. A database that goes or comes back is its tables, each by itself.
- **Where**: everything is built in a schema of ours (`own_schema`) under names of ours, so no statement of the range
  can reach a table that exists. When the rows are whole, one RENAME gives the tables their places, which fails where
  one is taken. On a captured source they are copied first, within the database of their place, for its binlog. A
  database that is missing is made. Foreign keys between restored tables come last, others are left out.
- **What goes**: that schema, at the end, and nothing else ever. Its lock, fence and checkpoint are its own, so a load
  that keeps the server up to date neither waits nor notices.
- **Some rows of one table**: those that a predicate on its primary key chooses (`pumphouse.loader.selection`). Of each
  change the key before it and the key after it are asked by themselves, so a row that moves comes in or goes. The key
  has to have the same columns, types and collations in everything that is read.
- **A drill** is this without places: its tables stay in a schema of their own until they are proved, and go with it.
- **A run that was killed**: the same steps go on (`pumphouse.loader.steps`). Others are refused until the first have
  ended, or are given up with ``anew``: what they built lies in our schema, and goes.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from pumphouse import advice
from pumphouse.archive.base import Base
from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.codec.datum import kind_of
from pumphouse.codec.retype import keeps_values
from pumphouse.errors import RestoreError, UsageError
from pumphouse.loader.alone import joined, works_alone
from pumphouse.loader.begin import databases_of, in_creation_order
from pumphouse.loader.keys import ALL_ROWS, Predicate, key_columns
from pumphouse.loader.rules import NO_RULES, Rules
from pumphouse.loader.selection import Selection
from pumphouse.loader.state import (
    DRILL_SUFFIX,
    PARTS_SUFFIX,
    PARTS_TASK,
    Checkpoint,
    TargetState,
    our_schemas,
    parts_schema,
)
from pumphouse.loader.steps import Apply, Build, ForeignKeys, Given, HandOver, Leave, Reset, Steps, filled
from pumphouse.loader.tables import Wanted
from pumphouse.loader.work import ids_of
from pumphouse.model.table import ColumnFlag, ColumnInfo, DbInfo, cistr
from pumphouse.model.tso import Tso, show
from pumphouse.restore.plan import RestorePlan, idle_rules, table_sizes, unreachable, window_steps
from pumphouse.schema.actions import Action, Reach, Rows, is_system
from pumphouse.schema.route import Routes
from pumphouse.schema.table_sql import foreign_keys
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import Change, DdlEvent, TableVersion
from pumphouse.settings import LoadRule, LoadSettings, TargetSettings

# Task of the rows in our tables there.
TASK = PARTS_TASK
_WHOLE = ("restore the whole onto ", advice.Section(advice.RESTORE_TARGET), ", a server of its own: ", advice.restore())
_ROWS_OTHERWISE = "restore the whole table, without --key, and take rows from the copy by SQL"


def own_schema(target: TargetSettings, *, drill: bool = False) -> TargetSettings:
    """The server with the schema that keeps the state of a restore of parts, or of a drill, and what it builds."""
    suffix = DRILL_SUFFIX if drill else PARTS_SUFFIX
    return target.model_copy(update={"schema_name": parts_schema(target.schema_name, suffix)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What somebody asks for.

    Args:
        tables: ``database.table``, or patterns in which ``*`` or ``%`` stand for any text and ``?`` for a character.
        called: for one table, its ``database.table`` there; '' = its own.
        database: the database there; '' = their own.
        where: of one table, which rows.
    """

    tables: tuple[str, ...]
    called: str = ""
    database: str = ""
    where: Predicate = ALL_ROWS

    def __post_init__(self) -> None:
        """UsageError for what is no table, or contradicts itself."""
        for name in (*self.tables, *([self.called] if self.called else [])):
            if not 0 < name.find(".") < len(name) - 1:
                raise UsageError(
                    f"{name} is no table", hint="a table is written as database.table, all of a database as database.%"
                )
        if self.called and self.database:
            raise UsageError("--as and --into-database exclude each other")

    def of(self, timeline: Timeline, at: Tso) -> list[TableVersion]:
        """The tables at a moment; UsageError names what there is none of."""
        known = {".".join(version.name).lower(): version for version in timeline.tables_at(at)}
        found: dict[str, TableVersion] = {}
        for asked in self.tables:
            fits = _pattern(asked)
            some = {name: version for name, version in known.items() if fits.fullmatch(name) and has_rows(version)}
            if not some:
                raise _no_table(asked, known, timeline, at)
            found |= some
        if self.called and len(found) > 1:
            raise UsageError(
                f"--as names one table, and {', '.join(self.tables)} are {len(found)}", hint=advice.DATABASE_THERE
            )
        if self.where and len(found) > 1:
            raise UsageError(f"rows are chosen by the key of one table: {', '.join(self.tables)} are {len(found)}")
        return [version for _, version in sorted(found.items())]

    def place(self, version: TableVersion) -> tuple[str, str]:
        """What a table is called there, (database, name)."""
        if self.called:
            db, _, name = self.called.partition(".")
            return db, name
        return self.database or version.db, version.table.name


def _pattern(asked: str) -> re.Pattern[str]:
    """An underscore is itself: names are full of them."""
    stands_for = {"*": ".*", "%": ".*", "?": "."}
    return re.compile("".join(stands_for.get(each) or re.escape(each) for each in asked.lower()), re.DOTALL)


def _no_table(asked: str, known: dict[str, TableVersion], timeline: Timeline, at: Tso) -> UsageError:
    found = known.get(asked.lower())
    if found is not None:
        kind = "a view" if found.table.is_view else "a sequence" if found.table.is_sequence else "no table of rows"
        return UsageError(f"{asked} is {kind}", hint="only tables are restored by themselves")
    near = difflib.get_close_matches(asked.lower(), known, n=1)
    hint = (
        f"did you mean {'.'.join(known[near[0]].name)}?" if near else "`pumphouse schema show` lists tables at a moment"
    )
    for event in reversed(timeline.ddls(Tso(0), at)):
        gone = [c for c in event.changes if c.before is not None and ".".join(c.before.name).lower() == asked.lower()]
        if gone:
            what = "renamed" if gone[0].after is not None and not gone[0].after.dropped else "dropped"
            before = Tso(event.commit_ts - 1)
            hint = f"DDL job {event.job.id} {what} it at {show(event.commit_ts)}: `--to {int(before)}` is just before"
            break
    return UsageError(f"the source has no table {asked} at {show(at)}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A table of the source at the moment, its place, and what it is called in our schema until it gets that."""

    table: str
    place: tuple[str, str]
    staged: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsPlan(RestorePlan):
    """A restore of parts: ``made`` are the databases of the places, ``databases`` none, ``tables`` counts the places.

    Args:
        placed: the tables.
        along: other tables whose rows come into them, ``database.table`` in lower case.
        rules: by which they are made in our schema.
        objects: what is made before the dump's rows come, as it is called there.
        restored: the tables at the moment, at their places, with the foreign keys that they get.
        infos: databases of the places.
        left: what is left out, in words.
        where: which rows.
        drill: whether the tables stay in our schema.
        followed: whether a capture reads the server's binlog (`HandOver`).
    """

    placed: tuple[Placed, ...]
    along: tuple[str, ...]
    rules: Rules
    objects: tuple[TableVersion, ...]
    restored: tuple[TableVersion, ...]
    infos: tuple[DbInfo, ...]
    left: tuple[str, ...]
    where: Predicate = ALL_ROWS
    drill: bool = False
    followed: bool = False

    @property
    def places(self) -> list[tuple[str, str]]:
        """What the tables are called there."""
        return [each.place for each in self.placed]

    def said(self) -> str:
        """``shop.orders as shop.orders_0300, …``."""
        each = [
            each.table if each.table == (there := ".".join(each.place)) else f"{each.table} as {there}"
            for each in self.placed
        ]
        rows = f", rows {self.where}," if self.where else ""
        return ", ".join(each[:5]) + (f" and {len(each) - 5} more" if len(each) > 5 else "") + rows

    def steps(self, given: Given, beside: Sequence[str] = (), copies: Sequence[tuple[str, str]] = ()) -> Steps:
        """What is done.

        A restore that was given up has left ``beside`` in our schema, and ``copies``, (database, name).
        """
        checkpoint = Checkpoint(
            task=TASK,
            ts=self.base,
            state=TargetState.INCOMPLETE,
            reason=f"a restore of {self.said()} to {show(self.to)} has not ended",
            cluster_id=given.view.genesis.cluster_id,
            plan_number=0,
        )
        own, (first, *later) = given.target.schema_name, self.works
        dropped = (*copies, *((own, name) for name in beside))
        return Steps(
            from_ts=self.base,
            to_ts=self.to,
            anew=(
                Reset(checkpoint=checkpoint),
                *filled(first, Build(drop_tables=dropped, objects=self.objects)),
                *(Apply(work=work) for work in later),
                *([] if self.drill else [self._hand_over()]),
                ForeignKeys(objects=self.restored),
                *([] if self.drill else [Leave(schema=own)]),
            ),
        )

    def _hand_over(self) -> HandOver:
        tables = tuple((each.staged, each.place) for each in self.placed)
        return HandOver(databases=self.infos, tables=tables, where=self.where, followed=self.followed)

    def digest(self) -> str:
        """SHA-256 of everything that decides what is done."""
        places = [(each.table, each.place) for each in self.placed]
        return hashlib.sha256(f"{RestorePlan.digest(self)} {places}".encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        parts = {each.table: ".".join(each.place) for each in self.placed}
        return {
            **RestorePlan.to_dict(self),
            "parts": parts,
            "along": self.along,
            "notes": self.left,
            "where": self.where.to_dict(),
        }


def plan_parts(
    view: ArchiveView,
    target_ts: Tso | None,
    *,
    chosen: Chosen,
    target: TargetSettings,
    settings: LoadSettings,
    wall: Tso | None = None,
    drill: bool = False,
    followed: bool = False,
) -> PartsPlan:
    """Plan a restore of parts.

    Args:
        view: the whole archive, from genesis on.
        target_ts: the moment, inclusive; None = the archive's end.
        chosen: which tables, and where to.
        target: the server, with the schema of ours that they are built in (`own_schema`).
        settings: how plans are cut and spread over units; of the rules those for DDLs and transactions count.
        wall: this machine's time, to say of a moment that it lies in the future.
        drill: the tables stay in our schema; those that a rule leaves out of loads are none of it.
        followed: a capture reads the server's binlog.

    Raises:
        TargetUnreachable: the moment lies before the first dump or behind the archive.
        UsageError: there is no such table then, two would get one place, or a server alone could choose the rows.
        RestoreError: the archive holds no dump, or a rule's own statements would change the tables.
        LoadError: the archive cannot tell their rows from those of others.
    """
    timeline, end, own = view.timeline, view.end, target.schema_name
    to = end if target_ts is None else target_ts
    if not view.kept.start <= to <= end:
        raise unreachable(to, view, NO_RULES.leaves_out_name, wall)
    said = Rules.of(settings.rules, Tso(0))
    versions = [each for each in chosen.of(timeline, to) if not (drill and said.leaves_out(each))]
    if not versions:
        raise UsageError(f"rules leave out {', '.join(chosen.tables)}, every table", hint="load.rules; drill.tables")
    names = frozenset(".".join(version.name).lower() for version in versions)
    base, every = _base(view, to, names, wall)
    staged = {name: f"part_{number}" for number, name in enumerate(sorted(every), 1)}
    placed = tuple(
        Placed(
            table=".".join(each.name),
            place=(own, staged[".".join(each.name).lower()]) if drill else chosen.place(each),
            staged=staged[".".join(each.name).lower()],
        )
        for each in versions
    )
    if not drill:
        _require_places(placed, own)
    rules = Rules(
        ddls=said.ddls,
        txns=said.txns,
        # By id: tables that the archive knows nothing of, whose rows are met all the same.
        tables={name: each for name, each in said.tables.items() if name.isdecimal()},
        routes=Routes.of({}, {name: f"{own}.{called}" for name, called in staged.items()}),
        only=every,
    )
    events = (_of_tables(each) if _concerns(each, every) else each for each in timeline.events)
    bare = replace(view, timeline=replace(timeline, events=tuple(events)))
    works = works_alone(
        bare,
        base,
        to,
        TASK,
        settings,
        rules,
        what=f"{', '.join(sorted(names))} cannot be restored apart from the rest",
        hint=_WHOLE,
    )
    if chosen.where:
        _require_one_key(view, base, to, every, versions[0], chosen.where)
        works = tuple(work.choosing(chosen.where, settings) for work in works)
    _require_no_statements(rule for work in works for rule in work.rulings.values())
    made = [each for each in in_creation_order(timeline, base.ts) if ".".join(each.name).lower() in every]
    # A row that is not chosen may be one that a chosen row refers to.
    keys = [_with_keys(version, frozenset() if chosen.where else names) for version in versions]
    left = [f"every row of {'.'.join(versions[0].name)} but those {chosen.where} is left out"] if chosen.where else []
    final = Routes.of({}, {each.table: ".".join(each.place) for each in placed})
    places = [] if drill else sorted({each.place[0] for each in placed})
    return PartsPlan(
        to=to,
        end=end,
        base=base.ts,
        base_low=base.low,
        base_tables=sum(f"{table.db}.{table.table}".lower() in every for table in base.tables),
        works=works,
        windows=tuple(
            each
            for each in window_steps(view.between(base.low, to), base.low, to, ids_of(bare.timeline, rules.only))
            if each.segments
        ),
        databases=(),
        sources=tuple(sorted({version.db for version in versions})),
        made=tuple(places),
        routes=Routes.of(
            {}, {each.table: ".".join(each.place) for each in placed if each.table != ".".join(each.place)}
        ),
        tables=len(placed),
        sizes=table_sizes(view, base, to, names),
        losses=view.losses(base.since, to),
        idle=tuple(idle_rules(view, rules, base)),
        placed=placed,
        along=tuple(sorted(every - names)),
        rules=rules,
        objects=tuple(rules.routes.version(_bare(version)) for version in made if has_rows(version)),
        restored=tuple(final.version(version) for version, _ in keys),
        infos=tuple(_infos(timeline, to, versions, places)),
        left=(*left, *(note for _, notes in keys for note in notes)),
        where=chosen.where,
        drill=drill,
        followed=followed,
    )


def _base(view: ArchiveView, to: Tso, names: frozenset[str], wall: Tso | None) -> tuple[Base, frozenset[str]]:
    """The dump, and the tables with those whose rows become theirs behind it: the older the dump, the more of these."""
    every = names
    while True:
        rules = Rules(only=every)
        base = _coming_back_alone(view, every).base_for(to, rules.leaves_out_name)
        if base is None:
            raise unreachable(to, view, rules.leaves_out_name, wall)
        more = joined(view.timeline, every, base.ts, to)
        if more == every:
            return base, every
        every = more


def _coming_back_alone(view: ArchiveView, names: frozenset[str]) -> ArchiveView:
    """The view without the recoveries of other tables, for which a newer dump would be passed over."""
    events = tuple(each for each in view.timeline.events if not each.returning or _concerns(each, names))
    return replace(view, timeline=replace(view.timeline, events=events))


def _concerns(event: DdlEvent, names: frozenset[str]) -> bool:
    return any(".".join(side.name).lower() in names for change in event.changes for side in change.sides)


def _require_places(placed: Sequence[Placed], own: str) -> None:
    """UsageError where two tables would get one place, or one would lie among what is the server's or ours."""
    ours = {each.casefold() for each in (own, *our_schemas(own.removesuffix(PARTS_SUFFIX)))}
    for each in placed:
        if is_system(each.place[0]) or each.place[0].casefold() in ours:
            raise UsageError(
                f"{each.table} cannot get the place {'.'.join(each.place)}: that database is the server's own or ours",
                hint=(advice.DATABASE_THERE, ", or for one table ", advice.NAME_THERE),
            )
    count = Counter(".".join(each.place).casefold() for each in placed)
    twice = [each for each in placed if count[".".join(each.place).casefold()] > 1]
    if twice:
        raise UsageError(
            f"{' and '.join(each.table for each in twice[:5])} would both be {'.'.join(twice[0].place)}",
            hint=("restore them one after the other, under other names: ", advice.NAME_THERE),
        )


def _require_no_statements(rules: Iterable[LoadRule]) -> None:
    """RestoreError where statements of a rule would run: they name tables that are live, and are not ours to change."""
    for rule in rules:
        if rule.sql:
            raise RestoreError(
                f"a rule replaces the DDL {rule.ddl} by statements of its own, which name the tables as they are "
                "called on a target: a restore of parts would change those",
                hint=_WHOLE,
            )


def _require_one_key(
    view: ArchiveView, base: Base, to: Tso, names: frozenset[str], last: TableVersion, where: Predicate
) -> None:
    """UsageError where what is read has not all the key that the table has at the moment, or where it cannot be asked.

    ``names``: the table, and those whose rows come into it, in lower case.
    """
    key = _key(last)
    if not key:
        raise UsageError(f"{'.'.join(last.name)} has no primary key to choose rows by", hint=_ROWS_OTHERWISE)
    for table_id in sorted(ids_of(view.timeline, names)):
        versions, later = view.timeline.versions.get(table_id, ()), None
        for version, after in reversed([*zip_longest(versions, versions[1:])]):
            name, until = ".".join(version.name), to if after is None else Tso(after.commit_ts - 1)
            read = version.commit_ts <= to and until >= base.low and not version.dropped and name.lower() in names
            if not read or not has_rows(version):
                continue
            there = _key(version)
            ids = [c.id for c in there]
            # Rows come into another table as the last version has them: its key's columns stand for those of that one.
            if len(there) != len(key) or not all(map(_one_type, there, key)) or ids != (later or ids):
                raise UsageError(
                    f"rows of {'.'.join(last.name)} cannot be chosen by the key that it has at {show(to)}: {name} had "
                    f"another one up to {show(until)} ({', '.join(each.name for each in there) or 'none'})",
                    hint=f"begin with a dump from after that: --base; or {_ROWS_OTHERWISE}",
                )
            later = ids
            Selection(where, _as_read(version, tuple(each.name for each in there)))


def _key(version: TableVersion) -> list[ColumnInfo]:
    """Columns of the primary key; [] where there is none, or binlogs do not carry it."""
    names = [each.name.lower() for each in version.table.primary_key()]
    if [each.lower() for each in key_columns(version.table)] != names:
        return []
    return [next(c for c in version.table.public_columns if c.name.lower() == name) for name in names]


def _one_type(old: ColumnInfo, new: ColumnInfo) -> bool:
    """Whether each value of the one is the same in the other, and is compared alike."""
    was, now = (replace(each.type, flag=each.type.flag & ColumnFlag.UNSIGNED) for each in (old, new))
    alike = kind_of(was) is kind_of(now) and (was.charset, was.collate) == (now.charset, now.collate)
    return was == now or (alike and keeps_values(was, now))


def _as_read(version: TableVersion, key: tuple[str, ...]) -> Wanted:
    return Wanted(
        table_id=version.table.id, db=version.db, table=version.table, schema_version=version.schema_version, key=key,
        epoch=0,
    )  # fmt: skip


def _bare(version: TableVersion) -> TableVersion:
    """A table without foreign keys: what they lead to may not be there."""
    raw = version.table.raw
    return (
        replace(version, table=replace(version.table, raw={**raw, "fk_info": None})) if raw.get("fk_info") else version
    )


def _of_tables(event: DdlEvent) -> DdlEvent:
    """A DDL as tables by themselves have it: those with rows, without foreign keys; a whole database is its tables."""

    def side(version: TableVersion | None) -> TableVersion | None:
        return None if version is None else _bare(version)

    rows = [change for change in event.changes if any(map(has_rows, change.sides))]
    event = replace(event, changes=tuple(Change(side(change.before), side(change.after)) for change in rows))
    if event.facts.reach is not Reach.WHOLE_DATABASE:
        return event
    action = Action.RECOVER_TABLE if event.facts.rows is Rows.RETURN else Action.DROP_TABLE
    return replace(event, action=action, db_before=None, db_after=None)


def _with_keys(version: TableVersion, names: frozenset[str]) -> tuple[TableVersion, list[str]]:
    """A table with its foreign keys to tables that are restored too, and what is left out, in words."""
    kept, left = [], []
    enforced = foreign_keys(version.db, version.table)
    for key in version.table.raw.get("fk_info") or ():
        to = f"{cistr(key.get('ref_schema')) or version.db}.{cistr(key.get('ref_table'))}"
        if to.lower() in names:
            kept.append(key)
        elif int(key.get("id") or 0) in enforced:
            left.append(f"the foreign key {cistr(key.get('fk_name'))} of {'.'.join(version.name)} to {to} is left out")
    return replace(version, table=replace(version.table, raw={**version.table.raw, "fk_info": kept})), left


def _infos(timeline: Timeline, to: Tso, versions: Sequence[TableVersion], places: Sequence[str]) -> Iterator[DbInfo]:
    """Databases of the places, with the character set of the source's of that name, or of the first table's."""
    known = {info.name.lower(): info for info in databases_of(timeline, to)}
    for name in places:
        info = known.get(name.lower()) or known.get(versions[0].db.lower())
        if info is not None:
            yield replace(info, name=name)
