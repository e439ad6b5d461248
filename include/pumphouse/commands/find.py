"""``pumphouse archive find``: which transaction did it, and which moments lie just before it and at it."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import click

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import read_time, tables_option, to_option, with_times
from pumphouse.errors import UsageError
from pumphouse.model.tso import show
from pumphouse.parts import Parts
from pumphouse.progress import bar

if TYPE_CHECKING:
    from pumphouse.restore.find import Found

_ROWS, _DDL = ("insert", "update", "delete"), "ddl"


@click.command("find")
@click.option("--from", "since", required=True, metavar="TIME", help="Changes that were committed after this TIME.")
@to_option
@tables_option
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="VALUE[,VALUE]",
    help="Of the row with this primary key, before or after the change; needs --table. Repeatable.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([*_ROWS, _DDL]),
    help="Only this kind; repeatable. Default: all, and with --key or --rows those of rows.",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Only transactions with at least N such row changes.",
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Stop after so many.")
@archive_option
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def find_command(
    context: Context,
    since: str,
    to: str,
    tables: tuple[str, ...],
    keys: tuple[str, ...],
    kinds: tuple[str, ...],
    rows: int,
    limit: int,
    *,
    as_json: bool,
) -> None:
    """Find the transactions and DDLs that changed something, with the moments just before each and at it.

    Paste a moment into `pumphouse restore --to`. It needs the archive alone, and no cluster.
    """
    from pumphouse.archive.losses import losses_of
    from pumphouse.archive.view import read_view
    from pumphouse.commands.load import print_losses
    from pumphouse.history.changes import means_the_same
    from pumphouse.restore.find import NEWER, Sought, bounds, find
    from pumphouse.restore.plan import LATEST, parse_moment

    if keys and len(tables) != 1:
        raise UsageError("--key is of one table", hint="name it: --table DB.TABLE")
    settings = context.settings
    after, asked = read_time(settings, since), parse_moment(to, partial(read_time, settings, word=LATEST))
    with Parts(settings) as parts, bar(enabled=not as_json) as tell:
        archive = parts.readable_archive
        view = read_view(archive, since=after)
        begin, upto = bounds(view, after, asked)
        sought = Sought(
            after=begin,
            upto=upto,
            tables=tables,
            keys=keys,
            kinds=frozenset(kinds or (_ROWS if keys or rows > 1 else (*_ROWS, _DDL))),
            rows=rows,
        )
        losses = losses_of(view.windows, after=begin, upto=upto)
        found, shown, last, rows_of = find(archive, view, sought, tell), [], None, None
        for each in islice(found, limit):
            if as_json:
                shown.append(each.to_dict())
            else:
                _print(each)
            last = each.commit_ts
            rows_of = rows_of if each.action else last
        more = next(found, None) is not None
    if as_json:
        said = {"after_ts": begin, "upto_ts": upto, "found": shown, "more": more}
        click.echo(json.dumps(with_times(said | asdict(losses)), indent=2, ensure_ascii=False))
        return
    if more:
        goes_on = last is not None and means_the_same(view.timeline, sought, last)
        click.echo(
            f"there are more: {f'the same with --from {last} goes on' if goes_on else '--limit N shows N of them'}"
        )
    if last is None:
        click.echo("found nothing")
    ends = f", where the archive ends{NEWER}" if upto == view.end and (asked is None or asked > upto) else ""
    click.echo(f"searched from {show(begin)} to {show(upto)}{ends}")
    if begin > after:
        click.echo("  ! the archive begins there")
    if rows_of is not None:
        click.echo(f"to take one back on a live server: pumphouse flashback --txn {rows_of} --into source")
    print_losses(losses)


def _print(found: Found) -> None:
    what = f"{found.action} (job {found.job_id}): {found.query}" if found.action else "; ".join(map(str, found.tables))
    click.echo(f"{show(found.commit_ts)}  {what}")
    gtid = f"GTID {found.gtid}, " if found.gtid else ""
    click.echo(
        f"    {gtid}start ts {found.start_ts}; just before it: --to {found.before}; with it: --to {found.commit_ts}"
    )
