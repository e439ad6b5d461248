"""Asking before something that cannot be taken back; a script must say yes in so many words."""

from __future__ import annotations

import sys

import click

from pumphouse.errors import UsageError


def confirm(warning: str, *, yes: bool) -> None:
    """Warn, and go on only when somebody says so; UsageError where nobody can be asked."""
    click.echo(f"warning: {warning}", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this needs a yes", hint="give --yes if you mean it")
    click.confirm("Go on?", abort=True, err=True)
