"""Four processes take timestamps from one directory and are killed with -9 again and again."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time

import pytest

from pumphouse.registry.file import FileCluster

WRITER = """
import os, sys, struct, time
from pathlib import Path
from pumphouse.registry.file import FileCluster
cluster = FileCluster(Path(sys.argv[1]))
out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pack = struct.Struct("<ddq").pack
while True:
    before = time.monotonic()
    ts = cluster.tso()
    # One write for one answer: a kill leaves it whole or not there.
    os.write(out, pack(before, time.monotonic(), ts))
"""
RECORD = struct.Struct("<ddq")


@pytest.mark.row("W4")
@pytest.mark.parametrize("kills_in_all", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_timestamps_are_strictly_increasing_over_processes_and_kills(kills_in_all, tmp_path):
    first = FileCluster(tmp_path / "cluster").tso()
    rng = random.Random(7)
    logs, processes = [], {}

    def start(number: int) -> None:
        log = tmp_path / f"log-{len(logs)}"
        logs.append(log)
        processes[number] = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "cluster"), str(log)])

    try:
        for number in range(4):
            start(number)
        kills = 0
        until = time.monotonic() + 10 * kills_in_all
        while kills < kills_in_all and time.monotonic() < until:
            time.sleep(rng.uniform(0.1, 0.4))
            number = rng.randrange(4)
            log = logs[-1]
            if not log.exists() or log.stat().st_size < RECORD.size * 50:
                continue  # let the youngest get going
            processes[number].send_signal(signal.SIGKILL)
            processes[number].wait()
            kills += 1
            start(number)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    last = FileCluster(tmp_path / "cluster").tso()

    records = []
    for log in logs:
        if log.exists():
            data = log.read_bytes()
            mine = list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
            assert [ts for _, _, ts in mine] == sorted({ts for _, _, ts in mine})
            records += mine
    assert kills == kills_in_all
    assert len(records) > 1_000
    every = sorted(ts for _, _, ts in records)
    assert len(set(every)) == len(every)
    assert first < every[0] and every[-1] < last
    # Linearizable: who asked after another had its answer has the larger one.
    earliest_end = float("inf")
    for before, after, _ in sorted(records, key=lambda record: -record[2]):
        assert before <= earliest_end
        earliest_end = min(earliest_end, after)
    assert os.path.getsize(tmp_path / "cluster" / "tso") == 36
