"""Tables at a moment as files that others read: CSV or Parquet, beside a note of each table (docs/formats.md).

A note claims the table's names by a conditional put before the first file, says how its rows are cut, and lists the
files when all of them are there. A note of each file is put so before the file. The same export makes the same bytes:
one that was killed is run again and puts what is missing, and two at once do each other no harm. Nothing else is ever
overwritten.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from pumphouse.archive.archive import Archive
from pumphouse.archive.document import dump, parse
from pumphouse.archive.layout import short_name
from pumphouse.archive.losses import Losses, together
from pumphouse.archive.view import ArchiveView, has_rows, read_view
from pumphouse.codec.reading import text_type, textual
from pumphouse.errors import ManifestConflict, ObjectExists, ObjectNotFound, StoreError, UsageError
from pumphouse.history.changes import moment_in
from pumphouse.history.rows import Cut, Moment, moment_of, rows_at, table_at
from pumphouse.history.table import row_batch, row_schema
from pumphouse.loader.changes import Form
from pumphouse.loader.plan import MAX_BUCKETS
from pumphouse.loader.report import Progress, silent
from pumphouse.model import strict
from pumphouse.model.tso import Tso, show
from pumphouse.objectstore.base import ObjectStore
from pumphouse.restore.find import Sought
from pumphouse.schema.versions import TableVersion
from pumphouse.settings import ArchiveSettings, LoadSettings

KIND, FILE_KIND = "table export", "table file"
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
    """All rows of one table.

    Args:
        cluster_id: of the archive.
        archive_id: of the archive.
        at_ts: the moment, inclusive.
        db: of the table.
        table: its name then.
        table_id: its id.
        format: of the files.
        file_bytes: from so many on a file ends.
        cut: of the rows.
        files: all of them; None = they are not all there.
        losses: what the archive lacks of the log that was read for them, a line each (`Losses.lines`).
    """

    cluster_id: int
    archive_id: str
    at_ts: Tso
    db: str
    table: str
    table_id: int
    format: FileFormat
    file_bytes: int
    cut: Cut
    files: tuple[ExportedFile, ...] | None = None
    losses: tuple[str, ...] = ()

    @property
    def begun(self) -> ExportedTable:
        """What its note says before the files are there."""
        return replace(self, files=None, losses=())

    @property
    def name(self) -> str:
        """``db.table``."""
        return f"{self.db}.{self.table}"

    @property
    def rows(self) -> int:
        """In all files."""
        return sum(each.rows for each in self.files or ())

    @property
    def prefix(self) -> str:
        """What the names of its objects begin with."""
        return f"{short_name(self.db)}.{short_name(self.table)}."

    @property
    def key(self) -> str:
        """Of its note: ``shop.orders.json``."""
        return f"{self.prefix}json"

    def file(self, number: int) -> str:
        """``shop.orders.000000000.csv``: as Dumpling has them, so that TiDB Lightning takes them."""
        return f"{self.prefix}{number:09d}.{self.format}"

    def to_json(self) -> bytes:
        """The note."""
        return dump(KIND, asdict(self))

    @classmethod
    def from_json(cls, key: str, data: bytes) -> ExportedTable:
        """Read a note; BadManifest."""
        return parse(key, data, KIND, _table, remedy="export into another directory")


def _file(data: dict[str, Any]) -> ExportedFile:
    return ExportedFile(
        name=strict.text(data["name"]),
        digest=strict.text(data["digest"]),
        size=strict.integer(data["size"]),
        rows=strict.integer(data["rows"]),
    )


def _table(data: dict[str, Any]) -> ExportedTable:
    return ExportedTable(
        cluster_id=strict.integer(data["cluster_id"], high=strict.MAX_UINT64),
        archive_id=strict.text(data["archive_id"]),
        at_ts=Tso(strict.integer(data["at_ts"])),
        db=strict.text(data["db"]),
        table=strict.text(data["table"]),
        table_id=strict.integer(data["table_id"]),
        format=FileFormat(data["format"]),
        file_bytes=strict.integer(data["file_bytes"]),
        cut=Cut(
            strict.integer(data["cut"]["buckets"], 1, MAX_BUCKETS),
            tuple(strict.integer(each, high=strict.MAX_UINT64) for each in strict.array(data["cut"]["ranges"])),
        ),
        files=None if data["files"] is None else tuple(map(_file, strict.array(data["files"]))),
        losses=tuple(map(strict.text, strict.array(data["losses"]))),
    )


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
                {"name": each.name, "rows": each.rows, "files": [asdict(file) for file in each.files or ()]}
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
        store: the destination; of an export that was killed it puts what is missing.
        form: of the files.
        at: the moment, inclusive; None = the archive's end.
        tables: ``database.table`` or patterns, as they were called then.
        archive_settings: for threads that open the archive themselves.
        load: how rows are cut into parts, and how many threads decode.
        file_bytes: from so many on a file ends.
        tell: told of each segment and part.

    Raises:
        UsageError: the archive does not cover the moment, or the destination has something else of such a name.
        UnknownTable: no table was called so then.
        RestoreError, LoadError: the archive does not tell the rows of one of them; nothing was written.
        ManifestConflict: another export of the table began at once, and cut it otherwise.
    """
    view = read_view(archive, upto=at)
    end = moment_in(view, at)
    wanted = list[tuple[ExportedTable, Moment]]()
    for version in _chosen(view, tables, end):
        table = ExportedTable(
            cluster_id=archive.cluster_id, archive_id=archive.archive_id, at_ts=end, db=version.db,
            table=version.table.name, table_id=version.table.id, format=form, file_bytes=file_bytes, cut=Cut(1),
        )  # fmt: skip
        there = _found(store, table)
        moment = moment_of(
            view, table.name, end, archive=archive_settings, load=load, cut=None if there is None else there.cut
        )
        wanted.append((there or replace(table, cut=moment.cut), moment))
    for table, _ in wanted:
        _begin(store, table)
    made = [_export(store, table, moment, load.connections, tell) for table, moment in wanted]
    losses = reduce(together, (moment.losses for _, moment in wanted), Losses())
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


