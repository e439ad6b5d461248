"""The commands of README.md, "Using it", typed as they stand there: only paths, ports and times are this machine's."""

from __future__ import annotations

import os
import re
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
from tests.support.shellpage import ROOT, Shell, blocks
from tests.support.waiting import eventually

README = blocks((ROOT / "README.md").read_text().split("## Using it")[1].split("\n## ")[0])


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
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # Spark is shown elsewhere; here each command would start a session of its own.
    environment = {**os.environ, "PATH": path, "PUMPHOUSE_LOAD__ENGINE": "local"}
    cluster = FileCluster(tmp_path / "cluster")
    toml, commands = README
    assert (toml.language, commands.language) == ("toml", "sh")
    with Shell(tmp_path, environment, told) as shell:
        settings = f"{shell.mine(toml.text)}[pump]\nstop_write_at_available_bytes = 0\n"
        (tmp_path / "pumphouse.toml").write_text(settings)
        told_apart = Settings.read(tmp_path / "pumphouse.toml")
        assert told_apart.restore_target.port != told_apart.target.port, (
            "a restore of the sample leaves the target alone"
        )
        for line in commands.lines:
            if line.endswith("&"):
                shell.begin(line)
                eventually(
                    lambda: [n.state for n in cluster.nodes(NodeKind.PUMP)] == [NodeState.ONLINE] * shell.going,
                    what="every Pump is online",
                )
            elif "--dry-run" in line:
                now = to_datetime(cluster.tso()).isoformat(timespec="milliseconds")
                done = shell.run(re.sub(r"20\d\d-\S+Z", now, line), codes=(1,))
                assert "cannot be restored" in done.stderr, "now lies behind the end"
            elif line == "pumphouse status":
                assert "nothing can be restored" not in shell.run(line, codes=(3,)).stdout
            else:
                shell.run(line)
        assert shell.going == 2
    assert len(shell.said) == 9
    assert "dumped 1 tables, 2 rows" in shell.said["pumphouse archive dump"].stdout
    with TargetConnection.open(server) as connection:
        assert connection.query("SELECT id FROM d.t ORDER BY id") == [(1,), (2,)]
