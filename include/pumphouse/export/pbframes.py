"""Transactions as frames of binlog files (docs/formats.md, "Files for Reparo")."""

from __future__ import annotations

import numpy as np

from pumphouse.codec.crc import crc32c_of
from pumphouse.codec.jit import Ints, frozen
from pumphouse.codec.layout import RowLayout
from pumphouse.export import pbkernels as kernels
from pumphouse.export.encode import Chosen, Laid
from pumphouse.export.pbrows import EventShape
from pumphouse.export.protowire import text_field, uvarint
from pumphouse.schema.versions import TableVersion


class PbFrames:
    """The form of binlog files (`pumphouse.export.encode.Form`)."""

    def shape(self, version: TableVersion, op: int, layout: RowLayout) -> EventShape:
        """Of changes of one kind to the rows of a table."""
        return EventShape.of(version.db, version.table.name, op, layout)

    def frames(self, chosen: Chosen[EventShape], commit_ts: Ints) -> Laid:
        """Whole frames."""
        at = np.empty(len(chosen.found), np.int64)
        frames, starts, lengths, bodies = (np.empty(len(commit_ts), np.int64) for _ in range(4))
        count = kernels.lay_out(frozen(chosen.found.txn), chosen.sizes, commit_ts, at, frames, starts, lengths, bodies)
        frames, starts, lengths, bodies = frames[:count], starts[:count], lengths[:count], bodies[:count]
        ends = starts + lengths + kernels.TAIL_BYTES
        out = np.empty(int(ends[-1]) if count else 0, np.uint8)
        kernels.open_frames(out, commit_ts[frames], starts, lengths, bodies)
        return Laid(out, at, ends, frames, lambda: kernels.close_frames(out, starts, lengths))

    def piece(self, chosen: Chosen[EventShape]) -> Laid:
        """A field ``dml_data``."""
        ends = np.cumsum(chosen.sizes)
        head = np.frombuffer(bytes([kernels.DML_DATA]) + uvarint(int(ends[-1])), np.uint8)
        out = np.empty(len(head) + int(ends[-1]), np.uint8)
        out[: len(head)] = head
        return Laid(out, ends - chosen.sizes + len(head), ends[-1:] + len(head), np.zeros(1, np.int64))


def ddl_payload(commit_ts: int, query: bytes) -> bytes:
    """The payload of a DDL."""
    return bytes([kernels.TP, 1, kernels.COMMIT_TS]) + uvarint(commit_ts) + text_field(4, query)


def framed(payload: bytes) -> bytes:
    """One payload as a frame."""
    head = kernels.MAGIC.tobytes() + len(payload).to_bytes(8, "little")
    data = frozen(np.frombuffer(payload, np.uint8))
    return head + payload + int(crc32c_of(data, 0, len(data), 0)).to_bytes(4, "little")


def large_head(commit_ts: int) -> bytes:
    """What the payload of a large transaction begins with, before its pieces."""
    return bytes([kernels.TP, 0, kernels.COMMIT_TS]) + uvarint(commit_ts)
