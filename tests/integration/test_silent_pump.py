"""A Pump that is stopped, not dead: its connections stay open. `pumphouse snapshot` names it all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.registry.file import FileCluster
from pumphouse.settings import ArchiveSettings, Settings
from tests.support.frozen import freeze
from tests.support.nojobs import NoJobHistory, status_api
from tests.support.pumpserver import PumpServer


@pytest.fixture
def history() -> Iterator[str]:
    with status_api() as url:
        yield url


@pytest.mark.row("A2", "O3")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_snapshot_names_a_stopped_pump_within_thirty_seconds(tmp_path: Path, history: str, when: str) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    (tmp_path / "pumphouse.toml").write_text(
        f'[cluster]\nurl = "file://{tmp_path}/cluster"\n[archive]\nroot = "file://{tmp_path}/archive"\n'
        f'[schema]\nhistory = "{history}"\n'
    )
    call = [sys.executable, "-c", "from pumphouse.cli import main; main()"]
    (tmp_path / "p").mkdir()
    with PumpServer(tmp_path / "p", cluster) as pump:
        kept = ArchiveSettings(root=f"file://{tmp_path}/archive")
        init_archive(Archive.open(kept, cluster.cluster_id()), cluster, NoJobHistory(), settings=Settings(archive=kept))
        # The window waits for a moment that the Pump has not reached yet.
        until = str(int(cluster.tso()) + (8_000 << 18)) if when == "meanwhile" else "now"
        if when == "before":
            freeze(pump.pid, cluster)
        snapshot = subprocess.Popen(
            [*call, "snapshot", "--until", until],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if when == "meanwhile":
                time.sleep(4)
                freeze(pump.pid, cluster)
            at = time.monotonic()
            assert snapshot.stderr is not None
            said = next(line for line in snapshot.stderr if pump.node_id in line and "Pump" in line)
            assert time.monotonic() - at < 30, said
            assert pump.addr in said
            os.kill(pump.pid, signal.SIGCONT)
            assert snapshot.wait(60) == 0
        finally:
            os.kill(pump.pid, signal.SIGCONT)
            snapshot.kill()
            snapshot.wait()
            for stream in (snapshot.stdout, snapshot.stderr):
                assert stream is not None
                stream.close()
