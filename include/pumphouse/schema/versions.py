"""What a schema timeline is made of: jobs in their places, versions of tables and databases, what each DDL did."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pumphouse import advice
from pumphouse.errors import HistoryUnavailable
from pumphouse.model.table import DbInfo, Job, TableInfo
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import Action, Facts, Rows


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A DDL job with the commit ts of its binlog. The job's own FinishedTS is later and is never used for order.

    ``genesis``: known only from the history as it stood at genesis; its commit ts is at most genesis, and not exact.
    """

    commit_ts: Tso
    job: Job
    genesis: bool = False


def genesis_jobs(jobs: Iterable[Job], genesis_ts: Tso) -> list[TimedJob]:
    """Give the jobs of the history at genesis their places: in version order, none above genesis.

    Their true commit ts are not in the history. Nothing is decoded or executed between them, so any order-keeping
    values serve. A job of the list that commits after genesis comes again with its window and is moved there.
    """
    timed, last = [], 0
    for job in sorted((j for j in jobs if j.done), key=lambda j: j.schema_version):
        last = max(last, min(job.finished_ts, genesis_ts))
        timed.append(TimedJob(Tso(last), job, genesis=True))
    return timed


def running_at_genesis(job_id: int, finished_ts: int, end: Tso) -> HistoryUnavailable:
    """The error for a job that may have committed just before genesis or just after: later windows will tell."""
    return HistoryUnavailable(
        f"DDL job {job_id} was running at genesis; it is placed when the archive has passed {show(Tso(finished_ts))}, "
        f"it ends at {show(end)}",
        hint=advice.SNAPSHOT,
        job_id=job_id,
    )


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of one table. ``dropped``: the table ends here, and ``table`` is what it last was."""

    db: str
    table: TableInfo
    schema_version: int
    commit_ts: Tso
    job_id: int
    dropped: bool = False
    genesis: bool = False

    @property
    def name(self) -> tuple[str, str]:
        """(database, table)."""
        return self.db, self.table.name


@dataclass(frozen=True, slots=True)
class Change:
    """One table of a DDL: None before = it is new, None after = it is gone. The id may change (truncate, exchange)."""

    before: TableVersion | None
    after: TableVersion | None

    @property
    def sides(self) -> tuple[TableVersion, ...]:
        """Those of the two that there are."""
        return tuple(side for side in (self.before, self.after) if side is not None)

    @property
    def ids(self) -> frozenset[int]:
        """Table ids, before and after."""
        return frozenset(side.table.id for side in self.sides)

    @property
    def known(self) -> TableVersion:
        """The later of the two."""
        return self.sides[-1]


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """What one DDL did, in structure. No changes and no database = nothing that a target could see.

    ``kept``: ids of tables that this DDL drops or truncates and that a later one brings back (RECOVER, FLASHBACK).
    ``lost``: ids of tables that this DDL brings back and that were dropped before genesis: no dump has their rows.
    ``problem``: why nothing can be loaded past it, in words; '' where there is nothing. What lies before it can.
    ``divided``: the problem is that a load leaves out some of its tables and not the others.
    """

    commit_ts: Tso
    action: Action
    job: Job
    changes: tuple[Change, ...] = ()
    db_before: DbInfo | None = None
    db_after: DbInfo | None = None
    kept: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    genesis: bool = False
    problem: str = ""
    divided: bool = False

    @property
    def facts(self) -> Facts:
        """What there is to know of its type."""
        return self.action.facts

    @property
    def table_ids(self) -> frozenset[int]:
        """Ids of the tables that it touches, before and after: their epochs end here."""
        return frozenset(each for change in self.changes for each in change.ids)

    @property
    def dropping_since(self) -> Tso:
        """When a job began whose rows go slowly (DROP PARTITION); 0 of others, and where the job does not say."""
        return Tso(int(self.job.raw.get("real_start_ts") or 0) if self.facts.rows is Rows.GO_SLOWLY else 0)

    @property
    def begins_empty(self) -> bool:
        """Whether the log has all rows of the tables that it makes."""
        return self.facts.rows in {Rows.BEGIN, Rows.RENEW} and not self.brings_rows

    @property
    def returning(self) -> frozenset[int]:
        """Ids of the tables whose rows it brings back from a drop."""
        back = self.changes if self.facts.rows is Rows.RETURN else ()
        return frozenset(change.after.table.id for change in back if change.after is not None)

    @property
    def brings_rows(self) -> bool:
        """Whether the table had rows when its job was written: nobody made binlogs of them (`schema import`)."""
        return self.facts.rows is Rows.BEGIN and bool(self.changes) and bool(self.job.raw.get("had_rows"))

    @property
    def silent(self) -> bool:
        """Whether it changes nothing that a target could see."""
        return not self.changes and self.db_before is None and self.db_after is None and not self.problem


@dataclass(frozen=True, slots=True)
class DbVersion:
    """One version of a database; ``info`` None = dropped."""

    commit_ts: Tso
    info: DbInfo | None


@dataclass(frozen=True)
class Versions:
    """All versions of all tables up to some moment; a pure function of the DDL jobs that they were folded from."""

    jobs: tuple[TimedJob, ...] = ()
    events: tuple[DdlEvent, ...] = ()
    versions: Mapping[int, tuple[TableVersion, ...]] = field(default_factory=dict)
    databases: Mapping[int, tuple[DbVersion, ...]] = field(default_factory=dict)
    partitions: Mapping[int, int] = field(default_factory=dict)

    @property
    def schema_version(self) -> int:
        """Largest schema version folded; 0 when there is none."""
        return self.jobs[-1].job.schema_version if self.jobs else 0


def with_kept(
    events: Iterable[DdlEvent], tables: Iterable[int] = (), schemas: Collection[int] = ()
) -> tuple[DdlEvent, ...]:
    """Mark the drops that a later event of the list takes back, or one behind it that brings back these ids."""
    recovered = set(tables)
    out = []
    for event in reversed(list(events)):
        gone = {c.before.table.id for c in event.changes if c.before is not None and _ends(c)}
        whole = event.db_before is not None and event.db_after is None and event.db_before.id in schemas
        kept = frozenset(gone if whole else gone & recovered)
        recovered -= gone
        recovered |= event.returning
        out.append(event if kept == event.kept else replace(event, kept=kept))
    return tuple(reversed(out))


def _ends(change: Change) -> bool:
    return change.before is not None and (change.after is None or change.after.table.id != change.before.table.id)
