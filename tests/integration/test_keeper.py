"""What a test process started ends with it: servers, their children, and files in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import lives
from tests.support.waiting import eventually

# A server, started by a thread that has ended, and a stack's part whose child hides from its environment and its session.
_HOLDER = """
import json, os, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.stack.supervisor import Supervisor
from tests.support import keeper, mariadb

keeper.keep()
directory = mariadb.directory_in_memory()
work = directory.__enter__()
with ThreadPoolExecutor(1) as pool:
    server = pool.submit(mariadb.server_in(work).start).result()
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
hiding = f"import subprocess, time; print(subprocess.Popen({sleeper!r}, env={{}}, start_new_session=True).pid, flush=True); time.sleep(600)"
part = Supervisor(Path(sys.argv[1]))
part.start("part", [sys.executable, "-c", hiding])
part.wait_until("part", lambda: part.tail("part"), timeout_s=20)
started = [server.supervisor.pid(server.name), part.pid("part"), int(part.tail("part"))]
print(json.dumps({"started": started, "work": str(work)}), flush=True)
if sys.argv[2] == "killed":
    time.sleep(600)
os._exit(0)
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_what_a_process_started_ends_with_it(tmp_path: Path, how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path), how], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        said = json.loads(holder.stdout.readline())
        assert psutil.Process().pid not in said["started"]
        if how == "killed":
            assert all(map(lives, said["started"]))
            holder.kill()
    eventually(lambda: not any(map(lives, said["started"])), within_s=30, what="every process has ended")
    eventually(lambda: not Path(said["work"]).exists(), what="its files in memory are gone")
