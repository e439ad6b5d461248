"""The command that runs a Pump, as click sees it: the Go Pump's flags and ours. Imports nothing of the server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import structlog

from pump_service.command.go_options import (
    BOOLEAN_FLAGS,
    DEFAULT_PD_URLS,
    LOG_LEVEL,
    OPTIONS,
    GoValues,
    pd_cluster,
    read_environment,
    read_file,
    read_flags,
)
from pumphouse.errors import ConfigError, UsageError
from pumphouse.log import LEVELS, configure_logging
from pumphouse.settings import Settings

log = structlog.get_logger()
F = TypeVar("F", bound=Callable[..., Any])
_OURS = {
    "http_addr": "pump.http_addr",
    "cluster": "cluster.url",
    "labels": "pump.labels",
    "transport": "pump.transport",
}


class ReadSettings(Protocol):
    """`pumphouse.settings.Settings.read` with the files and ``--set`` of the caller."""

    def __call__(
        self, *, file_values: Mapping[str, Any], environment: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> Settings:
        """Merge the layers."""
        ...


class GoCommand(click.Command):
    """Takes long options with one dash too, as Go's flag package does: ``-node-id=x``, ``-L info``, ``-help``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write them as click reads them."""
        known = {name for each in self.params for name in each.opts} | set(self.get_help_option_names(ctx))
        return super().parse_args(ctx, [_two_dashes(arg, known) for arg in args])

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Go's ``-h`` too."""
        return ["-h", *super().get_help_option_names(ctx)]


def _two_dashes(arg: str, known: set[str]) -> str:
    name, sep, value = arg.partition("=")
    if sep and name == "-L":
        return f"--log-level={value}"
    if arg.startswith("-") and not arg.startswith("--") and f"-{name}" in known:
        return f"-{arg}"
    return arg


def go_options(function: F) -> F:
    """Add ``--config``, every flag of the Go Pump, and ours."""

    def say_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            try:
                click.echo(f"pumphouse pump {version('pumphouse')}")
            except PackageNotFoundError:
                click.echo("pumphouse pump, version unknown: it runs from a directory that was not installed")
            ctx.exit()

    ignored = [o.flag for o in OPTIONS if o.flag and not o.setting]
    adds = [
        click.option("--config", type=click.Path(path_type=Path), help="A pump.toml in the Go Pump's layout."),
        *(_click_option(o.flag, o.help) for o in OPTIONS if o.flag and o.setting and o.flag != "L"),
        click.option(
            "-L",
            "--log-level",
            "L",
            # As zap takes it: in any case, and '' says nothing.
            type=click.Choice(["", *LEVELS], case_sensitive=False),
            metavar=f"[{'|'.join(LEVELS)}]",
            help="Least level that is logged, in any case.",
        ),
        click.option(
            "--http-addr", help="host:port of the HTTP API; default: that of --addr (grpcio: a free port of that host)."
        ),
        click.option("--cluster", help="Cluster, as file:///dir, etcd://host:port or pd://host:port."),
        click.option("--labels", help="Labels for clients to choose by, as zone=a,rack=7."),
        click.option("--transport", help="gRPC server: builtin (gRPC and HTTP on one port), or grpcio."),
        *(_click_option(flag, "Accepted and ignored.", hidden=True) for flag in ignored),
        click.option(
            "-V", is_flag=True, expose_value=False, is_eager=True, callback=say_version, help="Show the version."
        ),
    ]
    for add in reversed(adds):
        function = add(function)
    return function


def _click_option(flag: str, text: str, *, hidden: bool = False) -> Callable[[F], F]:
    if flag in BOOLEAN_FLAGS:
        return click.option(f"--{flag}", is_flag=False, flag_value="true", hidden=hidden, help=text)
    return click.option(f"--{flag}", hidden=hidden, help=text)


def settings_of(read: ReadSettings, config: Path | None, options: Mapping[str, str | None]) -> Settings:
    """Settings from all layers; sets logging up as they say, and logs what was given in vain.

    Raises:
        ConfigError: a file, a variable or a flag is wrong.
        UsageError: two flags contradict each other.
    """
    if options.get("cluster") and options.get("pd_urls"):
        raise UsageError("--cluster and --pd-urls name the same thing", hint="give one of them")
    file = GoValues() if config is None else read_file(config)
    environment = read_environment(os.environ)
    flags = read_flags({o.flag: options.get(o.flag.replace("-", "_")) for o in OPTIONS if o.flag})
    ours = {setting: options[name] for name, setting in _OURS.items() if options.get(name) is not None}
    layers = (file.settings, environment.settings, {**flags.settings, **ours})
    level = next((str(layer[LOG_LEVEL]).lower() for layer in reversed(layers) if LOG_LEVEL in layer), None)
    if level is not None and level not in LEVELS:
        raise ConfigError(f"there is no log level {level!r}", hint=f"one of {', '.join(LEVELS)}", level=level)
    merged = [{k: v for k, v in layer.items() if k != LOG_LEVEL} for layer in layers]
    if config is not None and not any("cluster.url" in layer for layer in merged):
        # A pump.toml says nothing of our clusters: without pd-urls it means the PD of this machine.
        default = Settings.model_fields["cluster"].default.url
        settings = read(file_values=merged[0], environment=merged[1], overrides=merged[2])
        if settings.cluster.url == default:
            merged[0]["cluster.url"] = pd_cluster(DEFAULT_PD_URLS)
    settings = read(file_values=merged[0], environment=merged[1], overrides=merged[2])
    secure = any(layer.secure_pd for layer in (file, environment, flags))
    if secure and settings.cluster.url.startswith("pd://") and not settings.tls.enabled:
        raise ConfigError("pd-urls say https, but no CA is known", hint="ssl-ca in [security] of pump.toml, or tls.ca")
    if level is not None or settings.pump.log_file:
        configure_logging(level or "info", settings.pump.log_file)
    ignored = [name for layer in (file, environment, flags) for name in layer.ignored]
    if ignored:
        log.info("options_ignored", names=ignored, reason="they mean nothing to this Pump")
    return settings
