"""Options of the Go Pump: its flags, its ``pump.toml`` and its variables, as values of our settings (row O3).

A table and readers, nothing else: who wins over whom is `pumphouse.settings`' business. What has no meaning here is
accepted and named, so that a Pump is started the way it always was; an unknown key of the file is fatal, as there.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pumphouse.errors import ConfigError
from pumphouse.rpc.shown import without_secrets

LOG_LEVEL = "log.level"
"""Not one of our settings: logging is set up by whoever starts the process."""
DEFAULT_PD_URLS = "http://127.0.0.1:2379"
ENV_PREFIX = "PUMP_"
_LARGEST_MESSAGE = (1 << 31) - 1
_DAY_S = 86_400.0
_DURATION_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)(ns|us|µs|ms|s|m|h)")
_SIZE = re.compile(r"([0-9][0-9,]*\.?[0-9]*)\s*([a-z]*)")
_SIZE_UNITS = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgtpe", start=1)
    for base, units in ((1000, (letter, letter + "b")), (1024, (letter + "i", letter + "ib")))
    for unit in units
}


def duration_s(text: str) -> float:
    """Seconds of a Go duration (``8h``, ``1h30m``); ConfigError otherwise."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{text!r} is no duration", hint="as in 8h or 1h30m", value=text)
    return sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in parts)


def retention_s(value: Any) -> float:
    """``gc``: whole days, or a Go duration."""
    text = str(value).strip()
    return int(text) * _DAY_S if text.lstrip("+-").isdecimal() else duration_s(text)


def size_bytes(value: Any) -> int:
    """Bytes of ``42 MB`` (decimal) or ``42 mib`` (binary); a bare number is bytes."""
    found = _SIZE.fullmatch(str(value).strip().lower())
    if found is None or found[2] not in _SIZE_UNITS:
        raise ConfigError(f"{value!r} is no size", hint="as in 10 gib, 42 MB or a number of bytes", value=str(value))
    return int(float(found[1].replace(",", "")) * _SIZE_UNITS[found[2]])


def pd_cluster(value: Any) -> str:
    """``pd-urls`` as a cluster URL: ``http://a:2379,http://b:2379`` is ``pd://a:2379,b:2379``."""
    hosts = []
    for each in str(value).split(","):
        url = each.strip()
        host = None
        with contextlib.suppress(ValueError):
            parts = urlsplit(url if "://" in url else f"http://{url}")
            if parts.scheme in ("http", "https", "unix", "unixs") and parts.hostname and parts.port:
                host = parts.netloc
        if host is None or "@" in host:
            shown = without_secrets(str(value), url)
            hint = "as in http://127.0.0.1:2379"
            if shown.startswith(("etcd://", "file://", "pd://")):
                hint = f"that is --cluster {without_secrets(str(value))}; pd-urls are URLs of PD, {hint}"
            raise ConfigError(f"pd-urls: {shown!r} is no URL of PD", hint=hint, url=shown)
        hosts.append(host)
    return "pd://" + ",".join(hosts)


def _seconds(value: Any) -> float:
    return float(int(value))


def _message_bytes(value: Any) -> int:
    return min(int(value), _LARGEST_MESSAGE)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "t", "f"):
        raise ConfigError(f"{value!r} is neither true nor false", value=str(value))
    return text in ("true", "1", "t")


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else tuple(each for each in str(value).split(",") if each)


@dataclass(frozen=True, slots=True)
class GoOption:
    """One option. ``key`` is its place in the file, '' where it is a flag only; ``flag`` '' where it is none.

    ``setting`` '' means accepted and ignored; ``zero_is_default``: a 0 (or an empty text) says nothing.
    """

    key: str
    flag: str
    setting: str
    read: Callable[[Any], Any] = str
    help: str = ""
    zero_is_default: bool = True


