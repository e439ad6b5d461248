"""The example of docs/client.md, run as it stands there: only paths, ports and the moment are this machine's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pymysql
import pytest
from click.testing import CliRunner

from deploy.shop.seller import customer_of
from deploy.shop.server import connect
from deploy.shop.store import Shop, answer
from pumphouse.cli import cli
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, ROLLED_BACK
from pumphouse.diff.compare import compare
from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind
from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.file import FileCluster
from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def servers() -> Iterator[tuple[TargetSettings, TargetSettings]]:
    """The shop's server, with its history, and the target."""
    with mariadb.in_memory() as shop, mariadb.in_memory() as target:
        yield shop, target


@pytest.mark.row("O3", "W7", "S1")
@pytest.mark.timeout(300)
def test_the_shop_brings_its_rows_to_the_target(
    servers: tuple[TargetSettings, TargetSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, target = servers
    password = shop.password.get_secret_value()
    cluster = FileCluster(tmp_path / "cluster")
    more = (
        FILES["more.toml"]
        .replace(":3306", f":{shop.port}")
        .replace("# and history_password", f'\nhistory_password = "{password}"')
    )
    (tmp_path / "pumphouse.toml").write_text(
        f'[cluster]\nurl = "file://{tmp_path}/cluster"\n[archive]\nroot = "file://{tmp_path}/archive"\n'
        f'[target]\nhost = "127.0.0.1"\nport = {target.port}\nuser = "root"\n'
        f'password = "{target.password.get_secret_value()}"\n[load]\nengine = "local"\n{more}port = {shop.port}\nuser = "root"\n'
    )
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOST": "127.0.0.1", "PORT": str(shop.port), "PASSWORD": password}.items():
        monkeypatch.setenv(f"SHOP_{name}", value)
    monkeypatch.setenv("PUMPHOUSE_SOURCE__PASSWORD", password)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "include")]))

    def run(line: str) -> str:
        words = shlex.split(line.split(" #")[0].replace("/srv/pumphouse", str(tmp_path)))
        if words[0] == "pumphouse":
            said = CliRunner().invoke(cli, words[1:])
            assert said.exit_code == 0, f"{line}: {said.output} {said.exception}"
            return said.output
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
        return done.stdout

    opened, init, sell, dump, snapshot, load = FILES["commands"].splitlines()
    with TargetConnection.open(shop) as source, PumpServer(tmp_path, cluster), answering(cluster, tmp_path):
        assert "7 DDL jobs written (without binlogs" in run(opened)
        assert run(opened) == ""
        run(init)
        assert "added_ms" in run(sell)
        lose_a_commit(cluster)
        run(dump)
        assert run(f"python -m deploy.shop mistake --orders 30 file://{tmp_path}/cluster") == '{"deleted": 30}\n'
        run(snapshot)
        found = run("pumphouse archive find --from '10 minutes ago' --table shop.orders --kind delete --rows 30")
        assert "shop.orders: 30 deleted" in found
        run(load)
        assert "1 DDL jobs written (with binlogs)" in run(FILES["ddl"].strip())
        assert "nothing changed: no DDL job" in run("pumphouse schema import")
        write_with_the_new_column(cluster)
        run(snapshot)
        run(load)
        shown = source.query("SHOW CREATE TABLE shop.orders")
    with TargetConnection.open(target) as held:
        assert held.query("SHOW CREATE TABLE shop.orders") == shown
        assert held.query("SELECT city FROM shop.orders WHERE id = 7000") == [("Ulm",)]
        assert held.query("SHOW DATABASES LIKE 'history'") == []
    sides = [Dsn(port=each.port, password=each.password.get_secret_value()) for each in servers]
    report = compare(*sides, ignore={"history"})
    assert report.differences == []
    assert report.rows > 1500


@contextmanager
def answering(cluster: FileCluster, directory: Path) -> Iterator[None]:
    """The shell of its own in which the shop answers the Pumps."""
    command = [sys.executable, "-m", "deploy.shop", "answer", f"file://{directory}/cluster"]
    with subprocess.Popen(command) as process:
        try:
            eventually(lambda: len(cluster.resolvers()) == 1, what="the shop answers")
            yield
        finally:
            process.terminate()


def write_with_the_new_column(cluster: FileCluster) -> None:
    with PumpClient(cluster) as client, closing(connect()) as connection:
        shop = Shop(client)
        with shop.transaction(connection) as begin:
            transaction = begin()
            row = {"id": 7000, "customer": 1, "state": "new", "placed": "2026-11-27 10:00:00.000", "total": "1.00"}
            transaction.insert("orders", {**row, "note": None, "city": "Ulm"})
            shop.runner.run(transaction.binlog(), transaction)
        shop.runner.close()


def lose_a_commit(cluster: FileCluster) -> None:
    """A transaction commits and its C never comes; another one is decided by the resolver and then cannot commit."""
    with PumpClient(cluster) as client, closing(connect()) as connection:
        shop = Shop(client)
        with shop.transaction(connection) as begin:
            lost = begin()
            lost.insert("customers", customer_of(lost.start_ts))
            client.write_prewrite(lost.binlog().prewrite(), lost.start_ts)
            assert answer(lost.start_ts, b"", False) == PENDING
            lost.prewrite()
            lost.commit(cluster.tso())
            client.forget(lost.start_ts)
        with shop.transaction(connection) as begin:
            late = begin()
            late.insert("customers", customer_of(late.start_ts))
            client.write_prewrite(late.binlog().prewrite(), late.start_ts)
            assert answer(late.start_ts, b"", True) == ROLLED_BACK
            late.prewrite()
            with pytest.raises(pymysql.IntegrityError):
                late.commit(cluster.tso())
            late.rollback()
            client.forget(late.start_ts)
        shop.runner.close()
        eventually(
            lambda: all(node.max_commit_ts > late.start_ts for node in cluster.nodes(NodeKind.PUMP)),
            what="the Pump has asked for the outcomes",
        )
