"""The schema timeline: which table id had which columns at which schema version and commit ts (rows S1, S3).

A timeline is immutable and a pure function of the DDL jobs it was folded from. Two clocks order it, and both give the
same order: the schema version (rows carry it: it says how a row is *decoded*) and the commit ts of the DDL's binlog
(it says what readers saw when a transaction committed: how a row is *projected*, and where DDL stands among DML).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pumphouse.errors import SchemaError, UnknownTable
from pumphouse.model.table import DbInfo, Job
from pumphouse.model.tso import Tso, show
from pumphouse.schema.alter import match_columns
from pumphouse.schema.fold import fold_jobs
from pumphouse.schema.related import jobs_of
from pumphouse.schema.versions import DdlEvent, TableVersion, TimedJob, Versions, genesis_jobs

FORMAT_VERSION = 2
_UNKNOWN = (
    "its DDL job is not in the archive, or it belongs to another cluster; docs/operations.md, "
    "'When a load meets an unknown table'"
)


@dataclass(frozen=True)
class Timeline(Versions):
    """All versions of all tables up to some moment. Build with ``Timeline.empty().fold(jobs)``."""

    @classmethod
    def empty(cls) -> Timeline:
        """Before any DDL; only the schema ``mysql`` (id 1) is there."""
        return cls()

    @classmethod
    def of_history(cls, jobs: Iterable[Job]) -> Timeline:
        """Of a whole history, all of it at one moment: what is there when it ends."""
        return cls.empty().fold(genesis_jobs(jobs, Tso(0)))

    def fold(self, jobs: Iterable[TimedJob]) -> Timeline:
        """Timeline with more jobs, given in any order.

        Jobs that did not end in done or synced, and jobs of schema version 0, change nothing and are left out. A job
        that is known already counts once, at the later commit ts (genesis and a window may both have it). Jobs whose
        versions and commit ts disagree about their order, and jobs of an unknown type, are errors.
        """
        found = fold_jobs(self, jobs)
        return self if found is self else Timeline(**vars(found))

    def of_tables(self, table_ids: Iterable[int]) -> Timeline:
        """Timeline of some tables, given by their ids or those of partitions: of these it says what this one says."""
        return Timeline.empty().fold(jobs_of(self, table_ids))

    def at_version(self, table_id: int, schema_version: int) -> TableVersion:
        """The version in force for rows written at `schema_version`: the one to decode with; UnknownTable.

        A partition's id stands for its table. Below a table's first version that one counts: of genesis, because older
        ones are not known; of a table that came later, because a transaction that began before may write to it. TiDB's
        metadata lock shows it each table as that is when it first touches it, and its rows say the version of when it
        began. Whether a table is there when the transaction commits is the question of `at_ts`.
        """
        found = self._find(table_id, schema_version, lambda v: v.schema_version)
        if found is not None:
            return found
        if versions := self.versions.get(table_id) or self.versions.get(self.partitions.get(table_id, table_id)):
            return versions[0]
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

    def knows(self, table_id: int) -> bool:
        """Whether a DDL names a table, or a partition, of this id at any moment."""
        return table_id in self.versions or table_id in self.partitions

    def rewritten(self, written: TableVersion, upto: int) -> dict[int, int]:
        """Columns that were given another type from a version of a table on: new id -> id in ``written``.

        ``upto``: the last schema version that counts.
        """
        low = bisect_right(self.events, written.schema_version, key=lambda e: e.job.schema_version)
        high = bisect_right(self.events, upto, key=lambda e: e.job.schema_version)
        found: dict[int, int] = {}
        for event in self.events[low:high]:
            for change in event.changes:
                before, after = change.before, change.after
                if before is None or after is None or {before.table.id, after.table.id} != {written.table.id}:
                    continue
                for old, new in match_columns(event.job, before.table, after.table):
                    if old is not None and old.id != new.id:
                        found[new.id] = found.get(old.id, old.id)
        return {new: old for new, old in found.items() if written.table.column_by_id(old) is not None}

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

    def to_json(self) -> bytes:
        """The jobs, from which everything else follows, as [commit ts, genesis, text]; for a worker, never stored."""
        jobs = [[int(each.commit_ts), each.genesis, each.job.text] for each in self.jobs]
        return json.dumps({"format_version": FORMAT_VERSION, "jobs": jobs}, ensure_ascii=False).encode()

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
        return cls.empty().fold(TimedJob(Tso(ts), Job.from_json(job), genesis) for ts, genesis, job in jobs)

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
