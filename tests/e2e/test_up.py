"""`make up` and `make down`: the stack stays, says where it is, can be started twice, and ends to the last process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.open import open_cluster
from tests.e2e.up import up_stack
from tests.stack.supervisor import StackError, descendants
from tests.support import formats
from tests.support.processes import lives

ROOT = Path(__file__).resolve().parents[2]


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.e2e", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def _typed(build: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command as the docs have it, after the line that `make up` says to type."""
    path = f"{build / 'up' / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=build, env={"PATH": path, "HOME": str(build)}
    )


@pytest.mark.timeout(900)
@pytest.mark.row("O1", "O4", "O6")
@pytest.mark.usefixtures("quick_jvms")
def test_up_runs_the_whole_stack_and_down_ends_it(tmp_path: Path) -> None:
    build = ["--build", str(tmp_path)]
    members: set[int] = set()
    try:
        result = _demo("up", *build)
        assert result.returncode == 0, result.stderr
        found = json.loads((tmp_path / "up.json").read_text())
        formats.check("up", found)
        assert (tmp_path / "up.json").stat().st_mode & 0o077 == 0

        stack = up_stack(tmp_path / "up")
        stack.airflow.attach()
        members = set(found["processes"].values())
        members |= {child.pid for name in found["processes"] for child in descendants(stack.supervisor, name)}
        assert all(psutil.pid_exists(pid) for pid in found["processes"].values())
        for database in found["databases"].values():
            Dsn.parse(database["dsn"]).connect().close()
        cluster = open_cluster(found["cluster"]["url"])
        assert cluster.cluster_id() == found["cluster"]["id"]
        cluster.close()

        api = stack.airflow.api()
        assert api.import_errors() == []
        # A run by hand has no interval: the task ran, in a process of the scheduler, and says so.
        assert _typed(tmp_path, "airflow", "dags", "unpause", "binlog_apply", "--yes").returncode == 0
        run_id = api.trigger("binlog_apply")
        assert api.wait_for_run("binlog_apply", run_id, timeout_s=120)["state"] == "failed"
        assert "this run has no interval" in api.log("binlog_apply", run_id, "apply", 1)
        assert "pump-1" in _typed(tmp_path, "pumphouse", "pumps").stdout
        mistaken = _typed(tmp_path, "shop-mistake", "--orders", "20")
        assert mistaken.stdout == '{"deleted": 20}\n', mistaken.stderr
        stack.databases["source"].attach()
        stack.captured()
        assert _typed(tmp_path, "pumphouse", "snapshot").returncode == 0
        sought = ["--from", "10 minutes ago", "--table", "shop.orders", "--kind", "delete", "--rows", "20"]
        assert "shop.orders: 20 deleted" in _typed(tmp_path, "pumphouse", "archive", "find", *sought).stdout
        with pytest.raises(StackError, match="404"):
            api.trigger("no_such_dag")

        again = _demo("up", *build, "--json")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["processes"] == found["processes"]

        # One Pump of it is revived, and nothing else is touched.
        psutil.Process(found["processes"]["pump-2"]).kill()
        revived = _demo("up", *build, "--json")
        assert revived.returncode == 0, revived.stderr
        processes = json.loads(revived.stdout)["processes"]
        members |= set(processes.values())
        assert {name for name, pid in processes.items() if found["processes"].get(name) != pid} == {"pump-2"}
        assert set(processes) == set(found["processes"])
        formats.check("up", json.loads((tmp_path / "up.json").read_text()))
    finally:
        ended = _demo("down", *build)
    assert ended.returncode == 0, ended.stderr
    assert members
    assert [pid for pid in members if lives(pid)] == []
    assert not (tmp_path / "up.json").exists()
    for words in (["shop-mistake"], ["airflow", "dags", "list"]):
        nothing = _typed(tmp_path, *words)
        assert (nothing.returncode, nothing.stdout) == (1, "")
        assert nothing.stderr == f"nothing of {tmp_path / 'up'} runs: `make up` starts it\n"
    assert _demo("down", *build).returncode == 0
