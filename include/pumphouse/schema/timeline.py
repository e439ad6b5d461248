"""The schema timeline: which table id had which columns at which schema version and commit ts (rows S1, S3).

A timeline is immutable and a pure function of the DDL jobs it was folded from. Two clocks order it, and both give the
same order: the schema version (rows carry it: it says how a row is *decoded*) and the commit ts of the DDL's binlog
(it says what readers saw when a transaction committed: how a row is *projected*, and where DDL stands among DML).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pumphouse.errors import SchemaError, UnknownTable
from pumphouse.model.table import DbInfo, Job, TableInfo
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import Action

FORMAT_VERSION = 1
_UNKNOWN = (
    "its DDL job is not in the archive, or it belongs to another cluster; docs/operations.md, "
    "'When a load meets an unknown table'"
)


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A DDL job with the commit ts of its binlog. The job's own FinishedTS is later and is never used for order.

    ``genesis``: known only from the history as it stood at genesis; its commit ts is at most genesis, and not exact.
    """

    commit_ts: Tso
    job: Job
    genesis: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON object: ``commit_ts``, ``job`` (whole, as the cluster wrote it), ``genesis`` when true."""
        data: dict[str, Any] = {"commit_ts": int(self.commit_ts), "job": self.job.raw}
        return data | {"genesis": True} if self.genesis else data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object."""
        return cls(Tso(int(data["commit_ts"])), Job.from_dict(data["job"]), bool(data.get("genesis", False)))


