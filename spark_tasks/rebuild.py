"""The schema rebuild on Spark: few new jobs in one executor, a whole history by many (`schema_stages`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.schema_parts import File
from pumphouse.archive.schema_stages import (
    CannotTell,
    DdlRun,
    FoldPlan,
    FoldSummary,
    Sizes,
    deal,
    fold_alone,
    survey,
    write_range,
)
from pumphouse.archive.schema_store import Rebuilt, WholeFold, rebuild, whole_fold
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso
from pumphouse.settings import ArchiveSettings, SparkSettings
from spark_tasks import faults
from spark_tasks.session import session_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A history, or new jobs, of no more than this are folded by one executor.
FEW_JOBS = 20_000
SIZES = Sizes()

_Batches = Iterable[pa.RecordBatch]
_Work = Callable[[_Batches], Iterator[pa.RecordBatch]]

# What goes from stage to stage: a blob and where it goes, or an error. `SUMMARY`: of a fold, for the driver.
_BLOBS = "number int, data binary, more binary, fault binary"
_ARROW = pa.schema([("number", pa.int32()), ("data", pa.binary()), ("more", pa.binary()), ("fault", pa.binary())])
SUMMARY = -1


def rebuild_on_spark(spark: SparkSettings, archive: ArchiveSettings, cluster_id: int, upto: Tso) -> tuple[Rebuilt, str]:
    """Rebuild up to ``upto`` in executors; what was done, and why one of them folded a long history alone, or ''."""
    with session_for("pumphouse-schema", spark) as session:
        whole = whole_fold(Archive.open(archive, cluster_id), upto, few=FEW_JOBS)
        why = ""
        if whole is not None:
            try:
                return _by_many(session, archive, whole, max(spark.shuffle_partitions, 1)), ""
            except CannotTell as error:
                why = str(error)
        (row,) = session.range(0, 1, 1, 1).mapInArrow(_alone(archive, cluster_id, upto), _BLOBS).collect()
        _raise_fault([row])
        done = json.loads(bytes(row.data))
        return Rebuilt(**{**done, "upto": Tso(done["upto"])}), why


def _alone(settings: ArchiveSettings, cluster_id: int, upto: Tso) -> _Work:
    def work() -> Iterator[pa.RecordBatch]:
        yield _blob(0, json.dumps(asdict(rebuild(Archive.open(settings, cluster_id), upto))).encode())

    return _told(lambda batches: (each for _ in batches for each in work()))


def _by_many(session: SparkSession, settings: ArchiveSettings, whole: WholeFold, readers: int) -> Rebuilt:
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    tasks = whole.tasks(readers, SIZES)
    cluster_id = whole.archive.cluster_id
    found = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(_surveyor(settings, cluster_id, tasks), _BLOBS)
    rows = sorted(found.collect(), key=lambda row: row.number)
    _raise_fault(rows)
    plan = whole.plan([(bytes(row.data), bytes(row.more)) for row in rows], SIZES)
    numbers = [row.number for row in rows]
    del rows
    if whole.stored is not None and not plan.fresh:
        return whole.done(plan)
    left = whole.left(plan)
    assigned = _assignments(session, numbers, plan.assigned, len(tasks))
    dealt = assigned.mapInArrow(_dealer(settings, cluster_id, tasks, plan.folds), _BLOBS)
    folded = (
        dealt.repartitionById(plan.folds, f.col("number"))
        .mapInArrow(_folder(plan, left[-1].upto if left else 0, whole.since), _BLOBS)
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        said = folded.filter(f.col("number") == SUMMARY).collect()
        _raise_fault(said)
        summaries = [FoldSummary.from_json(bytes(row.data)) for row in said]
        if any(each.whole for each in summaries):
            raise CannotTell("a DDL was not understood, or no job makes a database")
        ranges = len(plan.bounds) + 1
        written = (
            folded.filter(f.col("number") != SUMMARY)
            .repartitionById(ranges, f.col("number"))
            .mapInArrow(_writer(settings, cluster_id), _BLOBS)
            .collect()
        )
        _raise_fault(written)
    finally:
        folded.unpersist()
    files = [
        File(**file) for row in sorted(written, key=lambda row: row.number) for file in json.loads(bytes(row.data))
    ]
    return whole.done(plan, summaries, files)


def _assignments(session: SparkSession, numbers: Sequence[int], assigned: Sequence[bytes], tasks: int) -> DataFrame:
    """A partition for each task, with what was assigned to it in order."""
    from pyspark.sql import functions as f

    columns = {"number": pa.array(numbers, pa.int32()), "data": pa.array(assigned, pa.binary())}
    table = pa.table({**columns, "place": pa.array(range(len(assigned)), pa.int32())})
    return session.createDataFrame(table).repartitionById(tasks, f.col("number")).sortWithinPartitions("place")


# -- what runs in an executor


def _surveyor(settings: ArchiveSettings, cluster_id: int, tasks: Sequence[Sequence[DdlRun]]) -> _Work:
    sizes = SIZES

    def work(batches: _Batches) -> Iterator[pa.RecordBatch]:
        store = Archive.open(settings, cluster_id).store
        for number in _column(batches, "id"):
            for jobs, ties in survey(store, tasks[number], sizes):
                yield _blob(number, jobs, ties)

    return _told(work)


def _dealer(settings: ArchiveSettings, cluster_id: int, tasks: Sequence[Sequence[DdlRun]], folds: int) -> _Work:
    def work(batches: _Batches) -> Iterator[pa.RecordBatch]:
        store = Archive.open(settings, cluster_id).store
        rows = (row for batch in batches for row in batch.to_pylist())
        first = next(rows, None)
        if first is not None:
            assigned = (row["data"] for row in chain([first], rows))
            for fold, blob in deal(store, tasks[first["number"]], assigned, folds):
                yield _blob(fold, blob)

    return _told(work)


def _folder(plan: FoldPlan, begin: int, since: Tso) -> _Work:
    bounds = plan.bounds

    def work(batches: _Batches) -> Iterator[pa.RecordBatch]:
        fold, blobs = 0, []
        for batch in batches:
            for row in batch.to_pylist():
                if row["fault"] is not None:
                    yield _blob(SUMMARY, fault=row["fault"])
                    return
                fold = row["number"]
                blobs.append(row["data"])
        if blobs:
            summary, rows = fold_alone(fold, blobs, bounds=bounds, begin=begin, since=since)
            yield _blob(SUMMARY, summary.to_json())
            for number, blob in rows:
                yield _blob(number, blob)

    return _told(work, SUMMARY)


def _writer(settings: ArchiveSettings, cluster_id: int) -> _Work:
    def work(batches: _Batches) -> Iterator[pa.RecordBatch]:
        number, blobs = 0, []
        for batch in batches:
            for row in batch.to_pylist():
                number = row["number"]
                blobs.append(row["data"])
        if blobs:
            files = write_range(Archive.open(settings, cluster_id).store, blobs)
            yield _blob(number, json.dumps([asdict(each) for each in files]).encode())

    return _told(work)


def _told(work: _Work, number: int = 0) -> _Work:
    """The work; an error of ours is a row."""

    def told(batches: _Batches) -> Iterator[pa.RecordBatch]:
        try:
            yield from work(batches)
        except BinlogError as error:
            yield _blob(number, fault=faults.dump(error))

    return told


def _blob(number: int, data: bytes | None = None, more: bytes | None = None, fault: bytes | None = None) -> Any:
    return pa.RecordBatch.from_pylist([{"number": number, "data": data, "more": more, "fault": fault}], schema=_ARROW)


def _column(batches: _Batches, name: str) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(name).to_pylist()


def _raise_fault(rows: Iterable[Any]) -> None:
    for row in rows:
        if row.fault is not None:
            raise faults.load(bytes(row.fault))
