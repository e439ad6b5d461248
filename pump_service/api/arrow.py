"""Pulled binlogs as an Arrow IPC stream (docs/formats.md, "PullBatches"): the only import of pyarrow.

Nothing is copied: the buffers are those of the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pump_service.store.batch import Binlogs

SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("ddl_job_id", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
        pa.field("flag", pa.uint8(), nullable=False),
    ]
)


class Pieces:
    """A file that keeps what is written to it: Arrow hands over its buffers as they are."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.size = 0

    def write(self, piece: Any) -> int:
        """Keep a piece."""
        self.pieces.append(piece)
        self.size += len(piece)
        return len(piece)

    def tell(self) -> int:
        """Bytes so far."""
        return self.size

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def stream_of(binlogs: Binlogs) -> Pieces:
    """An Arrow IPC stream with one record batch; columns as in SCHEMA, one row a binlog."""
    payloads = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(binlogs), [None, pa.py_buffer(binlogs.offsets), pa.py_buffer(binlogs.data)]
    )
    columns = [
        _numbers(binlogs.commit_ts),
        _numbers(binlogs.start_ts),
        _numbers(binlogs.ddl_job_id),
        payloads,
        _numbers(binlogs.flags),
    ]
    pieces = Pieces()
    with pa.ipc.new_stream(pa.PythonFile(pieces, mode="w"), SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    return pieces


def _numbers(values: NDArray[Any]) -> pa.Array:
    """A column of these numbers; of their buffer, because `pa.array` of numpy's arrays imports pandas: 50 MB."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
