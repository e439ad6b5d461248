"""Read the archive's history: what `pumphouse archive changes` and `archive versions` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa

from pumphouse.archive.archive import Archive
from pumphouse.archive.losses import Losses, losses_of, together
from pumphouse.archive.restorable import restorable_from
from pumphouse.archive.view import ArchiveView, read_view
from pumphouse.history.changes import (
    Asked,
    Changed,
    changes,
    means_the_same,
    moment_in,
    range_in,
    require_columns,
    tables_of,
)
from pumphouse.history.rows import moment_of, rows_at
from pumphouse.history.versions import Begin, Version, versions
from pumphouse.loader.changes import Form
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.loader.report import Progress, silent
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.schema.versions import DdlEvent, TableVersion
from pumphouse.settings import Settings

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Told(Generic[T]):
    """What is told, as it is read, and of which range; ``losses``: what that lacks, known when all of it is read."""

    found: Iterator[T]
    after: Tso
    upto: Tso
    losses: Losses


@dataclass(slots=True, kw_only=True)
class ToldRows(Told[pa.RecordBatch]):
    """Rows of a table as it was then."""

    form: Form


@dataclass(slots=True, kw_only=True)
class ToldChanges(Told[Changed | DdlEvent]):
    """Changes of a table; ``goes_on``: whether the same command with another begin tells all that is left."""

    goes_on: Callable[[Tso], bool]


@contextmanager
def told_changes(
    settings: Settings,
    table: str,
    *,
    since: Tso | None = None,
    upto: Tso | None = None,
    keys: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    progress: Progress = silent,
) -> Iterator[ToldChanges]:
    """Changes and DDLs of a table in (since, upto], in commit order; None = all that is kept.

    Raises:
        UsageError: the archive does not cover the range, or the table never has such a column or key.
        UnknownTable: no table is called so in the range.
        BadSegment, BadManifest: an object is missing or damaged.
    """
    with _read(settings, table, since, upto, keys, columns) as (archive, view, asked):
        losses = losses_of(view.windows, after=asked.after, upto=asked.upto)
        found = changes(archive, view, asked, progress)
        goes_on = partial(means_the_same, view.timeline, asked.sought)
        yield ToldChanges(found=found, after=asked.after, upto=asked.upto, losses=losses, goes_on=goes_on)


@contextmanager
def _read(
    settings: Settings,
    table: str,
    since: Tso | None,
    upto: Tso | None,
    keys: tuple[str, ...],
    columns: tuple[str, ...] = (),
) -> Iterator[tuple[Archive, ArchiveView, Asked]]:
    with Parts(settings) as parts:
        archive = parts.readable_archive
        # No DDL behind the range can stop it.
        view = read_view(archive, since=since or archive.genesis().ts, upto=upto)
        begin, end = range_in(view, since, upto)
        where = Predicate(keys=keys, exact=True) if keys else ALL_ROWS
        yield archive, view, Asked(table=table, after=begin, upto=end, where=where, columns=columns)


@contextmanager
def told_rows(
    settings: Settings,
    table: str,
    at: Tso | None,
    *,
    keys: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    progress: Progress = silent,
) -> Iterator[ToldRows]:
    """Rows of a table at a moment; None = where the archive ends.

    Raises:
        UsageError, UnknownTable, RestoreError, LoadError: as `moment_of`.
        BadSegment, BadManifest: an object is missing or damaged.
    """
    with Parts(settings) as parts:
        archive = parts.readable_archive
        view = read_view(archive, upto=at)
        end = moment_in(view, at)
        where = Predicate(keys=keys, exact=True) if keys else ALL_ROWS
        moment = moment_of(view, table, end, archive=settings.archive, load=settings.load, where=where)
        require_columns(columns, [moment.form])
        only = moment.form.only(columns)
        found = rows_at(moment, connections=settings.load.connections, tell=progress)
        yield ToldRows(
            found=found if only is None else (rows.select(list(only)) for rows in found),
            after=view.kept.start,
            upto=end,
            losses=moment.losses,
            form=moment.form,
        )


@contextmanager
def told_versions(
    settings: Settings,
    table: str,
    key: str,
    *,
    since: Tso | None = None,
    upto: Tso | None = None,
    progress: Progress = silent,
) -> Iterator[Told[Version]]:
    """Versions of the row with a key, also of one that no change in the range has met; errors as of the others."""
    with _read(settings, table, since, upto, (key,)) as (archive, view, asked):
        tables = tables_of(view.timeline, asked)
        losses = losses_of(view.windows, after=asked.after, upto=asked.upto)
        told: Told[Version] = Told(found=iter(()), after=asked.after, upto=asked.upto, losses=losses)

        def row_at_begin(version: TableVersion, until: Tso | None) -> Version | None:
            at, first = asked.after, restorable_from(archive)
            if first is not None and at < first and (first <= asked.upto if until is None else first < until):
                at = first  # no base leads to the begin; the row is the same up to there
            moment = moment_of(
                read_view(archive, upto=at),
                ".".join(version.name),
                at,
                archive=settings.archive,
                load=settings.load,
                where=asked.where,
            )
            told.losses = together(moment.losses, told.losses)
            rows = [row for batch in rows_at(moment, tell=progress) for row in batch.to_pylist()]
            return Version(form=moment.form, values=rows[0], since=None) if rows else None

        there = {each.table.id: each for each in view.timeline.tables_at(asked.after) if each.table.id in tables}
        begin = Begin(tables=tables, there=there, row=row_at_begin)
        told.found = versions(changes(archive, view, asked, progress), key, begin)
        yield told
