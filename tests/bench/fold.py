"""Folds by the command: a base of 900,000 rows of 350 bytes, and a window that touches every part of it; and its proof.

The baseline is a copy of the base's Parquet files by pyarrow: read, and written as a base is. ``unchanged_s`` is the
same command where one row of another table has changed. The baseline of `archive verify` reads the same objects, takes
their SHA-256, and opens those that are Parquet by pyarrow.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pumphouse.archive.view import read_view
from pumphouse.settings import ArchiveSettings
from tests.bench.harness import Result, Watch
from tests.bench.sysbench import archive
from tests.support.madearchive import MadeSource, column

_TXNS, _MORE = 300_000, 30_000


def _fold(kept: ArchiveSettings, cluster_id: int) -> tuple[dict[str, Any], Watch]:
    """`archive base`."""
    return _archive(kept, cluster_id, "base")


def _archive(kept: ArchiveSettings, cluster_id: int, command: str) -> tuple[dict[str, Any], Watch]:
    """The whole command, with the start of its interpreter."""
    env = {"PUMPHOUSE_ARCHIVE__ROOT": kept.root, "PUMPHOUSE_ARCHIVE__CLUSTER_ID": str(cluster_id)}
    child = subprocess.Popen(
        [sys.executable, "-m", "pumphouse", "archive", command, "--json"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip
    with Watch(child.pid) as watch:
        out, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"archive {command} failed with exit code {child.returncode}")
    return json.loads(out), watch


def _copied(source: MadeSource, work: Path) -> float:
    """Rows a second of a copy of the newest base's files."""
    files = [s.key for table in read_view(source.archive).bases[-1].tables for s in table.segments]
    root, rows, began = source.root / str(source.cluster_id), 0, time.perf_counter()
    for key in files:
        found = pq.read_table(root / key)
        pq.write_table(found, work / "copy.parquet", compression="zstd", compression_level=1, use_dictionary=False)
        rows += found.num_rows
    return rows / (time.perf_counter() - began)


def bench(work: Path, runs: int) -> Result:
    """Rows of the new base a second."""
    source = MadeSource(work / "archive")
    source.create_table("other", [column(1, "id", flag=3)])
    (workload,), _ = archive(source, _TXNS)
    first, _ = _fold(source.settings, source.cluster_id)
    samples, unchanged = [], []
    for n in range(runs):
        for value in workload.transactions(_MORE // runs, source.schema_version):
            source.commit(source.tick(1), value)
        source.cut()
        report, watch = _fold(source.settings, source.cluster_id)
        if report["rows"] != workload.rows + n:
            raise RuntimeError(f"{report['rows']} of {workload.rows + n} rows were folded")
        with source.txn() as t:
            t.insert("other", id=n)
        source.cut()
        began = time.perf_counter()
        _fold(source.settings, source.cluster_id)
        unchanged.append(time.perf_counter() - began)
        parts = next(each["written"] for each in report["tables"] if each["name"] == "d.sbtest")
        samples.append(watch.sample(workload.rows, unchanged_s=unchanged[-1], parts=parts, fold_s=report["seconds"]))
    made = workload.rows / first["seconds"]
    samples[0].extra["first_rows_per_s"] = made
    return Result("base_fold", "rows/s", samples, "rows/s copied by pyarrow, one thread", _copied(source, work))


def verify(work: Path, runs: int) -> Result:
    """MB of objects a second."""
    source = MadeSource(work / "verified")
    archive(source, _TXNS)
    _fold(source.settings, source.cluster_id)
    files = [each for each in (source.root / str(source.cluster_id)).rglob("*") if each.is_file()]
    size, samples = sum(each.stat().st_size for each in files) / 1e6, []
    for _ in range(runs):
        _, watch = _archive(source.settings, source.cluster_id, "verify")
        samples.append(watch.sample(size))
    began = time.perf_counter()
    for each in files:
        hashlib.sha256(each.read_bytes()).digest()
        if each.suffix == ".parquet":
            pq.read_table(each)
    floor = size / (time.perf_counter() - began)
    return Result("verify_full", "MB/s", samples, "the same read, hashed, and opened by pyarrow, MB/s", floor)


BENCHES: dict[str, Callable[[Path, int], Result]] = {"base_fold": bench, "verify_full": verify}
