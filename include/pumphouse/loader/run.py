"""A load from one end to the other: own the target, finish what is open, plan, apply epoch by epoch, close.

Runs on one connection, which holds the GET_LOCK and executes the DDL; units go through connections of the engine's.
May be killed anywhere: the next run finds the plan, the units and the DDLs that are done, and goes on.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import structlog

from pumphouse.archive.view import ArchiveView
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import DdlRefused, LoadError, RowRejected, TargetAhead, TargetIncomplete, UsageError
from pumphouse.loader import fence, state
from pumphouse.loader.context import LoadContext
from pumphouse.loader.ddl import DdlExecutor, create_ddl_table
from pumphouse.loader.decode import Decoder
from pumphouse.loader.dropping import dropping, require_settled
from pumphouse.loader.engine import Engine
from pumphouse.loader.epochs import Epochs
from pumphouse.loader.fence import Ownership
from pumphouse.loader.plan import Mode, Phase, UnitId
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.rules import NO_RULES, Rules, create_rule_table, forget_passed, park, record, rule_text
from pumphouse.loader.stages import ApplyContext, UnitSummary
from pumphouse.loader.state import Checkpoint, TargetState
from pumphouse.loader.tables import only_takes_away
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.loader.unit import Claim
from pumphouse.loader.work import Work, databases_between, open_work, pieces_of, repeat_work, works_between
from pumphouse.model.tso import Tso, show
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote
from pumphouse.schema.render import render
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import ArchiveSettings, LoadSettings

log = structlog.get_logger()

_ANEW = (
    "where somebody else changed the table on the target: `pumphouse load --resync {table}` makes it anew, while the "
    "others go on"
)
_PAST_A_DROP = (
    "at TiDB, a DROP INDEX of {table} was under way where this plan ends, so it cannot have these rows: park the table "
    "and load; then take the rule away, and `pumphouse load --resync {table}` makes it anew, as it is behind that DDL"
)
# A column is used in a foreign key: of its own table, of another one; what else cannot be done under one.
_UNDER_A_KEY = frozenset({1832, 1833, 1846})
_KEY = re.compile(r"^ *(CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY .*?),?$", re.MULTILINE)
# What a server, or what counts its rows, says where two rows have one key.
_COLLISION = re.compile(r"Duplicate entry|collide|share a unique key")


def own_target(
    connection: TargetConnection,
    *,
    task: str,
    cluster_id: int,
    run: str,
    take_over: bool = False,
    any_task: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Ownership, Checkpoint | None]:
    """Take the target, or raise TargetBusy naming the holder; with the task's checkpoint.

    ``any_task``: a restore, which throws every task's state away, may take a target that belongs to another load, also
    one from another cluster's archive.
    """
    connection.create_tables()
    create_ddl_table(connection)
    create_rule_table(connection)
    owner = fence.acquire(connection, run=run, take_over=take_over, clock=clock)
    for other in state.read_all(connection):
        if other.task != task and not any_task:
            raise LoadError(
                f"target {connection.name} belongs to the load {other.task!r}: both would write its tables",
                hint=f"use --task {other.task}, or another target",
                target=connection.name,
                task=other.task,
            )
    found = state.read(connection, task)
    if found is not None and found.cluster_id != cluster_id and not any_task:
        raise LoadError(
            f"target {connection.name} is loaded from cluster {found.cluster_id}, the archive is of cluster "
            f"{cluster_id}",
            hint="is it the right one: check host and port of [target] (in Airflow: the connection), and archive.root",
            target=connection.name,
        )
    return owner, found


def abandon(connection: TargetConnection, owner: Ownership, task: str, reason: str) -> None:
    """Give the open plan up; the target is inconsistent from then on, and only a restore clears that."""
    opened = state.open_plan(connection, task)
    if opened is None:
        raise UsageError(f"task {task} has no open plan on {connection.name}")
    state.abandon_plan(connection, owner, opened, reason)


class Loader:
    """One run on one target that it owns, with one view of the archive."""

    def __init__(
        self,
        *,
        view: ArchiveView,
        archive_settings: ArchiveSettings,
        connection: TargetConnection,
        owner: Ownership,
        settings: LoadSettings,
        task: str,
        engine: Engine,
        progress: Progress = silent,
        clock: Clock = SYSTEM_CLOCK,
        rules: Rules = NO_RULES,
        stream: Callable[[Loader, Work], None] | None = None,
    ) -> None:
        """``stream``: carries out plans of the mode replay; without it there are none."""
        self._stream = stream
        self.view = view
        self.rules = rules
        self.connection = connection
        self.owner = owner
        self.task = task
        self.settings = settings
        self.progress = progress
        self._archive_settings = archive_settings
        self._engine = engine
        self._clock = clock
        self._started = clock.monotonic()
        self.report = LoadReport(
            target=connection.name, task=task, from_ts=Tso(0), to_ts=Tso(0), parked=rules.parked,
            skipped={name: str(each) for name, each in rules.tables.items() if not each.parked},
        )  # fmt: skip
        if rules.parked:
            log.warning("tables_parked", target=connection.name, task=task, tables=rules.parked)

    def forward(self, checkpoint: Checkpoint, to: Tso | None) -> LoadReport:
        """Load (checkpoint, to]; None = to the archive's end. Nothing to do when the target is there already."""
        self.require_ready(checkpoint)
        end, at = self.view.end, checkpoint.ts
        self.report.from_ts = at
        if at > end:
            raise TargetAhead(
                f"target {self.connection.name} is at {show(at)}, the archive ends at {show(end)}",
                hint="this is not the archive that the target was loaded from, or it was cut",
                target=self.connection.name,
                checkpoint=at,
                archive_end=end,
            )
        goal = end if to is None else to
        self._require_before(goal, at, "stands at")
        opened = self.opened()
        if opened is not None:
            # It can only be carried out as a whole: its units are of all its range.
            self._require_before(goal, opened.plan.to_ts, "has an open plan that ends at")
        if at < goal:
            self.require_names(at, goal)
        mode = Mode.REPLAY if self._stream is not None and self.settings.mode == "replay" else Mode.MERGE
        with self._offering_resync():
            if opened is not None:
                self.report.resumed = True
                at = max(at, self.run(self._extended(opened, goal)))
            for work in works_between(self.view, at, goal, self.task, self.settings, self.rules, mode):
                at = self.run(self.begin(work))
        return self.finish(at)

    def repeat(self, checkpoint: Checkpoint, since: Tso) -> LoadReport:
        """Apply (since, checkpoint] once more: for tables that have a key and whose shape did not change since."""
        self.require_ready(checkpoint)
        self.report.from_ts = checkpoint.ts
        opened = self.opened()
        if opened is not None and opened.plan.mode is not Mode.REPEAT:
            raise LoadError("a plan is open", hint="finish it first: run the load without --repeat-from")
        if opened is None:
            if since >= checkpoint.ts:
                raise UsageError(f"the target is at {show(checkpoint.ts)}: nothing after {show(since)} was loaded")
            opened = self.begin(repeat_work(self.view, since, checkpoint.ts, self.task, self.settings, self.rules))
        self.report.skipped = {k: v for k, v in opened.plan.skipped.items() if k not in self.report.parked}
        self.run(opened)
        return self.finish(checkpoint.ts)

    def park(self, table: str, since: Tso, why: str) -> None:
        """Leave a table, ``database.table`` in lower case, out from now on."""
        self.rules = park(self.connection, self.owner, self.task, self.rules, table, since, why)
        self.report.parked = self.rules.parked

    @contextmanager
    def _offering_resync(self) -> Iterator[None]:
        """An error of the block that may come of what others did on the target says how its table is made anew."""
        try:
            yield
        except (RowRejected, DdlRefused) as error:
            table = error.facts.get("table")
            if isinstance(table, str):
                collided = _COLLISION.search(str(error.facts.get("reason"))) is not None
                going = collided and self._key_was_going(table)
                error.hint += self._collations(table) if collided and not going else ""
                error.hint += "; " if error.hint and error.hint[-1].strip() else ""
                error.hint += _PAST_A_DROP.format(table=table) if going else _ANEW.format(table=table)
            raise

    def _key_was_going(self, table: str) -> bool:
        """Whether the next DDL of a table behind the open plan takes a key away: rows before it may share the key."""
        plan = state.open_plan(self.connection, self.task)
        if plan is None:
            return False
        events = self.view.timeline.ddls(plan.to_ts, self.view.end)
        behind = (change for event in events for change in event.changes if ".".join(change.known.name) == table)
        change = next(behind, None)
        if change is None or change.before is None or change.after is None:
            return False
        before, after = (sum(i.unique and i.public for i in v.table.indexes) for v in (change.before, change.after))
        return after < before and only_takes_away(change.before, change.after)

    def _collations(self, table: str) -> str:
        """What to do about keys that differ at the source and are one under the collations of a table there."""
        db, name = self.rules.routes.table(*table.split(".", 1))
        rows = self.connection.query(
            "SELECT DISTINCT c.column_name, c.collation_name FROM information_schema.statistics s"
            " JOIN information_schema.columns c ON c.table_schema = s.table_schema AND c.table_name = s.table_name"
            " AND c.column_name = s.column_name"
            " WHERE s.non_unique = 0 AND c.collation_name IS NOT NULL AND s.table_schema = %s AND s.table_name = %s"
            " ORDER BY 1",
            (db, name),
        )
        if not rows:
            return ""
        binary = "utf8mb4_nopad_bin" if self.connection.dialect is Dialect.MARIADB else "utf8mb4_0900_bin"
        texts = ", ".join(f"{column} by {collation}" for column, collation in rows)
        return (
            f"; its unique keys compare {texts}: where values that differ at the source are one there, ALTER TABLE "
            f"{qualified(db, name)} MODIFY the column with COLLATE {binary}, which tells all apart, and load again"
        )

    def opened(self) -> Work | None:
        """What an earlier run left unfinished. A plan of which nothing was applied is given up: it is made anew.

        So a plan that could not be carried out (a DDL that straddles its end, a schema that was wrong) is nobody's
        burden, and a new one sees more of the archive.
        """
        plan = state.open_plan(self.connection, self.task)
        if plan is None:
            found = state.read(self.connection, self.task)  # a run that gave a plan up may have been killed then
            self._forget_passed(Tso(0) if found is None else found.ts)
            return None
        if plan.only:
            self.owner = state.discard_resync(self.connection, self.owner, plan)
            return None
        if plan.mode is not Mode.REPLAY and state.discard_untouched(self.connection, self.owner, plan):
            log.info("plan_discarded", task=plan.task, number=plan.number, from_ts=plan.from_ts, to_ts=plan.to_ts)
            self._forget_passed(plan.from_ts)
            return None
        begun = state.begun(self.connection, plan)
        work = open_work(self.view, plan, self.connection.name, self.rules, begun)
        if work.plan != plan:
            state.amend_plan(self.connection, self.owner, work.plan)
            log.warning("plan_amended", task=plan.task, number=plan.number, boundaries=len(work.plan.boundaries))
        return work

    def _forget_passed(self, since: Tso) -> None:
        said = self.settings.rules
        self.rules = forget_passed(self.connection, self.owner, self.task, self.rules, said, since)

    def _extended(self, work: Work, goal: Tso) -> Work:
        """A replay that was begun goes on to what is asked for now: more of the archive may be what it stopped for."""
        plan = work.plan
        if plan.mode is not Mode.REPLAY or goal <= plan.to_ts:
            return work
        longer = next(works_between(self.view, plan.from_ts, goal, self.task, self.settings, self.rules, plan.mode))
        if longer.plan.to_ts <= plan.to_ts:
            return work
        longer = longer.numbered(plan.number, {})
        state.amend_plan(self.connection, self.owner, longer.plan)
        return longer

    def require_names(self, after: Tso, upto: Tso, more: Iterable[str] = ()) -> None:
        """Refuse names of the source that would meet on the target, with each other or with our own schema.

        LoadError when a database (``more``: also one of these) would replace the schema of our tables, without regard
        to case: some servers make one of both. ConfigError when rules make one of two.
        """
        timeline, routes = self.view.timeline, self.rules.routes
        own, databases = self.connection.settings.schema_name, databases_between(timeline, after, upto)
        for ts in (after, upto):
            self.rules.require_apart(databases, timeline.tables_at(ts))
        names = {routes.database(name): name for name in (*databases, *more)} | {name: name for name in routes.beside}
        clash = next((name for there, name in names.items() if there.casefold() == own.casefold()), None)
        if clash is not None:
            raise LoadError(
                f"the source has a database {clash!r}, and on target {self.connection.name} the schema {own!r} keeps "
                "the state of the load",
                hint=f"give the database another name there, {rule_text('route', database=clash, to='…')}or, for a "
                "target that is empty or to be restored, set target.schema_name (restore_target.schema_name) to a "
                "name of its own",
                target=self.connection.name,
                database=clash,
            )

    def make_databases(self) -> None:
        """Those that rules of tables name, which no DDL of the source makes."""
        for name in sorted(self.rules.routes.beside):
            self.connection.execute(f"CREATE DATABASE IF NOT EXISTS {quote(name)}")

    def _require_before(self, goal: Tso, at: Tso, what: str) -> None:
        if at > goal:
            raise TargetAhead(
                f"target {self.connection.name} {what} {show(at)}, beyond {show(goal)}, which was asked for",
                hint="a load only goes forward: ask for a later moment, or `pumphouse restore --into target --to …`",
                target=self.connection.name,
                checkpoint=at,
                to=goal,
            )

    def require_ready(self, checkpoint: Checkpoint) -> None:
        """TargetIncomplete unless the target may be loaded."""
        if checkpoint.state is not TargetState.READY:
            raise TargetIncomplete(
                f"target {self.connection.name} is {checkpoint.state}: {checkpoint.reason}",
                hint="restore it: `pumphouse restore --into target --to …`",
                target=self.connection.name,
                state=str(checkpoint.state),
            )

    def begin(self, work: Work) -> Work:
        """Give the plan its number, raise the fence and commit the plan row; nothing of the plan is done before."""
        found = state.read(self.connection, self.task)
        work = work.fitted(self.settings, self.connection.dialect)
        with self.rules.advising(self.view.timeline):
            decoder = Decoder(self.context(work))
            ranges = decoder.ranges(work.pieces) if work.plan.buckets else {}
            gapped = decoder.gapped(work.pieces) if work.plan.without else None
        numbered = work.numbered((found.plan_number if found else 0) + 1, ranges, gapped)
        self.owner = fence.raise_again(self.connection, self.owner)
        state.begin_plan(self.connection, self.owner, numbered.plan)
        for ts in numbered.plan.without:
            rule = self.rules.txns[ts]
            record(self.connection, self.owner, self.task, f"txn {ts}", Tso(ts), rule)
            self.report.notes.append(f"the rows of the transaction at {show(Tso(ts))} are left out: {rule.why}")
            log.warning("txn_by_rule", task=self.task, commit_ts=ts, why=rule.why)
        return numbered

    def run(self, work: Work) -> Tso:
        """Carry a committed plan out, from wherever it stands; returns the checkpoint after it."""
        plan = work.plan
        log.info("plan_started", task=plan.task, number=plan.number, from_ts=plan.from_ts, to_ts=plan.to_ts)
        self.make_databases()
        executor = DdlExecutor(self.connection, self.owner, self.task, routes=self.rules.routes)
        self._tell_losses(work)
        if plan.mode is Mode.REPLAY:
            return self._run_stream(work, executor.dialect)
        with self.rules.advising(self.view.timeline):
            units = self._prepare(work) if work.pieces else {}
        applied = state.applied_units(self.connection, plan)
        apply = ApplyContext(
            target=self.connection.settings, claim=Claim(task=plan.task, plan=plan.number, fence=self.owner.number)
        )
        total, done = len(units) + len(work.events), 0
        with self.rules.advising(self.view.timeline), closing(self._engine):
            epochs, ddls = Epochs(plan), deque(work.events)

            def run_ddls(place: int) -> None:
                """Those before a place."""
                nonlocal done
                while ddls and epochs.place(ddls[0].commit_ts) < place:
                    event = ddls.popleft()
                    self.run_ddl(executor, work, event)
                    done += 1
                    self.progress("apply", done, total)

            for step in epochs.steps(list(units)):
                run_ddls(step.place)
                fence.check_lock(self.connection)
                for phase in Phase:
                    wanted = [units[unit] for unit in step.units if unit.phase == phase]
                    done += len(wanted)
                    # The return of `apply` is the barrier: every delete is committed before the first insert.
                    self._apply(apply, [u for u in wanted if u.unit not in applied], phase)
                    self.progress("apply", done, total)
            run_ddls(len(plan.boundaries) + 1)
            self._set_sequences(work, executor.dialect)
        self.owner = state.close_plan(self.connection, self.owner, plan, checkpoint=plan.to_ts)
        self.report.plans += 1
        log.info("plan_closed", task=plan.task, number=plan.number, to_ts=plan.to_ts, units=total)
        return plan.to_ts

    def _run_stream(self, work: Work, dialect: Dialect) -> Tso:
        if self._stream is None:
            raise LoadError(
                f"task {self.task} has an open plan that was replayed", hint="finish it first: pumphouse load"
            )
        with self.rules.advising(self.view.timeline):
            self._stream(self, work)
            self._set_sequences(work, dialect)
        self.owner = state.close_plan(self.connection, self.owner, work.plan, checkpoint=work.plan.to_ts)
        self.report.plans += 1
        log.info("plan_closed", task=self.task, number=work.plan.number, to_ts=work.plan.to_ts)
        return work.plan.to_ts

    def finish(self, at: Tso) -> LoadReport:
        """The report."""
        self.report.to_ts = at
        self.report.seconds = round(self._clock.monotonic() - self._started, 3)
        return self.report

    # -- carrying out

    def _tell_losses(self, work: Work) -> None:
        """A range with a hole is loaded all the same: the archive took it. But never in silence."""
        if work.losses:
            log.warning("range_has_losses", task=work.plan.task, number=work.plan.number, losses=work.losses.lines())
        self.report.add_losses(work.losses)

    def _prepare(self, work: Work) -> dict[UnitId, UnitSummary]:
        self.progress("decode", 0, len(work.pieces))
        found = {summary.unit: summary for summary in self._engine.prepare(self.context(work), work.pieces)}
        self.progress("decode", len(work.pieces), len(work.pieces))
        self.report.epochs += len({(unit.table_id, unit.epoch) for unit in found})
        return found

    def context(self, work: Work) -> LoadContext:
        """What decoding a plan needs."""
        return LoadContext.of(work, self.view, self._archive_settings, self.connection.dialect, self.rules.routes)

    def _apply(self, context: ApplyContext, units: Sequence[UnitSummary], phase: Phase) -> None:
        if not units:
            return
        # Largest first, so that no connection ends up alone with the largest one.
        ids: list[UnitId] = [u.unit for u in sorted(units, key=lambda u: (-u.bytes, u.unit))]
        self._engine.apply(context, ids)
        rows = sum(unit.rows for unit in units)
        self.report.units += len(units)
        if phase is Phase.DELETE:
            self.report.deleted += rows
        else:
            self.report.inserted += rows

    def _set_sequences(self, work: Work, dialect: Dialect) -> None:
        """A sequence gives no value that the source gave out in the range; MySQL has none."""
        for each in work.sequences if dialect is not Dialect.MYSQL else ():
            there = replace(each, version=self.rules.routes.version(each.version))
            try:
                self.connection.query(there.statement(dialect))
            except StatementFailed as error:
                name = ".".join(there.version.name)
                raise DdlRefused(
                    f"target {self.connection.name} cannot move the sequence {name} on: {error.message}",
                    code=error.code,
                    statement=error.statement,
                    table=name,
                ) from error

    def run_ddl(self, executor: DdlExecutor, work: Work, event: DdlEvent) -> None:
        """Execute one DDL of a plan, or what a rule says in its place."""
        rule = work.rulings.get(event.commit_ts)
        if rule is None and (drop := dropping(event)) is not None and not executor.has_begun(event):
            begun = Tso(max(drop.begun, self.view.start))
            pieces = pieces_of(self.view.between(begun, event.commit_ts), begun, event.commit_ts, drop.table_ids)
            context = self.context(replace(work, tables=drop.table_ids))
            require_settled(self.connection, drop, context, pieces, self.view.genesis.ts)
        if rule is not None:
            record(self.connection, self.owner, self.task, f"ddl {event.commit_ts}", event.commit_ts, rule)
        try:
            done = executor.execute(event, None if rule is None else rule.sql)
        except DdlRefused as error:
            error.hint += self._keys_in_the_way(executor, event, error) if rule is None else ""
            raise
        if rule is not None:
            what = "skipped" if rule.do == "skip" else "replaced"
            self.report.notes.append(f"DDL job {event.job.id} at {show(event.commit_ts)} was {what}: {rule.why}")
            log.warning("ddl_by_rule", task=self.task, job_id=event.job.id, do=rule.do, why=rule.why)
        self.report.ddls += 1
        self.report.notes += done.notes

    def _keys_in_the_way(self, executor: DdlExecutor, event: DdlEvent, error: DdlRefused) -> str:
        """Where foreign keys of a table, or to it, are in the way: which ones, and the statements around them."""
        table, statement = error.facts.get("table"), error.facts.get("statement")
        if error.facts.get("code") not in _UNDER_A_KEY or not isinstance(table, str):
            return ""
        there = self.rules.routes.table(*table.split(".", 1))
        children = self.connection.query(
            "SELECT DISTINCT constraint_schema, table_name FROM information_schema.referential_constraints"
            " WHERE (unique_constraint_schema, referenced_table_name) = (%s, %s)"
            " OR (constraint_schema, table_name) = (%s, %s) ORDER BY 1, 2",
            (*there, *there),
        )
        names, drop, add = [], [], []
        for db, child in children:
            create = str(self.connection.query(f"SHOW CREATE TABLE {qualified(db, child)}")[0][1])
            for text, name in _KEY.findall(create):
                parent = quote(there[1]) if db == there[0] else qualified(*there)
                if (db, child) == there or f" REFERENCES {parent} " in text:
                    plain = name.replace("``", "`")
                    names.append(f"{plain} of {db}.{child}")
                    drop.append(f"ALTER TABLE {qualified(db, child)} DROP FOREIGN KEY {quote(plain)}")
                    add.append(f"ALTER TABLE {qualified(db, child)} ADD {text}")
        rendered = render(
            self.rules.routes.event(event), executor.dialect, keep_schema=self.connection.settings.schema_name
        )
        said = [each.sql for each in rendered]
        rest = said[said.index(statement) :] if statement in said else [str(statement)]
        sql = json.dumps([*drop, *rest, *add], ensure_ascii=False)
        return f"; the target does not do that under a foreign key ({', '.join(names)}): sql = {sql} goes around it"
