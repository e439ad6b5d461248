"""DDL jobs at rest: one Parquet object a window, and one for all history before genesis (docs/formats.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pumphouse.archive.manifest import DdlEntry
from pumphouse.errors import BadSegment, ObjectNotFound
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore

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


def write_jobs(store: ObjectStore, key: str, jobs: Iterable[ArchivedJob]) -> DdlEntry:
    """Write one object."""
    rows = list(jobs)
    table = pa.Table.from_arrays(
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
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=False,
        write_statistics=["commit_ts", "job_id"],
        row_group_size=4096,
    )
    data = sink.getvalue().to_pybytes()
    store.put(key, data)
    return DdlEntry(key=key, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), jobs=len(rows))


def read_jobs(store: ObjectStore, entry: DdlEntry) -> list[ArchivedJob]:
    """Read one object after holding it against its digest; BadSegment names it."""
    try:
        data = store.get(entry.key)
    except ObjectNotFound as error:
        raise BadSegment(f"{entry.key} is not there", path=entry.key, offset=0, reason="missing") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        raise BadSegment(
            f"{entry.key} has the digest {digest}, the manifest says {entry.sha256}",
            path=entry.key,
            offset=0,
            reason="sha256",
        )
    try:
        # Neither read_table nor threads: what is left of a read in Arrow's threads when Python ends wants the
        # interpreter back to let go of ``data``, and aborts the process (apache/arrow#33975, #34314).
        rows = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise BadSegment(f"{entry.key} cannot be read: {error}", path=entry.key, offset=0, reason="parquet") from error
    return [ArchivedJob(**row) for row in rows]
