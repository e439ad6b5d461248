"""The writers' gate: many inside, or one alone, and a barrier is not starved."""

import subprocess
import sys
import threading
import time
from pathlib import Path

from pumphouse.demo.gate import Gate


def test_writers_are_inside_together(tmp_path: Path) -> None:
    one, other = Gate(tmp_path), Gate(tmp_path)
    with one.shared(), other.shared():
        pass
    one.close()
    other.close()


def test_a_barrier_waits_for_who_is_inside_and_keeps_others_out(tmp_path: Path) -> None:
    events: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def writer() -> None:
        gate = Gate(tmp_path)
        with gate.shared():
            entered.set()
            leave.wait(10)
            events.append("writer out")
        gate.close()

    def late_writer() -> None:
        gate = Gate(tmp_path)
        with gate.shared():
            events.append("late writer in")
        gate.close()

    def barrier() -> None:
        gate = Gate(tmp_path)
        with gate.exclusive():
            events.append("barrier in")
            time.sleep(0.1)
            events.append("barrier out")
        gate.close()

    threads = [threading.Thread(target=writer)]
    threads[0].start()
    assert entered.wait(10)
    threads.append(threading.Thread(target=barrier))
    threads[1].start()
    time.sleep(0.2)
    # A writer that comes while the barrier waits comes after it.
    threads.append(threading.Thread(target=late_writer))
    threads[2].start()
    time.sleep(0.2)
    assert events == []
    leave.set()
    for thread in threads:
        thread.join(10)
    assert events == ["writer out", "barrier in", "barrier out", "late writer in"]


def test_a_killed_process_leaves_the_gate_open(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from pumphouse.demo.gate import Gate;"
        "gate = Gate(Path(sys.argv[1])); gate.exclusive().__enter__(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    gate = Gate(tmp_path)
    with gate.exclusive():
        pass
    gate.close()
