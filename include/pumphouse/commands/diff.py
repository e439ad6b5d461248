"""``pumphouse diff``: compare two databases row by row."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click


@click.command()
@click.option("--source", required=True, metavar="DSN", help="mysql://user:password@host:port of one side.")
@click.option("--target", required=True, metavar="DSN", help="The other side.")
@click.option(
    "--schema",
    "schemas",
    multiple=True,
    metavar="NAME[=TARGET_NAME]",
    help="Compare this schema only; repeatable. Default: every schema but the system's and Pumphouse's own.",
)
@click.option("--ignore", multiple=True, metavar="NAME", help="Leave this schema out; repeatable.")
@click.option("--no-views", is_flag=True, help="Compare tables only.")
@click.option("--first", default=5, show_default=True, help="Rows to name for each table that differs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(
    source: str,
    target: str,
    schemas: tuple[str, ...],
    ignore: tuple[str, ...],
    no_views: bool,
    first: int,
    as_json: bool,
) -> None:
    """Compare two servers: JSON by value, FLOAT by its four bytes, tables without a key as multisets.

    Exit code 1 when anything differs. Let both stand still meanwhile.
    """
    from pymysql.err import MySQLError

    from pumphouse.diff.compare import compare
    from pumphouse.errors import TargetUnavailable
    from pumphouse.stack.dsn import Dsn

    mapped = {}
    for item in schemas:
        ours, sep, theirs = item.partition("=")
        mapped[ours] = theirs if sep else ours
    quiet = as_json or not sys.stderr.isatty()
    try:
        report = compare(
            Dsn.parse(source),
            Dsn.parse(target),
            schemas=mapped or None,
            ignore=ignore,
            views=not no_views,
            first=first,
            progress=(lambda _: None) if quiet else lambda name: click.echo(f"comparing {name}", err=True),
        )
    except MySQLError as error:
        raise TargetUnavailable(f"one of the two servers does not answer: {error}", hint="check both DSNs") from error
    if as_json:
        found = [asdict(difference) for difference in report.differences]
        body = {"equal": report.equal, "tables": report.tables, "rows": report.rows, "differences": found}
        click.echo(json.dumps(body, indent=2, ensure_ascii=False))
    else:
        for each in report.differences:
            side = f" only in the {each.side}:" if each.side else ""
            click.echo(f"{each.table}: {each.kind}:{side} {each.detail}")
        verdict = "equal" if report.equal else "DIFFERENT"
        click.echo(f"{verdict}: {report.tables} tables, {report.rows} rows")
    if not report.equal:
        sys.exit(1)
