"""Settings: where they come from, and what a typo says."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from pumphouse.errors import ConfigError
from pumphouse.settings import Settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_command_line_beats_environment_beats_file_beats_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pumphouse.toml").write_text(
        '[pump]\nheartbeat_interval_s = 5\ngc_interval_s = 6\nretention_s = 7\n[schema]\nhistory = "x"\n'
    )
    monkeypatch.setenv("PUMPHOUSE_PUMP__GC_INTERVAL_S", "8")
    monkeypatch.setenv("PUMPHOUSE_PUMP__RETENTION_S", "9")
    settings = Settings.read(overrides={"pump.retention_s": "10"})
    assert settings.pump.heartbeat_interval_s == 5
    assert settings.pump.gc_interval_s == 8
    assert settings.pump.retention_s == 10
    assert settings.pump.gen_binlog_interval_s == 3
    assert settings.history.history == "x"


def test_a_typo_names_the_setting_and_the_nearest_known_one(tmp_path: Path) -> None:
    (tmp_path / "pumphouse.toml").write_text("[pump]\nheartbeat_intervall_s = 5\n")
    with pytest.raises(ConfigError, match=r"pump\.heartbeat_intervall_s.*did you mean 'heartbeat_interval_s'"):
        Settings.read()


def test_a_typo_in_a_section_or_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMPHOUSE_PUMPP__ADDR", "x")
    with pytest.raises(ConfigError, match="pumpp"):
        Settings.read()


def test_a_wrong_value_is_named_but_not_shown(tmp_path: Path) -> None:
    (tmp_path / "pumphouse.toml").write_text('[target]\nport = "hunter2"\n')
    with pytest.raises(ConfigError, match=r"target\.port") as caught:
        Settings.read()
    assert "hunter2" not in str(caught.value)


@pytest.mark.row("O2")
@pytest.mark.parametrize(
    "text",
    [
        "[target]\npassword = 48151623\n",
        '[target]\npasword = "48151623"\n',
        "[targets.dr]\npassword = 48151623\n",
        '[kafka]\nsasl_username = "u"\nsasl_password = "48151623"\n',
        '[cluster]\noperator_token = "48151623"\n',
        '[archive]\ns3_secret_key = "48151623"\ncopy_s3_endpoint = "http://x"\n',
    ],
)
def test_no_traceback_shows_a_value_that_is_refused(tmp_path: Path, text: str) -> None:
    """As Airflow shows that of a DAG which cannot be imported, and a job of Spark its own."""
    (tmp_path / "pumphouse.toml").write_text(text)
    for read in (Settings.read, lambda: Settings.read_only("archive", "target", "targets", "kafka", "cluster")):
        with pytest.raises(ConfigError) as caught:
            read()
        assert caught.value.__cause__ is not None
        assert "48151623" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.row("O2")
def test_the_file_is_utf_8_whatever_the_locale_is(tmp_path: Path) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "pumphouse.toml").write_bytes(mark + '[target]\npassword = "pä泵"\n'.encode())
        code = (
            "from pumphouse.settings import Settings; print(ascii(Settings.read().target.password.get_secret_value()))"
        )
        done = subprocess.run(
            [sys.executable, "-X", "utf8=0", "-c", code],
            env=os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("'p\\xe4\\u6cf5'\n", "")


@pytest.mark.row("O2")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pumphouse.toml"
    path.write_bytes('[target]\nuser = "jürgen"\n'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"pumphouse\.toml is no TOML: .*utf-8"):
        Settings.read()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: os.open(tmp_path, os.O_WRONLY))  # root may read anything
    with pytest.raises(ConfigError, match=r"pumphouse\.toml cannot be read: Is a directory"):
        Settings.read()


_TWO_SERVERS = """
[archive]
root = "s3://pumphouse/archive"
s3_endpoint = "http://here:9000"
copy_root = "s3://pumphouse/archive"
copy_s3_region = "us-east-1"
copy_s3_endpoint = "http://there:9000"
"""


@pytest.mark.row("A5", "O2")
def test_a_place_that_is_archive_and_copy_is_reached_as_the_copy(tmp_path: Path) -> None:
    """It was promoted, or a command line names it to read from."""
    path = tmp_path / "pumphouse.toml"
    path.write_text(_TWO_SERVERS)
    assert Settings.read().archive.s3.endpoint == "http://there:9000"
    elsewhere = {"archive.root": "s3://pumphouse-2/archive"}
    assert Settings.read(overrides=elsewhere).archive.s3.endpoint == "http://here:9000"


def test_a_value_log_file_is_not_larger_than_a_pointer_reaches(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    for size, taken in ((1 << 39, True), ((1 << 39) + 1, False)):
        path.write_text(f"[pump]\nvalue_log_file_bytes = {size}\n")
        if taken:
            assert Settings.read(path).pump.value_log_file_bytes == size
        else:
            with pytest.raises(ConfigError, match=r"pump\.value_log_file_bytes"):
                Settings.read(path)


def test_a_missing_named_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        Settings.read(tmp_path / "nowhere.toml")


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMPHOUSE_TARGET__PASSWORD", "hunter2")
    settings = Settings.read()
    assert settings.target.password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in settings.model_dump_json()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("PUMPHOUSE_ARCHIVE_ROOT", "PUMPHOUSE_ARCHIVE__ROOT"),
        ("PUMPHOUSE_RESTORE_TARGET_HOST", "PUMPHOUSE_RESTORE_TARGET__HOST"),
        ("PUMPHOUSE_PUMP_DATADIR", "PUMPHOUSE_PUMP__DATA_DIR"),
    ],
)
def test_one_underscore_instead_of_two_is_refused_with_the_right_name(
    monkeypatch: pytest.MonkeyPatch, wrong: str, right: str
) -> None:
    monkeypatch.setenv(wrong, "x")
    monkeypatch.setenv("PUMPHOUSE_DEBUG", "1")  # not a setting of any section
    with pytest.raises(ConfigError, match=right):
        Settings.read()


def test_labels_are_a_table_or_one_line_of_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pumphouse.toml").write_text('[pump]\nlabels = {zone = "a", rack = "7"}\n')
    assert Settings.read().pump.labels == {"zone": "a", "rack": "7"}
    monkeypatch.setenv("PUMPHOUSE_PUMP__LABELS", "zone=b, rack=8,")
    assert Settings.read().pump.labels == {"zone": "b", "rack": "8"}
    monkeypatch.setenv("PUMPHOUSE_PUMP__LABELS", "zone")
    with pytest.raises(ConfigError, match="zone=a,rack=7"):
        Settings.read()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("client", ("client",)),
        ("binlog, tidb", ("binlog", "tidb")),
        ('["client"]', ("client",)),
        ('["Smith, J", "tidb"]', ("Smith, J", "tidb")),
        ("[]", ()),
    ],
)
def test_names_of_clients_are_a_list_or_one_line_of_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, names: tuple[str, ...]
) -> None:
    (tmp_path / "pumphouse.toml").write_text('[tls]\nca = "ca.pem"\ncert_allowed_cn = ["of the file"]\n')
    monkeypatch.chdir(tmp_path)
    assert Settings.read(overrides={"tls.cert_allowed_cn": text}).tls.cert_allowed_cn == names
    monkeypatch.setenv("PUMPHOUSE_TLS__CERT_ALLOWED_CN", text)
    assert Settings.read().tls.cert_allowed_cn == names


@pytest.mark.parametrize("text", ["", " ", ",", "a,,b", '["a"', '["a", ""]', "[1]"])
def test_names_of_clients_that_came_out_empty_do_not_let_everybody_in(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tls\.cert_allowed_cn.*none as \[\]"):
        Settings.read(overrides={"tls.cert_allowed_cn": text})


def test_a_settings_file_that_the_environment_names_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUMPHOUSE_CONFIG", str(tmp_path / "nope.toml"))
    with pytest.raises(ConfigError, match=r"there is no settings file .*nope\.toml") as refused:
        Settings.read()
    assert "PUMPHOUSE_CONFIG" in refused.value.hint


@pytest.mark.parametrize("name", ["cert", "key", "cert_allowed_cn"])
def test_a_part_of_tls_without_its_ca_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"tls.{name} is set and tls.ca is not"):
        Settings.read(overrides={f"tls.{name}": "x"})
