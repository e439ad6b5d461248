"""``pumphouse archive export``: a range of the archive as files that other tools read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
from rich.filesize import decimal

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import read_time, tables_option, to_option, with_times
from pumphouse.errors import UsageError
from pumphouse.model.tso import show
from pumphouse.parts import Parts
from pumphouse.progress import bar

if TYPE_CHECKING:
    from pumphouse.export.run import ExportReport
    from pumphouse.settings import Settings

_MIB = 1 << 20


@click.command("export")
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(["pb"]),
    help="pb: binlog files of TiDB's Drainer, which Reparo reads.",
)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    help="Changes that were committed after this TIME. Default: where the files in DESTINATION end.",
)
@to_option
@tables_option
@click.option(
    "--file-mib",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    metavar="N",
    help="A file ends with the transaction that makes it so large.",
)
@click.argument("destination")
@archive_option
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def export_command(
    context: Context,
    form: str,
    since: str | None,
    to: str,
    tables: tuple[str, ...],
    file_mib: int,
    destination: str,
    *,
    as_json: bool,
) -> None:
    """Write a range of the archive into DESTINATION, a directory or s3://BUCKET/PREFIX, as files that others read.

    Run again, it goes on where it was killed, or where the files end. It needs the archive alone, and no cluster.
    """
    from pumphouse.export.run import export_pb
    from pumphouse.objectstore.open import open_store
    from pumphouse.restore.plan import LATEST, parse_moment

    del form  # there is one
    settings = context.settings
    after = None if since is None else read_time(settings, since)
    upto = parse_moment(to, partial(read_time, settings, word=LATEST))
    root = _root(settings, destination)
    with Parts(settings) as parts, bar(enabled=not as_json) as tell:
        report = export_pb(
            parts.readable_archive,
            open_store(settings.archive.model_copy(update={"root": root})),
            since=after,
            upto=upto,
            tables=tables,
            file_bytes=file_mib * _MIB,
            tell=tell,
        )
    if as_json:
        click.echo(json.dumps(with_times(report.to_dict()), indent=2, ensure_ascii=False))
    else:
        _print(report)


def _root(settings: Settings, destination: str) -> str:
    """URL of a destination; UsageError where it is the archive's own, or lies in it."""
    url = destination if "://" in destination else f"file://{quote(str(Path(destination).absolute()))}"
    archive = settings.archive.root.rstrip("/")
    if f"{url.rstrip('/')}/".startswith(f"{archive}/"):
        raise UsageError(f"{destination} lies in the archive, {archive}", hint="export into a directory of its own")
    return url


def _print(report: ExportReport) -> None:
    from pumphouse.commands.load import print_losses

    for note in report.notes:
        click.echo(
            f"{note.name}: up to {show(note.to_ts)}, {note.transactions:,} transactions, {note.changes:,} row changes, "
            f"{note.ddls:,} DDLs, {decimal(note.size)}"
        )
    if not report.notes:
        click.echo("nothing to write")
    click.echo(f"{report.destination} holds what was committed after {show(report.after)} up to {show(report.upto)}")
    for each in report.refused:
        click.echo(
            f"  ! Reparo ends at {show(each.commit_ts)}: it knows no {each.action}: {each.text}\n"
            f"    run it on the target yourself, between --stop-tso {each.commit_ts - 1} and --start-tso "
            f"{each.commit_ts + 1}"
        )
    print_losses(report.losses)
