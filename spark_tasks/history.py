"""Python Data Source ``pumphouse``: the archive's history as tables that Spark SQL asks, read by Arrow without any jar.

``register(session)``, then ``session.read.format("pumphouse").option("table", "shop.orders").load()``: its changes;
``from``, ``to`` and ``key`` choose some of them, and with ``at`` it is the rows at a moment (docs/history.md). Options
are shown in plans and UIs, so they name a settings file (``config``) and carry no secret; what is in it reaches the
executors inside the partitions. A DataFrame is of the archive as it was when `load` was called, whatever it gets
afterwards.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pumphouse.archive.archive import Archive
from pumphouse.archive.losses import Losses, losses_of
from pumphouse.archive.view import read_view
from pumphouse.errors import UsageError
from pumphouse.history.changes import (
    Asked,
    ChangeReader,
    forms_between,
    moment_in,
    range_in,
    require_columns,
    require_kept_key,
    tables_of,
)
from pumphouse.history.rows import Moment, moment_of, rows_at, table_at
from pumphouse.history.table import ChangeTable, require_one_key, row_batch, row_schema
from pumphouse.loader.changes import Form, RowChanges
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.loader.selection import key_of
from pumphouse.loader.work import SegmentPart
from pumphouse.model.tso import Tso
from pumphouse.once import once
from pumphouse.parts import Parts
from pumphouse.restore.plan import LATEST, parse_moment
from pumphouse.schema.timeline import Timeline
from pumphouse.settings import ArchiveSettings, LoadSettings, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# Of a partition: so many bytes of payload, or so many windows.
_RUN_BYTES, _RUN_WINDOWS = 64 << 20, 500
_OPTIONS = frozenset({"table", "from", "to", "at", "key", "columns", "config", "archive"})


def register(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(HistorySource)


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What a DataFrame asks, of the archive as it was when it was made. Holds the archive's secret and no other.

    ``tables`` and ``forms``: what the table is in the range; ``at``: its rows at the range's end are meant.
    """

    archive: ArchiveSettings
    load: LoadSettings
    cluster_id: int
    asked: Asked
    tables: frozenset[int]
    forms: tuple[Form, ...]
    at: bool

    @property
    def table(self) -> ChangeTable:
        """What changes look like."""
        return ChangeTable.of(self.forms, self.asked.columns)

    @property
    def schema(self) -> pa.Schema:
        """Of the DataFrame."""
        return row_schema(self.forms[0], self.asked.columns) if self.at else self.table.schema


@dataclass
class ChangesPartition(InputPartition):  # type: ignore[misc]  # pyspark comes without types for strict mode
    """A run of windows; opened where it is read."""

    question: _Question
    timeline: bytes
    pieces: list[SegmentPart]


@dataclass
class RowsPartition(InputPartition):  # type: ignore[misc]  # pyspark comes without types for strict mode
    """All rows at a moment."""

    question: _Question
    moment: Moment


class HistorySource(DataSource):  # type: ignore[misc]  # pyspark comes without types for strict mode
    """The history of one table; see the module."""

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return "pumphouse"

    @once
    def question(self) -> _Question:
        """The options, read once; UsageError, UnknownTable, ConfigError."""
        return _question(dict(self.options))

    def schema(self) -> StructType:
        """Of the table's columns in the range, or at the moment."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.question.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader; Spark passes the argument by this name."""
        return HistoryReader(self.question, schema)


