"""``pumphouse archive export``: a range of the archive as files, or messages, that other tools read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
from rich.filesize import decimal

from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import read_time, tables_option, to_option, with_times
from pumphouse.errors import UsageError
from pumphouse.model.tso import Tso, show
from pumphouse.parts import Parts
from pumphouse.progress import bar

if TYPE_CHECKING:
    from pumphouse.export.run import ExportReport
    from pumphouse.objectstore.base import ObjectStore
    from pumphouse.settings import Settings

_MIB = 1 << 20


@click.command("export")
@click.option(
    "--format",
    "form",
    required=True,
    type=click.Choice(["pb", "kafka", "csv", "parquet"]),
    help="pb: binlog files of TiDB's Drainer, which Reparo reads. kafka: the Drainer's messages. csv, parquet: the "
    "rows of tables at a moment.",
)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    help="Changes that were committed after this TIME. Default: where what DESTINATION has ends.",
)
@to_option
@click.option("--at", metavar="TIME", help="csv, parquet: the tables as they were at this TIME, or latest.")
@tables_option
@click.option(
    "--file-mib",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    metavar="N",
    help="A file ends with the transaction, or the rows, that make it so large. Not of kafka.",
)
@click.option(
    "--anew",
    is_flag=True,
    help="kafka: begin at --from whatever the topic has, unless it was begun there. What lies between is missing from "
    "it then, or is there twice.",
)
@click.argument("destination", required=False)
@archive_option
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def export_command(
    context: Context,
    form: str,
    since: str | None,
    to: str,
    at: str | None,
    tables: tuple[str, ...],
    file_mib: int,
    destination: str | None,
    *,
    anew: bool,
    as_json: bool,
) -> None:
    """Write a range of the archive, or tables at a moment, to DESTINATION, as files or messages that others read.

    DESTINATION is a directory or s3://BUCKET/PREFIX, or a topic of Kafka (kafka; default: kafka.topic). It needs the
    archive alone, and no cluster. An export of a range (pb, kafka) that is run again goes on where it was killed, or
    where DESTINATION ends. An export of tables (csv, parquet) that was killed is run again, and ends with the same
    files; DESTINATION has nothing else of these tables.
    """
    from pumphouse.restore.plan import LATEST, parse_moment

    settings = context.settings
    if form in ("csv", "parquet"):
        if at is None or not tables or destination is None or since or anew or to != LATEST:
            raise UsageError(
                f"--format {form} writes tables as they were at a moment",
                hint="--table DB.TABLE --at TIME DESTINATION, without --from, --to and --anew",
            )
        moment = parse_moment(at, partial(read_time, settings, word=LATEST))
        _write_tables(settings, destination, form, moment, tables, file_mib, as_json=as_json)
        return
    if at is not None:
        raise UsageError(f"--format {form} takes a range, and knows no --at", hint="--from TIME --to TIME")
    after = None if since is None else read_time(settings, since)
    upto = parse_moment(to, partial(read_time, settings, word=LATEST))
    if form == "kafka":
        _send(settings, destination, after, upto, tables, anew=anew, as_json=as_json)
    elif destination is None or anew:
        raise UsageError("--format pb writes into a DESTINATION, and knows no --anew", hint="name an empty directory")
    else:
        _write(settings, destination, after, upto, tables, file_mib, as_json=as_json)


def _send(
    settings: Settings,
    topic: str | None,
    after: Tso | None,
    upto: Tso | None,
    tables: tuple[str, ...],
    *,
    anew: bool,
    as_json: bool,
) -> None:
    from pumphouse.commands.load import print_losses
    from pumphouse.runs import kafka

    with bar(enabled=not as_json) as tell:
        report = kafka.run(settings, topic=topic, since=after, upto=upto, tables=tables, anew=anew, tell=tell)
    if as_json:
        click.echo(json.dumps(with_times(report.to_dict()), indent=2, ensure_ascii=False))
        return
    if report.messages:
        what = f"{report.messages:,} messages, {report.changes:,} row changes, {report.ddls:,} DDLs"
        click.echo(f"sent {what}, {decimal(report.size)}")
    else:
        click.echo("nothing to send")
    click.echo(f"topic {report.topic} has everything up to {show(report.to_ts)}")
    print_losses(report.losses)


def _write(
    settings: Settings,
    destination: str,
    after: Tso | None,
    upto: Tso | None,
    tables: tuple[str, ...],
    file_mib: int,
    *,
    as_json: bool,
) -> None:
    from pumphouse.export.run import export_pb
    from pumphouse.loader.rules import unknown_ids

    with Parts(settings) as parts, bar(enabled=not as_json) as tell:
        report = export_pb(
            parts.readable_archive,
            _opened(settings, destination),
            since=after,
            upto=upto,
            tables=tables,
            skipped=unknown_ids(settings.load.rules),
            file_bytes=file_mib * _MIB,
            tell=tell,
        )
    if as_json:
        click.echo(json.dumps(with_times(report.to_dict()), indent=2, ensure_ascii=False))
    else:
        _print(report)


def _write_tables(
    settings: Settings,
    destination: str,
    form: str,
    at: Tso | None,
    tables: tuple[str, ...],
    file_mib: int,
    *,
    as_json: bool,
) -> None:
    from pumphouse.commands.load import print_losses
    from pumphouse.history.files import FileFormat, export_tables

    with Parts(settings) as parts, bar(enabled=not as_json) as tell:
        report = export_tables(
            parts.readable_archive,
            _opened(settings, destination),
            FileFormat(form),
            at=at,
            tables=tables,
            archive_settings=settings.archive,
            load=settings.load,
            file_bytes=file_mib * _MIB,
            tell=tell,
        )
    if as_json:
        click.echo(json.dumps(with_times(report.to_dict()), indent=2, ensure_ascii=False))
        return
    for table in report.tables:
        size = decimal(sum(file.size for file in table.files or ()))
        click.echo(f"{table.name}: {table.rows:,} rows, {len(table.files or ())} files, {size}")
    click.echo(f"{report.destination} holds {len(report.tables)} tables as they were at {show(report.at)}")
    print_losses(report.losses)


def _opened(settings: Settings, destination: str) -> ObjectStore:
    """The store at a destination; UsageError where it is the archive's own, or lies in it."""
    from pumphouse.objectstore.open import open_store

    url = destination if "://" in destination else f"file://{quote(str(Path(destination).absolute()))}"
    archive = settings.archive.root.rstrip("/")
    if f"{url.rstrip('/')}/".startswith(f"{archive}/"):
        raise UsageError(f"{destination} lies in the archive, {archive}", hint="export into a directory of its own")
    return open_store(settings.archive.model_copy(update={"root": url}))


def _print(report: ExportReport) -> None:
    from pumphouse.commands.load import print_losses

    for note in report.notes:
        click.echo(
            f"{note.name}: up to {show(note.to_ts)}, {note.transactions:,} transactions, {note.changes:,} row changes, "
            f"{note.ddls:,} DDLs, {decimal(note.size)}"
        )
    if not report.notes:
        click.echo("nothing to write")
    click.echo(f"{report.destination} holds what was committed after {show(report.after)} up to {show(report.upto)}")
    for each in report.refused:
        click.echo(
            f"  ! Reparo ends at {show(each.commit_ts)}: it knows no {each.action}: {each.text}\n"
            f"    run it on the target yourself, between --stop-tso {each.commit_ts - 1} and --start-tso "
            f"{each.commit_ts + 1}"
        )
    print_losses(report.losses)
