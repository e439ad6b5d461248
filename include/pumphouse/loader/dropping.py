"""Rows that were written into a partition's range while the partition was being dropped.

TiDB drops a partition in steps, and the binlog of the DDL comes with the last. Who sees the first step writes a row of
that range into the next partition, where it stays; who does not see it yet writes into the partition, and the row goes
with it. The binlog does not tell which of the two a row was: it names the table alone, its schema version may be newer
than what the statement saw, and a transaction that began before the DDL may see it all the same. On a target all of
them lie in the partition, and would go. Nor does it help that a row of that key is deleted later: the source may have
deleted the one in the partition. So the DDL waits for a hand where a row of the range was written at all.
"""

# Names in statements are quoted by pumphouse.schema.ident.
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from pumphouse.codec.columnar import INSERT, UPDATE, blocks, walk
from pumphouse.errors import BinlogError, LoadError, PartitionUnsettled, RowRejected
from pumphouse.loader.columns import columns_of, shown
from pumphouse.loader.context import LoadContext
from pumphouse.loader.decode import Layouts, groups_of
from pumphouse.loader.fence import check_lock
from pumphouse.loader.held import images_of
from pumphouse.loader.insert import Rejected, insert_loosely, loosely
from pumphouse.loader.rules import anew_hint, ddl_hint
from pumphouse.loader.scratch import scratch
from pumphouse.loader.tables import Wanted, WantedTables
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.work import SegmentPart
from pumphouse.model.tso import Tso, show
from pumphouse.schema.alter import partition_names
from pumphouse.schema.ident import columns as column_list
from pumphouse.schema.ident import qualified
from pumphouse.schema.versions import DdlEvent

_COLUMNS = ("commit_ts", "payload")
_TWIN = "dropping"


@dataclass(frozen=True, slots=True)
class Dropping:
    """A DROP PARTITION that was under way for a while.

    Args:
        event: the DDL.
        table_ids: its table and the table's partitions.
        names: of the partitions that it drops.
        begun: the job began at this ts; whoever committed earlier did not see it.
    """

    event: DdlEvent
    table_ids: frozenset[int]
    names: tuple[str, ...]
    begun: Tso


def dropping(event: DdlEvent) -> Dropping | None:
    """What an event is in this regard; None of other DDLs, and of jobs that do not say when they began."""
    begun = event.dropping_since
    if not begun or not event.changes or event.changes[0].before is None or event.changes[0].after is None:
        return None
    before, after = event.changes[0].before.table, event.changes[0].after.table
    names, _ = partition_names(before, after)
    return Dropping(event, frozenset({before.id, *before.partition_ids}), tuple(names), begun)


def require_settled(
    connection: TargetConnection, drop: Dropping, context: LoadContext, pieces: Iterator[SegmentPart], archived: Tso
) -> None:
    """PartitionUnsettled where a row that may have been written beside the partition goes with it on the target.

    Args:
        connection: the target, before the DDL, on the connection that owns it.
        drop: the DDL.
        context: of the plan that has the DDL, with the history of its table.
        pieces: what has the table's changes from ``drop.begun`` to the DDL.
        archived: where the archive begins; what was written before is not known.
    """
    wanted = WantedTables(context).of(drop.event.changes[0].known.table.id, drop.event.commit_ts)
    names = () if wanted is None else _there(connection, wanted, drop.names)
    if wanted is None or not names:
        return
    if drop.begun < archived:
        raise _unsettled(drop, f"It began before the archive, at {show(drop.begun)}; rows may have been written there")
    try:
        found = _met(connection, drop, wanted, names, context, pieces)
    except BinlogError as error:
        error.add_hint(ddl_hint(drop.event.job.id))
        raise
    if found is not None:
        meanwhile = f"While it was under way, from {show(drop.begun)} on, rows were written into that range, as {found}"
        raise _unsettled(drop, meanwhile, found)


def _met(
    connection: TargetConnection,
    drop: Dropping,
    wanted: Wanted,
    names: tuple[str, ...],
    context: LoadContext,
    pieces: Iterator[SegmentPart],
) -> dict[str, str] | None:
    """One of the rows that were written meanwhile and belong to the partitions; None = there is none."""
    written = _written(drop, wanted, context, pieces)
    first = next(written, None)
    if first is None:
        return None
    with _twin(connection, wanted) as twin:
        each = (_within(connection, twin, wanted, names, rows) for rows in chain([first], written))
        return next((found for found in each if found is not None), None)


