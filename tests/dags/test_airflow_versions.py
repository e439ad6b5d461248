"""The wheel on each Airflow that is served, in what was fixed beside it at its time: two clusters, by the factory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.settings import TargetSettings
from tests.dags.test_own_dags import World
from tests.e2e import airflow_watch as watch
from tests.support import mariadb
from tests.support.wheels import FROZEN, build_wheel, uv

# The last one of each minor version.
LATEST = [*{path.stem.rpartition(".")[0]: path for path in FROZEN}.values()]


# CPU seconds of each file, and how many DAGs it has; what the factory imports is in the process that parses.
_PARSED = """
import json, sys, time
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag
import binlog_airflow.factory
found = []
for path in sys.argv[1:]:
    began = time.process_time()
    found.append([len(DagBag(path).dags), time.process_time() - began])
print(json.dumps(found))
"""


def of_server(kind: str, server: TargetSettings) -> dict[str, Any]:
    """A connection."""
    return {
        "conn_type": kind, "host": server.host, "port": server.port, "login": server.user,
        "password": server.password.get_secret_value(),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.row("O1", "O10")
@pytest.mark.parametrize("held", LATEST, ids=lambda path: path.stem)
def test_two_clusters_are_archived_loaded_and_restored(held: Path, tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    uv("venv", "-q", "--python", sys.executable, tmp_path / "env")
    asked = f"pumphouse[airflow] @ {build_wheel(tmp_path).as_uri()}"
    uv("pip", "install", "-q", "--python", python, "-c", held, asked, "asyncpg", "psycopg2-binary")
    with contextlib.ExitStack() as stack:
        (tmp_path / "world").mkdir()
        source, restored = (stack.enter_context(mariadb.in_memory()) for _ in range(2))
        with TargetConnection.open(source) as connection:
            connection.execute("CREATE DATABASE d")
            connection.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(40) COLLATE utf8mb4_bin)")
            connection.execute("INSERT INTO d.t VALUES (1, 'Europe')")
        world = World(
            tmp_path / "world", stack, python=python,
            environment={"PYTHONPATH": "", "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path / "none")},
            connections={
                "eu_pumphouse_source": of_server("pumphouse_source", source),
                "eu_pumphouse_restore": of_server("pumphouse_downstream", restored),
            },
        )  # fmt: skip
        files = [str(world.work / "dags" / name) for name in ("eu.py", "us.py")]
        told = subprocess.run(
            [python, "-c", _PARSED, *files],
            env=os.environ | world.airflow.variables(),
            check=False,
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stderr[-4000:]
        for dags, seconds in json.loads(told.stdout.splitlines()[-1]):
            assert dags > 0
            assert seconds < 0.3, "of CPU to parse a file with the DAGs of an installation"
        world.loaded("restore")
        assert (world.eu.rows(), world.us.rows()) == ({1: "Europe"}, {1: "America"})
        dag_id = "eu_binlog_restore"
        world.api.unpause(dag_id)
        early = world.api.trigger(dag_id, {"to": "latest", "dry_run": False})
        assert world.api.wait_for_run(dag_id, early, timeout_s=240)["state"] == "failed"
        tried = {each["task_id"]: each["try_number"] for each in world.api.tasks(dag_id, early)}
        assert tried["plan"] == 1, "another try finds no dump either"
        assert "holds no dump" in world.api.log(dag_id, early, "plan", 1)
        world.ended("eu_binlog_dump", world.run("eu_binlog_dump"))
        world.ended("eu_binlog_snapshot", world.run("eu_binlog_snapshot"))
        run = world.api.trigger(dag_id, {"to": "latest", "dry_run": False})
        ended = world.api.wait_for_run(dag_id, run, timeout_s=240, asked=lambda *_: "Approve")
        assert ended["state"] == "success", watch.failure(world.api, dag_id, run)
        with TargetConnection.open(restored) as connection:
            assert [(int(number), value) for number, value in connection.query("SELECT id, v FROM d.t")] == [
                (1, "Europe")
            ]
