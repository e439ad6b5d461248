"""Restart after kill -9 with 1 GB of value log, index intact: seconds from the start of the process until it serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.fill import fill
from tests.bench.harness import Result, Watch
from tests.bench.pumps import pump

_GB = 10**9
_RECORD = 4096


def _read_floor(data: Path) -> float:
    """MB/s of reading the value log sequentially."""
    size, began = 0, time.perf_counter()
    for path in sorted((data / "value").glob("*.vlog")):
        with path.open("rb", buffering=0) as file:
            while block := file.read(8 << 20):
                size += len(block)
    return size / 1e6 / (time.perf_counter() - began)


def bench(work: Path, runs: int) -> Result:
    """1 GB of 4 KiB transactions, killed right after the last answer."""
    with pump(work, kill=True) as running:
        fill(running, int(time.time() * 1000 - 60_000) << 18, _GB // _RECORD, _RECORD)
    size = sum(p.stat().st_size for p in (work / "pump" / "value").glob("*.vlog")) / 1e6
    samples = []
    for _ in range(runs):
        with Watch() as watch, pump(work, kill=True) as running:
            ready = running.ready_s
        watch.seconds = ready
        sample = watch.sample(size)
        sample.extra["ready_s"] = ready
        samples.append(sample)
    return Result("restart_1GB", "MB/s", samples, "sequential read MB/s", _read_floor(work / "pump"))


BENCHES: dict[str, Callable[[Path, int], Result]] = {"restart_1GB": bench}
