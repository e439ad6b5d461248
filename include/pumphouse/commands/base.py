"""``pumphouse archive base``: the newest base and the windows behind it become the next one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.filesize import decimal

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.nodes import json_option, print_json
from pumphouse.model.tso import show
from pumphouse.parts import Parts

if TYPE_CHECKING:
    from pumphouse.folding.run import FoldReport

_SHOWN = 20


@click.command("base")
@click.option("--at", metavar="TIME", help="The moment: a TIME; latest, the default, is the archive's end.")
@click.option("--dry-run", is_flag=True, help="Show what would be read, named and written, and change nothing.")
@archive_option
@json_option
@pass_context
def base_command(context: Context, *, at: str | None, dry_run: bool, as_json: bool) -> None:
    """Fold the newest base before a moment and the windows behind it into a base of that moment.

    Later restores, first loads and proofs begin there, and read no window from before it. It needs no source, no target
    and no cluster. What did not change is named and not copied. Its objects are Parquet files of typed columns, which
    DuckDB, pandas and Spark read by themselves (docs/operations.md). A run that is killed is run again.
    """
    from pumphouse.commands.load import moment
    from pumphouse.folding.run import fold_base
    from pumphouse.progress import bar

    settings = context.settings
    asked = None if at == "latest" else moment(settings, at)
    with Parts(settings) as parts, bar(enabled=not as_json) as progress:
        report = fold_base(
            parts.readable_archive, settings.load, settings.archive, asked, dry_run=dry_run,
            progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(asdict(report))
    else:
        _print(report, dry_run=dry_run)


def _print(report: FoldReport, *, dry_run: bool) -> None:
    """For people: the tables that changed first, each in a line."""
    if not report.made and not dry_run:
        click.echo(f"nothing to do: there is a base of {show(report.ts)}, {report.key}")
        return
    changed = [table for table in report.tables if table.rewritten]
    for table in sorted(changed, key=lambda each: -each.changes)[:_SHOWN]:
        done = (
            "" if table.rows is None else f", {table.rows:,} rows, {table.written} parts written, {table.named} named"
        )
        click.echo(f"{table.name}: {table.changes:,} changes{done}")
    if len(changed) > _SHOWN:
        click.echo(f"and {len(changed) - _SHOWN} more tables that changed")
    for name in report.without:
        click.echo(f"NOT in it, as in the base before it, by dump.without: {name}")
    for line in report.losses:
        click.echo(f"  ! {line}")
    same = len(report.tables) - len(changed)
    if dry_run:
        click.echo(
            f"a base of {show(report.ts)} would be folded from that of {show(report.older_ts)}: {len(changed)} tables "
            f"changed ({decimal(report.bytes_read)} to read at most), {same} would be named "
            f"({decimal(report.bytes_named)})"
        )
        return
    click.echo(
        f"folded {len(report.tables)} tables, {report.rows:,} rows, from the base of {show(report.older_ts)} in "
        f"{report.seconds:,.1f} s: {len(changed)} tables changed, {decimal(report.bytes_written)} written, "
        f"{decimal(report.bytes_named)} named\nrestores to {show(report.ts)} and later begin here"
    )
