"""Rebuild the schema timeline from the DDL jobs of new windows (S1, S3): a Spark task, where there is any to fold."""

from __future__ import annotations

from dataclasses import dataclass

from pumphouse.archive.schema_store import pending_jobs, rebuild
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.settings import Settings

# So many are folded here, with engine = auto, before a session of Spark would have begun.
_FEW_JOBS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReport:
    """What a rebuild did: ``jobs`` new ones, of ``tables``, were folded, ``key`` was written ('' = nothing new).

    ``alone``: why one process folded a long history, and not many ('' = it was not so).
    """

    upto: Tso
    jobs: int
    key: str
    tables: int
    schema_version: int
    spark: bool
    alone: str = ""


def run(settings: Settings, upto: Tso | None = None) -> SchemaReport:
    """Fold the jobs of new windows and store the timeline.

    Args:
        settings: ``load.engine`` says whether Spark does it. Without new jobs there is no session either way.
        upto: commit ts, inclusive; None = the archive's end.
    """
    with Parts(settings) as parts:
        archive = parts.archive
        end = archive.end() if upto is None else upto
        few = _FEW_JOBS if settings.load.engine == "auto" else 0
        spark = settings.load.engine != "local" and pending_jobs(archive, end, enough=few + 1) > few
        alone = ""
        if spark:
            from spark_tasks.rebuild import rebuild_on_spark

            done, alone = rebuild_on_spark(settings.spark, settings.archive, archive.cluster_id, end)
        else:
            done = rebuild(archive, end)
        return SchemaReport(
            upto=done.upto,
            jobs=done.jobs,
            key=done.key,
            tables=done.tables,
            schema_version=done.schema_version,
            spark=spark,
            alone=alone,
        )
