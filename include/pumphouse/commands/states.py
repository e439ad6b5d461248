"""Commands that change the state of a Pump or a Drainer: asked of itself by HTTP, or forced in the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import Console

from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context
from pumphouse.client import admin
from pumphouse.client.closing import Waiting, waits_for
from pumphouse.commands.nodes import consumer_dict, json_option, open_registry, print_json, pump_dict, yes_option
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.model.tso import show
from pumphouse.rpc.operator import proof

F = TypeVar("F", bound=Callable[..., Any])
_WAITS = "--wait SECONDS waits for it, "
_HELD_MEANWHILE = "Until it runs again snapshots and Drainers wait for it, and GC of all Pumps with them."
_AFTER: dict[tuple[NodeKind, admin.Action], str] = {
    (NodeKind.PUMP, "pause"): (
        f"It takes no more prewrites and ends; `pumphouse pump run` brings it back. {_HELD_MEANWHILE}"
    ),
    (NodeKind.PUMP, "close"): (
        "It takes no more prewrites, and goes offline when no transaction is open and every consumer has read it to"
        " its end. `pumphouse pumps` shows it, {waits}a snapshot lets the archive catch up."
    ),
    (NodeKind.DRAINER, "pause"): "It ends; its checkpoint goes on holding the Pumps' GC.",
    (NodeKind.DRAINER, "close"): "It ends and goes offline; the Pumps keep nothing for it any more.",
}
_WANTED: dict[admin.Action, NodeState] = {"pause": NodeState.PAUSED, "close": NodeState.OFFLINE}


def wait_option(state: str) -> Callable[[F], F]:
    """``--wait SECONDS``."""
    return click.option("--wait", "wait_s", type=float, default=0, metavar="SECONDS", help=f"Wait until it is {state}.")


def _node_dict(context: Context, status: NodeStatus, kind: NodeKind) -> dict[str, Any]:
    if kind is NodeKind.PUMP:
        return pump_dict(status)
    return consumer_dict(status, context.settings.archive.consumer_stale_s)


def _change(
    context: Context, node_id: str, action: admin.Action, wait_s: float, *, kind: NodeKind, as_json: bool
) -> None:
    cluster = open_registry(context.settings)
    wanted = _WANTED[action]
    message = admin.ask_state(
        cluster, node_id, action, kind=kind, tls=context.settings.tls, proof=proof(context.settings.cluster)
    )

    def waiting(status: NodeStatus | None) -> Waiting:
        closes = action == "close" and kind is NodeKind.PUMP
        return waits_for(cluster, status if closes else None, context.settings.tls)

    reached: NodeStatus | None = None
    if wait_s:
        console = Console(stderr=True)
        with console.status(f"{node_id}: waiting for {wanted}") as spinner:
            told = False
            last: tuple[object, ...] = ()

            def progress(status: NodeStatus | None) -> None:
                nonlocal last
                holds = waiting(status)
                state = "gone" if status is None else f"{status.state}, at {show(status.max_commit_ts)}"
                text = f"{node_id}: waiting for {wanted}; it is {state}{holds}"
                spinner.update(text)
                # A spinner is for a terminal; a log gets a line when something else holds it.
                now = (status and status.state, bool(holds.prewrites), holds.consumers)
                if now != last and not console.is_terminal and (status is None or status.state != wanted):
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
                last = now

            def away(error: Exception) -> None:
                nonlocal told
                if not told:
                    text = f"{node_id} was asked to {action}; the registry does not answer, it is asked again: {error}"
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
                told = True

            reached = admin.wait_for_state(cluster, node_id, wanted, wait_s, kind=kind, progress=progress, away=away)
    status = reached or admin.find_node(cluster, node_id, kind)
    held = waiting(status)
    if as_json:
        print_json(_node_dict(context, status, kind) | {"message": message})
    elif status.state == wanted:
        paused = kind is NodeKind.PUMP and status.state is NodeState.PAUSED
        click.echo(f"{node_id}: {message} It is {status.state} now.{f' {_HELD_MEANWHILE}' if paused else ''}")
    else:
        after = _AFTER[kind, action].format(waits="" if wait_s else _WAITS)
        steps = f" {held.next_steps}." if held.prewrites else ""
        click.echo(f"{node_id}: {message} {after.removesuffix('.')}{held}.{steps}")
    if wait_s and reached is None:
        raise admin.not_reached(status, wanted, wait_s, str(held), kind, next_steps=held.next_steps)


@click.command("pause-pump")
@click.argument("node_id")
@wait_option("paused")
@json_option
@pass_context
def pause_pump(context: Context, node_id: str, wait_s: float, *, as_json: bool) -> None:
    """Ask a running Pump to stop taking prewrites and to end; it can be started again."""
    _change(context, node_id, "pause", wait_s, kind=NodeKind.PUMP, as_json=as_json)


@click.command("offline-pump")
@click.argument("node_id")
@wait_option("offline")
@json_option
@pass_context
def offline_pump(context: Context, node_id: str, wait_s: float, *, as_json: bool) -> None:
    """Ask a running Pump to leave the cluster: it goes offline once every consumer has read all its data."""
    _change(context, node_id, "close", wait_s, kind=NodeKind.PUMP, as_json=as_json)


@click.command("pause-drainer")
@click.argument("node_id")
@wait_option("paused")
@json_option
@pass_context
def pause_drainer(context: Context, node_id: str, wait_s: float, *, as_json: bool) -> None:
    """Ask a running Drainer to end; its checkpoint goes on holding the Pumps' GC."""
    _change(context, node_id, "pause", wait_s, kind=NodeKind.DRAINER, as_json=as_json)


