"""Restart after kill -9: seconds from the start of the process until it serves, index intact and index lost.

PUMPHOUSE_BENCH_GB sets the size of the value log (1; the acceptance figure is for 4), PUMPHOUSE_BENCH_VALUE the bytes of
a transaction's value.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from pumphouse.proto.pumphouse_pb2 import StatusRequest
from pumphouse.proto.pumphouse_pb2_grpc import PumpBatchStub
from pumphouse.registry.open import open_cluster
from tests.bench.fill import fill
from tests.bench.harness import Result, Watch
from tests.bench.pumps import RunningPump, pump

_GB = float(os.environ.get("PUMPHOUSE_BENCH_GB", "1"))
_VALUE = int(os.environ.get("PUMPHOUSE_BENCH_VALUE", "1024"))


def _read_floor(data: Path) -> float:
    """MB/s of reading the value log sequentially."""
    size, began = 0, time.perf_counter()
    for path in sorted((data / "value").glob("*.vlog")):
        with path.open("rb", buffering=0) as file:
            while block := file.read(8 << 20):
                size += len(block)
    return size / 1e6 / (time.perf_counter() - began)


def _until_passed(running: RunningPump, ts: int) -> None:
    """The filler holds the watermark back, and with it the place from which a restart reads again."""
    with grpc.insecure_channel(running.grpc) as channel:
        stub = PumpBatchStub(channel)
        while stub.Status(StatusRequest(cluster_id=running.cluster_id)).watermark < ts:
            time.sleep(0.1)
    time.sleep(2)  # it is persisted once a second


def _bench(work: Path, runs: int, *, lose_index: bool) -> Result:
    with pump(work, kill=True) as running:
        last = fill(running, int(open_cluster(running.cluster_url).tso()), int(_GB * 1e9 / (_VALUE + 100)), _VALUE)
        _until_passed(running, last)
    size = sum(p.stat().st_size for p in (work / "pump" / "value").glob("*.vlog")) / 1e6
    samples = []
    for _ in range(runs):
        if lose_index:
            shutil.rmtree(work / "pump" / "kv")
        with Watch() as watch, pump(work, kill=True) as running:
            ready = running.ready_s
        watch.seconds = ready
        sample = watch.sample(size)
        sample.extra["ready_s"] = ready
        samples.append(sample)
    name = f"restart_{'no_index_' if lose_index else ''}{_GB:g}GB"
    return Result(name, "MB/s", samples, "sequential read MB/s", _read_floor(work / "pump"))


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    f"restart_{_GB:g}GB": partial(_bench, lose_index=False),
    f"restart_no_index_{_GB:g}GB": partial(_bench, lose_index=True),
}
