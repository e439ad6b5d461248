"""The commands of README.md, "Using it", typed as they stand there: only paths, ports and times are this machine's."""

from __future__ import annotations

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
from tests.stack.ports import free_port
from tests.support import mariadb
from tests.support.waiting import eventually

README = (Path(__file__).resolve().parents[2] / "README.md").read_text().split("## Using it")[1].split("\n## ")[0]


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def source() -> Iterator[TargetSettings]:
    """A database with one table; its server also gets the DDL history."""
    with mariadb.in_memory() as settings:
        with TargetConnection.open(settings) as connection:
            connection.execute("CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            connection.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
            connection.execute("INSERT INTO d.t VALUES (1), (2)")
        yield settings


@pytest.fixture(scope="module")
def server() -> Iterator[TargetSettings]:
    """An empty target."""
    with mariadb.in_memory() as settings:
        yield settings


@pytest.mark.row("O3")
@pytest.mark.timeout(240)
def test_the_commands_of_the_readme_do_what_it_says(
    source: TargetSettings, server: TargetSettings, tmp_path: Path
) -> None:
    given = source.password.get_secret_value()
    password = server.password.get_secret_value()
    told = {
        "/srv/pumphouse": str(tmp_path),
        "8250": str(free_port()),
        "8251": str(free_port()),
        "http://127.0.0.1:10080": f"mysql://root:{given}@127.0.0.1:{source.port}/history.jobs",
        'host = "10.0.0.5"': f'host = "127.0.0.1"\nport = {source.port}\npassword = "{given}"',
        '"backup"': '"root"',
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
            done = subprocess.run(
                words.split(), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            said[line] = done
            if "--dry-run" in line:
                assert done.returncode == 1, done.stderr
                assert "cannot be restored" in done.stderr, "now lies behind the end"
            elif line == "pumphouse status":
                assert done.returncode == 3, done.stdout + done.stderr
                assert "nothing can be restored" not in done.stdout
            else:
                assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
    finally:
        for pump in pumps:
            pump.send_signal(signal.SIGTERM)
        for pump in pumps:
            assert pump.wait(20) == 0
    assert len(pumps) == 2
    assert len(said) == 9
    assert "dumped 1 tables, 2 rows" in said["pumphouse archive dump"].stdout
    with TargetConnection.open(server) as connection:
        assert connection.query("SELECT id FROM d.t ORDER BY id") == [(1,), (2,)]
