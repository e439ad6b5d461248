"""Real etcd servers for tests: one, or a cluster of several; killed, stopped and started again by pid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from pumphouse.settings import TlsSettings
from tests.stack.ports import free_port
from tests.stack.system import etcd
from tests.support import keeper


class EtcdServers:
    """Members of one cluster in a directory. As a context manager it starts and kills them."""

    def __init__(
        self, directory: Path, *, members: int = 1, tls: TlsSettings | None = None, arguments: tuple[str, ...] = ()
    ) -> None:
        self._directory = directory
        self._data = directory
        # Elections wait for fsyncs. These servers are killed, never the machine, so memory will do where there is room.
        memory = keeper.memory()
        if memory is not None:
            self._data = Path(tempfile.mkdtemp(prefix="etcd-", dir=memory))
        self._tls = tls
        self._arguments = arguments
        self._scheme = "https" if tls else "http"
        self.ports = [free_port() for _ in range(members)]
        self._peers = [free_port() for _ in range(members)]
        self._running: list[subprocess.Popen[bytes] | None] = [None] * members

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.endpoints)}"

    def start(self, member: int) -> None:
        """Start one member, with the data that it has."""
        peer = f"http://127.0.0.1:{self._peers[member]}"
        client = f"{self._scheme}://127.0.0.1:{self.ports[member]}"
        command = [
            etcd(),
            f"--name=m{member}",
            f"--data-dir={self._data / f'm{member}'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            "--initial-cluster=" + ",".join(f"m{i}=http://127.0.0.1:{p}" for i, p in enumerate(self._peers)),
            "--logger=zap",
            *self._arguments,
        ]
        if self._tls:
            command += [f"--cert-file={self._tls.cert}", f"--key-file={self._tls.key}"]
            command += [f"--trusted-ca-file={self._tls.ca}", "--client-cert-auth"]
        self._directory.mkdir(parents=True, exist_ok=True)
        # Not an etcd of the environment's: its variables would count.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with (self._directory / f"m{member}.log").open("ab") as log:
            self._running[member] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def wait(self, timeout_s: float = 30.0) -> None:
        """Until every running member knows a leader."""
        until = time.monotonic() + timeout_s
        for member, process in enumerate(self._running):
            while process is not None:
                try:
                    if self.ask(member, "maintenance/status").get("leader", "0") != "0":
                        break
                except OSError:
                    pass
                if process.poll() is not None or time.monotonic() > until:
                    text = (self._directory / f"m{member}.log").read_text()[-2000:]
                    raise RuntimeError(f"etcd m{member} did not come up: {text}")
                time.sleep(0.02)

    def signal(self, member: int, number: signal.Signals) -> None:
        process = self._running[member]
        assert process is not None
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()
            self._running[member] = None

    def kill(self, member: int = 0) -> None:
        self.signal(member, signal.SIGKILL)

    def leader(self) -> int:
        """Index of the member that leads."""
        for member in range(len(self.ports)):
            status = self.ask(member, "maintenance/status")
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise RuntimeError("no member leads")

    def ask(self, member: int, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0) -> dict[str, Any]:
        """A call through etcd's own JSON gateway; the client under test has no part in it."""
        request = urllib.request.Request(
            f"{self._scheme}://127.0.0.1:{self.ports[member]}/v3/{path}", data=json.dumps(body or {}).encode()
        )
        context = None
        if self._tls:
            context = ssl.create_default_context(cafile=str(self._tls.ca))
            context.load_cert_chain(str(self._tls.cert), str(self._tls.key))
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:
            return json.load(answer)

    def __enter__(self) -> Self:
        for member in range(len(self.ports)):
            self.start(member)
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process is not None:
                process.kill()
                process.wait()
        if self._data != self._directory:
            shutil.rmtree(self._data, ignore_errors=True)
