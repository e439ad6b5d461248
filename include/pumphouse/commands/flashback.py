"""``pumphouse flashback``: chosen changes taken back on a live server, where nobody changed the rows since."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.load import print_losses
from pumphouse.commands.moments import read_time, with_times
from pumphouse.commands.restore import aimed
from pumphouse.errors import UsageError, naming
from pumphouse.model.tso import Tso, show
from pumphouse.progress import bar

if TYPE_CHECKING:
    from pumphouse.flashback.apply import Conflict
    from pumphouse.flashback.report import FlashbackReport, TableCount

_PATH = click.Path(path_type=Path, dir_okay=False)
# Lines of one kind in a plan that fits a screen.
_MOST = 20


@click.command()
@click.option("--from", "since", metavar="TIME", help="Changes that were committed after this TIME.")
@click.option("--until", metavar="TIME", help="Changes up to this TIME, inclusive, or to latest, the archive's end.")
@click.option(
    "--txn",
    "txns",
    multiple=True,
    type=int,
    metavar="COMMIT_TS",
    help="Only this transaction, as `archive find` prints it; repeatable. Alone, it needs neither --from nor --until.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="DB.TABLE",
    help="Only this table, also under names that it had in the range; also a pattern (shop.*). Repeatable.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="VALUE[,VALUE]",
    help="Only the row with this primary key, before or after the change; needs --table. Repeatable.",
)
@click.option(
    "--into",
    required=True,
    metavar="SECTION",
    help="Settings section of the server: source, target, NAME of [targets.NAME], or restore_target.",
)
@click.option("--sql", type=_PATH, help="Write the statements to this file, which must not exist; change nothing.")
@click.option("--apply", "apply_", is_flag=True, help="Put the rows back.")
@click.option(
    "--redo",
    type=_PATH,
    help="Where the statements go that undo it (default: beside --sql; with --apply, "
    "flashback-SERVER-FROM-UNTIL.redo.sql, with a digest of the tables, keys and transactions where some are named, to "
    "which a later run of the same adds).",
)
@click.option("--report", type=_PATH, help="Write each row that stays as it is to this file, a JSON object a line.")
@click.option("--accept-losses", is_flag=True, help="Go on even if something since the first change is lost.")
@click.option(
    "--batch-rows",
    type=click.IntRange(1, 50_000),
    default=50_000,
    show_default=True,
    help="Maximum number of rows in one transaction.",
)
@archive_option
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def flashback(
    context: Context,
    since: str | None,
    until: str | None,
    txns: tuple[int, ...],
    tables: tuple[str, ...],
    keys: tuple[str, ...],
    into: str,
    sql: Path | None,
    apply_: bool,
    redo: Path | None,
    report: Path | None,
    accept_losses: bool,
    batch_rows: int,
    as_json: bool,
) -> None:
    """Take chosen changes back on a live server, row by row, where nobody changed the row since.

    Without --sql and --apply, look at the server and print what would be done. A row that somebody changed since stays
    as it is, and is reported; with --apply, the exit code is 3 then. It needs the archive and the server, and no
    cluster.
    """
    from pumphouse.restore.plan import LATEST, parse_moment
    from pumphouse.runs.flashback import Chosen, Files, run

    if sql is not None and apply_:
        raise UsageError("--sql and --apply exclude each other", hint="--sql writes what a person then runs")
    if redo is not None and sql is None and not apply_:
        raise UsageError("there is nothing to undo: --redo needs --apply or --sql")
    settings, section = aimed(context.settings, into, parts=True)
    with naming(into), bar(enabled=not as_json) as progress:
        after = None if since is None else read_time(settings, since)
        upto = None if until is None else parse_moment(until, partial(read_time, settings, word=LATEST))
        latest = until is not None and upto is None
        chosen = Chosen(after=after, until=upto, latest=latest, txns=tuple(map(Tso, txns)), tables=tables, keys=keys)
        done = run(
            settings,
            chosen=chosen,
            into=section,
            apply=apply_,
            files=Files(sql=sql, redo=redo, report=report),
            accept_losses=accept_losses,
            batch_rows=batch_rows,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(with_times(done.to_dict()), indent=2, ensure_ascii=False))
    else:
        _print(done, into)
    if apply_ and done.total.conflicts:
        sys.exit(3)


def _print(done: FlashbackReport, into: str) -> None:
    click.echo(f"server        {done.server}  {done.version}")
    click.echo(f"changes of    ({show(done.after)}, {show(done.until)}]; later ones looked for up to {show(done.seen)}")
    first = f", the first at {show(min(done.transactions))}" if done.transactions else ""
    click.echo(f"transactions  {len(done.transactions)}: {done.changes:,} row changes{first}")
    for name, table in list(done.tables.items())[:_MOST]:
        what = "cannot be put back: " + done.problems[name] if name in done.problems else _told(table)
        click.echo(f"  {name}  {what}")
    if len(done.tables) > _MOST:
        click.echo(f"  and {len(done.tables) - _MOST} tables more")
    if done.conflicts:
        click.echo("stay as they are")
    for each in done.conflicts[:_MOST]:
        _print_conflict(each)
    total = done.total
    if total.conflicts > _MOST:
        click.echo(f"  and {total.conflicts - _MOST} rows more: --report FILE")
    for note in done.notes:
        click.echo(f"  note: {note}")
    print_losses(done.losses)
    in_ = f"{done.batches} transaction{'s' * (done.batches != 1)}"
    if done.applied:
        click.echo(f"done: {total.put:,} rows put back in {in_}; {total.back:,} were back; {total.conflicts:,} stay")
    elif done.problems:
        click.echo("--apply and --sql are refused for a table that cannot be put back: --table names the others")
    elif not total.put:
        click.echo(f"nothing is to be put back: {total.back:,} rows are back, {total.conflicts:,} stay as they are")
    elif "sql" in done.files:
        click.echo(f"written: {done.files['sql']} puts {total.put:,} rows back in {in_}; {into} was not changed")
    else:
        click.echo(f"nothing was changed: --apply puts {total.put:,} rows back in {in_}, --sql FILE writes how")
    if "redo" in done.files:
        click.echo(f"to undo it: {done.files['redo']}")


def _told(table: TableCount) -> str:
    kinds = (
        (table.insert, "come again"),
        (table.update, "get old values"),
        (table.delete, "go"),
        (table.back, "back already"),
        (table.conflicts, "stay"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in kinds if count) or "nothing is left of its changes"


def _print_conflict(each: Conflict) -> None:
    key = ", ".join(f"{name}={value}" for name, value in each.key.items())
    click.echo(f"  {each.table} {key}: {each.why}")
    now, archive = each.now or {}, each.new or {}
    names = [name for name in now if now[name] != archive.get(name)] if archive else list(now)
    if now and names:
        click.echo(f"    now: {_values({name: now[name] for name in names})}")
    if archive and names:
        click.echo(f"    archive: {_values({name: archive.get(name) for name in names})}")


def _values(image: dict[str, str | None]) -> str:
    return ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in image.items())
