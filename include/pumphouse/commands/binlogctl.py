"""The commands of binlogctl that are about no node: ``generate-meta`` and ``encrypt``."""

from __future__ import annotations

import json
import sys
import zoneinfo
from datetime import datetime
from pathlib import Path

import click

from pumphouse.ask import confirm
from pumphouse.cli import Context, pass_context
from pumphouse.commands.nodes import json_option, open_registry, yes_option
from pumphouse.durable import make_dirs, write_atomic
from pumphouse.errors import UsageError
from pumphouse.model.tso import show, to_datetime


@click.command("generate-meta")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), default="binlog_position", show_default=True,
    help="Directory for the file savepoint.",
)  # fmt: skip
@click.option("--time-zone", default="", metavar="ZONE", help="Also write the clock time in UTC and in this zone.")
@yes_option
@json_option
@pass_context
def generate_meta(context: Context, data_dir: Path, time_zone: str, *, yes: bool, as_json: bool) -> None:
    """Write a Drainer's savepoint with the cluster's present time: a Drainer that finds it begins there."""
    zone = _zone(time_zone) if time_zone else None
    path = data_dir / "savepoint"
    if path.exists():
        confirm(f"{path} is there: a Drainer that goes on from it would skip everything up to now", yes=yes)
    ts = open_registry(context.settings).tso()
    text = f"commitTS = {int(ts)}\n"
    if zone is not None:
        moment = to_datetime(ts)
        text += f"{_as_go_prints(moment)}\n{_as_go_prints(moment.astimezone(zone))}"
    make_dirs(data_dir, mode=0o700)
    write_atomic(path, text.encode(), mode=0o644)
    if as_json:
        click.echo(json.dumps({"path": str(path), "commit_ts": int(ts)}, indent=2))
    else:
        click.echo(f"{path}: {show(ts)}")


@click.command()
@click.option("--text", help="Text to obscure; default: a line of stdin, which no process list shows.")
@json_option
def encrypt(text: str | None, *, as_json: bool) -> None:
    """Obscure a password for a Drainer's encrypted_password; the key is BINLOG_SECRET_KEY, else Drainer's own."""
    from pumphouse import secret_text

    plain = sys.stdin.readline().rstrip("\n") if text is None else text
    hidden = secret_text.encrypt(plain, secret_text.secret_key())
    click.echo(json.dumps({"encrypted": hidden}, indent=2) if as_json else hidden)


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"there is no time zone {name!r}", hint="as in UTC or Asia/Shanghai", zone=name) from error


def _as_go_prints(moment: datetime) -> str:
    """``2023-03-15 07:54:56.789 +0000 UTC``; zeros at the end of the fraction are left out."""
    fraction = f"{moment.microsecond:06d}".rstrip("0")
    return f"{moment:%Y-%m-%d %H:%M:%S}{'.' if fraction else ''}{fraction} {moment:%z %Z}"
