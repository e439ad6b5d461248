"""The store alone: groups of P/C pairs from memory to the synced value log, the index and the watermark."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import disk_floor

_IN_FLIGHT = 2
_RECORDS = 200_000


def _requests(cluster_id: int, first: int, count: int, size: int) -> list[bytes]:
    from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
    from pumphouse.proto.pump_pb2 import WriteBinlogReq

    value = np.random.default_rng(1).bytes(size)
    found = []
    for n in range(first, first + count // 2):
        start = 4 * n + 4
        key = b"t%016x" % start
        tp = BinlogType.Prewrite
        p = Binlog(tp=tp, start_ts=start, commit_ts=0, prewrite_key=key, prewrite_value=value)
        c = Binlog(tp=BinlogType.Commit, start_ts=start, commit_ts=start + 2, prewrite_key=key)
        for message in (p, c):
            found.append(WriteBinlogReq(clusterID=cluster_id, payload=message.SerializeToString()).SerializeToString())
    return found


def run_here(work: Path, size: int, group: int, seconds: float) -> dict[str, float]:
    """Write for some seconds in this process; records, seconds, CPU seconds."""
    from pump_service.door.group import Requests
    from pump_service.intake.payloads import read_group
    from pump_service.process.warm import warm
    from pump_service.store.store import Store
    from pumphouse.settings import PumpSettings

    warm()
    settings = PumpSettings(data_dir=work / "data", stop_write_at_available_bytes=0, reserve_bytes=0)
    store = Store.open(settings)
    groups = [_requests(7, n * group // 2, group, size) for n in range(_RECORDS // group)]
    slots = threading.Semaphore(_IN_FLIGHT)
    bad: list[object] = []

    def done(statuses: object) -> None:
        if statuses is not None:
            bad.append(statuses)
        slots.release()

    records = 0
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds and records < len(groups) * group:
        slots.acquire()
        requests = Requests.of(groups[records // group])
        intake = read_group(requests.data, requests.starts, requests.sizes, 7)
        store.submit(intake.records, done)
        records += group
    while len(store._indexer.queue) or store.synced_end != store._indexer.indexed_end:
        time.sleep(0.001)
    used = time.process_time() - cpu
    took = time.perf_counter() - began
    assert not bad
    assert store.watermark
    store.close()
    return {"records": records, "seconds": took, "cpu": used}


def _one(work: Path, size: int, group: int) -> Sample:
    code = (
        f"from tests.bench.store_write import *; print(json.dumps(run_here(Path({str(work)!r}), {size}, {group}, 5.0)))"
    )
    with Watch(0) as watch:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.strip().splitlines()[-1])
    # Its own accounting, without the start of the interpreter and the making of the requests.
    return Sample(said["records"], said["seconds"], said["cpu"], watch.peak_rss_mb)


def _bench(work: Path, runs: int, *, size: int, group: int) -> Result:
    samples = []
    for n in range(runs):
        each = work / str(n)
        each.mkdir()
        samples.append(_one(each, size, group))
    floor = disk_floor(work, size=size, group=group)
    return Result(f"store_write_{size}B_g{group}", "records/s", samples, "append+crc+fdatasync", floor)


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    f"store_write_256B_g{group}": partial(_bench, size=256, group=group) for group in (64, 256)
}
