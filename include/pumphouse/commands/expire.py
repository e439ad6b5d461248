"""``pumphouse archive expire``, ``mark``, ``marks`` and ``unmark``: how much of the archive is kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial

import click
from rich.filesize import decimal

from pumphouse.archive.expire import ExpireReport
from pumphouse.archive.marks import mark, unmark
from pumphouse.archive.retention import require_policy
from pumphouse.ask import confirm
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import read_time, with_times
from pumphouse.model.tso import show
from pumphouse.parts import Parts
from pumphouse.progress import bar
from pumphouse.runs import expire as runs

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
_SHOWN_ORPHANS = 20


@click.command("expire")
@click.option(
    "--keep-bases",
    type=int,
    metavar="N",
    help="Keep the newest N bases, dumps and folded ones; else as retention.keep_bases says.",
)
@click.option("--keep-days", type=float, metavar="D", help="Keep D days restorable; else as retention.keep_days says.")
@click.option(
    "--without",
    multiple=True,
    metavar="SERVER",
    help="This server holds nothing: source, target, restore_target or NAME of [targets.NAME]. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go, and from when on one can restore then.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@pass_context
def expire_command(
    context: Context,
    *,
    keep_bases: int | None,
    keep_days: float | None,
    without: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete what retention does not keep, and what killed tasks left behind.

    Kept are the newest N bases, or the moments of D days (of both, whatever one wants), every mark, the newest base,
    and what a target, a restore, a drill, a proof or a dump under way still needs. A server that does not answer holds
    everything. Without retention only objects that nothing names are deleted. You may kill it and run it again.
    """
    settings = context.settings
    wished = settings.retention
    policy = require_policy(
        wished.keep_bases if keep_bases is None else keep_bases, wished.keep_days if keep_days is None else keep_days
    )
    found = runs.run(settings, policy, without=without, dry_run=True)
    if not dry_run:
        if not as_json:
            _print(found)
        if found.objects or found.moves:
            confirm(f"{found.count} objects, {decimal(found.size)}, will be deleted for ever.", yes=yes)
            with bar(enabled=not as_json) as tell:
                found = runs.run(settings, policy, without=without, shown=found, tick=partial(tell, "expire"))
            if not as_json:
                click.echo(f"deleted: {found.count} objects, {decimal(found.size)}")
    elif not as_json:
        _print(found)
    if as_json:
        click.echo(json.dumps(with_times(runs.told(found) | {"dry_run": dry_run}), indent=2))


def _print(found: ExpireReport) -> None:
    click.echo(f"kept: {found.policy}")
    if found.restorable_from is None:
        click.echo("nothing can be restored: there is no base")
    else:
        when = "can" if found.why_nothing else "can then"
        click.echo(f"one {when} restore from {show(found.restorable_from)} to {show(found.restorable_to)}")
    if found.why_nothing:
        click.echo(f"nothing expires: {found.why_nothing}")
    else:
        click.echo(
            f"{len(found.bases_gone)} bases and {found.windows_gone} windows expire; "
            f"windows stay from {show(found.start)} on"
        )
    for ts in found.bases_gone:
        click.echo(f"  base {show(ts)} goes")
    for ts in found.bases:
        click.echo(f"  base {show(ts)} stays")
    for each in found.held:
        click.echo(f"held by {each}")
    for what, count in sorted(found.objects.items()):
        click.echo(f"  {count:,} objects of {what}, {decimal(found.bytes[what])}")
    for key in found.orphans[:_SHOWN_ORPHANS]:
        click.echo(f"    {key}")
    if len(found.orphans) > _SHOWN_ORPHANS:
        click.echo(f"    and {len(found.orphans) - _SHOWN_ORPHANS:,} more (--json lists them)")


@click.command("mark")
@click.argument("moment", metavar="TIME")
@click.option("--reason", required=True, help="Why; shown by `archive marks`.")
@json_option
@pass_context
def mark_command(context: Context, *, moment: str, reason: str, as_json: bool) -> None:
    """Keep a moment restorable, whatever retention says, until `archive unmark`.

    Its dump stays, and every window from there on.
    """
    with Parts(context.settings) as parts:
        ts = read_time(context.settings, moment, parts.cluster.tso)
        made = mark(parts.archive, ts, reason)
    if as_json:
        click.echo(json.dumps(with_times(made.to_dict()), indent=2))
    else:
        click.echo(f"marked: {show(made.ts)}: {made.reason}")


@click.command("marks")
@archive_option
@json_option
@pass_context
def marks_command(context: Context, *, as_json: bool) -> None:
    """List the moments that are marked. It needs no cluster."""
    with Parts(context.settings) as parts:
        found = parts.readable_archive.range().marks
    if as_json:
        click.echo(json.dumps(with_times([each.to_dict() for each in found]), indent=2))
        return
    if not found:
        click.echo("no moment is marked: pumphouse archive mark TIME --reason …")
    for each in found:
        at = datetime.fromtimestamp(each.at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")
        click.echo(f"{show(each.ts)}: {each.reason} ({each.who}, {at} UTC)")


@click.command("unmark")
@click.argument("moment", metavar="TIME")
@pass_context
def unmark_command(context: Context, *, moment: str) -> None:
    """Let a marked moment expire with the others."""
    with Parts(context.settings) as parts:
        ts = read_time(context.settings, moment, parts.cluster.tso)
        unmark(parts.archive, ts)
    click.echo(f"not marked any more: {show(ts)}")
