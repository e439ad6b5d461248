"""The fold of a whole history by many processes, in stages: what Spark runs is here (`spark_tasks.rebuild`).

`survey` reads of each job what places it. `plan_fold` holds these columns, some tens of bytes a job: it says which jobs
count and where they stand, as `pumphouse.archive.schema_store` does of jobs in memory, and which tables jobs tie
together. Tables that are tied go to one fold, jobs of databases to each. `deal` reads the jobs again and sends each to
its folds; `fold_alone` is the fold of `pumphouse.schema` over one of them; `write_range` makes files of what they give.

Between the stages there are blobs: Arrow streams of a few columns.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pumphouse.archive.ddl import ArchivedJob, is_final, read_groups
from pumphouse.archive.manifest import DdlEntry
from pumphouse.archive.schema_parts import COLUMNS, EVERYBODY, NOBODY, File, Row, order, places_of, write_rows
from pumphouse.archive.standing import Ints, Kept, at_genesis
from pumphouse.errors import SchemaError
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.schema.actions import Reach
from pumphouse.schema.fold import Place, check_order
from pumphouse.schema.related import Tie, is_whole, touched, trimmed
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TimedJob

Flags = np.ndarray[Any, np.dtype[np.bool_]]

# What `deal` holds before it gives all of it on.
_HELD_BYTES = 64 << 20
# Jobs of databases go to every fold: what they do is every table's.
_EVERYBODYS = frozenset({Reach.DATABASE, Reach.WHOLE_DATABASE, Reach.CLUSTER})
# Flags of a job: it changes the schema; every fold has it; it makes tables that are folded apart; it may touch tables
# that it does not name.
_COUNTS, _SHARED, _BATCH, _UNTOLD = 1, 2, 4, 8

_JOBS = pa.schema(
    [
        ("origin", pa.int32()),
        ("row", pa.int32()),
        ("archived_id", pa.int64()),
        ("id", pa.int64()),
        ("version", pa.int64()),
        ("commit_ts", pa.int64()),
        ("finished_ts", pa.int64()),
        ("size", pa.int32()),
        ("flags", pa.int8()),
    ]
)
_TIES = pa.schema([("job", pa.int64()), ("group", pa.int64()), ("key", pa.int64())])
_ASSIGNED = pa.schema(
    [
        ("origin", pa.int32()),
        ("row", pa.int32()),
        ("fold", pa.int32()),
        ("commit_ts", pa.int64()),
        ("genesis", pa.bool_()),
        ("tables", pa.list_(pa.int64())),
    ]
)
_DEALT = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("genesis", pa.bool_()),
        ("shared", pa.bool_()),
        ("tables", pa.list_(pa.int64())),
        ("job", pa.large_string()),
    ]
)


class CannotTell(Exception):
    """The tables of a history cannot be told apart before all of it is folded; says why."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is read by one task, folded by one and written by one; a table that has more jobs is not cut."""

    task_jobs: int = 50_000
    fold_jobs: int = 20_000
    fold_bytes: int = 64 << 20
    range_rows: int = 64 << 10
    range_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class DdlRun:
    """The ``part``-th of ``parts`` runs of row groups of a DDL object; ``origin`` 0 = genesis, then windows'."""

    origin: int
    entry: DdlEntry
    part: int
    parts: int


