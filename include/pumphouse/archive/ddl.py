"""DDL jobs at rest: one Parquet object a window, and one for all history before genesis (docs/formats.md)."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pumphouse.archive.manifest import DdlEntry
from pumphouse.archive.segment import verified
from pumphouse.errors import BadSegment
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import Job, cistr
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.schema.actions import Reach, Rows, action_of, is_system

_GROUP_JOBS = 4096

SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("job_id", pa.int64(), nullable=False),
        pa.field("schema_state", pa.int32(), nullable=False),
        pa.field("query", pa.large_binary(), nullable=False),
        pa.field("job", pa.large_string(), nullable=True),
    ],
    metadata={b"pumphouse.kind": b"ddl", b"pumphouse.format_version": b"1"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedJob:
    """One DDL binlog of a window with its job, or one job of the history before genesis (commit_ts = start_ts = 0).

    ``job`` is None for a binlog that needs none: an intermediate state (delete only) or ``select setval``.
    """

    commit_ts: Tso
    start_ts: Tso
    job_id: int
    schema_state: int
    query: bytes
    job: str | None

    def parsed(self) -> Job | None:
        """The job, if there is one."""
        return None if self.job is None else Job.from_json(self.job)

    @classmethod
    def of_history(cls, job: Job) -> ArchivedJob:
        """A job that genesis keeps."""
        return cls(
            commit_ts=Tso(0),
            start_ts=Tso(0),
            job_id=job.id,
            schema_state=job.schema_state,
            query=job.query.encode(),
            job=job.text,
        )


def is_final(archived: ArchivedJob, job: Job) -> bool:
    """Whether this binlog changes the schema. DROP COLUMN logs one in delete-only as well, with the same job."""
    if not job.done:
        return False
    return not (archived.schema_state == SchemaState.DELETE_ONLY and job.schema_state != SchemaState.DELETE_ONLY)


@dataclass(frozen=True, slots=True)
class Later:
    """What a run looks at in DDL jobs behind its moment, which it folds nowhere.

    ``databases``: names that they mention. ``tables`` and ``schemas``: ids that one of them brings back (RECOVER,
    FLASHBACK), so that a drop before the moment keeps their rows.
    """

    databases: tuple[str, ...] = ()
    tables: frozenset[int] = frozenset()
    schemas: frozenset[int] = frozenset()


def look_at_later(archived: Iterable[ArchivedJob]) -> Later:
    """Look, whatever else the jobs say; one that cannot be read says nothing."""
    names, tables, schemas = set[str](), set[int](), set[int]()
    for each in archived:
        try:
            raw = json.loads(each.job or "{}")
            binlog = raw.get("binlog") or {}
            names |= {str(raw.get("schema_name") or ""), cistr((binlog.get("DBInfo") or {}).get("db_name"))}
            facts = action_of(int(raw.get("type") or 0)).facts
            if facts.rows is not Rows.RETURN:
                continue
            if facts.reach is Reach.WHOLE_DATABASE:
                schemas.add(int(raw.get("schema_id") or 0))
            else:
                tables |= {int(raw.get("table_id") or 0), int((binlog.get("TableInfo") or {}).get("id") or 0)}
        except (ValueError, TypeError, AttributeError):
            continue
    databases = sorted(name for name in names if name and not is_system(name))
    return Later(tuple(databases), frozenset(tables), frozenset(schemas))


def write_jobs(store: ObjectStore, key: str, jobs: Iterable[ArchivedJob]) -> DdlEntry:
    """Write one object, by way of a local file: no more than a row group of the jobs is held."""
    count, left = 0, iter(jobs)
    with tempfile.TemporaryDirectory(prefix="pumphouse-ddl-") as folder:
        path = Path(folder, "jobs.parquet")
        with pq.ParquetWriter(
            path, SCHEMA, compression="zstd", use_dictionary=False, write_statistics=["commit_ts", "job_id"]
        ) as writer:
            while some := list(islice(left, _GROUP_JOBS)):
                count += len(some)
                writer.write_table(_table(some), row_group_size=_GROUP_JOBS)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        entry = DdlEntry(key=key, sha256=digest, bytes=path.stat().st_size, jobs=count)
        store.put_file(key, path)
    return entry


def _table(rows: Sequence[ArchivedJob]) -> pa.Table:
    return pa.Table.from_arrays(
        [
            pa.array([int(row.commit_ts) for row in rows], pa.int64()),
            pa.array([int(row.start_ts) for row in rows], pa.int64()),
            pa.array([row.job_id for row in rows], pa.int64()),
            pa.array([row.schema_state for row in rows], pa.int32()),
            pa.array([row.query for row in rows], pa.large_binary()),
            pa.array([row.job for row in rows], pa.large_string()),
        ],
        schema=SCHEMA,
    )


def read_jobs(store: ObjectStore, entry: DdlEntry) -> list[ArchivedJob]:
    """Read one object after holding it against its digest; BadSegment names it."""
    return [job for _, jobs in read_groups(store, entry) for job in jobs]


def read_groups(
    store: ObjectStore, entry: DdlEntry, *, part: int = 0, parts: int = 1
) -> Iterator[tuple[int, list[ArchivedJob]]]:
    """Jobs of an object, a row group at a time, each with the place of its first in the object; BadSegment.

    Of ``parts`` runs of row groups only the one of the number ``part``. The whole object is held against its digest
    before anything of it is given out; a large one lies in a local file meanwhile.
    """
    with verified(store, entry) as source:
        try:
            file = pq.ParquetFile(source, memory_map=False)
            groups, at = file.metadata.num_row_groups, 0
            for number in range(groups):
                rows = file.metadata.row_group(number).num_rows
                if part * groups // parts <= number < (part + 1) * groups // parts:
                    # Neither read_table nor threads: what is left of a read in Arrow's threads when Python ends wants
                    # the interpreter back to let go of the bytes, and aborts the process (apache/arrow#33975, #34314).
                    found = file.read_row_group(number, use_threads=False).to_pylist()
                    yield at, [ArchivedJob(**row) for row in found]
                at += rows
        except (pa.ArrowException, OSError) as error:
            raise BadSegment(
                f"{entry.key} cannot be read: {error}", path=entry.key, offset=0, reason="parquet"
            ) from error