def _found(store: ObjectStore, table: ExportedTable) -> ExportedTable | None:
    """The note of the same export, begun or ended; UsageError where the destination has something else of the table."""
    first = next((each.key for each in store.list(table.prefix)), None)
    if first is None:
        return None
    hint = f"export into another directory; or see that no export runs, and delete what begins with {table.prefix}"
    try:
        there = ExportedTable.from_json(table.key, store.get(table.key))
    except ObjectNotFound:
        raise UsageError(f"{store.url} has {first} already, and no note of an export of it", hint=hint) from None
    if replace(there.begun, cut=table.cut) != table:
        if replace(there.begun, cut=table.cut, at_ts=table.at_ts) == table:
            hint = f"--at {there.at_ts} goes on with that one; or {hint}"
        what = f"{'some' if there.files is None else 'all'} {there.format} files of about {there.file_bytes:,} bytes"
        raise UsageError(
            f"{store.url} has an export of {table.name} already, as it was at {show(there.at_ts)}: {what}, of "
            f"archive {there.archive_id}",
            hint=hint,
        )
    _is_whole(store, there)  # a file of somebody else is refused before anything is written
    return there


def _is_whole(store: ObjectStore, table: ExportedTable) -> bool:
    """Whether all files are there; UsageError for another of such a name: who reads the files would read it, too."""
    there = {each.key: each.size for each in store.list(table.prefix)}
    files = {each.name: each.size for each in table.files or ()}
    for key in sorted(there.keys() - files.keys()):
        if key.endswith(f".{table.format}") and (table.files is not None or f"{key}.json" not in there):
            raise UsageError(
                f"{store.url} has {key}, which is none of the files of this export of {table.name}",
                hint="see where it came from, move it elsewhere, and run this one again",
            )
    return table.files is not None and files.items() <= there.items()


def _begin(store: ObjectStore, table: ExportedTable) -> None:
    """Claim the table's names for files of this cut."""
    try:
        store.put_if_absent(table.key, table.begun.to_json())
    except ObjectExists as error:
        there = ExportedTable.from_json(table.key, store.get(table.key))
        if there.begun != table.begun:
            raise ManifestConflict(
                f"another export of {table.name} to {store.url} began at once",
                hint="run this one again: it goes on with that one",
                key=table.key,
            ) from error


def _export(
    store: ObjectStore, table: ExportedTable, moment: Moment, connections: int, tell: Progress
) -> ExportedTable:
    """Put the objects of a table that are not there."""
    if _is_whole(store, table):
        return table
    with closing(rows_at(moment, connections=connections, tell=tell)) as rows:
        files = tuple(_written(store, table, moment.form, rows))
    whole = replace(table, files=files, losses=tuple(moment.losses.lines()))
    if not _is_whole(store, whole):
        raise StoreError(
            f"files of {table.name} were taken away from {store.url}, or changed, while they were written",
            hint="see that nobody else deletes or writes there, and run this one again",
            key=table.key,
        )
    store.put(table.key, whole.to_json())
    return whole


def _written(
    store: ObjectStore, table: ExportedTable, form: Form, batches: Iterator[pa.RecordBatch]
) -> Iterator[ExportedFile]:
    """Files of a table, each told when it is there; one at least."""
    with tempfile.TemporaryDirectory(prefix="pumphouse-export-") as folder:
        path, number, ended = Path(folder, "rows"), 0, False
        while not ended:
            ended, rows = True, 0
            with path.open("wb") as file, closing(_WRITERS[table.format](file, form)) as writer:
                for batch in batches:
                    writer.write(batch)
                    rows += batch.num_rows
                    if file.tell() >= table.file_bytes:
                        ended = False
                        break
            if ended and number and not rows:
                return
            with path.open("rb") as whole:
                digest = hashlib.file_digest(whole, "sha256").hexdigest()
            made = ExportedFile(name=table.file(number), digest=digest, size=path.stat().st_size, rows=rows)
            _claim(store, table, made)
            if not _is_there(store, made):
                store.put_file(made.name, path)
            yield made
            number += 1


def _claim(store: ObjectStore, table: ExportedTable, file: ExportedFile) -> None:
    """Put the note of a file; StoreError where there is one of other bytes."""
    key, note = f"{file.name}.json", dump(FILE_KIND, asdict(file))
    try:
        store.put_if_absent(key, note)
    except ObjectExists as error:
        if store.get(key) != note:
            raise StoreError(
                f"{file.name} in {store.url} would get other bytes than its note says: the archive, or the release, "
                "differs",
                hint=f"see that no export runs, delete what begins with {table.prefix}, and run this one again",
                key=key,
            ) from error


def _is_there(store: ObjectStore, file: ExportedFile) -> bool:
    try:
        return store.size(file.name) == file.size
    except ObjectNotFound:
        return False


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
