"""Unary WriteBinlog, fsync on, real P/C pairs from the lean client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import disk_floor, pump


def _one(work: Path, size: int, concurrency: int, seconds: float) -> Sample:
    with pump(work) as running:
        with Watch(running.pid) as watch:
            done = subprocess.run(
                [
                    sys.executable, "-m", "tests.bench.h2_load", running.grpc, str(running.cluster_id),
                    "--size", str(size), "--c", str(concurrency), "--seconds", str(seconds),
                ],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )  # fmt: skip
        said = json.loads(done.stdout.strip().splitlines()[-1])
        watch.seconds = said["seconds"]  # without the start of the client's interpreter
        return watch.sample(
            said["ok"],
            p50_ms=said["p50_ms"],
            p99_ms=said["p99_ms"],
            client_cpu_s_per_100k=said["client_cpu_s_per_100k"],
        )


def _bench(work: Path, runs: int, *, size: int, concurrency: int) -> Result:
    samples = []
    for n in range(runs):
        each = work / str(n)
        each.mkdir()
        samples.append(_one(each, size, concurrency, 5.0))
    name = f"pump_write_unary_{size}B_c{concurrency}"
    floor = disk_floor(work, size=size, group=concurrency)
    return Result(name, "requests/s", samples, "append+crc+fdatasync", floor)


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    f"pump_write_unary_256B_c{c}": partial(_bench, size=256, concurrency=c) for c in (64, 256)
}
