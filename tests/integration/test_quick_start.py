"""docs/start-mysql.md, block by block, as it stands there: its settings, its SQL, its commands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.session import position_now
from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.registry.file import FileCluster
from tests.stack.mariadb import MariaDbServer
from tests.stack.ports import free_port
from tests.support import mariadb
from tests.support.shellpage import ROOT, Block, Shell, blocks
from tests.support.waiting import eventually

PAGE = blocks((ROOT / "docs" / "start-mysql.md").read_text())


@contextmanager
def server(name: str, configuration: str) -> Iterator[MariaDbServer]:
    """A server with these lines in its configuration."""
    lines = re.findall(r"^(\S+) = (\S+)$", configuration, re.MULTILINE)
    with mariadb.directory_in_memory() as directory:
        arguments = tuple(f"--{option}={value}" for option, value in lines)
        with mariadb.server_in(directory / name, arguments=arguments) as running:
            yield running


class Walk:
    """One walk through the page; what a reader would look at before the next line is waited for."""

    def __init__(self, shell: Shell, servers: dict[str, MariaDbServer]) -> None:
        self.shell = shell
        self.servers = servers
        self.cluster = FileCluster(shell.directory / "cluster")

    def step(self, block: Block) -> None:
        if block.runs_elsewhere:
            return
        if server := block.get("on"):
            with self.servers[server].connect(autocommit=True) as connection, connection.cursor() as cursor:
                for statement in block.text.split(";\n"):
                    if statement.strip():
                        cursor.execute(statement)
            if self.cluster.captures():
                eventually(self.captured, what="the capture has read it", within_s=300)
        elif block.language == "sh":
            for line in block.lines:
                self.line(line)
        elif name := block.get("file"):
            (self.shell.directory / name).write_text(self.shell.mine(block.text))

    def line(self, line: str) -> None:
        if line.endswith("&"):
            self.shell.begin(line)
            ready = self.captures if "capture" in line else self.pumps
            eventually(ready, what=line, within_s=300)
            return
        if shown := re.search(r"TXN (\d+)", line):
            found = self.shell.said["pumphouse archive find --from '10 minutes ago' --table shop.orders --kind delete"]
            line = line.replace(shown[1], found.stdout.split()[0])
        # `status` says what a new archive does not have yet: a drill, a copy.
        self.shell.run(line, codes=(0, 3) if line == "pumphouse status" else (0,))

    def pumps(self) -> bool:
        return [node.state for node in self.cluster.nodes(NodeKind.PUMP)] == [NodeState.ONLINE] * self.shell.going

    def captures(self) -> bool:
        return bool(self.cluster.captures()) and "capture_started" in (self.shell.directory / "2.log").read_text()

    def captured(self) -> bool:
        """Everything that the source has committed is in the Pumps."""
        with self.servers["source"].connect() as connection:
            wanted = position_now(connection).gtids
        (record,) = self.cluster.captures()
        return GtidSet.parse(record.gtid, wanted.flavor).covers(wanted)


@pytest.mark.row("O3", "Q1")
@pytest.mark.timeout(1200)
@pytest.mark.mariadb("the page's statements are those of a MariaDB, and its capture has no TLS")
def test_the_quick_start_with_a_captured_server_does_what_it_says(tmp_path: Path) -> None:
    (configuration,) = (block.text for block in PAGE if block.get("file") == "source.cnf")
    with server("source", configuration) as source, server("replica", "") as replica:
        told = {
            "/srv/pumphouse": str(tmp_path),
            "8250": str(free_port()),
            "8251": str(free_port()),
            "db1:3306": f"127.0.0.1:{source.port}",
            '"db1"\nport = 3306': f'"127.0.0.1"\nport = {source.port}',
            '"db2"\nport = 3307': f'"127.0.0.1"\nport = {replica.port}',
        }
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PUMPHOUSE_PUMP__STOP_WRITE_AT_AVAILABLE_BYTES": "0"}
        with Shell(tmp_path, environment, told) as shell:
            walk = Walk(shell, {"source": source, "replica": replica})
            for block in PAGE:
                walk.step(block)
        assert "shop.orders: 1 deleted" in shell.said[
            "pumphouse archive find --from '10 minutes ago' --table shop.orders --kind delete"
        ].stdout  # fmt: skip
        with TargetConnection.open(mariadb.settings_of(replica)) as connection:
            assert connection.query("SELECT customer FROM shop.orders ORDER BY id") == [
                ("Ada",),
                ("Grace",),
                ("Edsger",),
            ]
            assert connection.query("SELECT count(*) FROM shop.orders_before") == [(3,)]
