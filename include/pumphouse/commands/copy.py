"""``pumphouse archive copy`` and ``promote``: the archive in a second place, which becomes the archive if need be."""

from __future__ import annotations

import json

import click
from rich.filesize import decimal

from pumphouse.archive.copying import CopyReport
from pumphouse.archive.copyof import read_copy_of
from pumphouse.archive.layout import COPY
from pumphouse.ask import confirm
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import with_times
from pumphouse.errors import UsageError
from pumphouse.model.tso import show
from pumphouse.parts import Parts
from pumphouse.progress import bar
from pumphouse.runs import copy as runs

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


@click.command("copy")
@click.argument("root", metavar="[URL]", required=False, default="")
@click.option(
    "--full", is_flag=True, help="Also read back what the copy has, and put again what is damaged or lost there."
)
@click.option("--dry-run", is_flag=True, help="Show how far the copy is behind, and copy nothing.")
@archive_option
@json_option
@pass_context
def copy_command(context: Context, *, root: str, full: bool, dry_run: bool, as_json: bool) -> None:
    """Bring the copy of the archive at URL up to date (else as archive.copy_root says); the first run makes it.

    URL is s3://bucket/prefix, with the archive's endpoint and keys, or file:///dir. Every object is held against its
    digest on the way. The copy can be restored from at every moment: pumphouse restore --archive URL. Nothing is ever
    deleted there, also not what expires in the archive. You may kill it and run it again. It needs no cluster.
    """
    with bar(enabled=not as_json) as tell:
        report = runs.run(context.settings, root, full=full, dry_run=dry_run, tick=tell)
    if as_json:
        click.echo(json.dumps(with_times(runs.told(report)), indent=2))
    else:
        _print(report)


def _print(report: CopyReport) -> None:
    would = "would be " if report.dry_run else ""
    if report.was is None:
        click.echo(f"{report.url}: there {'is' if report.dry_run else 'was'} no copy of {report.of} yet")
    click.echo(
        f"{would}copied: {report.windows} windows, {report.bases} dumps and bases, {report.objects:,} objects, "
        f"{decimal(report.bytes)}, {report.seconds:,.1f} s"
    )
    if report.mended:
        click.echo(f"{would}put again: {report.mended:,} of them, which were damaged or lost in the copy")
    reached = report.was if report.dry_run and report.was is not None else report.end
    click.echo(f"{report.url} has windows from {show(report.start)} to {show(reached)}")
    if report.only_here:
        click.echo(
            f"{report.only_here} of its windows have expired in the archive, which begins at {show(report.of_start)}"
        )


@click.command("promote")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@archive_option
@pass_context
def promote_command(context: Context, *, yes: bool) -> None:
    """Make a copy the archive, because the archive that it is a copy of is lost.

    From then on snapshots extend it, and `archive copy` writes to it no more. docs/disaster.md has the whole recipe.
    """
    with Parts(context.settings) as parts:
        archive = parts.readable_archive
        of = read_copy_of(archive.store)
        if of is None:
            raise UsageError(f"{archive.url} is no copy: it is an archive of its own", hint="pumphouse archive ls")
        confirm(
            f"{archive.url} ends at {show(archive.end())}. It becomes an archive of its own; the one at {of.url} must "
            "never be extended again.",
            yes=yes,
        )
        archive.store.delete(COPY)
    click.echo(f"{archive.url} is no copy any more")
