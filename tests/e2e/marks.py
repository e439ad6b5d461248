"""A mark: a timestamp taken while no transaction is under way, and a copy of every table as it was at it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

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


def take_mark(source: Dsn, cluster: Cluster, *, name: str = "mark") -> Mark:
    """Close the shop's gate for the moment, take a TSO, copy everything."""
    copy = f"{name}_shop"
    with (
        closing(source.connect()) as gate,
        closing(source.connect(autocommit=True)) as connection,
        gate.cursor() as gated,
        connection.cursor() as cursor,
    ):
        gated.execute("SELECT version FROM history.gate FOR UPDATE")
        ts = cluster.tso()
        cursor.execute(f"CREATE DATABASE {quote(copy)}")
        cursor.execute("SHOW FULL TABLES FROM shop WHERE Table_type = 'BASE TABLE'")
        tables = [table for table, _ in cursor.fetchall()]
        rows = 0
        for table in tables:
            cursor.execute(f"CREATE TABLE {qualified(copy, table)} LIKE {qualified('shop', table)}")
            rows += cursor.execute(f"INSERT INTO {qualified(copy, table)} SELECT * FROM {qualified('shop', table)}")
    return Mark(ts=ts, schemas={copy: "shop"}, tables=len(tables), rows=rows)
