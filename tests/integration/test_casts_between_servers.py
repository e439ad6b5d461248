"""MODIFY COLUMN on a real MySQL and a real MariaDB, side by side: where a capture may go from one to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pymysql
import pytest

from pumphouse.mysql import LOOSE_MODE, SQL_MODE
from pumphouse.schema.column_sql import type_sql
from pumphouse.schema.conversion import Cast, Family, family, unlike
from pumphouse.schema.dialect import Dialect
from tests.integration.test_conversions import FIELDS, RECORD
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.kind import is_mysql
from tests.support.mysql import MySqlServer

pytestmark = [
    pytest.mark.row("Q3", "S2"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_mysql(), reason="it needs a MySQL beside the MariaDB: make test-mysql"),
]
_ROUNDING = {Dialect.MARIADB: ",TIME_ROUND_FRACTIONAL", Dialect.MYSQL: ""}


class Server:
    """One of the two, and what it makes of values."""

    def __init__(self, dialect: Dialect, cursor: Any) -> None:
        self.dialect, self._cursor = dialect, cursor

    def cast(self, old: str, new: str, values: list[str], *, strict: bool) -> list[Any]:
        """The values behind the change, each alone where one is refused; `Refused` in the place of those."""
        try:
            return self._all(old, new, values, strict=strict)
        except pymysql.MySQLError:
            return (
                [Refused]
                if len(values) == 1
                else [v for one in values for v in self.cast(old, new, [one], strict=strict)]
            )

    def _all(self, old: str, new: str, values: list[str], *, strict: bool) -> list[Any]:
        rounding = _ROUNDING[self.dialect]
        shown = "HEX(v)" if family(FIELDS[new]) in {Family.BIT, Family.BYTES, Family.BINARY} else "v"
        for sql in (
            f"SET sql_mode = 'ALLOW_INVALID_DATES{rounding}'",
            "DROP TEMPORARY TABLE IF EXISTS t",
            f"CREATE TEMPORARY TABLE t (id INT, v {type_sql(FIELDS[old], self.dialect)} NULL)",
            *(f"INSERT INTO t VALUES ({number}, {value})" for number, value in enumerate(values)),
            f"SET sql_mode = '{SQL_MODE if strict else LOOSE_MODE}{rounding}'",
            f"ALTER TABLE t MODIFY v {type_sql(FIELDS[new], self.dialect)} NULL",
            f"SELECT {shown} FROM t ORDER BY id",
        ):
            self._cursor.execute(sql)
        return [value for (value,) in self._cursor.fetchall()]


class Refused:
    """A value that a server does not cast."""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with mariadb.directory_in_memory() as directory, ExitStack() as running:
        made = []
        for dialect, kind in ((Dialect.MARIADB, MariaDbServer), (Dialect.MYSQL, MySqlServer)):
            server = running.enter_context(kind(directory / dialect, name=dialect.value))
            cursor = running.enter_context(server.connect(autocommit=True)).cursor()
            cursor.execute("CREATE DATABASE d")
            cursor.execute("USE d")
            made.append(Server(dialect, cursor))
        yield made


@pytest.mark.mysql
@pytest.mark.parametrize("mode", ["strict", "loose"])
@pytest.mark.parametrize("old", RECORD["strict"])
def test_what_one_casts_and_the_other_otherwise_is_not_taken_for_known(
    servers: list[Server], mode: str, old: str
) -> None:
    """Values of rows that the condition names are left out; what one refuses stops a load, and is no difference."""
    strict, values = mode == "strict", RECORD["values"][old]
    differing = []
    for new in RECORD[mode][old]:
        wheres = [
            unlike(FIELDS[old], FIELDS[new], Cast(one.dialect, rounds=True, strict=strict), other.dialect)
            for one, other in (servers, servers[::-1])
        ]
        if all(where == "" for where in wheres):
            continue
        made = [server.cast(old, new, values, strict=strict) for server in servers]
        for value, *both in zip(values, *made, strict=True):
            if Refused not in both and both[0] != both[1] and not any(wheres):
                differing.append(f"{value} as {new}: {both}")
    assert differing == []
