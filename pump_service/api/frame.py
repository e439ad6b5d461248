"""Pulled binlogs as gRPC messages: one Arrow frame (docs/formats.md, "PullBatches"), or one message a binlog.

Both are made of a batch's columns at once. The payloads are copied once, into messages of one binlog each; into a frame
not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pump_service.door.group import Messages
from pump_service.store import gather
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
_FRAME_FIELD = b"\x0a"  # PullBatchesResponse.frame
_PREFIX_BYTES = 5
_SMALL = 64 << 10  # smaller pieces of a message are joined to their neighbours


class _Pieces:
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


def _arrow(binlogs: Binlogs) -> _Pieces:
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
    pieces = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(pieces, mode="w"), SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
    return pieces


def _numbers(values: NDArray[Any]) -> pa.Array:
    """A column of these numbers; of their buffer, because `pa.array` of numpy's arrays imports pandas: 50 MB."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def frame_message(binlogs: Binlogs, beside: bytes) -> Messages:
    """One PullBatchesResponse. ``beside``: its other fields, which come behind the frame, serialized."""
    if not len(binlogs):
        return Messages((_prefix(len(beside)) + beside,), 1)
    frame = _arrow(binlogs)
    head = _FRAME_FIELD + _varint(frame.size)
    prefix = _prefix(len(head) + frame.size + len(beside))
    return Messages(_joined((prefix, head, *frame.pieces, beside)), 1)


def _joined(pieces: Iterable[Any]) -> tuple[bytes | memoryview, ...]:
    """The same bytes in few pieces, of which the large ones are not copied."""
    found: list[bytes | memoryview] = []
    for small, group in groupby(pieces, lambda piece: len(piece) < _SMALL):
        some = list(group)
        found += [b"".join(some)] if small else map(memoryview, some)
    return tuple(found)


def binlog_messages(binlogs: Binlogs) -> Messages:
    """One PullBinlogResp a binlog, as the Go Pump sends them: pos is there and empty, checksum is not."""
    columns = binlogs.offsets, binlogs.start_ts, binlogs.commit_ts
    offsets = np.empty(len(binlogs) + 1, np.int64)
    gather.message_offsets(*columns, offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    gather.encode_messages(binlogs.data, *columns, offsets, out)
    return Messages((out.data,), len(binlogs))


def split(messages: Messages) -> list[bytes]:
    """The messages one by one, without prefixes, for a server that takes only such."""
    found = []
    (first, *more) = messages.pieces
    view = memoryview(b"".join(messages.pieces) if more else first)
    at = 0
    while at < len(view):
        size = int.from_bytes(view[at + 1 : at + _PREFIX_BYTES], "big")
        at += _PREFIX_BYTES
        found.append(bytes(view[at : at + size]))
        at += size
    return found


def _prefix(size: int) -> bytes:
    """GRPC's prefix of a message: not compressed, its length."""
    return b"\0" + size.to_bytes(_PREFIX_BYTES - 1, "big")


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
