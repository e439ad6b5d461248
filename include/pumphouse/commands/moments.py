"""TIME on the command line: read in one way, and told back before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pumphouse.model.tso import Tso, physical_ms, to_datetime
from pumphouse.settings import Settings

# Names of TSOs in JSON, beside those that end in _ts.
_TIMES = frozenset({"genesis", "end", "start", "fence", "checkpoint", "ts"})
# Of commands that read a range of the archive.
to_option = click.option(
    "--to",
    default="latest",
    show_default=True,
    metavar="TIME",
    help="Changes up to this TIME, inclusive, or to latest, the archive's end.",
)
tables_option = click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="DB.TABLE",
    help="Of this table, under every name and id that it has in the range; also a pattern (shop.*). Repeatable. "
    "Default: all.",
)


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


def clock_time(ts: int) -> str | None:
    """ISO time of a TSO; None for what is none (0, the largest)."""
    return to_datetime(ts).isoformat(timespec="milliseconds") if 0 < physical_ms(ts) < 253_402_300_800_000 else None


def with_times(value: Any) -> Any:
    """A JSON value with the clock time (``…_time``) beside every TSO in it."""
    if isinstance(value, list | tuple):
        return [with_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    out: dict[str, Any] = {}
    for name, each in value.items():
        out[name] = with_times(each)
        if isinstance(each, int) and (name.endswith("_ts") or name in _TIMES):
            out[f"{name.removesuffix('_ts')}_time" if name != "ts" else "time"] = clock_time(each)
    return out
