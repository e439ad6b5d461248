"""What `pumphouse.schema.expressions` takes, a MariaDB computes as a real TiDB does, of edge values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymysql.connections import Connection
from pymysql.err import MySQLError

from pumphouse.mysql.dsn import Dsn
from tests.stack.mariadb import MariaDbServer
from tests.support.expressions import COLUMNS, TAKEN
from tests.support.tidb import MISSING, UnistoreServer

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")
MODE = "STRICT_TRANS_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO"


def run(connection: Connection[Any], sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return list(cursor.fetchall())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection[Any], Connection[Any]]]:
    with (
        UnistoreServer(tmp_path_factory.mktemp("tidb")) as tidb,
        MariaDbServer(Path(tmp_path_factory.mktemp("mariadb"))) as mariadb,
    ):
        found = Dsn(port=tidb.port).connect(autocommit=True), mariadb.connect(autocommit=True, charset="utf8mb4")
        for connection in found:
            run(connection, f"SET sql_mode = '{MODE}', time_zone = '+00:00'")
            run(connection, "CREATE DATABASE g CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
            run(connection, "USE g")
        yield found
        for connection in found:
            connection.close()


def rows() -> Iterator[list[str]]:
    """Literals of each column; all of each are there."""
    most = max(len(values) for _, values in COLUMNS.values())
    for number in range(most * 3):
        yield [
            values[(number * (at + 1) + number // most) % len(values)]
            for at, (_, values) in enumerate(COLUMNS.values())
        ]


@pytest.mark.row("S2")
def test_the_values_are_tidbs(servers: tuple[Connection[Any], Connection[Any]]) -> None:
    tidb, mariadb = servers
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in COLUMNS.items())
    others = {}
    for number, (kind, expression) in enumerate(TAKEN):
        table = f"t{number}"
        run(tidb, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns}, g {kind} AS ({expression}))")
        printed = run(
            tidb,
            "SELECT generation_expression FROM information_schema.columns WHERE table_schema = 'g' AND table_name = %s"
            " AND column_name = 'g'",
            table,
        )[0][0]
        run(mariadb, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns}, g {kind} AS ({printed}))")
        names = [name for name in COLUMNS if name != "j"]
        for at, literals in enumerate(rows()):
            given = dict(zip(COLUMNS, literals, strict=True))
            try:
                run(tidb, f"INSERT INTO {table} (id, {', '.join(COLUMNS)}) VALUES ({at}, {', '.join(literals)})")
            except MySQLError:
                continue  # TiDB has no such row
            ((json,),) = run(tidb, f"SELECT j FROM {table} WHERE id = {at}")  # as a binlog has it
            plain = ", ".join(given[name].replace("%", "%%") for name in names)
            run(mariadb, f"INSERT INTO {table} (id, {', '.join(names)}, j) VALUES ({at}, {plain}, %s)", json)
        assert run(tidb, f"SELECT COUNT(*) FROM {table}")[0][0] > len(COLUMNS)
        shown = f"SELECT id, CAST(g AS CHAR) FROM {table} ORDER BY id"
        if (theirs := run(tidb, shown)) != (ours := run(mariadb, shown)):
            others[expression] = next((a, b) for a, b in zip(theirs, ours, strict=True) if a != b)
    assert others == {}
