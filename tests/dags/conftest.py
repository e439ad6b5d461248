"""A real Airflow home for tests: its own database, our DAGs and plugins, no examples. Airflow runs in child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.stack.once import copy_once_made

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def airflow_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("airflow")
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PUMPHOUSE"))},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "include", ROOT / "plugins"))),
    }

    def migrated(at: Path) -> None:
        subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env={**env, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{at}"},
            check=True,
            capture_output=True,
            cwd=home,
            timeout=240,
        )

    copy_once_made("airflow.db", home / "airflow.db", migrated, of=(version("apache-airflow"),))
    return env


@pytest.fixture(scope="session")
def fresh_airflow(airflow_env: dict[str, str]) -> Callable[..., Any]:
    """Run a script in a fresh interpreter with that home; it prints its result as the last line of JSON."""

    def run(script: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=airflow_env,
            capture_output=True,
            text=True,
            cwd=airflow_env["AIRFLOW_HOME"],
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def in_airflow(airflow_env: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """The same in a child of a process that has imported Airflow, our plugin and what a run of a DAG needs."""
    home = airflow_env["AIRFLOW_HOME"]
    said = Path(home) / "said"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.airflowchild"],
        env=airflow_env,
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        asked, answers = server.stdin, server.stdout

        def run(script: str, **extra: str) -> Any:
            print(json.dumps({"script": script, "environment": extra, "said": str(said)}), file=asked, flush=True)
            code = answers.readline().strip()
            assert code == "0", f"{code}: {said.read_text()[-4000:]}"
            return json.loads(said.read_text().strip().splitlines()[-1])

        yield run
        asked.close()
