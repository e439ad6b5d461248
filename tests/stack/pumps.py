"""A Pump as a process of its own (``pumphouse pump run``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.stack.ports import free_port
from tests.stack.supervisor import Supervisor

CLI = (sys.executable, "-c", "from pumphouse.cli import main; main()")


class PumpProcess:
    """One Pump. ``settings`` are values of the ``[pump]`` section; the address stays the same over restarts."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        node_id: str,
        data_dir: Path,
        cluster_url: str,
        settings: Mapping[str, Any] | None = None,
        config: Path | None = None,
    ) -> None:
        self.supervisor = supervisor
        self.node_id = node_id
        self.data_dir = data_dir.absolute()
        self.cluster_url = cluster_url
        self.settings = dict(settings or {})
        self.config = config
        self.addr = f"127.0.0.1:{free_port()}"  # it comes back there after a kill
        self.http_addr = "127.0.0.1:0"

    @property
    def pid(self) -> int | None:
        """Pid while it runs."""
        return self.supervisor.pid(self.node_id)

    @property
    def value_dir(self) -> Path:
        """Directory of the value log."""
        return self.data_dir / "value"

    def start(self, *, timeout_s: float = 300.0) -> Self:
        """Start and wait until it says that it serves."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command: list[str] = [*CLI]
        if self.config is not None:
            command += ["--config", str(self.config)]
        for name, value in self.settings.items():
            command += ["--set", f"pump.{name}={value}"]
        command += ["pump", "run", "--node-id", self.node_id, "--data-dir", str(self.data_dir)]
        command += ["--addr", self.addr, "--http-addr", self.http_addr, "--cluster", self.cluster_url]
        begin = self.supervisor.log_size(self.node_id)
        self.supervisor.start(self.node_id, command)
        said: dict[str, Any] = {}

        def serving() -> bool:
            said.update(self._serving_line(begin) or {})
            return bool(said)

        self.supervisor.wait_until(self.node_id, serving, timeout_s=timeout_s)
        self.addr, self.http_addr = said["grpc"], said["http"]
        return self

    def attach(self) -> bool:
        """Take the addresses of a Pump that serves already; False when none does."""
        said = self._serving_line(0) if self.supervisor.alive(self.node_id) else None
        if said is None:
            return False
        self.addr, self.http_addr = said["grpc"], said["http"]
        return True

    def kill(self) -> None:
        """``kill -9``."""
        self.supervisor.kill(self.node_id)

    def stop(self, *, timeout_s: float = 20.0) -> None:
        """End it in order (state paused)."""
        self.supervisor.stop(self.node_id, timeout_s=timeout_s)

    def _serving_line(self, begin: int) -> dict[str, Any] | None:
        """The last one behind ``begin``: the log goes on over restarts."""
        found = None
        with self.supervisor.log_path(self.node_id).open("rb") as log:
            log.seek(begin)
            for line in log:
                if b'"serving"' in line and line.endswith(b"\n"):
                    try:
                        event = json.loads(line)
                    except ValueError:
                        continue
                    if event.get("event") == "serving" and "grpc" in event:
                        found = dict(event)
        return found
