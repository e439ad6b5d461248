"""``pumphouse schema``: rebuild the timeline from the archive, and show what it says."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from pumphouse.archive.archive import Archive
from pumphouse.archive.schema_store import rebuild
from pumphouse.cli import Context, pass_context
from pumphouse.errors import UnknownTable
from pumphouse.model.tso import Tso, parse_time, show
from pumphouse.parts import Parts
from pumphouse.runs import schema as schema_run
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.render import render
from pumphouse.schema.table_sql import create_object
from pumphouse.schema.versions import DdlEvent, TableVersion
from pumphouse.settings import Settings


@click.group()
def schema() -> None:
    """Rebuild and show the schema timeline."""


@schema.command("rebuild")
@click.option("--upto", metavar="TIME", help="TSO, ISO time (UTC without a zone) or now; default: the archive's end.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="As the Spark task, or in this process.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def rebuild_command(context: Context, upto: str | None, spark: bool, as_json: bool) -> None:
    """Fold the DDL jobs of new windows into the archive's schema/ objects."""
    settings = context.settings
    if not spark:
        settings = settings.model_copy(update={"load": settings.load.model_copy(update={"engine": "local"})})
    _, ts = _archive(settings, upto)
    report = schema_run.run(settings, ts)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
    else:
        click.echo(f"{report.jobs} new DDL jobs, schema version {report.schema_version} at {show(report.upto)}")


@schema.command("show")
@click.argument("table", required=False, metavar="[DB.TABLE]")
@click.option(
    "--at", "at_text", metavar="TIME", help="TSO, ISO time (UTC without a zone) or now; default: the archive's end."
)
@click.option("--sql", is_flag=True, help="CREATE statements, as a target gets them.")
@click.option("--history", is_flag=True, help="Every version of the table, or every DDL.")
@click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect if d is not Dialect.TIDB]),
    default="mariadb",
    show_default=True,
    help="Whose SQL.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def show_command(
    context: Context, table: str | None, at_text: str | None, sql: bool, history: bool, dialect: str, as_json: bool
) -> None:
    """Show tables as they were at a moment: columns, CREATE statements, or their history."""
    archive, ts = _archive(context.settings, at_text)
    timeline = rebuild(archive, ts, store=False).timeline
    at = ts if ts is not None else archive.end()
    if history and table is None:
        _print_events(timeline.ddls(0, at), Dialect(dialect), as_json=as_json)
        return
    tables = [v for v in timeline.tables_at(at) if table is None or ".".join(v.name).lower() == table.lower()]
    if table is not None and not tables:
        raise UnknownTable(f"there is no table {table} at {show(at)}", hint="pumphouse schema show lists them")
    if history:
        tables = [v for each in tables for v in timeline.versions[each.table.id] if v.commit_ts <= at]
    if as_json:
        click.echo(json.dumps([_table_dict(v) for v in tables], indent=2))
        return
    for version in tables:
        if sql:
            click.echo(create_object(version.db, version.table, Dialect(dialect)) + ";\n")
        else:
            click.echo(_line(version))


def _archive(settings: Settings, time: str | None) -> tuple[Archive, Tso | None]:
    with Parts(settings) as parts:
        return parts.archive, None if time is None else parse_time(time, parts.cluster.tso)


def _line(version: TableVersion) -> str:
    columns = ", ".join(column.name for column in version.table.public_columns)
    gone = ", dropped" if version.dropped else ""
    return (
        f"{'.'.join(version.name)}  id {version.table.id}, version {version.schema_version}, "
        f"since {show(version.commit_ts)}{gone}: {columns}"
    )


def _table_dict(version: TableVersion) -> dict[str, Any]:
    return {
        "db": version.db,
        "table": version.table.name,
        "table_id": version.table.id,
        "schema_version": version.schema_version,
        "commit_ts": int(version.commit_ts),
        "job_id": version.job_id,
        "dropped": version.dropped,
        "columns": [column.name for column in version.table.public_columns],
        "primary_key": [part.name for part in version.table.primary_key()],
    }


def _print_events(events: list[DdlEvent], dialect: Dialect, *, as_json: bool) -> None:
    rows = [
        {
            "commit_ts": int(event.commit_ts),
            "job_id": event.job.id,
            "schema_version": event.job.schema_version,
            "action": event.action.name,
            "query": event.job.query,
            "statements": [statement.sql for statement in render(event, dialect)],
        }
        for event in events
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for event, row in zip(events, rows, strict=True):
        click.echo(f"{show(event.commit_ts)}  job {row['job_id']} {row['action']}: {row['query']}")
