"""A Pump process for benchmarks, in a directory of its own, and the floor that its disk sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from pumphouse.registry.open import open_cluster

_SETTINGS = {
    "PUMPHOUSE_PUMP__STOP_WRITE_AT_AVAILABLE_BYTES": "0",
    "PUMPHOUSE_PUMP__GC_INTERVAL_S": "100000",
    # The watermark follows quickly.
    "PUMPHOUSE_PUMP__GEN_BINLOG_INTERVAL_S": "0.2",
}


@dataclass(frozen=True)
class GoPump:
    """A Go Pump that runs already, to compare with in the same minutes."""

    grpc: str
    pid: int
    cluster_id: int


def go_pump() -> GoPump | None:
    """The one that ``PUMPHOUSE_GO_PUMP=host:port,pid,cluster id`` names."""
    named = os.environ.get("PUMPHOUSE_GO_PUMP")
    if not named:
        return None
    grpc, pid, cluster_id = named.split(",")
    return GoPump(grpc, int(pid), int(cluster_id))


@dataclass
class RunningPump:
    process: subprocess.Popen[str]
    grpc: str
    cluster_id: int
    cluster_url: str
    node_id: str
    ready_s: float

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def pump(
    work: Path, *, kill: bool = False, node_id: str = "bench", cluster_at: Path | None = None, **env: str
) -> Iterator[RunningPump]:
    """Start a Pump and wait until it serves; on leaving it is stopped, or killed with -9.

    Its data lies in ``work``, and so does its cluster, unless another directory is named.
    """
    url = f"file://{cluster_at or work / 'cluster'}"
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "pumphouse", "--log-level", "warning", "pump", "run", "--cluster", url,
            "--data-dir", str(work / "pump"), "--addr", "127.0.0.1:0", "--node-id", node_id,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **_SETTINGS, **env},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Pump did not start: exit code {process.wait()}")
        said = json.loads(line)
        ready = time.perf_counter() - began
        cluster = open_cluster(url)
        yield RunningPump(process, said["grpc"], cluster.cluster_id(), url, said["node_id"], ready)
    finally:
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def disk_floor(work: Path, *, size: int = 256, group: int = 64, seconds: float = 1.0) -> float:
    """Records a second that a plain append with CRC and one fdatasync for each group reaches: what the disk allows."""
    fd = os.open(work / "floor", os.O_WRONLY | os.O_CREAT)
    record = os.urandom(size)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(group):
            google_crc32c.value(record)
        os.write(fd, record * group)
        os.fdatasync(fd)
        done += group
    rate = done / (time.perf_counter() - began)
    os.close(fd)
    os.unlink(work / "floor")
    return rate
