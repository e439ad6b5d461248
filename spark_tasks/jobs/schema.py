"""Rebuild the schema timeline from the DDL jobs of new windows (S1, S3): a Spark task, where there is any to fold."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.schema_store import pending_jobs, rebuild
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso
from pumphouse.objectstore.open import open_store
from pumphouse.settings import ArchiveSettings, Settings
from spark_tasks import faults
from spark_tasks.session import session_for


def run(settings: Settings, upto: Tso | None = None) -> dict[str, Any]:
    """Fold the jobs of new windows and store the timeline.

    Args:
        settings: ``load.engine`` says whether Spark does it. Without new jobs there is no session either way.
        upto: commit ts, inclusive; None = the archive's end.

    Returns:
        ``upto``, ``jobs`` (new ones folded), ``key`` (object written, or ''), ``schema_version``, ``spark``.
    """
    from spark_tasks.jobs.load import open_archive

    archive = open_archive(settings)
    end = archive.end() if upto is None else upto
    pending = pending_jobs(archive, end)
    if pending and settings.load.engine == "spark":
        with session_for("pumphouse-schema", settings.spark) as session:
            work = _worker(settings.archive, archive.cluster_id, end)
            row = session.range(0, 1, 1, 1).mapInArrow(work, "report string, fault binary").collect()[0]
        if row.fault is not None:
            raise faults.load(bytes(row.fault))
        report: dict[str, Any] = json.loads(row.report)
        return {**report, "spark": True}
    return {**_rebuild(archive, end), "spark": False}


def _rebuild(archive: Archive, upto: Tso) -> dict[str, Any]:
    done = rebuild(archive, upto)
    return {
        "tables": len(done.timeline.tables_at(upto)),
        "upto": int(done.upto),
        "jobs": done.jobs,
        "key": done.key,
        "schema_version": done.timeline.schema_version,
    }


def _worker(settings: ArchiveSettings, cluster_id: int, upto: Tso) -> Any:
    schema = pa.schema([("report", pa.string()), ("fault", pa.binary())])

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            row: dict[str, Any] = {"report": None, "fault": None}
            try:
                archive = Archive(open_store(settings), cluster_id, archive_id=settings.archive_id)
                row["report"] = json.dumps(_rebuild(archive, upto))
            except BinlogError as error:
                row["fault"] = faults.dump(error)
            yield pa.RecordBatch.from_pylist([row], schema=schema)

    return work


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m spark_tasks.jobs.schema``; settings come from pumphouse.toml and the environment."""
    from pumphouse.log import configure_logging

    del argv
    configure_logging()
    sys.stdout.write(json.dumps(run(Settings.read())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
