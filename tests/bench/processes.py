"""Several Pumps on one host, one process each (row P16): unary writes to all of them against the same to one alone.

Every Pump has a client of its own, the lean one, and all are in one cluster. Rate, CPU and memory are sums over the Pumps; the
clients run on the same cores and are counted apart. The baseline is the rate of one Pump, of the same minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.harness import Result, Sample, Watch
from tests.bench.pumps import RunningPump, pump

_PUMPS = 2
_SECONDS = 5.0


def _start_client(running: RunningPump, concurrency: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "tests.bench.h2_load", running.grpc, str(running.cluster_id),
            "--size", "256", "--c", str(concurrency), "--seconds", str(_SECONDS),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def _said(client: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = client.communicate(timeout=120)
    if client.returncode:
        raise RuntimeError(f"a client ended with {client.returncode}: {out[-1000:]}")
    said: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return said


def _load(pumps: Sequence[RunningPump], concurrency: int) -> Sample:
    """Write to all of them at once."""
    with ExitStack() as stack:
        watches = [stack.enter_context(Watch(each.pid, tree=False)) for each in pumps]
        answers = [_said(client) for client in [_start_client(each, concurrency) for each in pumps]]
    ok = sum(said["ok"] for said in answers)
    return Sample(
        ok,
        max(said["seconds"] for said in answers),  # without the start of the clients' interpreters
        sum(watch.cpu_s for watch in watches),
        sum(watch.peak_rss_mb for watch in watches),
        {
            "p99_ms": max(said["p99_ms"] for said in answers),
            "client_cpu_s_per_100k": sum(said["client_cpu_s_per_100k"] * said["ok"] for said in answers) / ok,
            "smallest_share": min(said["ok"] for said in answers) / ok,
            "load_average": os.getloadavg()[0],
        },
    )


def processes(work: Path, runs: int, *, concurrency: int) -> Result:
    """One Pump alone, then all of them, in turn."""
    samples, alone = [], []
    for n in range(runs):
        with ExitStack() as stack:
            pumps = []
            for number in range(_PUMPS):
                each = work / f"{n}-{number}"
                each.mkdir()
                pumps.append(
                    stack.enter_context(pump(each, node_id=f"pump-{number}", cluster_at=work / f"{n}-cluster"))
                )
            one = _load(pumps[:1], concurrency)
            sample = _load(pumps, concurrency)
        rate = one.units / one.seconds
        sample.extra["times_one"] = sample.units / sample.seconds / rate
        sample.extra["one_cpu_s_per_100k"] = one.cpu_s / one.units * 1e5
        samples.append(sample)
        alone.append(rate)
    name = f"pump_processes_{_PUMPS}_256B_c{concurrency}"
    return Result(name, "requests/s", samples, "one Pump", statistics.median(alone))


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    f"pump_processes_{_PUMPS}_256B_c{concurrency}": partial(processes, concurrency=concurrency)
    for concurrency in (1, 16, 64)
}
