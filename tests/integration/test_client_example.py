"""The example of docs/client.md, run as it stands there: only paths, ports and the moment are this machine's."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
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
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text()
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def servers() -> Iterator[tuple[TargetSettings, TargetSettings]]:
    """The shop's server, with its history, and the target."""
    with mariadb.in_memory() as shop, mariadb.in_memory() as target:
        yield shop, target


@pytest.mark.row("O3", "W7", "S1")
@pytest.mark.timeout(180)
def test_the_example_for_applications_brings_its_rows_to_the_target(
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
    (tmp_path / "shop.py").write_text(FILES["shop.py"])
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOST": "127.0.0.1", "PORT": str(shop.port), "PASSWORD": password}.items():
        monkeypatch.setenv(f"SHOP_{name}", value)
    monkeypatch.setenv("PUMPHOUSE_SOURCE__PASSWORD", password)

    def run(line: str) -> str:
        words = shlex.split(line.split(" #")[0].replace("/srv/pumphouse", str(tmp_path)))
        if words[0] == "pumphouse":
            answer = CliRunner().invoke(cli, words[1:])
            assert answer.exit_code == 0, f"{line}: {answer.output} {answer.exception}"
            return answer.output
        if words[0] == "mariadb":
            source.execute(words[2])
            return ""
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}: {done.stderr[-2000:]}"
        return done.stdout

    schema, init, program, dump, snapshot, load = FILES["commands"].splitlines()
    ddl, imported = FILES["ddl"].splitlines()
    with TargetConnection.open(shop) as source, PumpServer(tmp_path, cluster):
        for statement in FILES["shop.sql"].strip().split("\n"):
            source.execute(statement.rstrip(";"))
        assert "2 DDL jobs written (without binlogs" in run(schema)
        run(init)
        assert run(program) == "rolled back: Duplicate entry '1' for key 'PRIMARY'\n"
        lose_a_commit(cluster, tmp_path, monkeypatch)
        run(dump)
        run(snapshot)
        run(load)
        run(ddl)
        assert "1 DDL jobs written (with binlogs)" in run(imported)
        assert "nothing changed: no DDL job" in run(imported)
        assert cluster.resolvers() == [] or {each.resolver_id for each in cluster.resolvers()} == {"shop"}
        write_with_the_new_column(cluster, monkeypatch)
        run(snapshot)
        run(load)
        orders = source.query("SELECT id, note, state, city FROM shop.orders ORDER BY id")
        shown = source.query("SHOW CREATE TABLE shop.orders")
    with TargetConnection.open(target) as held:
        loaded = held.query("SELECT id, note, state, city FROM shop.orders ORDER BY id")
        assert held.query("SHOW CREATE TABLE shop.orders") == shown
        assert held.query("SHOW DATABASES LIKE 'history'") == []
    assert [row[0] for row in orders] == [1, 2, *range(10, 110), 200, 300]
    assert orders[-1][3] == "Ulm"
    assert loaded == orders


def shop_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program as a module, with the tables as they are now."""
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setitem(sys.modules, "shop", None)  # so that it is taken out again at the end
    del sys.modules["shop"]
    return importlib.import_module("shop")


def write_with_the_new_column(cluster: FileCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = shop_again(Path.cwd(), monkeypatch)
    row = {**shop.order(300, "cake"), "city": "Ulm"}
    with (
        ResolverServer(cluster, "shop", [shop.PREFIX], shop.answer),
        PumpClient(cluster) as client,
        closing(shop.connect()) as connection,
    ):
        start_ts = cluster.tso()
        client.write_prewrite(shop.binlog_of(start_ts, [row]).prewrite(), start_ts)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop.orders VALUES (%(id)s, %(note)s, %(state)s, %(city)s)", row)
        commit_ts = cluster.tso()
        shop.Orders(connection, start_ts, []).commit(commit_ts)
        client.write_commit(shop.binlog_of(start_ts, [row]).commit(commit_ts), start_ts)


def lose_a_commit(cluster: FileCluster, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction commits and its C never comes; another one is decided by the resolver and then cannot commit."""
    shop = shop_again(directory, monkeypatch)
    with (
        ResolverServer(cluster, "shop", [shop.PREFIX], shop.answer),
        PumpClient(cluster) as client,
        closing(shop.connect()) as connection,
    ):
        start_ts, order = cluster.tso(), [shop.order(200, "lost")]
        client.write_prewrite(shop.binlog_of(start_ts, order).prewrite(), start_ts)
        assert shop.answer(start_ts, b"shop/1", False) == PENDING
        store = shop.Orders(connection, start_ts, order)
        store.prewrite()
        store.commit(cluster.tso())
        client.forget(start_ts)

        decided = cluster.tso()
        assert shop.answer(decided, b"shop/2", True) == ROLLED_BACK
        late = shop.Orders(connection, decided, [shop.order(201, "late")])
        late.prewrite()
        with pytest.raises(pymysql.IntegrityError):
            late.commit(cluster.tso())
        late.rollback()
        eventually(
            lambda: all(node.max_commit_ts > decided for node in cluster.nodes(NodeKind.PUMP)),
            what="the Pump has asked for the outcome",
        )
