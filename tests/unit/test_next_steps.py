"""Errors that a new user meets first say what to do next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pumphouse.errors import (
    ConfigError,
    HistoryUnavailable,
    StoreError,
    StoreUnavailable,
    TargetUnavailable,
    UsageError,
    naming,
)
from pumphouse.loader.needs import needs_of
from pumphouse.loader.target import TargetConnection
from pumphouse.model.moment import parse_time
from pumphouse.model.tso import Tso
from pumphouse.objectstore.open import open_store
from pumphouse.schema.history import open_history
from pumphouse.settings import ArchiveSettings, SchemaSettings, TargetSettings


def test_a_target_that_is_not_there_names_the_settings() -> None:
    with pytest.raises(TargetUnavailable, match=r"is it running\? check host, port or unix_socket in \[target\]"):
        TargetConnection.open(TargetSettings(host="127.0.0.1", port=1))


def test_an_error_of_another_target_names_that_one_and_not_the_one_of_the_run() -> None:
    server = TargetSettings(host="127.0.0.1", port=1)
    for section in ("target", "targets.us"):
        with pytest.raises(TargetUnavailable) as refused, naming("eu"), naming("target"):
            TargetConnection.open(server, section=section)
        assert refused.value.hint == f"is it running? check host, port or unix_socket in [{section}]"
    with pytest.raises(TargetUnavailable) as refused, naming("eu"):
        TargetConnection.open(server, section="target")  # as a run calls the one that it aims at
    assert refused.value.hint.endswith("in [targets.eu]")


def test_a_server_that_does_not_say_what_it_needs_has_the_way_out_of_its_own_trouble() -> None:
    away = {"host": "127.0.0.1", "port": 1}
    (held,) = needs_of("eu", TargetSettings(**away, tls_ca=Path("/nowhere.pem")), 1)
    assert held.hint.startswith("correct the path in the settings; or let go")
    (held,) = needs_of("eu", TargetSettings(**away), 1)
    assert held.hint.startswith("is it running? ")
    assert "[target]" not in held.hint


def test_a_history_that_is_down_names_its_setting() -> None:
    for url in ("http://127.0.0.1:1", "mysql://root@127.0.0.1:1/s.t"):
        history = open_history(SchemaSettings(history=url))
        assert history is not None
        with pytest.raises(HistoryUnavailable, match=r"schema\.history"):
            list(history.jobs())


def test_an_s3_archive_without_keys_names_both_ways_to_give_them(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store(ArchiveSettings(root="s3://bucket/prefix", s3_endpoint="http://127.0.0.1:1"))
    with pytest.raises(StoreError, match=r"archive\.s3_access_key and archive\.s3_secret_key.*AWS_ACCESS_KEY_ID"):
        store.get("genesis.json")


def test_an_s3_server_that_is_down_names_its_setting() -> None:
    settings = {"root": "s3://b/p", "s3_endpoint": "http://127.0.0.1:1", "s3_access_key": "a", "s3_secret_key": "s"}
    with pytest.raises(StoreUnavailable, match=r"check archive\.s3_endpoint"):
        open_store(ArchiveSettings.model_validate(settings)).get("genesis.json")


def pumphouse(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command as somebody types it in a directory."""
    call = [sys.executable, "-c", "from pumphouse.cli import main; main()", *args]
    return subprocess.run(call, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.row("O3")
@pytest.mark.parametrize(
    "args",
    [
        ("pumps",),
        ("archive", "init"),
        ("snapshot",),
        ("gc",),
        ("tso",),
        ("pump", "run"),
        ("status",),
    ],
)
def test_in_a_directory_without_settings_nothing_is_made_and_the_file_that_was_looked_for_is_named(
    tmp_path: Path, args: tuple[str, ...]
) -> None:
    done = pumphouse(tmp_path, *args)
    assert done.returncode == (4 if args == ("status",) else 2), done.stderr
    said = done.stdout + done.stderr
    assert "there is no cluster at" in said
    assert f"there is no {tmp_path}/pumphouse.toml" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("R7")
@pytest.mark.parametrize("args", [("ls",), ("verify",), ("show", "genesis")])
def test_what_only_reads_an_archive_asks_for_no_cluster_and_names_the_root_and_the_file(
    tmp_path: Path, args: tuple[str, ...]
) -> None:
    done = pumphouse(tmp_path, "archive", *args)
    assert done.returncode == 2, done.stderr
    assert f"there is no archive at file://{tmp_path}/build/archive" in done.stderr
    assert f"there is no {tmp_path}/pumphouse.toml" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_option_of_diff_that_an_archive_does_not_have_is_refused_with_the_way_to_every_row(tmp_path: Path) -> None:
    for option in (("--first", "5"), ("--connections", "1"), ("--fix-sql", "fix.sql"), ("--no-views",)):
        said = pumphouse(tmp_path, "diff", "--archive-at", "latest", "--target", "source", *option)
        assert said.returncode == 2
        assert f"with --archive-at, {option[0]} has no meaning" in said.stderr
        assert "pumphouse diff --source restore_target --target source --fix-sql FILE" in said.stderr


def test_an_error_is_one_sentence_and_its_stack_is_shown_to_who_asks(tmp_path: Path) -> None:
    # A directory where a file should be: an error that nobody foresaw.
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "cluster.json").write_text("{}")
    args = ("--cluster", f"file://{tmp_path}/cluster", "pumps")
    done = pumphouse(tmp_path, *args)
    assert done.returncode == 1
    assert done.stderr.startswith("pumphouse: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" in pumphouse(tmp_path, "--log-level", "debug", *args).stderr


def test_a_time_that_cannot_be_read_says_what_a_time_without_a_zone_means() -> None:
    with pytest.raises(UsageError, match="UTC where no zone is given"):
        parse_time("tomorrow", lambda: Tso(0))
    without, with_zone = (parse_time(f"2026-11-21T07:30:00{zone}", lambda: Tso(0)).ts for zone in ("", "Z"))
    assert without == with_zone


@pytest.mark.parametrize(
    "url",
    [
        "mysql://root:s3cr3t@127.0.0.1:1/schema_only",
        "mysql://root:s3cr3t@127.0.0.1:1/s.t",
        "mysql://root:s3cr3t@127.0.0.1:port/s.t",
        "http://user:s3cr3t@127.0.0.1:1",
        "ftp://user:s3cr3t@127.0.0.1/x",
    ],
)
def test_a_password_in_the_url_of_the_history_is_in_no_error(url: str) -> None:
    with pytest.raises((ConfigError, HistoryUnavailable)) as refused:
        list(open_history(SchemaSettings(history=url)).jobs())  # type: ignore[union-attr]
    assert "s3cr3t" not in f"{refused.value} {refused.value.facts}"
