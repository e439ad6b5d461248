"""The wheel as a stranger installs it: alone, with its extras, and beside what an Airflow holds fixed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from pumphouse.extras import EXTRA_OF
from pumphouse.registry.file import FileCluster
from tests.stack.mariadb import MariaDbServer
from tests.support import keeper
from tests.support.pumpserver import PumpServer
from tests.support.wheels import FROZEN, build_wheel, uv

ROOT = Path(__file__).resolve().parents[2]
CLIENT = """
import sys
from pumphouse.client import (PENDING, PrewriteValueBuilder, PumpClient, ResolverServer, TransactionBinlog, TransactionRunner,
    Tso, encode_insert, named_row, open_cluster, tables)
cluster = open_cluster("file://" + sys.argv[1])
with ResolverServer(cluster, "app", [b"app/"], lambda *_: PENDING), PumpClient(cluster) as client:
    start = cluster.tso()
    binlog = TransactionBinlog(start_ts=start, key=b"app/1", prewrite_value=PrewriteValueBuilder(1).build())
    client.write_prewrite(binlog.prewrite(), start)
    client.write_commit(binlog.commit(cluster.tso()), start)
print("written")
"""
DAGS = """
import json, sys
from airflow import plugins_manager
try:
    from airflow.dag_processing.dagbag import DagBag
    plugins, errors = plugins_manager._get_plugins()
except ImportError:  # 3.1
    from airflow.models.dagbag import DagBag
    plugins_manager.ensure_plugins_loaded()
    plugins, errors = plugins_manager.plugins, plugins_manager.import_errors
bag = DagBag(sys.argv[1])
print(json.dumps({"dags": sorted(bag.dags), "wrong": {**bag.import_errors, **errors}, "plugins": [p.name for p in plugins]}))
"""


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def run(python: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program of another environment; nothing of this checkout is on its path."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PUMPHOUSE", "AIRFLOW"))
    }
    return subprocess.run(
        [python, *words], capture_output=True, text=True, timeout=300, cwd=python.parent, env=clean | environment
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and no extra."""
    folder = tmp_path_factory.mktemp("alone")
    uv("venv", "-q", "--python", sys.executable, folder / "env")
    uv("pip", "install", "-q", "--python", folder / "env/bin/python", wheel)
    return folder / "env/bin/python"


@pytest.mark.row("O10")
def test_every_module_of_an_extra_is_named_with_its_extra() -> None:
    names = {
        module: [each.replace("_", "-") for each in distributions]
        for module, distributions in metadata.packages_distributions().items()
    }
    brought = {extra: {re.split(r"[\[<>=]", each)[0] for each in packages} for extra, packages in extras().items()}
    for module, extra in EXTRA_OF.items():
        assert set(names[module]) & (brought[extra] | {"botocore", "apache-airflow-core"}), module
    unnamed = [
        each for extra, packages in brought.items() for each in packages - {"pumphouse", "apache-airflow-providers-standard"}
        if not any(each in distributions for module, distributions in names.items() if module in EXTRA_OF)
    ]  # fmt: skip
    assert unnamed == ["apache-airflow"]


def extras() -> dict[str, list[str]]:
    return project()["optional-dependencies"]  # type: ignore[return-value]


@pytest.mark.row("O10")
def test_the_client_alone_is_small_and_works(alone: Path, tmp_path: Path) -> None:
    with PumpServer(tmp_path, FileCluster(tmp_path / "cluster")):
        made = run(alone, "-c", CLIENT, tmp_path / "cluster")
    assert made.stdout == "written\n", made.stderr
    installed = json.loads(uv("pip", "list", "--format", "json", "--python", alone))
    assert not {each["name"] for each in installed} & {"pyarrow", "numba", "numpy", "boto3", "uvloop", "pandas"}


@pytest.mark.row("O10")
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("-m", "pumphouse", "pump", "run"), "pump"),
        (("-m", "pump_service", "--help"), "pump"),
        (("-m", "pumphouse", "archive", "init"), "archive"),
        (("-m", "pumphouse", "status"), "archive"),
        (("-c", "from pumphouse.replay import Replay"), "archive"),
    ],
)
def test_what_an_extra_brings_is_asked_for_by_name(alone: Path, words: tuple[str, ...], extra: str) -> None:
    done = run(alone, *words)
    assert done.returncode
    assert done.stderr.strip().endswith(f"is not installed: pip install 'pumphouse[{extra}]'")


@pytest.mark.row("O10")
def test_an_airflow_that_is_too_old_is_refused_in_one_sentence(alone: Path) -> None:
    done = run(alone, "-c", "import binlog_airflow")
    assert "Pumphouse needs Airflow 3.1 or later" in done.stderr.splitlines()[-1]


