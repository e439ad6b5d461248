"""What a process of the tests started ends with it, also after ``kill -9``: servers have sessions of their own, and would stay.

Linux's own signal at a parent's death does not do: it comes when the *thread* that started a child ends, a change of the
user takes it away (PostgreSQL under root), and grandchildren (Airflow's tasks, Spark's JVM) do not have it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

# In the environment of every child: marks of all that it is to end with, one inside the other.
MARK = "ENDS_WITH"
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
# What a process that ended well has just told to end has this long to obey.
_GRACE_S = 3.0
_mark = ""


def keep() -> None:
    """From here on, whatever this process starts ends with it, and so do its files in memory."""
    global _mark
    _mark = f"{os.getpid()}-{secrets.token_hex(6)}."
    # It is a child of nobody here, so that tests may count theirs.
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), _mark], stdin=subprocess.DEVNULL, check=True
    )
    os.environ[MARK] = os.environ.get(MARK, "") + _mark


def memory() -> Path | None:
    """A directory in memory, which goes with this process when that is kept; None where there is no room for one."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        return None
    if not _mark:
        return _MEMORY
    _directory(_mark).mkdir(mode=0o755, exist_ok=True)
    return _directory(_mark)


def _directory(mark: str) -> Path:
    return _MEMORY / f"ph-{mark}"


def _main(pid: int, mark: str) -> None:
    # The process waits for this one to fork: it is still the one of that number.
    kept = os.pidfd_open(pid)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(nowhere, each)
    select.select([kept], [], [])
    _end(mark.encode())
    shutil.rmtree(_directory(mark), ignore_errors=True)


def _end(mark: bytes) -> None:
    until = time.monotonic() + _GRACE_S
    found = _marked(mark, {})
    while found:
        if time.monotonic() > until:
            for each in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
        time.sleep(0.1)
        found = _marked(mark, found)


def _marked(mark: bytes, known: dict[int, str]) -> dict[int, str]:
    """Pid -> start of what lives and carries the mark or was known, of their descendants, and of the sessions they lead.

    Some programs write their title over their environment, and some tests give theirs an empty one.
    """
    above: dict[int, tuple[int, int]] = {}  # pid -> parent, session
    began: dict[int, str] = {}
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            pid = int(name)
            # The name in brackets may hold anything, brackets too.
            state, parent, _, session, *rest = (
                Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            )
            if state in "ZX":
                continue
            above[pid], began[pid] = (int(parent), int(session)), rest[15]
            with contextlib.suppress(PermissionError):
                if known.get(pid) == began[pid] or mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found[pid] = began[pid]
    while True:
        more = {
            pid: began[pid] for pid, higher in above.items() if pid not in found and not found.keys().isdisjoint(higher)
        }
        if not more:
            return found
        found |= more


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
