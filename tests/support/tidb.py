"""A real TiDB that writes binlogs to Pumps of ours: PD, a store over TiDB's embedded engine, two Pumps, tidb-servers.

`make tidb` builds the programs of others into build/tidb (tests/tidb/servers); `MISSING` says what to type without them.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql
from pymysql.connections import Connection

from pumphouse.model.tso import Tso
from pumphouse.mysql.dsn import Dsn
from pumphouse.registry.base import Cluster
from pumphouse.registry.open import open_cluster
from pumphouse.settings import Settings, TargetSettings
from tests.stack.ports import free_port
from tests.stack.supervisor import Supervisor
from tests.support.pumpserver import PumpServer

BUILT = Path(__file__).resolve().parents[2] / "build" / "tidb"
PROGRAMS = ("pd-server", "store", "tidb-server")
MISSING = (
    ""
    if all((BUILT / name).exists() for name in PROGRAMS)
    else "no TiDB in build/tidb: `make tidb` builds it (needs Go), `make test-tidb` runs this"
)


class TidbCluster:
    """One TiDB cluster in ``directory``, as long as the block lasts; ``servers`` tidb-servers, ``pumps`` Pumps."""

    def __init__(self, directory: Path, *, servers: int = 1, pumps: int = 2, **pump_settings: Any) -> None:
        self.directory = directory.absolute()
        self.supervisor = Supervisor(self.directory / "run")
        self.pd_port = free_port()
        self.sql_ports = [free_port() for _ in range(servers)]
        self.status_ports = [free_port() for _ in range(servers)]
        self.pumps: list[PumpServer] = []
        self._wanted_pumps = pumps
        # Ten heartbeats a second, as tests of a Pump have them, are half of what a cluster costs that does nothing.
        self._pump_settings = {"heartbeat_interval_s": 1.0, "gen_binlog_interval_s": 0.3, **pump_settings}
        self._open = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """As `cluster.url` names it."""
        return f"pd://127.0.0.1:{self.pd_port}"

    @property
    def history(self) -> str:
        """As `schema.history` names it."""
        return f"http://127.0.0.1:{self.status_ports[0]}"

    def dsn(self, server: int = 0) -> Dsn:
        """Where a tidb-server answers; root has no password."""
        return Dsn(port=self.sql_ports[server])

    def connect(self, server: int = 0, **options: Any) -> Connection[Any]:
        """A session in UTC; autocommit unless told otherwise."""
        # A context of TLS costs 30 ms of CPU a connection; nothing here speaks it.
        options = {"autocommit": True, "init_command": "SET time_zone = '+00:00'", "ssl_disabled": True, **options}
        return self.dsn(server).connect(**options)

    def tso(self) -> Tso:
        """A fresh timestamp of PD."""
        return self.cluster.tso()

    def settings(self, root: Path, target: TargetSettings, restore_target: TargetSettings | None = None) -> Settings:
        """From this TiDB by an archive under ``root`` to ``target``: an archive of its own for each root."""
        archive_id = f"{root.name}-{zlib.crc32(str(root).encode()):08x}"
        sections: dict[str, Any] = {
            "cluster": {"url": self.url},
            "archive": {"root": f"file://{root}", "archive_id": archive_id, "poll_interval_s": 0.05},
            "schema": {"history": self.history},
            "source": {"host": "127.0.0.1", "port": self.sql_ports[0], "user": "root"},
            "target": target,
            "load": {"engine": "local"},
        }
        if restore_target is not None:
            sections["restore_target"] = restore_target
        return Settings.model_validate(sections)

    # ---- life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # TiDB first: it waits for Pumps that are gone.
        for number in range(len(self.sql_ports)):
            self.supervisor.stop(f"tidb-{number}", timeout_s=3)
        self._open.close()
        self.supervisor.stop_all(timeout_s=3)

    def _start(self) -> None:
        self._start_pd()
        self._start_store()
        self.cluster: Cluster = open_cluster(self.url)
        self._open.callback(self.cluster.close)
        for number in range(1, self._wanted_pumps + 1):
            pump = PumpServer(self.directory, self.cluster, node_id=f"pump-{number}", **self._pump_settings)  # type: ignore[arg-type]
            self.pumps.append(self._open.enter_context(pump))
        for number in range(len(self.sql_ports)):
            self.start_server(number)
        with self.connect() as connection, connection.cursor() as cursor:
            # The store takes no files; old versions stay while tests look at them.
            cursor.execute("SET GLOBAL tidb_ddl_enable_fast_reorg = OFF")
            cursor.execute("SET GLOBAL tidb_gc_life_time = '24h'")
            # A job that can never end is tried again so often, once a second, before TiDB rolls it back.
            cursor.execute("SET GLOBAL tidb_ddl_error_count_limit = 60")

    def _start_pd(self) -> None:
        config = self.directory / "pd.toml"
        config.write_text('[log]\nlevel = "warn"\n[replication]\nmax-replicas = 1\n')
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.pd_port, free_port()))
        self.supervisor.start(
            "pd",
            [
                BUILT / "pd-server",
                f"--config={config}",
                "--name=pd",
                f"--data-dir={self.directory / 'pd'}",
                f"--client-urls={client}",
                f"--peer-urls={peer}",
            ],
        )
        self.supervisor.wait_until("pd", lambda: _ask(f"{client}/pd/api/v1/leader").get("name"), timeout_s=60)

    def _start_store(self) -> None:
        self._store_addr = f"127.0.0.1:{free_port()}"
        self.supervisor.start(
            "store",
            [
                BUILT / "store",
                f"-addr={self._store_addr}",
                f"-pd=127.0.0.1:{self.pd_port}",
                f"-path={self.directory / 'store'}",
            ],
        )
        self.supervisor.wait_until(
            "store", lambda: "serving" in self.supervisor.log_path("store").read_text(errors="replace"), timeout_s=60
        )

    def start_server(self, number: int) -> None:
        """Start a tidb-server and wait until it answers; the first one makes the system tables."""
        name = f"tidb-{number}"
        home = self.directory / name
        home.mkdir(exist_ok=True)
        (home / "tidb.toml").write_text(
            "\n".join(
                [
                    'host = "127.0.0.1"',
                    'advertise-address = "127.0.0.1"',
                    f"port = {self.sql_ports[number]}",
                    'store = "tikv"',
                    f'path = "127.0.0.1:{self.pd_port}"',
                    'socket = ""',
                    f'temp-dir = "{home / "tmp"}"',
                    f'tmp-storage-path = "{home / "spill"}"',
                    "split-table = false",
                    'lease = "1s"',
                    "[log]",
                    'level = "warn"',
                    "[status]",
                    'status-host = "127.0.0.1"',
                    f"status-port = {self.status_ports[number]}",
                    "[binlog]",
                    "enable = true",
                    "[pessimistic-txn]",
                    "pessimistic-auto-commit = true",  # else a lone statement waits long for a lock
                    "[performance]",
                    "txn-total-size-limit = 1073741824",
                ]
            )
        )
        self.supervisor.start(name, [BUILT / "tidb-server", f"-config={home / 'tidb.toml'}"], cwd=home)
        self.supervisor.wait_until(name, lambda: self._answers(number), timeout_s=120)

    def _answers(self, number: int) -> bool:
        try:
            self.connect(number, connect_timeout=5).close()
        except pymysql.err.OperationalError:
            return False
        return True


class UnistoreServer:
    """A whole TiDB in one process (`-store unistore`), as long as the block lasts: a target of loads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.supervisor = Supervisor(self.directory / "run")
        self.port = free_port()

    @property
    def settings(self) -> TargetSettings:
        """As a target."""
        return TargetSettings(host="127.0.0.1", port=self.port, user="root")

    def __enter__(self) -> Self:
        config = self.directory / "tidb.toml"
        config.write_text(
            "\n".join(
                [
                    'host = "127.0.0.1"',
                    f"port = {self.port}",
                    'store = "unistore"',
                    f'path = "{self.directory / "data"}"',
                    'socket = ""',
                    f'temp-dir = "{self.directory / "tmp"}"',
                    f'tmp-storage-path = "{self.directory / "spill"}"',
                    'lease = "0s"',
                    "[log]",
                    'level = "warn"',
                    "[status]",
                    "report-status = false",
                    "[performance]",
                    "txn-total-size-limit = 1073741824",
                ]
            )
        )
        self.supervisor.start("tidb", [BUILT / "tidb-server", f"-config={config}"], cwd=self.directory)
        self.supervisor.wait_until("tidb", self._answers, timeout_s=120)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.supervisor.stop_all(timeout_s=3)

    def _answers(self) -> bool:
        try:
            Dsn(port=self.port).connect(connect_timeout=5).close()
        except pymysql.err.OperationalError:
            return False
        return True


def _ask(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
