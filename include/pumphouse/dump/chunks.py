"""One table's rows, chunk by chunk, into the archive. A chunk counts from the moment that its note is put.

So a run that was killed goes on behind the last note, and of two runs at once the one that puts a note first counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.err import MySQLError

from pumphouse.archive import layout
from pumphouse.archive.base import BaseChunk, write_columns
from pumphouse.archive.publish import put_once
from pumphouse.clock import Throttle
from pumphouse.dump.rows import text_columns
from pumphouse.dump.source import TableChanged, execute, is_tidb, session, who_locks
from pumphouse.dump.table import TableReader
from pumphouse.errors import ManifestConflict, SourceFailed, WindowHeld
from pumphouse.model.tso import Tso
from pumphouse.mysql import ServerConnection, denied
from pumphouse.objectstore.base import ObjectStore
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import DumpSettings, SourceSettings

_FIRST_ROWS = 20_000
_LEAST_ROWS = 100


class Stopped(Exception):
    """Nothing more is to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWriter:
    """Where and how chunks of one dump are read and put.

    Args:
        store: the archive's.
        dump_low: names the dump.
        source: the database.
        settings: sizes.
        throttle: rate.
        tell: called with each chunk once its note is put.
        stop: set when nothing more is to be read.
        keep: around what reads a TiDB as it was at a moment: its GC does not pass that.
    """

    store: ObjectStore
    dump_low: Tso
    source: SourceSettings
    settings: DumpSettings
    throttle: Throttle
    tell: Callable[[BaseChunk], None]
    stop: threading.Event
    keep: Callable[[Tso], AbstractContextManager[None]] = lambda _: nullcontext()

    def read_table(self, version: TableVersion, low: Tso, done: Sequence[BaseChunk], exact: Callable[[], Tso]) -> None:
        """Read a table to its end.

        Args:
            version: the table.
            low: every Pump had passed it before this was called: rows are read later.
            done: chunks of an earlier attempt at the same ``low``.
            exact: for a table without a key: called while nobody can write to it, gives its ``low``.

        Raises:
            TableChanged: the source's table is another one than the history knows.
            SourceFailed: the source does not answer, or refuses the lock of a table without a key.
        """
        reader = TableReader.of(version)
        if reader.key:
            self._read_keyed(reader, low, done)
        else:
            self._read_whole(reader, low, exact)

    def _read_keyed(self, reader: TableReader, low: Tso, done: Sequence[BaseChunk]) -> None:
        """By key, a page a query: no query lasts long, and each begins where the last note ends."""
        number, after, rows = len(done), done[-1].upto if done else None, _FIRST_ROWS
        if after is not None and len(after) != len(reader.key):
            raise TableChanged(f"the key of {reader.name} changed")
        with session(self.source) as connection:
            _require_same(connection, reader)
            while True:
                limit = max(min(rows, self.settings.chunk_rows), 1)
                count, size, waiting = 0, 0, list[pa.RecordBatch]()
                for part in self._parts(connection, reader.select(after, limit)):
                    if waiting:
                        self._put(reader, low, number, waiting, last=False)
                        number += 1
                    waiting = part
                    count += sum(batch.num_rows for batch in part)
                    size += sum(batch.nbytes for batch in part)
                if count < limit:
                    _require_same(connection, reader)
                self._put(reader, low, number, waiting, last=count < limit)
                if count < limit:
                    return
                number, after = number + 1, reader.key_of_last(waiting[-1])
                rows = max(_LEAST_ROWS, limit * self.settings.chunk_bytes // max(size, 1))

    def _read_whole(self, reader: TableReader, low: Tso, exact: Callable[[], Tso]) -> None:
        """From one snapshot: rows without a key cannot be told apart."""
        with ExitStack() as opened:
            connection = opened.enter_context(session(self.source))
            if is_tidb(connection):
                opened.enter_context(self.keep(low))
                execute(connection, f"SET @@tidb_snapshot = '{int(low)}'")
            else:
                low = self._open_snapshot(connection, reader, exact)
            _require_same(connection, reader)
            number, waiting = 0, list[pa.RecordBatch]()
            for part in self._parts(connection, reader.select()):
                if waiting:
                    self._put(reader, low, number, waiting, last=False)
                    number += 1
                waiting = part
            self._put(reader, low, number, waiting, last=True)

    def _open_snapshot(self, connection: Connection[Any], reader: TableReader, exact: Callable[[], Tso]) -> Tso:
        """Open a snapshot while nobody can write to the table; what it is exact at."""
        self._require_snapshots(connection, reader)
        with session(self.source) as holder:
            try:
                execute(holder, f"SET lock_wait_timeout = {max(int(self.settings.lock_wait_s), 1)}")
                # InnoDB's lock, too: a MariaDB has no other one of a prepared XA transaction whose session has ended.
                # Nothing else has it by then, and it may last for hours: writers wait no longer for it than need be.
                execute(holder, "SET autocommit = 0, innodb_table_locks = ON, innodb_lock_wait_timeout = 1")
                execute(holder, f"LOCK TABLES {reader.name} READ")
            except MySQLError as error:
                if error.args and error.args[0] == ER.LOCK_WAIT_TIMEOUT:
                    raise TableChanged(
                        "it has no key, and transactions that write to it left no moment to lock it within "
                        f"dump.lock_wait_s ({self.settings.lock_wait_s:g} s): {who_locks(connection)}"
                    ) from error
                refused = denied(error, self.source, "source")
                if refused is not None:
                    refused.message = f"{reader.name} has no key, and cannot be locked for a moment: {refused.message}"
                    refused.advice = ("grant LOCK TABLES, or give it a primary key",)
                    raise refused from error
                raise SourceFailed(
                    f"{reader.name} has no key, and cannot be locked for a moment: {error}",
                    hint="dump while no long transaction writes to it (dump.lock_wait_s), or give it a primary key",
                    source=reader.name,
                ) from error
            try:
                low = exact()
            except WindowHeld as error:
                raise TableChanged(f"it has no key and was locked, and {error.message}") from error
            try:
                # A DDL that waits for the lock goes before this read, and the lock waits for this read.
                execute(connection, "SET lock_wait_timeout = 1")
                execute(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
                # The snapshot knows the table from its first read on: a DDL between would end it.
                execute(connection, f"SELECT 1 FROM {reader.name} LIMIT 1")  # noqa: S608
            except MySQLError as error:
                if error.args and error.args[0] == ER.LOCK_WAIT_TIMEOUT:
                    raise TableChanged("it has no key and was locked, and a DDL or a lock waits for it") from error
                raise
            finally:
                execute(holder, "UNLOCK TABLES")
        return low

    def _require_snapshots(self, connection: Connection[Any], reader: TableReader) -> None:
        db, name = reader.version.name
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s", (db, name)
            )
            found = cursor.fetchall()
        if not found:
            raise TableChanged(f"{reader.name} is not there")
        if found[0][0] != "InnoDB":
            raise SourceFailed(
                f"{reader.name} has no key and its engine is {found[0][0]}: it cannot be read at one moment",
                hint="give it a primary key, or make it an InnoDB table",
                source=reader.name,
            )

    def _parts(self, connection: ServerConnection, query: str) -> Iterator[list[pa.RecordBatch]]:
        """The query's text batches, as many at a time as a chunk holds."""
        part, size = list[pa.RecordBatch](), 0
        for batch in text_columns(connection, query):
            if self.stop.is_set():
                raise Stopped
            self.throttle.took(batch.nbytes)
            part.append(batch)
            size += batch.nbytes
            if size >= self.settings.chunk_bytes:
                yield part
                part, size = [], 0
        if part:
            yield part

    def _put(self, reader: TableReader, low: Tso, number: int, batches: list[pa.RecordBatch], *, last: bool) -> None:
        """Store rows, then the note that makes them count."""
        version = reader.version
        folder = layout.chunk_folder(self.dump_low, *version.name, version.table.id, low)
        segment = None
        if batches:
            key = f"{folder}{number:08d}-{layout.attempt_id()}.parquet"
            segment = write_columns(self.store, key, version.table, low, [reader.convert(each) for each in batches])
        chunk = BaseChunk(
            db=version.db,
            table=version.table.name,
            table_id=version.table.id,
            low=low,
            number=number,
            upto=None if last or not reader.key else reader.key_of_last(batches[-1]),
            last=last,
            segment=segment,
        )
        note = layout.chunk_note(folder, number)
        data = chunk.to_json()
        try:
            put_once(self.store, note, data, lambda found: found == data)
        except ManifestConflict as error:
            raise TableChanged(f"another run dumps {reader.name} as well") from error
        self.tell(chunk)


def _require_same(connection: Connection[Any], reader: TableReader) -> None:
    """TableChanged when the source's table has a DDL that the history does not know yet."""
    db, name = reader.version.name
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s AND"
            " table_name = %s",
            (db, name),
        )
        why = reader.differs({str(column): str(kind) for column, kind in cursor.fetchall()})
    if why:
        raise TableChanged(why)
