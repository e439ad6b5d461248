"""A real Airflow of our own: api-server, scheduler, dag-processor and triggerer, supervised, on its own PostgreSQL.

Its home, database, logs and login lie in one directory; it listens on a free loopback port. Its parts are told what the
stack is by ``PUMPHOUSE_CONFIG`` in their environment and by the connections in Airflow's database.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pumphouse.durable import write_atomic
from tests.stack import system
from tests.stack.airflow_api import AirflowApi
from tests.stack.once import copy_once_made, stamp
from tests.stack.ports import free_port
from tests.stack.postgres import PostgresServer
from tests.stack.supervisor import StackError, Supervisor

PROJECT = Path(__file__).resolve().parents[2]
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
USER = "admin"
# Tasks are forks of LocalExecutor's workers, and these of the scheduler: what each would import and load anew, it has.
_LOCAL_SETTINGS = """
import sys

if "scheduler" in sys.argv:
    import pumphouse.archive.snapshot
    import pumphouse.loader.engine
    import pumphouse.objectstore.file
    import pumphouse.registry.file
    import pumphouse.runs.load
    import pumphouse.runs.restore
    from pumphouse.codec.warm import warm

    warm()
"""


class AirflowServer:
    """One Airflow. ``environment`` is added to that of every part, ``connections`` are put into its database.

    ``python``: has another version of it.
    """

    def __init__(
        self,
        directory: Path,
        supervisor: Supervisor,
        *,
        environment: Mapping[str, str] | None = None,
        parts: tuple[str, ...] = PARTS,
        parallelism: int = 4,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        python: Path = Path(sys.executable),
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.python = python
        self.home = directory.absolute()
        self.supervisor = supervisor
        self.environment = dict(environment or {})
        self.connections: Mapping[str, Mapping[str, Any]] = dict(connections or {})
        # Name -> role; '' = none. All have the one password.
        self.users = {USER: "admin", **(users or {})}
        self.parts = parts
        self.parallelism = parallelism
        self.database = PostgresServer(self.home / "postgres", name="airflow-postgres", supervisor=supervisor)
        self.port = 0
        self.password = ""
        self._secret = ""
        self._fernet = ""

    @property
    def url(self) -> str:
        """Address of the UI and the API."""
        return f"http://127.0.0.1:{self.port}"

    def api(self) -> AirflowApi:
        """A client of its REST API, logged in."""
        return AirflowApi(self.url, USER, self.password)

    def start(self, *, timeout_s: float = 300.0) -> Self:
        """Make or migrate the database, start all parts, wait until they are healthy. Parts that run are left alone."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._read_identity()
        write_atomic(
            self.home / "passwords.json", json.dumps(dict.fromkeys(self.users, self.password)).encode(), mode=0o600
        )
        (self.home / "config").mkdir(exist_ok=True)
        (self.home / "config" / "airflow_local_settings.py").write_text(_LOCAL_SETTINGS)
        missing = [part for part in self.parts if not self.supervisor.alive(_name(part))]
        if not self.database.attach():
            if self.database.data_dir.exists():
                self.database.start()
                self._migrate()
            else:
                self._copy_migrated()
                self.database.start()
        for part in missing:
            command = [str(self.python), "-m", "airflow", part]
            if part == "api-server":
                command += ["--host", "127.0.0.1", "--port", str(self.port)]
            self.supervisor.start(_name(part), command, env=self.variables(), cwd=self.home)
        for part in self.parts:
            ready = functools.partial(self._healthy, part)
            self.supervisor.wait_until(_name(part), ready, timeout_s=timeout_s, what="not healthy")
            if part == "api-server" and self.connections:
                # In Airflow's database, encrypted, so that the UI shows them.
                self.api().put_connections(self.connections)
        return self

    def stop(self) -> None:
        """End all parts."""
        for part in reversed(self.parts):
            self.supervisor.stop(_name(part), timeout_s=8)
        self.database.stop()

    def variables(self) -> dict[str, str]:
        """Environment of every part; also for ``airflow`` on the command line."""
        found = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(self.parallelism),
            "AIRFLOW__CORE__FERNET_KEY": self._fernet,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in self.users.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database.url,
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": self._secret,
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secret,
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            # A busy machine takes many times as long as one with nothing else to do, and is no reason to fail.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "180",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            # It warns of every connection type with an underscore, which are most.
            "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "airflow.models.connection.Connection=ERROR",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            # The parts serve each other's logs on ports that must be ours alone.
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self._log_ports[0]),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self._log_ports[1]),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(PROJECT), str(PROJECT / "include"), os.environ.get("PYTHONPATH", "")])
            ),
            "PYTHONWARNINGS": "ignore",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }
        return {**found, **self.environment}

    def _copy_migrated(self) -> None:
        """A database as it is after its first migration, which takes longer than all else of a start."""

        def make(at: Path) -> None:
            work = at.with_name("airflow.work")
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            first = AirflowServer(work, Supervisor(work / "run"), python=self.python)
            first.home.mkdir(exist_ok=True)
            first._read_identity()
            try:
                first.database.start()
                first._migrate()
            finally:
                first.database.stop()
            first.database.data_dir.rename(at)
            shutil.rmtree(work)

        self.database.directory.mkdir(exist_ok=True)
        asks = [str(self.python), "-c", "from importlib import metadata; print(metadata.version('apache-airflow'))"]
        programs = subprocess.check_output(asks, text=True).strip(), stamp(system.postgres("postgres"))
        copy_once_made("airflow", self.database.data_dir, make, of=programs)

    def _migrate(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        done = subprocess.run(
            [self.python, "-m", "airflow", "db", "migrate"],
            env={**environment, **self.variables()},
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StackError(f"Airflow's database cannot be made:\n{(done.stdout + done.stderr)[-1500:]}")

    def _read_identity(self) -> None:
        path = self.home / "identity.json"
        if path.exists():
            found = json.loads(path.read_bytes())
        else:
            found = {
                "port": free_port(),
                "log_ports": [free_port(), free_port()],
                "password": secrets.token_urlsafe(9),
                "secret": secrets.token_urlsafe(48),
                "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            }
            write_atomic(path, json.dumps(found).encode(), mode=0o600)
        self.port, self.password = found["port"], found["password"]
        self._secret, self._fernet, self._log_ports = found["secret"], found["fernet"], found["log_ports"]

    def attach(self) -> bool:
        """Take the address of an Airflow that runs already; False when none does."""
        if not (self.home / "identity.json").exists():
            return False
        self._read_identity()
        return self.database.attach() and all(self.supervisor.alive(_name(part)) for part in self.parts)

    def _healthy(self, part: str) -> bool:
        found = AirflowApi(self.url, USER, self.password).health()
        if part == "api-server":
            return found is not None
        return found is not None and found.get(part.replace("-", "_"), {}).get("status") == "healthy"

    def clean_logs(self) -> None:
        """Remove task logs."""
        shutil.rmtree(self.home / "logs", ignore_errors=True)


def _name(part: str) -> str:
    return f"airflow-{part}"
