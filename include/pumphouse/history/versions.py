"""All versions of the rows with one key: from which commit to which each stood, and what ended it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pumphouse.codec.columnar import DELETE, INSERT
from pumphouse.errors import LoadError, UsageError
from pumphouse.history.changes import Changed
from pumphouse.loader.changes import Form
from pumphouse.loader.rules import NO_RULES
from pumphouse.loader.selection import has_key, key_of
from pumphouse.model.tso import Tso, show
from pumphouse.proof.plan import untold
from pumphouse.schema.actions import Rows
from pumphouse.schema.versions import DdlEvent, TableVersion

UPDATED, DELETED, MOVED = "update", "delete", "key changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A row as it stood from one commit to the next.

    Args:
        form: the table as it was when the row was written.
        values: of the row, by column, as `decode_images` makes them.
        since: commit ts that brought it; None = it was there before the range.
        until: commit ts that ended it; None = it is there at the range's end.
        ended: what ended it: of this module, or a DDL's action; '' = nothing.
    """

    form: Form
    values: Mapping[str, Any]
    since: Tso | None
    until: Tso | None = None
    ended: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where a range begins.

    Args:
        tables: ids of the tables that are meant in the range.
        there: those of them that are there at its begin.
        row: that one of these has under the key then, or None; it is asked for at most once of each, and only where no
            change in the range tells it. It stands unchanged up to the DDL at the moment that is given beside it; None
            = to the end of the range.
    """

    tables: frozenset[int]
    there: Mapping[int, TableVersion]
    row: Callable[[TableVersion, Tso | None], Version | None]


def versions(found: Iterable[Changed | DdlEvent], key: str, begin: Begin) -> Iterator[Version]:
    """The versions under a key, as they end; those that stand come last.

    Args:
        found: changes of the rows with that key, and DDLs, in commit order.
        key: as somebody types it.
        begin: of their range.

    Raises:
        UsageError: a table has no key.
        LoadError: a DDL changed rows without a binlog, maybe this one.
    """
    told = _Told(begin)
    for each in found:
        yield from told.ddl(each) if isinstance(each, DdlEvent) else told.changes(each, key)
    yield from told.at_the_end()


@dataclass(slots=True)
class _Told:
    """What stands, by the table's id: several may have had the name."""

    begin: Begin
    standing: dict[int, Version] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)  # tables of which it is known whether a row stands
    gone: dict[int, Version | None] = field(default_factory=dict)  # ended by a DDL, which another may take back

    def changes(self, found: Changed, key: str) -> Iterator[Version]:
        table_id, form = found.form.wanted.table_id, found.form
        if not form.wanted.key:
            raise UsageError(f"{'.'.join(form.version.name)} has no key", hint="its versions cannot be told apart")
        typed = key_of(form.wanted, key)
        was, is_ = (has_key(rows, form.wanted.key, typed) for rows in (found.old, found.new))
        self.met.add(table_id)
        for at in range(len(found)):
            ts, op = Tso(int(found.commit_ts[at])), int(found.op[at])
            if op != INSERT and was[at]:
                before = self.standing.pop(table_id, None)
                if before is None:
                    before = Version(form=form, values=_row(found.old, at), since=None)
                ended = DELETED if op == DELETE else UPDATED if is_[at] else MOVED
                yield replace(before, until=ts, ended=ended)
            if op != DELETE and is_[at]:
                self.standing[table_id] = Version(form=form, values=_row(found.new, at), since=ts)

    def ddl(self, event: DdlEvent) -> Iterator[Version]:
        """Versions that it ends, with their table; it may bring back one that was dropped."""
        ids = self.begin.tables & (event.table_ids if event.changes else self.standing.keys() | self.begin.there.keys())
        for table_id in sorted(ids):
            self._meet(table_id, event.commit_ts)
        _require_told(event, ids, self.standing)
        for change in event.changes:
            before, after = change.before, change.after
            ends = before is not None and (after is None or after.table.id != before.table.id)
            if ends and before is not None and before.table.id in ids:
                was = self.standing.pop(before.table.id, None)
                self.gone[before.table.id] = was
                if was is not None:
                    yield replace(was, until=event.commit_ts, ended=event.action.name)
        for table_id in event.returning & self.begin.tables:
            if table_id not in self.gone:
                raise LoadError(
                    f"the DDL at {show(event.commit_ts)} ({event.action.name}) brings back a table that was dropped "
                    "before the range, with rows that only its log tells",
                    hint="begin before the drop",
                )
            if (was := self.gone.pop(table_id)) is not None:
                self.standing[table_id] = replace(was, since=event.commit_ts)

    def at_the_end(self) -> Iterator[Version]:
        """What stands then."""
        for table_id in sorted(self.begin.there):
            self._meet(table_id, None)
        yield from self.standing.values()

    def _meet(self, table_id: int, until: Tso | None) -> None:
        """Know the row that no change has told so far."""
        version = self.begin.there.get(table_id)
        if version is None or table_id in self.met:
            return
        self.met.add(table_id)
        if (row := self.begin.row(version, until)) is not None:
            self.standing[table_id] = row


def _require_told(event: DdlEvent, ids: Iterable[int], standing: Mapping[int, Version]) -> None:
    """LoadError for a DDL that changed rows without a binlog, where one stands that it may have changed, or brought."""
    if not event.changes:
        why = f"the DDL at {show(event.commit_ts)} ({event.action.name}): {event.problem or 'it changed every table'}"
        raise LoadError(f"the archive alone does not tell the versions behind it: {why}", hint=_behind(event))
    for change in event.changes:
        version = change.known
        brings = event.facts.rows in {Rows.SWAP, Rows.ANY}
        if (not brings and change.ids.isdisjoint(standing)) or change.ids.isdisjoint(ids):
            continue
        if why := untold(version, [event], NO_RULES, "begin behind it"):
            name = ".".join(version.name)
            raise LoadError(
                f"the archive alone does not tell the versions of {name}: {why}", hint=_behind(event), table=name
            )


def _behind(event: DdlEvent) -> str:
    return f"--from {int(event.commit_ts)} tells those behind it, --to {int(event.commit_ts) - 1} those before"


def _row(rows: pa.RecordBatch, at: int) -> dict[str, Any]:
    return {name: column[at].as_py() for name, column in zip(rows.schema.names, rows.columns, strict=True)}
