"""docs/start-tidb.md, block by block, as it stands there: only paths, names, ports and passwords are this machine's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.registry.open import open_cluster
from pumphouse.settings import TargetSettings
from tests.stack.ports import free_port
from tests.support import mariadb
from tests.support.shellpage import ROOT, Shell, blocks
from tests.support.tidb import MISSING, TidbCluster
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("O3", "W4"),
    pytest.mark.timeout(1200),
]


class NoPumpsYet(TidbCluster):
    """PD and TiDB's store; the reader starts the Pumps, and only then a tidb-server writes to them."""

    def _start(self) -> None:
        self._start_pd()
        self._start_store()
        self.cluster = open_cluster(self.url)
        self._open.callback(self.cluster.close)

    def pumps_online(self, number: int) -> bool:
        return [node.state for node in self.cluster.nodes(NodeKind.PUMP)] == [NodeState.ONLINE] * number


def replaced(server: TargetSettings, name: str, port: int) -> dict[str, str]:
    """The page's words for a server, and this one's."""
    return {
        f'"{name}"\nport = {port}': f'"{server.host}"\nport = {server.port}',
        f"of-{name}": server.password.get_secret_value(),
    }


def test_the_quick_start_with_a_tidb_does_what_it_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with NoPumpsYet(tmp_path / "tidb") as tidb, mariadb.in_memory() as db2, mariadb.in_memory() as db3:
        told = {
            "/srv/pumphouse": str(home),
            "8250": str(free_port()),
            "8251": str(free_port()),
            "pd://10.0.0.1:2379": tidb.url,
            "http://10.0.0.5:10080": tidb.history,
            '"10.0.0.5"\nport = 4000': f'"127.0.0.1"\nport = {tidb.sql_ports[0]}',
            **replaced(db2, "db2", 3306),
            **replaced(db3, "db3", 3307),
        }
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PUMPHOUSE_PUMP__STOP_WRITE_AT_AVAILABLE_BYTES": "0"}
        with Shell(home, environment, told) as shell:
            for block in blocks((ROOT / "docs" / "start-tidb.md").read_text()):
                if block.runs_elsewhere or block.language == "mermaid":
                    continue
                if name := block.get("file"):
                    (home / name).write_text(shell.mine(block.text))
                elif block.language == "yaml":
                    # What TiUP puts into a tidb-server's file, `start_server` writes.
                    assert block.text == "binlog.enable: true\n"
                    tidb.start_server(0)
                    with tidb.connect() as connection, connection.cursor() as cursor:
                        cursor.execute("CREATE TABLE test.t (id INT PRIMARY KEY)")
                        cursor.execute("INSERT INTO test.t VALUES (1)")
                else:
                    assert block.language == "sh"
                    for line in block.lines:
                        walk(shell, tidb, line)
            assert shell.going == 2
            # TiDB first: it waits for Pumps that are gone.
            tidb.supervisor.stop("tidb-0", timeout_s=3)
        for server in (db2, db3):
            with TargetConnection.open(server) as connection:
                assert connection.query("SELECT id FROM test.t ORDER BY id") == [(1,), (2,)]


def walk(shell: Shell, tidb: NoPumpsYet, line: str) -> None:
    if line.endswith("&"):
        shell.begin(line)
        eventually(lambda: tidb.pumps_online(shell.going), what=line, within_s=300)
        return
    # `status` says what a new archive does not have yet: a drill, a copy.
    shell.run(line, codes=(0, 3) if line == "pumphouse status" else (0,))
    if line == "pumphouse archive dump":
        with tidb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO test.t VALUES (2)")