class HistoryReader(DataSourceReader):  # type: ignore[misc]  # pyspark comes without types for strict mode
    """Partitions of window runs; at a moment, one.

    It takes no filters: Spark 4.1 to 4.3 keep a reader that was told some for whatever asks the same DataFrame next.
    The range and the key are options.
    """

    def __init__(self, question: _Question, schema: StructType) -> None:
        self._question = question
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """What is read, by the manifests; those of the range alone are read for it."""
        question, asked = self._question, self._question.asked
        archive = Archive.open(question.archive, question.cluster_id)
        if question.at:
            view = read_view(archive, upto=asked.upto)
            moment = moment_of(
                view, asked.table, asked.upto, archive=question.archive, load=question.load, where=asked.where
            )
            _warn(asked, moment.losses)
            return [RowsPartition(question, moment)]
        if asked.after >= asked.upto:
            return []
        view = read_view(archive, since=asked.after)
        reader = ChangeReader(view.timeline, asked, question.tables)
        packed = zlib.compress(reader.timeline.to_json(), 1)
        return [ChangesPartition(question, packed, run) for run in _runs(reader.pieces(view))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Changes of a run of windows in commit order; or rows."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        if isinstance(partition, RowsPartition):
            question, moment = partition.question, partition.moment
            for rows in rows_at(moment, connections=question.load.connections):
                chosen = rows.select(question.schema.names[:-1])
                yield row_batch(moment.form, chosen, question.schema).cast(schema)
        elif isinstance(partition, ChangesPartition):
            question = partition.question
            archive = Archive.open(question.archive, question.cluster_id)
            timeline = Timeline.from_json(zlib.decompress(partition.timeline))
            reader, table = ChangeReader(timeline, question.asked, question.tables), question.table
            for changed in reader.read(archive.store, partition.pieces):
                yield table.batch(changed).cast(schema)


def _question(options: dict[str, str]) -> _Question:
    """What options ask, with the moments that they mean now."""
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise UsageError(f"there is no option {unknown[0]}", hint=f"there are {', '.join(sorted(_OPTIONS))}")
    if not options.get("table"):
        raise UsageError("which table?", hint='.option("table", "shop.orders")')
    at = "at" in options
    if at and ("from" in options or "to" in options):
        raise UsageError("at is one moment: it excludes from and to")
    config, root = options.get("config"), options.get("archive")
    settings = Settings.read(Path(config) if config else None, {"archive.root": root} if root else {})
    columns = tuple(filter(None, (each.strip() for each in options.get("columns", "").split(","))))
    with Parts(settings) as parts:
        archive = parts.readable_archive

        def moment(name: str) -> Tso | None:
            text = options.get(name)
            return None if text is None else parse_moment(text, lambda each: parts.moment(each, word=LATEST).ts)

        since, upto = moment("from"), moment("at" if at else "to")
        view = read_view(archive, since=since or archive.range().start, upto=upto)
        begin, end = (view.kept.start, moment_in(view, upto)) if at else range_in(view, since, upto)
        cluster_id = archive.cluster_id
    where = Predicate(keys=(options["key"],), exact=True) if "key" in options else ALL_ROWS
    asked = Asked(table=options["table"], after=begin, upto=end, columns=columns, where=where)
    if at:
        forms = [RowChanges(view.timeline).form(table_at(view, asked.table, end))]
        tables = frozenset({forms[0].wanted.table_id})
    else:
        tables = tables_of(view.timeline, asked)
        forms = forms_between(view.timeline, asked, tables)
        if where:
            require_kept_key(view.timeline, forms, asked.table)
        require_one_key(forms)
        _warn(asked, losses_of(view.windows, after=begin, upto=end))
    require_columns(columns, forms)
    for form, text in product(forms, where.keys):  # on the driver, not in a task
        key_of(form.wanted, text)
    return _Question(
        archive=settings.archive, load=settings.load, cluster_id=cluster_id, asked=asked, tables=tables,
        forms=tuple(forms), at=at,
    )  # fmt: skip


def _warn(asked: Asked, losses: Losses) -> None:
    """On the driver: what is lost is in no row."""
    for line in losses.lines():
        warnings.warn(f"the history of {asked.table} is not whole: {line}", stacklevel=2)


def _runs(pieces: Sequence[SegmentPart]) -> Iterator[list[SegmentPart]]:
    """Pieces of windows side by side; a window is never cut, as its segments are merged."""
    run: list[SegmentPart] = []
    size = windows = 0
    last: Tso | None = None
    for piece in pieces:
        if piece.window != last:
            last, windows = piece.window, windows + 1
            if run and (size >= _RUN_BYTES or windows > _RUN_WINDOWS):
                yield run
                run, size, windows = [], 0, 1
        run.append(piece)
        size += piece.bytes
    if run:
        yield run
