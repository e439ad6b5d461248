"""Memory of a Pump over a long load at concurrency 256 (a campaign; row P3). Takes some 10 GB of disk in 30 minutes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pumphouse.registry.file import FileCluster
from tests.crash.test_pump_kill_campaign import transports, with_transport
from tests.integration.test_pump_limits import MIB, resident
from tests.support.pumpserver import PumpServer

MINUTES = float(os.environ.get("PUMPHOUSE_MEMORY_MINUTES", "30"))
CHUNK_S = 20.0
LIMIT = 300 * MIB


def load(pump: PumpServer, seconds: float) -> int:
    """Writes at concurrency 256 from a lean client in a process of its own; how many were answered."""
    command = [sys.executable, "-m", "tests.bench.h2_load", pump.addr, str(pump.cluster_id), "--c", "256"]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], cwd=Path(__file__).parents[2], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return int(json.loads(done.stdout)["ok"])


@pytest.mark.slow
@pytest.mark.timeout(int(MINUTES * 120 + 600))
@pytest.mark.row("P3")
@pytest.mark.parametrize("transport", transports())
def test_memory_is_flat_under_a_long_load(
    transport: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    # The client's timestamps lag behind the clock: a fake in between would make its commits late.
    pump = PumpServer(
        tmp_path, FileCluster(tmp_path / "cluster"), gen_binlog_interval_s=36_000, value_log_file_bytes=64 << 20,
        popen=subprocess.Popen, **with_transport(transport),
    )  # fmt: skip
    used: list[int] = []
    answered = 0
    with pump.start():
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end:
            answered += load(pump, CHUNK_S)
            used.append(resident(pump.pid))
        most = resident(pump.pid, "VmHWM")
        assert not pump.status().late
    record_property("minutes", MINUTES)
    record_property("transport", transport)
    record_property("answered", answered)
    record_property("memory_mib", [each // MIB for each in used])
    record_property("most_memory_mib", most // MIB)
    third = max(len(used) // 3, 1)
    early, late = statistics.median(used[third : 2 * third] or used), statistics.median(used[-third:])
    assert late <= early * 1.1 + 10 * MIB, f"it grows: {[each // MIB for each in used]}"
    assert most < LIMIT, f"{most // MIB} MiB"
