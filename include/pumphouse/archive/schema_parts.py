"""The DDL jobs of the timeline at rest, by table: ``schema/parts/<ts>.json`` and ``schema/jobs/<sha256>.parquet``.

A document names the parts whose jobs are the history up to its ts. A part holds the jobs of a range of schema versions
in files that are sorted by table id, each with its digest and the ids that it reaches from and to: so the jobs of some
tables are found in a few files. New jobs are a new part, which takes the parts before it in while they have no more
jobs: a job is written again only into a part of twice the size, and never all of them because some came. Files are
named by their content and never change.

A job lies under one of the tables that it touches (`rows_of`); the others, and its new partitions, have a row that says
where. Jobs of databases lie under `EVERYBODY`, those that touch nothing under `NOBODY`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pumphouse import advice
from pumphouse.archive.document import dump, parse, sha256
from pumphouse.archive.layout import SCHEMA
from pumphouse.errors import BadManifest, ObjectNotFound
from pumphouse.model.record import ASIDE, Int64, Named, Record
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso, name20
from pumphouse.objectstore.base import ObjectStore
from pumphouse.schema.related import tied_to, trimmed
from pumphouse.schema.versions import DdlEvent, TimedJob, Versions

KIND = "schema-parts"
REMEDY = ("delete the objects under schema/; ", advice.REBUILD_SCHEMA, " makes them again from the windows")
DOCUMENTS, FILES = f"{SCHEMA}parts/", f"{SCHEMA}jobs/"
# By which a job's tables are found. Parts of other rules are read whole, and written anew with the next job.
RULES = 1
EVERYBODY, NOBODY = 0, -1
# A file ends with whichever it reaches first.
_FILE_ROWS, _FILE_BYTES = 4096, 32 << 20

COLUMNS = pa.schema(
    [
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("schema_version", pa.int64(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("tied", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("genesis", pa.bool_(), nullable=False),
        pa.field("job", pa.large_string(), nullable=True),
    ],
    metadata={b"pumphouse.kind": b"schema-jobs", b"pumphouse.format_version": b"1"},
)


class Row(NamedTuple):
    """What a table has of a job: the job, or the table ``at`` which it lies.

    ``tied``: tables whose history goes with this one's because of it.
    """

    table_id: int
    schema_version: int
    at: int
    tied: tuple[int, ...]
    commit_ts: int
    genesis: bool
    job: str | None

    def timed(self) -> TimedJob:
        """The job of a row that has it."""
        if self.job is None:
            raise ValueError(f"no job lies at {self.table_id}")
        return TimedJob(Tso(self.commit_ts), Job.from_json(self.job), self.genesis)


@dataclass(frozen=True, slots=True, kw_only=True)
class File(Record):
    """Rows of the table ids ``first`` to ``last``; its digest is its name."""

    sha256: str
    bytes: int
    rows: int
    first: Int64
    last: Int64

    @property
    def key(self) -> str:
        """Its name."""
        return file_key(self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Record):
    """So many jobs, of the schema versions (after, upto]."""

    after: int
    upto: int
    jobs: int
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaParts(Record):
    """A document.

    Args:
        upto: ts that the history reaches to.
        genesis: digest of genesis.
        window: digest of the manifest that ends at ``upto``, or of genesis.
        rules: see `RULES`.
        whole: the histories of tables cannot be told apart (`whole_from`): it is read whole.
        sequences: their table ids, as what moves a sequence names it; ``views``: a view may replace another by name.
        parts: ascending.
    """

    upto: Tso
    genesis: Annotated[str, Named("genesis_sha256")]
    window: Annotated[str, Named("window_sha256")]
    rules: int
    whole: bool
    sequences: tuple[Int64, ...]
    views: tuple[Int64, ...]
    parts: tuple[Part, ...]
    sha256: Annotated[str, ASIDE] = ""

    @property
    def key(self) -> str:
        """Its name."""
        return parts_key(self.upto)

    @property
    def by_table(self) -> bool:
        """Whether the jobs of some tables can be told from the others."""
        return self.rules == RULES and not self.whole

    @property
    def schema_version(self) -> int:
        """Of the newest job."""
        return self.parts[-1].upto if self.parts else 0

    def precedes(self, jobs: Iterable[TimedJob]) -> bool:
        """Whether these come after all that is stored, which so stays as it reads."""
        return all(each.job.schema_version > self.schema_version for each in jobs)

    def to_json(self) -> bytes:
        """Bytes as stored."""
        return dump(KIND, self.to_dict())

    @classmethod
    def from_json(cls, key: str, data: bytes) -> SchemaParts:
        """Read a stored document; BadManifest."""
        found = parse(key, data, KIND, lambda value: cls.read(value, sha256=sha256(data)), remedy=REMEDY)
        if found.key != key:
            raise BadManifest(f"{key} holds the schema up to {found.upto}", hint=REMEDY, path=key, reason="name")
        after = 0
        for part in found.parts:
            if part.after != after:
                raise BadManifest(f"{key} lacks versions after {after}", hint=REMEDY, path=key, reason="parts")
            after = part.upto
        return found


def parts_key(upto: Tso) -> str:
    """Name of the document whose jobs end at ``upto``."""
    return f"{DOCUMENTS}{name20(upto)}.json"


def file_key(digest: str) -> str:
    """Name of the file of that digest."""
    return f"{FILES}{digest}.parquet"


# -- writing


def rows_of(history: Versions, after: int) -> list[Row]:
    """Where the jobs above a schema version lie, sorted."""
    rows: list[Row] = []
    for timed, event in zip(history.jobs, history.events, strict=True):
        if timed.job.schema_version > after:
            rows += places_of(timed, event)
    return sorted(rows, key=order)


def places_of(timed: TimedJob, event: DdlEvent) -> Iterator[Row]:
    """Where one job lies."""
    version, ts, text = timed.job.schema_version, int(timed.commit_ts), timed.job.text
    if event.problem or event.db_before is not None or event.db_after is not None:
        yield Row(EVERYBODY, version, EVERYBODY, (), ts, timed.genesis, text)
        return
    if not event.changes:
        yield Row(NOBODY, version, NOBODY, (), ts, timed.genesis, text)
        return
    tables = sorted(event.table_ids)
    first, *others = tables
    yield Row(first, version, first, tied_to(event, first), ts, timed.genesis, text)
    for other in others:
        yield Row(other, version, first, tied_to(event, other), ts, timed.genesis, None)
    for change in event.changes:
        before, after = change.before, change.after
        if after is not None:
            old = () if before is None else before.table.partition_ids
            for partition in sorted({*after.table.partition_ids} - {*old, *tables}):
                yield Row(partition, version, first, (after.table.id,), ts, timed.genesis, None)


def extended(store: ObjectStore, parts: Sequence[Part], history: Versions) -> tuple[Part, ...]:
    """These parts and one more for the jobs that they lack, with those of the former that it takes in."""
    after = parts[-1].upto if parts else 0
    jobs = sum(timed.job.schema_version > after for timed in history.jobs)
    if not jobs:
        return tuple(parts)
    left, taken = taking_in(parts, jobs)
    jobs += sum(part.jobs for part in taken)
    rows = heapq.merge(rows_of(history, after), *(read_rows(store, part) for part in taken), key=order)
    begin = left[-1].upto if left else 0
    files = tuple(write_rows(store, rows))
    return (*left, Part(after=begin, upto=history.schema_version, jobs=jobs, files=files))


def taking_in(parts: Sequence[Part], jobs: int) -> tuple[list[Part], list[Part]]:
    """(parts that stay, those that a new one of so many jobs takes in, newest first)."""
    left, taken = list(parts), []
    while left and left[-1].jobs <= jobs:
        taken.append(left.pop())
        jobs += taken[-1].jobs
    return left, taken


def write_rows(store: ObjectStore, rows: Iterable[Row]) -> Iterator[File]:
    """Write rows, which come in order, as files."""
    return (_write(store, some) for some in _cut(rows))


def _cut(rows: Iterable[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row.job or "")
        if len(some) >= _FILE_ROWS or size >= _FILE_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _write(store: ObjectStore, rows: Sequence[Row]) -> File:
    table = pa.Table.from_arrays(
        [pa.array(values, column.type) for values, column in zip(zip(*rows, strict=True), COLUMNS, strict=True)],
        schema=COLUMNS,
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, data_page_size=8 << 20)
    data = sink.getvalue().to_pybytes()
    first, last = rows[0].table_id, rows[-1].table_id
    file = File(sha256=sha256(data), bytes=len(data), rows=len(rows), first=first, last=last)
    store.put(file.key, data)
    return file


def order(row: Row) -> tuple[int, int]:
    """Rows of a part ascend by this."""
    return row.table_id, row.schema_version


# -- reading


def all_jobs(store: ObjectStore, found: SchemaParts) -> list[TimedJob]:
    """Every job."""
    return [row.timed() for part in found.parts for row in read_rows(store, part) if row.job is not None]


def jobs_of_tables(store: ObjectStore, found: SchemaParts, table_ids: Iterable[int]) -> list[TimedJob]:
    """The jobs that some tables need, given by their own ids or by those of partitions, and those of all databases.

    Folded they give what `Timeline.of_tables` of all of them does. ``found`` is `SchemaParts.by_table`.
    """
    tables: set[int] = set()
    jobs: dict[int, Row] = {}
    elsewhere: dict[int, set[int]] = {}
    left = {EVERYBODY, *table_ids}
    while left:
        tables |= left
        more: set[int] = set()
        for row in _rows_at(store, found, left):
            more.update(row.tied)
            if row.job is not None:
                jobs[row.schema_version] = row
            elif not row.tied:
                elsewhere.setdefault(row.at, set()).add(row.schema_version)
        left = more - tables
    for row in _rows_at(store, found, elsewhere.keys() - tables):
        if row.job is not None and row.schema_version in elsewhere[row.at]:
            jobs[row.schema_version] = row
    return [trimmed(row.timed(), tables) for row in jobs.values()]


def _rows_at(store: ObjectStore, found: SchemaParts, tables: Iterable[int]) -> Iterator[Row]:
    wanted = sorted(tables)
    for part in found.parts:
        for file in part.files:
            here = wanted[bisect_left(wanted, file.first) : bisect_right(wanted, file.last)]
            if here:
                yield from _read(store, file, here)


def read_rows(store: ObjectStore, part: Part) -> Iterator[Row]:
    """Rows of a part, in order, a file at a time; BadManifest names the file that is not as it was written."""
    for file in part.files:
        yield from _read(store, file)


def read_file(store: ObjectStore, key: str) -> bytes:
    """A file's bytes, held against its name; BadManifest."""
    try:
        data = store.get(key)
    except ObjectNotFound as error:
        raise BadManifest(f"{key} is missing", hint=REMEDY, path=key, reason="missing") from error
    if file_key(sha256(data)) != key:
        raise BadManifest(f"{key} is damaged: its bytes have another digest", hint=REMEDY, path=key, reason="sha256")
    return data


def _read(store: ObjectStore, file: File, tables: Sequence[int] | None = None) -> Iterator[Row]:
    data = read_file(store, file.key)
    try:
        # Without Arrow's threads: `pumphouse.archive.ddl.read_jobs`.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        if tables is not None:
            table = table.filter(pc.is_in(table.column("table_id"), pa.array(tables, pa.int64())))
        columns = [table.column(field.name).to_pylist() for field in COLUMNS]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise BadManifest(
            f"{file.key} cannot be read: {error}", hint=REMEDY, path=file.key, reason="parquet"
        ) from error
    for table_id, version, at, tied, ts, genesis, job in zip(*columns, strict=True):
        yield Row(table_id, version, at, tuple(tied), ts, genesis, job)
