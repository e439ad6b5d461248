"""docker-compose.yaml against the code, without containers: every command is run with --help here, every path, port,
variable and setting is held against what reads it. `make test-compose` runs the file itself.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from deploy.containers import DATABASE_URL, PASSWORDS, connections, secrets
from pumphouse.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yaml").read_text()
DOCKERFILES = {"pumphouse-batch": ROOT / "Dockerfile", "pumphouse-pump": ROOT / "pump_service" / "Dockerfile"}
# What the images of others listen on without being told.
DEFAULT_PORTS = {
    "minio": {9000},
    "postgres": {5432},
    "mariadb": {3306},
    "prometheus": {9090},
    "grafana": {3000},
    "tidb": {4000, 10080},
}
SCHEDULER_HEALTH = 8974


def _filled(value: Any) -> Any:
    """Variables as they are when nobody sets one."""
    if isinstance(value, dict):
        return {name: _filled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each) for each in value]
    return re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", value) if isinstance(value, str) else value


FILE: dict[str, Any] = _filled(yaml.safe_load(TEXT))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"] in DOCKERFILES}


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in service.get("environment", {}).items()}


def _image_environment(image: str) -> dict[str, str]:
    text = DOCKERFILES[image].read_text().replace("\\\n", " ")
    return dict(
        word.split("=", 1) for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for word in shlex.split(line)
    )


def _here(image: str, command: list[str]) -> list[str]:
    """A container's command line as it is run in this virtual environment."""
    if image == "pumphouse-pump":
        entry = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILES[image].read_text(), re.MULTILINE)
        assert entry
        command = [*json.loads(entry[1]), *command]
    if command[0] == "python":
        return [sys.executable, *command[1:]]
    return [str(Path(sys.executable).parent / command[0]), *command[1:]]


def _commands() -> dict[str, tuple[str, list[str]]]:
    found = {name: (each["image"], each["command"]) for name, each in OURS.items()}
    checks = {
        f"{name}: health": (each["image"], each["healthcheck"]["test"][1:])
        for name, each in OURS.items()
        if "healthcheck" in each
    }
    distinct: dict[str, tuple[str, list[str]]] = {}
    for name, (image, command) in (found | checks).items():
        if "-c" not in command and (image, command) not in distinct.values():
            distinct[name] = (image, command)
    return distinct


