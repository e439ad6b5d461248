"""The lock of a directory cluster, while its holder stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pumphouse.errors import ClusterUnavailable
from pumphouse.registry.lock import locked

_HOLDS = """
import sys, time
from pathlib import Path
from pumphouse.registry.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.row("W4")
def test_a_holder_that_stands_still_is_named_by_its_lock_and_its_end_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "registry.lock"
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        os.kill(holder.pid, signal.SIGSTOP)
        held = pytest.raises(ClusterUnavailable, match=rf"another process has held {path} for 0\.2 s")
        with held as told, locked(path, wait_s=0.2):
            raise AssertionError
        assert f"fuser -v {path}" in told.value.hint
        holder.kill()
        with locked(path, wait_s=10):
            pass
