"""A made source whose dumps are made by hand: chunk by chunk, so that the log comes between where a test wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pumphouse.archive import layout
from pumphouse.archive.base import Base, BaseChunk, write_columns
from pumphouse.archive.view import read_view
from pumphouse.dump.survey import survey
from pumphouse.dump.table import TableReader
from pumphouse.model.tso import Tso
from pumphouse.settings import DumpRule
from tests.support.madearchive import MadeSource


class DumpedSource(MadeSource):
    """A made source that is dumped by hand."""

    def read(
        self, name: str, low: Tso, begun: Tso, rows: Sequence[dict[str, Any]] | None = None, *, number: int = 0
    ) -> BaseChunk:
        """A table as somebody reads it now, or these rows of it (by column name)."""
        view = read_view(self.archive)
        version = next(v for v in view.timeline.tables_at(view.end) if v.table.name == name)
        reader = TableReader.of(version)
        if rows is None:
            held = self.tables[name].rows.values()
            rows = [{c.name: row[c.id] for c in reader.columns} for row in held]
        segment = None
        if rows:
            batch = pa.RecordBatch.from_pylist(list(rows), schema=reader.schema)
            key = f"{layout.chunk_folder(begun, 'd', name, version.table.id, low)}{number}.parquet"
            segment = write_columns(self.archive.store, key, version.table, low, [batch])
        return BaseChunk(
            db="d", table=name, table_id=version.table.id, low=low, number=number, upto=None, last=True, segment=segment
        )

    def publish(self, begun: Tso, chunks: Sequence[BaseChunk], rules: Sequence[DumpRule] = ()) -> Tso:
        """The base of these chunks; nothing may be missing."""
        at = self.cut()
        self.tick()
        self.cut()
        found = survey(read_view(self.archive), begun, chunks, at, rules=rules)
        assert found.missing == ()
        base = Base(begun=begun, low=begun, ts=at, tables=found.tables, columns=True, sha256="", without=found.without)
        data = base.to_json(cluster_id=self.cluster_id, genesis=self.archive.genesis().sha256)
        self.archive.store.put(layout.base_document(begun), data)
        return at
