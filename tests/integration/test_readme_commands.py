"""The commands of README.md, "Using it", typed as they stand there: only paths, ports and times are this machine's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.tso import to_datetime
from pumphouse.registry.file import FileCluster
from pumphouse.settings import Settings, TargetSettings
from pumphouse.stack.ports import free_port
from tests.support import mariadb
from tests.support.madearchive import column, table_info
from tests.support.pumpserver import eventually

README = (Path(__file__).resolve().parents[2] / "README.md").read_text().split("## Using it")[1].split("\n## ")[0]


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    """A target, which also holds the job history of a database with one table."""
    with mariadb.running(tmp_path_factory.mktemp("db")) as settings:
        with TargetConnection.open(settings) as connection:
            connection.execute("CREATE DATABASE history")
            connection.execute("CREATE TABLE history.jobs (job_id BIGINT PRIMARY KEY, job LONGTEXT NOT NULL)")
            info = {
                "id": 2,
                "db_name": {"O": "d", "L": "d"},
                "charset": "utf8mb4",
                "collate": "utf8mb4_bin",
                "state": 5,
            }
            made = {
                3: (1, 0, {"DBInfo": info}),
                5: (3, 7, {"TableInfo": table_info(7, "t", [column(1, "id", flag=3)])}),
            }
            for job_id, (type_, table_id, more) in made.items():
                job = {"id": job_id, "type": type_, "state": 6, "schema_state": 5, "schema_id": 2, "table_id": table_id,
                       "schema_name": "d", "query": "ddl", "start_ts": 1,
                       "binlog": {"SchemaVersion": job_id, "FinishedTS": 2, **more}}  # fmt: skip
                connection.execute("INSERT INTO history.jobs VALUES (%s, %s)", (job_id, json.dumps(job)))
            connection.execute("CREATE DATABASE d")
            connection.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        yield settings


@pytest.mark.row("O3")
@pytest.mark.timeout(240)
def test_the_commands_of_the_readme_do_what_it_says(server: TargetSettings, tmp_path: Path) -> None:
    password = server.password.get_secret_value()
    told = {
        "/srv/pumphouse": str(tmp_path),
        "8250": str(free_port()),
        "8251": str(free_port()),
        "http://127.0.0.1:10080": f"mysql://root:{password}@127.0.0.1:{server.port}/history.jobs",
        "3306": f'{server.port}\npassword = "{password}"',
    }

    def mine(text: str) -> str:
        for old, new in told.items():
            text = text.replace(old, new)
        return text

    toml = f"{mine(block('toml'))}[pump]\nstop_write_at_available_bytes = 0\n"
    (tmp_path / "pumphouse.toml").write_text(toml)
    told_apart = Settings.read(tmp_path / "pumphouse.toml")
    assert told_apart.restore_target.port != told_apart.target.port, "a restore of the sample leaves the target alone"
    lines = [line.split(" #")[0].strip() for line in block("sh").splitlines()]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # Spark is shown elsewhere; here each command would start a session of its own.
    environment = {**os.environ, "PATH": path, "PUMPHOUSE_LOAD__ENGINE": "local"}
    cluster = FileCluster(tmp_path / "cluster")
    pumps: list[subprocess.Popen[bytes]] = []
    said = {}
    try:
        for line in lines:
            words = mine(re.sub(r"20\d\d-\S+Z", to_datetime(cluster.tso()).isoformat(timespec="milliseconds"), line))
            if line.endswith("&"):
                pumps.append(subprocess.Popen(words.rstrip("& ").split(), cwd=tmp_path, env=environment,
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))  # fmt: skip
                eventually(
                    lambda: [n.state for n in cluster.nodes(NodeKind.PUMP)] == [NodeState.ONLINE] * len(pumps),
                    what="every Pump is online",
                )
                continue
            if "--equal-at" in line:
                # The moment lies in what is archived by now.
                (end,) = re.findall(
                    r"\d{18}",
                    subprocess.check_output(
                        ["pumphouse", "snapshot", "--json"], cwd=tmp_path, env=environment, text=True
                    ).split('"windows"')[0],
                )
                words = f"pumphouse load --equal-at {end}"
            done = subprocess.run(
                words.split(), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            said[line] = done
            if "--dry-run" in line:
                assert done.returncode == 1, done.stderr
                assert "without a dump" in done.stderr or "cannot be restored" in done.stderr
            elif line == "pumphouse status":
                assert done.returncode == 3, done.stdout + done.stderr
                assert "nothing can be restored" in done.stdout
            else:
                assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
    finally:
        for pump in pumps:
            pump.send_signal(signal.SIGTERM)
        for pump in pumps:
            assert pump.wait(20) == 0
    assert len(pumps) == 2
    assert len(said) == 8
    assert "nothing to do" in said["pumphouse load"].stdout or "is at" in said["pumphouse load"].stdout
