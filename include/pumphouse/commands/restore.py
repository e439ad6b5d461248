"""``pumphouse restore``: a target as the source was at a moment, or some tables beside what a server has."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from pumphouse.archive.objects import script
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.load import NOT_WHOLE, moment, print_load, print_losses
from pumphouse.commands.moments import read_time
from pumphouse.commands.proof import print_proof
from pumphouse.durable import new_private
from pumphouse.errors import ConfigError, UsageError, naming
from pumphouse.loader.keys import Predicate
from pumphouse.model.tso import show
from pumphouse.progress import bar
from pumphouse.restore.check import Into, Place
from pumphouse.restore.parts import Chosen, PartsPlan
from pumphouse.restore.plan import LATEST, parse_moment
from pumphouse.restore.report import RestoreReport
from pumphouse.restore.told import as_text, plan_told
from pumphouse.settings import Settings


@click.command()
@click.option("--to", metavar="TIME", help="The moment, inclusive: a TIME, or latest (the archive's end).")
@click.option(
    "--to-gtid",
    metavar="GTID",
    help="In place of --to: with exactly this transaction of the captured source, and all before it.",
)
@click.option(
    "--to-source-time",
    metavar="TIME",
    help="In place of --to: with what the captured source had committed then by its own clock.",
)
@archive_option
@click.option(
    "--base",
    metavar="TIME",
    help="The dump to begin from, by the TSO that `archive ls` lists; default: the newest that leads to the moment.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and the checks of the target; change nothing.")
@click.option("--plan-only", is_flag=True, help="A dry run that does not look at the target.")
@click.option(
    "--into",
    default="restore_target",
    show_default=True,
    metavar="SECTION",
    help="Settings section whose server is replaced; target, or NAME of [targets.NAME]: build what `load` keeps up to "
    "date anew. With --table, which replaces nothing, also source.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="DB.TABLE",
    help="Restore only this table, as it was called at the moment, beside whatever the server has; repeatable. * or % "
    "stand for any text: shop.%.",
)
@click.option("--as", "called", default="", metavar="DB.TABLE", help="With one --table: its name there.")
@click.option("--into-database", default="", metavar="DB", help="With --table: the database there.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="VALUE[,VALUE]",
    help="With one --table: only the row with this primary key; repeatable. Values, never SQL; TIMESTAMP in UTC.",
)
@click.option(
    "--key-from", metavar="VALUE", help="With one --table: only rows whose key's first column is this or more."
)
@click.option(
    "--key-to",
    metavar="VALUE",
    help="With one --table: only rows whose key's first column is less than this; this is not.",
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
@click.option("--accept-losses", is_flag=True, help="Restore even if something in the range is lost.")
@click.option(
    "--anew",
    is_flag=True,
    help="Begin an unfinished restore to the same moment from its first step; with --table, give up any other.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Then load the server on from the moment to the archive's end, under the same lock, as `load` does; it is a "
    "target of loads from then on. Needs --into target, or NAME. Killed in that load, the same command goes on with "
    "it, and restores nothing again. Exit code 3: as of `load`.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Then prove that the rows are those of the archive, as `archive prove` does; exit code 1 if anything differs. "
    "With --follow, where the load has come to. With --dry-run, print what the proof would read.",
)
@click.option(
    "--objects",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write what no restore builds into a new file: triggers, events, routines, views, foreign keys and users, as "
    "the source had them at the dump, without passwords. Nothing runs it. --dry-run writes it too.",
)
@click.option("--verbose", is_flag=True, help="Print each window, each DDL and each table of the plan.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def restore(
    context: Context,
    to: str | None,
    to_gtid: str | None,
    to_source_time: str | None,
    base: str | None,
    dry_run: bool,
    plan_only: bool,
    into: str,
    tables: tuple[str, ...],
    called: str,
    into_database: str,
    keys: tuple[str, ...],
    key_from: str | None,
    key_to: str | None,
    replace: str,
    task: str | None,
    take_over: bool,
    run_id: str,
    accept_losses: bool,
    anew: bool,
    follow: bool,
    verify: bool,
    objects: Path | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Restore the restore target (settings section restore_target) to a moment in the archive's range.

    The databases of the source are dropped there and built again. A server that has any of them needs its name typed.
    It needs the archive and the target, and neither the cluster nor the source.

    With --table, only those tables are restored, beside what the server has: nothing that exists is changed.
    """
    dry_run = dry_run or plan_only
    said = _one_moment(to, to_gtid, to_source_time)
    if follow:
        _require_loaded(context.settings, into)
    settings, section = aimed(context.settings, into, parts=bool(tables))
    if tables and (replace or task or follow):
        raise UsageError(
            "with --table nothing is replaced, and no load goes on: --replace, --task and --follow have no meaning"
        )
    where = Predicate(keys=keys, low=key_from, below=key_to)
    if not tables and (called or into_database or where):
        raise UsageError("--as, --into-database, --key, --key-from and --key-to need --table")
    with naming(into):
        asked = parse_moment(said, partial(read_time, settings, word=LATEST))
        chosen = Chosen(tables=tables, called=called, database=into_database, where=where)
        run = _job(settings, section, task, chosen, follow=follow)
        begin = moment(settings, base)
        planned = done = run(to=asked, base=begin, dry_run=True, plan_only=plan_only, anew=anew)
        if verify:
            planned = done = _with_proof(settings, planned, section, task)
        _write_objects(objects, planned)
        if not dry_run:
            if not as_json:
                _print_plan(planned, latest=asked is None, verbose=verbose)
            _require_accepted(planned, accept_losses)
            # The end that was planned, also when a snapshot moves it while somebody reads the question.
            typed = {} if tables else {"replace": replace or _ask(planned, show(planned.plan.to))}
            with bar(enabled=not as_json) as progress:
                done = run(
                    shown=planned.shown,
                    dry_run=False,
                    run_id=run_id,
                    take_over=take_over,
                    accept_losses=accept_losses,
                    anew=anew,
                    progress=progress,
                    **typed,
                )
            if not as_json:
                _print_done(done, into)
            if verify:
                done = _verified(settings, done, section, task, as_json=as_json)
    if as_json:
        windows = [dataclasses.asdict(window) for window in done.plan.windows]
        click.echo(json.dumps({**done.to_dict(), "windows": windows}, indent=2))
    elif dry_run:
        _print_plan(done, latest=asked is None, verbose=verbose)
    elif done.proof is not None:
        print_proof(done.proof)
    sys.exit(_exit_code(done))


