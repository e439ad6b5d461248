"""What a session is made with; the sessions themselves are in tests/integration/test_spark_cluster.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from pumphouse.errors import ConfigError, SparkUnavailable
from pumphouse.settings import Settings, SparkSettings
from spark_tasks.jobs import load, restore
from spark_tasks.session import build_session, options_of

LOOPBACK_MASTER = "spark://127.0.0.1:7077"
SECRET = SecretStr("s")


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)


@pytest.mark.row("O4")
def test_a_master_that_is_none_or_does_not_listen_is_named_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"spark\.master.*no Spark master; there are: local\[N\], spark://host:port"
    ) as no:
        Settings.read(None, {"spark.master": " sc://h:15002/;token=hunter2"})
    assert "hunter2" not in str(no.value)
    for master in ("local", "local[*]", "local[2]", "yarn", "k8s://h:6443", "sc://h", "spark://a:1,b:2"):
        assert SparkSettings(master=master).master == master
    with pytest.raises(SparkUnavailable, match=r"spark://127\.0\.0\.1:1,127\.0\.0\.1:2 does not answer.*load\.engine"):
        build_session("t", SparkSettings(master="spark://127.0.0.1:1,127.0.0.1:2", secret=SECRET))


@pytest.mark.row("O4")
def test_a_session_that_no_setting_of_this_process_can_begin_is_not_tried_again() -> None:
    session = "SparkSettings(master='local[1]', driver_memory='4x')"
    text = f"from pumphouse.settings import *; from spark_tasks.session import *; build_session('t', {session})"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "errors.LoadError: Spark begins no session at local[1]: " in last
    assert "spark.driver_memory" in last


def test_what_submit_was_told_beats_the_settings_and_those_beat_ours() -> None:
    settings = SparkSettings(
        master="local[2]",
        secret=SECRET,
        conf={"spark.task.maxFailures": "7", "spark.executor.memory": "3g", "spark.ui.enabled": "true"},
    )
    found = options_of(settings, {"spark.master": LOOPBACK_MASTER, "spark.executor.memory": "5g"})
    assert found["spark.master"] == LOOPBACK_MASTER
    assert found["spark.executor.memory"] == "5g"
    assert found["spark.task.maxFailures"] == "7"
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("given", "variable", "host", "bind"),
    [
        ({"spark.driver.host": "127.0.0.1"}, "", "127.0.0.1", "127.0.0.1"),
        ({"spark.driver.host": "localhost"}, "", "localhost", "0.0.0.0"),
        ({}, "", "127.0.0.1", "127.0.0.1"),
        ({}, "0.0.0.0", "127.0.0.1", "127.0.0.1"),
        ({}, "127.0.0.5", "127.0.0.5", "127.0.0.5"),
        ({"spark.driver.host": "outside"}, "", "outside", "0.0.0.0"),
        ({"spark.driver.host": "outside", "spark.driver.bindAddress": "10.0.0.9"}, "", "outside", "10.0.0.9"),
    ],
)
def test_the_drivers_address_is_one_that_executors_can_call(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], variable: str, host: str, bind: str
) -> None:
    if variable:
        monkeypatch.setenv("SPARK_LOCAL_IP", variable)
    found = options_of(SparkSettings(master=LOOPBACK_MASTER, secret=SECRET, conf=given), {})
    assert (found["spark.driver.host"], found["spark.driver.bindAddress"]) == (host, bind)


@pytest.mark.parametrize(
    ("conf", "secret", "found"),
    [
        ({}, "s3cret", ("true", "s3cret")),
        ({"spark.authenticate": "false"}, "", ("false", None)),
        ({"spark.authenticate": "true", "spark.authenticate.secret": "own"}, "", ("true", "own")),
    ],
)
def test_whoever_calls_a_driver_on_a_network_proves_a_secret(
    conf: dict[str, str], secret: str, found: tuple[str, str | None]
) -> None:
    options = options_of(SparkSettings(master=LOOPBACK_MASTER, secret=SecretStr(secret), conf=conf), {})
    assert (options["spark.authenticate"], options.get("spark.authenticate.secret")) == found


def test_a_standalone_master_without_a_secret_is_refused_by_name_and_others_have_their_own() -> None:
    with pytest.raises(ConfigError, match=r"spark\.secret is not set.*spark\.authenticate\.secret"):
        options_of(SparkSettings(master=LOOPBACK_MASTER), {})
    assert options_of(SparkSettings(master="yarn"), {})["spark.authenticate"] == "true"
    assert "spark.authenticate" not in options_of(SparkSettings(master="local[2]"), {})


@pytest.mark.parametrize("master", ["spark://no.such.host.invalid:7077", "spark://host", "spark://host:port"])
def test_a_master_that_cannot_be_found_is_named(master: str) -> None:
    with pytest.raises(ConfigError, match="cannot be found"):
        options_of(SparkSettings(master=master), {})


def test_the_package_comes_beside_the_users_archives(tmp_path: Path) -> None:
    package = tmp_path / "p.zip"
    settings = SparkSettings(
        master=LOOPBACK_MASTER, secret=SECRET, package=package, conf={"spark.archives": "env.tar.gz#env"}
    )
    with pytest.raises(ConfigError, match=r"p\.zip.*spark package --output"):
        options_of(settings, {})
    package.write_bytes(b"")
    assert options_of(settings, {})["spark.archives"] == f"env.tar.gz#env,{package}#pumphouse-code"
    assert "spark.archives" not in options_of(settings.model_copy(update={"master": "local[2]", "conf": {}}), {})


def test_settings_of_spark_are_a_free_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "p.toml"
    config.write_text('[spark.conf]\nspark.executor.memory = "4g"\n"spark.cores.max" = 2\nspark.ui.enabled = true\n')
    expected = {"spark.executor.memory": "4g", "spark.cores.max": "2", "spark.ui.enabled": "true"}
    assert Settings.read(config).spark.conf == expected
    monkeypatch.setenv("PUMPHOUSE_SPARK__CONF", '{"spark.cores.max": "9"}')
    assert Settings.read(config).spark.conf == {"spark.cores.max": "9"}
    for wrong in ("executor.memory=4g", '{"executor.memory": "4g"}'):
        with pytest.raises(ConfigError, match=r"spark\.conf.*spark\."):
            Settings.read(config, {"spark.conf": wrong})


@pytest.mark.parametrize("job", [load, restore])
def test_jobs_say_how_they_are_called(job: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        job.main(["--help"])  # type: ignore[attr-defined]
    assert ended.value.code == 0
    assert "--run-id" in capsys.readouterr().out
