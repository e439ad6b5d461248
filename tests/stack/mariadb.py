"""A MariaDB server of our own: own data directory, free loopback port, own password; started and stopped by pid."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql
from pymysql.connections import Connection

from pumphouse.durable import write_atomic
from pumphouse.mysql.dsn import Dsn
from tests.stack import system
from tests.stack.once import copy_once_made, stamp
from tests.stack.ports import free_port
from tests.stack.supervisor import StackError, Supervisor

# What a laptop has to spare. The caller adds what it needs.
_SMALL = (
    "--innodb-buffer-pool-size=128M",
    "--innodb-log-file-size=96M",
    "--key-buffer-size=1M",
    "--aria-pagecache-buffer-size=4M",
    "--performance-schema=OFF",
    "--max-allowed-packet=1G",
    "--table-open-cache=400",
)


class MariaDbServer:
    """One server in ``directory``; keeps its data, password and, where it is free, its port over restarts.

    ``durable=False`` leaves out the fsync of each commit: the stack's databases are checked for what they hold, not for
    power loss. As a context manager it starts and stops.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "mariadb",
        supervisor: Supervisor | None = None,
        durable: bool = False,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory.absolute()
        self.name = name
        self.supervisor = supervisor or Supervisor(self.directory / "run")
        self.arguments = arguments
        self.durable = durable
        self.port = 0
        self.password = ""
        self._socket_dir: Path | None = None

    @property
    def data_dir(self) -> Path:
        """MariaDB's own files."""
        return self.directory / "data"

    @property
    def dsn(self) -> Dsn:
        """Where root gets in."""
        return Dsn(port=self.port, password=self.password)

    def connect(self, **options: Any) -> Connection[Any]:
        """A connection as root; ``options`` go to PyMySQL (``database=``, ``autocommit=``, …)."""
        return self.dsn.connect(**options)

    def start(self) -> Self:
        """Make the data directory if there is none, start, wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._read_identity()
        self._install()
        for attempt in range(5):
            try:
                self._start_once()
            except StackError:
                # Another program may have taken the port between the choice and the bind.
                if attempt == 4 or "address already in use" not in self.supervisor.tail(self.name).lower():
                    raise
                self.port = free_port()
            else:
                break
        write_atomic(self.directory / "identity", f"{self.port} {self.password}\n".encode(), mode=0o600)
        return self

    def attach(self) -> bool:
        """Take the address of a server that runs already; False when none does."""
        self._read_identity()
        return self.supervisor.alive(self.name)

    def stop(self) -> None:
        """End it; no error when it does not run."""
        self.supervisor.stop(self.name, timeout_s=20)
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read_identity(self) -> None:
        try:
            port, self.password = (self.directory / "identity").read_text().split()
            self.port = int(port)
        except (OSError, ValueError):
            self.port, self.password = free_port(), secrets.token_urlsafe(12)

    def _install(self) -> None:
        if (self.data_dir / "mysql").is_dir():
            return
        programs = stamp(system.install_db()), stamp(system.mariadbd())
        copy_once_made("mariadb", self.data_dir, self._make, of=(*programs, *_user()))

    def _make(self, at: Path) -> None:
        command = [
            system.install_db(),
            "--no-defaults",
            f"--datadir=./{at.name}",  # the script breaks at blanks in a path
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *_user(),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=at.parent, env=self._env())
        if done.returncode:
            raise StackError(f"no MariaDB data directory could be made: {(done.stderr or done.stdout)[-600:]}")

    def _start_once(self) -> None:
        # The init file runs before the first connection is served: there is no moment without a password.
        init = self.directory / "init.sql"
        secret = self.password.replace("'", "")
        write_atomic(
            init,
            (
                f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{secret}';\n"
                f"CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '{secret}';\n"
                "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
            ).encode(),
            mode=0o600,
        )
        self.supervisor.start(
            self.name,
            [
                system.mariadbd(),
                "--no-defaults",
                f"--datadir={self.data_dir}",
                f"--tmpdir={self.data_dir.parent}",  # in one that is shared, a start deletes what others have there
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--socket={self._socket()}",
                f"--pid-file={self.directory / 'mariadbd.pid'}",
                f"--init-file={init}",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--local-infile=1",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_bin",
                *_SMALL,
                *(() if self.durable else ("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0")),
                *_user(),
                *self.arguments,
            ],
            env=self._env(),
        )
        self.supervisor.wait_until(self.name, self._answers, timeout_s=180)

    def _env(self) -> dict[str, str]:
        # Servers that start side by side trip over each other's temporary tables in a common directory.
        temporary = self.directory / "tmp"
        temporary.mkdir(exist_ok=True)
        return {**os.environ, "TMPDIR": str(temporary)}

    def _answers(self) -> bool:
        try:
            self.connect(connect_timeout=5).close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _socket(self) -> Path:
        """A socket path that fits into the 107 bytes of the system."""
        path = self.directory / "mysql.sock"
        if len(str(path)) <= 100:
            return path
        self._socket_dir = Path(tempfile.mkdtemp(prefix="ph-"))
        return self._socket_dir / "s"


def _user() -> tuple[str, ...]:
    # mariadbd refuses to run as root unless it is told to; the data directory is ours alone.
    return ("--user=root",) if os.geteuid() == 0 else ()
