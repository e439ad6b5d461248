"""Commands on the nodes of a cluster: Pumps, consumers, the clock, GC."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from pumphouse.advice import TARGET, for_target
from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context
from pumphouse.client import admin
from pumphouse.client.go_gc import GoLimits
from pumphouse.commands.moments import clock_time, read_time
from pumphouse.errors import CorruptionError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import Tso, logical, physical_ms, show
from pumphouse.registry.base import Cluster
from pumphouse.registry.open import open_cluster
from pumphouse.rpc.operator import proof
from pumphouse.settings import DOWNSTREAM, Settings

if TYPE_CHECKING:
    from pumphouse.loader.confirmed import Published

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
offline_option = click.option("--show-offline", "--show-offline-nodes", is_flag=True, help="Include offline nodes.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def open_registry(settings: Settings, *, create: bool = False) -> Cluster:
    """The cluster of the settings; one that is not there is not made."""
    return open_cluster(settings.cluster, settings.tls, create=create)


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    click.echo(json.dumps(value, indent=2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns with a line of headings."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    # A pipe gets whole lines: a narrow default width would cut ids.
    console = Console(markup=False) if sys.stdout.isatty() else Console(markup=False, width=240)
    console.print(table)


def _node_dict(status: NodeStatus) -> dict[str, Any]:
    """A node as the commands show it; formats.md, "Command output"."""
    return {
        "node_id": status.node_id,
        "host": status.host,
        "state": str(status.state),
        "score": status.score,
        "label": status.label,
        "max_commit_ts": int(status.max_commit_ts),
        "max_commit_time": clock_time(status.max_commit_ts),
        "update_ts": int(status.update_ts),
        "update_time": clock_time(status.update_ts),
        "age_s": round(admin.age_s(status), 3),
    }


def pump_dict(status: NodeStatus) -> dict[str, Any]:
    """A Pump as the commands show it."""
    extra = status.extra
    return _node_dict(status) | {
        "silent": admin.is_silent(status),
        "kind": "go" if extra is None else "pumphouse",
        "incarnation": None if extra is None else extra.incarnation,
        "start_count": None if extra is None else extra.start_count,
        "http": status.host if extra is None else extra.http,
        "sync_log": None if extra is None else extra.sync_log,
        "read_only": is_read_only(status),
    }


def is_read_only(status: NodeStatus) -> bool | None:
    """Whether a Pump refuses prewrites for want of space: ours says so by its score. None = a Go Pump, which does not.

    `pump_service.node.score.score` is 0 for nothing else.
    """
    return None if status.extra is None else status.score == 0


def consumer_dict(status: NodeStatus, stale_s: float) -> dict[str, Any]:
    """A consumer as the commands show it; one without an address is no process: an archive, or registered by hand."""
    return _node_dict(status) | {
        "kind": "drainer" if status.host else "reader",
        "stale": not status.left and admin.age_s(status) > stale_s,
        "holds_gc": not status.left,
    }


@click.command()
@offline_option
@json_option
@pass_context
def pumps(context: Context, *, show_offline: bool, as_json: bool) -> None:
    """List the Pumps, and how far each has ordered its stream."""
    found = [p for p in open_registry(context.settings).readable_nodes(NodeKind.PUMP) if show_offline or not p.left]
    if as_json:
        print_json([pump_dict(pump) for pump in found])
        return
    rows = []
    for pump in found:
        silent = f" (silent for {admin.age_s(pump):.0f} s)" if admin.is_silent(pump) else ""
        full = ", read-only" if pump.state == NodeState.ONLINE and is_read_only(pump) else ""
        rows.append(
            (pump.node_id, pump.host, f"{pump.state}{full}{silent}", show(pump.max_commit_ts), show(pump.update_ts))
        )
    print_table(("NODE", "ADDRESS", "STATE", "MAX COMMIT TS", "UPDATED"), rows)


def _list_consumers(settings: Settings, *, show_offline: bool, as_json: bool) -> None:
    stale_s = settings.archive.consumer_stale_s
    nodes = open_registry(settings).readable_nodes(NodeKind.DRAINER)
    found = [consumer_dict(node, stale_s) for node in nodes if show_offline or not node.left]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            node["node_id"],
            node["host"] or "-",
            _consumer_state(node),
            show(node["max_commit_ts"]),
            show(node["update_ts"]),
        )
        for node in found
    ]
    print_table(("NODE", "ADDRESS", "STATE", "CHECKPOINT", "UPDATED"), rows)
    if any(node["kind"] == "reader" and node["state"] == NodeState.PAUSED and not node["stale"] for node in found):
        click.echo("paused is the normal state of a reader: it pulls now and then, and holds GC all the time")


def _consumer_state(node: dict[str, Any]) -> str:
    state = str(node["state"])
    if node["kind"] == "reader" and state == NodeState.PAUSED:
        state = "paused (reader)"
    return f"{state} (stale: {node['age_s']:.0f} s)" if node["stale"] else state


@click.command()
@offline_option
@json_option
@pass_context
def drainers(context: Context, *, show_offline: bool, as_json: bool) -> None:
    """List the consumers of the Pumps: Drainers and archives, with their checkpoints."""
    _list_consumers(context.settings, show_offline=show_offline, as_json=as_json)


@click.group()
def consumer() -> None:
    """Register or remove a consumer, whose checkpoint holds the Pumps' GC."""


