"""DDLs as exports have them: the source's own text and the database that it ran in, as the Drainer has them.

Where that text says something else on another server, names tables that are left out, or the source wrote none, it is
rendered from the DDL job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pumphouse.archive.ddl import ArchivedJob
from pumphouse.errors import UnknownDdl
from pumphouse.loader.rules import NO_RULES
from pumphouse.model.tso import Tso
from pumphouse.restore.find import Sought, concerns
from pumphouse.schema.actions import Action, Effect
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import quote
from pumphouse.schema.render import render, require_known
from pumphouse.schema.table_sql import create_object
from pumphouse.schema.timeline import Timeline
from pumphouse.schema.versions import Change, DdlEvent, TableVersion

# Reparo knows no statement of these: "unknown ddl type".
_REFUSED = frozenset(
    {
        Action.CREATE_SEQUENCE, Action.ALTER_SEQUENCE, Action.DROP_SEQUENCE, Action.RECOVER_TABLE,
        Action.RECOVER_SCHEMA, Action.MODIFY_SCHEMA_CHARSET, Action.REPAIR_TABLE,
    }
)  # fmt: skip


# What becomes of one of its tables says nothing of the others.
_EACH = frozenset({Effect.DROP, Effect.DROP_DATABASE, Effect.CREATE_EACH, Effect.RENAME_EACH})


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlText:
    """One statement.

    Args:
        db: the database to be in.
        table: the table that it is about, by the name that it has then; '' = a database, or several tables.
        query: the text.
        alone: it needs no database to be in: it makes one.
    """

    db: str
    table: str
    query: bytes
    alone: bool = False

    @property
    def in_its_database(self) -> bytes:
        """As binlog files have it."""
        return self.query + b";" if self.alone else f"use {quote(self.db)}; ".encode() + self.query + b";"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedDdl:
    """One DDL; ``refused``: Reparo ends at it."""

    commit_ts: Tso
    action: str
    texts: tuple[DdlText, ...]
    refused: bool

    @property
    def text(self) -> str:
        """For people."""
        return " ".join(each.in_its_database.decode(errors="replace") for each in self.texts)


def ddls_of(
    timeline: Timeline, jobs: Iterable[ArchivedJob], after: Tso, upto: Tso, sought: Sought, tables: frozenset[int]
) -> list[ExportedDdl]:
    """DDLs in (after, upto] that a target could see, in order.

    Args:
        timeline: the schema.
        jobs: DDL binlogs of the range, for their texts.
        after: exclusive.
        upto: inclusive.
        sought: which tables are wanted.
        tables: their ids.

    Raises:
        UnknownDdl: nothing behind it can be exported.
    """
    queries = {each.commit_ts: each.query for each in jobs}
    found = []
    for told in timeline.ddls(after, upto):
        if told.facts.silent or not concerns(told, sought, tables):
            continue
        event = NO_RULES.ruled(told)  # rows that another table came with are no problem of the wanted ones
        try:
            require_known(event)
        except UnknownDdl as error:
            before = f"export up to just before it: --to {event.commit_ts - 1}. A restore to a moment behind it"
            on = (" may go on from there",) if event.brings_rows else (" needs the same: ", *error.advice)
            error.advice = (before, *on)
            raise
        found.append(
            ExportedDdl(
                commit_ts=event.commit_ts,
                action=event.action.name,
                texts=tuple(_texts(event, _wanted(event, sought, tables), queries, tables)),
                refused=event.action in _REFUSED,
            )
        )
    return found


def _wanted(event: DdlEvent, sought: Sought, tables: frozenset[int]) -> tuple[Change, ...]:
    """What of it is of wanted tables, as far as that can be told apart."""
    if event.facts.effect not in _EACH:
        return event.changes
    return tuple(
        each for each in event.changes if any(sought.names(*side.name) for side in each.sides) or each.ids & tables
    )


def _texts(
    event: DdlEvent, wanted: tuple[Change, ...], queries: Mapping[Tso, bytes], tables: frozenset[int]
) -> Iterator[DdlText]:
    """``tables``: ids of those that are exported; none = all."""
    if event.facts.effect is Effect.RENUMBER and (begins := _begins(event, tables)) is not None:
        db, name = begins.name
        yield DdlText(db=db, table=name, query=f"DROP TABLE IF EXISTS {quote(db)}.{quote(name)}".encode())
        yield DdlText(db=db, table=name, query=create_object(db, begins.table, Dialect.TIDB).encode())
        return
    if event.facts.effect is Effect.DROP_DATABASE and wanted != event.changes:
        # The database stays: it has tables that nobody wants to have dropped.
        for each in wanted:
            kind = "VIEW" if each.known.table.is_view else "SEQUENCE" if each.known.table.is_sequence else "TABLE"
            db, name = each.known.name
            query = f"DROP {kind} IF EXISTS {quote(db)}.{quote(name)}".encode()
            yield DdlText(db=db, table=name, query=query)
        return
    query = queries.get(event.commit_ts) or event.job.query.encode()
    apart = event.facts.effect is Effect.CREATE_EACH or wanted != event.changes
    # TiDB makes a job for each table that a statement drops, with the whole text; a comma in a name does no harm.
    apart = apart or (bool(tables) and event.facts.effect is Effect.DROP and b"," in query)
    if not query or apart or _moves(event):
        # No table waits aside for a later RECOVER, at which Reparo ends.
        for statement in render(replace(event, changes=wanted, kept=frozenset()), Dialect.TIDB):
            yield DdlText(db=statement.db or _database(event), table="", query=statement.sql.encode())
    else:
        alone = event.action is Action.CREATE_SCHEMA
        yield DdlText(db=_database(event), table=_table(event), query=query, alone=alone)


def _begins(event: DdlEvent, tables: frozenset[int]) -> TableVersion | None:
    """A table that is exported from its TRUNCATE on: before, it had an id that is not (`extract`), and no CREATE."""
    sides = ((each.before, each.after) for each in event.changes)
    return next(
        (new for old, new in sides if old and new and new.table.id in tables and old.table.id not in tables), None
    )


def _moves(event: DdlEvent) -> bool:
    """Whether it takes a table to another database: unqualified names of the text are then of nobody knows which."""
    return any(each.before and each.after and each.before.db != each.after.db for each in event.changes)


def _database(event: DdlEvent) -> str:
    if event.changes:
        return event.changes[-1].known.db
    info = event.db_after or event.db_before
    return info.name if info is not None else event.job.schema_name


def _table(event: DdlEvent) -> str:
    """The one table that it is about; '' of a database, and of several tables."""
    of_a_database = event.db_before is not None or event.db_after is not None
    return "" if of_a_database or len(event.changes) != 1 else event.changes[0].known.table.name
