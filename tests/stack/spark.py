"""A Spark Connect server on a free loopback port: loads pay for no session of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.stack.airflow import PROJECT
from tests.stack.ports import free_port, listening
from tests.stack.supervisor import Supervisor


class SparkConnectServer:
    """One server; it ends with its stack."""

    def __init__(self, supervisor: Supervisor, *, name: str = "spark", master: str = "local[2]") -> None:
        self.supervisor = supervisor
        self.name = name
        self.master = master
        self.port = 0

    @property
    def url(self) -> str:
        """Setting ``spark.master`` of who uses it."""
        return f"sc://127.0.0.1:{self.port}"

    def attach(self) -> bool:
        """Take one that an earlier command left running; False when there is none."""
        if not self.supervisor.alive(self.name) or not self._port_file.exists():
            return False
        self.port = int(self._port_file.read_text())
        self._wait()
        return True

    @property
    def _port_file(self) -> Path:
        return self.supervisor.run_dir / f"{self.name}.port"

    def start(self, config: Path | None = None) -> None:
        """Start with that settings file, and wait until it listens."""
        self.port = free_port()
        self._port_file.write_text(f"{self.port}")
        command = [
            sys.executable,
            "-m",
            "spark_tasks.connect_server",
            "--master",
            self.master,
            "--port",
            str(self.port),
        ]
        code = os.pathsep.join([str(PROJECT), str(PROJECT / "include"), os.environ.get("PYTHONPATH", "")])
        told = {} if config is None else {"PUMPHOUSE_CONFIG": str(config)}
        self.supervisor.start(self.name, command, env={"PYTHONPATH": code, **told})
        self._wait()

    def _wait(self) -> None:
        self.supervisor.wait_until(self.name, lambda: listening(self.port), timeout_s=180)
