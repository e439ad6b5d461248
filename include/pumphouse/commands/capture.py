"""``pumphouse capture``: follow a MySQL or MariaDB by its binlog; look whether it can be; how far the captures are."""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import asdict

import click

from pumphouse.cli import Context, pass_context
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.commands.nodes import json_option, open_registry, print_json, print_table
from pumphouse.commands.status import CAPTURE_COLUMNS, capture_row
from pumphouse.errors import CaptureFenced, CorruptionError
from pumphouse.model.node import NodeKind
from pumphouse.parts import Parts
from pumphouse.registry.base import CaptureRecord
from pumphouse.registry.captures import is_live, not_registered, pause
from pumphouse.status.look import capture_status


@click.group()
def capture() -> None:
    """Follow a MySQL or MariaDB by its binlog, its application untouched."""


@capture.command("run")
@click.option(
    "--anew",
    is_flag=True,
    help="Begin at the source's present position: loads and restores stop there until a new dump.",
)
@pass_context
def run_command(context: Context, *, anew: bool) -> None:
    """Write each transaction of the server of [source] into the Pumps, until it is stopped (SIGTERM)."""
    from pumphouse.capture.run import run_capture  # with the kernels

    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    with Parts(context.settings) as parts:
        run_capture(context.settings, parts.cluster, parts.history, stop, anew=anew)


@capture.command("check")
@json_option
@pass_context
def check_command(context: Context, *, as_json: bool) -> None:
    """Look whether the server of [source] can be captured, and print what to type there; writes nothing."""
    from pumphouse.capture.check import check_hosts, check_source
    from pumphouse.capture.primary import find_primary
    from pumphouse.capture.run import own_databases
    from pumphouse.dump.source import session
    from pumphouse.schema.history import MysqlTableSource

    settings = context.settings
    with Parts(settings) as parts, session(find_primary(settings.source, settings.capture)) as connection:
        history = parts.history
        own = own_databases(settings, connection, history) if isinstance(history, MysqlTableSource) else frozenset()
        lines = check_source(connection, settings.capture, own)
        if settings.capture.copies > 1:
            lines += check_hosts(parts.cluster.nodes(NodeKind.PUMP), settings.capture.copies)
    if as_json:
        click.echo(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        for line in lines:
            click.echo(f"{'WRONG' if line.wrong else 'note '}  {line.text}")
            if line.type:
                click.echo("       -> " + line.type.replace("\n", "\n          "))
    wrong = sum(line.wrong for line in lines)
    if wrong:
        click.echo(f"{wrong} to mend before `pumphouse capture run`", err=True)
        sys.exit(1)
    click.echo("the source can be captured: pumphouse capture run", err=True)


@capture.command("pause")
@click.argument("capture_id", metavar="ID")
@pass_context
def pause_command(context: Context, *, capture_id: str) -> None:
    """Let a capture stand still, with its process and its place, until `capture resume`; over a restart, too.

    The source must keep its binlogs meanwhile. A semi-sync source goes on without it after the source's time-out.
    """
    pause(open_registry(context.settings), capture_id, SYSTEM_CLOCK.now())
    click.echo(f"the capture {capture_id} stands still within some seconds: pumphouse capture status", err=True)


@capture.command("resume")
@click.argument("capture_id", metavar="ID")
@pass_context
def resume_command(context: Context, *, capture_id: str) -> None:
    """Let a paused capture go on where it stands."""
    pause(open_registry(context.settings), capture_id, 0.0)
    click.echo(f"the capture {capture_id} goes on within some seconds: pumphouse capture status", err=True)


@capture.command("forget")
@click.argument("capture_id", metavar="ID")
@pass_context
def forget_command(context: Context, *, capture_id: str) -> None:
    """Take a capture that is not used any more out of the cluster; its directory stays.

    Whether a journal is older than what the capture has published is not known from then on: do not start it again.
    """

    def change(found: CaptureRecord | None) -> None:
        if found is None:
            raise not_registered(capture_id)
        if is_live(found, SYSTEM_CLOCK.now()):
            raise CaptureFenced(
                f"the capture {capture_id} runs on {found.host}",
                hint="stop it first; one that was killed is out after 15 s",
                capture_id=capture_id,
                owner=found.owner,
            )

    open_registry(context.settings).update_capture(capture_id, change)
    click.echo(f"the capture {capture_id} is forgotten", err=True)


@capture.command("status")
@json_option
@pass_context
def status_command(context: Context, *, as_json: bool) -> None:
    """List the cluster's captures: source, state, position, lag."""
    cluster = open_registry(context.settings)
    unread: CorruptionError | None = None
    try:
        records = cluster.captures()
    except CorruptionError as error:
        records, unread = cluster.readable_captures(), error
    found = [capture_status(each, SYSTEM_CLOCK.now()) for each in records]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table(CAPTURE_COLUMNS, [capture_row(each) for each in found])
        for each in found:
            if each.reason:
                click.echo(f"{each.capture_id}: {each.reason}", err=True)
    if unread is not None:
        raise unread
