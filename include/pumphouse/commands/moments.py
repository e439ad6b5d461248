"""TIME on the command line: read in one way, and told back before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable

import click

from pumphouse.model.tso import Tso
from pumphouse.settings import Settings


def read_time(settings: Settings, text: str, now: Callable[[], Tso] | None = None, word: str = "now") -> Tso:
    """The moment that somebody typed; on stderr, with its offset and its TSO, unless it is a TSO, or now.

    Args:
        settings: all of them.
        text: what was typed.
        now: the cluster's clock; None = that of this machine will do where there is no cluster.
        word: what an error names last.
    """
    from pumphouse.parts import Parts  # with the archive's libraries: a Pump needs none

    with Parts(settings) as parts:
        moment = parts.moment(text, now, word)
    if moment.text not in (str(int(moment.ts)), "now"):
        click.echo(str(moment), err=True)
    return moment.ts
