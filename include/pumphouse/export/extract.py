"""What of an archive is exported: its transactions and DDLs between two moments, in commit order, in some form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.losses import Losses, losses_of
from pumphouse.archive.range import Range
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.errors import UnknownTable, UsageError
from pumphouse.export.ddls import ExportedDdl, ddls_of
from pumphouse.export.encode import Encoder, Form, Frames, Piece
from pumphouse.export.transactions import transactions
from pumphouse.loader.report import Progress
from pumphouse.model.tso import Tso, show
from pumphouse.restore.find import Sought, called_so, lived_as, renumbered, tables_called
from pumphouse.schema.versions import TableVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a destination has already, from ``begin`` of the export up to ``end``.

    Args:
        end: inclusive.
        table_ids: the tables that its names meant; () where all are wanted.
    """

    end: Tso
    table_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """(begin, upto] of an archive.

    Args:
        archive: which one.
        view: of it.
        begin: exclusive; where what a destination holds begins.
        upto: inclusive.
        table_ids: the tables that are wanted; () = all but the system's.
        ddls: of the range.
        skipped: ids of tables that no DDL names and whose rows are left out.
    """

    archive: Archive
    view: ArchiveView
    begin: Tso
    upto: Tso
    table_ids: tuple[int, ...]
    ddls: tuple[ExportedDdl, ...]
    skipped: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, archive: Archive, view: ArchiveView, begin: Tso, upto: Tso, tables: Sequence[str], before: Before | None
    ) -> Extract:
        """Choose the tables, and say every DDL.

        Args:
            archive: which one.
            view: of it, from ``begin`` on.
            begin: exclusive.
            upto: inclusive.
            tables: ``database.table`` or patterns; () = all but the system's.
            before: what the destination has.

        Raises:
            UnknownTable: no table of the range is called so.
            UsageError: the destination lacks rows of a table that is wanted now.
            UnknownDdl: a DDL of the range cannot be exported.
        """
        sought = Sought(after=begin, upto=upto, tables=tuple(tables))
        chosen = _chosen(view, sought, before)
        jobs = archive.jobs(view.between(begin, upto), begin, upto)
        ddls = ddls_of(view.timeline, jobs, begin, upto, sought, chosen)
        return cls(
            archive=archive, view=view, begin=begin, upto=upto, table_ids=tuple(sorted(chosen)), ddls=tuple(ddls)
        )

    @property
    def losses(self) -> Losses:
        """What the archive lacks of it."""
        return self.lost(self.begin, self.upto)

    def lost(self, after: Tso, upto: Tso) -> Losses:
        """What the archive lacks of (after, upto] of it."""
        return losses_of(self.view.windows, after=after, upto=upto)

    def encoded(
        self, form: Form[Any], after: Tso, upto: Tso, tell: Progress, table_ids: Sequence[int] | None = None
    ) -> Iterator[Frames | Piece | ExportedDdl]:
        """(after, upto] of it in order; ``table_ids`` in place of its own."""
        chosen = frozenset(self.table_ids if table_ids is None else table_ids)
        partitions = self.view.timeline.partitions.items()
        ids = chosen | {part for part, of in partitions if of in chosen} if chosen else None
        encoder = Encoder(self.view.timeline, chosen or None, form, self.skipped)
        batches = transactions(self.archive.store, self.view.between(after, upto), after, upto, ids, tell)
        for each in _in_order(batches, [each for each in self.ddls if after < each.commit_ts <= upto]):
            if isinstance(each, ExportedDdl):
                yield each
            else:
                yield from encoder.encode(each)


def view_upto(archive: Archive, begin: Tso, upto: Tso | None, kept: Range, way_on: str) -> tuple[ArchiveView, Tso]:
    """The archive from ``begin`` on, and the end of what is exported; None = the archive's.

    Raises:
        UsageError: the archive is ``kept`` from a later moment on (``way_on``: the hint), or ends before.
    """
    if begin < kept.start:
        raise UsageError(
            f"the archive is kept from {show(kept.start)} on, and {show(begin)} is before that{kept.aside(begin)}",
            hint=way_on,
        )
    view = read_view(archive, since=begin)
    if upto is not None and upto > view.end:
        raise UsageError(f"the archive ends at {show(view.end)}, and {show(upto)} is after that", hint="--to latest")
    return view, view.end if upto is None else upto


def _chosen(view: ArchiveView, sought: Sought, before: Before | None) -> frozenset[int]:
    """Ids of the tables that are wanted, over all that the destination gets; none = all tables.

    Those that are called so, and from there on each id that they get. What the destination has is followed from its
    end on, so runs that end anywhere give what one gives. An id that a table lost by TRUNCATE before it was called so
    goes with it where all of it lies behind that end: else the table begins at the TRUNCATE (`ddls`).
    """
    if not sought.tables:
        return frozenset()
    timeline = view.timeline
    if before is None:
        return tables_called(timeline, sought)
    known = frozenset(before.table_ids)
    try:
        called = known | called_so(timeline, sought)
    except UnknownTable:
        if not known:  # else they were dropped, or renamed, since
            raise
        called = known

    def there(table_id: int) -> Iterator[TableVersion]:
        return lived_as(timeline.versions[table_id], sought.after, before.end)

    for table_id in sorted(called - known):
        for was in there(table_id):
            raise UsageError(
                f"a table that was called {'.'.join(was.name)} before {show(before.end)} is now one of "
                f"{', '.join(sought.tables)}, and what was exported up to that moment has none of its rows",
                hint="export anew, into an empty directory or another topic, or export up to before it got that name "
                f"(--to), or name it (--table {'.'.join(was.name)}) in a new export",
            )
    followed = renumbered(timeline, called, before.end, sought.upto) - called
    return called | {each for each in followed if not any(there(each))}


def _in_order(batches: Iterator[pa.RecordBatch], ddls: Sequence[ExportedDdl]) -> Iterator[pa.RecordBatch | ExportedDdl]:
    """Transactions with the DDLs at their places."""
    at = 0
    for batch in batches:
        ts, rest = batch.column("commit_ts").to_numpy(), 0
        while at < len(ddls) and ddls[at].commit_ts < ts[-1]:
            stop = int(np.searchsorted(ts, ddls[at].commit_ts, "right"))
            if stop > rest:
                yield batch.slice(rest, stop - rest)
            yield ddls[at]
            at, rest = at + 1, max(stop, rest)
        if rest < batch.num_rows:
            yield batch.slice(rest)
    yield from ddls[at:]
