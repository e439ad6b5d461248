"""``pumphouse``: one command line for everything that the DAGs do. Exit code 0 done, 1 failed, 2 usage.

Each command lives in ``commands/<file>.py`` and is imported when it is called, so ``--help`` stays quick.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import structlog

from pumphouse.errors import BinlogError, ConfigError, UsageError
from pumphouse.extras import way_out
from pumphouse.log import LEVELS, configure_logging
from pumphouse.settings import Settings, settings_file
from pumphouse.starting import imported_to_stay

# command -> (module:attribute, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("pumphouse.commands.status:status", "Show how everything stands, and the next command to type."),
    "pump": ("pumphouse.commands.pump:pump", "Run a Pump, show its status, settle a prewrite."),
    "pumps": ("pumphouse.commands.nodes:pumps", "List the Pumps."),
    "drainers": ("pumphouse.commands.nodes:drainers", "List the consumers of the Pumps."),
    "consumer": ("pumphouse.commands.nodes:consumer", "Register or remove a consumer."),
    "resolver": ("pumphouse.commands.resolvers:resolver", "List the applications' resolvers, or remove one."),
    "pause-pump": ("pumphouse.commands.states:pause_pump", "Pause a Pump."),
    "offline-pump": ("pumphouse.commands.states:offline_pump", "Take a Pump out of the cluster, drained."),
    "update-pump": ("pumphouse.commands.states:update_pump", "Force a Pump's registered state."),
    "pause-drainer": ("pumphouse.commands.states:pause_drainer", "Pause a Drainer."),
    "offline-drainer": ("pumphouse.commands.states:offline_drainer", "Take a Drainer out of the cluster."),
    "update-drainer": ("pumphouse.commands.states:update_drainer", "Force a Drainer's registered state."),
    "generate-meta": ("pumphouse.commands.binlogctl:generate_meta", "Write a savepoint for a Drainer."),
    "encrypt": ("pumphouse.commands.binlogctl:encrypt", "Obscure a password for a Drainer's file."),
    "tso": ("pumphouse.commands.nodes:tso", "Convert between TSO and clock time."),
    "snapshot": ("pumphouse.commands.archive:snapshot", "Extend the archive."),
    "archive": ("pumphouse.commands.archive:archive", "Start, list, verify and repair the archive."),
    "capture": ("pumphouse.commands.capture:capture", "Follow a MySQL or MariaDB by its binlog."),
    "schema": ("pumphouse.commands.schema:schema", "Rebuild and show the schema timeline."),
    "load": ("pumphouse.commands.load:load", "Load the archive into a target."),
    "restore": ("pumphouse.commands.restore:restore", "Restore a target to a moment."),
    "flashback": ("pumphouse.commands.flashback:flashback", "Take chosen changes back on a live server."),
    "drill": ("pumphouse.commands.drill:drill", "Try a restore, prove it, throw it away."),
    "drills": ("pumphouse.commands.drill:drills", "List the drills, and whether restores get slower."),
    "spark": ("pumphouse.commands.spark:spark", "Package our code for a Spark cluster."),
    "gc": ("pumphouse.commands.nodes:gc", "Trigger GC on the Pumps and show what holds it."),
    "diff": ("pumphouse.commands.diff:diff", "Compare two servers, or a server with the archive."),
    "dags": ("pumphouse.commands.dags:dags", "Print the folder of the DAG files."),
}


class LazyGroup(click.Group):
    """Group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of COMMANDS."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        with imported_to_stay():
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that settings may have caused says which file was looked for and not found."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            found = ctx.find_object(Context)
            if found is not None and found.missing_file:
                more = f"no settings file was read: there is no {found.missing_file}; --config FILE names another"
                error.add_hint(more)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


class Context:
    """What every command gets: settings, read on first use."""

    def __init__(self, config: Path | None, overrides: dict[str, Any]) -> None:
        self._config = config
        self._overrides = overrides
        self._settings: Settings | None = None

    def override(self, name: str, value: Any) -> None:
        """Set ``section.name`` for this call, before the settings are read."""
        self._overrides = {**self._overrides, name: value}

    @property
    def settings(self) -> Settings:
        """The settings of this call."""
        if self._settings is None:
            self._settings = Settings.read(self._config, self._overrides)
        return self._settings

    @property
    def missing_file(self) -> str:
        """Where the settings file was looked for, if there is none; '' = there is one."""
        path = settings_file(self._config)
        return "" if path.exists() else str(path.absolute())

    def read(
        self, *, file_values: Mapping[str, Any], environment: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> Settings:
        """Settings of a command with sources of its own; its ``overrides`` beat ``--set``."""
        return Settings.read(
            self._config,
            {**self._overrides, **overrides},
            file_values=file_values,
            environment=environment,
        )


pass_context = click.make_pass_decorator(Context)


def _at_root(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    found = ctx.find_object(Context)
    if value is not None and found is not None:
        found.override("archive.root", value)


# Of commands that only read the archive: they need nothing else where the cluster is gone.
archive_option = click.option(
    "--archive",
    metavar="URL",
    callback=_at_root,
    expose_value=False,
    help="Where the archive is, as s3://bucket/prefix or file:///dir (the setting archive.root).",
)


@click.command(cls=LazyGroup)
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (default ./pumphouse.toml).")
@click.option("--set", "sets", multiple=True, metavar="SECTION.NAME=VALUE", help="Override one setting; repeatable.")
@click.option(
    "--cluster",
    "--pd-urls",
    metavar="URL",
    help="Cluster, as pd://host:port, or as for binlogctl: URLs or host:port of PD, separated by commas.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Minimum level to log.",
)
@click.version_option(package_name="pumphouse")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, sets: tuple[str, ...], cluster: str | None, log_level: str) -> None:
    """Batch replication and point-in-time restore for databases that speak TiDB Binlog."""
    configure_logging(log_level)
    overrides = {}
    for item in sets:
        name, sep, value = item.partition("=")
        if not sep or "." not in name:
            raise click.UsageError(f"--set takes SECTION.NAME=VALUE, not {item!r}")
        overrides[name] = value
    if cluster is not None:
        overrides["cluster.url"] = _cluster_url(cluster)
    ctx.obj = Context(config, overrides)


def _cluster_url(text: str) -> str:
    scheme, sep, _ = text.strip().partition("://")
    if sep and scheme.isalnum() and scheme.lower() not in ("http", "https", "unix", "unixs"):
        return text  # who opens it says what is wrong with it
    from pump_service.command.go_options import pd_cluster

    return pd_cluster(text)


def main() -> None:
    """Entry point: turns errors into one line and an exit code."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except (ConfigError, UsageError) as error:
        click.echo(f"pumphouse: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if not (said := way_out(error)):
            raise
        click.echo(f"pumphouse: {said}", err=True)
        sys.exit(2)
    except OSError as error:
        if _debugging():
            raise
        click.echo(f"pumphouse: {error} (check the paths and addresses in the settings)", err=True)
        sys.exit(1)
    except Exception as error:
        if _debugging():
            raise
        # Ours says what to do; of another one nobody foresaw that it could get here.
        more = "" if isinstance(error, BinlogError) else " (not foreseen: `--log-level debug` shows where)"
        click.echo(f"pumphouse: {type(error).__name__}: {error}{more}", err=True)
        sys.exit(1)


def _debugging() -> bool:
    """Whether somebody wants to see the stack of an error."""
    return bool(os.environ.get("PUMPHOUSE_DEBUG")) or structlog.get_logger().is_enabled_for(logging.DEBUG)
