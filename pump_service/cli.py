"""``pumphouse pump run`` and ``python -m pump_service``: settings, cluster, event loop, exit code."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
import uvloop

from include.errors import BinlogError, ConfigError
from include.log import configure_logging
from include.registry.open import open_cluster
from include.settings import Settings
from pump_service.app import PumpApp, Serving


def announce(serving: Serving) -> None:
    """One JSON line on stdout: whoever started the process knows where it is."""
    sys.stdout.write(json.dumps({"event": "serving", **dataclasses.asdict(serving)}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def serve(settings: Settings) -> int:
    """Run a Pump until it is told to stop; the exit code."""
    cluster = open_cluster(settings.cluster.url, settings.tls)
    try:
        code: int = uvloop.run(_run(settings, cluster))
        return code
    finally:
        cluster.close()


async def _run(settings: Settings, cluster: Any) -> int:
    return await PumpApp(settings.pump, cluster, settings.tls, announce=announce).run()


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (default ./pumphouse.toml).")
@click.option("--set", "sets", multiple=True, metavar="SECTION.NAME=VALUE", help="Override one setting; repeatable.")
@click.option("--log-level", default="info", show_default=True)
def main(config: Path | None, sets: tuple[str, ...], log_level: str) -> None:
    """Run a Pump; everything else is `pumphouse`."""
    configure_logging(log_level)
    overrides = dict(item.partition("=")[::2] for item in sets)
    try:
        code = serve(Settings.read(config, overrides))
    except ConfigError as error:
        click.echo(f"pump: {error}", err=True)
        code = 2
    except BinlogError as error:
        click.echo(f"pump: {type(error).__name__}: {error}", err=True)
        code = 1
    sys.exit(code)
