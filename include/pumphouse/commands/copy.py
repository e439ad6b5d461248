"""``pumphouse archive copy`` and ``promote``: the archive in a second place, which becomes the archive if need be."""

from __future__ import annotations

import json

import click
from rich.filesize import decimal

from pumphouse.archive import consumer
from pumphouse.archive.archive import Archive
from pumphouse.archive.copying import CopyReport
from pumphouse.archive.copyof import read_copy_of
from pumphouse.archive.layout import COPY
from pumphouse.ask import confirm
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import with_times
from pumphouse.errors import BinlogError, ConfigError, ObjectNotFound, StoreError, StoreUnavailable
from pumphouse.model.tso import show
from pumphouse.parts import Parts
from pumphouse.progress import bar
from pumphouse.runs import copy as runs
from pumphouse.settings import Settings

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


@click.command("copy")
@click.argument("root", metavar="[URL]", required=False, default="")
@click.option(
    "--full",
    is_flag=True,
    help="Also read back all that the copy has, and put again what is damaged or lost there.",
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
@click.option("--archive-is-lost", is_flag=True, help="Also while the archive before still answers.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@archive_option
@pass_context
def promote_command(context: Context, *, archive_is_lost: bool, yes: bool) -> None:
    """Make a copy the archive, because the archive that it is a copy of is lost.

    The cluster knows the archive at this place from then on: snapshots and GC with the place before are refused. It
    also is the way to tell the cluster that the archive was moved. docs/disaster.md has the whole recipe.
    """
    with Parts(context.settings) as parts:
        archive, cluster = parts.archive_there, parts.cluster
        of, known = read_copy_of(archive.store), consumer.registered(cluster, archive.archive_id)
        root = known.root if known is not None else ""
        if of is None and root in ("", archive.url):
            click.echo(f"{archive.url} is no copy: it is the archive")
            return
        if not archive_is_lost:
            for url in {each for each in (root, "" if of is None else of.url) if each not in ("", archive.url)}:
                _require_lost(context.settings, url, archive)
        end = archive.end()
        lacks = known is not None and known.checkpoint > end
        behind = f", and the Pumps know the archive up to {show(known.checkpoint)}" if known and lacks else ""
        confirm(
            f"{archive.url} ends at {show(end)}{behind}. It becomes the archive in the place of {root or 'none'}.",
            yes=yes,
        )
        # The registration first: from there on nothing extends the place before, and nothing is freed for its sake.
        consumer.promote(archive, cluster, known)
        archive.store.delete(COPY)
    click.echo(f"{archive.url} is the archive, and ends at {show(end)}{behind}")


def _require_lost(settings: Settings, url: str, archive: Archive) -> None:
    """ConfigError where the archive still answers at the place before."""
    root = url.removesuffix(f"/{archive.cluster_id}")
    try:
        there = Archive.open(settings.archive.model_copy(update={"root": root}), archive.cluster_id)
        alive = there.genesis().sha256 == archive.genesis().sha256
    except StoreError as error:
        if isinstance(error, (ObjectNotFound, StoreUnavailable)):
            return
        raise ConfigError(
            f"whether the archive at {url} is lost cannot be told with these keys: {error.message}",
            hint="if it is, for that place never to be used again: --archive-is-lost",
        ) from error
    except BinlogError:
        return
    if alive:
        raise ConfigError(
            f"the archive at {url} still answers: it may go further than {archive.url}",
            hint="bring the copy up to date with pumphouse archive copy; then, for the place before never to be used "
            "again, --archive-is-lost",
        )
