"""``pumphouse status``: how it all stands, and the next command to type."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import click

from pumphouse.cli import Context, pass_context
from pumphouse.commands.nodes import print_table
from pumphouse.errors import UsageError
from pumphouse.model.node import NodeState
from pumphouse.model.tso import Tso, show
from pumphouse.status.findings import ago
from pumphouse.status.headline import headline
from pumphouse.status.past import Past
from pumphouse.status.report import ArchiveStatus, CaptureStatus, ConsumerStatus, PumpState, Status


@click.command()
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout; TSOs are text in it.")
@click.option("--metrics", is_flag=True, help="Prometheus text on stdout, for node_exporter's textfile collector.")
@click.option(
    "--listen", metavar="HOST:PORT", help="Serve Prometheus' text at /metrics until it is ended: each scrape looks."
)
@pass_context
def status(context: Context, *, as_json: bool, metrics: bool, listen: str | None) -> None:
    """Show how everything stands: what can be restored, Pumps, targets, who holds what, and the next command.

    Exit code 0: all is well. 3: something needs attention. 4: something stands still. It takes less than two seconds,
    even if something does not answer.
    """
    from pumphouse.status.look import WITHIN_S, Asked, look
    from pumphouse.status.past import judged_of

    if listen:
        _serve(partial(look, context.settings), listen)
    limit = time.monotonic() + WITHIN_S
    judged = None if metrics or as_json else Asked(partial(judged_of, context.settings))
    found = look(context.settings)
    if metrics:
        from pumphouse.status.exposition import exposition

        click.echo(exposition(found), nl=False)
    elif judged is None:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        answer = judged.answer(max(0.0, limit - time.monotonic()))
        _print(found, answer if isinstance(answer, Past) else None)
    if context.missing_file and found.exit_code:
        text = f"no settings file was read: there is no {context.missing_file}; --config FILE names another"
        click.echo(text, err=True)
    sys.exit(found.exit_code)


def _serve(look: Callable[[], Status], listen: str) -> NoReturn:
    from pumphouse.status.exposition import serve

    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--listen {listen}: it is HOST:PORT, as 127.0.0.1:9256")
    try:
        server, thread = serve(look, host.strip("[]") or "127.0.0.1", int(port))
    except OSError as error:
        raise UsageError(f"nobody can listen on {listen}: {error}", hint="choose another port") from error
    click.echo(f"serving http://{host or '127.0.0.1'}:{server.server_port}/metrics", err=True)
    thread.join()
    sys.exit(0)


def _print_archive(archive: ArchiveStatus) -> None:
    if archive.end is None:
        click.echo(f"archive    {archive.url}: {archive.problem}")
        return
    restorable = (
        "nothing, there is no dump to begin from"
        if archive.restorable_from is None or archive.restorable_to is None
        else f"{show(archive.restorable_from)} to {show(archive.restorable_to)}"
        f"{f', the whole to {show(archive.stops[0].at)}' if archive.stops else ''}"
    )
    click.echo(f"restorable {restorable}")
    click.echo(f"archive    {archive.url} ends {ago(archive.age_s)} ago, at {show(archive.end)}")
    if archive.expired:
        click.echo(f"kept       {archive.expired}")
    for moment, reason in archive.marks.items():
        click.echo(f"marked     {moment}: {reason}")
    verified = "never, by pumphouse archive verify" if archive.verified_to is None else show(archive.verified_to)
    click.echo(f"verified   {verified}")
    if archive.drill is not None:
        click.echo(f"drill      {archive.drill.verdict} {ago(archive.drill.age_s)} ago, at {_moment(archive.drill.at)}")
    if archive.declared_lost:
        ranges = (
            "1 range of a Pump was" if archive.declared_lost == 1 else f"{archive.declared_lost} ranges of Pumps were"
        )
        click.echo(f"lost       {ranges} declared lost: pumphouse archive ls")


def _print(found: Status, past: Past | None) -> None:
    head = headline(found, past)
    click.echo(f"{head.word}: {'; '.join(head.says)}")
    _print_archive(found.archive)
    if found.pumps:
        click.echo()
        print_table(
            ("PUMP", "STATE", "SILENT", "WATERMARK", "LAG", "LOG", "FREE"),
            [
                (
                    each.node_id,
                    each.state + _mute(each),
                    ago(each.silent_s),
                    _moment(each.watermark or None),
                    ago(each.lag_s),
                    _size(each.value_log_bytes),
                    _size(each.available_bytes),
                )
                for each in found.pumps
            ],
        )
    if found.captures:
        click.echo()
        print_table(CAPTURE_COLUMNS, [capture_row(each) for each in found.captures])
    if found.targets:
        click.echo()
        print_table(
            ("TARGET", "ADDRESS", "LOAD", "AT", "LAG", "STATE", "HELD BY"),
            [
                (
                    each.section,
                    each.address,
                    each.task or "-",
                    _moment(each.at),
                    ago(each.lag_s),
                    each.problem or each.standing,
                    each.held_by or "-",
                )
                for each in found.targets
            ],
        )
    if found.consumers:
        click.echo()
        print_table(
            ("CONSUMER", "STATE", "HOLDS GC FROM", "WRITTEN"),
            [
                (
                    each.node_id,
                    _consumer_state(each),
                    _moment(each.checkpoint) if each.holds_gc else "-",
                    f"{ago(each.age_s)} ago",
                )
                for each in found.consumers
            ],
        )
    click.echo()
    for finding in found.findings:
        click.echo(f"{finding.severity}: {finding.who}: {finding.what}\n  next: {finding.next}")
    if not found.findings:
        click.echo("all is well")
    for pump in found.pumps:
        if pump.in_clear:
            click.echo(
                f"note: Pump {pump.node_id} listens without TLS on {', '.join(pump.in_clear)} (docs/security.md)"
            )


CAPTURE_COLUMNS = ("CAPTURE", "SOURCE", "STATE", "SEMI-SYNC", "LAG", "TRANSACTIONS", "POSITION")


def capture_row(capture: CaptureStatus) -> tuple[str, ...]:
    """A capture as a line of a table."""
    return (
        capture.capture_id,
        capture.source,
        capture.state,
        "-" if capture.semi_sync is None else "on" if capture.semi_sync else "OFF",
        f"{capture.lag_s:.1f} s",
        f"{capture.transactions:,}",
        capture.gtid,
    )


def _mute(pump: PumpState) -> str:
    return ", SILENT" if pump.silent else ", no answer" if pump.problem else ""


def _moment(ts: Tso | None) -> str:
    return "-" if ts is None else show(ts)


def _consumer_state(consumer: ConsumerStatus) -> str:
    reads = consumer.reader and consumer.state == NodeState.PAUSED
    return ("reads now and then" if reads else consumer.state) + (", stale" if consumer.stale else "")


def _size(size: int | None) -> str:
    return "-" if size is None else f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
