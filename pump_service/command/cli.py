"""``pumphouse pump run`` and ``python -m pump_service``: settings, cluster, event loop, exit code."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import uvloop

from pump_service.command.go_command import GoCommand, go_options, settings_of
from pump_service.node.node_id import has_cluster
from pump_service.process.app import PumpApp, Serving
from pump_service.process.footprint import leave_what_stays
from pumphouse.errors import BinlogError, ConfigError, UsageError
from pumphouse.log import configure_logging
from pumphouse.registry.open import open_cluster
from pumphouse.settings import Settings


def announce(serving: Serving) -> None:
    """One JSON line on stdout: whoever started the process knows where it is."""
    sys.stdout.write(json.dumps({"event": "serving", **dataclasses.asdict(serving)}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def serve(settings: Settings) -> int:
    """Run a Pump until it is told to stop; the exit code."""
    # A directory that has served knows its cluster: where the URL leads to none, the URL is wrong.
    # Nor is one made where nobody named it: the Pump may have been started in the wrong directory.
    named = "url" in settings.cluster.model_fields_set
    create = named and not has_cluster(settings.pump.data_dir)
    try:
        cluster = open_cluster(settings.cluster, settings.tls, create=create, patient=True)
    except ConfigError as error:
        if not named:
            error.advice = ("nobody named a cluster: --cluster file:///dir, or cluster.url in pumphouse.toml",)
        raise
    try:
        code: int = uvloop.run(_run(settings, cluster))
        return code
    finally:
        cluster.close()


async def _run(settings: Settings, cluster: Any) -> int:
    app = PumpApp(
        settings.pump, cluster, settings.tls, announce=announce, operator_tokens=settings.cluster.operator_tokens,
        before_serving=leave_what_stays,
    )  # fmt: skip
    return await app.run()


@click.command(cls=GoCommand)
@click.option("--settings", "path", type=click.Path(path_type=Path), help="Settings file (default ./pumphouse.toml).")
@click.option("--set", "sets", multiple=True, metavar="SECTION.NAME=VALUE", help="Override one setting; repeatable.")
@go_options
def main(path: Path | None, sets: tuple[str, ...], config: Path | None, **options: str | None) -> None:
    """Run a Pump; everything else is `pumphouse`."""
    configure_logging("info")
    given = dict(item.partition("=")[::2] for item in sets)

    def read(
        *, file_values: Mapping[str, Any], environment: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> Settings:
        return Settings.read(path, {**given, **overrides}, file_values=file_values, environment=environment)

    try:
        code = serve(settings_of(read, config, options))
    except (ConfigError, UsageError) as error:
        click.echo(f"pump: {error}", err=True)
        code = 2
    except BinlogError as error:
        click.echo(f"pump: {type(error).__name__}: {error}", err=True)
        code = 1
    sys.exit(code)
