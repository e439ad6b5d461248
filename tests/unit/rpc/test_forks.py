"""What is closed before a fork, whatever the others do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from pumphouse.rpc import forks
from tests.support.pd import StandInPd

pytestmark = pytest.mark.row("W4")


def fork() -> None:
    """A child that ends at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads; the child does nothing
        child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def look() -> tuple[set[str], bool]:
    return forks._library_runs()


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
        fork()
    assert [holder.closed for holder in holders] == [1] * 8
    assert [entry["event"] for entry in logged if "holder" in entry] == ["not_closed_before_fork"] * 4


def test_nobody_joins_those_who_are_to_be_closed_while_a_fork_is_under_way() -> None:
    late = Holder()
    joining = threading.Thread(target=forks.close_at_fork, args=(late,))

    class Begins(Holder):
        waits = False

        def before_fork(self) -> None:
            super().before_fork()
            if not joining.ident:
                joining.start()
                joining.join(0.2)
                self.waits = joining.is_alive()

    held = Begins()
    forks.close_at_fork(held)
    fork()
    joining.join(60)
    assert (held.closed, late.closed, held.waits) == (1, 0, True)
    fork()
    assert (held.closed, late.closed) == (2, 1)


_FORGOTTEN = """
import gc, os, sys, time, traceback
gc.disable()
import grpc
from pathlib import Path
from pumphouse.rpc import forks

def name(task):
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it ended
        return ""

def runs():
    return "event_engine" in {name(task) for task in Path("/proc/self/task").iterdir()}

def wait_until(holds):
    until = time.monotonic() + 20
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    assert holds()

def look():
    channel = grpc.insecure_channel("127.0.0.1:1")
    channel.subscribe(lambda _: None, try_to_connect=True)
    circle = [channel]
    circle.append(circle)
    del channel, circle
    wait_until(runs)  # its threads get their names when they first run
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    wait_until(lambda: not runs())  # a fork does not wait for long

try:
    look()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # an interpreter that ends with such a channel waits for ever
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
def thread_called(name: str) -> Iterator[threading.Event]:
    """A thread of this process that the kernel knows by this name, until the event is set."""
    named, end = threading.Event(), threading.Event()

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        end.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert named.wait(60)
        yield end
    finally:
        end.set()
        thread.join()


def churn(end: threading.Event) -> None:
    """Threads that begin and end, one behind the other."""
    while not end.is_set():
        short = threading.Thread(target=lambda: None)
        short.start()
        short.join()


def test_a_fork_waits_for_the_thread_that_shuts_the_library_down_however_long_others_may_take() -> None:
    stop = threading.Event()
    busy = [threading.Thread(target=churn, args=(stop,)) for _ in range(2)]
    with thread_called("grpc_shutdown") as end:
        # The others end with it: under them, no look is a sure one.
        timer = threading.Timer(3 * forks._LONGEST_S, lambda: (end.set(), stop.set()))
        for thread in (*busy, timer):
            thread.start()
        fork()
        stop.set()
        assert end.is_set()
        for thread in (*busy, timer):
            thread.join()


def test_a_fork_under_somebody_elses_channel_is_told_and_not_kept_for_long() -> None:
    with thread_called("event_engine") as end, structlog.testing.capture_logs() as logged:
        fork()
        assert not end.is_set()
    (warning,) = [entry for entry in logged if entry["event"] == "forked_while_grpc_ran"]
    assert "event_engine" in warning["threads"]


def a_task(tasks: Path, tid: int, name: str, *, times: int = 1) -> None:
    (tasks / str(tid)).mkdir()
    (tasks / str(tid) / "comm").write_text(f"{name}\n")
    (tasks / str(tid) / "schedstat").write_text(f"0 0 {times}\n")


def test_a_look_sees_what_a_thread_began_that_ended_and_what_has_no_name_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_TASKS", tmp_path)
    a_task(tmp_path, threading.get_native_id(), "python", times=0)
    assert look() == (set(), True)
    a_task(tmp_path, 1, "numba")
    assert look() == (set(), False)
    a_task(tmp_path, 2, "python", times=0)
    assert look() == ({"(not named yet)"}, False)
    shutil.rmtree(tmp_path / "2")

    def ends(task: Path, *, ours: bool) -> str:
        if task.name == "3":  # it ended, and had begun another
            a_task(tmp_path, 4, "grpc_shutdown")
        return "" if task.name == "3" else found(task, ours=ours)

    found = forks._name
    monkeypatch.setattr(forks, "_name", ends)
    a_task(tmp_path, 3, "event_engine")
    assert look() == ({"grpc_shutdown"}, False)
    monkeypatch.setattr(forks, "_TASKS", tmp_path / "none")
    assert look() == (set(), True)


def test_where_others_have_threads_one_look_without_any_of_grpcs_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [(set[str](), False), ({"event_engine"}, False), (set[str](), False), (set[str](), False)]
    monkeypatch.setattr(forks, "_library_runs", lambda: looks.pop(0))
    fork()
    assert not looks
    looks = [(set[str](), True)]
    fork()
    assert not looks


def test_the_time_that_collecting_takes_is_not_taken_from_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [({"event_engine"}, False), (set[str](), True)]
    monkeypatch.setattr(forks, "_library_runs", lambda: looks.pop(0))
    now = [0.0]
    monkeypatch.setattr(forks.time, "monotonic", lambda: now[0])

    def collect() -> int:
        now[0] += 2 * forks._LONGEST_S
        return 0

    monkeypatch.setattr(forks.gc, "collect", collect)
    fork()
    assert not looks


_NEW = """
import os, signal, sys, time
import grpc
from pumphouse.rpc import forks

def call():
    with grpc.insecure_channel(sys.argv[1]) as channel:
        try:
            channel.unary_unary("/a/b")(b"", timeout=5)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error

until = time.monotonic() + float(sys.argv[2])
forks_done = 0
while time.monotonic() < until:
    grpc.insecure_channel(sys.argv[1]).close()  # its threads may not have run when the fork comes
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        call()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, forks_done
    forks_done += 1
print(forks_done)
"""


def test_a_channel_that_was_just_opened_and_closed_leaves_children_that_can_call() -> None:
    with StandInPd() as pd:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _NEW, pd.addresses[0], "4"],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