OPTIONS: tuple[GoOption, ...] = (
    GoOption("node-id", "node-id", "pump.node_id", help="Node id; default: the one of the data directory."),
    GoOption("addr", "addr", "pump.addr", help="host:port to listen on."),
    GoOption("advertise-addr", "advertise-addr", "pump.advertise_addr", help="host:port that others connect to."),
    GoOption("socket", "socket", "pump.socket", help="Unix socket that gRPC listens on too, as unix:///path."),
    GoOption("pd-urls", "pd-urls", "cluster.url", pd_cluster,
             "URLs of PD, separated by commas: http://a:2379,http://b:2379 is --cluster pd://a:2379,b:2379."),
    GoOption("data-dir", "data-dir", "pump.data_dir", help="Value log, index and identity."),
    GoOption("heartbeat-interval", "heartbeat-interval", "pump.heartbeat_interval_s", _seconds,
             "Seconds between heartbeats."),
    GoOption("gc", "gc", "pump.retention_s", retention_s, "Days, or a duration as 8h, that binlogs are kept at least.",
             zero_is_default=False),
    GoOption("log-level", "L", LOG_LEVEL, help="Least level that is logged."),
    GoOption("log-file", "log-file", "pump.log_file", help="File to log to; default: stderr."),
    GoOption("gen-binlog-interval", "fake-binlog-interval", "pump.gen_binlog_interval_s", _seconds,
             "Seconds without progress after which a fake binlog is written."),
    GoOption("", "max-message-size", "pump.max_message_bytes", _message_bytes, "Bytes of the largest request."),
    GoOption("metricsaddr", "metrics-addr", "pump.metrics_push_addr", help="Pushgateway that gets the metrics."),
    GoOption("metricsinterval", "metrics-interval", "pump.metrics_push_interval_s", _seconds,
             "Seconds between pushes; 0 = none.", zero_is_default=False),
    GoOption("security.ssl-ca", "", "tls.ca"),
    GoOption("security.ssl-cert", "", "tls.cert"),
    GoOption("security.ssl-key", "", "tls.key"),
    GoOption("security.cert-allowed-cn", "", "tls.cert_allowed_cn", _names),
    GoOption("storage.sync-log", "", "pump.sync_log", _flag, zero_is_default=False),
    GoOption("storage.kv_chan_cap", "", "pump.index_queue_records", int),
    GoOption("storage.slow_write_threshold", "", ""),
    GoOption("storage.stop-write-at-available-space", "", "pump.stop_write_at_available_bytes", size_bytes,
             zero_is_default=False),
    GoOption("storage.kv.block-cache-capacity", "", "pump.index_cache_bytes", int),
    GoOption("storage.kv.block-restart-interval", "", "pump.index_block_restart_interval", int),
    GoOption("storage.kv.block-size", "", "pump.index_block_bytes", int),
    GoOption("storage.kv.compaction-table-size", "", "pump.index_table_bytes", int),
    GoOption("storage.kv.write-buffer", "", "pump.index_write_buffer_bytes", int),
    GoOption("storage.kv.compaction-L0-trigger", "", ""),
    GoOption("storage.kv.compaction-total-size", "", ""),
    GoOption("storage.kv.compaction-total-size-multiplier", "", ""),
    GoOption("storage.kv.write-L0-pause-trigger", "", ""),
    GoOption("storage.kv.write-L0-slowdown-trigger", "", ""),
    GoOption("etcddialtimeout", "", ""),
    GoOption("", "enable-debug", ""),
    GoOption("", "binlog-file-size", ""),
    GoOption("", "enable-binlog-slice", ""),
    GoOption("", "binlog-slice-size", ""),
    GoOption("", "log-rotate", ""),
)  # fmt: skip
BOOLEAN_FLAGS = frozenset({"enable-debug", "enable-binlog-slice"})
_BY_KEY = {option.key.lower(): option for option in OPTIONS if option.key}
# Go's decoder takes them by the names of its own fields; nobody writes them.
_WITHOUT_NAME = frozenset({"metricsaddr", "metricsinterval", "etcddialtimeout"})
_TABLES = frozenset(key.rpartition(".")[0] for key in _BY_KEY) - {""}


@dataclass(frozen=True, slots=True)
class GoValues:
    """Values of our settings (``section.name``), and the names of the options that were given and mean nothing here."""

    settings: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    secure_pd: bool = False


def _collect(given: Iterator[tuple[str, GoOption, Any]]) -> GoValues:
    settings: dict[str, Any] = {}
    ignored = []
    secure = False
    for name, option, value in given:
        if not option.setting:
            ignored.append(name)
        elif option.zero_is_default and str(value) in ("", "0"):
            continue
        else:
            try:
                settings[option.setting] = option.read(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{name}: {value!r} is no number", option=name) from error
            secure = secure or (option.read is pd_cluster and "https://" in str(value))
    return GoValues(settings, tuple(ignored), secure)


def read_flags(flags: Mapping[str, Any]) -> GoValues:
    """Flags of the command line by name; None = not given."""
    given = ((f"--{o.flag}", o, flags[o.flag]) for o in OPTIONS if o.flag and flags.get(o.flag) is not None)
    return _collect(given)


def read_environment(environment: Mapping[str, str]) -> GoValues:
    """``PUMP_<FLAG>``, upper case, with underscores."""
    names = ((ENV_PREFIX + o.flag.upper().replace("-", "_"), o) for o in OPTIONS if o.flag)
    return _collect((name, option, environment[name]) for name, option in names if environment.get(name))


def read_file(path: Path) -> GoValues:
    """A ``pump.toml`` in the Go Pump's layout.

    Raises:
        ConfigError: there is no such file, it is no TOML, or it has keys that the Go Pump would not know either.
    """
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}", path=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}", path=str(path)) from error
    found, unknown = [], []
    for key, value in _walk(data, ""):
        option = _BY_KEY.get(key.lower())
        if option is not None and not isinstance(value, dict):
            found.append((key, option, value))
        elif key.lower() not in _TABLES or not isinstance(value, dict):
            unknown.append(key)
    if unknown:
        ours = {"pump", "cluster", "tls", "archive"} & {key.lower() for key in data}
        raise ConfigError(
            f"component pump's config file {path} contained unknown configuration options: {', '.join(unknown)}",
            hint="`pumphouse --config FILE pump run` reads a pumphouse.toml" if ours else "",
            path=str(path),
        )
    return _collect(iter(found))


def _walk(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        yield key, value
        if isinstance(value, dict):
            yield from _walk(value, key + ".")


def go_names(setting: str) -> str:
    """The Go Pump's names of one of our settings, for the documentation; '' where it has none."""
    for option in OPTIONS:
        if option.setting == setting:
            names = [option.key] if option.key and option.key not in _WITHOUT_NAME else []
            return ", ".join(names + ([f"--{option.flag}"] if option.flag and option.flag != option.key else []))
    return ""
