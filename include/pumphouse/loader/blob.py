"""What travels between the stages of a load: tables of up to 16 MiB, each of one table of the target and one bucket.

They go through Spark, or to a file, as Arrow IPC streams: rows would cost more on their way than everything that is
done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from pumphouse.loader.plan import UnitId
from pumphouse.loader.unit import UnitHead

BLOB_BYTES = 16 << 20
# Phase of a blob that holds entries, not yet folded.
ENTRIES: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Rows that lie in the archive and are read when they are wanted, about 8 MiB a batch."""

    head: UnitHead
    size: int
    read: Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Blob:
    """One piece of a group (epoch, table, bucket, phase); ``number`` is its place in the unit."""

    epoch: int
    table_id: int
    bucket: int
    phase: int
    number: int
    rows: int
    content: pa.Table | bytes | Stored

    @property
    def unit(self) -> UnitId:
        """The unit that it is part of."""
        return UnitId(self.epoch, self.phase, self.table_id, self.bucket)

    @property
    def data(self) -> bytes:
        """As an Arrow IPC stream."""
        if isinstance(self.content, bytes):
            return self.content
        table, sink = self.table(), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue().to_pybytes())

    @property
    def size(self) -> int:
        """Its bytes."""
        match self.content:
            case bytes():
                return len(self.content)
            case Stored(size=size):
                return size
        return int(self.content.nbytes)

    @property
    def group(self) -> tuple[int, int, int, int]:
        """What is folded, or applied, together."""
        return self.epoch, self.table_id, self.bucket, self.phase

    @property
    def head(self) -> UnitHead:
        """The unit's head."""
        if isinstance(self.content, Stored):
            return self.content.head
        if not isinstance(self.content, bytes):
            return UnitHead.of(self.content.schema)
        with pa.ipc.open_stream(self.content) as reader:
            return UnitHead.of(reader.schema)

    def table(self) -> pa.Table:
        """The rows, with the unit's head in the schema metadata."""
        if isinstance(self.content, Stored):
            return pa.Table.from_batches(self.content.read())
        if not isinstance(self.content, bytes):
            return self.content
        with pa.ipc.open_stream(self.content) as reader:
            return reader.read_all()

    def parts(self) -> Iterator[Blob]:
        """It in blobs that travel: of what lies in the archive, a batch in each."""
        if not isinstance(self.content, Stored):
            yield self
            return
        for number, batch in enumerate(self.content.read()):
            yield replace(self, number=number, rows=batch.num_rows, content=pa.Table.from_batches([batch]))

    def batches(self) -> list[pa.RecordBatch]:
        """The rows as they are sent."""
        if isinstance(self.content, Stored):
            return list(self.content.read())
        found: list[pa.RecordBatch] = self.table().combine_chunks().to_batches()
        return found


def blobs_of(table: pa.Table, *, bucket: int, phase: int = ENTRIES) -> Iterator[Blob]:
    """Cut a table with a head into blobs."""
    if table.num_rows == 0:
        return
    head = UnitHead.of(table.schema)
    step = max(1, int(table.num_rows * BLOB_BYTES // max(table.nbytes, 1)))
    for number, at in enumerate(range(0, table.num_rows, step)):
        part = table.slice(at, step)
        yield Blob(head.unit.epoch, head.unit.table_id, bucket, phase, number, part.num_rows, part)
