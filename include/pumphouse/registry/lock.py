"""An exclusive lock between threads and processes on one machine: flock(2) on a file that is opened for each use.

Opening each time is what makes it safe: an open file description inherited by a fork would share its lock with the
child, and two threads on one description would not exclude each other. The kernel drops the lock when its holder
dies, so ``kill -9`` leaves nothing behind. A holder that stands still (stopped, or its disk hangs) keeps the lock: who
waits for it says so in the end.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pumphouse.errors import ClusterUnavailable

# Whoever holds it writes one small file.
WAIT_S = 30.0
_LONGEST_PAUSE_S = 0.01


@contextmanager
def locked(path: Path, wait_s: float = WAIT_S) -> Iterator[int]:
    """Hold the lock; yields the open descriptor, for those who keep their state in the locked file itself.

    Not reentrant. ClusterUnavailable where another holds it for ``wait_s``.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(fd, path, wait_s)
        try:
            yield fd
        finally:
            # Closing is not enough: a child that another thread forked meanwhile has the descriptor, and so the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _take(fd: int, path: Path, wait_s: float) -> None:
    """flock(2) knows no time limit, so that it is asked again and again."""
    until, pause = time.monotonic() + wait_s, 0.0001
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise ClusterUnavailable(
                    f"another process has held {path} for {wait_s:g} s: it stands still",
                    hint=f"`fuser -v {path}` names those that have it open; continue the one that is stopped (kill "
                    "-CONT), or end it: its lock goes with it",
                    url=f"file://{path.parent}",
                ) from None
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        else:
            return
