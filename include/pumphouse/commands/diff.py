"""``pumphouse diff``: compare two servers, or a server with the archive, to the last row."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pumphouse.advice import Section
from pumphouse.cli import Context, archive_option, pass_context
from pumphouse.errors import AccessDenied, ConfigError, LoadError, TargetUnavailable, UsageError, advising
from pumphouse.settings import ServerSettings, Settings, TargetSettings

if TYPE_CHECKING:
    from pumphouse.diff.compare import DiffReport
    from pumphouse.diff.fix import FixFile
    from pumphouse.mysql.dsn import Dsn

# Too many sessions, or the server ends: of no statement's making.
_LOST = (1040, 1053, 1203, 1317, 1927)
_FIRST = 5
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
@click.option("--first", type=click.IntRange(0), help=f"Rows to show for each table that differs. Default: {_FIRST}.")
@click.option(
    "--connections",
    type=click.IntRange(1),
    help="Sessions on each server, which read at once (default: setting load.connections).",
)
@click.option(
    "--fix-sql",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write statements that make the rows of the target equal to those of the source into a new file. Nothing runs "
    "them.",
)
@click.option(
    "--archive-at",
    metavar="TIME",
    help="Compare --target with the archive at this moment (a TIME, or latest) in place of --source.",
)
@archive_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_context
def diff(
    context: Context,
    source: str,
    target: str,
    schemas: tuple[str, ...],
    ignore: tuple[str, ...],
    no_views: bool,
    first: int | None,
    connections: int | None,
    fix_sql: Path | None,
    archive_at: str | None,
    as_json: bool,
) -> None:
    """Compare two servers: JSON by value, FLOAT by its four bytes, tables without a key as multisets.

    Both servers add up checksums of their rows, range by range of the key; only ranges that differ are read. Where a
    type has no checksum in SQL, the rows are read, and a note says so.

    Collations count: columns whose collations order or distinguish values differently differ, unless the target lacks
    the source's collation and its column has the one that a load gives it. A table that load.rules routes is compared
    under its name on the target. Exit code 1 if anything differs. Let both servers stand still.
    """
    if archive_at is not None:
        given = {
            "--source": source != "source", "--ignore": ignore, "--no-views": no_views, "--first": first is not None,
            "--connections": connections is not None, "--fix-sql": fix_sql,
        }  # fmt: skip
        if wrong := [name for name, is_given in given.items() if is_given]:
            raise UsageError(
                f"with --archive-at, {', '.join(wrong)} has no meaning",
                hint="to see every row, or get statements: restore onto another server, and compare with that "
                f"(pumphouse diff --source restore_target --target {target} --fix-sql FILE)",
            )
        _with_archive(context, target, archive_at, schemas, as_json=as_json)
        return
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
    with (
        _fixing(fix_sql, *(each.shown for each in sides)) as fix,
        _answers(" or ".join(each.shown for each in sides), addressed="://" in source + target),
    ):
        report = compare(
            *sides,
            schemas=mapped or None,
            ignore=(*ignore, *beside),
            own=parts_schemas(context.settings.written_to),
            views=not no_views,
            first=_FIRST if first is None else first,
            connections=connections or context.settings.load.connections,
            fix=fix,
            routed=routed,
            progress=(lambda _: None) if quiet else lambda name: click.echo(f"comparing {name}", err=True),
        )
    _print(report, () if schemas else beside, fix_sql, fix, as_json=as_json)
    if not report.equal:
        sys.exit(1)


def _print(report: DiffReport, beside: Sequence[str], path: Path | None, fix: FixFile | None, *, as_json: bool) -> None:
    """What was found; ``beside``: databases of the history, which were left out."""
    if as_json:
        found = [asdict(difference) for difference in report.differences]
        body = {"equal": report.equal, "tables": report.tables, "rows": report.rows, "differences": found}
        body |= {"lacks": report.lacks, "notes": report.notes}
        click.echo(json.dumps(body, indent=2, ensure_ascii=False))
    else:
        for each in report.differences:
            side = f" only in the {each.side}:" if each.side else ""
            click.echo(f"{each.table}: {each.kind}:{side} {each.detail}")
        for what in report.lacks:
            click.echo(f"the target lacks, as no copy gets it: {what}")
        for note in report.notes:
            click.echo(note, err=True)
        for name in beside:
            click.echo(f"left out: {name}, the database of schema.history on the source", err=True)
        if fix is not None:
            click.echo(f"{path}: statements for {fix.rows} rows; read them before you run them", err=True)
        verdict = "equal" if report.equal else "DIFFERENT"
        click.echo(f"{verdict}; compared {report.tables} tables, {report.rows} rows")


def _with_archive(context: Context, target: str, moment: str, schemas: tuple[str, ...], *, as_json: bool) -> None:
    """Compare a server with the archive at a moment."""
    from pumphouse.commands.moments import read_time
    from pumphouse.commands.nodes import print_json
    from pumphouse.commands.proof import print_proof
    from pumphouse.progress import bar
    from pumphouse.restore.plan import LATEST, parse_moment
    from pumphouse.runs.proof import hold_against

    if any("=" in name for name in schemas):
        raise UsageError("with --archive-at, --schema takes the names of the source alone")
    settings = context.settings
    server = TargetSettings(**dict(_side(context, "target", target).server))
    followed = settings.aimed(target) if target in ("target", *settings.targets) else None
    if followed is not None:
        server = server.model_copy(update={"schema_name": followed.target.schema_name})
    at = parse_moment(moment, partial(read_time, settings, word=LATEST))
    with (
        advising(lambda part: "what --target names" if isinstance(part, Section) else part),
        bar(enabled=not as_json) as progress,
    ):
        proof = hold_against(
            settings,
            server,
            section=target,
            rules=() if followed is None else followed.load.rules,
            at=at,
            databases=schemas,
            progress=progress,
        )
    if as_json:
        print_json({name: value for name, value in proof.summary().items() if name != "key"})
    else:
        print_proof(proof, kept=False)
    if not proof.equal:
        sys.exit(1)


@contextmanager
def _fixing(path: Path | None, source: str, target: str) -> Iterator[FixFile | None]:
    """The file for statements; UsageError where there is one of its name. It goes where the comparison fails."""
    from pumphouse.diff.fix import FixFile

    if path is None:
        yield None
        return
    with ExitStack() as stack:
        try:
            fix = stack.enter_context(FixFile.made(path, f"makes {target} equal to {source}"))
        except OSError as error:
            raise UsageError(f"--fix-sql: {path} cannot be made: {error}", hint="name a new file") from error
        try:
            yield fix
        except BaseException:
            path.unlink(missing_ok=True)  # it has some of the statements only
            raise


@contextmanager
def _answers(shown: str, *, addressed: bool) -> Iterator[None]:
    """What the servers say in the block, in our words; ``shown``: both of them; ``addressed``: one by its address."""
    from pymysql.err import MySQLError

    from pumphouse.mysql import NO_RIGHT

    try:
        yield
    except AccessDenied as error:
        error.advice = ("check the users and passwords of --source and --target",)
        raise
    except ConfigError as error:
        if addressed:
            error.add_hint(
                "an address has no such settings: write the server into [source], [target] or [restore_target] (of "
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
