"""What travels between the stages of a load: tables of up to 16 MiB, each of one table of the target and one bucket.

Through Spark they go as Arrow IPC streams: rows would cost more on their way than everything that is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pumphouse.loader.plan import UnitId
from pumphouse.loader.unit import UnitHead

BLOB_BYTES = 16 << 20
# Phase of a blob that holds entries, not yet folded.
ENTRIES: Final = 255

# As Spark sees a blob (jobs) and as it goes to disk.
SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("table_id", pa.int64(), nullable=False),
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("phase", pa.int32(), nullable=False),
        pa.field("number", pa.int32(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
SPARK_SCHEMA = (
    "epoch int not null, table_id bigint not null, bucket int not null, phase int not null, number int not null, "
    "row_count bigint not null, data binary not null"
)


@dataclass(frozen=True, slots=True)
class Blob:
    """One piece of a group (epoch, table, bucket, phase); ``number`` is its place in the unit."""

    epoch: int
    table_id: int
    bucket: int
    phase: int
    number: int
    rows: int
    content: pa.Table | bytes

    @property
    def unit(self) -> UnitId:
        """The unit that it is part of."""
        return UnitId(self.epoch, self.phase, self.table_id, self.bucket)

    @property
    def data(self) -> bytes:
        """As an Arrow IPC stream."""
        if isinstance(self.content, bytes):
            return self.content
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.content.schema) as writer:
            writer.write_table(self.content)
        return bytes(sink.getvalue().to_pybytes())

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.content) if isinstance(self.content, bytes) else int(self.content.nbytes)

    @property
    def group(self) -> tuple[int, int, int, int]:
        """What is folded, or applied, together."""
        return self.epoch, self.table_id, self.bucket, self.phase

    def table(self) -> pa.Table:
        """The rows, with the unit's head in the schema metadata."""
        if not isinstance(self.content, bytes):
            return self.content
        with pa.ipc.open_stream(self.content) as reader:
            return reader.read_all()


def blobs_of(table: pa.Table, *, bucket: int, phase: int = ENTRIES) -> Iterator[Blob]:
    """Cut a table with a head into blobs."""
    if table.num_rows == 0:
        return
    head = UnitHead.of(table.schema)
    step = max(1, int(table.num_rows * BLOB_BYTES // max(table.nbytes, 1)))
    for number, at in enumerate(range(0, table.num_rows, step)):
        part = table.slice(at, step)
        yield Blob(head.unit.epoch, head.unit.table_id, bucket, phase, number, part.num_rows, part)


def to_batch(blobs: Sequence[Blob]) -> pa.RecordBatch:
    """Blobs as a batch of `SCHEMA`."""
    columns = [
        [b.epoch for b in blobs], [b.table_id for b in blobs], [b.bucket for b in blobs], [b.phase for b in blobs],
        [b.number for b in blobs], [b.rows for b in blobs], [b.data for b in blobs],
    ]  # fmt: skip
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> Iterator[Blob]:
    """Read `to_batch`."""
    names = SCHEMA.names
    for row in zip(*(batch.column(name) for name in names), strict=True):
        yield Blob(*(value.as_py() for value in row))
