"""Hosts on one machine: network namespaces on one switch; and a standalone Spark cluster whose parts run in two of them.

Nothing in a host can be reached but by its address: no loopback, no name. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pyspark

from spark_tasks.java import java_home
from tests.support import keeper

SPARK_HOME = Path(pyspark.__file__).parent
MASTER_PORT = 7077
# What a worker's host has: Python with the locked packages, and nothing that says where our code is.
_ENVIRONMENT = {
    name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG", keeper.MARK) if name in os.environ
}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


def why_not() -> str:
    """Why this machine has no hosts for us; '' where it has."""
    if shutil.which("ip") is None:
        return "two hosts need iproute2 (`ip netns`): apt-get install iproute2"
    if os.geteuid() != 0:
        return "two hosts need root, for network namespaces (`ip netns add`)"
    name = f"ph{secrets.token_hex(3)}"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _ip("link", "del", f"{name}a")
        _ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", name)
        return f"this machine allows no network namespaces: {error.stderr.strip()}"
    return ""


class Hosts:
    """``hosts.here`` is this machine's address, ``hosts.addresses`` those of the others, by name."""

    def __init__(self, count: int) -> None:
        self.id = f"ph{secrets.token_hex(3)}"
        net = f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
        self.here = f"{net}.1"
        self.addresses = {f"{self.id}-{n}": f"{net}.{n + 1}" for n in range(1, count + 1)}

    def __enter__(self) -> Self:
        # The switch has a namespace of its own: this machine's packet filter has no say in what the hosts tell each other.
        switch = f"{self.id}-s"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for number, (name, address) in enumerate({"": self.here, **self.addresses}.items()):
            own = f"{self.id}{number}"
            inside = ["-n", name] if name else []
            if name:
                _ip("netns", "add", name)
                _ip(*inside, "link", "set", "lo", "up")
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", own)
            _ip("-n", switch, "link", "set", own, "netns", *([name] if name else [str(os.getpid())]))
            _ip("-n", switch, "link", "set", f"port{number}", "master", "switch", "up")
            _ip(*inside, "address", "add", f"{address}/24", "dev", own)
            _ip(*inside, "link", "set", own, "up")
        return self

    def __exit__(self, *exc: object) -> None:
        for name in (*self.addresses, f"{self.id}-s"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)

    def inside(self, name: str) -> list[str]:
        """What a command line of that host begins with."""
        return ["ip", "netns", "exec", name]


class SparkCluster:
    """A master and a worker on the first host, a worker on the second; logs and work in ``directory``.

    ``java``: options of every JVM; ``conf`` gives them to an application's.
    """

    def __init__(self, hosts: Hosts, directory: Path, java: str) -> None:
        self.hosts = hosts
        self._environment = _ENVIRONMENT | {"SPARK_DAEMON_JAVA_OPTS": java}
        self.conf = {"spark.driver.extraJavaOptions": java, "spark.executor.extraJavaOptions": java}
        self.directory = directory
        self.names = list(hosts.addresses)
        self.master = f"spark://{hosts.addresses[self.names[0]]}:{MASTER_PORT}"
        self._started: list[psutil.Popen] = []
        self.secret = secrets.token_hex(16)
        self.properties = directory / "spark.conf"
        self.properties.touch(mode=0o600)
        self.properties.write_text(f"spark.authenticate true\nspark.authenticate.secret {self.secret}\n")

    def __enter__(self) -> Self:
        try:
            first = self.hosts.addresses[self.names[0]]
            deploy = "org.apache.spark.deploy"
            self.spark_class(
                self.names[0],
                "master",
                [
                    f"{deploy}.master.Master",
                    *("--host", first, "--port", str(MASTER_PORT), "--webui-port", "8080"),
                    *("--properties-file", str(self.properties)),
                ],
            )
            _until(lambda: _listens(first, MASTER_PORT), "the master listens", self.directory)
            for name in self.names:
                work = self.work_of(name)
                self.spark_class(
                    name,
                    f"worker-{name}",
                    [
                        f"{deploy}.worker.Worker",
                        "--host",
                        self.hosts.addresses[name],
                        "--port",
                        "7078",
                        "--webui-port",
                        "8081",
                        "--cores",
                        "1",
                        "--memory",
                        "1g",
                        "--work-dir",
                        str(work),
                        "--properties-file",
                        str(self.properties),
                        self.master,
                    ],
                )
            log = self.directory / "master.log"
            _until(lambda: log.read_text().count("Registering worker") == 2, "both workers registered", self.directory)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        found = [child for one in self._started if one.is_running() for child in (*one.children(recursive=True), one)]
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=10)
        for one in self._started:
            one.wait(60)

    def work_of(self, name: str) -> Path:
        """Where the executors of a host run, and unpack what they are given."""
        return self.directory / f"work-{name}"

    def spark_class(self, name: str, what: str, arguments: list[str], **environment: str) -> psutil.Popen:
        """A long-lived part on a host."""
        with (self.directory / f"{what}.log").open("wb") as log:
            process = psutil.Popen(
                [*self.hosts.inside(name), str(SPARK_HOME / "bin" / "spark-class"), *arguments],
                env=self._environment
                | {"JAVA_HOME": str(java_home()), "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
                | environment,
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks now."""
        found = [p for one in self._started if one.is_running() for p in one.children(recursive=True)]
        return [p for p in found if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in _line(p)]

    @contextlib.contextmanager
    def connect_server(self, conf: dict[str, str]) -> Iterator[str]:
        """A Spark Connect server on the first host, which has all cores of this cluster until it ends; its sc:// address."""
        address, port = self.hosts.addresses[self.names[0]], 15002
        arguments = ["org.apache.spark.deploy.SparkSubmit", "--master", self.master]
        arguments += ["--properties-file", str(self.properties)]
        own = {"spark.driver.host": address, "spark.connect.grpc.binding.address": address, "spark.ui.enabled": "false"}
        for key, value in (own | self.conf | conf).items():
            arguments += ["--conf", f"{key}={value}"]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        process = self.spark_class(self.names[0], "connect", [*arguments, "--class", server, "spark-internal"])
        try:
            _until(lambda: _listens(address, port), "the Connect server listens", self.directory)
            yield f"sc://{address}:{port}"
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def two_hosts(directory: Path, java: str) -> Iterator[SparkCluster]:
    """Two hosts and a cluster on them, as long as the block lasts."""
    directory.mkdir(parents=True, exist_ok=True)
    with Hosts(2) as hosts, SparkCluster(hosts, directory, java) as cluster:
        yield cluster


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def _until(holds: object, what: str, directory: Path, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        if time.monotonic() > end:
            logs = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in directory.glob("*.log"))
            raise AssertionError(f"not within {seconds:.0f} s: {what}\n{logs}")
        time.sleep(0.2)
