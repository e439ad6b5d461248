"""The stack's processes end, whatever became of who started them."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.stack.supervisor import StackError, Supervisor, tagged

SLEEPER = [sys.executable, "-c", "import time; time.sleep(120)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal,time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(120)",
]
PARENT_CODE = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(120)"]
subprocess.Popen(sleeper, start_new_session=True)
subprocess.Popen(sleeper)
print("x", flush=True)
time.sleep(120)
"""
PARENT = [sys.executable, "-c", PARENT_CODE]


def _wait_log(supervisor: Supervisor, name: str) -> None:
    supervisor.wait_until(name, lambda: supervisor.tail(name), timeout_s=10)


def test_a_process_is_stopped_and_forgotten(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    process = supervisor.start("a", SLEEPER)
    assert supervisor.alive("a")
    assert supervisor.pid("a") == process.pid
    supervisor.stop("a")
    assert not supervisor.alive("a")
    assert supervisor.records() == []
    assert not psutil.pid_exists(process.pid)


def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    process = supervisor.start("a", STUBBORN)
    _wait_log(supervisor, "a")
    supervisor.stop("a", timeout_s=0.3)
    assert not psutil.pid_exists(process.pid)


def test_children_in_and_outside_the_group_end_with_the_stack(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start("a", PARENT)
    _wait_log(supervisor, "a")
    assert len(tagged(supervisor.tag)) == 3
    supervisor.stop_all(timeout_s=2)
    assert tagged(supervisor.tag) == []


def test_another_supervisor_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.stack.supervisor import Supervisor;"
        "Supervisor(Path(sys.argv[1])).start('a', [sys.executable, '-c', 'import time; time.sleep(120)']);"
        "import os; os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    supervisor = Supervisor(tmp_path)
    assert supervisor.alive("a")
    assert supervisor.stop_all() == ["a"]
    assert tagged(supervisor.tag) == []


def test_a_pid_that_was_given_to_another_process_is_left_alone(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    stranger = subprocess.Popen(SLEEPER)
    try:
        (tmp_path / "a.json").write_text(f'{{"name": "a", "pid": {stranger.pid}, "created": 1.0, "log": ""}}')
        assert not supervisor.alive("a")
        supervisor.stop_all()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_that_ends_while_starting_is_told_with_its_last_words(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start("a", [sys.executable, "-c", "raise SystemExit('no such luck')"])
    with pytest.raises(StackError, match="no such luck"):
        supervisor.wait_until("a", lambda: False, timeout_s=10)


def test_kill_is_at_once_and_the_name_can_be_started_again(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start("a", STUBBORN)
    _wait_log(supervisor, "a")
    supervisor.kill("a")
    assert not supervisor.alive("a")
    supervisor.start("a", SLEEPER)
    with pytest.raises(StackError, match="runs already"):
        supervisor.start("a", SLEEPER)
    supervisor.stop_all()


def test_a_child_that_made_its_own_group_and_hides_its_environment_ends_too(tmp_path: Path) -> None:
    hiding = "import os,time; os.setpgid(0, 0); os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(120)'], {})"
    parent = f"import subprocess,sys,time; p = subprocess.Popen([sys.executable, '-c', {('import sys;' + hiding)!r}]); print(p.pid, flush=True); time.sleep(120)"
    supervisor = Supervisor(tmp_path)
    supervisor.start("a", [sys.executable, "-c", parent])
    _wait_log(supervisor, "a")
    child = int(supervisor.tail("a"))
    supervisor.wait_until("a", lambda: psutil.pid_exists(child) and not psutil.Process(child).environ(), timeout_s=10)
    supervisor.kill("a")
    assert psutil.pid_exists(child)
    Supervisor(tmp_path).stop_all(timeout_s=1)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
