"""Pulls of a whole history by one lean client: the unary stream of TiDB's protocol, and our batches.

The baseline is ``PullBinlogs`` of a Go Pump by the same client, in turn with ours, where ``PUMPHOUSE_GO_PUMP`` names one
(`tests.bench.pumps.go_pump`), else a sequential read of our value log.
Names with ``_grpcio`` run the stock transport, the others the one that a Pump uses by default.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pumphouse.model.tso import compose
from pumphouse.registry.open import open_cluster
from tests.bench.fill import fill
from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import GoPump, RunningPump, go_pump, pump

_COUNT = 200_000
_GO_SECONDS = 6
_BLOCK = 4 << 20


@dataclass(frozen=True)
class _History:
    """What lies in a Pump: all that was committed behind ``after`` up to ``until``."""

    pump: RunningPump | GoPump
    after: int
    until: int


def _client(history: _History, method: str) -> dict[str, Any]:
    pump = history.pump
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.bench.h2_pull", method, pump.grpc, str(pump.cluster_id), str(history.after),
            str(history.until),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def _file_floor(work: Path) -> float:
    """Records a second of reading the value log sequentially, two records a transaction."""
    began, size = time.perf_counter(), 0
    for path in sorted((work / "pump" / "value").glob("*.vlog")):
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                size += len(block)
    return _COUNT / (time.perf_counter() - began)


def _pull(history: _History, method: str) -> Sample:
    with Watch(history.pump.pid, tree=isinstance(history.pump, RunningPump)) as watch:
        said = _client(history, method)
    watch.seconds = said["seconds"]
    return watch.sample(said["count"], client_cpu_s_per_100k=said["client_cpu_s_per_100k"])


def _go_history(go: GoPump, size: int) -> _History:
    """What the writing client leaves behind in some seconds."""
    after = compose(int(time.time() * 1000) - 2)
    subprocess.run(
        [
            sys.executable, "-m", "tests.bench.h2_load", go.grpc, str(go.cluster_id), "--size", str(size), "--c", "64",
            "--seconds", str(_GO_SECONDS),
        ],
        stdout=subprocess.DEVNULL,
        check=True,
    )  # fmt: skip
    history = _History(go, after, compose(int(time.time() * 1000)))
    _client(history, "unary")  # waits until the watermark is there
    return history


def _bench(work: Path, runs: int, *, method: str, size: int, transport: str = "") -> Result:
    samples: list[Sample] = []
    env = {"PUMPHOUSE_PUMP__TRANSPORT": transport} if transport else {}
    with pump(work, **env) as running:
        first = int(open_cluster(running.cluster_url).tso())
        ours = _History(running, first - 1, fill(running, first, _COUNT, size))
        _client(ours, method)  # waits until the watermark is there
        go = go_pump()
        theirs = _go_history(go, size) if go is not None else None
        rates = []
        for _ in range(runs):
            sample = _pull(ours, method)
            if sample.units < _COUNT:
                raise RuntimeError(f"{sample.units} of {_COUNT} came")
            if theirs is not None:
                baseline = _pull(theirs, "unary")
                rates.append(baseline.units / baseline.seconds)
                sample.extra["baseline_cpu_s_per_100k"] = baseline.cpu_s / baseline.units * 1e5
                sample.extra["baseline_client_cpu_s_per_100k"] = baseline.extra["client_cpu_s_per_100k"]
            samples.append(sample)
    name = f"pump_pull_{method}_{'1KiB' if size == 1024 else f'{size}B'}" + (f"_{transport}" if transport else "")
    if rates:
        return Result(name, "binlogs/s", samples, "Go Pump's PullBinlogs", statistics.median(rates))
    return Result(name, "binlogs/s", samples, "sequential read", _file_floor(work))


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    f"pump_pull_{method}_{name}": partial(_bench, method=method, size=size)
    for method in ("unary", "batch")
    for name, size in (("256B", 256), ("1KiB", 1024))
} | {"pump_pull_unary_256B_grpcio": partial(_bench, method="unary", size=256, transport="grpcio")}
