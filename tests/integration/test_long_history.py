"""A history of millions of DDL jobs: folded once by Spark, then new jobs and plans cost what they touch (row S1).

PUMPHOUSE_HISTORY_JOBS=n: so many jobs, of a fifth as many tables. 5,000,000 take some 4 GB of disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pumphouse.archive import layout
from pumphouse.archive.ddl import ArchivedJob, write_jobs
from pumphouse.archive.genesis import Genesis
from pumphouse.archive.schema_store import rebuild
from pumphouse.archive.view import read_view
from pumphouse.model.table import Job
from pumphouse.model.tso import Tso
from tests.bench.harness import Watch
from tests.support.madearchive import MadeSource, column, table_info

JOBS = int(os.environ.get("PUMPHOUSE_HISTORY_JOBS", "5000000"))
DATABASES = 20
# A session of Spark, a driver's columns, and workers that hold a fold each.
MEMORY_MB = 6000
FIRST = 1000

# What `schema rebuild` runs, in a process of its own: its tree is what is measured.
REBUILD = """
import json, sys
from dataclasses import asdict
from pumphouse.settings import ArchiveSettings, SparkSettings
from spark_tasks.rebuild import rebuild_on_spark
spark, archive, cluster, end = json.loads(sys.argv[1])
done, why = rebuild_on_spark(SparkSettings(**spark), ArchiveSettings(**archive), cluster, end)
print(json.dumps([asdict(done), why]))
"""


def _table(number: int, columns: int) -> dict[str, Any]:
    return table_info(FIRST + number, f"t{number}", [column(at + 1, f"column_{at}") for at in range(columns)])


def _job(number: int, kind: int, version: int, ts: int, database: int, **binlog: Any) -> str:
    raw = {
        "id": FIRST * 1000 + number, "type": kind, "schema_id": 10 + database, "schema_name": f"d{database}",
        "table_id": binlog.get("TableInfo", {}).get("id", 0), "table_name": "", "state": 6, "schema_state": 5,
        "query": f"-- {kind}", "binlog": {"SchemaVersion": version, "FinishedTS": ts, **binlog},
    }  # fmt: skip
    return json.dumps(raw, separators=(",", ":"))


def _texts(jobs: int, ts: int) -> Iterator[tuple[int, str]]:
    """(id, text): databases, then every table is made, then each is altered in turn."""
    for number in range(DATABASES):
        info = {"id": 10 + number, "db_name": {"O": f"d{number}", "L": f"d{number}"}, "charset": "utf8mb4",
                "collate": "utf8mb4_bin", "state": 5}  # fmt: skip
        yield FIRST * 1000 + number, _job(number, 1, number + 1, ts, number, DBInfo=info)
    tables = jobs // 5
    left = jobs - DATABASES
    # A text of each kind; what differs is put in.
    mark = 987654321
    for turn in range(-(-left // tables)):
        text = _job(mark, 3 if turn == 0 else 5, mark, ts, 0, TableInfo=_table(mark - FIRST, 8 + turn))
        text = text.replace('"schema_id":10,"schema_name":"d0"', '"schema_id":@S,"schema_name":"d@D"')
        text = text.replace(f"{FIRST * 1000 + mark}", "@J").replace(f'"SchemaVersion":{mark}', '"SchemaVersion":@V')
        text = text.replace(f"t{mark - FIRST}", "t@N").replace(f"{mark}", "@T")
        for number in range(min(tables, left - turn * tables)):
            at = DATABASES + turn * tables + number
            database = number % DATABASES
            yield FIRST * 1000 + at, (
                text.replace("@S", str(10 + database)).replace("@D", str(database)).replace("@V", str(at + 1))
                .replace("@J", str(FIRST * 1000 + at)).replace("@N", str(number)).replace("@T", str(FIRST + number))
            )  # fmt: skip


def _begin(made: MadeSource, jobs: int) -> None:
    """Genesis with such a history."""
    ts = made.ts
    attempt, at = layout.attempt_id(), Tso(made.tick())
    archived = (
        ArchivedJob(commit_ts=Tso(0), start_ts=Tso(0), job_id=job_id, schema_state=5, query=b"", job=text)
        for job_id, text in _texts(jobs, ts)
    )
    genesis = Genesis(
        cluster_id=made.cluster_id, archive_id="main", attempt=attempt, ts=at, schema_version=jobs,
        pumps=made.pumps_at(at), ddl=write_jobs(made.archive.store, layout.genesis_ddl_key(attempt), archived), base=None,
    )  # fmt: skip
    made.archive.store.put_if_absent(layout.GENESIS, genesis.to_json())
    made.archive.write_head(None)
    made.events, made.jobs, made.schema_version = [], [], jobs
    made.previous = (at, Genesis.from_json(layout.GENESIS, genesis.to_json()).sha256)


def test_the_made_history_is_one_that_folds(tmp_path: Path) -> None:
    made = MadeSource(tmp_path / "archive")
    _begin(made, 300)
    made.cut()
    assert rebuild(made.archive).schema_version == 300
    assert len(read_view(made.archive).timeline.tables_at(made.ts)) == 60


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.row("S1")
def test_a_long_history_is_folded_within_bounded_memory_and_read_by_table(
    tmp_path: Path, record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeSource(tmp_path / "archive")
    _begin(made, JOBS)
    made.cut()
    spark = {"master": "local[2]", "driver_memory": "1g"}
    arguments = json.dumps([spark, {"root": made.settings.root}, made.cluster_id, int(made.archive.end())])
    command = [sys.executable, "-c", REBUILD, arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, Watch(process.pid) as watch:
        out, _ = process.communicate()
    assert process.returncode == 0
    done, why = json.loads(out)
    assert (why, done["schema_version"]) == ("", JOBS)
    figures: dict[str, Any] = {
        "jobs": JOBS, "seconds": round(watch.seconds, 1), "cpu_s": round(watch.cpu_s, 1),
        "peak_mb": round(watch.peak_rss_mb), "genesis_mb": made.archive.genesis().ddl.bytes >> 20,
        "stored_mb": sum(made.archive.store.size(each.key) for each in made.archive.store.list("schema/")) >> 20,
    }  # fmt: skip

    # 100 jobs on ten tables, in this process.
    since = made.archive.end()
    for number in range(100):
        at = made.schema_version + 1
        table = number % 10 * (JOBS // 50)
        raw = json.loads(_job(JOBS + number, 5, at, made.tick(), table % DATABASES,
                              TableInfo=_table(table, 13 + number // 10)))  # fmt: skip
        made.take_job(Job.from_dict(raw))
    made.cut()
    read: Counter[str] = Counter()
    get = type(made.archive.store).get

    def counted(self: Any, key: str) -> bytes:
        data = get(self, key)
        read[key] += len(data)
        return data

    monkeypatch.setattr(type(made.archive.store), "get", counted)
    began = time.perf_counter()
    new = rebuild(made.archive)
    figures |= {"new_s": round(time.perf_counter() - began, 2), "new_read_mb": round(sum(read.values()) / 1e6, 1)}
    assert (new.jobs, new.tables) == (100, 10)
    read.clear()
    began = time.perf_counter()
    view = read_view(made.archive, since=Tso(since), touched=True)
    figures |= {"plan_s": round(time.perf_counter() - began, 2), "plan_read_mb": round(sum(read.values()) / 1e6, 1)}
    figures["own_rss_mb"] = round(psutil.Process().memory_info().rss / (1 << 20))
    assert len(view.timeline.versions) == 10
    for name, value in figures.items():
        record_property(name, value)
    sys.stderr.write(f"{figures}\n")
    assert figures["peak_mb"] < MEMORY_MB
    assert figures["new_s"] < 10
    assert figures["plan_read_mb"] < 30
