"""Writes to a Pump, fsync on, real P/C pairs: unary ones as clients send them, and batches.

The clients: stock grpc-go, as TiDB has it, with a deadline in each call (`tests/tidb/load`, built where there is a Go);
stock grpcio; and the lean one (`h2_load`), which costs next to nothing and shows what the Pump could do.

A Pump's CPU time is printed twice: that of its process, and that of the machine without the client. A sync is the
process's where it waits for it itself, and a kernel worker's where the kernel was asked to do it: only the second figure
has it both times. It counts whatever else runs, so it is read on a quiet machine.

The baseline of the unary ones is a Go Pump where ``PUMPHOUSE_GO_PUMP=host:port,pid,cluster id`` names one, else the same
Pump behind stock grpcio, from the same client, in turn with ours: a shared machine is another one a minute later.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import disk_floor, go_pump, pump

_SECONDS = 5.0
_BASELINE_SECONDS = 3.0


def _machine_cpu_s() -> float:
    """What the machine used, this process and its children that ended not counted."""
    times, own = psutil.cpu_times(), os.times()
    busy = times.user + times.nice + times.system + times.irq + times.softirq
    return busy - (own.user + own.system + own.children_user + own.children_system)


def _client(command: Sequence[object], pid: int) -> tuple[dict[str, Any], Watch]:
    before = _machine_cpu_s()
    with Watch(pid, tree=False) as watch:
        done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.strip().splitlines()[-1])
    said["machine_cpu_s_per_100k"] = (_machine_cpu_s() - before) / max(said["ok"], 1) * 1e5
    watch.seconds = said["seconds"]  # without the start of the client's interpreter
    return said, watch


def _go_client() -> str:
    """Built when it is first asked for."""
    made = Path("build/grpc-go-load").resolve()
    subprocess.run(["go", "build", "-trimpath", "-o", str(made), "."], cwd="tests/tidb/load", check=True)
    return str(made)


_CLIENTS: dict[str, Callable[[], list[str]]] = {
    "go": lambda: [_go_client()],
    "grpcio": lambda: [sys.executable, "-m", "tests.bench.grpcio_load"],
    "lean": lambda: [sys.executable, "-m", "tests.bench.h2_load"],
}


def _load(grpc: str, cluster_id: int, pid: int, client: list[str], arguments: list[str], seconds: float) -> Sample:
    said, watch = _client([*client, grpc, cluster_id, *arguments, "--seconds", seconds], pid)
    if said.get("failed"):
        raise RuntimeError(f"{said['failed']} calls failed: {said.get('error')}")
    kept = ("p50_ms", "p99_ms", "client_cpu_s_per_100k", "machine_cpu_s_per_100k")
    return watch.sample(said["ok"], **{name: said[name] for name in kept})


def _one(work: Path, client: list[str], arguments: list[str], transport: str, seconds: float) -> Sample:
    work.mkdir()
    with pump(work, PUMPHOUSE_PUMP__TRANSPORT=transport) as running:
        return _load(running.grpc, running.cluster_id, running.pid, client, arguments, seconds)


def _baseline(work: Path, client: list[str], arguments: list[str]) -> tuple[str, Sample]:
    if go := go_pump():
        return "Go Pump", _load(go.grpc, go.cluster_id, go.pid, client, arguments, _BASELINE_SECONDS)
    return "stock grpcio", _one(work, client, arguments, "grpcio", _BASELINE_SECONDS)


def _unary(work: Path, runs: int, *, name: str, client: str, arguments: list[str]) -> Result:
    command = _CLIENTS[client]()
    samples, rates = [], []
    for n in range(runs):
        sample = _one(work / str(n), command, arguments, "builtin", _SECONDS)
        what, baseline = _baseline(work / f"baseline-{n}", command, arguments)
        sample.extra["baseline_cpu_s_per_100k"] = baseline.cpu_s / baseline.units * 1e5
        sample.extra["baseline_machine_cpu_s_per_100k"] = baseline.extra["machine_cpu_s_per_100k"]
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
            command = [sys.executable, "-m", "tests.bench.batch_load", running.grpc, running.cluster_id]
            said, watch = _client(command, running.pid)
        kept = ("client_cpu_s_per_100k", "machine_cpu_s_per_100k")
        samples.append(watch.sample(said["ok"], **{name: said[name] for name in kept}))
    floor = disk_floor(work, size=256, group=2000)
    return Result("pump_write_batch_256B", "records/s", samples, "append+crc+fdatasync", floor)


# Client, calls at once, connections, bytes of a prewrite's value.
_UNARY = (
    *(("go", calls, 1, 256) for calls in (1, 16, 64, 256)), ("go", 256, 8, 256), ("go", 64, 1, 1024),
    ("grpcio", 1, 1, 256), ("grpcio", 64, 1, 256),
    *(("lean", calls, 1, 256) for calls in (1, 16, 64, 256)), ("lean", 256, 8, 256), ("lean", 64, 1, 1024),
)  # fmt: skip


def _name(client: str, calls: int, connections: int, size: int) -> str:
    several = f"_{connections}conn" if connections > 1 else ""
    return f"pump_write_{client}_{'1KiB' if size == 1024 else f'{size}B'}_c{calls}{several}"


def _unary_benches() -> dict[str, Callable[[Path, int], Result]]:
    found: dict[str, Callable[[Path, int], Result]] = {}
    for client, calls, connections, size in _UNARY:
        arguments = [f"--{key}={value}" for key, value in (("c", calls), ("conns", connections), ("size", size))]
        name = _name(client, calls, connections, size)
        found[name] = partial(_unary, name=name, client=client, arguments=arguments)
    return found


# Benches that cannot run here, and why.
SKIPPED = (
    {} if shutil.which("go") else {_name(*each): "its client is built by Go" for each in _UNARY if each[0] == "go"}
)
BENCHES: dict[str, Callable[[Path, int], Result]] = {
    name: bench for name, bench in _unary_benches().items() if name not in SKIPPED
} | {"pump_write_batch_256B": _batch}
