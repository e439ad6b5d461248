"""What the source holds before the archive begins: bookkeeping, tables with their job history, rows without binlogs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from pumphouse.demo.actions import TAG, TAGS
from pumphouse.demo.catalog import Catalog
from pumphouse.demo.ddl import DdlEngine
from pumphouse.demo.rows import Row, SourceTable, connect
from pumphouse.demo.store import create_bookkeeping
from pumphouse.demo.values import ValueMaker
from pumphouse.demo.world import BEFORE_GENESIS, PRELOADED
from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.base import Cluster

_BATCH = 200


def prepare(directory: Path, source: Dsn, cluster: Cluster, *, seed: int = 1, share: float = 1.0) -> int:
    """Make all of it on an empty source; returns the number of rows. ``share`` scales the number of rows."""
    connection = connect(source)
    try:
        create_bookkeeping(connection)
        engine = DdlEngine(directory=directory, source=source, cluster=cluster, client=None)
        try:
            for step in BEFORE_GENESIS:
                engine.run(step)
        finally:
            engine.close()
        catalog = Catalog.load(directory / "catalog.json")
        values = ValueMaker(random.Random(seed), 0)  # noqa: S311 - no secret
        total = 0
        for (db, name), count in PRELOADED.items():
            table = SourceTable.of(db, catalog.table(db, name))
            # The accounts are addressed by number, so they are all there.
            rows = count if name == "accounts" else max(1, int(count * share))
            _fill(connection, table, values, rows)
            total += rows
        return total
    finally:
        connection.close()


def _fill(connection: Connection[Any], table: SourceTable, values: ValueMaker, count: int) -> None:
    by_name = {column.name: column.id for column in table.columns}
    for start in range(0, count, _BATCH):
        rows: list[Row] = []
        for number in range(start + 1, min(start + _BATCH, count) + 1):
            row = values.row(table.info)
            if table.info.name == "accounts":
                row |= {by_name["id"]: number, by_name["slot"]: number}
            if table.info.name == "ledger":
                row[by_name["branch"]] = values.rng.choice((b"north", b"south", b"west"))
            if TAG in by_name:
                row[by_name[TAG]] = number % TAGS
            rows.append(row)
        with connection.cursor() as cursor:
            cursor.execute(table.insert("INSERT", len(rows)), [cell for row in rows for cell in table.cells(row)])
        connection.commit()
