"""What is closed before a fork, whatever the others do."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from include.rpc import forks

pytestmark = pytest.mark.row("W4")


class Holder:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.closed = 0

    def before_fork(self) -> None:
        self.closed += 1
        if self.fails:
            raise ValueError("cannot be closed")


def test_one_that_cannot_be_closed_does_not_keep_the_others_open() -> None:
    holders = [Holder(fails=number % 2 == 0) for number in range(8)]
    for holder in holders:
        forks.close_at_fork(holder)
    with structlog.testing.capture_logs() as logged:
        forks._before()
        forks._in_parent()
    assert [holder.closed for holder in holders] == [1] * 8
    assert [entry["event"] for entry in logged if "holder" in entry] == ["not_closed_before_fork"] * 4


def test_nobody_joins_those_who_are_to_be_closed_while_a_fork_is_under_way() -> None:
    held, late = Holder(), Holder()
    forks.close_at_fork(held)
    joining = threading.Thread(target=forks.close_at_fork, args=(late,))
    forks._before()
    try:
        joining.start()
        joining.join(0.2)
        assert joining.is_alive()
        assert late not in forks._holders
    finally:
        forks._in_parent()
    joining.join(10)
    assert late in forks._holders


_FORGOTTEN = """
import gc
gc.disable()
import grpc
from include.rpc import forks
channel = grpc.insecure_channel("127.0.0.1:1")
channel.subscribe(lambda _: None, try_to_connect=True)
circle = [channel]
circle.append(circle)
del channel, circle
assert forks._library_runs()
forks._before()
assert not forks._library_runs()
"""


def test_a_channel_that_was_forgotten_in_a_cycle_does_not_run_on_in_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORGOTTEN],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def thread_called(name: str, seconds: float) -> Iterator[threading.Thread]:
    """A thread of this process that the kernel knows by this name, for so long."""
    named = threading.Event()

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        time.sleep(seconds)

    thread = threading.Thread(target=run)
    thread.start()
    assert named.wait(10)
    yield thread
    thread.join()


def test_a_fork_waits_for_the_thread_that_shuts_the_library_down_however_long_others_may_take() -> None:
    with thread_called("grpc_shutdown", 3 * forks._LONGEST_S) as last:
        forks._before()
        forks._in_parent()
        assert not last.is_alive()


def test_a_fork_under_somebody_elses_channel_is_told_and_not_kept_for_long() -> None:
    with thread_called("event_engine", 4 * forks._LONGEST_S) as other, structlog.testing.capture_logs() as logged:
        forks._before()
        forks._in_parent()
        assert other.is_alive()
    assert [entry["event"] for entry in logged if "event_engine" in entry["threads"]] == ["forked_while_grpc_ran"]


def test_a_look_during_which_a_thread_ended_is_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text("python\n")
    monkeypatch.setattr(forks, "_TASKS", tmp_path)
    assert forks._library_runs() == set()
    (tmp_path / "2").mkdir()
    assert forks._library_runs() == {"?"}
    monkeypatch.setattr(forks, "_TASKS", tmp_path / "none")
    assert forks._library_runs() == set()
