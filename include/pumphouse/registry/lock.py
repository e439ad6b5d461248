"""An exclusive lock between threads and processes on one machine: flock(2) on a file that is opened for each use.

Opening each time is what makes it safe: an open file description inherited by a fork would share its lock with the
child, and two threads on one description would not exclude each other. The kernel drops the lock when its holder
dies, so ``kill -9`` leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock; yields the open descriptor, for those who keep their state in the locked file itself.

    Not reentrant: taking the same lock again inside waits for ever.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        # Closing is not enough: a child that another thread forked meanwhile has the descriptor, and so the lock, too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
