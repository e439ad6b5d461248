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
from tests.support.capturing import end, rows_of
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


@pytest.mark.timeout(900)
@pytest.mark.row("Q1")
@pytest.mark.mariadb("a MySQL with GTIDs has no temporary tables within a transaction")
def test_one_with_a_statement_in_a_later_part_has_the_rows_of_all_of_them(tmp_path: Path) -> None:
    """A temporary table that another format of the session made is dropped within it, and the binlog says that."""
    with captured_stack(tmp_path, group_bytes=1 << 16) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.r (n INT PRIMARY KEY, pad VARCHAR(2000))")
        stack.begin()
        for number, gone in enumerate(("DROP TEMPORARY TABLE shop.tm", "CREATE TEMPORARY TABLE shop.tn (a INT)")):
            rows = f"INSERT INTO shop.r SELECT {number}000000 + seq, REPEAT('x', 2000) FROM shop.seq_{{}}_to_{{}}"
            stack.run(
                "SET binlog_format = MIXED", "CREATE TEMPORARY TABLE shop.tm (a INT)", "SET binlog_format = ROW",
                "BEGIN", rows.format(1, 4000), gone, rows.format(4001, 4002 + 4000 * number), "COMMIT",
            )  # fmt: skip
        stack.require_equal()


@pytest.mark.timeout(900)
@pytest.mark.row("Q3")
def test_a_table_that_is_left_out_and_created_with_more_rows_than_a_group_has_is_known_from_then_on(
    tmp_path: Path,
) -> None:
    create = f"CREATE TABLE shop.gone (PRIMARY KEY (n)) SELECT seq n, REPEAT('x', {WIDTH}) pad FROM shop.numbers"
    with captured_stack(tmp_path, group_bytes=1 << 16, queue_bytes=1 << 20, without=["shop.gone"]) as stack:
        stack.run("CREATE DATABASE shop", "CREATE TABLE shop.numbers (seq INT PRIMARY KEY)")
        numbers = "WITH RECURSIVE s AS (SELECT 0 n UNION ALL SELECT n + 1 FROM s WHERE n < 199)"
        stack.run(f"INSERT INTO shop.numbers {numbers} SELECT 200 * a.n + b.n FROM s a JOIN s b WHERE a.n < 100")
        stack.begin()
        stack.run(create)
        stack.captured()
        stack.stop_capture()
        stack.start_capture()
        stack.run("ALTER TABLE shop.gone ADD a INT", "DROP TABLE shop.gone")
        stack.require_equal()
        # The source ends the connection while a part of it is read and the others are not.
        capture = stack.read_settings.capture.id
        stack.pumphouse("capture", "pause", capture)
        eventually(lambda: "capture_paused" in stack.supervisor.tail(CAPTURE, 20), within_s=60)
        stack.run(create)
        with stack.source() as connection:
            for number, command in rows_of(connection, "SELECT ID, COMMAND FROM information_schema.PROCESSLIST"):
                if "Binlog Dump" in str(command):
                    end(connection, int(number))
        stack.pumphouse("capture", "resume", capture)
        eventually(lambda: not stack.supervisor.alive(CAPTURE), what="it ends", within_s=60)
        assert "lost within a transaction that changes the schema" in stack.supervisor.tail(CAPTURE, 20)
        stack.start_capture()
        stack.run("ALTER TABLE shop.gone ADD a INT", "DROP TABLE shop.gone")
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
