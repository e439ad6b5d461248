"""What travels between the stages of a load: tables of up to 16 MiB, each of one table of the target and one bucket.

They go through Spark, or to a file, as Arrow IPC streams: rows would cost more on their way than everything that is
done with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pumphouse.loader.plan import UnitId
from pumphouse.loader.unit import UnitHead

BLOB_BYTES = 16 << 20
# Phase of a blob that holds entries, not yet folded.
ENTRIES: Final = 255


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

    @property
    def head(self) -> UnitHead:
        """The unit's head."""
        if not isinstance(self.content, bytes):
            return UnitHead.of(self.content.schema)
        with pa.ipc.open_stream(self.content) as reader:
            return UnitHead.of(reader.schema)

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
