"""What a user asks of an installation on its page: whether a form can be started, and what happened in its archive.

Both read the archive and the cluster, and no database server: whether a target has a table of that name already, the
run says, which connects to it anyway, within seconds and with the way out.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from airflow.exceptions import AirflowException
from pydantic import BaseModel, Field

from binlog_airflow import tasks
from binlog_airflow.advice import in_airflow
from binlog_airflow.hooks import ARCHIVE
from binlog_airflow.page.known import Form
from pumphouse.errors import BinlogError
from pumphouse.model.tso import Tso, compose, lies_ahead
from pumphouse.status.headline import clock, from_second

if TYPE_CHECKING:
    from binlog_airflow.installation import Installation
    from pumphouse.restore.find import Found
    from pumphouse.status.report import ArchiveStatus

# What a search shows, and how long it reads rows at most: who wants more types the command.
_SHOWN = 100
_WITHIN_S = 5.0
_NAMED = 3
_LATEST = "latest"
# What is looked for: its name in the form -> kinds of `archive find`.
KINDS = {
    "deleted rows and DDLs": ("delete", "ddl"),
    "all changes": ("insert", "update", "delete", "ddl"),
    "DDLs": ("ddl",),
}

# What the fields of a form are in a run's conf, and which it is by the kind of field; else it is text.
Conf = dict[str, bool | str | list[str]]
_SHAPES: Mapping[str, type] = {"check": bool, "lines": list}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The moment that a form means, in words ('' = none), and why it is not started ('' = it may be)."""

    moment: str = ""
    refused: str = ""


def check(here: Installation, form: Form, conf: Conf, seen: ArchiveStatus) -> Checked:
    """Hold a filled-in form against the archive: the restorable range, and its tables at the moment."""
    for name, value in conf.items():
        if name not in form.fields or not isinstance(value, _SHAPES.get(form.fields[name].kind, str)):
            return Checked(refused=f"{name!r:.60} is no field of the form, or has no such value")

    def asked() -> Checked:
        settings = here.settings()
        moment, archive = tasks.moment_of(str(conf.get("to") or ""), settings), seen
        if moment is not None and archive.end is not None and moment > archive.end:
            archive = replace(archive, end=tasks.archive_end(here))  # a search has seen more than the last look
        if refused := out_of_range(moment, archive):
            return Checked(refused=refused)
        said = f"the archive's end, {clock(archive.end)}" if moment is None else clock(moment)
        fields = tasks.RestoreForm.of({**dict.fromkeys(form.fields), **conf})
        if fields.target not in form.fields["target"].choices:
            return Checked(moment=said, refused=f"{fields.target} is none of the targets that the form offers")
        try:
            if fields.base:
                tasks.moment_of(fields.base, settings)
            tasks.check_form(fields, moment, here)
        except BinlogError as error:
            return Checked(moment=said, refused=error.said(in_airflow))
        return Checked(moment=said)

    return _or_why(asked, lambda why: Checked(refused=why))


def out_of_range(moment: Tso | None, archive: ArchiveStatus) -> str:
    """Why a moment cannot be restored, and what can ('' = it can); None = the archive's end."""
    first, end = archive.restorable_from, archive.end
    if first is None or end is None:
        return archive.problem or "nothing can be restored: the archive has no dump"
    if moment is None or first <= moment <= end:
        return ""
    why, newer = "is from before the first moment", ""
    if moment > end and lies_ahead(moment, compose(int(time.time() * 1000))):
        why = "lies in the future"
    elif moment > end:
        why, newer = "is not archived yet", "; the next snapshot brings in what was written since"
    range_ = f"{clock(from_second(first))} to {clock(end)}"
    return f"{clock(moment)} {why}: type a moment from {range_}, or {_LATEST}, which is that end{newer}"


