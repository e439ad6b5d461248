"""A load from one end to the other: own the target, finish what is open, plan, apply epoch by epoch, close.

Runs on one connection, which holds the GET_LOCK and executes the DDL; units go through connections of the engine's.
May be killed anywhere: the next run finds the plan, the units and the DDLs that are done, and goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Protocol

import structlog

from pumphouse.archive.view import ArchiveView
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import DdlRefused, LoadError, TargetAhead, TargetIncomplete, UsageError
from pumphouse.loader import fence, state
from pumphouse.loader.context import LoadContext
from pumphouse.loader.ddl import DdlExecutor, create_ddl_table
from pumphouse.loader.decode import Decoder
from pumphouse.loader.dropping import dropping, require_settled
from pumphouse.loader.engine import Engine
from pumphouse.loader.epochs import Epochs
from pumphouse.loader.failed import create_failed_table
from pumphouse.loader.fence import Ownership
from pumphouse.loader.hints import keys_in_the_way, offering_resync
from pumphouse.loader.looks import Looks
from pumphouse.loader.names import require_names
from pumphouse.loader.plan import Mode, Phase, UnitId
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.rules import NO_RULES, Rules, create_rule_table, forget_passed, park, record
from pumphouse.loader.stages import ApplyContext, UnitSummary
from pumphouse.loader.state import Checkpoint, TargetState
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.loader.unfit import require_engine, require_fit, require_state, tables_of, unseen
from pumphouse.loader.unit import Claim
from pumphouse.loader.work import Work, open_work, pieces_of, repeat_work, works_between
from pumphouse.model.tso import Tso, show
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import quote
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import ArchiveSettings, LoadSettings

log = structlog.get_logger()


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
    require_engine(connection)
    connection.create_tables()
    create_ddl_table(connection)
    create_rule_table(connection)
    create_failed_table(connection)
    require_state(connection)
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


class Streaming(Protocol):
    """Plans of the mode replay (`pumphouse.replay.load`)."""

    def take_back(self, loader: Loader, work: Work) -> None:
        """Put back what an earlier run may have written above the checkpoint."""
        ...

    def stream(self, loader: Loader, work: Work) -> None:
        """Carry out a plan from the checkpoint on."""
        ...


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
        streaming: Streaming | None = None,
    ) -> None:
        """``streaming``: carries out plans of the mode replay; without it there are none."""
        self._streaming = streaming
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
        self._executed: set[tuple[int, Tso]] = set()
        self.report = LoadReport(
            target=connection.name, task=task, from_ts=Tso(0), to_ts=Tso(0), parked=rules.parked,
            skipped={name: str(each) for name, each in rules.tables.items() if not each.parked},
        )  # fmt: skip
        self.tell_unheard(rules)
        said = Rules.of(settings.rules, Tso(0))
        self.report.notes += [
            f"{name} is still left out, though no rule says so any more: `pumphouse load --resync` brings a table back"
            for name in sorted(self.report.skipped)
            if said.left_out(name) is None
        ]
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
        with offering_resync(self.connection, self.view, self.rules, self.task):
            opened = self.opened()
        if opened is not None:
            # It can only be carried out as a whole: its units are of all its range.
            self._require_before(goal, opened.plan.to_ts, "has an open plan that ends at")
        if at < goal:
            require_names(self.connection, self.view, self.rules, at, goal)
        mode = Mode.REPLAY if self._streaming is not None and self.settings.mode == "replay" else Mode.MERGE
        with offering_resync(self.connection, self.view, self.rules, self.task):
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

    def tell_unheard(self, rules: Rules) -> None:
        """Rules that fit nothing are said: a name that is misspelt would do nothing, without a word."""
        for what in rules.unheard_of:
            self.report.notes.append(f"{what}; is it misspelt?")
            log.warning("rule_of_nothing", target=self.connection.name, task=self.task, what=what)

    def park(self, table: str, since: Tso, why: str) -> None:
        """Leave a table, ``database.table`` in lower case, out from now on."""
        self.rules = park(self.connection, self.owner, self.task, self.rules, table, since, why)
        self.report.parked = self.rules.parked

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
        self._require_fit(work)
        if work.plan != plan:
            state.amend_plan(self.connection, self.owner, work.plan)
            log.warning("plan_amended", task=plan.task, number=plan.number, boundaries=len(work.plan.boundaries))
        if plan.mode is Mode.REPLAY and self._streaming is not None:
            self.make_databases()
            with self.rules.advising(self.view.timeline):
                self._streaming.take_back(self, work)  # before anything of the plan becomes another
        return work

    def _require_fit(self, work: Work) -> None:
        """LoadError where rows of a plan would go into a table that is not transactional, or fire triggers."""
        tables = tables_of(work, self.view.timeline, self.rules)
        with self.rules.advising(self.view.timeline):
            require_fit(self.connection, tables, {name.lower() for name in self.settings.triggers})
        notes = unseen(self.connection, {db for db, _ in tables})
        self.report.notes += [note for note in notes if note not in self.report.notes]

    def _forget_passed(self, since: Tso) -> None:
        said = self.settings.rules
        self.rules = forget_passed(self.connection, self.owner, self.task, self.rules, said, since)

    def _extended(self, work: Work, goal: Tso) -> Work:
        """A replay that was begun goes on to what is asked for now: more of the archive may be what it stopped for."""
        plan = work.plan
        if plan.mode is not Mode.REPLAY or goal <= plan.to_ts:
            return work
        # What it leaves out of its range so far is settled: other transactions of that may be on the target.
        txns = {ts: rule for ts, rule in self.rules.txns.items() if ts in plan.without or ts > plan.to_ts}
        rules = replace(self.rules, txns=txns)
        longer = next(works_between(self.view, plan.from_ts, goal, self.task, self.settings, rules, plan.mode))
        if longer.plan.to_ts <= plan.to_ts:
            return work
        longer = longer.numbered(plan.number, {}).leaving_out(plan.without)
        self._require_fit(longer)
        state.amend_plan(self.connection, self.owner, longer.plan)
        return longer

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
        self._require_fit(work)
        work = work.fitted(self.settings, self.connection.dialect)
        with self.rules.advising(self.view.timeline):
            ranges = Decoder(self.context(work)).ranges(work.pieces) if work.plan.buckets else {}
        numbered = work.numbered((found.plan_number if found else 0) + 1, ranges)
        self.owner = fence.raise_again(self.connection, self.owner)
        state.begin_plan(self.connection, self.owner, numbered.plan)
        return numbered

    def run(self, work: Work) -> Tso:
        """Carry a committed plan out, from wherever it stands; returns the checkpoint after it."""
        plan = work.plan
        log.info("plan_started", task=plan.task, number=plan.number, from_ts=plan.from_ts, to_ts=plan.to_ts)
        self.make_databases()
        executor = DdlExecutor(self.connection, self.owner, self.task, routes=self.rules.routes)
        self._tell_losses(work)
        self._tell_left_out(work)
        if plan.mode is Mode.REPLAY:
            return self._run_stream(work, executor.dialect)
        with self.rules.advising(self.view.timeline):
            units = self._prepare(work) if work.pieces else {}
        applied = state.applied_units(self.connection, plan)
        apply = ApplyContext(
            target=self.connection.settings,
            claim=Claim(task=plan.task, plan=plan.number, fence=self.owner.number),
            server=Looks(self.connection).server,
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
        if self._streaming is None:
            raise LoadError(
                f"task {self.task} has an open plan that was replayed", hint="finish it first: pumphouse load"
            )
        with self.rules.advising(self.view.timeline):
            self._streaming.stream(self, work)
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

    def _tell_left_out(self, work: Work) -> None:
        """Transactions whose rows the plan leaves out: written down, also by the run after one that was killed."""
        for ts in map(Tso, work.plan.without):
            rule = work.txn_rules.get(ts)
            why = "by a rule that the plan began with" if rule is None else rule.why
            if rule is not None:
                record(self.connection, self.owner, self.task, f"txn {ts}", ts, rule)
            self.report.notes.append(f"the rows of the transaction at {show(ts)} are left out: {why}")
            log.warning("txn_by_rule", task=self.task, commit_ts=ts, why=why)
        plan = work.plan
        for ts in (Tso(ts) for ts in self.rules.txns if plan.from_ts < ts <= plan.to_ts and ts not in plan.without):
            self.report.notes.append(f"the rule for the transaction at {show(ts)} comes too late: its plan has begun")
            log.warning("txn_rule_too_late", task=self.task, commit_ts=ts, plan=plan.number)

    def _prepare(self, work: Work) -> dict[UnitId, UnitSummary]:
        self.progress("decode", 0, len(work.pieces))
        found = {summary.unit: summary for summary in self._engine.prepare(self.context(work), work.pieces)}
        self.report.engine = self._engine.where
        log.info("engine_chosen", task=work.plan.task, number=work.plan.number, where=self.report.engine)
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
                if error.condition:
                    raise
                name = ".".join(there.version.name)
                raise DdlRefused(
                    f"target {self.connection.name} cannot move the sequence {name} on: {error.message}",
                    code=error.code,
                    statement=error.statement,
                    table=name,
                ) from error

    def run_ddl(self, executor: DdlExecutor, work: Work, event: DdlEvent) -> None:
        """Execute one DDL of a plan, or what a rule says in its place; nothing when this run has done so."""
        if (work.plan.number, event.commit_ts) in self._executed:
            return
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
            error.hint += keys_in_the_way(self.connection, self.rules.routes, event, error) if rule is None else ""
            raise
        if rule is not None:
            what = "skipped" if rule.do == "skip" else "replaced"
            self.report.notes.append(f"DDL job {event.job.id} at {show(event.commit_ts)} was {what}: {rule.why}")
            log.warning("ddl_by_rule", task=self.task, job_id=event.job.id, do=rule.do, why=rule.why)
        self._executed.add((work.plan.number, event.commit_ts))
        self.report.ddls += 1
        self.report.notes += done.notes
