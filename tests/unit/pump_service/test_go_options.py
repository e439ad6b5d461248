"""The Go Pump's flags, file and variables (row O3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result

from pump_service.command import cli as pump_cli
from pump_service.command.go_options import (
    GoValues,
    duration_s,
    pd_cluster,
    read_environment,
    read_file,
    retention_s,
    size_bytes,
)
from pumphouse.cli import cli
from pumphouse.errors import BinlogError, ConfigError, UsageError
from pumphouse.settings import Settings

pytestmark = pytest.mark.row("O3")

WHOLE = """
addr = "10.0.0.1:8250"
advertise-addr = "pump-1:8250"
gc = "36h"
data-dir = "/srv/pump"
heartbeat-interval = 4
gen-binlog-interval = 5
pd-urls = "http://pd-1:2379, pd-2:2379"
node-id = "n1"
socket = "unix:///run/pump.sock"
log-level = "warn"

[security]
ssl-ca = "/tls/ca.pem"
ssl-cert = "/tls/cert.pem"
ssl-key = "/tls/key.pem"
cert-allowed-cn = ["binlog", "tidb"]

[storage]
sync-log = false
kv_chan_cap = 1000
slow_write_threshold = 1.0
stop-write-at-available-space = "42 mib"

[storage.kv]
block-cache-capacity = 1048576
block-restart-interval = 8
block-size = 8192
compaction-L0-trigger = 8
compaction-table-size = 67108864
compaction-total-size = 536870912
compaction-total-size-multiplier = 8.0
write-buffer = 33554432
write-L0-pause-trigger = 24
write-L0-slowdown-trigger = 17
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`pumphouse pump run`, up to the moment at which the Pump would start: its settings, or the error."""
    monkeypatch.chdir(tmp_path)
    seen: list[Settings] = []
    monkeypatch.setattr(pump_cli, "serve", lambda settings: seen.append(settings) or 0)

    def run(*args: str, before: tuple[str, ...] = ()) -> tuple[Settings, Result]:
        result = CliRunner().invoke(cli, [*before, "pump", "run", *args])
        if isinstance(result.exception, BinlogError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return seen[-1], result

    return run


def go_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pump.toml"
    path.write_text(text)
    return path


def test_every_key_of_the_file_becomes_the_setting_that_means_the_same(tmp_path: Path) -> None:
    values = read_file(go_file(tmp_path, WHOLE))
    assert values.settings == {
        "pump.addr": "10.0.0.1:8250",
        "pump.advertise_addr": "pump-1:8250",
        "pump.retention_s": 36 * 3600,
        "pump.data_dir": "/srv/pump",
        "pump.heartbeat_interval_s": 4,
        "pump.gen_binlog_interval_s": 5,
        "cluster.url": "pd://pd-1:2379,pd-2:2379",
        "pump.node_id": "n1",
        "pump.socket": "unix:///run/pump.sock",
        "log.level": "warn",
        "tls.ca": "/tls/ca.pem",
        "tls.cert": "/tls/cert.pem",
        "tls.key": "/tls/key.pem",
        "tls.cert_allowed_cn": ("binlog", "tidb"),
        "pump.sync_log": False,
        "pump.index_queue_records": 1000,
        "pump.stop_write_at_available_bytes": 42 << 20,
        "pump.index_cache_bytes": 1 << 20,
        "pump.index_block_restart_interval": 8,
        "pump.index_block_bytes": 8192,
        "pump.index_table_bytes": 64 << 20,
        "pump.index_write_buffer_bytes": 32 << 20,
    }
    assert set(values.ignored) == {
        "storage.slow_write_threshold",
        "storage.kv.compaction-L0-trigger",
        "storage.kv.compaction-total-size",
        "storage.kv.compaction-total-size-multiplier",
        "storage.kv.write-L0-pause-trigger",
        "storage.kv.write-L0-slowdown-trigger",
    }
    known = {name for name in values.settings if name != "log.level"}
    assert all(name.partition(".")[2] in getattr(Settings(), name.partition(".")[0]).model_dump() for name in known)


def test_an_unknown_key_is_fatal_in_the_go_pumps_words(tmp_path: Path) -> None:
    path = go_file(tmp_path, 'gc = 3\nretention = 1\n[storage]\nsync = true\n[syncer]\ndb-type = "file"\n')
    with pytest.raises(ConfigError) as error:
        read_file(path)
    assert error.value.message == (
        f"component pump's config file {path} contained unknown configuration options: "
        "retention, storage.sync, syncer, syncer.db-type"
    )


def test_a_file_of_ours_is_told_from_the_go_pumps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config FILE pump run"):
        read_file(go_file(tmp_path, '[pump]\naddr = "x"\n'))
    with pytest.raises(ConfigError, match="is no TOML"):
        read_file(go_file(tmp_path, "gc = = 3"))
    with pytest.raises(ConfigError, match="there is no file"):
        read_file(tmp_path / "nowhere.toml")


def test_empty_texts_and_zeros_of_the_file_say_nothing_as_there(tmp_path: Path) -> None:
    text = 'advertise-addr = ""\nsocket = ""\nheartbeat-interval = 0\npd-urls = ""\n'
    assert read_file(go_file(tmp_path, text)) == GoValues()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(7, 7 * 86400), ("7", 7 * 86400), ("8h", 28800), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), (0, 0)],
)
def test_gc_is_days_or_a_duration(given: Any, seconds: float) -> None:
    assert retention_s(given) == seconds


@pytest.mark.parametrize("text", ["", "8", "h", "8 h", "8h?", "-"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration"):
        duration_s(text)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("42 MB", 42_000_000),
        ("42 mib", 44_040_192),
        ("10 gib", 10 << 30),
        ("10GiB", 10 << 30),
        ("1.5k", 1500),
        ("1,000", 1000),
        (4096, 4096),
        ("0", 0),
    ],
)
def test_sizes_are_written_for_people(given: Any, count: int) -> None:
    assert size_bytes(given) == count


@pytest.mark.parametrize("text", ["", "much", "10 gig", "-1", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size"):
        size_bytes(text)


def test_urls_of_pd_are_a_cluster() -> None:
    assert pd_cluster("http://a:2379,https://b:2380, c:1") == "pd://a:2379,b:2380,c:1"
    for wrong in ("a", "", "http://a", "ftp://a:1", "http://a:x", "http://a:1,"):
        with pytest.raises(ConfigError, match="is no URL of PD"):
            pd_cluster(wrong)


def test_another_cluster_given_as_urls_of_pd_is_told_its_option() -> None:
    with pytest.raises(ConfigError, match=r"--cluster etcd://127\.0\.0\.1:2379/app"):
        pd_cluster("etcd://127.0.0.1:2379/app")


def test_flags_beat_variables_beat_files_beat_defaults(started: Any, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "pumphouse.toml").write_text(
        '[pump]\nqueue_bytes = 2097152\nnode_id = "ours"\n[cluster]\nurl = "file://c"\n'
    )
    path = go_file(tmp_path, 'gc = 3\nnode-id = "file"\nheartbeat-interval = 9\ndata-dir = "f"\naddr = "h:1"\n')
    monkeypatch.setenv("PUMP_NODE_ID", "variable")
    monkeypatch.setenv("PUMP_HEARTBEAT_INTERVAL", "8")
    monkeypatch.setenv("PUMP_DATA_DIR", "e")
    monkeypatch.setenv("PUMPHOUSE_PUMP__ADDR", "ours:2")
    settings, _ = started(
        "--config", str(path), "--node-id", "flag", "-data-dir=d", before=("--set", "pump.node_id=set")
    )
    pump = settings.pump
    assert (pump.node_id, str(pump.data_dir), pump.heartbeat_interval_s) == ("flag", "d", 8)
    assert (pump.retention_s, pump.addr, pump.queue_bytes) == (3 * 86400, "ours:2", 2 << 20)
    assert settings.cluster.url == "file://c"
    assert pump.gen_binlog_interval_s == 3


def test_one_dash_is_as_good_as_two(started: Any) -> None:
    settings, _ = started(
        "-node-id", "n", "-addr=127.0.0.1:0", "-pd-urls", "http://a:1", "-gc=8h", "-L=warn", "-fake-binlog-interval=7",
        "-max-message-size=9223372036850581503", "-metrics-addr", "gw:9091", "-metrics-interval", "0",
    )  # fmt: skip
    pump = settings.pump
    assert (settings.cluster.url, pump.node_id, pump.retention_s) == ("pd://a:1", "n", 8 * 3600)
    assert (pump.gen_binlog_interval_s, pump.max_message_bytes) == (7, (1 << 31) - 1)
    assert (pump.metrics_push_addr, pump.metrics_push_interval_s) == ("gw:9091", 0)


@pytest.mark.parametrize(
    ("level", "lines"),
    [("debug", 5), ("info", 4), ("warn", 3), ("error", 2), ("dpanic", 1), ("panic", 1), ("fatal", 1)],
)
@pytest.mark.parametrize("given", ["flag", "one dash", "file", "variable"])
@pytest.mark.parametrize("cased", [str.lower, str.upper, str.capitalize])
def test_every_level_of_zap_is_taken_in_any_case(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cased: Any, given: str, level: str, lines: int
) -> None:
    before = structlog.get_config()
    args = {"flag": ("--log-level", cased(level)), "one dash": (f"-L={cased(level)}",)}.get(given, ())
    if given == "file":
        args = ("--config", str(go_file(tmp_path, f'log-level = "{cased(level)}"')))
    if given == "variable":
        monkeypatch.setenv("PUMP_L", cased(level))
    try:
        started(*args, "--log-file", "pump.log")
        log = structlog.get_logger()
        for method in (log.debug, log.info, log.warning, log.error, log.critical):
            method("said")
    finally:
        structlog.get_config()["logger_factory"]._file.close()
        structlog.configure(**before)
    assert Path("pump.log").read_text().count('"said"') == lines


def test_an_empty_level_says_nothing(started: Any) -> None:
    assert started("-L=")[0] == started()[0]


def test_flags_that_mean_nothing_are_accepted_and_named_in_the_log(started: Any) -> None:
    flags = ("--binlog-file-size=1", "--enable-binlog-slice", "--binlog-slice-size", "2", "-log-rotate=hour")
    _, result = started(*flags, "--enable-debug=true", "--log-file", "pump.log")
    line = Path("pump.log").read_text()
    structlog.get_config()["logger_factory"]._file.close()
    structlog.reset_defaults()
    for name in (
        "--binlog-file-size",
        "--enable-binlog-slice",
        "--binlog-slice-size",
        "--log-rotate",
        "--enable-debug",
    ):
        assert name in line
    assert "options_ignored" in line
    assert result.stdout == ""


def test_a_go_file_without_pd_means_the_pd_of_this_machine_unless_a_cluster_is_set(
    started: Any, tmp_path: Path
) -> None:
    path = go_file(tmp_path, "gc = 3\n")
    assert started("--config", str(path))[0].cluster.url == "pd://127.0.0.1:2379"
    assert started()[0].cluster.url == "file://./build/cluster"
    assert started("--config", str(path), "--cluster", "file://x")[0].cluster.url == "file://x"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--gc", "0"), "retention_s"),
        (("--gc", "soon"), "is no duration"),
        (("--advertise-addr", "0.0.0.0:8250"), "invalid advertiseAddr host"),
        (("--heartbeat-interval", "often"), "--heartbeat-interval: 'often' is no number"),
        (("--pd-urls", "https://a:1"), "no CA is known"),
    ],
)
def test_a_value_that_cannot_be_is_named(started: Any, args: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        started(*args)


def test_two_flags_for_one_thing_are_refused_and_a_wrong_level_of_a_variable_too(started: Any, monkeypatch) -> None:
    with pytest.raises(UsageError, match="--cluster and --pd-urls"):
        started("--cluster", "file://x", "--pd-urls", "http://a:1")
    monkeypatch.setenv("PUMP_L", "loud")
    assert read_environment({"PUMP_L": "loud"}).settings == {"log.level": "loud"}
    with pytest.raises(ConfigError, match="no log level 'loud'"):
        started()


@pytest.mark.parametrize("flag", ["-h", "-help", "--help"])
def test_help_is_printed_for_every_flag_that_go_takes_for_it(flag: str) -> None:
    for result in (CliRunner().invoke(cli, ["pump", "run", flag]), CliRunner().invoke(pump_cli.main, [flag])):
        assert result.exit_code == 0
        assert "--pd-urls" in result.output


def test_the_version_is_shown_for_the_short_flag() -> None:
    result = CliRunner().invoke(cli, ["pump", "run", "-V"])
    assert result.exit_code == 0
    assert result.output.startswith("pumphouse pump")
