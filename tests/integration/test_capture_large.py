"""A transaction that is larger than a group of the capture: its memory, and a kill while it is read (rows Q1, Q5)."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.stack.local import CAPTURE
from tests.support.capturedstack import captured_stack
from tests.support.waiting import eventually

ROWS, WIDTH = 1 << 15, 2000


@pytest.mark.timeout(900)
@pytest.mark.row("Q1", "Q5")
def test_a_large_transaction_is_in_memory_twice_while_it_is_sent_and_leaves_no_file_behind(tmp_path: Path) -> None:
    with captured_stack(tmp_path, queue_bytes=8 << 20, group_bytes=1 << 20) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.big (id INT PRIMARY KEY, k INT, pad VARCHAR(2100))")
        stack.run(f"INSERT INTO shop.big VALUES (0, 0, REPEAT('x', {WIDTH}))")
        stack.begin()
        count = 1
        while count < ROWS:
            stack.run(f"INSERT INTO shop.big SELECT id + {count}, k, pad FROM shop.big")
            count *= 2
        stack.captured()
        directory = Path(stack.read_settings.capture.directory)
        files = set(directory.iterdir())
        stack.stop_capture()
        stack.run("UPDATE shop.big SET k = k + 1")
        stack.start_capture()
        eventually(lambda: spools(stack.supervisor.pid(CAPTURE)), what="it is read", within_s=60)
        stack.kill_capture()
        assert {each for each in directory.iterdir() if each.name != "lock"} <= files
        stack.start_capture()
        with Peak(stack.supervisor.pid(CAPTURE)) as peak:
            stack.captured()
        # Old and new rows, twice; and what a process that has just begun still loads.
        assert peak.bytes - peak.before < 4 * 2 * ROWS * WIDTH
        stack.require_equal()


def spools(pid: int) -> bool:
    """Whether the process has a file without a name."""
    found = []
    for each in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{each}"))
        except OSError:  # it is closed by now
            continue
    return any(each.endswith("(deleted)") and "/c/" in each for each in found)


class Peak:
    """The most memory of a process's own, while a block runs."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before = self.bytes = self._process.memory_full_info().uss

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.bytes = max(self.bytes, self._process.memory_full_info().uss)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
