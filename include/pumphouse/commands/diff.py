"""``pumphouse diff``: compare two databases row by row."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from pumphouse.cli import Context, pass_context
from pumphouse.errors import AccessDenied, ConfigError, LoadError, TargetUnavailable, UsageError
from pumphouse.settings import ServerSettings, Settings

if TYPE_CHECKING:
    from pumphouse.mysql.dsn import Dsn

# Too many sessions, or the server ends: of no statement's making.
_LOST = (1040, 1053, 1203, 1317, 1927)
SECTIONS = ("source", "target", "restore_target")
_SIDE = (
    "A section of the settings (source, target, restore_target, NAME of [targets.NAME]), or mysql://user@host:port "
    "with its password in "
)


@click.command()
@click.option(
    "--source", default="source", show_default=True, metavar="SIDE", help=f"{_SIDE}PUMPHOUSE_DIFF_SOURCE_PASSWORD."
)
@click.option(
    "--target", default="target", show_default=True, metavar="SIDE", help=f"{_SIDE}PUMPHOUSE_DIFF_TARGET_PASSWORD."
)
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="NAME[=TARGET_NAME]",
    help="Compare this schema only; repeatable. Default: every schema except the system's and Pumphouse's.",
)
@click.option("--ignore", multiple=True, metavar="NAME", help="Leave this schema out; repeatable.")
@click.option("--no-views", is_flag=True, help="Compare tables only.")
@click.option("--first", default=5, show_default=True, help="Rows to show for each table that differs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_context
def diff(
    context: Context,
    source: str,
    target: str,
    schemas: tuple[str, ...],
    ignore: tuple[str, ...],
    no_views: bool,
    first: int,
    as_json: bool,
) -> None:
    """Compare two servers: JSON by value, FLOAT by its four bytes, tables without a key as multisets.

    Collations count: columns whose collations order or distinguish values differently differ, unless the target lacks
    the source's collation and its column has the one that a load gives it. A table that load.rules routes is compared
    under its name on the target. Exit code 1 if anything differs. Let both servers stand still.
    """
    from pumphouse.diff.compare import compare
    from pumphouse.loader.rules import routes_of
    from pumphouse.loader.state import parts_schemas

    both = [name for name in ignore if name in {item.partition("=")[0] for item in schemas}]
    if both:
        raise UsageError(f"--schema and --ignore both name {', '.join(both)}")
    mapped, routed = {}, None
    for item in schemas:
        ours, sep, theirs = item.partition("=")
        mapped[ours] = theirs if sep else ours
    named = target in context.settings.targets
    routes = routes_of((context.settings.aimed(target) if named else context.settings).load.rules)
    if routes and source == "source" and (named or target in SECTIONS) and not any("=" in item for item in schemas):
        routed = routes.table
    quiet = as_json or not sys.stderr.isatty()
    beside = _history_beside(context.settings) if "source" in (source, target) else ()
    sides = [_side(context, "source", source), _side(context, "target", target)]
    with _answers(" or ".join(each.shown for each in sides), addressed="://" in source + target):
        report = compare(
            *sides,
            schemas=mapped or None,
            ignore=(*ignore, *beside),
            own=parts_schemas(context.settings),
            views=not no_views,
            first=first,
            routed=routed,
            progress=(lambda _: None) if quiet else lambda name: click.echo(f"comparing {name}", err=True),
        )
    if as_json:
        found = [asdict(difference) for difference in report.differences]
        body = {"equal": report.equal, "tables": report.tables, "rows": report.rows, "differences": found}
        click.echo(json.dumps({**body, "notes": report.notes}, indent=2, ensure_ascii=False))
    else:
        for each in report.differences:
            side = f" only in the {each.side}:" if each.side else ""
            click.echo(f"{each.table}: {each.kind}:{side} {each.detail}")
        for note in report.notes:
            click.echo(note, err=True)
        for name in beside if not schemas else ():
            click.echo(f"left out: {name}, the database of schema.history on the source", err=True)
        verdict = "equal" if report.equal else "DIFFERENT"
        click.echo(f"{verdict}; compared {report.tables} tables, {report.rows} rows")
    if not report.equal:
        sys.exit(1)


@contextmanager
def _answers(shown: str, *, addressed: bool) -> Iterator[None]:
    """What the servers say in the block, in our words; ``shown``: both of them; ``addressed``: one by its address."""
    from pymysql.err import MySQLError

    from pumphouse.mysql import NO_RIGHT

    try:
        yield
    except AccessDenied as error:
        error.hint = "check the users and passwords of --source and --target"
        raise
    except ConfigError as error:
        if addressed:
            error.hint += (
                "; an address has no such settings: write the server into [source], [target] or [restore_target] (of "
                "another file: --config), and name that section"
            )
        raise
    except MySQLError as error:
        code = error.args[0] if error.args else 0
        if code in NO_RIGHT:
            raise AccessDenied(
                f"{shown} does not let us do this: {error}", hint="the user needs SELECT on what is compared"
            ) from error
        if 1000 <= code < 2000 and code not in _LOST:
            raise LoadError(f"{shown} refused what was asked: {error}") from error
        raise TargetUnavailable(f"{shown} does not answer: {error}", hint="check --source and --target") from error


def _history_beside(settings: Settings) -> tuple[str, ...]:
    """The database of the history table, where that lies on the source: no load copies it."""
    from pumphouse.loader.apart import places
    from pumphouse.parts import Parts
    from pumphouse.schema.history import MysqlTableSource, history_server

    server, history = history_server(settings.history), Parts(settings).history
    beside = server is not None and bool(places(server) & places(settings.source))
    return (history.schema,) if beside and isinstance(history, MysqlTableSource) else ()


def _side(context: Context, option: str, text: str) -> Dsn:
    """One side, by its section or its address; UsageError for a password among the arguments."""
    from pumphouse.mysql.dsn import Dsn

    if text in SECTIONS or text in context.settings.targets:
        return _of_section(context.settings, text)
    variable = f"PUMPHOUSE_DIFF_{option.upper()}_PASSWORD"
    dsn = Dsn.parse(text)
    if dsn.password:
        raise UsageError(
            f"--{option} {dsn.shown} carries a password, which everybody on this machine can read",
            hint=f"leave it out and set the variable {variable}, or name a section of the settings: "
            f"--{option} {option}",
        )
    return replace(dsn, password=os.environ.get(variable, ""))


def _of_section(settings: Settings, section: str) -> Dsn:
    from pumphouse.mysql.dsn import Dsn

    server: ServerSettings = settings.targets.get(section) or getattr(settings, section)
    if not server.unix_socket and not (server.host and "host" in server.model_fields_set):
        raise ConfigError(
            f"[{section}] names no host",
            hint=f"write host, port, user and password into [{section}] of pumphouse.toml, or give mysql://user@host:port",
        )
    return Dsn(
        host=server.host,
        port=server.port,
        user=server.user,
        password=server.password.get_secret_value(),
        unix_socket=server.unix_socket,
        tls_ca=str(server.tls_ca or ""),
        tls_check_name=server.tls_check_name,
    )
