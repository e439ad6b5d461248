"""``pumphouse load``: the archive into a target."""

from __future__ import annotations

import json
from functools import partial

import click

from pumphouse.archive.losses import Losses
from pumphouse.cli import Context, pass_context
from pumphouse.commands.moments import read_time
from pumphouse.errors import UsageError, naming
from pumphouse.loader.report import LoadReport
from pumphouse.loader.rules import RESYNC
from pumphouse.model.tso import Tso, show
from pumphouse.progress import bar
from pumphouse.restore.plan import LATEST, parse_moment
from pumphouse.settings import Settings

# Everything was done that was to be done, and the target is not whole: tables are parked.
NOT_WHOLE = 3


@click.command()
@click.option(
    "--to",
    default=LATEST,
    show_default=True,
    metavar="TIME",
    help="Load up to this moment, inclusive: a TIME, or latest (the archive's end).",
)
@click.option(
    "--target", default="target", show_default=True, metavar="NAME", help="Target: [target], or NAME of [targets.NAME]."
)
@click.option("--task", help="Name of the load (default: setting load.task).")
@click.option("--take-over", is_flag=True, help="End another run that holds the target.")
@click.option("--run-id", default="", help="Name of this run; a run takes over from one of the same name.")
@click.option(
    "--repeat-from",
    metavar="TIME",
    help="Apply again, by force, everything loaded since this moment.",
)
@click.option("--equal-at", metavar="TIME", help="First load: the target equals the source at this moment.")
@click.option(
    "--abandon-plan",
    metavar="REASON",
    help="Give up an unfinished plan; only a restore helps then. To get past a statement or table, use load.rules.",
)
@click.option(
    "--resync",
    multiple=True,
    metavar="DB.TABLE",
    help="Rebuild one table from the dump and the log, even if a rule left it out.",
)
@click.option("--anew", is_flag=True, help="Begin an unfinished first load or --resync from its first step.")
@click.option("--dry-run", is_flag=True, help="Print the steps; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def load(
    context: Context,
    to: str,
    target: str,
    task: str | None,
    take_over: bool,
    run_id: str,
    repeat_from: str | None,
    equal_at: str | None,
    abandon_plan: str | None,
    resync: tuple[str, ...],
    anew: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Load the archive into the target, in safe mode, from where the target stands.

    Exit code 3: done, and tables are parked by a rule.
    """
    from pumphouse.runs import load as job

    settings = context.settings.aimed(target)
    upto = parse_moment(to, partial(read_time, settings, word=LATEST))
    if len(resync) > 1:
        raise UsageError("--resync takes one table", hint="run it once for each table")
    (table,) = resync or (None,)
    if sum(value is not None for value in (upto, repeat_from, abandon_plan, table)) > 1:
        raise UsageError("--to, --repeat-from, --resync and --abandon-plan exclude each other")
    with naming(target), bar(enabled=not as_json) as progress:
        report = job.run(
            settings,
            task=task,
            to=upto,
            run_id=run_id,
            take_over=take_over,
            repeat=moment(settings, repeat_from),
            equal_at=moment(settings, equal_at),
            abandon=abandon_plan or "",
            resync=table or "",
            anew=anew,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        print_load(report, target)
    if report.parked:
        raise SystemExit(NOT_WHOLE)


def print_load(report: LoadReport, target: str) -> None:
    """What a load did, or will do; ``target``: its name."""
    aim = "" if target == "target" else f"--target {target} "
    for name, reason in sorted(report.parked.items()):
        without = "" if reason.endswith(RESYNC) else "take its rule away, then "
        which, each = ("DB.TABLE", " for each of its tables") if "*" in name else (name, "")
        click.echo(f"  ! {name} is {reason}; to bring it back: {without}`pumphouse load {aim}--resync {which}`{each}")
    if report.dry_run:
        click.echo(f"{report.target} would be at {show(report.to_ts)}")
        for line in report.step_lines():
            click.echo(f"  {line}")
    idle = report.from_ts == report.to_ts and not report.plans
    done = (
        f"{report.inserted} rows put, {report.deleted} keys taken, {report.ddls} DDLs, {report.units} units, "
        f"{report.seconds} s"
    )
    if not report.dry_run:
        click.echo(f"{report.target} is at {show(report.to_ts)}: {'nothing to do' if idle else done}")
    for name, reason in () if idle else sorted(report.skipped.items()):
        click.echo(f"  left out: {name} ({reason})")
    if report.engine:
        click.echo(f"  loaded {report.engine}")
    for note in report.notes:
        click.echo(f"  note: {note}")
    print_losses(report.losses)


def print_losses(losses: Losses) -> None:
    """Say what is missing in what was read, or will be."""
    for line in losses.lines():
        click.echo(f"  ! {line}")


def moment(settings: Settings, text: str | None) -> Tso | None:
    """A TIME option; None when it was not given."""
    return None if text is None else read_time(settings, text)
