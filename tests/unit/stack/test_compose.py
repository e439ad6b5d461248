"""docker-compose.yaml says what it must; there is no container engine in the tests, so it is read, not run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pumphouse.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())


@pytest.mark.row("O5")
def test_every_part_of_the_product_is_a_service() -> None:
    assert {"minio", "mariadb", "pump-1", "pump-2", "airflow", "spark-master", "spark-worker"} <= set(
        COMPOSE["services"]
    )


def test_everything_listens_on_the_loopback_only() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_services_need_exists() -> None:
    for name, service in COMPOSE["services"].items():
        build = service.get("build")
        if build:
            assert (ROOT / build["dockerfile"]).is_file(), name
        wanted = service.get("depends_on") or {}
        assert set(wanted) <= set(COMPOSE["services"]), name
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in COMPOSE["volumes"], name


def test_settings_in_the_environment_are_settings_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for service in COMPOSE["services"].values():
        names = {k: v for k, v in (service.get("environment") or {}).items() if k.startswith("PUMPHOUSE_")}
        for name, value in names.items():
            monkeypatch.setenv(name, str(value))
        Settings.read()
        for name in names:
            monkeypatch.delenv(name)
