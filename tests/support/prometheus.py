"""A real Prometheus with the rules of deploy/, for tests."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from pumphouse.status.exposition import serve
from pumphouse.status.report import Status
from tests.stack.ports import free_port
from tests.stack.system import find_program
from tests.support.waiting import eventually

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


class Prometheus:
    """One that scrapes a Pump and an exporter each second; `value` evaluates an expression."""

    def __init__(self, folder: Path, target: str, exporter: str) -> None:
        program = find_program("prometheus")
        assert program, "apt-get install prometheus"
        self.port = free_port()
        settings = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
        settings["global"]["scrape_interval"] = "1s"
        for scraped, each in zip(settings["scrape_configs"], (target, exporter), strict=True):
            scraped["static_configs"][0]["targets"] = [each]
        folder.mkdir()
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        (folder / "alerts.yaml").write_text((DEPLOY / "alerts.yaml").read_text())
        self.process = subprocess.Popen(
            [
                program, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error",
            ]
        )  # fmt: skip

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        return [float(each["value"][1]) for each in self.series(expression)]

    def series(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query?" + urllib.parse.urlencode({"query": expression}))["result"]
        return found

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def watched(folder: Path, pump: str, seen: Callable[[], Status]) -> Iterator[Prometheus]:
    """A Prometheus that has scraped a Pump, and an exporter of what is seen, some times."""
    server, thread = serve(seen, "127.0.0.1", 0)
    prometheus = Prometheus(folder, pump, f"127.0.0.1:{server.server_port}")
    try:
        eventually(lambda: _scrapes(prometheus) >= 6, within_s=60)
        yield prometheus
    finally:
        prometheus.close()
        server.shutdown()
        server.server_close()
        thread.join()


def _scrapes(prometheus: Prometheus) -> float:
    try:
        return sum(prometheus.values("count_over_time(up[5m])"))
    except OSError:
        return 0