@pytest.mark.row("O10")
def test_licence_and_entry_points_are_in_the_wheel(alone: Path) -> None:
    script = """
import json
from importlib import metadata
found = metadata.distribution("pumphouse")
print(json.dumps([found.metadata["License-Expression"], sorted(e.group for e in found.entry_points), [str(f) for f in found.files]]))
"""
    licence, groups, files = json.loads(run(alone, "-c", script).stdout)
    assert licence == "Apache-2.0"
    assert groups == ["airflow.plugins", "apache_airflow_provider", "console_scripts"]
    shipped = {Path(each).name for each in files if "binlog_airflow/dags/" in each}
    assert shipped >= {path.name for path in (ROOT / "dags").glob("*.py")}
    assert any(each.endswith("licenses/LICENSE") for each in files)


@pytest.mark.row("O10")
@pytest.mark.parametrize("frozen", FROZEN, ids=lambda path: path.stem)
def test_the_wheel_fits_beside_what_an_airflow_holds_fixed(wheel: Path, frozen: Path) -> None:
    asked = f"pumphouse[pump,airflow,spark] @ {wheel.as_uri()}\n{frozen.read_text()}"
    (wheel.parent / f"{frozen.stem}.in").write_text(asked)
    uv("pip", "compile", "-q", "--python", sys.executable, wheel.parent / f"{frozen.stem}.in")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.row("O10")
@pytest.mark.parametrize("held", [*FROZEN, None], ids=lambda path: path.stem if path else "floors")
def test_dags_parse_and_a_pump_is_archived_in_what_others_hold_fixed(
    wheel: Path, held: Path | None, server: MariaDbServer, tmp_path: Path
) -> None:
    python = tmp_path / "env/bin/python"
    uv("venv", "-q", "--python", sys.executable, tmp_path / "env")
    choice = ("-c", held) if held else ("--resolution", "lowest-direct")
    uv("pip", "install", "-q", "--python", python, *choice, f"pumphouse[pump,airflow,spark] @ {wheel.as_uri()}")
    environment = {"AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    # As the page has it; the wheel stands for the index, and these versions for the constraints of an Airflow.
    page = (ROOT / "docs/operations.md").read_text()
    pip, link = page.partition("### Into Airflow")[2].partition("```sh\n")[2].partition("```")[0].splitlines()
    assert pip.startswith("pip install 'pumphouse[airflow,spark]' --constraint ")
    folder = tmp_path / "home/dags"
    folder.mkdir(parents=True)
    typed = environment | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", link], check=True, timeout=60, env=typed)
    migrated = run(python, "-m", "airflow", "db", "migrate", **environment)
    assert not migrated.returncode, migrated.stderr
    # A wrong value that no DAG file needs stops tasks, not DAGs.
    parsed = run(python, "-c", DAGS, folder, PUMPHOUSE_PUMP__RETENTION_S="x", **environment)
    assert not parsed.returncode, parsed.stderr
    found = json.loads(parsed.stdout.splitlines()[-1])
    assert found["wrong"] == {}
    assert set(found["dags"]) == {path.stem for path in (ROOT / "dags").glob("*.py")}
    assert "pumphouse" in found["plugins"]
    settings = {
        "PUMPHOUSE_CLUSTER__URL": f"file://{tmp_path}/cluster",
        "PUMPHOUSE_ARCHIVE__ROOT": f"file://{tmp_path}/archive",
        "PUMPHOUSE_SCHEMA__HISTORY": f"mysql://root@127.0.0.1:{server.port}/history.jobs",
        "PUMPHOUSE_SCHEMA__HISTORY_PASSWORD": server.password.get_secret_value(),
        "PUMPHOUSE_SOURCE__HOST": "127.0.0.1",
        "PUMPHOUSE_SOURCE__PORT": str(server.port),
        "PUMPHOUSE_SOURCE__USER": "root",
        "PUMPHOUSE_SOURCE__PASSWORD": server.password.get_secret_value(),
    }
    with subprocess.Popen(
        [python, "-m", "pumphouse", "pump", "run", "--data-dir", tmp_path / "data", "--addr", "127.0.0.1:0"],
        env={name: os.environ[name] for name in ("PATH", keeper.MARK)} | settings, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    ) as pump:  # fmt: skip
        try:
            assert "serving" in (pump.stdout.readline() if pump.stdout else "")
            for words in (
                "schema import",
                "archive init",
                "archive dump",
                "snapshot",
                "schema rebuild",
                "archive verify",
            ):
                done = run(python, "-m", "pumphouse", *words.split(), **settings)
                assert not done.returncode, done.stdout + done.stderr
        finally:
            pump.terminate()
