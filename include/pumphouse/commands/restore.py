"""``pumphouse restore``: a target as the source was at a moment."""

from __future__ import annotations

import json

import click

from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context
from pumphouse.commands.load import cluster_now, print_losses
from pumphouse.loader.target import address
from pumphouse.model.tso import show
from pumphouse.progress import bar
from pumphouse.restore.plan import parse_moment
from pumphouse.restore.run import RestoreReport


@click.command()
@click.option(
    "--to",
    metavar="TIME",
    required=True,
    help="The moment, inclusive: latest (the archive's end), a TSO or an ISO time.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan, change nothing.")
@click.option("--task", help="Load that goes on from there (default: setting load.task).")
@click.option("--take-over", is_flag=True, help="End another run that holds the target.")
@click.option("--run-id", default="", help="Name of this run; the same name takes over from itself.")
@click.option("--accept-losses", is_flag=True, help="Restore although something in the range was declared lost.")
@click.option("--yes", is_flag=True, help="Do not ask before the target's databases are dropped.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def restore(
    context: Context,
    to: str,
    dry_run: bool,
    task: str | None,
    take_over: bool,
    run_id: str,
    accept_losses: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Restore the restore target (settings section restore_target) to a moment in the archive's range."""
    from pumphouse.runs import restore as job

    settings = context.settings
    asked = parse_moment(to, lambda: cluster_now(settings))
    planned = job.run(settings, to=asked, dry_run=True, task=task)
    # The end that was planned, also when a snapshot moves it while somebody reads the question.
    at, latest = planned.plan.to, asked is None
    if not dry_run:
        if not as_json:
            _print_plan(planned, latest=latest)
        planned.plan.require_accepted(accept_losses)
        names = ", ".join(planned.plan.databases) or "no databases"
        confirm(f"{names} on {address(settings.restore_target)} will be dropped and built as of {show(at)}", yes=yes)
        with bar(enabled=not as_json) as progress:
            done = job.run(
                settings,
                shown=planned.shown,
                dry_run=False,
                task=task,
                run_id=run_id,
                take_over=take_over,
                accept_losses=accept_losses,
                progress=progress,
            )
    else:
        done = planned
    if as_json:
        click.echo(json.dumps(done.to_dict(), indent=2))
    elif dry_run:
        _print_plan(done, latest=latest)
    elif done.load is not None:
        load = done.load
        click.echo(f"restored to {show(at)}: {load.inserted} rows put, {load.ddls} DDLs, {load.seconds} s")
        print_losses(load.losses)


def _print_plan(report: RestoreReport, *, latest: bool) -> None:
    plan = report.plan
    click.echo(f"target    {report.target}")
    click.echo(f"moment    {show(plan.to)}{', the end of the archive' if latest else ''}")
    click.echo(f"replaces  {', '.join(plan.databases) or '(no databases)'}")
    click.echo(
        f"base      {show(plan.base)}: {plan.base_tables} tables, {plan.base_rows} rows, {plan.base_bytes} bytes"
    )
    click.echo(f"windows   {len(plan.windows)}: {plan.rows} row changes, {plan.bytes} bytes")
    for window in plan.windows:
        cut = "  cut at the moment" if window.cut else ""
        click.echo(
            f"  ({show(window.start)}, {show(window.end)}]  {window.segments} segments, {window.rows} changes{cut}"
        )
    click.echo(f"DDLs      {len(plan.ddls)}")
    for ddl in plan.ddls:
        click.echo(f"  {show(ddl.commit_ts)}  {ddl.action}  {ddl.query}")
    click.echo(f"tables    {plan.tables} then")
    print_losses(plan.losses)
