"""The stages of a load on Spark: decode -> shuffle into lanes -> fold (kept on disk) -> apply, step by step.

Only blobs move (`spark_tasks.travel`). The functions are those of `pumphouse.loader.stages`; contexts travel in
closures, because they hold secrets and an option would be shown.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pumphouse.clock import Throttle
from pumphouse.errors import BinlogError, LoadError, SparkUnavailable
from pumphouse.loader import stages
from pumphouse.loader.blob import Blob
from pumphouse.loader.context import LoadContext
from pumphouse.loader.engine import apply_here, deal
from pumphouse.loader.epochs import Epochs, PlaceUnits
from pumphouse.loader.plan import UnitId
from pumphouse.loader.stages import ApplyContext, UnitSummary
from pumphouse.loader.work import SegmentPart
from spark_tasks import faults
from spark_tasks.session import build_session, naming_loss
from spark_tasks.travel import SPARK_SCHEMA, Travel

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pumphouse.settings import SparkSettings

# A step of fewer bytes is applied by the driver, which collects all such steps at once: a Spark job for each of their
# phases would cost more than what it does. Together they must fit into the driver.
_SMALL_STEP_BYTES = 8 << 20
_SMALL_TOTAL_BYTES = 256 << 20

# Phase of a row that carries an error instead of a blob.
FAULT = 254
_APPLIED_SCHEMA = "epoch int, phase int, table_id bigint, bucket int, row_count bigint, applied boolean, fault binary"
_APPLIED = pa.schema(
    [
        ("epoch", pa.int32()),
        ("phase", pa.int32()),
        ("table_id", pa.int64()),
        ("bucket", pa.int32()),
        ("row_count", pa.int64()),
        ("applied", pa.bool_()),
        ("fault", pa.binary()),
    ]
)
_Batches = Iterable[pa.RecordBatch]


class SparkEngine:
    """`pumphouse.loader.engine.Engine` on a Spark session, which is made when there is something to do."""

    def __init__(self, settings: SparkSettings, *, connections: int = 2, app: str = "pumphouse-load") -> None:
        self._settings = settings
        self._connections = connections
        self._lanes = max(settings.shuffle_partitions, connections)
        self._app = app
        self._session: SparkSession | None = None
        self._ours = False
        self._units: DataFrame | None = None
        self._travel: Travel | None = None
        self._small: dict[UnitId, list[Blob]] = {}

    @property
    def where(self) -> str:
        """The master that its plans run on."""
        return f"on Spark at {self._settings.master}"

    @property
    def session(self) -> SparkSession:
        """The session, made now if there is none."""
        if self._session is None:
            from pyspark.sql import SparkSession

            self._ours = SparkSession.getActiveSession() is None
            self._session = build_session(self._app, self._settings)
        return self._session

    def prepare(self, context: LoadContext, pieces: Sequence[SegmentPart]) -> list[UnitSummary]:
        """Decode and fold; what there is to apply."""
        with naming_loss(self._settings):
            return self._prepared(context, pieces)

    def _prepared(self, context: LoadContext, pieces: Sequence[SegmentPart]) -> list[UnitSummary]:
        from pyspark import StorageLevel
        from pyspark.sql import functions as f

        self._travel = travel = Travel.of(self.session)
        tasks = deal(pieces, self._settings.shuffle_partitions)
        lanes = self._lanes
        entries = self.session.range(0, len(tasks), 1, len(tasks)).mapInArrow(
            _decoder(context, travel, tasks), SPARK_SCHEMA
        )
        # Buckets of one table go to different lanes, so that they are applied side by side.
        lane = f.pmod(f.xxhash64("table_id", "epoch") + f.col("bucket"), f.lit(lanes)).cast("int")
        units = (
            entries.repartitionById(lanes, lane)
            .sortWithinPartitions("epoch", "table_id", "bucket", "phase")
            .mapInArrow(_folder(context, travel), SPARK_SCHEMA)
            .persist(StorageLevel.DISK_ONLY)
        )
        self._units = units
        keys = ("epoch", "table_id", "bucket", "phase")
        rows = units.groupBy(*keys).agg(f.sum("row_count").alias("r"), f.sum("size").alias("b")).collect()
        if any(row.phase == FAULT for row in rows):
            raise faults.load(bytes(units.filter(f.col("phase") == FAULT).select("data").first().data))
        found = stages.summarize((row.epoch, row.table_id, row.bucket, row.phase, row.r, row.b) for row in rows)
        self._collect_small(units, Epochs(context.plan).steps([each.unit for each in found]), found)
        return found

    def _collect_small(self, units: DataFrame, steps: Sequence[PlaceUnits], found: Sequence[UnitSummary]) -> None:
        """Bring the units of small steps into the driver."""
        bytes_of = {unit.unit: unit.bytes for unit in found}
        sizes = sorted(((sum(bytes_of[unit] for unit in step.units), step) for step in steps), key=lambda each: each[0])
        small: list[UnitId] = []
        total = 0
        for size, step in sizes:
            total += size
            if size >= _SMALL_STEP_BYTES or total > _SMALL_TOTAL_BYTES:
                break
            small += step.units
        self._small = defaultdict(list)
        if small:
            for row in sorted(units.filter(_of_epochs(small)).collect(), key=lambda r: r.number):
                blob = Travel.blob(row.asDict())
                self._small[blob.unit].append(blob)

    def apply(self, context: ApplyContext, units: Sequence[UnitId]) -> int:
        """Apply these units, all of one phase, in the executors; returns the rows applied now."""
        from pyspark.sql import functions as f

        if self._units is None:
            raise LoadError("nothing was prepared")
        if all(unit in self._small for unit in units):
            return apply_here(context, [self._small[unit] for unit in units], connections=self._connections)
        applier = _applier(context.shared(min(self._lanes, len(units))), frozenset(units))
        with naming_loss(self._settings):
            wanted = self._units.filter(_of_epochs(units) & (f.col("phase") == units[0].phase))
            rows = wanted.mapInArrow(applier, _APPLIED_SCHEMA).collect()
        for row in rows:
            if row.fault is not None:
                raise faults.load(bytes(row.fault))
        if len(rows) != len(units):
            raise LoadError(f"{len(units)} units were to be applied, {len(rows)} were")
        return sum(int(row.row_count) for row in rows if row.applied)

    def close(self) -> None:
        """Drop what was prepared."""
        if self._units is not None:
            # A server that was lost took it along.
            with contextlib.suppress(SparkUnavailable), naming_loss(self._settings):
                self._units.unpersist()
            self._units = None
        self._small = {}
        if self._travel is not None:
            self._travel.end()
            self._travel = None

    def stop(self) -> None:
        """End the session, if this engine made it."""
        self.close()
        if self._session is not None and self._ours:
            self._session.stop()
        self._session = None


def _decoder(
    context: LoadContext, travel: Travel, tasks: list[list[SegmentPart]]
) -> Callable[[_Batches], Iterator[pa.RecordBatch]]:
    def decode(batches: _Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                blobs = (part for blob in stages.decode(context, tasks[number]) for part in blob.parts())
                yield from _packed(travel, blobs)

    return decode


def _folder(context: LoadContext, travel: Travel) -> Callable[[_Batches], Iterator[pa.RecordBatch]]:
    plan = context.plan

    def fold(batches: _Batches) -> Iterator[pa.RecordBatch]:
        blobs = _checked(b for batch in batches for b in travel.unpack(batch))
        yield from _packed(travel, stages.fold(plan, blobs))

    return fold


def _of_epochs(units: Sequence[UnitId]) -> Column:
    """Whether a blob is of the epochs of these units."""
    from pyspark.sql import functions as f

    names = sorted({f"{unit.table_id}/{unit.epoch}" for unit in units})
    return f.concat_ws("/", f.col("table_id"), f.col("epoch")).isin(names)


def _applier(context: ApplyContext, wanted: frozenset[UnitId]) -> Callable[[_Batches], Iterator[pa.RecordBatch]]:
    def apply(batches: _Batches) -> Iterator[pa.RecordBatch]:
        blobs = (b for batch in batches for b in Travel.unpack(batch) if b.unit in wanted)
        first = next(blobs, None)
        if first is None:
            return

        def rest() -> Iterator[Blob]:
            yield first
            yield from blobs

        try:
            for unit, rows, done in stages.apply(context, rest(), Throttle(context.bytes_per_s)):
                yield _applied(unit.epoch, unit.phase, unit.table_id, unit.bucket, rows, done, None)
        except BinlogError as error:
            yield _applied(0, 0, 0, 0, 0, False, faults.dump(error))

    return apply


def _applied(*row: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(_APPLIED.names, row, strict=True))], schema=_APPLIED)


class _Passed(BinlogError):
    """An error of an earlier stage, on its way."""

    data: bytes = b""


def _checked(blobs: Iterable[Blob]) -> Iterator[Blob]:
    for blob in blobs:
        if blob.phase == FAULT:
            raise _Passed("", data=blob.data)
        yield blob


def _packed(travel: Travel, blobs: Iterator[Blob]) -> Iterator[pa.RecordBatch]:
    """One batch a blob; an error of ours becomes a row."""
    try:
        for blob in blobs:
            yield travel.pack(blob)
    except _Passed as passed:
        yield travel.pack(Blob(0, 0, 0, FAULT, 0, 0, passed.data))
    except BinlogError as error:
        yield travel.pack(Blob(0, 0, 0, FAULT, 0, 0, faults.dump(error)))
