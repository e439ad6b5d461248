"""How each DDL job changes the timeline. Right where the Go Drainer is not: multi-table renames, EXCHANGE, recovery.

One `_Folder` is a fold in progress; it is mutable, private to one call, and ends as `Versions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pumphouse.errors import SchemaError
from pumphouse.model.table import MISREAD, DbInfo, Job, TableInfo, misread
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import MAX_USER_TABLE_ID, Effect, Rows, action_of, is_system
from pumphouse.schema.rename import parse_rename, rename_args
from pumphouse.schema.versions import Change, DbVersion, DdlEvent, TableVersion, TimedJob, Versions, with_kept


def fold_jobs(timeline: Versions, jobs: Iterable[TimedJob]) -> Versions:
    """`Timeline.fold`."""
    known = {timed.job.id: timed for timed in timeline.jobs}
    fresh = []
    for timed in jobs:
        if not timed.job.done:
            continue
        other = known.get(timed.job.id)
        if other is None or timed.commit_ts > other.commit_ts or (other.genesis and not timed.genesis):
            known[timed.job.id] = timed
            fresh.append(timed)
    if not fresh:
        return timeline
    if min(timed.job.schema_version for timed in fresh) > timeline.schema_version:
        folder = _Folder(timeline)
        new = fresh
    else:
        # A known job moved, or one came that belongs before others: everything after it may read differently.
        folder = _Folder(Versions())
        new = list(known.values())
    for timed in sorted({t.job.id: known[t.job.id] for t in new}.values(), key=_version):
        folder.add(timed)
    return folder.finish()


def _version(timed: TimedJob) -> int:
    return timed.job.schema_version


class Place(NamedTuple):
    """Where a job stands."""

    job_id: int
    schema_version: int
    commit_ts: int
    genesis: bool


def _place(timed: TimedJob) -> Place:
    return Place(timed.job.id, timed.job.schema_version, timed.commit_ts, timed.genesis)


def check_order(last: Place, job: Place) -> None:
    """Hold a job against the one before it, by schema version: SchemaError where the two clocks disagree."""
    if last.schema_version == job.schema_version:
        raise SchemaError(
            f"DDL jobs {last.job_id} and {job.job_id} have the same schema version {job.schema_version}",
            job_id=job.job_id,
        )
    if last.commit_ts == job.commit_ts and not job.genesis:
        raise SchemaError(
            f"DDL jobs {last.job_id} and {job.job_id} have the same commit ts {show(Tso(job.commit_ts))}",
            hint="no cluster gives one out twice: the archive holds binlogs of more than one",
            job_id=job.job_id,
        )
    if last.commit_ts > job.commit_ts:
        raise SchemaError(
            f"DDL job {job.job_id} (schema version {job.schema_version}) committed at {show(Tso(job.commit_ts))}, "
            f"before job {last.job_id} of the lower version {last.schema_version}",
            hint="the archive holds binlogs of more than one cluster, or a commit ts is wrong",
            job_id=job.job_id,
        )


class _Folder:
    def __init__(self, timeline: Versions) -> None:
        self._jobs = list(timeline.jobs)
        self._events = list(timeline.events)
        self._versions = {key: list(value) for key, value in timeline.versions.items()}
        self._databases = {key: list(value) for key, value in timeline.databases.items()}
        self._partitions = dict(timeline.partitions)
        # Table ids alive now -> schema id, and schemas alive now.
        self._live: dict[int, int] = {}
        self._dbs: dict[int, DbInfo] = {1: DbInfo(id=1, name="mysql", charset="utf8mb4", collate="utf8mb4_bin", raw={})}
        self._by_name: dict[tuple[str, str], int] = {}
        for key, values in self._databases.items():
            if (info := values[-1].info) is not None:
                self._dbs[key] = info
        ids = {info.name.lower(): key for key, info in self._dbs.items()}
        for table_id, found in self._versions.items():
            if not found[-1].dropped:
                self._live[table_id] = ids[found[-1].db.lower()]
                self._by_name[_key(found[-1].db, found[-1].table.name)] = table_id
        # The job that is being folded.
        self._timed: TimedJob
        self._changes: list[Change] = []
        self._db_before: DbInfo | None = None
        self._db_after: DbInfo | None = None
        self._problem = ""
        # Behind a DDL that was not understood, what is known may be wrong.
        self._blind = any(event.problem for event in timeline.events)

    def add(self, timed: TimedJob) -> None:
        """Fold one job; they come in order of schema version."""
        job = timed.job
        if self._jobs:
            check_order(_place(self._jobs[-1]), _place(timed))
        self._jobs.append(timed)
        self._timed, self._changes, self._db_before, self._db_after, self._problem = timed, [], None, None, ""
        action = action_of(job.type)
        if job.table_id <= MAX_USER_TABLE_ID:
            try:
                self._take_effect(action.facts.effect, job)
            except SchemaError as error:
                if not self._blind:
                    raise
                self._problem = f"{error.message}, behind a DDL that this release does not understand"
        self._blind = self._blind or bool(self._problem)
        self._events.append(
            DdlEvent(
                commit_ts=timed.commit_ts,
                action=action,
                job=job,
                changes=tuple(self._changes),
                db_before=self._db_before,
                db_after=self._db_after,
                lost=self._lost() if action.facts.rows is Rows.RETURN else frozenset(),
                genesis=timed.genesis,
                problem=self._problem,
            )
        )

    def _take_effect(self, effect: Effect, job: Job) -> None:
        try:
            _EFFECTS[effect](self, job)
        except SchemaError as error:
            if "job_id" in error.facts:
                raise
            raise SchemaError(f"DDL job {job.id}: {error.message}", hint=error.advice, job_id=job.id) from error
        except MISREAD as error:
            raise misread(job, error) from error

    def _lost(self) -> frozenset[int]:
        """Tables that the job brings back without rows that an archive could have."""
        found = set()
        for change in self._changes:
            if change.after is not None and change.before is None:
                *earlier, _ = self._versions[change.after.table.id]
                if not earlier or earlier[-1].genesis:
                    found.add(change.after.table.id)
        return frozenset(found)

    def finish(self) -> Versions:
        """The result."""
        return Versions(
            jobs=tuple(self._jobs),
            events=with_kept(self._events),
            versions={key: tuple(value) for key, value in self._versions.items()},
            databases={key: tuple(value) for key, value in self._databases.items()},
            partitions=self._partitions,
        )

    # -- one table or database

    def _now(self, table_id: int) -> TableVersion | None:
        return self._versions[table_id][-1] if table_id in self._live else None

    def _put(self, schema_id: int, info: TableInfo) -> TableVersion:
        """New version of a table; it may move to another database or name."""
        before = self._now(info.id)
        if before is not None:
            self._forget_name(before)
        db = self._db(schema_id).name
        version = TableVersion(
            db=db,
            table=info,
            schema_version=self._timed.job.schema_version,
            commit_ts=self._timed.commit_ts,
            job_id=self._timed.job.id,
            genesis=self._timed.genesis,
        )
        self._versions.setdefault(info.id, []).append(version)
        self._live[info.id] = schema_id
        self._by_name[_key(db, info.name)] = info.id
        for partition_id in info.partition_ids:
            self._partitions[partition_id] = info.id
        return version

    def _end(self, table_id: int) -> TableVersion | None:
        """The table is gone; returns what it was."""
        before = self._now(table_id)
        if before is None:
            return None
        timed = self._timed
        self._versions[table_id].append(
            replace(
                before,
                schema_version=timed.job.schema_version,
                commit_ts=timed.commit_ts,
                job_id=timed.job.id,
                dropped=True,
                genesis=timed.genesis,
            )
        )
        del self._live[table_id]
        self._forget_name(before)
        return before

    def _forget_name(self, version: TableVersion) -> None:
        # Within a multi-table rename another table may have its name by now.
        if self._by_name.get(_key(*version.name)) == version.table.id:
            del self._by_name[_key(*version.name)]

    def _db(self, schema_id: int) -> DbInfo:
        found = self._dbs.get(schema_id)
        if found is not None:
            return found
        name = self._timed.job.schema_name
        if not name:
            raise SchemaError(
                f"DDL job {self._timed.job.id} names the unknown database id {schema_id}", job_id=self._timed.job.id
            )
        # The history begins after this database was made (or the job was trimmed): its name is all that rows need.
        info = DbInfo(id=schema_id, name=name, charset="utf8mb4", collate="utf8mb4_bin", raw={})
        self._dbs[schema_id] = info
        self._databases.setdefault(schema_id, []).append(DbVersion(self._timed.commit_ts, info))
        return info

    def _info(self, job: Job) -> TableInfo:
        if job.table_info is None:
            raise SchemaError(f"DDL job {job.id} (type {job.type}) carries no table", job_id=job.id)
        return job.table_info

    # -- effects, by type

    def _create_schema(self, job: Job) -> None:
        info = self._db_info(job)
        if info.id in self._dbs and info.id != 1 and info.id in self._databases:
            raise SchemaError(f"DDL job {job.id} creates the database id {info.id}, which exists", job_id=job.id)
        self._db_after = self._set_db(info)

    def _alter_schema(self, job: Job) -> None:
        info = self._db_info(job)
        self._db_before = self._dbs.get(info.id)
        self._db_after = self._set_db(info)

    def _drop_schema(self, job: Job) -> None:
        self._db_before = self._db(job.schema_id)
        for table_id in sorted(t for t, schema_id in self._live.items() if schema_id == job.schema_id):
            self._changes.append(Change(self._end(table_id), None))
        self._databases.setdefault(job.schema_id, []).append(DbVersion(self._timed.commit_ts, None))
        del self._dbs[job.schema_id]

    def _recover_schema(self, job: Job) -> None:
        """The tables that fell with the database come back as they were."""
        info = self._db_info(job)
        self._db_after = self._set_db(info)
        ended = next(
            (
                {change.before.table.id: change.before.table for change in event.changes if change.before is not None}
                for event in reversed(self._events)
                if event.facts.effect is Effect.DROP_DATABASE and event.job.schema_id == info.id
            ),
            {},
        )
        for table in ended.values():
            self._changes.append(Change(None, self._put(info.id, table)))

    def _set_db(self, info: DbInfo) -> DbInfo:
        self._dbs[info.id] = info
        self._databases.setdefault(info.id, []).append(DbVersion(self._timed.commit_ts, info))
        return info

    def _db_info(self, job: Job) -> DbInfo:
        if job.db_info is None:
            raise SchemaError(f"DDL job {job.id} (type {job.type}) carries no database", job_id=job.id)
        return job.db_info

    def _create(self, job: Job) -> None:
        self._add_table(job, self._info(job))

    def _create_batch(self, job: Job) -> None:
        for info in job.table_infos:
            self._add_table(job, info)

    def _add_table(self, job: Job, info: TableInfo) -> None:
        if info.id in self._live:
            raise SchemaError(f"DDL job {job.id} creates the table id {info.id}, which exists", job_id=job.id)
        # CREATE OR REPLACE VIEW is one job: the old view's id is not in it, its name is.
        other = self._by_name.get(_key(self._db(job.schema_id).name, info.name))
        before = self._end(other) if other is not None else None
        self._changes.append(Change(before, self._put(job.schema_id, info)))

    def _drop(self, job: Job) -> None:
        before = self._end(job.table_id)
        if before is None and is_system(job.schema_name):
            return
        if before is None:
            raise SchemaError(f"DDL job {job.id} drops the unknown table id {job.table_id}", job_id=job.id)
        self._changes.append(Change(before, None))

    def _rename(self, job: Job) -> None:
        info = self._info(job)
        self._changes.append(Change(self._now(info.id), self._put(job.schema_id, info)))

    def _rename_tables(self, job: Job) -> None:
        """Who was renamed to what, from the arguments where the history kept them, else from the statement.

        The changes say what each table was and is; the order among them is the renderer's business.
        """
        infos = {info.id: info for info in job.table_infos}
        for table_id, schema_id, name in rename_args(job) or self._rename_query(job):
            before = self._now(table_id)
            if before is None:
                raise SchemaError(f"DDL job {job.id} renames the unknown table id {table_id}", job_id=job.id)
            info = infos.get(table_id) or before.table
            # In a chain (a to x, b to a, x to b) one table may be renamed twice; its info has only the last name.
            self._changes.append(Change(before, self._put(schema_id, info.called(name))))

    def _rename_query(self, job: Job) -> list[tuple[int, int, str]]:
        """(table id, new schema id, new name) by walking the statement over the names in force."""
        names = dict(self._by_name)
        schemas = {info.name.lower(): key for key, info in self._dbs.items()}
        out = []
        for old_db, old, new_db, new in parse_rename(job.query):
            table_id = names.pop(_key(old_db or job.schema_name, old), None)
            schema_id = schemas.get((new_db or job.schema_name).lower())
            if table_id is None or schema_id is None:
                raise SchemaError(
                    f"DDL job {job.id} renames {old_db or job.schema_name}.{old}, which the timeline does not know",
                    job_id=job.id,
                )
            names[_key(new_db or job.schema_name, new)] = table_id
            out.append((table_id, schema_id, new))
        final = {table_id: name for table_id, _, name in out}
        # A table that is renamed twice is in the list twice; what it is called in the end is what counts.
        for info in {info.id: info for info in job.table_infos}.values():
            if final.get(info.id, "").lower() != info.name.lower():
                raise SchemaError(
                    f"DDL job {job.id} says that table {info.id} is now {info.name}, its statement says otherwise",
                    job_id=job.id,
                )
        return out

    def _exchange(self, job: Job) -> None:
        """``pt`` gets the plain table's id as a partition; the plain table goes on under the partition's old id."""
        after = self._info(job)
        before = self._now(after.id)
        plain = self._now(job.table_id)
        if before is None or plain is None:
            raise SchemaError(f"DDL job {job.id} exchanges a partition of tables that are not known", job_id=job.id)
        given = set(before.table.partition_ids) - set(after.partition_ids)
        if len(given) != 1 or plain.table.id not in after.partition_ids:
            raise SchemaError(f"DDL job {job.id} does not say which partition was exchanged", job_id=job.id)
        new_id = given.pop()
        schema_id = self._live[plain.table.id]
        pt_change = Change(before, self._put(self._live[after.id], after))
        self._end(plain.table.id)
        moved = plain.table.called(plain.table.name, new_id)
        self._changes += [pt_change, Change(plain, self._put(schema_id, moved))]
        self._partitions[plain.table.id] = after.id

    def _renumber(self, job: Job) -> None:
        """The table goes on under a new id."""
        info = self._info(job)
        schema_id = self._live.get(job.table_id, job.schema_id)
        before = self._now(info.id) if info.id == job.table_id else self._end(job.table_id)
        self._changes.append(Change(before, self._put(schema_id, info)))

    def _flashback(self, job: Job) -> None:
        """Data goes back in time without a binlog; the schema stays."""
        self._problem = (
            f"DDL job {job.id} at {show(self._timed.commit_ts)} flashed the whole cluster back; no binlog says which "
            "rows changed"
        )

    def _unknown(self, job: Job) -> None:
        """Of no consequence where it names no table or database; else followed as far as it says, as a problem."""
        infos = {info.id: info for info in job.tables if info.id <= MAX_USER_TABLE_ID}
        known = self._now(job.table_id)
        if is_system(job.schema_name) or not (infos or known or job.db_info):
            return
        self._problem = f"DDL job {job.id} has the type {job.type}, which this release does not know: {job.query}"
        for info in infos.values():
            schema_id = self._live.get(info.id, job.schema_id)
            self._changes.append(Change(self._now(info.id), self._put(schema_id, info)))
        if known is not None and known.table.id not in infos:
            self._changes.append(Change(known, known))
        if job.db_info is not None:
            self._alter_schema(job)

    def _replace(self, job: Job) -> None:
        """The job carries the table as it is now."""
        info = self._info(job)
        before = self._now(info.id)
        schema_id = self._live.get(info.id, job.schema_id)
        self._changes.append(Change(before, self._put(schema_id, info)))


def _key(db: str, table: str) -> tuple[str, str]:
    return db.lower(), table.lower()


def _nothing(_: _Folder, __: Job) -> None:
    pass


_EFFECTS: Mapping[Effect, Callable[[_Folder, Job], None]] = {
    Effect.NOTHING: _nothing,
    Effect.CREATE_DATABASE: _Folder._create_schema,  # noqa: SLF001
    Effect.ALTER_DATABASE: _Folder._alter_schema,  # noqa: SLF001
    Effect.DROP_DATABASE: _Folder._drop_schema,  # noqa: SLF001
    Effect.RECOVER_DATABASE: _Folder._recover_schema,  # noqa: SLF001
    Effect.CREATE: _Folder._create,  # noqa: SLF001
    Effect.CREATE_EACH: _Folder._create_batch,  # noqa: SLF001
    Effect.DROP: _Folder._drop,  # noqa: SLF001
    Effect.RENAME: _Folder._rename,  # noqa: SLF001
    Effect.RENAME_EACH: _Folder._rename_tables,  # noqa: SLF001
    Effect.EXCHANGE: _Folder._exchange,  # noqa: SLF001
    Effect.RENUMBER: _Folder._renumber,  # noqa: SLF001
    Effect.REPLACE: _Folder._replace,
    Effect.FLASHBACK: _Folder._flashback,  # noqa: SLF001
    Effect.UNKNOWN: _Folder._unknown,  # noqa: SLF001
}
