"""The schema rebuild as a Spark task: jobs of new windows are folded in an executor, which stores the timeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.schema_store import rebuild
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso
from pumphouse.settings import ArchiveSettings, SparkSettings
from spark_tasks import faults
from spark_tasks.session import session_for

_SCHEMA = "key string, jobs long, tables long, fault binary"
_ARROW = pa.schema([("key", pa.string()), ("jobs", pa.int64()), ("tables", pa.int64()), ("fault", pa.binary())])


def rebuild_on_spark(
    spark: SparkSettings, archive: ArchiveSettings, cluster_id: int, upto: Tso
) -> tuple[str, int, int]:
    """Rebuild up to ``upto`` in an executor; the key that was written, if any; new jobs, and their tables."""
    with session_for("pumphouse-schema", spark) as session:
        row = session.range(0, 1, 1, 1).mapInArrow(_worker(archive, cluster_id, upto), _SCHEMA).collect()[0]
    if row.fault is not None:
        raise faults.load(bytes(row.fault))
    return str(row.key), int(row.jobs), int(row.tables)


def _worker(settings: ArchiveSettings, cluster_id: int, upto: Tso) -> Any:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            row: dict[str, Any] = {"key": None, "jobs": None, "tables": None, "fault": None}
            try:
                done = rebuild(Archive.open(settings, cluster_id), upto)
                row |= {"key": done.key, "jobs": done.jobs, "tables": done.tables}
            except BinlogError as error:
                row["fault"] = faults.dump(error)
            yield pa.RecordBatch.from_pylist([row], schema=_ARROW)

    return work
