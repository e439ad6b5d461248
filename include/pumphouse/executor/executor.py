"""Carries out steps on a target that it owns (`pumphouse.loader.steps` says who records what).

Runs on one connection, which holds the GET_LOCK and executes the DDL; units go through connections of the engine's.
May be killed anywhere: the next run plans again, finds what is done, and goes on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import structlog

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import CorruptionError, DdlRefused
from pumphouse.executor.build import create_indexes, make, make_databases
from pumphouse.loader import fence, state
from pumphouse.loader.context import LoadContext
from pumphouse.loader.ddl import DdlExecutor
from pumphouse.loader.decode import Decoder
from pumphouse.loader.dropping import dropping, require_settled
from pumphouse.loader.engine import Engine
from pumphouse.loader.epochs import Epochs
from pumphouse.loader.fence import Ownership
from pumphouse.loader.hints import keys_in_the_way, offering_resync
from pumphouse.loader.looks import Looks
from pumphouse.loader.plan import Mode, Phase, Plan, UnitId
from pumphouse.loader.report import LoadReport, Progress, silent
from pumphouse.loader.rules import bring_back, end_rules, park, parked, record, rules_of_run
from pumphouse.loader.stages import ApplyContext, UnitSummary
from pumphouse.loader.state import TargetState
from pumphouse.loader.steps import (
    Apply,
    BringBack,
    Build,
    Discard,
    Equal,
    ForeignKeys,
    Given,
    Halt,
    HandOver,
    Leave,
    Park,
    Ready,
    Reset,
    Step,
    Steps,
    TakeBack,
    kind_of,
)
from pumphouse.loader.target import StatementFailed, TargetConnection
from pumphouse.loader.unfit import require_fit, tables_of, unseen
from pumphouse.loader.unit import Claim
from pumphouse.loader.work import Work, pieces_of
from pumphouse.loader.written import written
from pumphouse.model.tso import Tso, show
from pumphouse.replay.load import Stream
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import quote
from pumphouse.schema.versions import DdlEvent, TableVersion
from pumphouse.settings import ArchiveSettings

log = structlog.get_logger()


class Executor:
    """One run on one target that it owns, with one view of the archive."""

    def __init__(
        self,
        given: Given,
        connection: TargetConnection,
        owner: Ownership,
        engine: Engine,
        archive_settings: ArchiveSettings,
        progress: Progress = silent,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``given``: what the steps are planned from."""
        self._view, self._rules, self._settings, self._task = given.view, given.rules, given.settings, given.task
        self._connection, self._owner, self._engine = connection, owner, engine
        self._archive_settings, self._progress = archive_settings, progress
        self._clock, self._started = clock, clock.monotonic()
        self._executed: set[tuple[int, Tso]] = set()
        self._report = LoadReport.of(given)
        self._rows: Counter[int] = Counter()

    def carry_out(self, steps: Steps, *, again: bool = False) -> LoadReport:
        """All of them, in order; of ``anew`` those that no earlier run has done, or with ``again`` all."""
        report = self._report
        report.planned(steps, dry_run=False)
        shown = iter(report.steps)
        for step in steps.before:
            self._load_on(step)
            next(shown)["state"] = "done"
        done = self._done(steps, again=again) if steps.anew else {}
        for number, step in enumerate(steps.anew):
            if number in done:
                self._pass(step, done[number])
            else:
                self._do(step, number)
            next(shown)["state"] = "done before" if number in done else "done"
        for step in steps.after:
            self._load_on(step)
            next(shown)["state"] = "done"
        report.written = written(steps, self._rows, self._view.timeline, self._rules)
        report.seconds = round(self._clock.monotonic() - self._started, 3)
        return report

    def _done(self, steps: Steps, *, again: bool) -> Mapping[int, tuple[str, ...]]:
        """Of ``anew``, by number, what an earlier run has done of the same steps; if nothing, they are recorded."""
        digest, recorded = steps.digest(), state.recorded(self._connection, self._task)
        if not again and recorded.digest == digest and recorded.done and self._may_go_on(steps):
            return recorded.done
        what = [(kind_of(step), str(step)) for step in steps.anew]
        state.record_steps(self._connection, self._owner, self._task, digest, what)
        return {}

    def _may_go_on(self, steps: Steps) -> bool:
        """Whether the target is as those who recorded the steps left it."""
        found = state.read(self._connection, self._task)
        if isinstance(steps.anew[0], Reset) and (found is None or found.state is not TargetState.INCOMPLETE):
            return False
        try:
            state.open_plan(self._connection, self._task)
        except CorruptionError:
            return False
        return True

    def _pass(self, step: Step, notes: Sequence[str]) -> None:
        """A step that is done: what it left out, and what its range lacks, is said again."""
        self._report.resumed = True
        self._report.notes += notes
        if isinstance(step, Apply):
            self._tell(step.work)

    def _load_on(self, step: Step) -> None:
        """A step of a load: an error that may come of what others did on the target says the way on."""
        if isinstance(step, Apply) and step.work.plan.mode is Mode.REPEAT:
            self._do(step)
            return
        with offering_resync(self._connection, self._view, self._rules, self._task):
            self._do(step)

    def _do(self, step: Step, number: int | None = None) -> None:
        """One step; ``number``: its row in the table ``step``."""
        connection, owner, task = self._connection, self._owner, self._task
        notes: list[str] = []
        with self._rules.advising(self._view.timeline):
            match step:
                case Discard(plan=plan):
                    self._discard(plan)
                case Park(table=table, since=since, why=why):
                    park(connection, owner, task, table, since, why)
                    self._rules = parked(self._rules, table, since, why)
                    self._report.parked = self._rules.parked
                case TakeBack(work=work):
                    work = self._taken_up(work)
                    make_databases(connection, self._rules)
                    self._follow(work, self._stream(work).take_back())
                case Apply(work=work, late=late):
                    self._apply(work, number, late)
                case Equal(checkpoint=checkpoint):
                    state.write(connection, owner, checkpoint)
                case Reset():
                    self._reset(step)
                case Build() | ForeignKeys() | HandOver() | Leave():
                    notes = make(connection, task, self._rules, step)
                case Ready(reason=reason):
                    state.set_state(connection, owner, task, TargetState.READY, reason, step.then())
                case BringBack(subjects=subjects, patterns=patterns):
                    self._bring_back(subjects, patterns)
                case Halt(error=error):
                    raise error
        self._note(step, number, notes)

    def _note(self, step: Step, number: int | None, notes: Sequence[str]) -> None:
        """A step has ended. A plan's row says so in the transaction that closes it; the last step takes all rows."""
        self._report.notes += notes
        if number is not None and not isinstance(step, Apply | Leave | Ready | BringBack):
            state.step_done(self._connection, self._owner, self._task, number, notes)

    # -- a target that begins, or a table

    def _reset(self, step: Reset) -> None:
        connection, owner, task = self._connection, self._owner, self._task
        if step.beside:
            for each in state.read_all(connection):
                state.set_state(connection, owner, each.task, TargetState.INCOMPLETE, step.checkpoint.reason)
        for name in step.beside:
            connection.execute(f"DROP DATABASE IF EXISTS {quote(name)}")
        state.reset(connection, owner, step.checkpoint)
        if step.rules is not None:
            # What was left out until now comes back; the settings' rules are written down anew.
            end_rules(connection, owner, None)
            rules, uses = rules_of_run(connection, task, step.rules, Tso(0), self._view.timeline)
            uses.write_down(connection, owner, task)
            self._report.tell_unheard(rules)

    def _bring_back(self, subjects: Sequence[str], patterns: Sequence[str]) -> None:
        # First: a run that is killed here makes the table anew, and none goes on with what others changed since.
        state.forget_steps(self._connection, self._owner)
        for subject in subjects:
            if subject == subjects[0] or subject in self._rules.tables:
                bring_back(self._connection, self._owner, self._task, subject)
            self._report.skipped.pop(subject, None)
        for pattern in patterns:
            end_rules(self._connection, self._owner, self._task, f"table {pattern}")
        for name in (subjects[0], *patterns):
            self._report.parked.pop(name, None)

    # -- plans

    def _discard(self, plan: Plan) -> None:
        self._owner = state.discard(self._connection, self._owner, plan)
        log.info("plan_discarded", task=plan.task, number=plan.number, from_ts=plan.from_ts, to_ts=plan.to_ts)

    def _apply(self, work: Work, number: int | None, late: Sequence[TableVersion]) -> None:
        """Begin a plan or go on with it, carry it out, close it."""
        work = self._taken_up(work)
        plan = work.plan
        log.info("plan_started", task=plan.task, number=plan.number, from_ts=plan.from_ts, to_ts=plan.to_ts)
        make_databases(self._connection, self._rules)
        self._tell(work)
        units = 0
        if plan.mode is Mode.REPLAY:
            self._follow(work, self._stream(work).run())
        else:
            units = self._merge(work)
        create_indexes(self._connection, late)
        self._set_sequences(work)
        self._owner = state.close_plan(self._connection, self._owner, plan, number)
        self._report.plans += 1
        log.info("plan_closed", task=plan.task, number=plan.number, to_ts=plan.to_ts, units=units)

    def _taken_up(self, work: Work) -> Work:
        """The work as the plan's row has it, or will have it; the row is there then, and nothing was done before."""
        self._require_fit(work)
        row = state.open_plan(self._connection, self._task)
        if row is None:
            return self._begin(work)
        self._report.resumed = True
        if not work.plan.number:
            # A step that was begun: what decides it is the same (`Steps.digest`), how its units are made says the row.
            return replace(work, plan=row)
        if work.plan != row:
            state.amend_plan(self._connection, self._owner, work.plan)
            log.warning("plan_amended", task=row.task, number=row.number, boundaries=len(work.plan.boundaries))
        return work

    def _begin(self, work: Work) -> Work:
        """Give the plan its number, raise the fence and commit the plan row."""
        found = state.read(self._connection, self._task)
        work = work.fitted(self._settings, self._connection.dialect)
        ranges = Decoder(self._context(work)).ranges(work) if work.plan.buckets else {}
        numbered = work.numbered((found.plan_number if found else 0) + 1, ranges)
        self._owner = fence.raise_again(self._connection, self._owner)
        state.begin_plan(self._connection, self._owner, numbered.plan)
        return numbered

    def _require_fit(self, work: Work) -> None:
        """LoadError where rows of a plan would go into a table that is not transactional, or fire triggers."""
        tables = tables_of(work, self._view.timeline, self._rules)
        require_fit(self._connection, tables, {name.lower() for name in self._settings.triggers})
        notes = unseen(self._connection, {db for db, _ in tables})
        self._report.notes += [note for note in notes if note not in self._report.notes]

    def _tell(self, work: Work) -> None:
        """What a plan lacks, and what rules leave out of it: written down, also by the run after a kill."""
        plan, report = work.plan, self._report
        if work.losses:  # the archive took the hole, and so does a load; but never in silence
            log.warning("range_has_losses", task=plan.task, number=plan.number, losses=work.losses.lines())
        report.add_losses(work.losses)
        if plan.mode is Mode.REPEAT:
            report.skipped = {name: why for name, why in plan.skipped.items() if name not in report.parked}
        for ts in map(Tso, plan.without):
            rule = work.txn_rules.get(ts)
            why = "by a rule that the plan began with" if rule is None else rule.why
            if rule is not None:
                record(self._connection, self._owner, self._task, f"txn {ts}", ts, rule)
            report.notes.append(f"the rows of the transaction at {show(ts)} are left out: {why}")
            log.warning("txn_by_rule", task=self._task, commit_ts=ts, why=why)
        for ts in (Tso(ts) for ts in self._rules.txns if plan.from_ts < ts <= plan.to_ts and ts not in plan.without):
            report.notes.append(f"the rule for the transaction at {show(ts)} comes too late: its plan has begun")
            log.warning("txn_rule_too_late", task=self._task, commit_ts=ts, plan=plan.number)

    def _merge(self, work: Work) -> int:
        """Units and DDLs of a plan, as its epochs allow; how many there are."""
        plan = work.plan
        units = self._prepare(work) if work.pieces else {}
        applied = state.applied_units(self._connection, plan)
        apply = ApplyContext(
            target=self._connection.settings,
            claim=Claim(task=plan.task, plan=plan.number, fence=self._owner.number),
            server=Looks(self._connection).server,
            bytes_per_s=self._settings.bytes_per_s,
        )
        total, done = len(units) + len(work.events), 0
        ddls = DdlExecutor(self._connection, self._owner, self._task, routes=self._rules.routes)
        with closing(self._engine):
            epochs, waiting = Epochs(plan), deque(work.events)

            def run_ddls(place: int) -> None:
                """Those before a place."""
                nonlocal done
                while waiting and epochs.place(waiting[0].commit_ts) < place:
                    self._run_ddl(ddls, work, waiting.popleft())
                    done += 1
                    self._progress("apply", done, total)

            for step in epochs.steps(list(units)):
                run_ddls(step.place)
                fence.check_lock(self._connection)
                for phase in Phase:
                    wanted = [units[unit] for unit in step.units if unit.phase == phase]
                    done += len(wanted)
                    # The return of `apply` is the barrier: every delete is committed before the first insert.
                    self._apply_units(apply, [unit for unit in wanted if unit.unit not in applied], phase)
                    self._progress("apply", done, total)
            run_ddls(len(plan.boundaries) + 1)
        return total

    def _prepare(self, work: Work) -> dict[UnitId, UnitSummary]:
        self._progress("decode", 0, len(work.pieces))
        found = {summary.unit: summary for summary in self._engine.prepare(self._context(work), work.pieces)}
        self._report.engine = self._engine.where
        log.info("engine_chosen", task=work.plan.task, number=work.plan.number, where=self._report.engine)
        self._progress("decode", len(work.pieces), len(work.pieces))
        self._report.epochs += len({(unit.table_id, unit.epoch) for unit in found})
        return found

    def _apply_units(self, context: ApplyContext, units: Sequence[UnitSummary], phase: Phase) -> None:
        if not units:
            return
        # Largest first, so that no connection ends up alone with the largest one.
        self._engine.apply(context, [u.unit for u in sorted(units, key=lambda u: (-u.bytes, u.unit))])
        rows = sum(unit.rows for unit in units)
        self._report.units += len(units)
        if phase is Phase.DELETE:
            self._report.deleted += rows
        else:
            self._report.inserted += rows
            for unit in units:
                self._rows[unit.unit.table_id] += unit.rows

    def _stream(self, work: Work) -> Stream:
        return Stream(
            connection=self._connection,
            fence=self._owner.number,
            work=work,
            context=self._context(work),
            settings=self._settings,
            report=self._report,
            rows=self._rows,
            progress=self._progress,
        )

    def _follow(self, work: Work, stream: Generator[DdlEvent]) -> None:
        """Changes of a stream, and its DDLs where it stops for them."""
        ddls = DdlExecutor(self._connection, self._owner, self._task, routes=self._rules.routes)
        with closing(stream):
            for event in stream:
                fence.check_lock(self._connection)
                self._run_ddl(ddls, work, event)

    def _context(self, work: Work) -> LoadContext:
        """What decoding a plan needs."""
        dialect, routes = self._connection.dialect, self._rules.routes
        doubles = dialect is not Dialect.MARIADB  # which keeps a text
        return LoadContext.of(work, self._view, self._archive_settings, dialect, routes, doubles=doubles)

    def _set_sequences(self, work: Work) -> None:
        """A sequence gives no value that the source gave out in the range; MySQL has none."""
        dialect = self._connection.dialect
        for each in work.sequences if dialect is not Dialect.MYSQL else ():
            there = replace(each, version=self._rules.routes.version(each.version))
            try:
                self._connection.query(there.statement(dialect))
            except StatementFailed as error:
                if error.condition:
                    raise
                name = ".".join(there.version.name)
                raise DdlRefused(
                    f"target {self._connection.name} cannot move the sequence {name} on: {error.message}",
                    code=error.code,
                    statement=error.statement,
                    table=name,
                ) from error

    def _run_ddl(self, ddls: DdlExecutor, work: Work, event: DdlEvent) -> None:
        """Execute one DDL of a plan, or what a rule says in its place; nothing when this run has done so."""
        if (work.plan.number, event.commit_ts) in self._executed:
            return
        rule = work.rulings.get(event.commit_ts)
        if rule is None and (drop := dropping(event)) is not None and not ddls.has_begun(event):
            begun = Tso(max(drop.begun, self._view.start))
            pieces = pieces_of(self._view.between(begun, event.commit_ts), begun, event.commit_ts, drop.table_ids)
            context = self._context(replace(work, tables=drop.table_ids))
            require_settled(self._connection, drop, context, pieces, self._view.kept.start)
        if rule is not None:
            record(self._connection, self._owner, self._task, f"ddl {event.commit_ts}", event.commit_ts, rule)
        try:
            done = ddls.execute(event, None if rule is None else rule.sql)
        except DdlRefused as error:
            if rule is None:
                error.add_hint(keys_in_the_way(self._connection, self._rules.routes, event, error))
            raise
        if rule is not None:
            what = "skipped" if rule.do == "skip" else "replaced"
            self._report.notes.append(f"DDL job {event.job.id} at {show(event.commit_ts)} was {what}: {rule.why}")
            log.warning("ddl_by_rule", task=self._task, job_id=event.job.id, do=rule.do, why=rule.why)
        self._executed.add((work.plan.number, event.commit_ts))
        self._report.ddls += 1
        self._report.notes += done.notes
