"""Tables at a moment as files that others read: CSV or Parquet, beside a note of each table (docs/formats.md).

A note claims the table's names by a conditional put before the first file, and lists the files when all of them are
there. Nothing is overwritten: who finds an object of those names ends. An export that was killed leaves a note without
files, and is made anew elsewhere, or where its objects are deleted.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump
from pumphouse.archive.layout import short_name
from pumphouse.archive.view import ArchiveView, has_rows, read_view
from pumphouse.codec.reading import text_type, textual
from pumphouse.errors import BinlogError, ObjectExists, UsageError
from pumphouse.history.changes import moment_in
from pumphouse.history.rows import Moment, moment_of, rows_at, table_at
from pumphouse.history.table import row_batch, row_schema
from pumphouse.loader.changes import Form
from pumphouse.loader.losses import Losses, together
from pumphouse.loader.report import Progress, silent
from pumphouse.model.tso import Tso
from pumphouse.objectstore.base import ObjectStore
from pumphouse.restore.find import Sought
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import ArchiveSettings, LoadSettings

KIND = "table export"
FILE_BYTES = 512 << 20


class FileFormat(StrEnum):
    """Of the files; their names end in it."""

    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file: its name, the SHA-256 and the number of its bytes, and its rows."""

    name: str
    digest: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """All rows of one table."""

    name: str
    files: tuple[ExportedFile, ...]

    @property
    def rows(self) -> int:
        """In all files."""
        return sum(each.rows for each in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesReport:
    """What an export of tables did; ``losses``: what the archive lacks of the log that it read."""

    destination: str
    at: Tso
    tables: tuple[ExportedTable, ...]
    losses: Losses = field(default_factory=Losses)

    def to_dict(self) -> dict[str, Any]:
        """JSON object."""
        return {
            "destination": self.destination,
            "at_ts": self.at,
            "tables": [
                {"name": each.name, "rows": each.rows, "files": [asdict(file) for file in each.files]}
                for each in self.tables
            ],
            **asdict(self.losses),
        }


def export_tables(
    archive: Archive,
    store: ObjectStore,
    form: FileFormat,
    *,
    at: Tso | None,
    tables: Sequence[str],
    archive_settings: ArchiveSettings,
    load: LoadSettings,
    file_bytes: int = FILE_BYTES,
    tell: Progress = silent,
) -> TablesReport:
    """Write the rows that tables had at a moment. In memory is a part of a table, on the disk one file and the log.

    Args:
        archive: which one.
        store: the destination.
        form: of the files.
        at: the moment, inclusive; None = the archive's end.
        tables: ``database.table`` or patterns, as they were called then.
        archive_settings: for threads that open the archive themselves.
        load: how rows are cut into parts, and how many threads decode.
        file_bytes: from so many on a file ends.
        tell: told of each segment and part.

    Raises:
        UsageError: the archive does not cover the moment, or the destination has files of such a name.
        UnknownTable: no table was called so then.
        RestoreError, LoadError: the archive does not tell the rows of one of them; nothing was written.
    """
    view = read_view(archive, upto=at)
    end = moment_in(view, at)
    moments = [
        moment_of(view, ".".join(version.name), end, archive=archive_settings, load=load)
        for version in _chosen(view, tables, end)
    ]
    names = [_Names(moment.form.version, form) for moment in moments]
    for each in names:
        each.require_free(store)
    made = []
    for name, moment in zip(names, moments, strict=True):
        origin = {"cluster_id": archive.cluster_id, "archive_id": archive.archive_id, "at_ts": int(end)}
        made.append(_export(store, name, origin, moment, load.connections, file_bytes, tell))
    losses = reduce(together, (moment.losses for moment in moments), Losses())
    return TablesReport(destination=store.url, at=end, tables=tuple(made), losses=losses)


def _chosen(view: ArchiveView, tables: Sequence[str], at: Tso) -> list[TableVersion]:
    """Tables with rows that a pattern means; each pattern means one."""
    there = [version for version in view.timeline.tables_at(at) if has_rows(version)]
    found = dict[int, TableVersion]()
    for pattern in tables:
        sought = Sought(after=at, upto=at, tables=(pattern,))
        some = [version for version in there if sought.names(*version.name)] or [table_at(view, pattern, at)]
        found |= {version.table.id: version for version in some}
    return list(found.values())


class _Names:
    """Names of one table's objects at a destination: ``shop.orders.json``, ``shop.orders.000000000.csv``."""

    def __init__(self, version: TableVersion, form: FileFormat) -> None:
        self.version, self.form = version, form
        self.table = ".".join(version.name)
        self._prefix = ".".join(map(short_name, version.name))
        self.note = f"{self._prefix}.json"

    def file(self, number: int) -> str:
        """As Dumpling has them, so that TiDB Lightning takes them."""
        return f"{self._prefix}.{number:09d}.{self.form}"

    def require_free(self, store: ObjectStore) -> None:
        """UsageError where there is something of the table."""
        there = next((each.key for each in store.list(f"{self._prefix}.")), None)
        if there is not None:
            raise self.taken(store, there)

    def taken(self, store: ObjectStore, there: str) -> UsageError:
        """What is said of a destination that has something of the table."""
        return UsageError(
            f"{store.url} has {there} already: {self.table} was exported there, or an export was killed, or is under "
            "way",
            hint=f"export into another directory; or see that none runs, and delete what begins with {self._prefix}.",
        )


def _export(
    store: ObjectStore,
    names: _Names,
    origin: dict[str, Any],
    moment: Moment,
    connections: int,
    file_bytes: int,
    tell: Progress,
) -> ExportedTable:
    version = names.version
    said = {
        **origin, "db": version.db, "table": version.table.name, "table_id": version.table.id,
        "format": str(names.form),
    }  # fmt: skip
    try:
        store.put_if_absent(names.note, dump(KIND, {**said, "files": None}))
    except ObjectExists as error:
        raise names.taken(store, names.note) from error
    files = list[ExportedFile]()
    try:
        with closing(rows_at(moment, connections=connections, tell=tell)) as rows:
            for each in _written(store, names, moment.form, rows, file_bytes):
                files.append(each)
        store.put(names.note, dump(KIND, {**said, "files": [asdict(each) for each in files]}))
    except BinlogError:
        store.delete(names.note)  # first: it may name the files already
        for number in range(len(files) + 1):
            store.delete(names.file(number))
        raise
    return ExportedTable(name=names.table, files=tuple(files))


def _written(
    store: ObjectStore, names: _Names, form: Form, batches: Iterator[pa.RecordBatch], file_bytes: int
) -> Iterator[ExportedFile]:
    """Files of a table, each told when it is there; one at least."""
    with tempfile.TemporaryDirectory(prefix="pumphouse-export-") as folder:
        path, number, ended = Path(folder, "rows"), 0, False
        while not ended:
            ended, rows = True, 0
            with path.open("wb") as file, closing(_WRITERS[names.form](file, form)) as writer:
                for batch in batches:
                    writer.write(batch)
                    rows += batch.num_rows
                    if file.tell() >= file_bytes:
                        ended = False
                        break
            if ended and number and not rows:
                return
            with path.open("rb") as whole:
                digest = hashlib.file_digest(whole, "sha256").hexdigest()
            made = ExportedFile(name=names.file(number), digest=digest, size=path.stat().st_size, rows=rows)
            store.put_file(made.name, path)
            yield made
            number += 1


class _Parquet:
    """Columns as the Spark source of history has them, and what their types cannot hold in ``_exact``."""

    def __init__(self, file: IO[bytes], form: Form) -> None:
        self._form, self._schema = form, row_schema(form)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd", compression_level=1)

    def write(self, rows: pa.RecordBatch) -> None:
        """A row group."""
        self._writer.write_batch(row_batch(self._form, rows, self._schema))

    def close(self) -> None:
        """End the file."""
        self._writer.close()


class _Csv:
    """Text as ``archive changes --json`` has it, in quotes; NULL is nothing without quotes."""

    def __init__(self, file: IO[bytes], form: Form) -> None:
        self._columns = form.columns()
        self._schema = pa.schema([(each.name, text_type(each)) for each in self._columns])
        self._writer = pc.CSVWriter(file, self._schema)

    def write(self, rows: pa.RecordBatch) -> None:
        """Lines."""
        values = [textual(rows.column(each.name), each) for each in self._columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(values, schema=self._schema))

    def close(self) -> None:
        """End the file."""
        self._writer.close()


_WRITERS: dict[FileFormat, type[_Csv | _Parquet]] = {FileFormat.CSV: _Csv, FileFormat.PARQUET: _Parquet}
