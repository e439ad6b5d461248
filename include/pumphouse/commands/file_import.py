"""``pumphouse archive import``: files that another tool wrote become an archive of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import with_times
from pumphouse.errors import UsageError
from pumphouse.model.tso import Tso, show
from pumphouse.progress import bar

if TYPE_CHECKING:
    from pumphouse.file_import.run import ImportReport
    from pumphouse.file_import.schema import DdlAt

_DDL = re.compile(r"\s*(?P<ts>[0-9]+)(?:#(?P<number>[1-9][0-9]*))?\s*=(?P<statement>.*)", re.DOTALL)
_MIB = 1 << 20


@click.command("import")
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(["pb"]),
    help="pb: binlog files of TiDB's Drainer, and of `archive export`.",
)
@click.option(
    "--schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="SQL file that makes the schema as it was before the first file: each statement ends with ;. Default: there "
    "was nothing.",
)
@click.option("--empty", is_flag=True, help="The tables of --schema had no rows before the first file.")
@click.option(
    "--time-zone",
    default="",
    metavar="ZONE",
    help="Zone of the Drainer's host, in which TIMESTAMPs are in its files: Asia/Shanghai, UTC, +08:00. Files of "
    "`archive export` have them in UTC.",
)
@click.option(
    "--ddl",
    "ddls",
    multiple=True,
    metavar="TS=STATEMENT",
    help="Run STATEMENT in place of the DDL that was committed at TS; empty: it changes no table. TS#2 is the second "
    "of several that were committed at TS. Repeatable.",
)
@click.option(
    "--transaction-mib",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    metavar="N",
    help="Refuse larger transactions: one is held in memory, about four times.",
)
@click.argument("source")
@archive_option
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def import_command(
    context: Context,
    form: str,
    schema: Path | None,
    time_zone: str,
    ddls: tuple[str, ...],
    transaction_mib: int,
    source: str,
    *,
    empty: bool,
    as_json: bool,
) -> None:
    """Make an archive of the files in SOURCE, a directory or s3://BUCKET/PREFIX.

    Run again, it goes on where it was killed, or takes files that came since. Their DDLs run on a server without rows,
    which it starts for itself (the setting capture.shadow names the program). It needs no cluster and no Pump.
    """
    from pumphouse.file_import.run import Given, import_pb
    from pumphouse.objectstore.open import open_store

    del form  # there is one
    if empty and schema is None:
        raise UsageError("--empty says something of the tables of --schema", hint="give --schema FILE")
    settings = context.settings
    url = source if "://" in source else f"file://{quote(str(Path(source).absolute()))}"
    given = Given(
        schema="" if schema is None else schema.read_text(),
        empty=empty,
        time_zone=time_zone,
        instead=dict(map(_instead, ddls)),
    )
    with bar(enabled=not as_json) as tell:
        report = import_pb(
            open_store(settings.archive.model_copy(update={"root": url})),
            open_store(settings.archive),
            given,
            settings.archive,
            program=settings.capture.shadow,
            most=transaction_mib * _MIB,
            tell=tell,
        )
    if as_json:
        click.echo(json.dumps(with_times(report.to_dict()), indent=2))
    else:
        _print(report)


def _instead(text: str) -> tuple[DdlAt, str]:
    from pumphouse.file_import.schema import DdlAt

    found = _DDL.fullmatch(text)
    if found is None:
        raise UsageError(f"--ddl {text!r} is no TS=STATEMENT", hint="TS is what the refusal's hint has there")
    return DdlAt(Tso(int(found["ts"])), int(found["number"] or 0)), found["statement"]


def _print(report: ImportReport) -> None:
    from pumphouse.commands.load import print_losses

    done = "begun" if report.begun else "extended" if report.windows else "nothing new for"
    click.echo(f"{done} the archive {report.url}: {report.files} files, {report.windows} windows written")
    click.echo(f"{report.transactions:,} transactions, {report.changes:,} row changes, {report.ddls:,} DDLs were taken")
    click.echo(f"it holds what was committed after {show(report.after)} up to {show(report.upto)}")
    if not report.base:
        click.echo(
            "  ! which rows the tables of --schema had is not known: changes can be read, and no moment be restored"
        )
    print_losses(report.losses)
    root = report.url.rpartition("/")[0]
    click.echo(f"read it: pumphouse --set archive.cluster_id={report.cluster_id} archive ls --archive {root}")
