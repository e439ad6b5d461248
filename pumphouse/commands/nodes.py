"""Commands on the nodes of a cluster: Pumps, consumers, the clock, GC."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from include.client import admin
from include.model.node import NodeKind, NodeState, NodeStatus
from include.model.tso import Tso, logical, parse_time, physical_ms, show, to_datetime
from include.registry.base import Cluster
from include.registry.open import open_cluster
from include.settings import Settings
from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
offline_option = click.option("--show-offline", is_flag=True, help="Offline ones too.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def _open(settings: Settings, *, create: bool = False) -> Cluster:
    return open_cluster(settings.cluster, settings.tls, create=create)


def _clock_time(ts: int) -> str | None:
    return to_datetime(ts).isoformat(timespec="milliseconds") if 0 < physical_ms(ts) < 253_402_300_800_000 else None


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def _print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    # A pipe gets whole lines: a narrow default width would cut ids.
    console = Console() if sys.stdout.isatty() else Console(width=240)
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
        "max_commit_time": _clock_time(status.max_commit_ts),
        "update_ts": int(status.update_ts),
        "update_time": _clock_time(status.update_ts),
        "age_s": round(admin.age_s(status), 3),
    }


def _pump_dict(status: NodeStatus) -> dict[str, Any]:
    extra = status.extra
    return _node_dict(status) | {
        "silent": admin.is_silent(status),
        "kind": "go" if extra is None else "pumphouse",
        "incarnation": None if extra is None else extra.incarnation,
        "start_count": None if extra is None else extra.start_count,
        "http": status.host if extra is None else extra.http,
        "sync_log": None if extra is None else extra.sync_log,
    }


def _consumer_dict(status: NodeStatus, stale_s: float) -> dict[str, Any]:
    return _node_dict(status) | {
        "stale": status.state != NodeState.OFFLINE and admin.age_s(status) > stale_s,
        "holds_gc": status.state != NodeState.OFFLINE,
    }


@click.command()
@offline_option
@json_option
@pass_context
def pumps(context: Context, *, show_offline: bool, as_json: bool) -> None:
    """List the Pumps, and how far each has ordered its stream."""
    found = [p for p in _open(context.settings).nodes(NodeKind.PUMP) if show_offline or p.state != NodeState.OFFLINE]
    if as_json:
        _print_json([_pump_dict(pump) for pump in found])
        return
    rows = []
    for pump in found:
        silent = f" (silent for {admin.age_s(pump):.0f} s)" if admin.is_silent(pump) else ""
        rows.append((pump.node_id, pump.host, f"{pump.state}{silent}", show(pump.max_commit_ts), show(pump.update_ts)))
    _print_table(("NODE", "ADDRESS", "STATE", "MAX COMMIT TS", "UPDATED"), rows)


def _list_consumers(settings: Settings, *, show_offline: bool, as_json: bool) -> None:
    stale_s = settings.archive.consumer_stale_s
    nodes = _open(settings).nodes(NodeKind.DRAINER)
    found = [_consumer_dict(node, stale_s) for node in nodes if show_offline or node.state != NodeState.OFFLINE]
    if as_json:
        _print_json(found)
        return
    rows = [
        (
            node["node_id"],
            node["host"] or "-",
            node["state"] + (f" (stale: {node['age_s']:.0f} s)" if node["stale"] else ""),
            show(node["max_commit_ts"]),
            show(node["update_ts"]),
        )
        for node in found
    ]
    _print_table(("NODE", "ADDRESS", "STATE", "CHECKPOINT", "UPDATED"), rows)


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
@click.option("--checkpoint", default="now", show_default=True, metavar="TIME", help="What it has read already.")
@json_option
@pass_context
def consumer_register(context: Context, node_id: str, checkpoint: str, *, as_json: bool) -> None:
    """Register a consumer by hand: its checkpoint holds GC from now on. Archives do it themselves."""
    cluster = _open(context.settings)
    ts = Tso(0) if checkpoint == "0" else parse_time(checkpoint, cluster.tso)
    status = admin.register_consumer(cluster, node_id, ts)
    if as_json:
        _print_json(_consumer_dict(status, context.settings.archive.consumer_stale_s))
    else:
        click.echo(f"registered {node_id}; Pumps keep what is above {show(status.max_commit_ts)}")


@consumer.command("unregister")
@click.argument("node_id")
@yes_option
@json_option
@pass_context
def consumer_unregister(context: Context, node_id: str, *, yes: bool, as_json: bool) -> None:
    """Remove a consumer. What it has not read yet is no longer kept for it."""
    cluster = _open(context.settings)
    found = cluster.node(NodeKind.DRAINER, node_id)
    if found is not None:
        confirm(
            f"Pumps may free what {node_id} has not read: everything above its checkpoint "
            f"{show(found.max_commit_ts)} that no other consumer holds.",
            yes=yes,
        )
    removed = admin.unregister_consumer(cluster, node_id)
    if as_json:
        _print_json(_consumer_dict(removed, context.settings.archive.consumer_stale_s))
    else:
        click.echo(f"unregistered {node_id}, whose checkpoint was {show(removed.max_commit_ts)}")


def _change_state(
    context: Context, node_id: str, action: admin.Action, wanted: NodeState, wait_s: float, *, as_json: bool
) -> None:
    cluster = _open(context.settings)
    message = admin.ask_state(cluster, node_id, action, tls=context.settings.tls)
    reached = False
    if wait_s:
        console = Console(stderr=True)
        with console.status(f"{node_id}: waiting for {wanted}") as spinner:

            def progress(status: NodeStatus | None) -> None:
                state = "gone" if status is None else f"{status.state}, at {show(status.max_commit_ts)}"
                spinner.update(f"{node_id}: waiting for {wanted}; it is {state}{_held_by(cluster, action, status)}")

            reached = admin.wait_for_state(cluster, node_id, wanted, wait_s, progress=progress)
    status = admin.find_pump(cluster, node_id)
    if as_json:
        _print_json(_pump_dict(status) | {"message": message})
    else:
        click.echo(f"{node_id}: {message} It is {status.state} now.")
    if wait_s and not reached:
        raise admin.not_reached(status, wanted, wait_s, _held_by(cluster, action, status))


def _held_by(cluster: Cluster, action: admin.Action, status: NodeStatus | None) -> str:
    if action != "close" or status is None:
        return ""
    names = [each.node_id for each in admin.behind(cluster, status.max_commit_ts)]
    return f"; behind it: {', '.join(names)}" if names else ""


@click.command("pause-pump")
@click.argument("node_id")
@click.option("--wait", "wait_s", type=float, default=0, metavar="SECONDS", help="Wait until it is paused.")
@json_option
@pass_context
def pause_pump(context: Context, node_id: str, wait_s: float, *, as_json: bool) -> None:
    """Ask a running Pump to stop taking prewrites and to end; it can be started again."""
    _change_state(context, node_id, "pause", NodeState.PAUSED, wait_s, as_json=as_json)


@click.command("offline-pump")
@click.argument("node_id")
@click.option("--wait", "wait_s", type=float, default=0, metavar="SECONDS", help="Wait until it is offline.")
@json_option
@pass_context
def offline_pump(context: Context, node_id: str, wait_s: float, *, as_json: bool) -> None:
    """Ask a running Pump to leave the cluster: offline once every consumer has read all of it."""
    _change_state(context, node_id, "close", NodeState.OFFLINE, wait_s, as_json=as_json)


@click.command("update-pump")
@click.argument("node_id")
@click.option("--state", required=True, type=click.Choice([str(state) for state in NodeState]), help="State to write.")
@yes_option
@json_option
@pass_context
def update_pump(context: Context, node_id: str, state: str, *, yes: bool, as_json: bool) -> None:
    """Write a Pump's state into the registry without asking the Pump. For one that will never run again."""
    cluster = _open(context.settings)
    found = admin.find_pump(cluster, node_id)
    wanted = NodeState(state)
    confirm(_what_it_can_lose(found, wanted), yes=yes)
    stored = admin.force_state(cluster, node_id, wanted)
    if as_json:
        _print_json(_pump_dict(stored))
    else:
        click.echo(f"{node_id}: {found.state} -> {stored.state}")


