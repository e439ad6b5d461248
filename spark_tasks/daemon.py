"""Spark's Python daemon, with our kernels loaded before it forks its workers (setting ``spark.python.daemon.module``).

A worker that imports Arrow and numba and loads the kernels by itself needs three CPU seconds for it, each of them.
"""

from __future__ import annotations

import importlib
import linecache
import os
import signal
from types import FrameType

from pumphouse.codec.warm import warm

# Imported here for the workers to have them: everything that their functions use.
PRELOADED = ("pumphouse.loader.stages", "pumphouse.objectstore.open", "spark_tasks.engine", "pyspark.worker")


def load() -> None:
    """Import what the workers use, and have every kernel."""
    for name in PRELOADED:
        importlib.import_module(name)
    warm()


class _Idle:
    """Ends this daemon when it had no worker for some rounds: Spark keeps that of a Connect session that ended."""

    EVERY_S, ROUNDS = 60.0, 15

    def __init__(self) -> None:
        self._rounds = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del number
        try:
            os.waitpid(-1, os.WNOHANG)  # reaps nothing: Spark's daemon ignores SIGCHLD
            self._rounds = 0
        except ChildProcessError:
            self._rounds += 1
        # Only where it waits for somebody: between an accepted connection and its fork Spark would lose a task.
        waits = frame is not None and ".poll(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if self._rounds >= self.ROUNDS and waits:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.raise_signal(signal.SIGTERM)


def main() -> None:
    """Load, then serve Spark as its own daemon does."""
    from pyspark.daemon import manager

    load()
    if os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default":
        signal.signal(signal.SIGALRM, _Idle())
        signal.setitimer(signal.ITIMER_REAL, _Idle.EVERY_S, _Idle.EVERY_S)
    manager()


if __name__ == "__main__":
    main()
