"""``pumphouse archive prove`` and ``archive proofs``: what a server has, held against the archive."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from pumphouse.archive.proofs import Outcome, Proof, ProvenTable, read_proofs
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import clock_time
from pumphouse.commands.nodes import json_option, print_json
from pumphouse.errors import naming
from pumphouse.model.tso import compose, show, to_datetime
from pumphouse.parts import Parts

if TYPE_CHECKING:
    from pumphouse.restore.check import Into

_SHOWN_RANGES = 5
# A proof that took longer may have been killed and gone on with.
_LONG_MS = 3_600_000


@click.command("prove")
@click.option(
    "--on",
    default="target",
    show_default=True,
    metavar="SECTION",
    help="Settings section of the server: target, restore_target, or NAME of [targets.NAME].",
)
@click.option(
    "--to", metavar="TIME", help="The moment: a TIME. It has to be where the server stands, which is the default."
)
@click.option("--table", "tables", multiple=True, metavar="DB.TABLE", help="Prove only this table; repeatable.")
@click.option("--task", help="Name of the load whose rows these are (default: setting load.task).")
@json_option
@pass_context
def prove_command(
    context: Context, *, on: str, to: str | None, tables: tuple[str, ...], task: str | None, as_json: bool
) -> None:
    """Prove that a server has the rows that the archive has: compare checksums of each table and key range.

    The archive's side is computed from a dump and the windows alone, the server's side by SQL in a snapshot; loads may
    go on meanwhile. What was found is kept in the archive (`archive proofs`). If a proof is killed, the next run
    continues where it stopped. Exit code 1 if anything differs.
    """
    from pumphouse.commands.load import moment
    from pumphouse.progress import bar
    from pumphouse.runs.proof import prove

    section: Into = "restore_target" if on == "restore_target" else "target"
    settings = context.settings if section == "restore_target" else context.settings.aimed(on)
    with naming(on), bar(enabled=not as_json) as progress:
        proof = prove(settings, on=section, at=moment(settings, to), task=task, tables=tables, progress=progress)
    if as_json:
        print_json(proof.summary() | {"time": clock_time(proof.at)})
    else:
        print_proof(proof)
    if not proof.equal:
        sys.exit(1)


@click.command("proofs")
@click.option("--tables", "with_tables", is_flag=True, help="List the tables of each, too.")
@archive_option
@json_option
@pass_context
def proofs_command(context: Context, *, with_tables: bool, as_json: bool) -> None:
    """List the proofs that are kept in the archive, the newest last."""
    with Parts(context.settings) as parts:
        found = read_proofs(parts.readable_archive)
    if as_json:
        shown = [(each, each.to_dict() if with_tables else each.summary()) for each in found]
        print_json([said | {"time": clock_time(each.at)} for each, said in shown])
        return
    if not found:
        click.echo("there are no proofs yet: pumphouse archive prove")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("MOMENT", "TARGET", "VERDICT", "TABLES", "ROWS", "UNPROVEN"):
        table.add_column(heading, overflow="fold")
    for each in found:
        proven = f"{len(each.of(Outcome.EQUAL))} of {len(each.tables)}"
        unproven = str(len(each.of(Outcome.UNPROVEN)))
        chosen = f"{proven}, rows {each.where}" if each.where else proven
        table.add_row(show(each.at), each.target, each.verdict, chosen, f"{each.rows:,}", unproven)
    console = Console(markup=False) if sys.stdout.isatty() else Console(markup=False, width=240)
    console.print(table)
    for each in found if with_tables else ():
        click.echo(f"{each.key}:")
        for one in each.tables:
            click.echo(f"  {_line(one)}")


def _line(table: ProvenTable) -> str:
    here = table.total("archive")
    rows = "" if here is None else f", {here.rows:,} rows, checksum {here.sum:016x}"
    return f"{table.name}: {table.outcome}{rows}{f': {table.why}' if table.why else ''}"


def print_proof(proof: Proof, *, kept: bool = True) -> None:
    """What was found, for people; ``kept``: in the archive."""
    for table in proof.of(Outcome.DIFFERENT):
        _print_difference(table)
    for name in proof.unexpected:
        click.echo(f"{name}: only on the target")
    for table in proof.of(Outcome.UNPROVEN):
        click.echo(f"{table.name}: unproven: {table.why}")
    for table in proof.tables:
        for column, why in table.without.items():
            click.echo(f"{table.name}.{column}: not compared: {why}", err=True)
    for line in (*proof.losses, *(f"left out on both sides: {each}" for each in proof.ruled)):
        click.echo(f"  ! {line}")
    if proof.ended_ms is not None and proof.ended_ms - proof.begun_ms > _LONG_MS:
        begun = f"{to_datetime(compose(proof.begun_ms)):%Y-%m-%d %H:%M}Z"
        click.echo(f"  ! begun at {begun}: rows that were asked for then are not asked for again")
    equal = proof.of(Outcome.EQUAL)
    rows = f", rows {proof.where}" if proof.where else ""
    click.echo(
        f"{proof.verdict}: {proof.target} at {show(proof.at)}{rows}; {len(equal)} of {len(proof.tables)} tables equal, "
        f"{proof.rows:,} rows{f'; kept as {proof.key}' if kept else ''}"
    )


def _print_difference(table: ProvenTable) -> None:
    there = "" if table.there == table.name else f" ({table.there} on the target)"
    if table.why:
        click.echo(f"{table.name}{there}: {table.why}")
    for each in table.different[:_SHOWN_RANGES]:
        low = "" if each.low is None else f"from {each.low} "
        below = "" if each.below is None else f"below {each.below} "
        where = f"{table.key} {low}{below}".strip() if table.key else "all rows"
        if each.archive is not None and each.target is not None:
            rows = f"{each.archive.rows:,} rows in the archive, {each.target.rows:,} on the target"
            same = ", of which some have other values" if each.archive.rows == each.target.rows else ""
            click.echo(f"{table.name}{there}: {where}: {rows}{same}")
    if len(table.different) > _SHOWN_RANGES:
        click.echo(f"{table.name}{there}: and {len(table.different) - _SHOWN_RANGES} more ranges")
    for row in table.rows:
        click.echo(f"  only in the {row.side}: {', '.join(f'{name}={value}' for name, value in row.row.items())}")
