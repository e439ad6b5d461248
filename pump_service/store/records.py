"""Records on their way into the value log: payloads in a buffer, and what they say in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from pump_service.store import frame
from pump_service.store.block import I64, U8
from pump_service.store.parse import GOOD, Columns, parse
from pumphouse.proto import binlog_pb2


@dataclass(frozen=True, slots=True)
class Item:
    """One binlog to be stored. ``payload`` is the serialized Binlog with all always-emitted fields, as it is kept."""

    payload: bytes
    tp: int
    start_ts: int
    commit_ts: int
    prewrite_key: bytes = b""


def fake(ts: int) -> Item:
    """A binlog that only moves the watermark."""
    return _own(binlog_pb2.Rollback, ts, ts)


def commit(start_ts: int, commit_ts: int, key: bytes = b"") -> Item:
    """The commit that the Pump writes for a transaction that was committed, with its key where that is known."""
    return _own(binlog_pb2.Commit, start_ts, commit_ts, key)


def rollback(start_ts: int) -> Item:
    """The rollback that the Pump writes for a transaction that cannot commit."""
    return _own(binlog_pb2.Rollback, start_ts, 0)


def _own(tp: binlog_pb2.BinlogType, start_ts: int, commit_ts: int, key: bytes = b"") -> Item:
    message = binlog_pb2.Binlog(
        tp=tp, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=key or None, ddl_job_id=0, ddl_schema_state=0
    )
    return Item(message.SerializeToString(), int(tp), start_ts, commit_ts, prewrite_key=key)


@dataclass(slots=True, eq=False)  # not frozen: that sets each field by a call, and there is one of these a group
class Records:
    """n payloads in order. Row i is ``data[starts[i] : starts[i] + sizes[i]]`` and the tail that ``columns`` says."""

    data: U8
    starts: I64
    sizes: I64
    columns: Columns
    bytes: int  # of all payloads, without their tails

    @classmethod
    def of(cls, items: Sequence[Item]) -> Self:
        """From single items."""
        sizes = np.fromiter((len(item.payload) for item in items), np.int64, len(items))
        starts = np.cumsum(sizes) - sizes
        payloads = items[0].payload if len(items) == 1 else b"".join(item.payload for item in items)
        data = np.frombuffer(payloads, np.uint8)
        columns = parse(data, starts, sizes)
        for row in np.flatnonzero(columns.verdict != GOOD).tolist():
            # Fields that the kernel does not know: the item has what matters.
            item = items[row]
            columns.tp[row], columns.start_ts[row], columns.commit_ts[row] = item.tp, item.start_ts, item.commit_ts
            key_at = item.payload.find(item.prewrite_key) if item.prewrite_key else 0
            columns.key_at[row], columns.key_size[row] = key_at, len(item.prewrite_key)
            columns.ddl_job_id[row] = frame.ddl_job_id(item.payload)
        return cls(data, starts, sizes, columns, len(payloads))

    def take(self, rows: I64) -> Self:
        """Some of them; the buffer is the same."""
        sizes = self.sizes[rows]
        return type(self)(self.data, self.starts[rows], sizes, self.columns.take(rows), int(sizes.sum()))

    def __len__(self) -> int:
        return len(self.starts)
