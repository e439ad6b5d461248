"""Very many windows: what a plan, a listing, a look and a snapshot cost in an archive that has 100,000 of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pumphouse.archive.indexing import extend_index
from pumphouse.registry.file import FileCluster
from tests.bench.harness import Result, Watch
from tests.support.checkpoints import set_checkpoint
from tests.support.madearchive import MadeSource, column
from tests.support.manywindows import add_windows

_WINDOWS, _TABLES = 100_000, 10
_COMMANDS = {
    "plan": ("restore", "--to", "latest", "--dry-run", "--plan-only"),
    "ls": ("archive", "ls"),
    "status": ("status",),
    "snapshot": ("snapshot",),
}
_made: dict[str, tuple[tempfile.TemporaryDirectory[str], dict[str, str], float]] = {}


def _archive() -> tuple[dict[str, str], float]:
    """Settings of an archive whose windows have two segments of ten tables each; manifests read a second without an index."""
    if "it" not in _made:
        held = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        cluster = FileCluster(Path(held.name, "cluster"))
        source = MadeSource(Path(held.name, "archive"), cluster.cluster_id())
        for number in range(_TABLES):
            source.create_table(f"t{number}", [column(1, "id", flag=3)])
        source.genesis()
        for id_ in range(2):
            with source.txn() as txn:
                for number in range(_TABLES):
                    txn.insert(f"t{number}", id=id_)
        source.cut()
        add_windows(source, _WINDOWS - 1)
        began = time.perf_counter()
        extend_index(source.archive)
        rate = 1000 / (time.perf_counter() - began)
        while extend_index(source.archive):
            pass
        set_checkpoint(cluster, "main", source.archive.end())
        env = {
            "PUMPHOUSE_ARCHIVE__ROOT": source.settings.root,
            "PUMPHOUSE_CLUSTER__URL": f"file://{held.name}/cluster",
            "PUMPHOUSE_RESTORE_TARGET__HOST": "127.0.0.1",
            "PUMPHOUSE_RESTORE_TARGET__PORT": "1",
            "PUMPHOUSE_RESTORE_TARGET__USER": "nobody",
        }
        _made["it"] = held, env, rate
    return _made["it"][1:]


def _bench(name: str, _work: Path, runs: int) -> Result:
    env, baseline = _archive()
    samples = []
    for _ in range(runs):
        child = subprocess.Popen(
            [sys.executable, "-m", "pumphouse", *_COMMANDS[name]],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **env},
        )  # fmt: skip
        with Watch(child.pid) as watch:
            _, said = child.communicate()
        if child.returncode and name != "status":  # which is 1 where something is wrong, as the archive's age is
            raise RuntimeError(f"{name} failed with exit code {child.returncode}: {said}")
        samples.append(watch.sample(_WINDOWS))
    return Result(f"archive_100k_{name}", "windows/s", samples, "manifests, windows/s", baseline)


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    f"archive_100k_{name}": partial(_bench, name) for name in _COMMANDS
}
