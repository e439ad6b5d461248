"""The whole stack on this machine: three MariaDB servers, an object store, two Pumps, Airflow; in one directory.

Everything listens on free loopback ports and is supervised (`tests.stack.supervisor`). The settings of all parts
are ``<directory>/pumphouse.toml``; the DAGs get their connections from Airflow.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pumphouse.archive.init import init_archive
from pumphouse.capture.passed import waiter
from pumphouse.capture.source.gtid import GtidSet
from pumphouse.capture.source.session import position_now
from pumphouse.dump.run import DumpReport, take_dump
from pumphouse.durable import write_atomic
from pumphouse.model.tso import MAX_TSO
from pumphouse.mysql.dsn import Dsn
from pumphouse.parts import Parts
from pumphouse.registry.base import CaptureRecord, Cluster
from pumphouse.registry.open import open_cluster
from pumphouse.settings import Settings
from tests.stack.airflow import AirflowServer
from tests.stack.mariadb import MariaDbServer
from tests.stack.pumps import CLI, PumpProcess
from tests.stack.s3 import S3Server
from tests.stack.spark import SparkConnectServer
from tests.stack.supervisor import StackError, Supervisor

HISTORY_TABLE = "history.jobs"
DATABASES = ("source", "target", "restore")
UP_FORMAT = 1
CAPTURE = "capture"
# What the source has set where a capture reads it.
ROW_BINLOG = (
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--gtid-strict-mode=ON",
)

# What is small about a stack on one machine. Section -> name -> value.
Values = dict[str, dict[str, Any]]
SMALL: Values = {
    "pump": {
        "value_log_file_bytes": 4 << 20,
        "max_txn_timeout_s": 6.0,
        "gen_binlog_interval_s": 1.0,
        "retention_s": 15.0,
        "gc_interval_s": 600.0,
        "stop_write_at_available_bytes": 64 << 20,
        "reserve_bytes": 4 << 20,
        "queue_bytes": 64 << 20,
    },
    "archive": {"part_bytes": 1 << 20, "pull_timeout_s": 240.0},
    # Spark for small windows as well: everything is to be seen at work.
    "load": {"connections": 2, "engine": "spark"},
    "spark": {"master": "local[2]", "driver_memory": "1g", "shuffle_partitions": 2},
    "airflow": {
        "snapshot_cron": "* * * * *",
        "apply_cron": "* * * * *",
        "restore_targets": ["pumphouse_restore", "pumphouse_source"],
    },
}


class LocalStack:
    """Starts, describes and ends the parts. ``store`` is ``s3`` (gone when it ends) or ``file`` (stays).

    ``capture``: the source writes a row binlog, which `start_capture` follows; databases named ``mark_…`` are left out.
    """

    history_server = "source"

    def __init__(
        self,
        directory: Path,
        *,
        store: str = "s3",
        pumps: int = 2,
        settings: Values | None = None,
        capture: bool = False,
        popen: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        self.directory = directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.supervisor = Supervisor(self.directory / "run", popen)
        self.store = store
        self.settings = settings or SMALL
        self.databases = {
            name: MariaDbServer(self.directory / name, name=name, supervisor=self.supervisor) for name in DATABASES
        }
        self.captures = capture
        if capture:
            self.databases["source"].arguments = ROW_BINLOG
            chosen = {"directory": str(self.directory / CAPTURE), "without": ["mark_*.*"]}
            self.settings = {**self.settings, "capture": chosen}
        self.s3 = S3Server(self.supervisor)
        self.cluster_url = f"file://{self.directory / 'cluster'}"
        self.config = self.directory / "pumphouse.toml"
        self.pumps = [
            PumpProcess(
                self.supervisor,
                node_id=f"pump-{number}",
                data_dir=self.directory / f"pump-{number}",
                cluster_url=self.cluster_url,
                config=self.config,
            )
            for number in range(1, pumps + 1)
        ]
        self.spark = SparkConnectServer(self.supervisor)
        self.airflow = AirflowServer(self.directory / "airflow", self.supervisor)
        self._cluster: Cluster | None = None
        self._lock: int | None = None

    # Life

    def lock(self) -> None:
        """Be the only one who starts and ends this stack; StackError when somebody else is at it."""
        self._lock = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise StackError(f"another command is at work in {self.directory}", hint="wait for it, or end it") from None
        os.set_inheritable(self._lock, False)

    def unlock(self) -> None:
        """Let others."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def clear(self) -> None:
        """End what an earlier run left, and remove its data."""
        self.stop()
        for path in self.directory.iterdir():
            if path.name != ".lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.supervisor.run_dir.mkdir(parents=True, exist_ok=True)

    def start_stores(self, *, s3: bool | None = None) -> None:
        """Databases and object store, side by side; then the settings file. Databases that run are left alone."""
        starts: list[Callable[[], Any]] = [server.start for server in self.databases.values() if not server.attach()]
        if self.store == "s3" if s3 is None else s3:
            starts.append(self.s3.start)
        with ThreadPoolExecutor(max(1, len(starts))) as pool:
            for future in [pool.submit(start) for start in starts]:
                future.result()
        self.write_settings()

    def start_pumps(self) -> None:
        """All Pumps, side by side. One that serves is left alone."""
        missing = [pump for pump in self.pumps if not pump.attach()]
        with ThreadPoolExecutor(max(1, len(missing))) as pool:
            for future in [pool.submit(pump.start) for pump in missing]:
                future.result()

    def start_capture(self, *words: str, until: str = "capture_started") -> None:
        """Start it and wait until it follows, or logs that event. One that runs is left alone."""
        if self.supervisor.alive(CAPTURE):
            return
        begin = self.supervisor.log_size(CAPTURE)
        self.supervisor.start(CAPTURE, [*CLI, "--config", str(self.config), "capture", "run", *words])

        def follows() -> bool:
            with open(self.supervisor.log_path(CAPTURE), "rb") as log:
                log.seek(begin)
                return until.encode() in log.read()

        self.supervisor.wait_until(CAPTURE, follows, timeout_s=240)

    def kill_capture(self) -> None:
        """``kill -9``."""
        self.supervisor.kill(CAPTURE)

    def capture_record(self) -> CaptureRecord:
        """What the capture says of itself."""
        (found,) = self.cluster.captures()
        return found

    def captured(self, *, timeout_s: float = 400.0) -> None:
        """Wait until everything that the source has committed by now is in the Pumps; StackError when it has ended."""
        with self.databases["source"].connect(autocommit=True) as connection:
            wanted = position_now(connection).gtids
        until = time.monotonic() + timeout_s
        while True:
            record = self.capture_record()
            if record.gtid and GtidSet.parse(record.gtid, wanted.flavor).covers(wanted):
                return
            if not self.supervisor.alive(CAPTURE) or time.monotonic() > until:
                raise StackError(f"not captured: {record}\n{self.supervisor.tail(CAPTURE, 40)}")
            time.sleep(0.2)

    def begin_archive(self) -> DumpReport | None:
        """As ``pumphouse archive init --dump``; None where there is a dump already."""
        settings = Settings.read(self.config)
        with Parts(settings) as parts:
            init_archive(parts.archive, parts.cluster, parts.history, settings=settings)
            if parts.archive.bases(MAX_TSO):
                return None
            settle = waiter(parts.cluster, settings.source, settings.capture)
            return take_dump(parts.archive, parts.cluster, parts.history, settings, settle=settle)

    def start_spark(self) -> None:
        """A Spark Connect server, which every load uses from now on. One that runs is left alone."""
        if not self.spark.attach():
            self.spark.start(self.config)
        self.settings = {**self.settings, "spark": {**self.settings["spark"], "master": self.spark.url}}
        self.write_settings()

    def start_airflow(self) -> None:
        """Airflow, with the connections of its DAGs."""
        self.airflow.environment = {
            "PUMPHOUSE_CONFIG": str(self.config),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.airflow.connections = self.connections()
        self.airflow.start()
        self.write_command("airflow", ["-m", "airflow"], self.airflow.variables())
        self.write_command("pumphouse", ["-m", "pumphouse", "--config", str(self.config)], {}, alone=True)

    def write_command(
        self, name: str, words: Sequence[str], environment: Mapping[str, str], *, alone: bool = False
    ) -> None:
        """``bin/NAME``: that command for this stack, from any directory. It may hold keys.

        ``alone``: it has something to say where nothing runs, too, behind that.
        """
        path = self.directory / "bin" / name
        path.parent.mkdir(exist_ok=True)
        said = [f"export {each}={shlex.quote(value)}" for each, value in environment.items()]
        command = shlex.join([sys.executable, *words])
        ended = shlex.quote(f"nothing of {self.directory} runs: `make {self.directory.name}` starts it")
        runs = f"ls {shlex.quote(str(self.supervisor.run_dir))}/*.json > /dev/null 2>&1"
        guard = f"{runs} || {{ echo {ended} >&2; {'' if alone else 'exit 1; '}}}"
        lines = ["#!/bin/sh", "# Written by `make demo` or `make up`.", guard, *said, f'exec {command} "$@"']
        write_atomic(path, ("\n".join(lines) + "\n").encode(), mode=0o700)

    def stop(self, *, timeout_s: float = 10) -> list[str]:
        """End every process, which has so long to obey; returns the names of those that ran."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        return self.supervisor.stop_all(timeout_s=timeout_s)

    # What the parts are

    @property
    def cluster(self) -> Cluster:
        """The cluster, opened on first use."""
        if self._cluster is None:
            self._cluster = open_cluster(self.cluster_url)
        return self._cluster

    def dsn(self, name: str) -> Dsn:
        """Address of ``source``, ``target`` or ``restore``."""
        return self.databases[name].dsn

    def archive_settings(self) -> dict[str, Any]:
        """Where the archive is."""
        if self.store == "s3":
            return dict(self.s3.settings())
        return {"root": f"file://{self.directory / 'archive'}"}

    def connections(self) -> dict[str, dict[str, Any]]:
        """Airflow connections of the DAGs."""
        archive = self.archive_settings()
        source = self.dsn("source")
        found: dict[str, dict[str, Any]] = {
            "pumphouse_archive": {
                "conn_type": "pumphouse_archive",
                "login": archive.get("s3_access_key"),
                "password": archive.get("s3_secret_key"),
                "extra": {k: v for k, v in archive.items() if k in ("root", "s3_endpoint", "s3_region")},
            },
            "pumphouse_cluster": {
                "conn_type": "pumphouse_cluster",
                "password": source.password,
                "extra": {"url": self.cluster_url, "history": self._history()},
            },
        }
        for name, database in (
            ("pumphouse_source", "source"), ("pumphouse_downstream", "target"), ("pumphouse_restore", "restore")
        ):  # fmt: skip
            dsn = self.dsn(database)
            found[name] = {
                "conn_type": "pumphouse_source" if database == "source" else "pumphouse_downstream",
                "host": dsn.host,
                "port": dsn.port,
                "login": dsn.user,
                "password": dsn.password,
            }
        return found

    def write_settings(self) -> None:
        """``pumphouse.toml`` for every part that is not told otherwise."""
        values: Values = {section: dict(names) for section, names in self.settings.items()}
        values.setdefault("archive", {}).update(self.archive_settings())
        values["cluster"] = {"url": self.cluster_url}
        values["schema"] = {"history": self._history(), "history_password": self.dsn(self.history_server).password}
        for section, database in (("source", "source"), ("target", "target"), ("restore_target", "restore")):
            dsn = self.dsn(database)
            values[section] = {"host": dsn.host, "port": dsn.port, "user": dsn.user, "password": dsn.password}
        lines = ["# Written by `make demo` or `make up`; it holds passwords."]
        for section, names in values.items():
            lines += ["", f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in names.items())]
        write_atomic(self.config, ("\n".join(lines) + "\n").encode(), mode=0o600)

    def _history(self) -> str:
        server = self.dsn(self.history_server)
        return f"mysql://{server.user}@{server.host}:{server.port}/{HISTORY_TABLE}"

    def describe(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """``build/up.json``: addresses, DSNs, login, data directories and pids of every part (docs/formats.md)."""
        pid = self.supervisor.pid
        airflow = self.airflow
        return {
            "format_version": UP_FORMAT,
            "directory": str(self.directory),
            "config": str(self.config),
            "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "airflow": {
                "url": airflow.url,
                "user": "admin",
                "password": airflow.password,
                "home": str(airflow.home),
                "pids": {part: pid(f"airflow-{part}") for part in airflow.parts},
            },
            "cluster": {"url": self.cluster_url, "id": self.cluster.cluster_id()},
            "pumps": [
                {
                    "node_id": pump.node_id,
                    "grpc": pump.addr,
                    "http": pump.http_addr,
                    "data_dir": str(pump.data_dir),
                    "pid": pump.pid,
                }
                for pump in self.pumps
            ],
            "archive": self.archive_settings(),
            "s3": {"endpoint": self.s3.endpoint, "pid": pid("s3")} if self.store == "s3" else None,
            "databases": {
                name: {"dsn": str(server.dsn), "data_dir": str(server.data_dir), "pid": pid(name)}
                for name, server in self.databases.items()
            },
            "processes": {r.name: r.pid for r in self.supervisor.records() if r.process() is not None},
            **(more or {}),
        }