@consumer.command("list")
@offline_option
@json_option
@pass_context
def consumer_list(context: Context, *, show_offline: bool, as_json: bool) -> None:
    """List the consumers (as `pumphouse drainers`)."""
    _list_consumers(context.settings, show_offline=show_offline, as_json=as_json)


@consumer.command("register")
@click.argument("node_id")
@click.option(
    "--checkpoint",
    default="now",
    show_default=True,
    metavar="TIME",
    help="The position that it has already read.",
)
@json_option
@pass_context
def consumer_register(context: Context, node_id: str, checkpoint: str, *, as_json: bool) -> None:
    """Register a consumer by hand: its checkpoint holds GC from now on. Archives do it themselves."""
    cluster = open_registry(context.settings)
    ts = Tso(0) if checkpoint == "0" else read_time(context.settings, checkpoint, cluster.tso)
    status = admin.register_consumer(cluster, node_id, ts)
    if as_json:
        print_json(consumer_dict(status, context.settings.archive.consumer_stale_s))
    else:
        click.echo(f"registered {node_id}; Pumps keep what is above {show(status.max_commit_ts)}")


@consumer.command("unregister")
@click.argument("node_id")
@yes_option
@json_option
@pass_context
def consumer_unregister(context: Context, node_id: str, *, yes: bool, as_json: bool) -> None:
    """Remove a consumer. The Pumps no longer keep data for it."""
    cluster = open_registry(context.settings)
    try:
        found = cluster.node(NodeKind.DRAINER, node_id)
        if found is not None:
            confirm(
                f"Pumps may free what {node_id} has not read: everything above its checkpoint "
                f"{show(found.max_commit_ts)} that no other consumer holds.",
                yes=yes,
            )
    except CorruptionError:
        confirm(
            f"Pumps may free what {node_id} has not read: everything that no other consumer holds, as its checkpoint "
            "cannot be read.",
            yes=yes,
        )
    removed = admin.unregister_consumer(cluster, node_id)
    if removed is None:
        if as_json:
            print_json({"node_id": node_id, "max_commit_ts": None})
        else:
            click.echo(f"unregistered {node_id}, whose checkpoint could not be read")
    elif as_json:
        print_json(consumer_dict(removed, context.settings.archive.consumer_stale_s))
    else:
        click.echo(f"unregistered {node_id}, whose checkpoint was {show(removed.max_commit_ts)}")