def _what_it_can_lose(found: NodeStatus, wanted: NodeState) -> str:
    parts = [f"the Pump {found.node_id} is not asked; a running one writes its own state again within seconds."]
    if wanted == NodeState.OFFLINE:
        parts.append(
            "A Go Drainer drops an offline Pump and loses every transaction that it had not pulled from it. An archive "
            "does not: it holds its windows until the Pump runs again or `pumphouse archive declare-lost` gives up "
            "what is only there. `pumphouse offline-pump` drains a Pump that runs."
        )
    elif wanted == NodeState.ONLINE:
        parts.append("Clients send prewrites to an online Pump: transactions wait and retry if none is there.")
    return " ".join(parts)


@click.command()
@click.argument("time", default="now")
@json_option
@pass_context
def tso(context: Context, time: str, *, as_json: bool) -> None:
    """Convert TIME (a TSO, an ISO time, or now) to a TSO and a clock time; without it, take a fresh TSO."""
    ts = parse_time(time, lambda: _open(context.settings).tso())
    if as_json:
        _print_json({"tso": int(ts), "time": _clock_time(ts), "physical_ms": physical_ms(ts), "logical": logical(ts)})
    else:
        click.echo(show(ts))


@click.command()
@json_option
@pass_context
def gc(context: Context, *, as_json: bool) -> None:
    """Run GC on every Pump; show what was freed and who holds the rest."""
    reports = admin.trigger_gc(_open(context.settings), tls=context.settings.tls)
    if as_json:
        _print_json([report.to_dict() for report in reports])
    else:
        rows = [
            (
                report.node_id,
                f"{report.freed_files} ({report.freed_bytes:,} B)" if report.started else "-",
                str(report.kept_files) if report.started else "-",
                show(report.gc_point),
                show(report.deletion_limit),
                report.error or report.note or ", ".join(report.held_by) or "-",
            )
            for report in reports
        ]
        _print_table(("NODE", "FREED FILES", "KEPT", "GC POINT", "DELETION LIMIT", "HELD BY"), rows)
    error = admin.failures(reports)
    if error is not None:
        raise error
