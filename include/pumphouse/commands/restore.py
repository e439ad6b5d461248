"""``pumphouse restore``: a target as the source was at a moment."""

from __future__ import annotations

import json
import sys

import click

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.load import naming, now, print_losses, print_steps
from pumphouse.model.tso import show
from pumphouse.progress import bar
from pumphouse.restore.check import Into
from pumphouse.restore.plan import parse_moment
from pumphouse.restore.report import RestoreReport


@click.command()
@click.option(
    "--to",
    metavar="TIME",
    required=True,
    help="The moment, inclusive: latest (the archive's end), a TSO or an ISO time (UTC without a zone).",
)
@archive_option
@click.option("--dry-run", is_flag=True, help="Print the plan and the checks of the target; change nothing.")
@click.option("--plan-only", is_flag=True, help="A dry run that does not look at the target.")
@click.option(
    "--into",
    default="restore_target",
    show_default=True,
    metavar="SECTION",
    help="Settings section whose server is replaced; target, or NAME of [targets.NAME]: build what `load` keeps up to "
    "date anew.",
)
@click.option(
    "--replace",
    default="",
    metavar="HOST:PORT",
    help="The target's name, as the plan prints it: permits dropping its data. Without it, asks at the terminal.",
)
@click.option("--task", help="Name of the load that continues from there (default: setting load.task).")
@click.option("--take-over", is_flag=True, help="End another run that holds the target.")
@click.option("--run-id", default="", help="Name of this run; a run takes over from one of the same name.")
@click.option("--accept-losses", is_flag=True, help="Restore even if something in the range was declared lost.")
@click.option("--anew", is_flag=True, help="Begin an unfinished restore to the same moment from its first step.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def restore(
    context: Context,
    to: str,
    dry_run: bool,
    plan_only: bool,
    into: str,
    replace: str,
    task: str | None,
    take_over: bool,
    run_id: str,
    accept_losses: bool,
    anew: bool,
    as_json: bool,
) -> None:
    """Restore the restore target (settings section restore_target) to a moment in the archive's range.

    The databases of the source are dropped there and built again. A server that has any of them needs its name typed.
    It needs the archive and the target, and neither the cluster nor the source.
    """
    from pumphouse.runs import restore as job

    section: Into = "restore_target" if into == "restore_target" else "target"
    settings = context.settings if section == "restore_target" else context.settings.aimed(into)
    with naming(into if section == "target" else "target"):
        asked = parse_moment(to, lambda: now(settings))
        dry_run = dry_run or plan_only
        planned = job.run(settings, into=section, to=asked, dry_run=True, plan_only=plan_only, task=task)
        # The end that was planned, also when a snapshot moves it while somebody reads the question.
        at, latest = planned.plan.to, asked is None
        if not dry_run:
            if not as_json:
                _print_plan(planned, latest=latest)
            planned.plan.require_accepted(accept_losses)
            typed = replace or _ask(planned, show(at))
            with bar(enabled=not as_json) as progress:
                done = job.run(
                    settings,
                    into=section,
                    shown=planned.shown,
                    dry_run=False,
                    task=task,
                    run_id=run_id,
                    take_over=take_over,
                    accept_losses=accept_losses,
                    replace=typed,
                    anew=anew,
                    progress=progress,
                )
        else:
            done = planned
    if as_json:
        click.echo(json.dumps(done.to_dict(), indent=2))
    elif dry_run:
        _print_plan(done, latest=latest)
    else:
        load = done.load
        click.echo(f"restored to {show(at)}: {load.inserted} rows put, {load.ddls} DDLs, {load.seconds} s")
        if load.engine:
            click.echo(f"  loaded {load.engine}")
        for note in load.notes:
            click.echo(f"  note: {note}")
        print_losses(load.losses)


def _ask(planned: RestoreReport, moment: str) -> str:
    """The target's name, typed at a terminal, where data is dropped; '' where there is none, or nobody to ask."""
    check = planned.check
    if check is None or not check.holds:
        return ""
    click.echo(f"warning: {check.held()} on {check.server} will be dropped and built as of {moment}", err=True)
    return str(click.prompt(f"Type {check.server} to go on", err=True)) if sys.stdin.isatty() else ""


def _print_plan(report: RestoreReport, *, latest: bool) -> None:
    plan = report.plan
    click.echo(f"target    {report.target}")
    if report.check is not None:
        click.echo(f"server    {report.check.version}; it holds {report.check.held() or 'nothing that is dropped'}")
        for note in report.check.notes:
            click.echo(f"  ! not compared with {note}")
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
    for what, why in plan.left_out.items():
        click.echo(f"  ! by a rule: {what} ({why})")
    for name, there in (*plan.routes.databases, *plan.routes.tables):
        click.echo(f"  ! by a rule: {name} is called {there} there")
    click.echo(f"tables    {plan.tables} then")
    click.echo("steps")
    print_steps(report.load)
    print_losses(plan.losses)
