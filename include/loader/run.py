"""A load from one end to the other: own the target, finish what is open, plan, apply epoch by epoch, close.

Runs on one connection, which holds the GET_LOCK and executes the DDL; units go through connections of the engine's.
May be killed anywhere: the next run finds the plan, the units and the DDLs that are done, and goes on.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from include.archive.archive import Archive
from include.clock import SYSTEM_CLOCK, Clock
from include.errors import LoadError, TargetAhead, TargetIncomplete, UsageError
from include.loader import fence, state
from include.loader.context import LoadContext, Piece, pack, pieces_of
from include.loader.ddl import DdlExecutor
from include.loader.engine import Engine
from include.loader.fence import Ownership
from include.loader.losses import losses_of
from include.loader.plan import Mode, Phase, Plan, UnitId, bucket_counts
from include.loader.report import LoadReport, Progress, silent
from include.loader.stages import ApplyContext, UnitSummary
from include.loader.state import Checkpoint, TargetState
from include.loader.tables import key_columns
from include.loader.target import TargetConnection
from include.loader.unit import Claim
from include.model.tso import Tso, show
from include.schema.actions import is_system
from include.schema.timeline import DdlEvent, Timeline
from include.settings import ArchiveSettings, LoadSettings

log = structlog.get_logger()


class Loader:
    """One run on one target. Make it with an open connection; `own` first, then the rest."""

    def __init__(
        self,
        *,
        archive: Archive,
        archive_settings: ArchiveSettings,
        connection: TargetConnection,
        settings: LoadSettings,
        task: str,
        timeline: Callable[[], Timeline],
        engine: Engine,
        progress: Progress = silent,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.archive = archive
        self.connection = connection
        self.task = task
        self.progress = progress
        self._archive_settings = archive_settings
        self._settings = settings
        self._read_timeline = timeline
        self._timeline: Timeline | None = None
        self._engine = engine
        self._clock = clock
        self._owner: Ownership | None = None
        self._started = clock.monotonic()
        self.report = LoadReport(target=connection.name, task=task, from_ts=Tso(0), to_ts=Tso(0))

    @property
    def owner(self) -> Ownership:
        """Our ownership; `own` comes first."""
        if self._owner is None:
            raise LoadError("the target is not owned by this run")
        return self._owner

    @property
    def timeline(self) -> Timeline:
        """The schema timeline, read on first use: a run with nothing to do needs none."""
        if self._timeline is None:
            self._timeline = self._read_timeline()
        return self._timeline

    def own(self, run: str, *, take_over: bool = False, any_task: bool = False) -> Checkpoint | None:
        """Take the target, or raise TargetBusy naming the holder; returns the task's checkpoint.

        ``any_task``: a restore, which throws every task's state away, may take a target that belongs to another load,
        also one from another cluster's archive.
        """
        self.connection.create_tables()
        self._owner = fence.acquire(self.connection, run=run, take_over=take_over, clock=self._clock)
        for other in state.read_all(self.connection):
            if other.task != self.task and not any_task:
                raise LoadError(
                    f"target {self.connection.name} belongs to the load {other.task!r}: both would write its tables",
                    hint=f"use --task {other.task}, or another target",
                    target=self.connection.name,
                    task=other.task,
                )
        found = state.read(self.connection, self.task)
        if found is not None and found.cluster_id != self.archive.cluster_id and not any_task:
            raise LoadError(
                f"target {self.connection.name} is loaded from cluster {found.cluster_id}, the archive is of cluster "
                f"{self.archive.cluster_id}",
                target=self.connection.name,
            )
        if found is not None:
            self.report.from_ts = self.report.to_ts = found.ts
        return found

    def forward(self, checkpoint: Checkpoint, to: Tso | None) -> LoadReport:
        """Load (checkpoint, to]; None = to the archive's end. Nothing to do when the target is there already."""
        self.require_ready(checkpoint)
        end = self.archive.end()
        if checkpoint.ts > end:
            raise TargetAhead(
                f"target {self.connection.name} is at {show(checkpoint.ts)}, the archive ends at {show(end)}",
                hint="this is not the archive that the target was loaded from, or it was cut",
                target=self.connection.name,
                checkpoint=checkpoint.ts,
                archive_end=end,
            )
        self.require_covered(to)
        goal = end if to is None else to
        opened = state.open_plan(self.connection, self.task)
        at = checkpoint.ts
        self._require_before(goal, at, "stands at")
        if opened is not None:
            # It can only be carried out as a whole: its units are of all its range.
            self._require_before(goal, opened.to_ts, "has an open plan that ends at")
        if at < goal:
            self.require_own_schema(databases_between(self.timeline, at, goal))
        if opened is not None:
            self.report.resumed = True
            at = max(at, self.run_plan(opened))
        return self.finish(self.advance(at, goal))

    def require_covered(self, to: Tso | None) -> None:
        """UsageError when the archive does not hold the moment that a load was asked for; it is never moved to fit."""
        start, end = self.archive.genesis().ts, self.archive.end()
        if to is not None and to > end:
            raise UsageError(
                f"the archive ends at {show(end)}, asked for {show(to)}",
                hint="without an end (`--to`) it loads all of the archive; `pumphouse snapshot` extends that",
            )
        if to is not None and to < start:
            raise UsageError(f"the archive begins at {show(start)}, asked for {show(to)}")

    def require_own_schema(self, databases: Iterable[str]) -> None:
        """LoadError when a database of the source is called like the schema of our tables: it would replace them.

        Without regard to case: some servers make one of both.
        """
        own = self.connection.settings.schema_name
        clash = next((name for name in databases if name.casefold() == own.casefold()), None)
        if clash is not None:
            raise LoadError(
                f"the source has a database {clash!r}, and on target {self.connection.name} the schema {own!r} keeps "
                "the state of the load",
                hint="set target.schema_name (restore_target.schema_name for a restore) to a name of its own",
                target=self.connection.name,
                database=clash,
            )

    def _require_before(self, goal: Tso, at: Tso, what: str) -> None:
        if at > goal:
            raise TargetAhead(
                f"target {self.connection.name} {what} {show(at)}, beyond {show(goal)}, which was asked for",
                hint="a load only goes forward: ask for a later moment, or restore: `pumphouse restore --to …`",
                target=self.connection.name,
                checkpoint=at,
                to=goal,
            )

    def advance(self, at: Tso, goal: Tso) -> Tso:
        """Load (at, goal] in one plan or several; returns where the target stands then."""
        while at < goal:
            at = self.run_plan(self.begin(self._plan(at, self._reach(at, goal))))
        return at

    def repeat(self, checkpoint: Checkpoint, since: Tso) -> LoadReport:
        """Apply (since, checkpoint] once more: for tables that have a key and whose shape did not change since."""
        self.require_ready(checkpoint)
        opened = state.open_plan(self.connection, self.task)
        if opened is not None and opened.mode is not Mode.REPEAT:
            raise LoadError("a plan is open", hint="finish it first: run the load without --repeat-from")
        if opened is None:
            if since >= checkpoint.ts:
                raise UsageError(f"the target is at {show(checkpoint.ts)}: nothing after {show(since)} was loaded")
            plan = replace(
                self._plan(since, checkpoint.ts),
                mode=Mode.REPEAT,
                boundaries=(),
                skipped=self._unrepeatable(since, checkpoint.ts),
            )
            opened = self.begin(plan)
        self.report.skipped = dict(opened.skipped)
        self.run_plan(opened)
        return self.finish(checkpoint.ts)

    def abandon(self, reason: str) -> None:
        """Give the open plan up; the target is inconsistent from then on, and only a restore clears that."""
        opened = state.open_plan(self.connection, self.task)
        if opened is None:
            raise UsageError(f"task {self.task} has no open plan on {self.connection.name}")
        state.abandon_plan(self.connection, self.owner, opened, reason)

    def require_ready(self, checkpoint: Checkpoint) -> None:
        """TargetIncomplete unless the target may be loaded."""
        if checkpoint.state is not TargetState.READY:
            raise TargetIncomplete(
                f"target {self.connection.name} is {checkpoint.state}: {checkpoint.reason}",
                hint="restore it: `pumphouse restore --to …`",
                target=self.connection.name,
                state=str(checkpoint.state),
            )

    def begin(self, plan: Plan) -> Plan:
        """Raise the fence and commit the plan row; nothing of the plan is done before."""
        self._owner = fence.raise_again(self.connection, self.owner)
        state.begin_plan(self.connection, self.owner, plan)
        return plan

    def run_plan(self, plan: Plan) -> Tso:
        """Carry a committed plan out, from wherever it stands; returns the checkpoint after it."""
        log.info("plan_started", task=plan.task, number=plan.number, from_ts=plan.from_ts, to_ts=plan.to_ts)
        executor = DdlExecutor(self.connection, self.owner, self.task)
        pieces = pieces_of(self.archive, plan)
        self._check_archive(plan)
        self._tell_losses(plan)
        events = self._boundary_events(plan)
        units = self._prepare(plan, pieces) if pieces else {}
        applied = state.applied_units(self.connection, plan)
        apply = ApplyContext(
            target=self.connection.settings, claim=Claim(task=plan.task, plan=plan.number, fence=self.owner.number)
        )
        total, done = sum(map(len, units.values())) + len(events), 0
        try:
            for epoch in range(plan.epochs):
                fence.check_lock(self.connection)
                for phase in Phase:
                    wanted = units.get((epoch, int(phase)), [])
                    done += len(wanted)
                    # The return of `apply` is the barrier: every delete is committed before the first insert.
                    self._apply(apply, [u for u in wanted if u.unit not in applied], phase)
                    self.progress("apply", done, total)
                if epoch < len(plan.boundaries):
                    self._ddl(executor, events[epoch])
                    done += 1
                    self.progress("apply", done, total)
        finally:
            self._engine.close()
        checkpoint = plan.to_ts
        self._owner = state.close_plan(self.connection, self.owner, plan, checkpoint=checkpoint)
        self.report.plans += 1
        log.info("plan_closed", task=plan.task, number=plan.number, to_ts=plan.to_ts, units=total)
        return checkpoint

    def finish(self, at: Tso) -> LoadReport:
        """The report."""
        self.report.to_ts = at
        self.report.seconds = round(self._clock.monotonic() - self._started, 3)
        return self.report

    # -- planning

    def plan_of(self, mode: Mode, from_ts: Tso, to_ts: Tso) -> Plan:
        """A new plan of that mode over a range, not yet committed."""
        plan = self._plan(from_ts, to_ts) if mode is Mode.MERGE else self._empty_plan(mode, from_ts, to_ts)
        return replace(plan, mode=mode)

    def _empty_plan(self, mode: Mode, from_ts: Tso, to_ts: Tso) -> Plan:
        found = state.read(self.connection, self.task)
        number = (found.plan_number if found else 0) + 1
        plan = Plan(task=self.task, number=number, from_ts=from_ts, to_ts=to_ts, mode=mode)
        return replace(plan, archive=self._digest(plan), buckets=self._buckets(plan))

    def _plan(self, from_ts: Tso, to_ts: Tso) -> Plan:
        plan = self._empty_plan(Mode.MERGE, from_ts, to_ts)
        boundaries = tuple(int(event.commit_ts) for event in self._events(plan))
        _require_rising(boundaries)
        return replace(plan, boundaries=boundaries)

    def _events(self, plan: Plan) -> list[DdlEvent]:
        return [event for event in self.timeline.ddls(plan.from_ts, plan.to_ts) if not event.silent]

    def _boundary_events(self, plan: Plan) -> list[DdlEvent]:
        """The DDL that ends each epoch but the last, exactly those that the plan was made with; else LoadError."""
        if plan.mode is not Mode.MERGE:
            return []
        events = self._events(plan)
        found = tuple(int(event.commit_ts) for event in events)
        if found != plan.boundaries:
            raise LoadError(
                f"plan {plan.number} of task {self.task} ends its epochs at other DDLs ({len(plan.boundaries)}) than "
                f"the schema history now has ({len(found)}) in its range",
                hint="load with the history that the plan began with, or give it up with --abandon-plan",
                target=self.connection.name,
                differing=[show(ts) for ts in sorted(set(found) ^ set(plan.boundaries))[:5]],
            )
        _require_rising(found)
        return events

    def _buckets(self, plan: Plan) -> dict[int, int]:
        sizes: dict[int, int] = defaultdict(int)
        for _, tables in self._segments(plan):
            for table_id, size in tables.items():
                sizes[table_id] += size
        settings = self._settings
        return bucket_counts(
            sizes, unit_bytes=settings.unit_bytes, connections=settings.connections, fixed=settings.buckets
        )

    def _segments(self, plan: Plan) -> list[tuple[str, dict[int, int]]]:
        if plan.mode is Mode.BASE:
            tables = self.archive.genesis().base or ()
            segments = [segment for table in tables for segment in table.segments]
        else:
            windows = self.archive.windows_between(plan.from_ts, plan.to_ts)
            segments = [segment for window in windows for segment in window.segments]
        return [(s.key, {table_id: stat.bytes for table_id, stat in s.tables.items()}) for s in segments]

    def _reach(self, at: Tso, goal: Tso) -> Tso:
        """Where a plan that begins at `at` ends: at the goal, or at the window that fills it."""
        size = 0
        for window in self.archive.windows_between(at, goal):
            size += sum(segment.payload_bytes for segment in window.segments)
            if size >= self._settings.max_plan_bytes:
                return Tso(min(window.end, goal))
        return goal

    def _digest(self, plan: Plan) -> str:
        """Of the manifests that the range lies in: a plan is finished with the archive it was made from."""
        digest = hashlib.sha256(self.archive.genesis().sha256.encode())
        if plan.mode is not Mode.BASE:
            for window in self.archive.windows_between(plan.from_ts, plan.to_ts):
                digest.update(window.sha256.encode())
        return digest.hexdigest()

    def _check_archive(self, plan: Plan) -> None:
        if self._digest(plan) != plan.archive:
            raise LoadError(
                f"plan {plan.number} of task {self.task} was made from other manifests than the archive has now",
                hint="load from the archive that the plan began with, or give it up with --abandon-plan",
                target=self.connection.name,
            )

    def _tell_losses(self, plan: Plan) -> None:
        """A range with a hole is loaded all the same: the archive took it. But never in silence."""
        if plan.mode is Mode.BASE:
            return
        windows = self.archive.windows_between(plan.from_ts, plan.to_ts)
        losses = losses_of(windows, after=plan.from_ts, upto=plan.to_ts)
        if losses:
            log.warning("range_has_losses", task=plan.task, number=plan.number, losses=losses.lines())
        self.report.add_losses(losses)

    def _unrepeatable(self, since: Tso, upto: Tso) -> dict[str, str]:
        skipped: dict[str, str] = {}
        for version in self.timeline.tables_at(upto):
            if not is_system(version.db) and not key_columns(version.table):
                skipped[f"{version.db}.{version.table.name}"] = "it has no key"
        for event in self.timeline.ddls(since, upto):
            for change in event.changes:
                if change.after is not None:
                    skipped[f"{change.after.db}.{change.after.table.name}"] = f"DDL at {show(event.commit_ts)}"
        return skipped

    # -- carrying out

    def _prepare(self, plan: Plan, pieces: Sequence[Piece]) -> dict[tuple[int, int], list[UnitSummary]]:
        self.progress("decode", 0, len(pieces))
        context = LoadContext(
            archive_settings=self._archive_settings,
            cluster_id=self.archive.cluster_id,
            plan=plan,
            packed_timeline=pack(self.timeline),
        )
        found: dict[tuple[int, int], list[UnitSummary]] = defaultdict(list)
        for summary in self._engine.prepare(context, pieces):
            found[summary.unit.epoch, summary.unit.phase].append(summary)
        self.progress("decode", len(pieces), len(pieces))
        self.report.epochs += len({epoch for epoch, _ in found})
        return found

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

    def _ddl(self, executor: DdlExecutor, event: DdlEvent) -> None:
        done = executor.execute(event)
        self.report.ddls += 1
        self.report.notes += done.notes


def _require_rising(boundaries: Sequence[int]) -> None:
    """Two DDLs with one commit ts cannot both end an epoch: one of them would be lost."""
    for before, after in itertools.pairwise(boundaries):
        if before >= after:
            raise LoadError(
                f"the schema history has two DDLs at {show(after)}, or out of order: each has a commit ts of its own",
                hint="look at it with `pumphouse schema show`; the archive's ddl/ objects say where they come from",
                commit_ts=after,
            )


def databases_between(timeline: Timeline, after: Tso, upto: Tso) -> list[str]:
    """Names of the databases that there are at `after` or come up to `upto`."""
    names = {info.name for info in timeline.databases_at(after)}
    for versions in timeline.databases.values():
        names |= {v.info.name for v in versions if v.info is not None and after < v.commit_ts <= upto}
    return sorted(names)
