"""Fold changes to their net effect: the last entry per key, or the sum of copies per row where there is no key.

Entries are Arrow tables, one row a change: the target's columns, then ours. For a table with a key: `TS`, `START` and
`POSITION` give the order, `PUT` says whether the row stands after the change, `NET` is +1 where it came, -1 where it
went and 0 where it only changed (an update that moves its key is two entries). For a table without: `COUNT` is +1 for a
row that came and -1 for one that went. An entry at `GAP_TS` with the net `GAP` is of a change that the plan leaves out:
it says only that the key was met there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse import advice
from pumphouse.errors import DuplicateKey
from pumphouse.loader.columns import shown
from pumphouse.loader.keyless import COUNT

TS, START, POSITION, PUT = "pumphouse:ts", "pumphouse:start", "pumphouse:position", "pumphouse:put"
NET = "pumphouse:net"
NET_FIELD = pa.field(NET, pa.int32())
# Before every change; more than the changes of a key can add up to, and a sum of two is no number of 32 bits.
GAP_TS, GAP = -1, 1 << 30
ORDER_FIELDS = (
    pa.field(TS, pa.int64()),
    pa.field(START, pa.int64()),
    pa.field(POSITION, pa.int64()),
    pa.field(PUT, pa.bool_()),
    NET_FIELD,
)
COUNT_FIELD = pa.field(COUNT, pa.int64())
PASSING = "pumphouse:passing"
_INDEX = "pumphouse:index"


@dataclass(frozen=True, slots=True)
class LastOfKeys:
    """The last entry of each key (byte by byte), in no order.

    Args:
        entries: what was folded.
        at: where these entries are.
        net: sum of `NET` over all entries of the key, `GAP` at most.
    """

    entries: pa.Table
    at: np.ndarray
    net: np.ndarray

    @classmethod
    def of(cls, entries: pa.Table, key: Sequence[str]) -> Self:
        """Fold entries of a table with a key; nothing but the key is copied."""
        ts, start, position = (entries.column(name).to_numpy() for name in (TS, START, POSITION))
        order = np.lexsort((position, start, ts))
        names = _numbers(len(key))
        keys = entries.select([*key, NET]).take(pa.array(order)).rename_columns([*names, NET])
        keys = keys.append_column(_INDEX, pa.array(np.arange(entries.num_rows)))
        found = keys.group_by(names, use_threads=False).aggregate([(_INDEX, "max"), (NET, "sum")])
        net = np.minimum(found.column(f"{NET}_sum").to_numpy(), GAP).astype(np.int32)
        return cls(entries, order[found.column(f"{_INDEX}_max").to_numpy()], net)

    @property
    def stands(self) -> np.ndarray:
        """Mask of the keys that have a row after the changes."""
        found: np.ndarray = np.asarray(self.entries.column(PUT).take(pa.array(self.at)))
        return found

    @property
    def before(self) -> np.ndarray:
        """Rows that each key had before the changes: what stands after them, less what came and went."""
        found: np.ndarray = self.stands.astype(np.int32) - self.net
        return found

    @property
    def gapped(self) -> np.ndarray:
        """Mask of the keys that a change which is left out has met: their changes do not add up."""
        found: np.ndarray = self.net > GAP // 2
        return found

    def changed(self) -> LastOfKeys:
        """Without the keys that no other change has met."""
        ts = self.entries.column(TS).to_numpy()[self.at]
        return self.in_order(np.flatnonzero(ts != GAP_TS)) if self.gapped.any() else self

    def keys(self, key: Sequence[str]) -> pa.Table:
        """The keys."""
        return self.entries.select(list(key)).take(pa.array(self.at))

    def in_order(self, order: np.ndarray) -> LastOfKeys:
        """These of them, in this order."""
        return LastOfKeys(self.entries, self.at[order], self.net[order])

    def to_entries(self) -> pa.Table:
        """As entries, which can be folded with others."""
        found = self.entries.take(pa.array(self.at))
        return found.set_column(found.schema.get_field_index(NET), NET_FIELD, pa.array(self.net))


def check_keys(folded: LastOfKeys, key: Sequence[str], name: str) -> None:
    """DuplicateKey when the changes of a key, all of them with no gap, can be no history of one row.

    What stands after them, less what came and went, is what stood before: one row or none. An INSERT over a row that
    stands (REPLACE is a delete and an insert) leaves less than none. Sums can be taken in any order, so this holds
    however the changes were dealt out and folded before.
    """
    before = folded.before
    wrong = np.flatnonzero(((before < 0) | (before > 1)) & ~folded.gapped)
    if not len(wrong):
        return
    found = folded.in_order(wrong[:3]).keys(key).to_pylist()
    rows = [{column: shown(value) for column, value in row.items()} for row in found]
    raise DuplicateKey(
        f"{len(wrong)} keys ({', '.join(key)}) of {name} were given to more than one row at a time, as {rows[0]}",
        hint=advice.saying(
            "at TiDB: a DROP INDEX of that key was under way, and its end lies beyond what was asked for: nothing of "
            "this plan was done; load again when the archive has it ({}), or restore to a moment after it. Or a DROP "
            "PARTITION was under way: park the table, {}, {}, take the rule away, {}. An application of yours: rows "
            "went or came in its store without a binlog (it was emptied, a restore or a flashback put rows back) and "
            "were changed again: {}, then restore to a moment after that, or fold one; a load: as for a DROP PARTITION",
            advice.SNAPSHOT,
            advice.dump(),
            advice.load(),
            advice.load(resync=name),
            advice.dump(),
        ),
        table=name,
        key=list(key),
        rows=rows,
    )


def fold_multiset(entries: pa.Table) -> pa.Table:
    """Each distinct row once, with the sum of its copies; rows whose sum is 0 are gone."""
    columns = [name for name in entries.schema.names if name != COUNT]
    names = _numbers(len(columns))
    counted = entries.select([*columns, COUNT]).rename_columns([*names, COUNT])
    summed = counted.group_by(names, use_threads=False).aggregate([(COUNT, "sum")])
    schema = pa.schema(
        [*(entries.schema.field(name) for name in columns), COUNT_FIELD], metadata=entries.schema.metadata
    )
    summed = pa.Table.from_arrays(summed.select([*names, f"{COUNT}_sum"]).columns, schema=schema)
    return summed.filter(pc.not_equal(summed.column(COUNT), 0))


def order_of(rows: pa.Table) -> np.ndarray:
    """Where the rows are, in the order of their columns."""
    names = _numbers(rows.num_columns)
    found: np.ndarray = pc.sort_indices(
        rows.rename_columns(names), sort_keys=[(name, "ascending") for name in names]
    ).to_numpy()
    return found


def _numbers(count: int) -> list[str]:
    """Names to group and sort by: one that begins with `.` or `[` is a path to pyarrow, here of another column."""
    return [str(at) for at in range(count)]


def net_of_keyed(
    folded: LastOfKeys, key: Sequence[str], *, everything: bool = False, passing: bool = False
) -> tuple[pa.Table, pa.Table]:
    """(keys to delete, rows to insert), by key, as a clustered table takes them fastest.

    Deleted is what stood before the changes; ``everything``: every key that was touched, where the target may have
    another row than the changes say. ``passing``: a column `PASSING` marks further keys, which had no row before and
    have none after: a row that stands there is one that the changes do not know.
    """
    folded = folded.in_order(order_of(folded.keys(key)))
    stands, before = folded.stands, folded.before
    stood = (before == 1) | folded.gapped | everything
    rows = folded.entries.drop_columns([field.name for field in ORDER_FIELDS]).take(pa.array(folded.at[stands]))
    passed = ~stood & ~stands & passing
    gone = folded.in_order(np.flatnonzero(stood | passed)).keys(key)
    return gone.append_column(PASSING, pa.array(passed[stood | passed])) if passing else gone, rows


def net_of_multiset(folded: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(rows to delete with their number of copies, rows to insert, each as often as it is to stand)."""
    counts = folded.column(COUNT)
    gone = folded.filter(pc.less(counts, 0))
    gone = gone.set_column(gone.num_columns - 1, COUNT_FIELD, pc.negate(gone.column(COUNT)))
    come = folded.filter(pc.greater(counts, 0))
    copies = come.column(COUNT).to_numpy()
    come = come.drop_columns([COUNT])
    return gone, come if (copies == 1).all() else come.take(pa.array(np.repeat(np.arange(len(copies)), copies)))