def genesis_jobs(jobs: Iterable[Job], genesis_ts: Tso) -> list[TimedJob]:
    """Give the jobs of the history at genesis their places: in version order, none above genesis.

    Their true commit ts are not in the history. Nothing is decoded or executed between them, so any order-keeping
    values serve. A job of the list that commits after genesis comes again with its window and is moved there.
    """
    timed, last = [], 0
    for job in sorted((j for j in jobs if j.done and j.schema_version), key=lambda j: j.schema_version):
        last = max(last, min(job.finished_ts, genesis_ts))
        timed.append(TimedJob(Tso(last), job, genesis=True))
    return timed


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
    def known(self) -> TableVersion:
        """The later of the two."""
        found = self.after or self.before
        if found is None:
            raise SchemaError("a change of no table")
        return found


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """What one DDL did, in structure. No changes and no database = nothing that a target could see.

    ``kept``: ids of tables that this DDL drops or truncates and that a later one brings back (RECOVER, FLASHBACK).
    ``lost``: ids of tables that this DDL brings back and that were dropped before genesis: no dump has their rows.
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

    @property
    def table_ids(self) -> frozenset[int]:
        """Ids of the tables that it touches, before and after: their epochs end here."""
        sides = (side for change in self.changes for side in (change.before, change.after))
        return frozenset(side.table.id for side in sides if side is not None)

    @property
    def silent(self) -> bool:
        """Whether it changes nothing that a target could see."""
        return not self.changes and self.db_before is None and self.db_after is None


@dataclass(frozen=True, slots=True)
class DbVersion:
    """One version of a database; ``info`` None = dropped."""

    commit_ts: Tso
    info: DbInfo | None


@dataclass(frozen=True)
class Timeline:
    """All versions of all tables up to some moment. Build with ``Timeline.empty().fold(jobs)``."""

    jobs: tuple[TimedJob, ...]
    events: tuple[DdlEvent, ...]
    versions: Mapping[int, tuple[TableVersion, ...]]
    databases: Mapping[int, tuple[DbVersion, ...]]
    partitions: Mapping[int, int] = field(default_factory=dict)
    truncated: frozenset[int] = frozenset()

    @classmethod
    def empty(cls) -> Timeline:
        """Before any DDL; only the schema ``mysql`` (id 1) is there."""
        return Timeline((), (), {}, {})

    def fold(self, jobs: Iterable[TimedJob]) -> Timeline:
        """Timeline with more jobs, given in any order.

        Jobs that did not end in done or synced, and jobs of schema version 0, change nothing and are left out. A job
        that is known already counts once, at the later commit ts (genesis and a window may both have it). Jobs whose
        versions and commit ts disagree about their order, and jobs of an unknown type, are errors.
        """
        from pumphouse.schema.fold import fold_jobs

        return fold_jobs(self, jobs)

    def at_version(self, table_id: int, schema_version: int) -> TableVersion:
        """The version in force for rows written at `schema_version`: the one to decode with; UnknownTable.

        A partition's id stands for its table. Versions below genesis decode with the schema of genesis.
        """
        found = self._find(table_id, schema_version, lambda v: v.schema_version)
        if found is not None:
            return found
        first = next(iter(self.versions.get(self.partitions.get(table_id, table_id), ())), None)
        if first is not None and first.genesis:
            return first
        raise UnknownTable(
            f"no table has the id {table_id} at schema version {schema_version}",
            hint=_UNKNOWN,
            table_id=table_id,
            schema_version=schema_version,
        )

    def at_ts(self, table_id: int, commit_ts: int) -> TableVersion:
        """The version that readers saw at `commit_ts`: the one to project onto; UnknownTable.

        ``dropped`` is true when the table was dropped or truncated by then: its rows have no place to go.
        """
        found = self._find(table_id, commit_ts, lambda v: v.commit_ts)
        if found is not None:
            return found
        raise UnknownTable(
            f"no table has the id {table_id} at {show(commit_ts)}",
            hint=_UNKNOWN,
            table_id=table_id,
            commit_ts=commit_ts,
        )

    def tables_at(self, ts: int) -> list[TableVersion]:
        """Every table, view and sequence that existed at `ts`, by database and name."""
        found = []
        for versions in self.versions.values():
            at = bisect_right(versions, ts, key=lambda v: v.commit_ts) - 1
            if at >= 0 and not versions[at].dropped:
                found.append(versions[at])
        return sorted(found, key=lambda v: v.name)

    def databases_at(self, ts: int) -> list[DbInfo]:
        """Every database that existed at `ts`, by name."""
        found = []
        for versions in self.databases.values():
            at = bisect_right(versions, ts, key=lambda v: v.commit_ts) - 1
            if at >= 0 and (info := versions[at].info) is not None:
                found.append(info)
        return sorted(found, key=lambda d: d.name)

    def ddls(self, after: int, upto: int) -> list[DdlEvent]:
        """DDLs with after < commit ts <= upto, in order; silent ones and those of system schemas too."""
        low = bisect_right(self.events, after, key=lambda e: e.commit_ts)
        high = bisect_right(self.events, upto, key=lambda e: e.commit_ts)
        return list(self.events[low:high])

    @property
    def schema_version(self) -> int:
        """Largest schema version folded; 0 when there is none."""
        return self.jobs[-1].job.schema_version if self.jobs else 0

    def to_json(self) -> bytes:
        """Canonical bytes: the jobs, from which everything else follows."""
        data = {"format_version": FORMAT_VERSION, "jobs": [job.to_dict() for job in self.jobs]}
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Timeline:
        """Read `to_json`; SchemaError when it is not that."""
        try:
            data = json.loads(text)
            version, jobs = data["format_version"], data["jobs"]
        except (ValueError, KeyError, TypeError) as error:
            raise SchemaError(f"a schema timeline cannot be read: {error!r}") from error
        if version != FORMAT_VERSION:
            raise SchemaError(
                f"the schema timeline has format version {version}, this is {FORMAT_VERSION}", hint="upgrade Pumphouse"
            )
        return cls.empty().fold(TimedJob.from_dict(job) for job in jobs)

    def _find(self, table_id: int, place: int, clock: Callable[[TableVersion], int]) -> TableVersion | None:
        """Last version at or before a place; a partition's id gives its table's, also before or after an exchange."""
        last = None
        for each in (table_id, self.partitions.get(table_id)):
            versions = self.versions.get(each, ()) if each is not None else ()
            at = bisect_right(versions, place, key=clock) - 1
            if at >= 0 and not versions[at].dropped:
                return versions[at]
            last = versions[at] if at >= 0 and last is None else last
        return last


def with_kept(events: Iterable[DdlEvent]) -> tuple[DdlEvent, ...]:
    """Mark the drops that a later event of the list takes back."""
    recovered: set[int] = set()
    out = []
    for event in reversed(list(events)):
        gone = {c.before.table.id for c in event.changes if c.before is not None and _ends(c)}
        kept = frozenset(gone & recovered)
        recovered -= gone
        if event.action in {Action.RECOVER_TABLE, Action.RECOVER_SCHEMA}:
            recovered |= {c.after.table.id for c in event.changes if c.after is not None}
        out.append(event if kept == event.kept else replace(event, kept=kept))
    return tuple(reversed(out))


def _ends(change: Change) -> bool:
    return change.before is not None and (change.after is None or change.after.table.id != change.before.table.id)
