"""Apply one unit: one transaction that changes one bucket of one table, in one phase, exactly once.

First the fence: a unit of an earlier owner finds another number and ends, and whoever takes the target over finds by
this lock every session that it has to end. Then the unit's id in `applied`: a twin (an executor that was thought dead)
blocks on that key until we commit, then skips. Only then the change.
"""

# Names in statements are quoted by pumphouse.schema.ident; values go as parameters.
# ruff: noqa: S608

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import RowRejected
from pumphouse.loader import literals
from pumphouse.loader.columns import columns_of
from pumphouse.loader.fence import hold_shared
from pumphouse.loader.insert import Collided, Rejected, insert_rows, take_back
from pumphouse.loader.keyless import delete_rows
from pumphouse.loader.plan import Phase, UnitId
from pumphouse.loader.scratch import scratch
from pumphouse.loader.target import RetryUnit, StatementFailed, TargetConnection
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import qualified, quote

_ATTEMPTS = 20
_DUPLICATE = 1062
_KEYS_BYTES = 32 << 10
HEAD = b"pumphouse.unit"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitHead:
    """What a unit is about; travels in the schema metadata of its batches.

    Args:
        unit: its id.
        db: database on the target.
        table: table on the target.
        key: names of the columns that identify a row; () = rows are compared whole, as a multiset.
        rows: rows in all batches.
    """

    unit: UnitId
    db: str
    table: str
    key: tuple[str, ...]

    @property
    def target(self) -> str:
        """Quoted, qualified table."""
        return qualified(self.db, self.table)

    def to_metadata(self) -> dict[bytes, bytes]:
        """As schema metadata."""
        unit = self.unit
        return {
            HEAD: json.dumps(
                [unit.epoch, unit.phase, unit.table_id, unit.bucket, self.db, self.table, list(self.key)]
            ).encode()
        }

    @classmethod
    def of(cls, schema: pa.Schema) -> UnitHead:
        """Read the metadata."""
        epoch, phase, table_id, bucket, db, table, key = json.loads(schema.metadata[HEAD])
        return cls(unit=UnitId(epoch, phase, table_id, bucket), db=db, table=table, key=tuple(key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Under which plan and fence a unit is applied."""

    task: str
    plan: int
    fence: int


def apply_unit(
    connection: TargetConnection,
    claim: Claim,
    head: UnitHead,
    batches: Sequence[pa.RecordBatch],
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> bool:
    """Apply a unit, or find that it was applied: False. A deadlock or lock time-out is tried again from the start."""
    for attempt in range(_ATTEMPTS):
        try:
            return _once(connection, claim, head, batches)
        except RetryUnit:
            if attempt == _ATTEMPTS - 1:
                raise
            clock.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))  # noqa: S311
    raise AssertionError


def _once(connection: TargetConnection, claim: Claim, head: UnitHead, batches: Sequence[pa.RecordBatch]) -> bool:
    unit, rows = head.unit, sum(batch.num_rows for batch in batches)
    try:
        with connection.transaction():
            hold_shared(connection, claim.fence)
            connection.execute(
                f"INSERT INTO {connection.table('applied')}"
                " (task, plan, epoch, phase, table_id, bucket, row_count) VALUES (%s, %s, %s, %s, %s, %s, %s)",
                (claim.task, claim.plan, unit.epoch, unit.phase, unit.table_id, unit.bucket, rows),
            )
            if unit.phase == Phase.INSERT:
                for batch in batches:
                    _insert(connection, head, batch)
            elif head.key:
                _delete_keys(connection, head, batches)
            else:
                delete_rows(connection, head.db, head.table, batches)
    except StatementFailed as error:
        if error.code == _DUPLICATE and "applied" in str(error.statement):
            return False
        raise
    except Rejected as rejected:
        raise _explain(connection, head, batches, rejected) from rejected
    return True


def _insert(connection: TargetConnection, head: UnitHead, batch: pa.RecordBatch) -> None:
    """Each row must be new: what stood under its key went in the delete phase.

    A target that has more than the source had (it was changed by others) loses that here.
    """
    try:
        insert_rows(connection, head.target, batch)
    except Collided:
        if not head.key:
            raise
        take_back(connection)
        _delete_keys(connection, head, [batch.select(list(head.key))])
        insert_rows(connection, head.target, batch)


def _delete_keys(connection: TargetConnection, head: UnitHead, batches: Sequence[pa.RecordBatch]) -> None:
    """Delete every row whose key is in the batches; keys that are not there are no error (safe mode).

    Byte by byte: a row whose key is equal only to the target's collation is another row of the source. It stays, and
    the insert that collides with it is named.
    """
    columns = columns_of(batches[0].schema)
    tidb = connection.dialect is Dialect.TIDB
    if tidb and len(columns) == 1 and columns[0].is_integer:
        # Three times as fast there as the join.
        for batch in batches:
            for some, _ in literals.lists(batch.column(0), most=_KEYS_BYTES):
                connection.execute(f"DELETE FROM {head.target} WHERE {quote(columns[0].name)} IN ({some.decode()})")
        return
    with scratch(connection, "unit_keys", (head.db, head.table), head.key) as keys:
        for batch in batches:
            insert_rows(connection, keys, batch)
        # Without aliases: an alias in DELETE would need a default database. `=` beside `same`: for the index.
        condition = " AND ".join(
            f"{head.target}.{quote(column.name)} = {keys}.{quote(column.name)} AND {column.same(head.target, keys)}"
            for column in columns
        )
        # A TiDB, which counts no rows of temporary tables, would read the whole table.
        hint = f"/*+ INL_JOIN({head.target}) */ " if tidb else ""
        connection.execute(f"DELETE {hint}{head.target} FROM {keys} STRAIGHT_JOIN {head.target} ON {condition}")


def _explain(
    connection: TargetConnection, head: UnitHead, batches: Sequence[pa.RecordBatch], rejected: Rejected
) -> RowRejected:
    """Name the rows. Where the server did not say which, halves are tried, in a transaction that is rolled back."""
    batch, row = rejected.batch, rejected.row
    if row is None and head.unit.phase == Phase.INSERT:
        row = _find_collision(connection, head, batches)
        if row is not None:
            batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    named = [] if row is None or row >= batch.num_rows else [_name_row(batch, row, head.key)]
    return RowRejected(
        f"{head.db}.{head.table} did not take its rows: {rejected.reason}" + (f"; row {named[0]}" if named else ""),
        hint=f"`pumphouse diff --schema {head.db}` compares its columns, keys and collations with the source's",
        table=f"{head.db}.{head.table}",
        rows=named,
        reason=rejected.reason,
    )


def _find_collision(connection: TargetConnection, head: UnitHead, batches: Sequence[pa.RecordBatch]) -> int | None:
    """Index (over all batches) of the first row that removes another one."""
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    connection.execute("BEGIN")
    try:
        low, high = 0, whole.num_rows
        while high - low > 1:
            middle = (low + high) // 2
            connection.execute("SAVEPOINT half")
            try:
                insert_rows(connection, head.target, whole.slice(low, middle - low))
            except Rejected:
                connection.execute("ROLLBACK TO SAVEPOINT half")
                high = middle
            else:
                low = middle
    except (StatementFailed, RetryUnit):
        return None
    finally:
        connection.execute("ROLLBACK")
    return low


def _name_row(batch: pa.RecordBatch, row: int, key: Sequence[str]) -> dict[str, str]:
    names = key or batch.schema.names[:8]
    return {name: _show(batch.column(name)[row].as_py()) for name in names}


def _show(value: Any) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"
