"""What of a dump is read, what is not, and what a DDL has spoilt. Pure: from the view and the notes alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pumphouse.archive.base import BaseChunk, BaseTable, TableWithout
from pumphouse.archive.view import ArchiveView, has_rows
from pumphouse.loader.columns import Column
from pumphouse.loader.keys import key_columns, page_columns
from pumphouse.model.table import TableInfo
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import Reach
from pumphouse.schema.versions import Change, DdlEvent, TableVersion
from pumphouse.settings import DumpRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Where a dump stands.

    Args:
        tables: those that are read whole, as they go into the base.
        missing: tables that there are at the moment and that are not read whole.
        without: tables that would have to be read, and that a rule leaves out.
        begun: table id -> chunks of an attempt at a missing table that still counts, from number 0 on.
    """

    tables: tuple[BaseTable, ...]
    missing: tuple[TableVersion, ...]
    without: tuple[TableWithout, ...]
    begun: Mapping[int, tuple[BaseChunk, ...]]


def survey(
    view: ArchiveView,
    log_from: Tso,
    chunks: Iterable[BaseChunk],
    at: Tso,
    earlier: Iterable[BaseTable] = (),
    chosen: Callable[[TableVersion], bool] = lambda _: False,
    rules: Sequence[DumpRule] = (),
) -> Survey:
    """Look at a dump.

    A table's rows count when no DDL that changed them or the table's shape came after their ``low``, nor was under way
    at ``at``. A table that was born empty after ``log_from`` and not changed since needs
    none: the log has all of it.

    Args:
        view: sees everything that began up to ``at``: its end was taken after every Pump had passed ``at``.
        log_from: the log above it is laid over the base; at or below every table's ``low``.
        chunks: all notes of the dump.
        at: the moment from which on the base is to be exact.
        earlier: tables of an earlier dump that are taken over as they are.
        chosen: whether a table is read even when the log has all of it.
        rules: which tables are not read.
    """
    kept = {table.table_id: table for table in earlier}
    events = [
        e
        for e in view.timeline.ddls(log_from, view.end)
        if e.commit_ts <= at or int(e.job.raw.get("start_ts") or 0) <= at
    ]
    touched: dict[int, Tso] = {}
    every = Tso(0)
    for event in events:
        if event.facts.reach is Reach.CLUSTER:
            every = event.commit_ts
        for change in event.changes:
            if event.problem or not _keeps_rows(change):
                touched |= dict.fromkeys(change.ids, event.commit_ts)
    born = _born(events)
    attempts: dict[int, dict[Tso, dict[int, BaseChunk]]] = defaultdict(lambda: defaultdict(dict))
    for chunk in chunks:
        attempts[chunk.table_id][chunk.low][chunk.number] = chunk
    tables, missing, without, begun = [], [], [], {}
    for version in view.timeline.tables_at(at):
        table_id = version.table.id
        if not has_rows(version) or (table_id in born and not chosen(version)):
            continue
        since = max(every, touched.get(table_id, Tso(0)))
        valid = [_leading(found) for low, found in sorted(attempts[table_id].items()) if low >= since]
        whole = next((found for found in valid if found and found[-1].last), None)
        if whole is not None:
            tables.append(_table(version, whole))
            continue
        if table_id in kept and kept[table_id].low >= since:
            tables.append(kept[table_id])
            continue
        if rule := next((rule for rule in rules if rule.covers(*version.name)), None):
            without.append(TableWithout(db=version.db, table=version.table.name, table_id=table_id, why=rule.why))
            continue
        missing.append(version)
        if valid and valid[-1] and page_columns(version.table):
            begun[table_id] = valid[-1]
    return Survey(tables=tuple(tables), missing=tuple(missing), without=tuple(without), begun=begun)


def _leading(found: Mapping[int, BaseChunk]) -> tuple[BaseChunk, ...]:
    """Chunks from number 0 on, without a hole."""
    return tuple(found[number] for number in range(len(found)) if number in found)


def _table(version: TableVersion, chunks: tuple[BaseChunk, ...]) -> BaseTable:
    segments = tuple(chunk.segment for chunk in chunks if chunk.segment is not None)
    return BaseTable(
        db=version.db,
        table=version.table.name,
        table_id=version.table.id,
        rows=sum(segment.rows for segment in segments),
        segments=segments,
        low=chunks[0].low,
        ranks=_ranks(version.table, chunks),
    )


def _ranks(table: TableInfo, chunks: tuple[BaseChunk, ...]) -> tuple[int, ...] | None:
    """Where the segments but the first begin, of a table whose key is one integer: the server's order is its own."""
    key = key_columns(table)
    types = [column.type for column in table.public_columns if key == (column.name,)]
    if not types or not Column(key[0], types[0].tp).is_integer:
        return None
    shift = 0 if types[0].unsigned else 1 << 63
    begins: list[int] = []
    begin = 0
    for chunk in chunks:
        if chunk.segment is not None:
            begins.append(begin)
        if chunk.upto is not None:
            begin = int(chunk.upto[0]) + 1 + shift
    return tuple(begins[1:])


def _born(events: Iterable[DdlEvent]) -> set[int]:
    """Ids of tables that began empty, and whose rows and shape no DDL changed since: the log alone says all."""
    born: set[int] = set()
    for event in events:
        for change in event.changes:
            if not _keeps_rows(change):
                born -= change.ids
            if event.begins_empty and change.after is not None:
                born.add(change.after.table.id)
    return born


def _keeps_rows(change: Change) -> bool:
    """Whether a DDL left name, columns, key and partitions as they were: an index was added, a comment changed."""
    before, after = change.before, change.after
    return before is not None and after is not None and _shape(before) == _shape(after)


def _shape(version: TableVersion) -> tuple[object, ...]:
    table = version.table
    columns = tuple((c.id, c.name, c.type, c.generated) for c in table.public_columns)
    return version.name, table.id, columns, key_columns(table), tuple(table.partition_ids)