def _one_moment(to: str | None, gtid: str | None, source_time: str | None) -> str:
    """The moment as --to takes it."""
    words = (("", to), ("gtid ", gtid), ("source time ", source_time))
    said = [f"{word}{each}" for word, each in words if each is not None]
    if len(said) != 1:
        raise UsageError("one moment is needed", hint="give one of --to, --to-gtid and --to-source-time")
    return said[0]


def _exit_code(done: RestoreReport) -> int:
    """1 where the rows are not those of the archive; 3 where the load that followed parked tables."""
    if done.proof is not None and not done.proof.equal:
        return 1
    return NOT_WHOLE if done.followed is not None and done.followed.parked else 0


def _require_accepted(planned: RestoreReport, accept_losses: bool) -> None:
    if not planned.before:
        planned.plan.require_accepted(accept_losses)


def _with_proof(settings: Settings, planned: RestoreReport, section: Place, task: str | None) -> RestoreReport:
    """The plan, with what the proof would read; UsageError where none can ask such a server."""
    from pumphouse.runs.proof import plan_proof

    return dataclasses.replace(planned, proving=plan_proof(settings, planned, into=section, task=task))


def _verified(
    settings: Settings, done: RestoreReport, section: Place, task: str | None, *, as_json: bool
) -> RestoreReport:
    """The report, with what is found when the rows are held against the archive."""
    from pumphouse.runs.proof import prove_restored

    with bar(enabled=not as_json) as progress:
        return dataclasses.replace(
            done, proof=prove_restored(settings, done, into=section, task=task, progress=progress)
        )


def _write_objects(path: Path | None, planned: RestoreReport) -> None:
    """What no restore builds, for a MySQL client; UsageError where the dump kept nothing, or the file is there."""
    if path is None:
        return
    kept, base = planned.lacks, show(planned.plan.base)
    if isinstance(kept, str):
        raise UsageError(f"--objects: {kept or 'it is of whole restores'}", hint="take a dump: pumphouse archive dump")
    try:
        with new_private(path) as file:
            file.write(script(kept, f"what no copy of the source gets, as of the dump of {base}"))
    except OSError as error:
        raise UsageError(f"--objects: {path} cannot be made: {error}", hint="name a new file") from error
    click.echo(f"{path}: {kept.counts() or 'nothing'}; read it before you run it", err=True)


def aimed(settings: Settings, into: str, *, parts: bool) -> tuple[Settings, Place]:
    """The settings for a section, and its name there."""
    if into == "restore_target":
        return settings, "restore_target"
    if into == "source" and parts:
        return settings, "source"
    if into == "source":
        raise UsageError("the source is restored to by parts alone", hint="--table DATABASE.TABLE --as DATABASE.TABLE")
    return settings.aimed(into), "target"


def _require_loaded(settings: Settings, into: str) -> None:
    """ConfigError for a server of drills: no load would go on with it."""
    if (found := settings.targets.get(into)) is not None and found.scratch:
        raise ConfigError(
            f"[targets.{into}] is a server for drills, which nothing keeps up to date",
            hint="take `scratch = true` out of that section",
        )


def _job(
    settings: Settings, section: Place, task: str | None, chosen: Chosen, *, follow: bool
) -> Callable[..., RestoreReport]:
    """The whole restore, or that of parts."""
    from pumphouse.runs import restore, restore_parts

    if chosen.tables:
        return partial(restore_parts.run, settings, chosen=chosen, into=section)
    into: Into = "target" if section == "target" else "restore_target"
    return partial(restore.run, settings, into=into, task=task, follow=follow)


def _ask(planned: RestoreReport, moment: str) -> str:
    """The target's name, typed at a terminal, where data is dropped; '' where there is none, or nobody to ask."""
    check = planned.check
    lost = "" if check is None or planned.before else check.lost(follow=planned.followed is not None)
    if check is None or not lost:
        return ""
    click.echo(f"warning: {lost} on {check.server} will be dropped and built as of {moment}", err=True)
    return str(click.prompt(f"Type {check.server} to go on", err=True)) if sys.stdin.isatty() else ""


def _print_done(done: RestoreReport, into: str) -> None:
    if not done.before:
        _print_restored(done)
    if done.followed is not None:
        print_load(done.followed, into)


def _print_restored(done: RestoreReport) -> None:
    plan, load = done.plan, done.load
    what = f"{plan.said()} restored as of" if isinstance(plan, PartsPlan) else "restored to"
    click.echo(f"{what} {show(plan.to)}: {load.inserted} rows put, {load.ddls} DDLs, {load.seconds} s")
    if load.engine:
        click.echo(f"  loaded {load.engine}")
    for note in load.notes:
        click.echo(f"  {note}" if note.startswith("!") else f"  note: {note}")
    print_losses(load.losses)


def _print_plan(report: RestoreReport, *, latest: bool, verbose: bool) -> None:
    for line in as_text(plan_told(report, latest=latest, verbose=verbose)):
        click.echo(line)
