"""``pumphouse archive compact``: small objects of old windows go into few large ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.filesize import decimal

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.nodes import json_option, print_json
from pumphouse.parts import Parts

if TYPE_CHECKING:
    from pumphouse.archive.compact import CompactReport


@click.command("compact")
@click.option("--dry-run", is_flag=True, help="Show what would be packed, and change nothing.")
@archive_option
@json_option
@pass_context
def compact_command(context: Context, *, dry_run: bool, as_json: bool) -> None:
    """Pack the small objects of old windows, a thousand windows at a time: fewer objects, bytes and requests.

    Every moment stays as it was: manifests do not change, and each object is read back by its digest before it is
    deleted by itself. The newest windows, and objects of 1 MiB and more, stay as they are. It needs no cluster. A run
    that is killed is run again. A release from before packs cannot read what is packed.
    """
    from pumphouse.archive.compact import compact
    from pumphouse.progress import bar

    with Parts(context.settings) as parts, bar(enabled=not as_json) as tick:
        report = compact(parts.readable_archive, dry_run=dry_run, tick=tick)
    if as_json:
        print_json(asdict(report))
    else:
        _print(report)


def _print(report: CompactReport) -> None:
    if not report.packs:
        click.echo(f"nothing to pack: {report.left:,} windows are in no pack, and a pack needs about {report.needed:,}")
    elif report.dry_run:
        click.echo(
            f"{report.objects:,} objects of {report.windows:,} windows, {decimal(report.bytes)}, would go into "
            f"{report.packs:,} packs"
        )
    else:
        click.echo(
            f"packed {report.objects:,} objects of {report.windows:,} windows, {decimal(report.bytes)}, into "
            f"{report.packs:,} packs of {decimal(report.packed_bytes)}"
        )
    if report.deleted:
        click.echo(f"deleted {report.deleted:,} objects that lay by themselves")
