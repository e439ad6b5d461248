"""Pulls of a whole history by one lean client: the unary stream of TiDB's protocol, and our batches.

Names with ``_grpcio`` run the stock transport, the others the one that a Pump uses by default.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from include.registry.open import open_cluster
from tests.bench.fill import fill
from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import RunningPump, pump

_COUNT = 200_000
_BLOCK = 4 << 20


def _client(running: RunningPump, method: str, after: int, until: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.bench.h2_pull", method, running.grpc, str(running.cluster_id), str(after),
            str(until),
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


def _bench(work: Path, runs: int, *, method: str, size: int, transport: str = "") -> Result:
    samples: list[Sample] = []
    env = {"PUMPHOUSE_PUMP__TRANSPORT": transport} if transport else {}
    with pump(work, **env) as running:
        first = int(open_cluster(running.cluster_url).tso())
        last = fill(running, first, _COUNT, size)
        _client(running, method, first - 1, last)  # waits until the watermark is there
        for _ in range(runs):
            with Watch(running.pid) as watch:
                said = _client(running, method, first - 1, last)
            if said["count"] < _COUNT:
                raise RuntimeError(f"{said['count']} of {_COUNT} came")
            watch.seconds = said["seconds"]
            samples.append(watch.sample(said["count"], client_cpu_s_per_100k=said["client_cpu_s_per_100k"]))
    name = f"pump_pull_{method}_{'1KiB' if size == 1024 else f'{size}B'}" + (f"_{transport}" if transport else "")
    return Result(name, "binlogs/s", samples, "sequential read", _file_floor(work))


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    f"pump_pull_{method}_{name}": partial(_bench, method=method, size=size)
    for method in ("unary", "batch")
    for name, size in (("256B", 256), ("1KiB", 1024))
} | {"pump_pull_unary_256B_grpcio": partial(_bench, method="unary", size=256, transport="grpcio")}
