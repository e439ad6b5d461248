"""``pumphouse resolver``: who answers for transactions of applications; give up what one claims."""

from __future__ import annotations

import time
from typing import Any

import click

from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context
from pumphouse.commands.nodes import json_option, open_registry, print_json, print_table, yes_option
from pumphouse.errors import UsageError
from pumphouse.registry.base import ResolverRecord
from pumphouse.registry.resolvers import is_live


@click.group()
def resolver() -> None:
    """List the applications' resolvers, or remove one."""


@resolver.command("list")
@json_option
@pass_context
def list_command(context: Context, *, as_json: bool) -> None:
    """List every registered resolver: id, address, live or not, prefixes in hex."""
    found = [_shown(each) for each in open_registry(context.settings).resolvers()]
    if as_json:
        print_json(found)
        return
    rows = [
        (each["id"], each["host"] or "-", each["state"], " ".join(p or "(all keys)" for p in each["prefixes"]))
        for each in found
    ]
    print_table(("RESOLVER", "ADDRESS", "STATE", "PREFIXES"), rows)


def _shown(record: ResolverRecord) -> dict[str, Any]:
    """A resolver as the command shows it; formats.md, "Command output"."""
    return {
        "id": record.resolver_id,
        "host": record.host,
        "state": "live" if is_live(record, time.time()) else "down",
        "prefixes": [prefix.hex() for prefix in record.prefixes],
    }


@resolver.command("unregister")
@click.argument("resolver_id")
@yes_option
@pass_context
def unregister(context: Context, resolver_id: str, *, yes: bool) -> None:
    """Remove RESOLVER_ID and its claim to keys.

    With pd://, Pumps then ask TiKV about those of its keys that look like TiDB's.
    """
    cluster = open_registry(context.settings)
    found = {each.resolver_id: each for each in cluster.resolvers()}.get(resolver_id)
    if found is None:
        raise UsageError(f"no resolver is registered as {resolver_id!r}", hint="see `pumphouse resolver list`")
    if is_live(found, time.time()):
        raise UsageError(f"resolver {resolver_id!r} is live at {found.host}", hint="stop it first")
    confirm(f"Nobody will answer for the open transactions of {resolver_id} any more.", yes=yes)
    cluster.delete_resolver(resolver_id)
    click.echo(f"unregistered {resolver_id}")
