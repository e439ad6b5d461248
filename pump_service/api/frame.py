"""One frame of a batch pull: an Arrow IPC stream with one record batch (docs/formats.md, "PullBatches")."""

from __future__ import annotations

import pyarrow as pa

from pump_service.store.store import PullBatch

SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.int64(), nullable=False),
        pa.field("start_ts", pa.int64(), nullable=False),
        pa.field("ddl_job_id", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
        pa.field("flag", pa.uint8(), nullable=False),
    ]
)


def arrow_frame(batch: PullBatch) -> bytes:
    """The bytes of a frame; columns as in SCHEMA, one row a binlog."""
    columns = [
        pa.array(batch.commit_ts, pa.int64()),
        pa.array(batch.start_ts, pa.int64()),
        pa.array(batch.ddl_job_id, pa.int64()),
        pa.array(batch.payloads, pa.large_binary()),
        pa.array(batch.flags, pa.uint8()),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    frame: bytes = sink.getvalue().to_pybytes()
    return frame
