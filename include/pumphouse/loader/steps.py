"""What is done to a target, as a list of steps: planners make it, one executor carries it out. Values, pure.

A planner is a function of what it is given (`Given`: the archive's view, what the target says, rules, settings) that
returns `Steps`. Planners: `pumphouse.loader.planner` (load, repeat, abandon), `pumphouse.loader.begin` (first load,
`--equal-at`), `pumphouse.loader.resync`, `pumphouse.restore.plan` and `pumphouse.restore.parts`; a replay is a load of
that mode, a backfill is a load to the end of an interval. Nothing but `pumphouse.executor` changes a target, and it
does what the list says. A dry run prints the list.

Who records what, and where (tables of our schema on the target, docs/formats.md):

- `Apply` is a row of ``plan``; its units are rows of ``applied``, each in the unit's own transaction; its DDLs are rows
  of ``ddl``; of a replay the checkpoint moves with each round. It ends in one transaction under the exclusive fence:
  plan closed, checkpoint moved, ``applied`` cleared, fence raised, and its row of ``step`` done.
- ``Steps.anew`` leaves the target unfit until its end: a first load, a restore, a table that is made anew. Its steps
  are rows of ``step``, written together, with the digest of all, before the first of them. The last one deletes them,
  in the transaction that makes the target ready. Of a restore that is followed by its load (`Follow`), it leaves one
  row in their place, which the end of that load deletes: a run of the same command goes on with the load.
- Steps before and behind those need no row: each is a plan, or one transaction.

What a run finds that was killed:

- Within a unit: the server has rolled it back. Between two: ``applied`` says which are there.
- Around a statement of a DDL: `pumphouse.loader.ddl` looks whether it ran.
- Within a `Build`: it runs again as a whole, beginning with what it drops. No row has come yet.
- Within `ForeignKeys`, or among the indexes behind a dump's rows: those that are there are left alone.
- Around `HandOver`: a table that is in its place is no longer in our schema. Within `Leave`: what is left of it goes.
- Between two steps of ``anew``: a run that plans the same steps (by digest) goes on at the first that is not done; one
  that plans others begins anew. A load never goes on with them: it refuses the target, or, where one table is made
  anew, gives that up and leaves the table out as before.
- Between plans of a load: the checkpoint says from where. A plan that was begun is finished by its own row, whatever
  the settings say by then; one of which nothing was applied is given up and made from what the archive has by then.

A target that an older release left within a first load, a restore or a resync has no rows of ``step``: it begins anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pumphouse.archive.view import ArchiveView
from pumphouse.errors import BinlogError
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.loader.plan import Mode, Plan
from pumphouse.loader.rules import Rules
from pumphouse.loader.state import NOTHING_RECORDED, PARTS_TASK, Checkpoint, Recorded, Standing
from pumphouse.loader.work import Work, total_bytes
from pumphouse.model.table import DbInfo
from pumphouse.model.tso import Tso, show
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import LoadRule, LoadSettings, TargetSettings

_NAMES = 5
# Of the rows of a table, from where on one more statement costs less than it brings.
_LATE_BYTES = 32 << 20
_READY = "make the target ready"
_SAID = {
    Mode.BASE: "the dump, exact from {to} on",
    Mode.MERGE: "({since}, {to}]",
    Mode.REPLAY: "({since}, {to}], change by change",
    Mode.REPEAT: "({since}, {to}] once more",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a planner of loads is given.

    Args:
        view: the archive.
        standing: what the target says of the task.
        rules: of this run.
        settings: the section [load].
        task: name of the load.
        target: its server, and the schema there that keeps the state of loads.
    """

    view: ArchiveView
    standing: Standing
    rules: Rules
    settings: LoadSettings
    task: str
    target: TargetSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """An open plan is given up: nothing of it was applied, or its table is left out as before."""

    plan: Plan

    def __str__(self) -> str:
        return f"give up plan {self.plan.number}, {'a resync' if self.plan.only else 'of which nothing was applied'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """An open plan is given up with part of it applied: the target is inconsistent."""

    plan: Plan
    reason: str

    def __str__(self) -> str:
        return f"abandon plan {self.plan.number}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """A table, ``database.table`` in lower case, is left out from now on."""

    table: str
    since: Tso
    why: str

    def __str__(self) -> str:
        return f"leave out {self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack:
    """What the run before left of the last round of an open replay goes. ``work``: as that run had it."""

    work: Work

    def __str__(self) -> str:
        return f"take back the last round of plan {self.work.plan.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A plan: begun where it is not, carried out, closed. ``work.plan.number`` is 0 until it is begun.

    ``late``: tables that get their `late_indexes` behind its rows.
    """

    work: Work
    late: tuple[TableVersion, ...] = ()

    def __str__(self) -> str:
        plan, work = self.work.plan, self.work
        what = _SAID[plan.mode].format(since=show(plan.from_ts), to=show(plan.to_ts))
        number = f"go on with plan {plan.number}: " if plan.number else ""
        return f"{number}apply {what}: {total_bytes([work]):,} bytes, {len(work.events)} DDLs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """The target gets the checkpoint at which it equals the source, as the user says."""

    checkpoint: Checkpoint

    def __str__(self) -> str:
        return f"take the target for equal to the source at {show(self.checkpoint.ts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The target forgets plans, units and DDLs of every task, and is incomplete from here on.

    Args:
        checkpoint: its row then.
        beside: databases that were made by other rules, or for another dump: they go first, while something names them.
        rules: of the settings, which take the place of all that the target knew; None = that stays.
    """

    checkpoint: Checkpoint
    beside: tuple[str, ...] = ()
    rules: tuple[LoadRule, ...] | None = None

    def __str__(self) -> str:
        if self.checkpoint.task == PARTS_TASK:
            return "note that it has not ended"
        return f"mark the target incomplete, forget its load{_dropping(self.beside)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Databases, tables, sequences and views are made empty; what is named goes before.

    Args:
        drop: databases.
        drop_tables: tables.
        databases: as they are called there.
        objects: as they are called there, in the order in which they can be made.
        ddls: commit ts of DDLs that run again, for one table alone; None = all of every task are forgotten.
        late: those of the tables that lose their `late_indexes`, which come back behind their rows.
    """

    drop: tuple[str, ...] = ()
    drop_tables: tuple[tuple[str, str], ...] = ()
    databases: tuple[DbInfo, ...] = ()
    objects: tuple[TableVersion, ...] = ()
    ddls: tuple[int, ...] | None = None
    late: tuple[TableVersion, ...] = ()

    def __str__(self) -> str:
        gone = (*self.drop, *map(".".join, self.drop_tables))
        databases = f"{len(self.databases)} databases, " if self.databases else ""
        return f"make {databases}{len(self.objects)} tables and views{_dropping(gone)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeys:
    """Those of tables that have their rows by now, which the source has checked."""

    objects: tuple[TableVersion, ...]

    def __str__(self) -> str:
        return "make foreign keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Tables that were made in our schema get their places, all in one statement; none of these may be taken.

    Args:
        databases: made where they are missing.
        tables: (name in our schema, (database, name)) of each.
        where: of the one table, which rows were asked for: it is noted how many there are.
        followed: a capture reads the server's binlog, and nothing of our schema: the rows are copied beside their
            places first, so that it has them, and the archive and the targets get the tables as any other.
    """

    databases: tuple[DbInfo, ...]
    tables: tuple[tuple[str, tuple[str, str]], ...]
    where: Predicate = ALL_ROWS
    followed: bool = False

    def __str__(self) -> str:
        places = _some([".".join(place) for _, place in self.tables])
        databases = _some([info.name for info in self.databases])
        return (
            f"put {len(self.tables)} tables in their places: {places}; databases that are missing are made: {databases}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Our schema goes, with all that is in it."""

    schema: str

    def __str__(self) -> str:
        return f"drop {self.schema}, which kept the state of this restore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """A target that was restored goes on with its load, by the same command. Its row is there until a load has ended.

    ``by``: what else decides which rows the restore has put there.
    """

    cluster_id: int
    ts: Tso
    by: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"go on with its load from {show(self.ts)}"

    @property
    def digest(self) -> str:
        """By which a run of the same command knows the row."""
        return hashlib.sha256("\n".join((f"{self.cluster_id} {self}", *self.by)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The target may be loaded.

    ``follow``: the moment from which on the same command does so; None = it ends here. ``once``: digest of the yes by
    which it was restored: who comes again with that one has nothing to do. '' = nobody was asked.
    """

    reason: str
    follow: Follow | None = None
    once: str = ""

    def then(self) -> tuple[str, Sequence[tuple[str, str]]]:
        """What is written down when it is ready, in place of the steps: digest, and (kind, what)."""
        if self.follow is not None:
            return self.follow.digest, [("follow", str(self.follow))]
        return (self.once, [("ended", "restored by a yes that counts once")]) if self.once else ("", ())

    def __str__(self) -> str:
        return _READY if self.follow is None else f"{_READY}, and {self.follow}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BringBack:
    """A table is followed again. ``subjects``: its name, and ids that a rule names.

    ``patterns``: of rules that are gone, and that leave out no table behind it.
    """

    subjects: tuple[str, ...]
    patterns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"follow {self.subjects[0]} again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Nothing can be loaded past this: the error is raised when all before it is done."""

    error: BinlogError

    def __str__(self) -> str:
        return f"stop: {self.error.message}"


Step = (
    Discard | Abandon | Park | TakeBack | Apply | Equal | Reset | Build | ForeignKeys | HandOver | Leave | Ready
    | BringBack | Halt
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is to be done, in order: ``before``, ``anew``, ``after``.

    Args:
        from_ts: the checkpoint before, for the report; of a target that begins, the ts of its dump.
        to_ts: the checkpoint after.
        before: what ends what an earlier run has left open.
        anew: steps that leave the target unfit until the last of them: they are written down together.
        after: plans of a load.
    """

    from_ts: Tso
    to_ts: Tso
    before: tuple[Step, ...] = ()
    anew: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()

    @property
    def all(self) -> tuple[Step, ...]:
        """All of them, in order."""
        return (*self.before, *self.anew, *self.after)

    def digest(self) -> str:
        """SHA-256 of everything that decides what ``anew`` makes; what is dropped before, and by whom, is no part."""
        said = json.dumps([[type(step).__name__, _identity(step)] for step in self.anew], sort_keys=True, default=str)
        return hashlib.sha256(said.encode()).hexdigest()

    def followed(self, follow: Follow | None, *, once: str = "") -> Steps:
        """The same, where the command goes on with the load of the target that the last of ``anew`` makes ready.

        ``once``: as in `Ready`.
        """
        ready = [replace(step, follow=follow, once=once) if isinstance(step, Ready) else step for step in self.anew]
        return replace(self, anew=tuple(ready))

    @property
    def all_done(self) -> Recorded:
        """What is recorded of ``anew`` where all of it is done."""
        return Recorded(digest=self.digest(), done=dict.fromkeys(range(len(self.anew)), ()))

    def to_dict(self, recorded: Recorded = NOTHING_RECORDED) -> list[dict[str, str]]:
        """For reports: each step, and whether an earlier run has done it."""
        done = recorded.done if recorded.done and recorded.digest == self.digest() else {}
        first = len(self.before)
        return [
            {"step": kind_of(step), "what": str(step), "state": "done before" if at - first in done else "to do"}
            for at, step in enumerate(self.all)
        ]


def filled(base: Work, build: Build) -> tuple[Step, ...]:
    """A `Build`, and the rows of a dump in what it makes; indexes of large tables come behind their rows."""
    sizes = base.sizes if not base.plan.where else {}
    late = tuple(version for version in build.objects if sizes.get(version.table.id, 0) >= _LATE_BYTES)
    return (replace(build, late=late), Apply(work=base, late=late))


def kind_of(step: Step) -> str:
    """Its name in tables and reports: that of its class, as ``foreign_keys``."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in type(step).__name__).lstrip("_")


def _identity(step: Step) -> Any:
    match step:
        case Reset(checkpoint=checkpoint, rules=rules):
            return [checkpoint.ts, checkpoint.reason, checkpoint.cluster_id, _rules(rules or ())]
        case Build(databases=databases, objects=objects, ddls=ddls):
            made = [[version.name, version.table.raw] for version in objects]
            return [[each.raw | {"there": each.name} for each in databases], made, ddls]
        case Apply(work=work):
            # Not the buckets: those of a plan that was begun are in its row.
            plan, ruled = work.plan, _rules(work.rulings.values())
            return [
                str(plan.mode), plan.from_ts, plan.to_ts, plan.archive, plan.boundaries, plan.touched,
                sorted(plan.skipped), plan.without, plan.ruled, ", ".join(plan.only), ruled,
                *([plan.where.to_dict()] if plan.where else []),
            ]  # fmt: skip
        case ForeignKeys(objects=objects):
            return [version.name for version in objects]
        case HandOver(tables=tables, followed=followed):
            return [tables, followed] if followed else tables
        case _:
            # Not who goes on from there: that is no part of what was made.
            return _READY if isinstance(step, Ready) else str(step)


def _rules(rules: Iterable[LoadRule]) -> list[Any]:
    return [rule.model_dump(mode="json") for rule in rules]


def _dropping(names: Sequence[str]) -> str:
    return f"; drop {_some(names)}" if names else ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{', '.join(names[:_NAMES])}{more}"
