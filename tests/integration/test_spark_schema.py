"""A whole history folded by many processes of a real Spark session: stored as one process stores it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pumphouse.archive.schema_parts import SchemaParts, read_rows, rows_of
from pumphouse.archive.schema_stages import Sizes
from pumphouse.archive.schema_store import timeline_of
from pumphouse.archive.verify import verify
from pumphouse.errors import BadSegment
from pumphouse.schema.actions import Action
from pumphouse.settings import SparkSettings
from spark_tasks import rebuild as task
from spark_tasks.session import build_session
from tests.support.madearchive import MadeSource
from tests.support.randomhistory import RandomHistory
from tests.support.schemajobs import START, add, int_col

SPARK = SparkSettings(shuffle_partitions=2)
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def session(quick_jvms: str) -> Iterator[SparkSession]:
    del quick_jvms
    made = build_session("test", SPARK)
    yield made
    made.stop()


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch, session: SparkSession) -> None:
    """Small folds, so that a short history has several."""
    del session
    monkeypatch.setattr(task, "FEW_JOBS", 10)
    monkeypatch.setattr(task, "SIZES", Sizes(task_jobs=80, fold_jobs=60, range_rows=100))
    monkeypatch.setattr("pumphouse.archive.ddl._GROUP_JOBS", 32)


def take(made: MadeSource, source: RandomHistory, jobs: int) -> None:
    for timed in source.jobs[-jobs:]:
        made.take_job(timed.job)


@pytest.mark.row("S1", "O4")
@pytest.mark.usefixtures("many")
def test_spark_folds_a_whole_history_by_many_and_stores_what_one_process_says(tmp_path: Path) -> None:
    made, source = MadeSource(tmp_path / "archive"), RandomHistory(11)
    made.jobs.clear()
    made.events.clear()
    made.ts = int(START) + (3_600_000 << 18)
    source.run(200)
    take(made, source, len(source.jobs))
    made.genesis()
    before = len(source.jobs)
    source.run(40)
    take(made, source, len(source.jobs) - before)
    made.cut()
    done, why = task.rebuild_on_spark(SPARK, made.settings, made.cluster_id, made.archive.end())
    assert (why, done.jobs, done.schema_version) == ("", len(source.jobs) - before, source.jobs[-1].job.schema_version)
    found = SchemaParts.from_json(done.key, made.archive.store.get(done.key))
    made.archive.store.delete(done.key)
    alone = timeline_of(made.archive)
    assert [row for part in found.parts for row in read_rows(made.archive.store, part)] == rows_of(alone, 0)
    assert len(found.parts[0].files) > 1
    made.archive.store.put(done.key, found.to_json())
    assert timeline_of(made.archive) == alone
    assert verify(made.archive, deep=True).problems == []
    # Nothing is new: nothing is written.
    again, _ = task.rebuild_on_spark(SPARK, made.settings, made.cluster_id, made.archive.end())
    assert (again.key, again.jobs) == ("", 0)
    # A few new jobs that name their tables: one executor, which reads what those have.
    table = next(key for key, raw in source.tables.items() if not raw.get("view"))
    source.alter(table, Action.ADD_COLUMN, lambda t: add(t, int_col("last")))
    take(made, source, 1)
    made.cut()
    done, why = task.rebuild_on_spark(SPARK, made.settings, made.cluster_id, made.archive.end())
    assert (why, done.jobs, done.tables) == ("", 1, 1)
    # A type that is not known: one process, and the report says why.
    source.alter(table, 211, lambda t: add(t, int_col("unknown")))
    take(made, source, 1)
    made.cut()
    done, why = task.rebuild_on_spark(SPARK, made.settings, made.cluster_id, made.archive.end())
    assert why == f"DDL job {source.jobs[-1].job.id} may touch tables that it does not name"
    assert SchemaParts.from_json(done.key, made.archive.store.get(done.key)).whole
    # A damaged object is named by the worker that reads it.
    made.archive.store.delete(done.key)
    for each in [each.key for each in made.archive.store.list("schema/parts/")]:
        made.archive.store.delete(each)
    key = made.archive.genesis().ddl.key
    good = made.archive.store.get(key)
    made.archive.store.put(key, good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    with pytest.raises(BadSegment, match="has the digest"):
        task.rebuild_on_spark(SPARK, made.settings, made.cluster_id, made.archive.end())
