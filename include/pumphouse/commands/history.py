"""``pumphouse archive changes`` and ``versions``: what became of a table's rows, and what they were at a moment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import read_time
from pumphouse.errors import UsageError
from pumphouse.model.tso import Tso, show
from pumphouse.progress import bar

if TYPE_CHECKING:
    from pumphouse.archive.losses import Losses
    from pumphouse.history.changes import Changed
    from pumphouse.schema.versions import DdlEvent
    from pumphouse.settings import Settings

_LINES = 100
_key_help = "Of the row with this primary key, of several columns as a line of CSV; compared byte by byte."
_from_option = click.option(
    "--from",
    "since",
    metavar="TIME",
    help="Changes that were committed after this TIME. Default: all that the archive keeps.",
)
_to_option = click.option(
    "--to", "upto", metavar="TIME", help="Changes up to this TIME, inclusive. Default: all to the archive's end."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, one object a line.")


@click.command("changes")
@click.argument("table", metavar="DB.TABLE")
@click.option("--key", "keys", multiple=True, metavar="VALUE[,VALUE]", help=f"{_key_help} Repeatable.")
@_from_option
@_to_option
@click.option("--at", "at", metavar="TIME", help="No changes, but the rows of the table at this TIME, or latest.")
@click.option(
    "--columns", metavar="NAME[,NAME]", default="", help="Only these columns, and those of the key. Default: all."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"Stop after so many. Default: {_LINES}, and all of them with --json or --sql. Not with --sql.",
)
@archive_option
@_json_option
@click.option(
    "--sql",
    "as_sql",
    is_flag=True,
    help="SQL on stdout: transactions that do the changes again, once; with --at INSERTs. Not with --columns.",
)
@pass_context
def changes_command(
    context: Context,
    table: str,
    keys: tuple[str, ...],
    since: str | None,
    upto: str | None,
    at: str | None,
    columns: str,
    limit: int | None,
    *,
    as_json: bool,
    as_sql: bool,
) -> None:
    """Show what was changed in a table, in commit order: when, and each row before and after.

    The table is followed through the range under every name and id that it has there; its DDLs stand in their places.
    It needs the archive alone, and no cluster.
    """
    from pumphouse.loader.literals import SESSION

    if as_json and as_sql:
        raise UsageError("--json and --sql are two things", hint="leave one of them out")
    if as_sql and (columns or limit):
        what = "--columns" if columns else "--limit"
        raise UsageError(
            f"--sql takes no {what}: its statements would do half of a change, or of a transaction",
            hint="--key, --from and --to choose changes",
        )
    if at is not None and (since or upto):
        raise UsageError("--at is one moment: it excludes --from and --to")
    how = "json" if as_json else "sql" if as_sql else "text"
    most = limit or (_LINES if how == "text" else None)
    names = tuple(filter(None, (each.strip() for each in columns.split(","))))
    if as_sql:
        click.echo(SESSION, nl=False)
    if at is not None:
        _show_rows(context.settings, table, at, keys, names, how, most)
    else:
        _show_changes(context.settings, table, (since, upto), keys, names, how, most)


def _show_changes(
    settings: Settings,
    table: str,
    between: tuple[str | None, str | None],
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    how: str,
    most: int | None,
) -> None:
    from pumphouse.history import shown
    from pumphouse.runs.history import told_changes

    # The first that is told, and up to where; where it ends at the limit, that is the first change that is not shown.
    first, read = Tso(0), Tso(0)

    def one_by_one(some: Changed | DdlEvent) -> Iterator[str]:
        nonlocal first, read
        told_as = map(_json, shown.objects(some)) if how == "json" else shown.lines(some)
        for read, line in zip(shown.stamps(some), told_as, strict=True):
            first = first or read
            yield line

    def tellers(found: Iterator[Changed | DdlEvent]) -> Iterator[str]:
        return shown.statements(found) if how == "sql" else chain.from_iterable(map(one_by_one, found))

    since, upto = (None if each is None else _time(settings, each) for each in between)
    with (
        bar(enabled=how == "text") as tell,
        told_changes(settings, table, since=since, upto=upto, keys=keys, columns=columns, progress=tell) as told,
    ):
        more = _print(tellers(told.found), most)
    if more:
        whole = f"; the same with --from {read - 1} goes on, with the whole transaction at {show(read)}"
        # A transaction that fills the limit alone would be shown again each time.
        said = whole if read > first and told.goes_on(Tso(read - 1)) else ""
        click.echo(f"there are more: --limit N shows N of them{said}", err=True)
    if how == "text":
        click.echo(f"changes of {table} from {show(told.after)} to {show(told.upto)}")
    _losses(told.losses)


def _show_rows(
    settings: Settings,
    table: str,
    at: str,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    how: str,
    most: int | None,
) -> None:
    from pumphouse.history import shown
    from pumphouse.runs.history import told_rows

    ts = _time(settings, at)
    with (
        bar(enabled=how == "text") as tell,
        told_rows(settings, table, ts, keys=keys, columns=columns, progress=tell) as told,
    ):
        form = told.form
        tellers: dict[str, Callable[[Any], Iterator[str]]] = {
            "text": lambda batch: map(shown.fields, shown.rows(form, batch)),
            "json": lambda batch: map(_json, shown.rows(form, batch)),
            "sql": partial(shown.row_statements, form),
        }
        more = _print(chain.from_iterable(map(tellers[how], told.found)), most)
    if more:
        click.echo("there are more rows: --limit N shows N of them", err=True)
    if how == "text":
        click.echo(f"rows of {'.'.join(form.version.name)} at {show(told.upto)}")
    _losses(told.losses)


@click.command("versions")
@click.argument("table", metavar="DB.TABLE")
@click.option("--key", required=True, metavar="VALUE[,VALUE]", help=_key_help)
@_from_option
@_to_option
@archive_option
@_json_option
@pass_context
def versions_command(
    context: Context, table: str, key: str, since: str | None, upto: str | None, *, as_json: bool
) -> None:
    """Show every version of one row: from which commit to which it stood, its values, and what ended it."""
    from pumphouse.history import shown
    from pumphouse.runs.history import told_versions

    settings = context.settings
    begin, end = (None if each is None else _time(settings, each) for each in (since, upto))
    with (
        bar(enabled=not as_json) as tell,
        told_versions(settings, table, key, since=begin, upto=end, progress=tell) as told,
    ):
        count = 0
        for each in told.found:
            count += 1
            click.echo(_json(shown.version_object(each, told.upto)) if as_json else shown.version_line(each, told.upto))
    if not as_json:
        none = f"no row of {table} has the key {key}"
        said = f"{count} versions of {table} with the key {key}" if count else none
        click.echo(f"{said} from {show(told.after)} to {show(told.upto)}")
    _losses(told.losses)


def _time(settings: Settings, text: str) -> Tso | None:
    from pumphouse.restore.plan import LATEST, parse_moment

    return parse_moment(text, partial(read_time, settings, word=LATEST))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _print(lines: Iterator[str], most: int | None) -> bool:
    """Whether there are more."""
    out = sys.stdout.buffer
    try:
        for line in islice(lines, most):
            out.write(line.encode(errors="surrogateescape") + b"\n")
        out.flush()
    except BrokenPipeError:  # the one who reads has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    return most is not None and next(lines, None) is not None


def _losses(losses: Losses) -> None:
    """On stderr: what is on stdout may be read by a program."""
    for line in losses.lines():
        click.echo(f"  ! {line}", err=True)
