"""``pumphouse drill`` and ``pumphouse drills``: restores that are tried, proved and thrown away, and how they went."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING

import click

from pumphouse.archive.drills import Drill, read_drills
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import clock_time, read_time
from pumphouse.commands.nodes import json_option, print_json, print_table
from pumphouse.errors import UsageError, naming
from pumphouse.model.tso import show
from pumphouse.parts import Parts

if TYPE_CHECKING:
    from pumphouse.restore.check import Into
    from pumphouse.settings import Settings

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 20


@click.command()
@click.option(
    "--into",
    metavar="SERVER",
    help="Settings section of the server: restore_target, target, or NAME of [targets.NAME] (default: setting "
    "drill.into).",
)
@click.option("--at", metavar="TIME", help="The moment, a TIME; default: one is drawn.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Draw the moment that this number drew before.")
@click.option(
    "--whole",
    is_flag=True,
    help="Drill the restore of everything, databases, views and sequences included, onto a server that has nothing "
    "else: NAME of [targets.NAME] with scratch = true.",
)
@click.option("--clean", is_flag=True, help="Only drop what a killed drill has left on the server.")
@click.option("--take-over", is_flag=True, help="End another drill on that server.")
@click.option("--run-id", default="", help="Name of this run; a run takes over from one of the same name.")
@archive_option
@json_option
@pass_context
def drill(
    context: Context,
    *,
    into: str | None,
    at: str | None,
    seed: int | None,
    whole: bool,
    clean: bool,
    take_over: bool,
    run_id: str,
    as_json: bool,
) -> None:
    """Restore the tables of a random moment onto a server, prove their rows against the archive, and drop them again.

    They are built in a database of our own (pumphouse_drill); whatever else the server has is left alone. With --whole,
    all that the source had is built under its names, on a server that is empty before and after. How it ended is kept
    in the archive (`drills`), and `status` reports a drill that failed. Exit code 1 if anything differs.
    """
    from pumphouse.commands.proof import print_proof
    from pumphouse.progress import bar
    from pumphouse.runs import drill as job

    if at is not None and seed is not None:
        raise UsageError("--at names the moment, and --seed draws one: leave one of them out")
    named = into or context.settings.drill.into
    settings, section = _aimed(context.settings, named)
    if whole:
        job.require_scratch(context.settings, named)
    with naming(named):
        if clean:
            found = job.clean(settings, section, run_id=run_id, take_over=take_over)
            click.echo(f"{named}: {'what a drill had left is dropped' if found else 'no drill has left anything'}")
            return
        moment = None if at is None else read_time(settings, at)
        with bar(enabled=not as_json) as progress:
            done = job.run(
                settings,
                into=section,
                named=named,
                at=moment,
                seed=seed,
                whole=whole,
                run_id=run_id,
                take_over=take_over,
                progress=progress,
            )
    if as_json:
        print_json({**_dict(done.drill), "proven": done.proof.summary()})
    else:
        print_proof(done.proof)
        _print(done.drill)
    if not done.drill.green:
        sys.exit(1)


def _aimed(settings: Settings, into: str) -> tuple[Settings, Into]:
    """The settings for a server, and its section there."""
    if not into:
        raise UsageError("no server is named", hint="--into SERVER, or the setting drill.into")
    if into == "source":
        raise UsageError("no drill writes to the source", hint="name another server: restore_target, target, a target")
    return (settings, "restore_target") if into == "restore_target" else (settings.aimed(into), "target")


def _print(found: Drill) -> None:
    seconds, rate = found.restore_ms / 1000, found.rate or 0
    click.echo(
        f"{found.verdict}: {found.tables} tables, {found.rows:,} rows and changes restored in {seconds:.1f} s "
        f"({rate:,.0f} a second), proved in {found.proof_ms / 1000:.1f} s; kept as {found.key}"
    )
    click.echo(f"again: {found.again}")


@click.command()
@archive_option
@json_option
@pass_context
def drills(context: Context, *, as_json: bool) -> None:
    """List the drills that are kept in the archive, the newest last, with the trend of their rate."""
    with Parts(context.settings) as parts:
        found = read_drills(parts.readable_archive)
    if as_json:
        print_json([_dict(each) for each in found])
        return
    if not found:
        click.echo("there are no drills yet: pumphouse drill --into SERVER")
        return
    headings = ("BEGUN", "MOMENT", "INTO", "VERDICT", "TABLES", "ROWS", "BYTES", "RESTORED IN", "ROWS/S", "PROVED IN")
    print_table(headings, [_row(each) for each in found[-_SHOWN:]])
    if len(found) > _SHOWN:
        click.echo(f"and {len(found) - _SHOWN} before these: --json")
    for each in found[-_SHOWN:]:
        if each.why:
            click.echo(f"{_begun(each)}: {each.why}")
    # Of the kind of the last one: a restore of everything has another rate than one of tables.
    trend = _trend([each.rate for each in found if each.green and each.rate and each.whole == found[-1].whole])
    if trend:
        click.echo(trend)


def _row(each: Drill) -> tuple[str, ...]:
    rate = each.rate
    return (
        _begun(each),
        show(each.at) if each.at else "-",
        f"{each.into}, whole" if each.whole else each.into,
        each.verdict,
        f"{each.tables:,}",
        f"{each.rows:,}",
        f"{each.payload_bytes:,}",
        f"{each.restore_ms / 1000:.1f} s" if each.restore_ms else "-",
        "-" if rate is None else f"{rate:,.0f}",
        f"{each.proof_ms / 1000:.1f} s" if each.proof_ms else "-",
    )


def _begun(each: Drill) -> str:
    return datetime.fromtimestamp(each.begun_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _trend(rates: Sequence[float]) -> str:
    """Rows a second of the green drills, as bars, and the last one beside those before; '' of fewer than two."""
    if len(rates) < 2:
        return ""
    shown, most = rates[-_SHOWN:], max(rates[-_SHOWN:])
    bars = "".join(_BARS[min(len(_BARS) - 1, int(each / most * len(_BARS)))] for each in shown)
    return f"rows/s {bars}  the last one has {rates[-1] / median(rates[:-1]):.2f} times the median of those before"


def _dict(each: Drill) -> dict[str, object]:
    rate = each.rate
    return {**each.to_dict(), "time": clock_time(each.at), "rows_per_s": None if rate is None else round(rate)}
