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

import pyarrow as pa
import pyarrow.compute as pc

from pumphouse import advice
from pumphouse.clock import SYSTEM_CLOCK, Clock
from pumphouse.errors import RowRejected
from pumphouse.loader import literals
from pumphouse.loader.columns import columns_of, shown
from pumphouse.loader.fence import hold_shared
from pumphouse.loader.fold import PASSING
from pumphouse.loader.insert import Collided, Rejected, insert_rows, take_back
from pumphouse.loader.keyless import delete_rows
from pumphouse.loader.plan import Phase, UnitId
from pumphouse.loader.scratch import scratch
from pumphouse.loader.target import NO_SUCH, RetryUnit, StatementFailed, TargetConnection
from pumphouse.loader.unfit import require_transactional
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
        droppable: the source may drop the key while rows are written, so that two of them have it for a while.
        stored: STORED columns of the source, which only a target gets that has them as plain ones.
    """

    unit: UnitId
    db: str
    table: str
    key: tuple[str, ...]
    droppable: bool = False
    stored: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """Quoted, qualified table."""
        return qualified(self.db, self.table)

    @property
    def scans(self) -> bool:
        """Whether all of the table is read for it: rows go that have no key."""
        return self.unit.phase == Phase.DELETE and not self.key

    def to_metadata(self) -> dict[bytes, bytes]:
        """As schema metadata."""
        unit = self.unit
        return {
            HEAD: json.dumps(
                [
                    unit.epoch,
                    unit.phase,
                    unit.table_id,
                    unit.bucket,
                    self.db,
                    self.table,
                    list(self.key),
                    self.droppable,
                    list(self.stored),
                ]
            ).encode()
        }

    @classmethod
    def of(cls, schema: pa.Schema) -> UnitHead:
        """Read the metadata."""
        epoch, phase, table_id, bucket, db, table, key, droppable, stored = json.loads(schema.metadata[HEAD])
        unit = UnitId(epoch, phase, table_id, bucket)
        return cls(unit=unit, db=db, table=table, key=tuple(key), droppable=droppable, stored=tuple(stored))


class _Applied(Exception):
    """The unit was applied before."""


# A unit and its rows.
Unit = tuple[UnitHead, Sequence[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Under which plan and fence a unit is applied."""

    task: str
    plan: int
    fence: int


def apply_units(
    connection: TargetConnection, claim: Claim, units: Sequence[Unit], *, clock: Clock = SYSTEM_CLOCK
) -> list[bool]:
    """Apply a unit; or several that read all of one table (`UnitHead.scans`), in a transaction that reads it once."""
    if len(units) > 1 and _retried(connection, claim, units, clock):
        return [True] * len(units)
    return [_retried(connection, claim, [unit], clock) for unit in units]


def _retried(connection: TargetConnection, claim: Claim, units: Sequence[Unit], clock: Clock) -> bool:
    for attempt in range(_ATTEMPTS):
        try:
            return _once(connection, claim, units)
        except RetryUnit:
            if attempt == _ATTEMPTS - 1:
                raise
            clock.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))  # noqa: S311
    raise AssertionError


def _once(connection: TargetConnection, claim: Claim, units: Sequence[Unit]) -> bool:
    """One unit, or several of which each reads the whole table; False = one of them was applied."""
    head = units[0][0]
    batches = [batch for _, some in units for batch in some]
    require_transactional(connection, head.db, head.table)
    try:
        batches = _as_there(connection, head, batches)
        with connection.transaction():
            hold_shared(connection, claim.fence)
            for each, some in units:
                _write_down(connection, claim, each.unit, sum(batch.num_rows for batch in some))
            if head.unit.phase == Phase.INSERT:
                for batch in batches:
                    _insert(connection, head, batch)
            elif head.key:
                _take_away(connection, head, batches)
            else:
                delete_rows(connection, head.db, head.table, batches)
    except _Applied:
        return False
    except StatementFailed as error:
        found = other_shape(error, head.db, head.table)
        if found is None:
            raise
        raise found from error
    except Rejected as rejected:
        raise _explain(connection, head, batches, rejected) from rejected
    return True