def tasks_of(genesis: DdlEntry, windows: Sequence[DdlEntry], *, readers: int, jobs: int) -> list[list[DdlRun]]:
    """What `survey` and `deal` read, by task. An object is read by no more than so many, as each reads all of it."""
    tasks: list[list[DdlRun]] = []
    size = jobs
    for origin, entry in enumerate((genesis, *windows)):
        parts = max(1, min(readers, -(-entry.jobs // jobs)))
        for part in range(parts):
            piece = DdlRun(origin, entry, part, parts)
            count = entry.jobs // parts
            if size + count > jobs or parts > 1:
                tasks.append([])
                size = 0
            tasks[-1].append(piece)
            size += count
    return tasks


# -- survey


def survey(store: ObjectStore, pieces: Iterable[DdlRun], sizes: Sizes) -> Iterator[tuple[bytes, bytes]]:
    """What places the jobs of these pieces, in order: columns of so many jobs, and of the keys that each ties."""
    jobs: list[tuple[int, ...]] = []
    ties: list[tuple[int, int, int]] = []
    said: set[tuple[int, int]] = set()
    for origin, row, archived in _read(store, pieces):
        job = archived.parsed()
        if job is None or archived.job is None:
            continue
        flags, groups = _what(archived, job, genesis=origin == 0)
        for group, (first, *others) in groups.items():
            ties.append((len(jobs), group, first))
            # Once is enough: what was tied stays tied.
            fresh = [key for key in others if (first, key) not in said]
            said.update((first, key) for key in fresh)
            ties += [(len(jobs), group, key) for key in fresh]
        size = min(len(archived.job), 1 << 30)
        jobs.append(
            (origin, row, archived.job_id, job.id, job.schema_version, archived.commit_ts, job.finished_ts, size, flags)
        )
        if len(jobs) >= sizes.task_jobs:
            yield _dumped(jobs, _JOBS), _dumped(ties, _TIES)
            jobs, ties, said = [], [], set()
    if jobs:
        yield _dumped(jobs, _JOBS), _dumped(ties, _TIES)


def _read(store: ObjectStore, pieces: Iterable[DdlRun]) -> Iterator[tuple[int, int, ArchivedJob]]:
    for piece in pieces:
        for at, jobs in read_groups(store, piece.entry, part=piece.part, parts=piece.parts):
            for row, archived in enumerate(jobs, at):
                yield piece.origin, row, archived


def _what(archived: ArchivedJob, job: Job, *, genesis: bool) -> tuple[int, dict[int, list[int]]]:
    """Flags of a job, and keys that it ties, by group: ids of tables and partitions, and names below 0."""
    if not (job.done if genesis else is_final(archived, job)):
        return 0, {}
    found = touched(job)
    if found.reach is Reach.UNTOLD:
        return _COUNTS | _UNTOLD, {}
    if found.reach in _EVERYBODYS:
        return _COUNTS | _SHARED, {}
    groups = {min(tie.tables) if found.reach is Reach.EACH else 0: _keys(tie) for tie in found.ties}
    return (_COUNTS | _BATCH if len(groups) > 1 else _COUNTS), groups


def _keys(tie: Tie) -> list[int]:
    """Tables come first, the smallest of them at the head: it is where the job lies."""
    first = min(tie.tables)
    return [first, *sorted((tie.tables | tie.partitions) - {first}), *sorted(_name(*name) for name in tie.names)]


def _name(schema_id: int, name: str) -> int:
    digest = blake2b(f"{schema_id}.{name}".encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest, "big") >> 1)


# -- plan


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """Who folds what.

    Args:
        folds: how many there are.
        jobs: that changed the schema; ``fresh``: those of them that are new since what is stored.
        upto: schema version of the newest.
        assigned: where jobs go, for each part of the survey.
        bounds: (table id, schema version) that the second range begins with, and so on.
        versions: of all jobs, ascending.
    """

    folds: int
    jobs: int
    fresh: int
    upto: int
    assigned: tuple[bytes, ...]
    bounds: tuple[tuple[int, int], ...]
    versions: Ints
    oldest_fresh: int

    def jobs_above(self, version: int) -> int:
        """Jobs of larger schema versions."""
        return len(self.versions) - int(np.searchsorted(self.versions, version, "right"))


class _Jobs(NamedTuple):
    """Columns of `_JOBS`."""

    origin: Ints
    row: Ints
    archived_id: Ints
    id: Ints
    version: Ints
    commit_ts: Ints
    finished_ts: Ints
    size: Ints
    flags: Ints


def plan_fold(
    surveys: Sequence[tuple[bytes, bytes]], *, genesis_ts: Tso, end: Tso, upto: Tso, since: Tso, sizes: Sizes
) -> FoldPlan:
    """Say who folds what, of what `survey` found.

    Args:
        surveys: in order of the tasks, each a part of a task.
        genesis_ts: of genesis.
        end: of the windows.
        upto: jobs of windows that committed later do not count.
        since: jobs of windows that committed later are new.
        sizes: of folds and ranges.

    Raises:
        CannotTell: a job may touch tables that it does not name.
        HistoryUnavailable, SchemaError: as `pumphouse.archive.schema_store.rebuild`.
    """
    tables = [_loaded(jobs) for jobs, _ in surveys]
    starts = np.cumsum([0, *(table.num_rows for table in tables)])
    jobs = _Jobs(*_columns(pa.concat_tables(tables) if tables else _JOBS.empty_table()))
    del tables
    chosen, ts = _standing(jobs, genesis_ts, end, upto)
    untold = chosen[jobs.flags[chosen] & _UNTOLD > 0]
    if untold.size:
        raise CannotTell(f"DDL job {jobs.id[untold[0]]} may touch tables that it does not name")
    tied = [_loaded(ties) for _, ties in surveys]
    job, group, key = _columns(pa.concat_tables(tied) if tied else _TIES.empty_table())
    job = job + np.repeat(starts[:-1], [each.num_rows for each in tied])
    del tied
    # A tie is said once, it may be by a job that does not count.
    label = _tied(job, group, key)
    place = np.full(len(jobs.id), -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    kept = place[job] >= 0
    job, group, key, label = place[job[kept]], group[kept], key[kept], label[kept]
    # From here on a job is its place in `chosen`: by schema version.
    size, flags, version = jobs.size[chosen], jobs.flags[chosen], jobs.version[chosen]
    member, member_group, fold, folds = _folds(job, group, label, size, flags, sizes)
    shared = np.flatnonzero(flags & _SHARED)
    at = np.concatenate([member, shared])
    to = np.concatenate([fold, np.full(len(shared), -1, np.int64)])
    own = np.where(flags[at] & _BATCH > 0, np.concatenate([member_group, np.zeros(len(shared), np.int64)]), 0)
    from_genesis = jobs.origin[chosen] == 0
    assigned = _assigned(jobs, chosen, ts, from_genesis, starts, (at, to, own))
    fresh = ~from_genesis & (jobs.commit_ts[chosen] > since)
    return FoldPlan(
        folds=folds,
        jobs=len(chosen),
        fresh=int(fresh.sum()),
        upto=int(version[-1]) if len(chosen) else 0,
        assigned=tuple(assigned),
        bounds=_bounds(job, key, size, flags, version, sizes),
        versions=version,
        oldest_fresh=int(version[fresh].min()) if fresh.any() else 0,
    )


def _standing(jobs: _Jobs, genesis_ts: Tso, end: Tso, upto: Tso) -> tuple[Ints, Ints]:
    """The jobs that count, by schema version, and their commit ts: what `Timeline.fold` says of them, in columns."""
    genesis, ts = jobs.origin == 0, jobs.commit_ts.copy()
    kept, windows = np.flatnonzero(genesis), np.flatnonzero(~genesis & (ts > genesis_ts))
    chosen, places = at_genesis(
        Kept(jobs.archived_id[kept], jobs.version[kept], jobs.finished_ts[kept], jobs.flags[kept] & _COUNTS > 0),
        (jobs.archived_id[windows], ts[windows]),
        genesis_ts,
        end,
    )
    kept = kept[chosen]
    ts[kept] = places
    brought = windows[(jobs.flags[windows] & _COUNTS > 0) & (ts[windows] <= upto)]
    # Of doubles the later one counts, the first of equals, and a window's before that of genesis.
    both = np.concatenate([kept, brought[np.argsort(ts[brought], kind="stable")]])
    order = np.lexsort((-np.arange(len(both)), ts[both], ~genesis[both], jobs.id[both]))
    both = both[order]
    last_of = np.flatnonzero(np.append(np.diff(jobs.id[both]) != 0, True)[: len(both)])
    chosen = both[last_of]
    chosen = chosen[np.argsort(jobs.version[chosen], kind="stable")]
    _check_order(jobs, chosen, ts[chosen])
    return chosen, ts[chosen]


def _check_order(jobs: _Jobs, chosen: Ints, ts: Ints) -> None:
    version, genesis = jobs.version[chosen], jobs.origin[chosen] == 0
    later = np.diff(ts)
    wrong = np.flatnonzero((np.diff(version) == 0) | (later < 0) | ((later == 0) & ~genesis[1:]))
    if wrong.size:
        last, this = (
            Place(int(jobs.id[chosen[at]]), int(version[at]), int(ts[at]), bool(genesis[at]))
            for at in (wrong[0], wrong[0] + 1)
        )
        check_order(last, this)


def _tied(job: Ints, group: Ints, key: Ints) -> Ints:
    """Of each key the smallest table id that it is tied to."""
    if not len(key):
        return key
    keys, node = np.unique(key, return_inverse=True)
    same = np.flatnonzero((np.diff(job) == 0) & (np.diff(group) == 0))
    label = components(len(keys), node[same], node[same + 1])
    smallest = np.full(len(keys), np.iinfo(np.int64).max)
    tables = np.flatnonzero(keys >= 0)
    np.minimum.at(smallest, label[tables], keys[tables])
    return smallest[label[node]]


def _folds(job: Ints, group: Ints, label: Ints, size: Ints, flags: Ints, sizes: Sizes) -> tuple[Ints, Ints, Ints, int]:
    """(jobs, their groups, the fold of each, how many folds); a job that ties nothing may go anywhere."""
    heads = np.append(True, (np.diff(job) != 0) | (np.diff(group) != 0))[: len(job)]
    lonely = np.setdiff1d(np.flatnonzero(flags & _SHARED == 0), job)
    member = np.concatenate([lonely, job[heads]])
    member_group = np.concatenate([np.zeros(len(lonely), np.int64), group[heads]])
    # Neighbours by their smallest table go to one fold.
    where = np.concatenate([-1 - lonely, label[heads]])
    parts = np.bincount(member, minlength=len(size))
    weight = np.maximum(1 / sizes.fold_jobs, size[member] / parts[member] / sizes.fold_bytes)
    found, index = np.unique(where, return_inverse=True)
    total = np.bincount(index, weight, minlength=len(found))
    numbers, fold_of = np.unique(np.floor(np.cumsum(total) - total), return_inverse=True)
    return member, member_group, fold_of[index], max(len(numbers), 1)


def components(nodes: int, one: Ints, other: Ints) -> Ints:
    """For each node the smallest one that edges lead to."""
    label = np.arange(nodes)
    while True:
        a, b = label[one], label[other]
        apart = a != b
        if not apart.any():
            return label
        one, other, a, b = one[apart], other[apart], a[apart], b[apart]
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        while ((up := label[label]) != label).any():
            label = up


def _assigned(
    jobs: _Jobs, chosen: Ints, ts: Ints, genesis: Flags, starts: Ints, places: tuple[Ints, Ints, Ints]
) -> Iterator[bytes]:
    """By part of the survey: jobs that count and their folds; of one that makes many tables those that go to each."""
    at, to, own = places
    order = np.lexsort((own, to, chosen[at]))
    at, to, own = at[order], to[order], own[order]
    source = chosen[at]
    heads = np.flatnonzero(np.append(True, (np.diff(source) != 0) | (np.diff(to) != 0))[: len(source)])
    ends = np.append(heads[1:], len(source))
    edges = np.searchsorted(source[heads], starts)
    for low, high in itertools.pairwise(edges):
        here = heads[low:high]
        some = source[here]
        lists = [
            own[first:last] if own[first] else None
            for first, last in zip(here.tolist(), ends[low:high].tolist(), strict=True)
        ] if own[here].any() else pa.nulls(len(here), _ASSIGNED.field("tables").type)  # fmt: skip
        columns = [jobs.origin[some], jobs.row[some], to[here], ts[at[here]], genesis[at[here]], lists]
        yield _written(columns, _ASSIGNED)


def _bounds(job: Ints, key: Ints, size: Ints, flags: Ints, version: Ints, sizes: Sizes) -> tuple[tuple[int, int], ...]:
    """Where ranges of rows begin, by about what they hold."""
    tables = key >= 0
    job, key = job[tables], key[tables]
    first = np.full(len(size), NOBODY, np.int64)
    first[flags & _SHARED > 0] = EVERYBODY
    smallest = np.full(len(size), np.iinfo(np.int64).max)
    np.minimum.at(smallest, job, key)
    first = np.where(smallest < np.iinfo(np.int64).max, smallest, first)
    ids = np.concatenate([first, key])
    at = np.concatenate([version, version[job]])
    weight = np.concatenate(
        [np.maximum(1 / sizes.range_rows, size / sizes.range_bytes), np.full(len(key), 1 / sizes.range_rows)]
    )
    order = np.lexsort((at, ids))
    number = np.floor(np.cumsum(weight[order])).astype(np.int64)
    begins = order[np.flatnonzero(np.diff(number)) + 1]
    return tuple(dict.fromkeys(zip(ids[begins].tolist(), at[begins].tolist(), strict=True)))


# -- deal


def deal(
    store: ObjectStore, pieces: Iterable[DdlRun], assigned: Iterable[bytes], folds: int
) -> Iterator[tuple[int, bytes]]:
    """(fold, its jobs) of these pieces; ``assigned``: what `FoldPlan` has for them, in order."""
    places = (
        place for blob in assigned for place in zip(*(each.to_pylist() for each in _loaded(blob).columns), strict=True)
    )
    place = next(places, None)
    held: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    size = 0
    for origin, row, archived in _read(store, pieces):
        while place is not None and place[:2] == (origin, row):
            _, _, fold, ts, genesis, tables = place
            for each in range(folds) if fold < 0 else (fold,):
                held[each].append((ts, genesis, fold < 0, tables, archived.job))
                size += len(archived.job or "")
            place = next(places, None)
        if size >= _HELD_BYTES:
            yield from _given(held)
            size = 0
    if place is not None:
        raise SchemaError("a DDL job was there and is not any more", hint="pumphouse archive verify")
    yield from _given(held)


def _given(held: dict[int, list[tuple[Any, ...]]]) -> Iterator[tuple[int, bytes]]:
    for fold in sorted(held):
        yield fold, _dumped(held.pop(fold), _DEALT)


# -- fold


@dataclass(frozen=True, slots=True)
class FoldSummary:
    """Of a fold: whether its tables can be told apart, which are sequences and views, how many new jobs touch."""

    whole: bool
    sequences: Sequence[int]
    views: Sequence[int]
    tables: int

    @classmethod
    def of(cls, timeline: Timeline, since: Tso) -> FoldSummary:
        """Jobs of windows behind ``since`` are new."""
        last = [(table_id, versions[-1].table) for table_id, versions in timeline.versions.items()]
        new = (event for event in timeline.events if not event.genesis and event.commit_ts > since)
        return cls(
            whole=is_whole(timeline),
            sequences=[table_id for table_id, table in last if table.is_sequence],
            views=[table_id for table_id, table in last if table.is_view],
            tables=len({table for event in new for table in event.table_ids}),
        )

    def to_json(self) -> bytes:
        """For the way to the driver."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> FoldSummary:
        """Read it."""
        return cls(**json.loads(data))


def fold_alone(
    fold: int, dealt: Iterable[bytes], *, bounds: Sequence[tuple[int, int]], begin: int, since: Tso
) -> tuple[FoldSummary, Iterator[tuple[int, bytes]]]:
    """Fold the jobs of one fold; what it says of them, and (range, rows) of those above a schema version.

    Jobs of databases are every fold's; their rows come from the first.
    """
    jobs: list[TimedJob] = []
    elsewhere: set[int] = set()
    batches: dict[int, TimedJob] = {}
    for blob in dealt:
        for ts, genesis, shared, tables, text in zip(
            *(column.to_pylist() for column in _loaded(blob).columns), strict=True
        ):
            timed = TimedJob(Tso(ts), Job.from_json(text), genesis)
            if shared and fold:
                elsewhere.add(timed.job.id)
            if tables is not None:
                batches[timed.job.id] = timed
                timed = trimmed(timed, {*tables})
            jobs.append(timed)
    timeline = Timeline.empty().fold(jobs)
    summary = FoldSummary.of(timeline, since)
    if any(
        event.job.id in batches and not event.table_ids <= {info.id for info in event.job.tables}
        for event in timeline.events
    ):
        summary = replace(summary, whole=True)
    return summary, _ranged(_rows(timeline, elsewhere, batches, begin), bounds)


def _rows(timeline: Timeline, elsewhere: set[int], batches: dict[int, TimedJob], begin: int) -> list[Row]:
    rows: list[Row] = []
    for timed, event in zip(timeline.jobs, timeline.events, strict=True):
        if timed.job.schema_version <= begin or timed.job.id in elsewhere:
            continue
        here = places_of(timed, event)
        if timed.job.id in batches:
            whole = batches[timed.job.id]
            first = min(info.id for info in whole.job.table_infos)
            here = (
                row._replace(at=first, job=whole.job.text if row.table_id == first and row.job is not None else None)
                for row in here
            )
        rows += here
    return sorted(rows, key=order)


def _ranged(rows: Sequence[Row], bounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    some: list[Row] = []
    size, number = 0, 0
    for row in rows:
        here = bisect_right(bounds, (row.table_id, row.schema_version))
        if some and (here != number or size >= _HELD_BYTES):
            yield number, _dumped(some, COLUMNS)
            some, size = [], 0
        some.append(row)
        size += len(row.job or "")
        number = here
    if some:
        yield number, _dumped(some, COLUMNS)


# -- write


def write_range(store: ObjectStore, blobs: Iterable[bytes]) -> list[File]:
    """Write the rows of one range as files; they follow those of the range before."""
    rows = [
        Row(table_id, version, at, tuple(tied), ts, genesis, job)
        for blob in blobs
        for table_id, version, at, tied, ts, genesis, job in zip(
            *(column.to_pylist() for column in _loaded(blob).columns), strict=True
        )
    ]
    return list(write_rows(store, sorted(rows, key=order)))


# -- blobs


def _dumped(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> bytes:
    return _written(list(zip(*rows, strict=True)) if rows else [[] for _ in schema], schema)


def _written(columns: Sequence[Any], schema: pa.Schema) -> bytes:
    table = pa.Table.from_arrays(
        [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)) as out:
        out.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _loaded(blob: bytes) -> pa.Table:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return pa.ipc.open_stream(pa.BufferReader(blob), options=options).read_all()


def _columns(table: pa.Table) -> list[Ints]:
    return [column.to_numpy() for column in table.columns]
