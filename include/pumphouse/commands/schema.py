"""``pumphouse schema``: import a database's schema into the history; rebuild the archive's timeline, and show it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote, urlsplit

import click

from pumphouse import advice
from pumphouse.archive.schema_store import timeline_of
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.commands.moments import read_time
from pumphouse.errors import ConfigError, UnknownTable, UsageError
from pumphouse.loader.rules import anew_hint
from pumphouse.model.tso import show
from pumphouse.parts import Parts
from pumphouse.runs import schema as schema_run
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema.render import render
from pumphouse.schema.table_sql import create_object
from pumphouse.schema.versions import DdlEvent, TableVersion
from pumphouse.settings import ServerSettings


@click.group()
def schema() -> None:
    """Import a schema; rebuild and show the schema timeline."""


@schema.command("rebuild")
@click.option("--upto", metavar="TIME", help="Up to this TIME; default: the archive's end.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run as a Spark task, or in this process.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def rebuild_command(context: Context, upto: str | None, spark: bool, as_json: bool) -> None:
    """Fold the DDL jobs of new windows into the archive's schema/ objects."""
    settings = context.settings
    if not spark:
        settings = settings.model_copy(update={"load": settings.load.model_copy(update={"engine": "local"})})
    with Parts(settings) as parts:
        ts = None if upto is None else read_time(settings, upto, parts.cluster.tso)
    report = schema_run.run(settings, ts)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
    else:
        click.echo(f"{report.jobs} new DDL jobs, schema version {report.schema_version} at {show(report.upto)}")
        if report.alone:
            click.echo(f"one process folded the whole history: {report.alone}", err=True)


@schema.command("import")
@click.argument("url", required=False, metavar="[mysql://USER@HOST:PORT[/DATABASE]]")
@click.option("--drop", multiple=True, metavar="NAME", help="DB, DB.TABLE, DB.TABLE.COLUMN or .PARTITION was dropped.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="DB.TABLE or DB.TABLE.COLUMN has a new name.")
@click.option("--skip", multiple=True, metavar="NAME", help="Leave DB or DB.TABLE alone.")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Address where Pumps ask for outcomes of the import's binlogs; they must reach it.",
)
@click.option("--dry-run", is_flag=True, help="Show the jobs, write nothing.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def import_command(
    context: Context,
    url: str | None,
    drop: tuple[str, ...],
    rename: tuple[str, ...],
    skip: tuple[str, ...],
    listen: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write the schema of a MySQL or MariaDB, or its changes, to the history table as DDL jobs.

    Without a URL the server is that of [source]. The password is that of [source] (PUMPHOUSE_SOURCE__PASSWORD).
    """
    from pumphouse.loader.state import parts_schemas
    from pumphouse.schema_import.changes import Asked
    from pumphouse.schema_import.run import import_schema

    settings = context.settings
    source, database = source_of(settings.source, url)
    renames = dict(each.partition("=")[::2] for each in rename)
    if not all(renames.values()):
        raise UsageError("--rename is written as OLD=NEW")
    asked = Asked(database=database, drop=drop, rename=renames, skip=frozenset(each.lower() for each in skip))
    with Parts(settings) as parts:
        history = parts.history
        if not isinstance(history, MysqlTableSource):
            raise ConfigError(
                "schema.history names no table to write DDL jobs to",
                hint='set [schema] history = "mysql://user@host:port/history.jobs" and history_password',
            )
        report = import_schema(
            source,
            history,
            parts.cluster,
            asked,
            tls=settings.tls,
            targets=settings.target_sections,
            own=parts_schemas(settings.written_to),
            listen=listen,
            dry_run=dry_run,
        )
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2, ensure_ascii=False))
        return
    for note in report.notes:
        click.echo(f"left out: {note}", err=True)
    if report.created:
        click.echo(f"{report.history} {'would be' if dry_run else 'is'} created")
    for job_id, kind, query in report.jobs:
        click.echo(f"job {job_id} {kind}: {query}")
    for table in report.unlogged:
        what = f"{table} has rows already, which no binlog has: a load stops there. To go on, "
        click.echo(what + advice.worded(anew_hint(table)), err=True)
    did = "would be written" if dry_run else "written"
    how = "with binlogs" if report.binlogs else "without binlogs: no archive has begun"
    click.echo(f"{len(report.jobs)} DDL jobs {did} ({how})" if report.jobs else "nothing changed: no DDL job")


def source_of(settings: ServerSettings, url: str | None) -> tuple[ServerSettings, str]:
    """(server, database or ''): of the URL, else [source]; the password is never that of another server."""
    if url is None:
        return settings, ""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        raise UsageError("the URL cannot be read", hint="give mysql://user@host:port/database") from None
    if parts.scheme != "mysql" or not parts.hostname:
        raise UsageError("the URL names no server", hint="give mysql://user@host:port/database")
    if parts.password is not None:
        raise UsageError(
            "a password on the command line is seen by everyone on this machine",
            hint="leave it out of the URL and set PUMPHOUSE_SOURCE__PASSWORD, or [source] in pumphouse.toml",
        )
    user = unquote(parts.username or settings.user)
    if settings.host and (settings.host, settings.port, settings.user) != (parts.hostname, port, user):
        raise ConfigError(
            f"[source] is {settings.user}@{settings.host}:{settings.port}, the URL names another server or user",
            hint="correct one of them: the password of [source] is for that server alone",
        )
    server = settings.model_copy(update={"host": parts.hostname, "port": port, "user": user, "unix_socket": ""})
    return server, unquote(parts.path.strip("/"))


@schema.command("show")
@click.argument("table", required=False, metavar="[DB.TABLE]")
@archive_option
@click.option("--at", "at_text", metavar="TIME", help="As of this TIME; default: the archive's end.")
@click.option("--sql", is_flag=True, help="CREATE statements, as a target gets them.")
@click.option("--history", is_flag=True, help="Every version of the table, or every DDL.")
@click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect if d is not Dialect.TIDB]),
    default="mariadb",
    show_default=True,
    help="SQL dialect.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@pass_context
def show_command(
    context: Context, table: str | None, at_text: str | None, sql: bool, history: bool, dialect: str, as_json: bool
) -> None:
    """Show tables as they were at a moment: columns, CREATE statements, or their history."""
    with Parts(context.settings) as parts:
        archive, ts = parts.readable_archive, None if at_text is None else read_time(context.settings, at_text)
    timeline = timeline_of(archive, ts)
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
            "statements": [] if event.problem else [statement.sql for statement in render(event, dialect)],
            "problem": event.problem,
        }
        for event in events
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for event, row in zip(events, rows, strict=True):
        click.echo(f"{show(event.commit_ts)}  job {row['job_id']} {row['action']}: {row['query']}")
        if event.problem:
            click.echo(f"  ! {event.problem}")
