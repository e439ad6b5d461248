"""Transactions and DDLs as messages ``slave.binlog.Binlog`` (docs/formats.md, "Messages for Kafka")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pumphouse.codec.jit import Bytes, Ints, frozen
from pumphouse.codec.layout import RowLayout
from pumphouse.export import slavekernels as kernels
from pumphouse.export.encode import Chosen, Laid
from pumphouse.export.protowire import frozen_bytes, int_field, length_bytes, text_field, uvarint
from pumphouse.export.slaverows import MutationShape
from pumphouse.schema.versions import TableVersion


class SlaveMessages:
    """The form of the Drainer's messages (`pumphouse.export.encode.Form`)."""

    def shape(self, version: TableVersion, op: int, layout: RowLayout) -> MutationShape:
        """Of changes of one kind to the rows of a table."""
        return MutationShape.of(version, op, layout)

    def frames(self, chosen: Chosen[MutationShape], commit_ts: Ints) -> Laid:
        """Whole messages."""
        tables = _Tables(chosen)
        first = tables.first_of_each_transaction()
        txn = tables.txn[first]
        bodies = np.add.reduceat(tables.fields, first) if len(first) else first
        heads = 4 + _length_bytes(commit_ts[txn]) + _length_bytes(bodies)
        ends = np.cumsum(heads + bodies)
        out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        kernels.open_messages(out, ends - heads - bodies, commit_ts[txn], bodies)
        counts = np.diff(first, append=len(tables.txn))
        return Laid(out, tables.put(out, np.repeat(np.cumsum(heads), counts)), ends, txn)

    def piece(self, chosen: Chosen[MutationShape]) -> Laid:
        """A field ``dml_data``."""
        tables = _Tables(chosen)
        body = int(tables.fields.sum())
        head = np.frombuffer(bytes([kernels.DML_DATA]) + uvarint(body), np.uint8)
        out = np.empty(len(head) + body, np.uint8)
        out[: len(head)] = head
        at = tables.put(out, np.full(len(tables.txn), len(head), np.int64))
        return Laid(out, at, np.array([len(out)]), np.zeros(1, np.int64))


class _Tables:
    """The messages ``Table`` of some transactions: each has the row changes that stand together there."""

    def __init__(self, chosen: Chosen[MutationShape]) -> None:
        found, self._sizes = chosen.found, chosen.sizes
        of_shape, heads, tails = _distinct(chosen.shapes)
        table = of_shape[chosen.shape]
        new = np.ones(len(found), np.bool_)
        for each in (found.txn, found.table_id, table):
            new[1:] &= each[1:] == each[:-1]
        new[1:] = ~new[1:]
        self._starts = np.flatnonzero(new)
        self._run = np.cumsum(new) - 1
        self._table = table[self._starts]
        self._heads, self._head_ends = _joined(heads)
        self._tails, self._tail_ends = _joined(tails)
        self.txn = found.txn[self._starts]
        rows = np.add.reduceat(self._sizes, self._starts) if len(found) else self._starts
        self._head_size = np.diff(self._head_ends)[self._table]
        self._inner = self._head_size + rows + np.diff(self._tail_ends)[self._table]
        self.fields = 1 + _length_bytes(self._inner) + self._inner

    def first_of_each_transaction(self) -> Ints:
        """Indices of the tables that begin one."""
        return np.flatnonzero(np.diff(self.txn, prepend=-1))

    def put(self, out: Bytes, before: Ints) -> Ints:
        """Write all but the row changes, and say where these go; ``before``: bytes before a table that are of none."""
        at = np.cumsum(self.fields) - self.fields + before
        kernels.put_tables(
            out, at, self._inner, self._table, self._heads, self._head_ends, self._tails, self._tail_ends
        )
        rows = at + self.fields - self._inner + self._head_size
        behind = np.cumsum(self._sizes)
        before_run = (behind - self._sizes)[self._starts]
        places: Ints = (rows - before_run)[self._run] + behind - self._sizes
        return places


def _distinct(shapes: Sequence[MutationShape]) -> tuple[Ints, list[bytes], list[bytes]]:
    """Of each shape its table; and what the tables' messages begin and end with."""
    tables = dict[tuple[bytes, bytes], int]()
    of = [tables.setdefault((each.head, each.tail), len(tables)) for each in shapes]
    return np.array(of, np.int64), [head for head, _ in tables], [tail for _, tail in tables]


def _joined(texts: Sequence[bytes]) -> tuple[Bytes, Ints]:
    return frozen_bytes(b"".join(texts)), frozen(np.cumsum([0, *map(len, texts)], dtype=np.int64))


def _length_bytes(lengths: Ints) -> Ints:
    out = np.empty(len(lengths), np.int64)
    length_bytes(frozen(np.ascontiguousarray(lengths)), out)
    return out


def ddl_message(commit_ts: int, db: str, table: str, query: bytes) -> bytes:
    """The message of a DDL."""
    data = text_field(1, db) + text_field(2, table) + text_field(3, query)
    return int_field(1, 1) + int_field(2, commit_ts) + text_field(4, data)


def large_head(commit_ts: int) -> bytes:
    """What the message of a large transaction begins with, before its pieces."""
    return int_field(1, 0) + int_field(2, commit_ts)


def empty_message(commit_ts: int) -> bytes:
    """A message without row changes: nothing else was committed up to ``commit_ts``."""
    return large_head(commit_ts) + text_field(3, b"")