COMMANDS = _commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_knows_its_options(name: str, tmp_path: Path) -> None:
    image, command = COMMANDS[name]
    line = _here(image, command)
    paths = os.pathsep.join(
        str(ROOT / each.removeprefix("/app").lstrip("/")) for each in _image_environment(image)["PYTHONPATH"].split(":")
    )
    from spark_tasks.java import java_home

    # Help stands where the options do: behind the words that name what is run.
    first = next((at for at, word in enumerate(line) if at > 2 and (word.startswith("--") or "://" in word)), len(line))
    done = subprocess.run(
        [*line[:first], "--help"],
        env=os.environ
        | {
            "PYTHONPATH": paths,
            "AIRFLOW_HOME": str(tmp_path),
            "JAVA_HOME": str(java_home()),
            "COLUMNS": "200",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-2000:]
    assert re.search("usage", said, re.IGNORECASE), "it said nothing: does it run at all?"
    for word in line[first:]:
        if word.startswith("--"):
            assert word in said, f"{word} is no option of it"


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_read_by_somebody(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets(type("Options", (), {"directory": tmp_path, "own": []})())
    for each in list(os.environ):
        if each.startswith("PUMPHOUSE_"):
            monkeypatch.delenv(each)
    found = environment(OURS[name])
    for variable, value in found.items():
        if variable.startswith("PUMPHOUSE_"):
            here = value.replace("/run/pumphouse/", f"{tmp_path}/") if variable.endswith("_FILE") else value
            if variable.endswith("_FILE"):
                assert value.startswith("/run/pumphouse/"), variable
                assert Path(here).is_file(), f"{variable}: nobody makes {value}"
            monkeypatch.setenv(variable, here)
    monkeypatch.chdir(tmp_path)
    settings = Settings.read()
    if "PUMPHOUSE_TARGET__HOST" in found:
        for server in (settings.target, settings.restore_target, settings.source):
            assert server.host in SERVICES
            assert server.password.get_secret_value() == (tmp_path / server.host / "password").read_text()
        made = connections(settings)
        assert made["pumphouse_restore"]["password"] != made["pumphouse_downstream"]["password"]
        assert (made["pumphouse_source"]["conn_type"], made["pumphouse_source"]["host"]) == (
            "pumphouse_source",
            "source",
        )
    shop = (ROOT / "deploy" / "shop" / "server.py").read_text()
    for variable in found:
        if variable == "COMPOSE_PROFILES":
            assert name == "archive-begin"  # deploy.containers begin
        elif variable.startswith("SHOP_"):
            assert f'environ.get("{variable}"' in shop, variable
        else:
            assert variable.startswith(("PUMPHOUSE_", "AIRFLOW__")), variable


def test_every_setting_of_airflow_is_known_and_secrets_come_by_file() -> None:
    from airflow.configuration import conf

    found = environment(SERVICES["airflow-api"])
    known = conf.configuration_description
    for variable, value in found.items():
        if not variable.startswith("AIRFLOW__"):
            continue
        section, _, name = variable.removeprefix("AIRFLOW__").lower().partition("__")
        if name.endswith("_cmd"):
            name = name.removesuffix("_cmd")
            assert (section, name) in conf.sensitive_config_values, f"{variable}: Airflow reads no command for it"
            assert value.startswith("cat /run/pumphouse/")
        assert name in known[section]["options"], variable
    for folder in ("DAGS", "PLUGINS"):
        assert (ROOT / found[f"AIRFLOW__CORE__{folder}_FOLDER"].removeprefix("/app/")).is_dir()


@pytest.mark.row("W6")
def test_no_password_is_in_the_file() -> None:
    for name, service in SERVICES.items():
        for variable, value in environment(service).items():
            if re.search("PASSWORD|SECRET|_KEY", variable) and not re.search("ACCESS_KEY|PASSWORDS_FILE", variable):
                assert value.startswith(("/run/pumphouse/", "cat /run/pumphouse/")), f"{name}: {variable}"
                made = {f"{each}/password" for each in PASSWORDS} | {
                    f"airflow/{n}" for n in ("fernet", "key", "database")
                }
                made |= {"spark/secret"}
                assert value.rpartition("/run/pumphouse/")[2] in made, f"{name}: {variable}: nobody makes {value}"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is published on every address"


@pytest.mark.row("O5")
def test_a_source_that_was_there_before_brings_its_password_and_one_without_has_none(tmp_path: Path) -> None:
    options = type("Options", (), {"directory": tmp_path, "own": []})()
    secrets(options)
    made = (tmp_path / "source" / "password").read_text()
    (tmp_path / "given").mkdir()
    given = tmp_path / "given" / "source"
    given.symlink_to("/dev/null")  # what the file mounts where nobody gives one
    secrets(options)
    assert (tmp_path / "source" / "password").read_text() == made
    given.unlink()
    for text in ("of db.example.com\n", "another\n", ""):
        given.write_text(text)
        secrets(options)
        assert (tmp_path / "source" / "password").read_text() == text.strip()


@pytest.mark.row("O5")
def test_every_service_ends_its_log_somewhere() -> None:
    for name, service in SERVICES.items():
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name


@pytest.mark.row("W6", "O5")
@pytest.mark.parametrize("name", [name for name in SERVICES if name != "secrets"])
def test_a_service_gets_the_secrets_that_it_names_and_no_other(name: str) -> None:
    service = SERVICES[name]
    mounts = [mount.split(":") for mount in service.get("volumes", ()) if "/run/pumphouse" in mount]
    assert all(volume == f"secret-{Path(target).name}" and mode == "ro" for volume, target, mode in mounts)
    words = " ".join([*environment(service).values(), *service.get("command", ())])
    named = set(re.findall(r"/run/pumphouse/(\w+)/", words))
    # The login of the UI is a file that `airflow-begin` makes of it, and that an operator reads in `airflow-api`.
    beyond = {"admin"} if name.startswith("airflow-") else {"spark"} if name == "spark-connect" else set()
    assert {Path(target).name for _, target, _ in mounts} - beyond == named - beyond


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_watched_and_not_root(name: str) -> None:
    service = SERVICES[name]
    once = [each["depends_on"][name]["condition"] for each in SERVICES.values() if name in each.get("depends_on", {})]
    if "service_completed_successfully" in once:
        assert set(once) == {"service_completed_successfully"}
    else:
        assert service["healthcheck"]["test"], "no health check"
        assert service["restart"] == "unless-stopped"
    for other, wish in service.get("depends_on", {}).items():
        assert other in SERVICES
        assert wish["condition"] == "service_completed_successfully" or "healthcheck" in SERVICES[other], other
        profiles = set(SERVICES[other].get("profiles", ()))
        assert not profiles or profiles & set(service.get("profiles", ())), f"{other} is not there without its profile"
    if service["image"] in DOCKERFILES:
        text = DOCKERFILES[service["image"]].read_text()
        assert text.rstrip().rfind("\nUSER pumphouse") > 0
        assert re.search(r"^FROM \S+:\d+\.\d+\.\d+-\S+$", text, re.MULTILINE)
        for mount in service.get("volumes", ()):
            volume, target = mount.split(":")[:2]
            assert volume in FILE["volumes"] or volume == "/dev/null"
            if not mount.endswith(":ro") and name != "secrets":
                assert re.search(rf"install -d .*\s{target}\s", text), f"{target} would belong to root"
    else:
        assert re.search(r":\D*\d+\.\d+|:RELEASE\.\d{4}", service["image"]), "not pinned"
        if not set(service.get("profiles", ())) & {"monitoring", "tidb"}:
            assert service["user"] not in ("root", "0")


def _listens_on(name: str) -> set[int]:
    service = SERVICES[name]
    image = service["image"].rpartition("/")[2].partition(":")[0]
    words = " ".join([*service.get("command", ()), environment(service).get("PUMPHOUSE_PUMP__ADVERTISE_ADDR", "")])
    found = DEFAULT_PORTS.get(image, set()) | {
        int(port) for port in re.findall(r"(?:--(?:webui-)?port |:)(\d+)\b", words)
    }
    return found | ({SCHEDULER_HEALTH} if name == "airflow-scheduler" else set())


def test_every_address_is_a_service_and_a_port_that_it_listens_on() -> None:
    seen = 0
    urls = [DATABASE_URL.format("x")]
    for name, service in SERVICES.items():
        words = [
            *environment(service).values(),
            *service.get("command", ()),
            *service.get("healthcheck", {}).get("test", ()),
        ]
        for word in words:
            for url in re.findall(r"\b[a-z+]+://[^\s'\"]+", word):
                host = urlsplit(url).hostname
                if host == "127.0.0.1":
                    assert urlsplit(url).port in _listens_on(name), f"{name}: {url}"
                elif host and host != "0.0.0.0":
                    urls.append(url)
        for port in service.get("ports", ()):
            assert int(port.rpartition(":")[2]) in _listens_on(name), f"{name}: {port}"
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme in ("http", "mysql", "spark"):
            assert parts.hostname in SERVICES, url
            assert parts.port in _listens_on(parts.hostname), url
            seen += 1
    assert seen > 6
    for scrape in yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())["scrape_configs"]:
        for target in scrape["static_configs"][0]["targets"]:
            host, _, port = target.partition(":")
            assert int(port) in _listens_on(host)


@pytest.mark.row("P14", "O5")
@pytest.mark.parametrize("board", [*(ROOT / "deploy/grafana/dashboards").glob("*.json")], ids=lambda path: path.stem)
def test_a_dashboard_shows_metrics_that_there_are(board: Path) -> None:
    metric = r"\b((?:binlog_pump|pumphouse)_\w+)"
    known = set(re.findall(f"`{metric}`", (ROOT / "docs" / "metrics.md").read_text()))
    panels = json.loads(board.read_text())["panels"]
    shown = {name for panel in panels for each in panel["targets"] for name in re.findall(metric, each["expr"])}
    assert shown
    assert {re.sub("_(bucket|count|sum)$", "", each) for each in shown - known} <= known


def test_profiles_and_files_named_are_there() -> None:
    assert "COMPOSE_PROFILES=demo" in (ROOT / ".env").read_text()
    assert {p for each in SERVICES.values() for p in each.get("profiles", ())} == {
        "demo",
        "monitoring",
        "tidb",
        "connect",
        "capture",
    }
    variables = set(re.findall(r"\$\{(\w+)", TEXT)) | {"COMPOSE_PROFILES"}
    for path in (ROOT / "deploy").glob("*.env"):
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                assert line.partition("=")[0] in variables, path
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            if mount.startswith("./"):
                assert (ROOT / mount.partition(":")[0]).exists(), mount
