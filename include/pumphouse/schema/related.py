"""What a DDL job touches, and which jobs the history of some tables needs: a plan carries these alone.

Tables belong together where a job's effect on one depends on another: a rename that swaps names, EXCHANGE PARTITION, a
new id (TRUNCATE, partitioning), a view that replaces another. A job that treats each of its tables alike (CREATE
TABLES, DROP and RECOVER of a database) ties none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from pumphouse.model.table import Job, TableInfo
from pumphouse.model.tso import Tso
from pumphouse.schema.actions import MAX_USER_TABLE_ID, Reach, Rows, action_of, is_system
from pumphouse.schema.rename import rename_args
from pumphouse.schema.versions import DdlEvent, TimedJob, Versions


class Tie(NamedTuple):
    """Tables that a job ties together, by id and by (database id, name in lower case), with their partitions."""

    tables: frozenset[int]
    partitions: frozenset[int] = frozenset()
    names: frozenset[tuple[int, str]] = frozenset()


class Touched(NamedTuple):
    """What a job touches, as far as it says so itself, before any other is folded."""

    reach: Reach
    ties: tuple[Tie, ...] = ()


def touched(job: Job) -> Touched:
    """Ask one job. Its reach is that of its type, NOTHING where it concerns nobody, UNTOLD where it lacks names."""
    reach = action_of(job.type).facts.reach
    if job.table_id > MAX_USER_TABLE_ID:
        return Touched(Reach.NOTHING)
    if reach is Reach.UNTOLD:
        named = job.tables or job.table_id or job.db_info
        return Touched(reach if named and not is_system(job.schema_name) else Reach.NOTHING)
    if reach in {Reach.NOTHING, Reach.DATABASE, Reach.WHOLE_DATABASE, Reach.CLUSTER}:
        return Touched(reach)
    if reach is Reach.EACH:
        return Touched(reach, tuple(_tie([info], job.schema_id) for info in {i.id: i for i in job.tables}.values()))
    tie = _tie(job.tables, job.schema_id)
    tables, names = tie.tables | ({job.table_id} - {0}), tie.names
    if reach is Reach.RENAMED:
        args = rename_args(job)
        if args is None and (not job.table_infos or any(info.is_view for info in job.tables)):
            return Touched(Reach.UNTOLD)
        # The job's own database is that of one of the tables only.
        names = frozenset((schema_id, name.lower()) for _, schema_id, name in args or ())
        tables |= {table_id for table_id, _, _ in args or ()}
    return Touched(reach, (Tie(tables, tie.partitions, names),) if tables else ())


def _tie(infos: Iterable[TableInfo], schema_id: int) -> Tie:
    """By their partitions, too, which EXCHANGE makes a table's, and by name, as a view replaces another by that."""
    found = list(infos)
    return Tie(
        frozenset(info.id for info in found),
        frozenset(each for info in found for each in info.partition_ids),
        frozenset((schema_id, info.name.lower()) for info in found),
    )


def jobs_of(history: Versions, table_ids: Iterable[int]) -> Iterator[TimedJob]:
    """The jobs that tables need, given by their own ids or by those of partitions; in order.

    Folded alone they say of these tables what the whole history says. Of a history with a DDL that was not understood,
    which may have touched anything, that is every job.
    """
    if is_whole(history):
        yield from history.jobs
        return
    tables = _related(history, table_ids)
    names = {version.db.lower() for table in tables for version in history.versions.get(table, ())}
    schemas = {
        schema_id
        for schema_id, versions in history.databases.items()
        if any(each.info is not None and each.info.name.lower() in names for each in versions)
    }
    for timed, event in zip(history.jobs, history.events, strict=True):
        if not tables.isdisjoint(event.table_ids):
            yield trimmed(timed, tables)
        elif event.problem or not schemas.isdisjoint(_schema_ids(event)):
            yield timed


def is_whole(history: Versions) -> bool:
    """Whether the histories of its tables cannot be told apart (`whole_from`)."""
    return whole_from(history) is not None


def whole_from(history: Versions) -> Tso | None:
    """From where on the histories of tables cannot be told apart; None where they can.

    A DDL that was not understood may have touched any table. A database that no job makes has its name from the jobs of
    all of its tables.
    """
    found = [event.commit_ts for event in history.events if event.problem and event.facts.reach is not Reach.CLUSTER]
    for versions in history.databases.values():
        found += [each.commit_ts for each in versions if each.info is not None and not each.info.raw]
    return min(found, default=None)


def _related(history: Versions, table_ids: Iterable[int]) -> set[int]:
    """These tables, and those that belong together with them."""
    ties: dict[int, set[int]] = {}
    for event in history.events:
        for table in event.table_ids:
            ties.setdefault(table, set()).update(tied_to(event, table))
    found: set[int] = set()
    # An id may have been a table's and be a partition's now, or the other way round (EXCHANGE PARTITION).
    left = [each for table in table_ids for each in {table, history.partitions.get(table, table)}]
    while left:
        table = left.pop()
        if table not in found:
            found.add(table)
            left += ties.get(table, ())
    return found


def tied_to(event: DdlEvent, table_id: int) -> tuple[int, ...]:
    """Tables that the history of one needs because of a DDL that touches both, ascending.

    What TRUNCATE leaves needs no history of what was before it: else a table that is emptied daily had a long one.
    """
    tables = event.table_ids
    old = event.facts.rows is not Rows.RENEW or table_id == event.job.table_id
    alike = event.facts.reach in {Reach.EACH, Reach.WHOLE_DATABASE}
    return tuple(sorted(tables)) if old and len(tables) > 1 and not alike else ()


def _schema_ids(event: DdlEvent) -> set[int]:
    return {info.id for info in (event.db_before, event.db_after) if info is not None}


def trimmed(timed: TimedJob, tables: set[int]) -> TimedJob:
    """A job that makes many tables, for some of them: of the others it would begin histories that nobody ends."""
    if action_of(timed.job.type).facts.reach is not Reach.EACH:
        return timed
    binlog = timed.job.raw["binlog"]
    some = [info for info in binlog["MultipleTableInfos"] if int(info["id"]) in tables]
    raw = {**timed.job.raw, "binlog": {**binlog, "MultipleTableInfos": some}}
    return replace(timed, job=Job.from_dict(raw))
