"""Spark's Python daemon, with our kernels loaded before it forks its workers (setting ``spark.python.daemon.module``).

A worker that imports Arrow and numba and loads the kernels by itself needs three CPU seconds for it, each of them.
"""

from __future__ import annotations

import importlib

from pumphouse.codec.warm import warm

# Imported here for the workers to have them: everything that their functions use.
PRELOADED = ("pumphouse.loader.stages", "pumphouse.objectstore.open", "spark_tasks.engine", "pyspark.worker")


def load() -> None:
    """Import what the workers use, and have every kernel."""
    for name in PRELOADED:
        importlib.import_module(name)
    warm()


def main() -> None:
    """Load, then serve Spark as its own daemon does."""
    from pyspark.daemon import manager

    load()
    manager()


if __name__ == "__main__":
    main()
