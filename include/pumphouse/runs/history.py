"""Read the archive's history: what `pumphouse archive changes` and `archive versions` do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from pumphouse.archive.view import read_view
from pumphouse.errors import UnknownTable
from pumphouse.history.changes import Asked, Changed, changes, range_in, require_columns
from pumphouse.history.rows import moment_of, rows_at
from pumphouse.history.versions import Version, versions
from pumphouse.loader.changes import Form
from pumphouse.loader.keys import ALL_ROWS, Predicate
from pumphouse.loader.losses import Losses, losses_of
from pumphouse.loader.report import Progress, silent
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.schema.versions import DdlEvent
from pumphouse.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Generic[T]):
    """What is told, as it is read, and of which range; ``losses``: what that lacks."""

    found: Iterator[T]
    after: Tso
    upto: Tso
    losses: Losses


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRows(Told[pa.RecordBatch]):
    """Rows of a table as it was then."""

    form: Form


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
) -> Iterator[Told[Changed | DdlEvent]]:
    """Changes and DDLs of a table in (since, upto], in commit order; None = where the archive begins and ends.

    Raises:
        UsageError: the archive does not cover the range, or the table never has such a column or key.
        UnknownTable: no table is called so in the range.
        BadSegment, BadManifest: an object is missing or damaged.
    """
    with Parts(settings) as parts:
        archive = parts.readable_archive
        view = read_view(archive, since=since or archive.genesis().ts)
        begin, end = range_in(view, since, upto)
        where = Predicate(keys=keys, exact=True) if keys else ALL_ROWS
        asked = Asked(table=table, after=begin, upto=end, where=where, columns=columns)
        losses = losses_of(view.windows, after=begin, upto=end)
        yield Told(found=changes(archive, view, asked, progress), after=begin, upto=end, losses=losses)


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
        begin, end = range_in(view, None, at)
        where = Predicate(keys=keys, exact=True) if keys else ALL_ROWS
        moment = moment_of(view, table, end, archive=settings.archive, load=settings.load, where=where)
        require_columns(columns, [moment.form])
        only = moment.form.only(columns)
        found = rows_at(moment, connections=settings.load.connections, tell=progress)
        yield ToldRows(
            found=found if only is None else (rows.select(list(only)) for rows in found),
            after=begin,
            upto=end,
            losses=losses_of(view.windows, after=moment.base, upto=end),
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
    with told_changes(settings, table, since=since, upto=upto, keys=(key,), progress=progress) as told:

        def found() -> Iterator[Version]:
            met = False
            for each in versions(told.found, key):
                met = True
                yield each
            if not met:
                yield from _unchanged(settings, table, key, told.upto, progress)

        yield Told(found=found(), after=told.after, upto=told.upto, losses=told.losses)


def _unchanged(settings: Settings, table: str, key: str, at: Tso, progress: Progress) -> Iterator[Version]:
    try:
        with told_rows(settings, table, at, keys=(key,), progress=progress) as told:
            for rows in told.found:
                for row in rows.to_pylist():
                    yield Version(form=told.form, values=row, since=None)
    except UnknownTable:
        return  # dropped by then: no row stands