class Wanted(BaseModel):
    """What a search is for, as its form says it. ``rows``: so many in one transaction, or more."""

    cluster: str = ""
    table: str = ""
    since: str = "1 hour ago"
    until: str = _LATEST
    kind: str = ""
    rows: int = Field(1, ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something that happened: what, the newest moment ``before`` it, and its tables as the form takes them."""

    before: Tso
    at: Tso
    what: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What was found, the latest first, what there is to say of it, and the command that searches so."""

    rows: tuple[Row, ...] = ()
    says: tuple[str, ...] = ()
    command: str = ""
    refused: str = ""


class _LongEnoughError(Exception):
    """The time for a search is over."""


def search(here: Installation, wanted: Wanted, due: datetime | None = None) -> Searched:
    """Transactions and DDLs between two moments, as `pumphouse archive find` finds them; no row and no DDL's text.

    ``due``: when the next snapshot is, as far as that is known.
    """
    table, kinds = wanted.table.strip().replace("%", "*"), KINDS.get(wanted.kind) or next(iter(KINDS.values()))

    def asked() -> Searched:
        from pumphouse.archive.view import read_view
        from pumphouse.parts import Parts
        from pumphouse.restore.find import Sought, bounds, find

        settings = here.settings()
        words = ["pumphouse", "archive", "find", "--from", wanted.since, "--to", wanted.until]
        words += ["--table", table] * bool(table)
        words += [word for each in kinds for word in ("--kind", each)] + ["--rows", str(wanted.rows)]
        after, upto = tasks.moment_of(wanted.since, settings), tasks.moment_of(wanted.until, settings)
        found: deque[Found] = deque(maxlen=_SHOWN)
        count, read, limit = 0, "", time.monotonic() + _WITHIN_S

        def in_time() -> None:
            if time.monotonic() > limit:
                raise _LongEnoughError

        def tell(step: str, done: int, total: int) -> None:
            nonlocal read
            read = f"{step}, {done} of {total}"
            in_time()

        with Parts(settings) as parts:
            archive = parts.readable_archive
            view = read_view(archive, since=archive.end() if after is None else after)
            begin, end = bounds(view, view.end if after is None else after, upto)
            sought = Sought(
                after=begin, upto=end, tables=(table,) if table else (), kinds=frozenset(kinds), rows=wanted.rows
            )
            says = [f"searched from {clock(begin)} to {clock(end)}"]
            if end == view.end:
                when = f", due {due:%Y-%m-%d %H:%M:%S}Z," if due else ""
                says.append(f"there the archive ends, and the next snapshot{when} brings in what was written since")
            try:
                for each in find(archive, view, sought, tell):
                    found.append(each)
                    count += 1
                    in_time()
            except _LongEnoughError:
                some = f"{_WITHIN_S:.0f} s ({read or 'DDLs'}, the oldest first)"
                says.append(f"not all of that was read within {some}: choose a shorter time, or type the command")
        if count > len(found):
            says.append(f"{count:,} found, of which these are the latest")
        if not found:
            says.append(
                "nothing found" + (f" with {wanted.rows} rows or more in one transaction" if wanted.rows > 1 else "")
            )
        command = shlex.join(words) if here.archive == ARCHIVE else ""
        return Searched(rows=tuple(map(_row, reversed(found))), says=tuple(says), command=command)

    return _or_why(asked, lambda why: Searched(refused=why))


def _row(found: Found) -> Row:
    names = found.of or tuple(each.table for each in found.tables)
    each = tuple(map(str, found.tables))
    if found.action:
        each = tuple(f"{old} to {found.renamed[old]}" if old in found.renamed else old for old in found.of)
    more = f" and {len(each) - _NAMED} more" if len(each) > _NAMED else ""
    what = ("; ".join(each[:_NAMED])) + more
    if found.action:
        what = f"{found.action.lower().replace('_', ' ')}: {what}"
    return Row(
        before=found.before,
        at=found.commit_ts,
        what=what,
        tables=tuple(each if "." in each else f"{each}.%" for each in names),
    )


def _or_why(ask: Callable[[], T], refused: Callable[[str], T]) -> T:
    try:
        return ask()
    except BinlogError as error:
        return refused(error.said(in_airflow))
    except AirflowException as error:
        return refused(str(error))
