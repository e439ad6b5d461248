"""``pumphouse resolver``: who answers for transactions of applications; give up what one claims."""

from __future__ import annotations

import time

import click

from include.errors import UsageError
from include.registry.resolvers import is_live
from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context
from pumphouse.commands.nodes import open_registry, yes_option


@click.group()
def resolver() -> None:
    """List the applications' resolvers, or forget one."""


@resolver.command("list")
@pass_context
def list_command(context: Context) -> None:
    """List every registered resolver, one a line: id, address, live or not, prefixes in hex."""
    for each in open_registry(context.settings).resolvers():
        prefixes = " ".join(prefix.hex() or "(all keys)" for prefix in each.prefixes)
        state = "live" if is_live(each, time.time()) else "down"
        click.echo(f"{each.resolver_id} {each.host or '-'} {state} {prefixes}")


@resolver.command("unregister")
@click.argument("resolver_id")
@yes_option
@pass_context
def unregister(context: Context, resolver_id: str, *, yes: bool) -> None:
    """Forget RESOLVER_ID and the keys that it claims.

    With pd:// TiKV is asked from then on about those of its keys that look like TiDB's.
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
