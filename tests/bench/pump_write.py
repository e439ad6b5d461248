"""Writes to a Pump, fsync on, real P/C pairs: unary ones from the lean client, and batches.

The baseline of the unary ones is a Go Pump where ``PUMPHOUSE_GO_PUMP=host:port,pid,cluster id`` names one, else the same
Pump behind stock grpcio, from the same client, in turn with ours: a shared machine is another one a minute later.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import disk_floor, go_pump, pump

_SECONDS = 5.0
_BASELINE_SECONDS = 3.0


def _client(module: str, grpc: str, cluster_id: int, pid: int, *more: object) -> tuple[dict[str, Any], Watch]:
    with Watch(pid, tree=False) as watch:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{module}", grpc, str(cluster_id), *map(str, more)],
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    said = json.loads(done.stdout.strip().splitlines()[-1])
    watch.seconds = said["seconds"]  # without the start of the client's interpreter
    return said, watch


def _load(grpc: str, cluster_id: int, pid: int, arguments: list[str], seconds: float) -> Sample:
    said, watch = _client("h2_load", grpc, cluster_id, pid, *arguments, "--seconds", seconds)
    kept = ("p50_ms", "p99_ms", "client_cpu_s_per_100k")
    return watch.sample(said["ok"], **{name: said[name] for name in kept})


def _one(work: Path, arguments: list[str], transport: str, seconds: float) -> Sample:
    work.mkdir()
    with pump(work, PUMPHOUSE_PUMP__TRANSPORT=transport) as running:
        return _load(running.grpc, running.cluster_id, running.pid, arguments, seconds)


def _baseline(work: Path, arguments: list[str]) -> tuple[str, Sample]:
    if go := go_pump():
        return "Go Pump", _load(go.grpc, go.cluster_id, go.pid, arguments, _BASELINE_SECONDS)
    return "stock grpcio", _one(work, arguments, "grpcio", _BASELINE_SECONDS)


def _unary(work: Path, runs: int, *, name: str, arguments: list[str]) -> Result:
    samples, rates = [], []
    for n in range(runs):
        sample = _one(work / str(n), arguments, "builtin", _SECONDS)
        what, baseline = _baseline(work / f"baseline-{n}", arguments)
        sample.extra["baseline_cpu_s_per_100k"] = baseline.cpu_s / baseline.units * 1e5
        sample.extra["baseline_p99_ms"] = baseline.extra["p99_ms"]
        sample.extra["baseline_client_cpu_s_per_100k"] = baseline.extra["client_cpu_s_per_100k"]
        samples.append(sample)
        rates.append(baseline.units / baseline.seconds)
    return Result(name, "requests/s", samples, what, statistics.median(rates))


def _batch(work: Path, runs: int) -> Result:
    samples = []
    for n in range(runs):
        each = work / str(n)
        each.mkdir()
        # The batches are made beforehand: a fake in between would make their commits late.
        with pump(each, PUMPHOUSE_PUMP__TRANSPORT="builtin", PUMPHOUSE_PUMP__GEN_BINLOG_INTERVAL_S="1000") as running:
            said, watch = _client("batch_load", running.grpc, running.cluster_id, running.pid)
        samples.append(watch.sample(said["ok"], client_cpu_s_per_100k=said["client_cpu_s_per_100k"]))
    floor = disk_floor(work, size=256, group=2000)
    return Result("pump_write_batch_256B", "records/s", samples, "append+crc+fdatasync", floor)


def _all() -> dict[str, Callable[[Path, int], Result]]:
    found: dict[str, Callable[[Path, int], Result]] = {}
    for size, label in ((256, "256B"), (1024, "1KiB")):
        for concurrency in (1, 16, 64, 256):
            name = f"pump_write_unary_{label}_c{concurrency}"
            arguments = ["--size", str(size), "--c", str(concurrency)]
            found[name] = partial(_unary, name=name, arguments=arguments)
            if concurrency >= 64:
                name += "_deadline_8conn"
                more = [*arguments, "--conns", "8", "--timeout-header"]
                found[name] = partial(_unary, name=name, arguments=more)
    return found | {"pump_write_batch_256B": _batch}


BENCHES: dict[str, Callable[[Path, int], Result]] = _all()