@click.command("offline-drainer")
@click.argument("node_id")
@wait_option("offline")
@json_option
@pass_context
def offline_drainer(context: Context, node_id: str, wait_s: float, *, as_json: bool) -> None:
    """Ask a running Drainer to end and leave the cluster; the Pumps then keep no data for it."""
    _change(context, node_id, "close", wait_s, kind=NodeKind.DRAINER, as_json=as_json)


def _update(context: Context, node_id: str, state: str, *, kind: NodeKind, yes: bool, as_json: bool) -> None:
    cluster = open_registry(context.settings)
    found = admin.find_node(cluster, node_id, kind)
    wanted = NodeState(state)
    confirm(_what_a_pump_can_lose(found, wanted) if kind is NodeKind.PUMP else _what_goes(found, wanted), yes=yes)
    stored = admin.force_state(cluster, node_id, wanted, kind)
    if as_json:
        print_json(_node_dict(context, stored, kind))
    else:
        click.echo(f"{node_id}: {found.state} -> {stored.state}")


state_option = click.option(
    "--state", required=True, type=click.Choice([str(state) for state in NodeState]), help="State to write."
)


@click.command("update-pump")
@click.argument("node_id")
@state_option
@yes_option
@json_option
@pass_context
def update_pump(context: Context, node_id: str, state: str, *, yes: bool, as_json: bool) -> None:
    """Write a Pump's state to the registry without asking the Pump. For a Pump that will never run again."""
    _update(context, node_id, state, kind=NodeKind.PUMP, yes=yes, as_json=as_json)


@click.command("update-drainer")
@click.argument("node_id")
@state_option
@yes_option
@json_option
@pass_context
def update_drainer(context: Context, node_id: str, state: str, *, yes: bool, as_json: bool) -> None:
    """Write a Drainer's state to the registry without asking it. For a Drainer that will never run again."""
    _update(context, node_id, state, kind=NodeKind.DRAINER, yes=yes, as_json=as_json)


def _what_a_pump_can_lose(found: NodeStatus, wanted: NodeState) -> str:
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


def _what_goes(found: NodeStatus, wanted: NodeState) -> str:
    parts = [f"{found.node_id} is not asked; a running Drainer writes its own state again within seconds."]
    if wanted == NodeState.OFFLINE:
        parts.append(
            f"Pumps may free what it has not read: everything above its checkpoint {show(found.max_commit_ts)} that no"
            " other consumer holds, and a closing Pump goes without waiting for it. If it comes back after that, it"
            " has lost what was freed."
        )
    elif wanted == NodeState.ONLINE:
        parts.append("A new Pump does not start until every online Drainer has answered it: one that is gone stops it.")
    return " ".join(parts)