def _written(
    drop: Dropping, wanted: Wanted, context: LoadContext, pieces: Iterator[SegmentPart]
) -> Iterator[pa.RecordBatch]:
    """What was written meanwhile, whole rows."""
    layouts = Layouts(context.timeline)
    for batch in (batch for piece in pieces for batch in context.read(piece, _COLUMNS)):
        found = walk(batch.column("payload"))
        # Of this plan alone: what an earlier one loaded is there, although a rule of today leaves it out.
        found = found.take(~np.isin(batch.column("commit_ts").to_numpy(), context.plan.without)[found.txn])
        found = found.take(np.isin(found.table_id, list(drop.table_ids)) & np.isin(found.op, (INSERT, UPDATE)))
        for rows in groups_of(found.schema_version, found.op):
            part = found.take(rows)
            op, written = int(part.op[0]), context.timeline.at_version(wanted.table_id, int(part.schema_version[0]))
            layout = layouts.of(wanted, written)
            for block in blocks(part.row_len):
                images = images_of(part.data, part.row_start[block], part.row_len[block], op, wanted, layout, None)
                yield images[1] if op == UPDATE else images


def _there(connection: TargetConnection, wanted: Wanted, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the partitions that the target has: none where the DDL ran before a crash."""
    rows = connection.query(
        "SELECT partition_name FROM information_schema.partitions WHERE table_schema = %s AND table_name = %s",
        (wanted.db, wanted.table.name),
    )
    have = {str(name).lower() for (name,) in rows}
    return tuple(name for name in names if name.lower() in have)


@contextmanager
def _twin(connection: TargetConnection, wanted: Wanted) -> Iterator[str]:
    """An empty table in our schema with the partitions of one of the target; gone after the block, its quoted name.

    The server alone says what belongs to a partition; a temporary table can have none.
    """
    twin = qualified(connection.settings.schema_name, _TWIN)
    check_lock(connection)
    connection.execute(f"DROP TABLE IF EXISTS {twin}")  # of a run that was killed
    connection.execute(f"CREATE TABLE {twin} LIKE {qualified(wanted.db, wanted.table.name)}")
    try:
        yield twin
    finally:
        with suppress(LoadError):
            connection.execute(f"DROP TABLE IF EXISTS {twin}")


def _within(
    connection: TargetConnection, twin: str, wanted: Wanted, names: tuple[str, ...], rows: pa.RecordBatch
) -> dict[str, str] | None:
    """One of the rows that belongs to the partitions; None = none does."""
    columns = [column.name for column in columns_of(rows.schema)]
    listed = column_list(columns)
    with scratch(connection, "unit_keys", (wanted.db, wanted.table.name), columns) as some:
        connection.execute("BEGIN")
        try:
            insert_loosely(connection, some, rows)  # what a row may hold is asked where it is loaded
            with loosely(connection):
                # A row that another replaces has the same columns of the partitioning: every unique key has them.
                connection.execute(f"REPLACE INTO {twin} ({listed}) SELECT {listed} FROM {some}")
            return _lies_in(connection, twin, names, wanted.key or columns)
        except Rejected as error:
            table = f"{wanted.db}.{wanted.table.name}"
            raise RowRejected(f"{table}: {error.reason}", table=table, reason=error.reason) from error
        finally:
            with suppress(LoadError):  # on a lost connection the server does it
                connection.execute("ROLLBACK")


def _lies_in(
    connection: TargetConnection, table: str, names: tuple[str, ...], columns: Sequence[str]
) -> dict[str, str] | None:
    """Columns of a row that lies in the partitions; None = there is none."""
    found = connection.query(
        f"SELECT {column_list(list(columns))} FROM {table} PARTITION ({column_list(list(names))}) LIMIT 1"
    )
    return {name: shown(value) for name, value in zip(columns, found[0], strict=True)} if found else None


def _unsettled(drop: Dropping, why: str, row: dict[str, str] | None = None) -> PartitionUnsettled:
    event = drop.event
    table = ".".join(event.changes[0].known.name)
    return PartitionUnsettled(
        f"DDL job {event.job.id} at {show(event.commit_ts)} drops {', '.join(drop.names)} of {table}. {why}; "
        "the binlog does not tell whether the source still has them",
        hint=(*ddl_hint(event.job.id), "; or, in a load, ", *anew_hint(table)),
        job_id=event.job.id,
        table=table,
        row=row,
    )