def _as_there(connection: TargetConnection, head: UnitHead, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows without the columns that the target computes, or has not."""
    out = set(computed_there(connection, head.db, head.table, head.stored)).intersection(batches[0].schema.names)
    return [batch.drop_columns(sorted(out)) for batch in batches] if out else batches


def computed_there(connection: TargetConnection, db: str, table: str, stored: Sequence[str]) -> list[str]:
    """Those of the source's STORED columns that a target's table has not as plain ones."""
    there = (connection.columns_there((db, table)) or {}) if stored else {}
    return [name for name in stored if there.get(name.lower(), True)]


def _write_down(connection: TargetConnection, claim: Claim, unit: UnitId, rows: int) -> None:
    """The unit's id: whoever else applies it waits here until we have ended. `_Applied` where it is there."""
    try:
        connection.execute(
            f"INSERT INTO {connection.table('applied')}"
            " (task, plan, epoch, phase, table_id, bucket, row_count) VALUES (%s, %s, %s, %s, %s, %s, %s)",
            (claim.task, claim.plan, unit.epoch, unit.phase, unit.table_id, unit.bucket, rows),
        )
    except StatementFailed as error:
        if error.code != _DUPLICATE:
            raise
        raise _Applied from error


def _insert(connection: TargetConnection, head: UnitHead, batch: pa.RecordBatch) -> None:
    """Each row must be new: what stood under its key went in the delete phase.

    A target that has more than the source had (it was changed by others) loses that here. Not under a key that may be
    going at the source, where both rows may stand.
    """
    try:
        insert_rows(connection, head.target, batch)
    except Collided:
        if not head.key or head.droppable:
            raise
        take_back(connection)
        _delete_keys(connection, head, [batch.select(list(head.key))])
        insert_rows(connection, head.target, batch)


def _take_away(connection: TargetConnection, head: UnitHead, batches: Sequence[pa.RecordBatch]) -> None:
    """The deletes of a unit; Rejected where a row stands under a key that only passing rows had (`PASSING`)."""
    if PASSING in batches[0].schema.names:
        met = [batch.filter(batch.column(PASSING)) for batch in batches]
        if _delete_keys(connection, head, [batch.select(list(head.key)) for batch in met]):
            raise Rejected("some collide: rows came and went under keys that others have there", batches[0])
        batches = [batch.filter(pc.invert(batch.column(PASSING))).select(list(head.key)) for batch in batches]
    _delete_keys(connection, head, batches)


def _delete_keys(connection: TargetConnection, head: UnitHead, batches: Sequence[pa.RecordBatch]) -> int:
    """Delete every row whose key is in the batches, and count them; keys that are not there are no error (safe mode).

    Byte by byte: a row whose key is equal only to the target's collation is another row of the source. It stays, and
    the insert that collides with it is named.
    """
    batches = [batch for batch in batches if batch.num_rows]
    if not batches:
        return 0
    columns = columns_of(batches[0].schema)
    tidb = connection.dialect is Dialect.TIDB
    if tidb and len(columns) == 1 and columns[0].is_integer:
        # Three times as fast there as the join.
        return sum(
            connection.execute(f"DELETE FROM {head.target} WHERE {quote(columns[0].name)} IN ({some.decode()})")
            for batch in batches
            for some, _ in literals.lists(batch.column(0), most=_KEYS_BYTES)
        )
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
        return connection.execute(f"DELETE {hint}{head.target} FROM {keys} STRAIGHT_JOIN {head.target} ON {condition}")


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
        hint=(
            advice.compare(head.db),
            " compares its columns and rows with the source's; SHOW CREATE TABLE shows its keys and collations",
        ),
        table=f"{head.db}.{head.table}",
        rows=named,
        reason=rejected.reason,
    )


def other_shape(error: StatementFailed, db: str, table: str) -> RowRejected | None:
    """Where a statement failed because its table is another one than the load left, the error that says so."""
    if error.code not in NO_SUCH or qualified(db, table) not in str(error.statement):
        return None
    return RowRejected(
        f"{db}.{table} is not there as the load left it: {error.message}",
        hint=(advice.compare(db), " compares its columns with the source's"),
        table=f"{db}.{table}",
        rows=[],
        reason=error.message,
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
    return {name: shown(batch.column(name)[row].as_py()) for name in names}
