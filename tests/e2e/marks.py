"""A mark: a timestamp taken while no transaction is under way, and a copy of every table as it was at it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pumphouse.demo.catalog import Catalog
from pumphouse.demo.gate import Gate
from pumphouse.demo.rows import SourceTable, connect
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


def take_mark(directory: Path, source: Dsn, cluster: Cluster, *, name: str = "mark") -> Mark:
    """Stop all writers for the moment, take a TSO, copy everything."""
    gate = Gate(directory)
    connection = connect(source)
    try:
        with gate.exclusive(), connection.cursor() as cursor:
            ts = cluster.tso()
            catalog = Catalog.load(directory / "catalog.json")
            schemas = {f"{name}_{db}": db for db in catalog.dbs}
            for copy in schemas:
                cursor.execute(f"CREATE DATABASE {quote(copy)}")
            rows = 0
            tables = catalog.all_tables()
            for db, info in tables:
                table = SourceTable.of(db, info)
                copy = qualified(f"{name}_{db}", info.name)
                names = ", ".join(quote(column.name) for column in table.stored)
                cursor.execute(f"CREATE TABLE {copy} LIKE {table.name}")
                cursor.execute(f"INSERT INTO {copy} ({names}) SELECT {names} FROM {table.name}")
                rows += cursor.rowcount
            connection.commit()
        return Mark(ts=ts, schemas=schemas, tables=len(tables), rows=rows)
    finally:
        connection.close()
        gate.close()
