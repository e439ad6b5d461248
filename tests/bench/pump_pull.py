"""PullBinlogs, the unary stream of TiDB's protocol: whole history to one client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from include.proto import pump_pb2, pump_pb2_grpc
from tests.bench.fill import fill
from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import pump

_COUNT = 100_000


def pull(addr: str, cluster_id: int, after: int, until: int) -> int:
    """Pull until a commit ts; returns how many came."""
    count = 0
    with grpc.insecure_channel(addr, options=[("grpc.max_receive_message_length", -1)]) as channel:
        request = pump_pb2.PullBinlogReq(clusterID=cluster_id, startFrom=pump_pb2.Pos(offset=after))
        for answer in pump_pb2_grpc.PumpStub(channel).PullBinlogs(request):
            meta = answer.entity.meta
            count += meta.startTs != meta.commitTs
            if meta.commitTs >= until:
                break
    return count


def _file_floor(work: Path, size: int) -> float:
    """Records a second of reading the same bytes back from a file, one read for each record."""
    path = work / "floor"
    path.write_bytes(os.urandom(size) * 20_000)
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        for _ in range(20_000):
            file.read(size)
    return 20_000 / (time.perf_counter() - began)


def bench(work: Path, runs: int) -> Result:
    """1 KiB a transaction."""
    samples: list[Sample] = []
    with pump(work) as running:
        first = int(time.time() * 1000 - 60_000) << 18
        last = fill(running, first, _COUNT, 1024)
        _pull_child(running.grpc, running.cluster_id, first - 1, last)  # waits until the watermark is there
        for _ in range(runs):
            with Watch(running.pid) as watch:
                began = time.perf_counter()
                count = _pull_child(running.grpc, running.cluster_id, first - 1, last)
                took = time.perf_counter() - began
            watch.seconds = took
            samples.append(watch.sample(count))
    return Result("pump_pull_unary_1KiB", "binlogs/s", samples, "read(2) a record", _file_floor(work, 1024))


def _pull_child(addr: str, cluster_id: int, after: int, until: int) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.pump_pull", addr, str(cluster_id), str(after), str(until)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


BENCHES: dict[str, Callable[[Path, int], Result]] = {"pump_pull_unary_1KiB": bench}

if __name__ == "__main__":
    print(pull(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
