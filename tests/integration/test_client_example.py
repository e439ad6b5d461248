"""The example of docs/client.md, run as it stands there: only paths, ports and the moment are this machine's."""

from __future__ import annotations

import importlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.resolver import PENDING, ROLLED_BACK, ResolverServer
from pumphouse.loader.target import TargetConnection
from pumphouse.model.node import NodeKind
from pumphouse.registry.file import FileCluster
from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.pumpserver import PumpServer, eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text()
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TargetSettings]:
    """The history's server and the target in one."""
    with mariadb.running(tmp_path / "db") as settings:
        yield settings


@pytest.mark.row("O3", "W7")
@pytest.mark.timeout(120)
def test_the_example_for_applications_brings_its_rows_to_the_target(
    server: TargetSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = server.password.get_secret_value()
    cluster = FileCluster(tmp_path / "cluster")
    (tmp_path / "pumphouse.toml").write_text(
        f'[cluster]\nurl = "file://{tmp_path}/cluster"\n[archive]\nroot = "file://{tmp_path}/archive"\n'
        f'[schema]\nhistory = "mysql://root@127.0.0.1:{server.port}/history.jobs"\nhistory_password = "{password}"\n'
        f'[target]\nhost = "127.0.0.1"\nport = {server.port}\nuser = "root"\npassword = "{password}"\n'
        '[load]\nengine = "local"\n'
    )
    for name in ("shop_schema.py", "shop.py", "shop_ddl.py"):
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.chdir(tmp_path)
    told = {"HOST": "127.0.0.1", "PORT": str(server.port), "USER": "root", "PASSWORD": password}
    for name, value in told.items():
        monkeypatch.setenv(f"HISTORY_{name}", value)

    def run(line: str) -> str:
        words = line.split(" #")[0].replace("/srv/pumphouse", str(tmp_path)).split()
        if words[0] == "pumphouse":
            answer = CliRunner().invoke(cli, words[1:])
            assert answer.exit_code == 0, f"{line}: {answer.output} {answer.exception}"
            return answer.output
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
        return done.stdout

    schema, init, load_once, program, snapshot, load = FILES["commands"].splitlines()
    with TargetConnection.open(server) as target, PumpServer(tmp_path, cluster):
        for statement in FILES["history.sql"].strip().split("\n"):
            target.execute(statement.rstrip(";"))
        target.execute("CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        target.execute("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, note VARCHAR(64))")
        run(schema)
        began = json.loads(run(f"{init.split(' #')[0]} --json"))["ts"]
        run(load_once.replace("2026-11-21T02:00:00Z", str(began)))
        assert run(program) == "rolled back: UNIQUE constraint failed: orders.id\n"
        lose_a_commit(cluster, tmp_path, monkeypatch)
        run("python shop_ddl.py file:///srv/pumphouse/cluster")
        run(snapshot)
        run(load)
        loaded = target.query("SELECT id, note, city FROM shop.orders ORDER BY id")
    with closing(sqlite3.connect("shop.db")) as shop:
        orders = shop.execute("SELECT id, note, city FROM orders ORDER BY id").fetchall()
    assert [row[0] for row in orders] == [1, 2, *range(10, 110), 200]
    assert [tuple(row) for row in loaded] == orders


def lose_a_commit(cluster: FileCluster, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction commits and its C never comes; another one is decided by the resolver and then cannot commit."""
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setitem(sys.modules, "shop", None)  # so that both are taken out again at the end
    monkeypatch.setitem(sys.modules, "shop_schema", None)
    del sys.modules["shop"], sys.modules["shop_schema"]
    shop = importlib.import_module("shop")
    with (
        ResolverServer(cluster, "shop", [shop.PREFIX], shop.answer),
        PumpClient(cluster) as client,
        closing(shop.connect()) as connection,
    ):
        start_ts, order = cluster.tso(), [(200, "lost")]
        client.write_prewrite(shop.binlog_of(start_ts, order).prewrite(), start_ts)
        assert shop.answer(start_ts, b"shop/1", False) == PENDING
        store = shop.Orders(connection, start_ts, order)
        store.prewrite()
        store.commit(cluster.tso())
        client.forget(start_ts)

        decided = cluster.tso()
        assert shop.answer(decided, b"shop/2", True) == ROLLED_BACK
        late = shop.Orders(connection, decided, [(201, "late")])
        late.prewrite()
        with pytest.raises(sqlite3.IntegrityError):
            late.commit(cluster.tso())
        late.rollback()
        eventually(
            lambda: all(node.max_commit_ts > decided for node in cluster.nodes(NodeKind.PUMP)),
            what="the Pump has asked for the outcome",
        )
