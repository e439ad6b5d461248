"""All versions of the rows with one key: from which commit to which each stood, and what ended it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pumphouse.codec.columnar import DELETE, INSERT
from pumphouse.errors import UsageError
from pumphouse.history.changes import Changed
from pumphouse.loader.changes import Form
from pumphouse.loader.selection import has_key, key_of
from pumphouse.model.tso import Tso
from pumphouse.schema.versions import DdlEvent

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


def versions(found: Iterable[Changed | DdlEvent], key: str) -> Iterator[Version]:
    """The versions under a key, as they end; the one that stands comes last.

    ``found``: changes of the rows with that key, and DDLs, in commit order. Nothing comes of a row that no change in
    the range has met: ask for its table at the range's end.
    """
    standing: dict[int, Version] = {}  # by the table's id: several may have had the name
    gone: dict[int, Version] = {}  # ended by a DDL, which another one may take back
    for each in found:
        if isinstance(each, DdlEvent):
            yield from _by_ddl(each, standing, gone)
            continue
        table_id, form = each.form.wanted.table_id, each.form
        if not form.wanted.key:
            raise UsageError(f"{'.'.join(form.version.name)} has no key", hint="its versions cannot be told apart")
        typed = key_of(form.wanted, key)
        was, is_ = (has_key(rows, form.wanted.key, typed) for rows in (each.old, each.new))
        for at in range(len(each)):
            ts, op = Tso(int(each.commit_ts[at])), int(each.op[at])
            if op != INSERT and was[at]:
                before = standing.pop(table_id, None)
                if before is None:
                    before = Version(form=form, values=_row(each.old, at), since=None)
                ended = DELETED if op == DELETE else UPDATED if is_[at] else MOVED
                yield replace(before, until=ts, ended=ended)
            if op != DELETE and is_[at]:
                standing[table_id] = Version(form=form, values=_row(each.new, at), since=ts)
    yield from standing.values()


def _by_ddl(event: DdlEvent, standing: dict[int, Version], gone: dict[int, Version]) -> Iterator[Version]:
    """Versions that a DDL ends, with their table; it may bring back one that was dropped."""
    for change in event.changes:
        before, after = change.before, change.after
        ends = before is not None and (after is None or after.table.id != before.table.id)
        if ends and before is not None and before.table.id in standing:
            ended = replace(standing.pop(before.table.id), until=event.commit_ts, ended=event.action.name)
            gone[before.table.id] = ended
            yield ended
    for table_id in event.returning & gone.keys():
        standing[table_id] = replace(gone.pop(table_id), since=event.commit_ts, until=None, ended="")


def _row(rows: pa.RecordBatch, at: int) -> dict[str, Any]:
    return {name: column[at].as_py() for name, column in zip(rows.schema.names, rows.columns, strict=True)}
