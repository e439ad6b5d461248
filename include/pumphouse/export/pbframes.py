"""Transactions as frames of binlog files (docs/formats.md, "Files for Reparo"): decoded and encoded as columns.

The payload of a transaction that is larger than `WHOLE_BYTES`, or that the archive has in parts, has the field
``dml_data`` several times: a protobuf reader takes them as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pumphouse.archive.segment import lengths as lengths_of
from pumphouse.codec.columnar import UPDATE, Mutations, blocks, decode_images, walk
from pumphouse.codec.crc import crc32c_of
from pumphouse.codec.jit import Bytes, Ints, frozen
from pumphouse.codec.layout import RowLayout
from pumphouse.errors import CodecError, ColumnMismatch, MissingColumn, SchemaError
from pumphouse.export import pbkernels as kernels
from pumphouse.export.pbrows import Events, EventShape, text_field, uvarint
from pumphouse.loader.decode import Layouts, groups_of
from pumphouse.loader.keys import key_columns
from pumphouse.loader.tables import Wanted
from pumphouse.model.tso import Tso, show
from pumphouse.schema.actions import is_system
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import TableVersion

# Payload of what is decoded and encoded at once.
WHOLE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole frames, one behind the other.

    Attributes:
        data: Their bytes.
        ends: Where each ends in ``data``.
        commit_ts: Of each.
        changes: Row changes in each.
    """

    data: Bytes
    ends: Ints
    commit_ts: Ints
    changes: Ints


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the payload of a transaction that is too large for one go."""

    commit_ts: int
    start_ts: int
    data: Bytes
    changes: int


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


class Encoder:
    """Row changes of an archive as frames.

    Args:
        timeline: the schema over the range.
        tables: ids of the tables that are wanted; None = all but the system's.
    """

    def __init__(self, timeline: Timeline, tables: frozenset[int] | None) -> None:
        self._timeline, self._tables = timeline, tables
        self._layouts = Layouts(timeline)
        self._ends = np.array([each.commit_ts for each in timeline.events], np.int64)
        # Of versions that the timeline holds, so their ids stay theirs.
        self._same: dict[int, Wanted] = {}
        self._shapes: dict[tuple[int, int, int], tuple[RowLayout, EventShape]] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[Frames | Piece]:
        """A batch of `transactions`, in its order. Of a large transaction come its pieces, maybe in several batches.

        Raises:
            CodecError, UnknownTable: a payload or a row image cannot be read.
            MissingColumn: an image lacks a column that tells which row it is.
        """
        sizes = lengths_of(batch.column("payload"))
        large = (batch.column("parts").to_numpy() > 1) | (sizes > WHOLE_BYTES)
        at = 0
        while at < batch.num_rows:
            if large[at]:
                yield from self._pieces(batch.slice(at, 1))
                at += 1
                continue
            behind = np.flatnonzero(large[at:])
            stop = at + int(behind[0]) if behind.size else batch.num_rows
            stop = at + max(int(np.searchsorted(np.cumsum(sizes[at:stop]), WHOLE_BYTES, "right")), 1)
            yield self._frames(batch.slice(at, stop - at))
            at = stop

    def _frames(self, batch: pa.RecordBatch) -> Frames:
        commit_ts = np.ascontiguousarray(batch.column("commit_ts").to_numpy())
        found, parts = self._events(self._walk(batch), commit_ts)
        sizes = _scattered(len(found), ((rows, events.sizes) for rows, events in parts))
        at = np.empty(len(found), np.int64)
        frames, starts, lengths, bodies = (np.empty(batch.num_rows, np.int64) for _ in range(4))
        count = kernels.lay_out(frozen(found.txn), sizes, frozen(commit_ts), at, frames, starts, lengths, bodies)
        frames, starts, lengths, bodies = frames[:count], starts[:count], lengths[:count], bodies[:count]
        ends = starts + lengths + kernels.TAIL_BYTES
        out = np.empty(int(ends[-1]) if count else 0, np.uint8)
        kernels.open_frames(out, commit_ts[frames], starts, lengths, bodies)
        for rows, events in parts:
            events.write(out, at[rows])
        kernels.close_frames(out, starts, lengths)
        changes = np.bincount(found.txn, minlength=batch.num_rows)[frames]
        return Frames(frozen(out), ends, commit_ts[frames], changes)

    def _pieces(self, row: pa.RecordBatch) -> Iterator[Piece]:
        commit_ts, start_ts = row.column("commit_ts").to_numpy(), row.column("start_ts")[0].as_py()
        all_of = self._walk(row)
        behind = np.cumsum(all_of.row_len)
        at = 0
        while at < len(all_of):
            below = 0 if not at else int(behind[at - 1])
            stop = max(int(np.searchsorted(behind, below + WHOLE_BYTES, "right")), at + 1)
            found, parts = self._events(all_of.take(slice(at, stop)), commit_ts)
            at = stop
            if not len(found):
                continue
            sizes = _scattered(len(found), ((rows, events.sizes) for rows, events in parts))
            ends = np.cumsum(sizes)
            head = np.frombuffer(bytes([kernels.DML_DATA]) + uvarint(int(ends[-1])), np.uint8)
            out = np.empty(len(head) + int(ends[-1]), np.uint8)
            out[: len(head)] = head
            places = ends - sizes + len(head)
            for rows, events in parts:
                events.write(out, places[rows])
            yield Piece(int(commit_ts[0]), start_ts, frozen(out), len(found))

    def _walk(self, batch: pa.RecordBatch) -> Mutations:
        try:
            return walk(batch.column("payload"))
        except CodecError as error:
            at = int(error.txn or 0)
            start, commit = (batch.column(name)[at].as_py() for name in ("start_ts", "commit_ts"))
            raise CodecError(f"transaction (start {start}, commit {commit}): {error}", **error.facts) from error

    def _events(self, found: Mutations, commit_ts: Ints) -> tuple[Mutations, list[tuple[Ints, Events]]]:
        """The row changes that are wanted, in their order; and their events, with the row changes that they are of."""
        ts = commit_ts[found.txn]
        places = np.searchsorted(self._ends, ts, "right")
        alike: dict[tuple[int, int, int], list[np.ndarray]] = defaultdict(list)
        shapes: dict[tuple[int, int, int], tuple[Wanted, TableVersion]] = {}
        for rows in groups_of(places, found.table_id, found.schema_version, found.op):
            first = rows[0]
            wanted = self._wanted(int(found.table_id[first]), int(ts[first]))
            if wanted is not None:
                written = self._timeline.at_version(wanted.table_id, int(found.schema_version[first]))
                at = id(wanted), id(written), int(found.op[first])
                shapes[at] = wanted, written
                alike[at].append(rows)
        groups = {at: np.sort(np.concatenate(rows)) for at, rows in alike.items()}
        kept = np.sort(np.concatenate(list(groups.values()))) if groups else np.zeros(0, np.int64)
        some = found.take(kept)
        parts: list[tuple[Ints, Events]] = []
        for at, rows in groups.items():
            rows = np.searchsorted(kept, rows)  # noqa: PLW2901 -- of those that are kept
            parts += self._encoded(some, rows, ts[kept], *shapes[at])
        return some, parts

    def _encoded(
        self, found: Mutations, rows: Ints, ts: Ints, wanted: Wanted, written: TableVersion
    ) -> Iterator[tuple[Ints, Events]]:
        op, name = int(found.op[rows[0]]), f"{wanted.db}.{wanted.table.name}"
        at = id(wanted), id(written), op
        if at not in self._shapes:
            layout = self._layouts.of(wanted, written)
            if not layout.columns:
                raise SchemaError(f"{name} has rows and no column but generated ones: a binlog file cannot say so")
            self._shapes[at] = layout, EventShape.of(wanted.db, wanted.table.name, op, layout)
        layout, shape = self._shapes[at]
        for block in blocks(found.row_len[rows]):
            part = rows[block]
            try:
                images = decode_images(found.data, found.row_start[part], found.row_len[part], op, layout)
            except (CodecError, ColumnMismatch) as error:
                when = ts[part[min(int(error.facts.get("row", 0)), len(part) - 1)]]
                hint = f"leave {name} out (--table names the others), or export up to {when - 1} and go on by a restore"
                missing = isinstance(error, MissingColumn | ColumnMismatch)
                raise type(error)(
                    f"{name}, the transaction at {show(Tso(int(when)))}: {error}",
                    hint=f"a DDL of {name} was under way: {hint}" if missing else hint,
                    **(error.facts | {"table": name}),
                ) from error
            yield part, Events(shape, images if op == UPDATE else (images,))

    def _wanted(self, table_id: int, ts: int) -> Wanted | None:
        """The table as readers saw it at a commit; None where its rows are not wanted or have no place to go."""
        version = self._timeline.at_ts(table_id, ts)
        if version.dropped or (is_system(version.db) if self._tables is None else version.table.id not in self._tables):
            return None
        if id(version) not in self._same:
            self._same[id(version)] = Wanted(
                table_id=version.table.id, db=version.db, table=version.table, schema_version=version.schema_version,
                key=key_columns(version.table), epoch=0,
            )  # fmt: skip
        return self._same[id(version)]


def _scattered(count: int, parts: Iterator[tuple[Ints, Ints]]) -> Ints:
    out = np.empty(count, np.int64)
    for rows, values in parts:
        out[rows] = values
    return out
