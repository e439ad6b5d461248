"""A process of a directory cluster that stands still."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pumphouse.registry.file import FileCluster
from pumphouse.registry.lock import locked


def freeze(pid: int, cluster: FileCluster) -> None:
    """Stop it while it has none of the cluster's locks: with one it would stop everybody else too."""
    directory = Path(cluster.url.removeprefix("file://"))
    with locked(directory / "registry.lock"), locked(directory / "tso"):
        os.kill(pid, signal.SIGSTOP)