@click.command()
@click.argument("time", default="now")
@json_option
@pass_context
def tso(context: Context, time: str, *, as_json: bool) -> None:
    """Convert TIME to a TSO and a clock time; without it, take a fresh TSO.

    TIME is a TSO, or a clock time with an offset or a zone (2026-11-27T03:00:00Z, "2026-11-27 03:00 Europe/Berlin",
    "yesterday 14:00"; without either it is of archive.time_zone), or "10 minutes ago", "before DDL JOB", "before TXN
    TS" (its start or commit ts), or now. Of a captured source it is also "gtid GTID", "before GTID GTID", or "source
    time TIME", by that server's own clock.
    """
    ts = read_time(context.settings, time, lambda: open_registry(context.settings).tso())
    if as_json:
        print_json({"tso": int(ts), "time": clock_time(ts), "physical_ms": physical_ms(ts), "logical": logical(ts)})
    else:
        click.echo(show(ts))


def _held_by(report: admin.PumpGc) -> str:
    if not report.asked:
        return "its age (see below)"
    # The Pump's own word, with the setting that it stands for.
    words = {"retention": "retention (its setting pump.retention_s)"}
    return report.error or report.note or ", ".join(words.get(each, each) for each in report.held_by) or "-"


@click.command()
@json_option
@pass_context
def gc(context: Context, *, as_json: bool) -> None:
    """Run GC on every Pump; show what was requested, what was freed and who holds the rest."""
    from pumphouse.archive import consumer as of_archive
    from pumphouse.archive.archive import Archive

    cluster, archive = open_registry(context.settings), context.settings.archive
    known = of_archive.require(Archive.open(archive, cluster.cluster_id()), cluster)
    published = _publish_loaded(context.settings, cluster) if context.settings.airflow.gc_follows == "load" else None
    limits = GoLimits(
        archived=published.confirmed.archive_end
        if published is not None
        else (known and known.checkpoint) or None,  # 0: it is being begun
        retention_s=archive.go_pump_gc_s,
        margin_s=archive.go_pump_margin_s,
    )
    reports = admin.trigger_gc(
        cluster, tls=context.settings.tls, proof=proof(context.settings.cluster), go_limits=limits
    )
    if as_json:
        print_json([report.to_dict() for report in reports])
    else:
        rows = [
            (
                report.node_id,
                f"{report.freed_files} ({report.freed_bytes:,} B)" if report.started else "-",
                str(report.kept_files) if report.started else "-",
                "-" if report.requested is None else show(report.requested),
                show(report.gc_point),
                show(report.deletion_limit),
                _held_by(report),
            )
            for report in reports
        ]
        print_table(("NODE", "FREED FILES", "KEPT", "REQUESTED", "GC POINT", "DELETION LIMIT", "HELD BY"), rows)
        for report in reports:
            if not report.asked:
                click.echo(f"{report.node_id}: {report.error or report.note}")
    if published is not None:
        click.echo(published.text(), err=as_json)
    error = admin.failures(reports) or (published and published.failure())
    if error:
        raise error


def _publish_loaded(settings: Settings, cluster: Cluster) -> Published:
    """Let the Pumps know what the archive and every target have. Of a connection without a section Airflow knows it."""
    from pumphouse.archive.archive import Archive
    from pumphouse.loader.confirmed import Stand, ask, publish
    from pumphouse.loader.target import address

    cluster_id, names, stands = cluster.cluster_id(), settings.waited_for, []
    for name in names:
        if name == DOWNSTREAM or name in settings.targets or len(names) == 1:
            target = settings.targets.get(name, settings.target)
            shown = address(target) if name not in settings.targets else f"{name} ({address(target)})"
            of = partial(for_target, name=name if name in settings.targets else TARGET)
            stands.append(ask(shown, target, settings.load.task, cluster_id, of=of))
        else:
            why = "it has no section [targets.…]: a connection that Airflow alone knows"
            stands.append(Stand(name=name, unknown=why, hint=("airflow dags trigger pump_gc",)))
    return publish(Archive.open(settings.archive, cluster_id), cluster, stands)
