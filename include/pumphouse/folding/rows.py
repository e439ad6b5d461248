"""Rows of one part of a table at the moment of a fold: what the older base has and what the log lays over it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse import advice
from pumphouse.codec.columnar import key_rank
from pumphouse.errors import DuplicateKey, FoldRefused
from pumphouse.loader.columns import shown
from pumphouse.loader.fold import NET, NET_FIELD, ORDER_FIELDS, TS, LastOfKeys, check_keys, fold_multiset, order_of
from pumphouse.loader.keyless import COUNT
from pumphouse.loader.unit import UnitHead
from pumphouse.model.tso import Tso


def standing(entries: pa.Table, since: Tso) -> pa.Table:
    """Rows that stand after all entries, by key; of a table without a key as often as they stand.

    Args:
        entries: of a part of one table (`pumphouse.loader.fold`).
        since: from when on the older base is exact.

    Raises:
        DuplicateKey, FoldRefused: the entries can be no history of rows.
    """
    head = UnitHead.of(entries.schema)
    if not head.key:
        return _multiset(entries, head)
    entries = _strictly(entries, head, since) if head.droppable else entries
    folded = LastOfKeys.of(entries, head.key)
    check_keys(folded, head.key, f"{head.db}.{head.table}")
    folded = folded.in_order(np.flatnonzero(folded.stands))
    order = order_of(folded.keys(head.key))
    rows = entries.drop_columns([field.name for field in ORDER_FIELDS])
    return rows.take(pa.array(folded.in_order(order).at))


def _strictly(entries: pa.Table, head: UnitHead, since: Tso) -> pa.Table:
    """Entries that begin from nothing: rows of the older base have come, as it was exact.

    The source may drop the key while rows are written. Two rows that had it at a time then do not add up, where one of
    them would stand for both.
    """
    first = pc.less_equal(entries.column(TS), int(since))
    folded = LastOfKeys.of(entries.filter(first).combine_chunks(), head.key)
    rows = folded.entries.take(pa.array(folded.at[folded.stands]))
    came = pa.array(np.ones(rows.num_rows, np.int32))
    rows = rows.set_column(rows.schema.get_field_index(NET), NET_FIELD, came)
    whole = pa.concat_tables([rows, entries.filter(pc.invert(first))]).combine_chunks()
    found = LastOfKeys.of(whole, head.key)
    if found.before.any():
        wrong = found.in_order(np.flatnonzero(found.before)[:3]).keys(head.key).to_pylist()
        told = [{column: shown(value) for column, value in row.items()} for row in wrong]
        raise DuplicateKey(
            f"keys ({', '.join(head.key)}) of {head.db}.{head.table} belong to more than one row, or to one that is "
            f"not there, as {told[0]}",
            hint=(
                "a DROP INDEX of that key may be under way: fold a moment before it, or one behind its end; else ",
                advice.dump(f"{head.db}.{head.table}"),
            ),
            table=f"{head.db}.{head.table}",
            key=list(head.key),
            rows=told,
        )
    return whole


def _multiset(entries: pa.Table, head: UnitHead) -> pa.Table:
    folded = fold_multiset(entries).combine_chunks()
    counts = folded.column(COUNT).to_numpy()
    if (counts < 0).any():
        raise FoldRefused(
            f"{head.db}.{head.table} has no key, and the log deletes rows that neither it nor the older base has",
            hint=("dump it: ", advice.dump(f"{head.db}.{head.table}"), "; a primary key mends it for good"),
            tables=[f"{head.db}.{head.table}"],
        )
    rows = folded.drop_columns([COUNT])
    return rows if (counts == 1).all() else rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def cut(rows: pa.Table, most: int, begin: int | None, key: str | None) -> Iterator[tuple[int | None, pa.Table]]:
    """Rows in pieces of at most about so many bytes: (where it begins, as a rank of the key; rows).

    Args:
        rows: by key.
        most: bytes.
        begin: rank where all of them begin; None = they are no range of the key, nor will the pieces be.
        key: its first column; None = there is none.
    """
    if rows.nbytes <= most or rows.num_rows < 2:
        yield begin, rows
        return
    # With room to spare: a restore takes a part as it lies where it is no larger than a unit.
    count = min(-(-4 * rows.nbytes // (3 * most)), rows.num_rows)
    edges = np.arange(1, count) * rows.num_rows // count
    if begin is not None and key is not None:
        ranks = key_rank(rows.column(key).combine_chunks())
        # Rows of one rank stay together; of a key whose ranks are in no order all do.
        if (ranks[1:] >= ranks[:-1]).all():
            whole = np.unique(np.searchsorted(ranks, ranks[edges], "left"))
            whole = whole[whole > 0]
            if len(whole) >= count // 2:
                for low, high in pairwise((0, *whole, rows.num_rows)):
                    yield (begin if low == 0 else int(ranks[low])), rows.slice(low, high - low)
                return
    for low, high in pairwise((0, *edges, rows.num_rows)):
        yield None, rows.slice(low, high - low)
