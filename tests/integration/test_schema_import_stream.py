"""An imported schema in a running cluster: rows of every type, and DDL whose import was killed, reach a target."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse.cli import cli
from pumphouse.client import (
    PrewriteValueBuilder,
    PumpClient,
    ResolverServer,
    TransactionBinlog,
    encode_insert,
    tables,
)
from pumphouse.client.resolver import PENDING
from pumphouse.diff.compare import compare
from pumphouse.model.node import NodeKind
from pumphouse.registry.file import FileCluster
from pumphouse.schema_import.write import RESOLVER_ID
from tests.integration.test_schema_import import shown
from tests.stack.mariadb import MariaDbServer
from tests.support import everytype, mariadb
from tests.support.pumpserver import PumpServer
from tests.support.waiting import eventually

# Ends the process where a kill hurts: with the P on a Pump and no job, and with the job and no C.
KILLED = """
import os, sys
from pumphouse.schema_import.write import HistoryTable
add, when = HistoryTable.add, sys.argv[1]
def killed(self, raw):
    if when == "after":
        add(self, raw)
    os._exit(9)
HistoryTable.add = killed
sys.argv = ["pumphouse", "schema", "import"]
from pumphouse.cli import main
main()
"""


class _Server:
    """A server that takes statements."""

    def __init__(self, server: MariaDbServer) -> None:
        self._connection = server.connect(autocommit=True)

    def sql(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())


@pytest.mark.row("W7", "S1", "A3", "O8")
@pytest.mark.timeout(300)
def test_rows_of_every_type_and_ddl_of_killed_imports_reach_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FileCluster(tmp_path / "cluster")
    with (
        mariadb.directory_in_memory() as directory,
        mariadb.server_in(directory / "source") as source,
        mariadb.server_in(directory / "target") as target,
    ):
        (tmp_path / "pumphouse.toml").write_text(config_of(tmp_path, source=source, target=target))
        monkeypatch.chdir(tmp_path)
        server = _Server(source)
        server.sql(*everytype.TABLES)
        with PumpServer(tmp_path, cluster), ResolverServer(cluster, "app", [b"app/"], lambda *_: PENDING):
            run("schema", "import")
            run("archive", "init", "--dump")
            write_rows(cluster, source, seed=1)
            for at, ddl in (
                ("before", "ADD COLUMN city VARCHAR(20) DEFAULT 'Ulm' AFTER branch"),
                ("after", "ADD KEY (at)"),
            ):
                server.sql(f"ALTER TABLE every.composite {ddl}")
                killed = subprocess.run([sys.executable, "-c", KILLED, at], check=False, capture_output=True, text=True)
                assert killed.returncode == 9, killed.stderr
                eventually(
                    lambda: any(each.resolver_id == RESOLVER_ID for each in cluster.resolvers()), what="left behind"
                )
                answer = run("schema", "import")
                assert ("1 DDL jobs written" if at == "before" else "nothing changed") in answer
                assert all(each.resolver_id != RESOLVER_ID for each in cluster.resolvers())
                now = cluster.tso()
                eventually(
                    lambda now=now: all(node.max_commit_ts > now for node in cluster.nodes(NodeKind.PUMP)),  # type: ignore[misc]
                    what="nothing holds the Pump",
                )
            write_rows(cluster, source, seed=2)
            run("snapshot")
            run("load")
        report = compare(source.dsn, target.dsn, ignore={"history", "pumphouse"})
        assert report.differences == []
        assert shown(server.query) == shown(_Server(target).query)


@pytest.mark.row("W7", "A5", "R1", "L7")
@pytest.mark.timeout(300)
def test_a_new_table_that_has_rows_already_stops_what_would_lose_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that a script made and filled: its rows have no binlogs, and a target would stay empty without a word."""
    cluster = FileCluster(tmp_path / "cluster")
    with (
        mariadb.directory_in_memory() as directory,
        mariadb.server_in(directory / "source") as source,
        mariadb.server_in(directory / "target") as target,
        mariadb.server_in(directory / "restored") as restored,
    ):
        config = config_of(tmp_path, source=source, target=target, restore_target=restored)
        (tmp_path / "pumphouse.toml").write_text(config)
        monkeypatch.chdir(tmp_path)
        server = _Server(source)
        server.sql(
            "CREATE DATABASE shop", "CREATE TABLE shop.old (id INT PRIMARY KEY)", "INSERT INTO shop.old VALUES (1)"
        )
        with PumpServer(tmp_path, cluster):
            assert "has rows already" not in run("schema", "import")  # a dump of the archive's beginning has them
            run("archive", "init", "--dump")
            run("snapshot")
            run("load")
            server.sql("CREATE TABLE shop.empty (id INT PRIMARY KEY)", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
            server.sql("INSERT INTO shop.t VALUES (1), (2)")
            said = run("schema", "import")
            assert "shop.t has rows already, which no binlog has" in said
            assert "shop.empty has" not in said
            run("snapshot")
            for words in (("load",), ("restore", "--to", "latest", "--dry-run")):
                stopped = failing(*words)
                assert "shop.t had rows when the history saw it first" in stopped
                assert 'table = "shop.t"' in stopped
            # The way out is there before what would fail again.
            asked = failing("status", code=4)
            assert asked.index("\n  next: pumphouse archive dump\n") < asked.index("\n  next: pumphouse load\n")
            assert "take the rule away, and `pumphouse load --resync shop.t`" in asked
            run("archive", "dump")
            place = f"127.0.0.1:{restored.port}"
            run("restore", "--to", "latest", "--replace", place)
            assert _Server(restored).query("SELECT id FROM shop.t ORDER BY id") == [(1,), (2,)]
            # A target that is loaded goes on without it, and gets it from the dump.
            assert "shop.t had rows" in failing("load")
            (tmp_path / "pumphouse.toml").write_text(
                config + '[[load.rules]]\ndo = "park"\ntable = "shop.t"\nwhy = "its rows"\n'
            )
            assert "shop.t" in failing("load", code=3)
            (tmp_path / "pumphouse.toml").write_text(config)
            run("load", "--resync", "shop.t")
            assert _Server(target).query("SELECT id FROM shop.t ORDER BY id") == [(1,), (2,)]
            run("load")


def config_of(directory: Path, **servers: MariaDbServer) -> str:
    """Settings for these servers, by section; the history is on the source."""
    source = servers["source"]
    text = (
        f'[cluster]\nurl = "file://{directory}/cluster"\n[archive]\nroot = "file://{directory}/archive"\n'
        f'[schema]\nhistory = "mysql://root@127.0.0.1:{source.port}/history.jobs"\n'
        f'history_password = "{source.password}"\n[load]\nengine = "local"\n'
    )
    for section, each in servers.items():
        text += f'[{section}]\nhost = "127.0.0.1"\nport = {each.port}\nuser = "root"\npassword = "{each.password}"\n'
    return text


def failing(*words: str, code: int = 1) -> str:
    """What a command says that ends with this code."""
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output
    return f"{done.output} {done.exception} {getattr(done.exception, 'hint', '')}"


def run(*words: str) -> str:
    answer = CliRunner().invoke(cli, words)
    assert answer.exit_code == 0, f"{words}: {answer.output} {answer.exception}"
    return answer.output


def write_rows(cluster: FileCluster, source: MariaDbServer, *, seed: int) -> None:
    """Some rows into each table, with binlogs of the tables that the history has."""
    found = tables(f"mysql://root@127.0.0.1:{source.port}/history.jobs", source.password)
    with PumpClient(cluster) as client, closing(source.connect(init_command="SET time_zone = '+00:00'")) as connection:
        for (db, name), info in sorted(found.items()):
            rows = [everytype.row(info, seed * 1000 + number) for number in range(40)]
            start_ts = cluster.tso()
            value = PrewriteValueBuilder(found.schema_version)
            for handle, row in enumerate(rows, seed * 1000):
                hidden = not (info.pk_is_handle or info.is_common_handle)
                value.insert(info.id, encode_insert(info, row, handle=handle if hidden else None))
            key = b"app/" + str(start_ts).encode()
            binlog = TransactionBinlog(start_ts=start_ts, key=key, prewrite_value=value.build())
            client.write_prewrite(binlog.prewrite(), start_ts)
            names = ", ".join(f"`{column.name}`" for column in info.columns if column.id in rows[0])
            with connection.cursor() as cursor:
                marks = ", ".join(["%s"] * len(rows[0]))
                sql = f"INSERT INTO `{db}`.`{name}` ({names}) VALUES ({marks})"
                cursor.executemany(sql, [tuple(row.values()) for row in rows])
            connection.commit()
            client.write_commit(binlog.commit(cluster.tso()), start_ts)
