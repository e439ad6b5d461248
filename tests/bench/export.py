"""Exports by the command, as binlog files and to a real Kafka: a million row changes of the load's workload, by tens.

CPU and memory are those of the command's process tree, with the start of its interpreter. The baseline is the same rows
through protobuf's own library, a row at a time (`tests.support.pbmessages`), on a sample.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pumphouse.codec.columnar import DELETE, INSERT, UPDATE
from pumphouse.model.binlog import MutationType
from tests.bench.harness import Result, Sample, Watch
from tests.bench.sysbench import Workload, archive
from tests.support import pbmessages, rowreference
from tests.support.kafkabroker import MISSING, KafkaBroker
from tests.support.madearchive import MadeSource

_TXNS, _CHANGES = 100_000, 10
_OPS = {MutationType.INSERT: INSERT, MutationType.UPDATE: UPDATE, MutationType.DELETE_ROW: DELETE}


def _export(source: MadeSource, since: int, out: Path) -> Sample:
    env = {
        "PUMPHOUSE_ARCHIVE__ROOT": source.settings.root,
        "PUMPHOUSE_ARCHIVE__CLUSTER_ID": str(source.cluster_id),
    }
    words = ["archive", "export", "--format", "pb", "--from", str(since), "--json", str(out)]
    child = subprocess.Popen(
        [sys.executable, "-m", "pumphouse", *words], stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
    )
    with Watch(child.pid) as watch:
        told, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"the export failed with exit code {child.returncode}")
    files = json.loads(told)["files"]
    changes, size = sum(each["changes"] for each in files), sum(each["size"] for each in files)
    if changes != _TXNS * _CHANGES:
        raise RuntimeError(f"{changes} of {_TXNS * _CHANGES} row changes were exported")
    return watch.sample(changes, mb_per_s=size / 1e6 / watch.seconds, bytes_per_change=size / changes)


def _plain_rate() -> float:
    """Row changes a second, a row at a time."""
    workload = Workload()
    values = list(workload.transactions(200, 1))
    began, rows = time.perf_counter(), 0
    for value in values:
        message = pbmessages.Binlog(tp=0, commit_ts=1)
        for _, kind, image in rowreference.row_changes(value):
            event = pbmessages.event("d", workload.table, workload.table, _OPS[MutationType(kind)], image)
            message.dml_data.events.append(event)
            rows += 1
        message.SerializeToString()
    return rows / (time.perf_counter() - began)


def bench(work: Path, runs: int) -> Result:
    """680 bytes a row change in the files."""
    source = MadeSource(work / "archive")
    _, since = archive(source, _TXNS)
    _export(source, since, work / "first")  # kernels compile, or load from their cache
    samples = [_export(source, since, work / f"out{run}") for run in range(runs)]
    return Result("export_pb", "changes/s", samples, "protobuf's library, a row at a time", _plain_rate())


def _send(source: MadeSource, since: int, kafka: KafkaBroker, topic: str) -> Sample:
    env = {
        "PUMPHOUSE_ARCHIVE__ROOT": source.settings.root,
        "PUMPHOUSE_ARCHIVE__CLUSTER_ID": str(source.cluster_id),
        "PUMPHOUSE_KAFKA__BOOTSTRAP_SERVERS": kafka.servers,
    }
    words = ["archive", "export", "--format", "kafka", "--from", str(since), "--json", kafka.create(topic)]
    child = subprocess.Popen(
        [sys.executable, "-m", "pumphouse", *words], stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
    )
    with Watch(child.pid) as watch:
        told, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"the export failed with exit code {child.returncode}")
    report = json.loads(told)
    changes, size = report["changes"], report["size"]
    if changes != _TXNS * _CHANGES:
        raise RuntimeError(f"{changes} of {_TXNS * _CHANGES} row changes were sent")
    return watch.sample(changes, mb_per_s=size / 1e6 / watch.seconds, bytes_per_change=size / changes)


def bench_kafka(work: Path, runs: int) -> Result:
    """To one broker on this machine, which takes a share of the two cores; the baseline is the files of the same run."""
    source = MadeSource(work / "archive")
    _, since = archive(source, _TXNS)
    _export(source, since, work / "files")
    with KafkaBroker(work / "kafka") as kafka:
        _send(source, since, kafka, "first")
        samples = [_send(source, since, kafka, f"topic{run}") for run in range(runs)]
    files = _export(source, since, work / "again")
    return Result("export_kafka", "changes/s", samples, "as files for Reparo", files.units / files.seconds)


BENCHES: dict[str, Callable[[Path, int], Result]] = {"export_pb": bench}
if not MISSING:
    BENCHES["export_kafka"] = bench_kafka
