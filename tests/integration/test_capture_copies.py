"""A capture with two copies (row Q5): each transaction on Pumps of two hosts; a disk that is gone takes nothing along.

Addresses of the loopback stand for hosts.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from pumphouse.archive import duplicates
from pumphouse.archive.verify import verify
from pumphouse.parts import Parts
from tests.stack.local import CAPTURE
from tests.stack.ports import free_port
from tests.support import mariadb
from tests.support.capturedstack import CapturedStack, captured_stack
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.row("Q5", "A7")]


class TwoHosts(CapturedStack):
    """Each Pump on a host of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, copies=2)
        for number, pump in enumerate(self.pumps, 1):
            pump.addr = f"127.0.0.{number}:{free_port()}"

    def lose_disk(self, at: int) -> None:
        """The Pump's machine is gone, with its disk."""
        self.pumps[at].kill()
        shutil.rmtree(self.pumps[at].data_dir)


def write(stack: CapturedStack, first: int, count: int) -> None:
    stack.run(*(f"INSERT INTO t VALUES ({each}, REPEAT('x', 100))" for each in range(first, first + count)), db="shop")


def prepared(stack: CapturedStack) -> None:
    stack.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(200))")


def test_a_pumps_disk_is_lost_and_no_transaction_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_LISTED", 50)
    with (
        mariadb.directory_in_memory() as directory,
        captured_stack(directory, prepare=prepared, made=TwoHosts(directory)) as stack,
    ):
        stack.begin()
        write(stack, 0, 200)
        stack.kill_capture()
        stack.lose_journal()
        stack.start_capture()
        write(stack, 200, 200)
        stack.require_equal()
        with Parts(stack.read_settings) as parts:
            assert {each.node_id for each in parts.archive.last().segments} == {"pump-1"}  # the other one has the same

        write(stack, 400, 100)
        stack.captured()
        stack.lose_disk(0)
        write(stack, 500, 10)  # these wait for a second host
        eventually(lambda: "fewer than 2 hosts took the prewrite" in stack.supervisor.tail(CAPTURE, 5))
        time.sleep(1)
        stack.pumps[0].data_dir = stack.pumps[0].data_dir.with_name("anew")
        stack.pumps[0].start()
        stack.captured()

        held = stack.pumphouse("snapshot")
        assert held.returncode
        assert "archive declare-lost pump-1" in held.stderr
        assert (
            stack.pumphouse("archive", "declare-lost", "pump-1", "--reason", "its disk is gone", "--yes").returncode
            == 0
        )
        stack.require_equal()
        with Parts(stack.read_settings) as parts:
            assert any(each.declared for each in parts.archive.windows())
            assert verify(parts.archive, deep=True).problems == []
