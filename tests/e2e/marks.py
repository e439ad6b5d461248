"""A mark: a timestamp taken while no transaction is under way, and a copy of every table as it was at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.err import OperationalError

from pumphouse.model.tso import Tso
from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.base import Cluster
from pumphouse.schema.ident import qualified, quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """``schemas``: name of the copy on the source -> name of the database that it is a copy of."""

    ts: Tso
    schemas: dict[str, str]
    tables: int
    rows: int


def take_mark(source: Dsn, cluster: Cluster, *, name: str = "mark", captured: Callable[[], None] | None = None) -> Mark:
    """Let nobody write for the moment, take a TSO, copy everything.

    ``captured``: waits until all that the source has is in the Pumps; its shop knows no gate, and no DDL may begin.
    """
    copy = f"{name}_shop"
    with (
        closing(source.connect()) as gate,
        closing(source.connect(autocommit=True)) as connection,
        connection.cursor() as cursor,
    ):
        if captured is None:
            gate.query("SELECT version FROM history.gate FOR UPDATE")
        cursor.execute("SHOW FULL TABLES FROM shop WHERE Table_type = 'BASE TABLE'")
        tables = [table for table, _ in cursor.fetchall()]
        if captured is not None:
            _lock(gate, tables)
            captured()
        ts = cluster.tso()
        cursor.execute(f"CREATE DATABASE {quote(copy)}")
        rows = 0
        for table in tables:
            cursor.execute(f"CREATE TABLE {qualified(copy, table)} LIKE {qualified('shop', table)}")
            rows += cursor.execute(f"INSERT INTO {qualified(copy, table)} SELECT * FROM {qualified('shop', table)}")
    return Mark(ts=ts, schemas={copy: "shop"}, tables=len(tables), rows=rows)


def _lock(connection: Connection[Any], tables: Sequence[str]) -> None:
    """Wait until no transaction has changed them, and let none change them."""
    while True:
        try:
            connection.query("LOCK TABLES " + ", ".join(f"{qualified('shop', each)} READ" for each in tables))
        except OperationalError as error:
            if error.args[0] != ER.LOCK_DEADLOCK:
                raise
            time.sleep(0.1)
        else:
            return
