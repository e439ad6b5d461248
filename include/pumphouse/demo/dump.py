"""The source read whole at one moment: genesis takes its first dump from here (`pumphouse.archive.init.DumpSource`)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pymysql.cursors import SSCursor

from pumphouse.codec.row import encode_insert
from pumphouse.demo.catalog import Catalog
from pumphouse.demo.gate import Gate
from pumphouse.demo.rows import SourceTable, connect
from pumphouse.model.table import TableInfo
from pumphouse.mysql.dsn import Dsn

_BATCH = 500


class SourceDump:
    """One dump. The snapshot is opened inside the barrier; DDL waits until `close`."""

    def __init__(self, directory: Path, source: Dsn) -> None:
        self._path = directory / "catalog.json"
        self._gate = Gate(directory)
        self._connection = connect(source)
        self._ddl = os.open(directory / "ddl", os.O_RDWR | os.O_CREAT, 0o600)
        self._databases: dict[int, str] = {}

    @contextmanager
    def barrier(self) -> Iterator[None]:
        """No transaction is under way inside it, so none holds a commit ts that is not committed yet."""
        fcntl.flock(self._ddl, fcntl.LOCK_SH)
        with self._gate.exclusive():
            with self._connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            yield

    def tables(self) -> Iterable[tuple[str, TableInfo]]:
        """Every table with its database."""
        found = Catalog.load(self._path).all_tables()
        self._databases = {info.id: db for db, info in found}
        return found

    def batches(self, table: TableInfo) -> Iterator[list[bytes]]:
        """Rows as inserted-row images."""
        source = SourceTable.of(self._databases[table.id], table)
        with closing(self._connection.cursor(SSCursor)) as cursor:
            cursor.execute(source.select(""))
            while batch := cursor.fetchmany(_BATCH):
                rows = map(source.decode, batch)
                yield [encode_insert(table, row, handle=source.handle(row)) for row in rows]

    def close(self) -> None:
        """Let DDL go on; may be called twice."""
        if self._ddl >= 0:
            self._connection.close()
            self._gate.close()
            os.close(self._ddl)
            self._ddl = -1
