"""A PostgreSQL server of our own, for Airflow's database: own data directory, a socket that only its owner reaches.

PostgreSQL refuses to run as root: started by root it runs as the user ``postgres`` of Debian's package. It keeps
CAP_DAC_OVERRIDE then, as the directories above its own may be closed to that user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from pumphouse.durable import write_atomic
from tests.stack import system
from tests.stack.supervisor import StackError, Supervisor

if TYPE_CHECKING:
    import psycopg

DATABASE = "airflow"
# What a laptop has to spare. A commit survives `kill -9` of the server; a power cut may cost all of it.
_SMALL = {
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_wal_size": "256MB",
    "fsync": "off",
    "full_page_writes": "off",
    "timezone": "UTC",
}


class PostgresServer:
    """One server in ``directory``; keeps its data over restarts. It listens on a socket alone, never on a port."""

    def __init__(self, directory: Path, *, name: str = "postgres", supervisor: Supervisor | None = None) -> None:
        self.directory = directory.absolute()
        self.name = name
        self.supervisor = supervisor or Supervisor(self.directory / "run")
        self._socket_dir = self.directory / "socket"

    @property
    def data_dir(self) -> Path:
        """PostgreSQL's own files."""
        return self.directory / "data"

    @property
    def url(self) -> str:
        """Address for SQLAlchemy; there is no password in it, the socket's directory keeps others out.

        By the driver that Airflow's own queries are written for: by psycopg 3 PostgreSQL refuses that of the asset graph.
        """
        return f"postgresql+psycopg2://{DATABASE}@/{DATABASE}?host={quote(str(self._socket_dir))}"

    def start(self) -> Self:
        """Make the data directory and the database if there are none, start, wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._choose_socket()
        self._install()
        options = {**_SMALL, "listen_addresses": "", "unix_socket_directories": str(self._socket_dir)}
        self.supervisor.start(
            self.name,
            [
                *_as_owner(),
                system.postgres("postgres"),
                "-D",
                self.data_dir,
                *(part for name, value in options.items() for part in ("-c", f"{name}={value}")),
            ],
            cwd=self.directory,
        )
        self.supervisor.wait_until(self.name, self._answers, timeout_s=120)
        self._make_database()
        return self

    def attach(self) -> bool:
        """Take the address of a server that runs already; False when none does."""
        alive = self.supervisor.alive(self.name)
        if alive:
            self._choose_socket()
        return alive

    def stop(self) -> None:
        """End it; no error when it does not run."""
        self.supervisor.stop(self.name, timeout_s=5)
        if self._socket_dir.parent != self.directory:
            shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _install(self) -> None:
        if (self.data_dir / "PG_VERSION").exists():
            return
        # A killed installation leaves half a directory: it is made aside and renamed.
        aside = self.directory / "data.new"
        shutil.rmtree(aside, ignore_errors=True)
        _make_private(aside)
        done = subprocess.run(
            [
                *_as_owner(),
                system.postgres("initdb"),
                f"--pgdata={aside}",
                f"--username={DATABASE}",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
                "--no-instructions",
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.directory,
        )
        if done.returncode:
            raise StackError(f"no PostgreSQL data directory could be made: {(done.stderr or done.stdout)[-600:]}")
        aside.rename(self.data_dir)

    def _make_database(self) -> None:
        from psycopg import sql

        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if cursor.fetchone() is None:
                cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))

    def _answers(self) -> bool:
        import psycopg

        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(
            host=str(self._socket_dir), user=DATABASE, dbname="postgres", autocommit=True, connect_timeout=5
        )

    def _choose_socket(self) -> None:
        """A directory whose path fits, with the socket's name, into the 107 bytes of the system."""
        if len(os.fsencode(self._socket_dir)) <= 85:
            _make_private(self._socket_dir)
            return
        # Kept: whoever attaches to the server later has to find it.
        chosen = self.directory / "socket.path"
        kept = Path(chosen.read_text()) if chosen.exists() else None
        if kept is None or not kept.is_dir():
            kept = Path(tempfile.mkdtemp(prefix="ph-pg-"))
            write_atomic(chosen, str(kept).encode())
        _make_private(kept)
        self._socket_dir = kept


def _make_private(path: Path) -> None:
    """A directory that is its owner's alone; the server's user owns it."""
    path.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(path, _owner())


def _owner() -> str:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise StackError("PostgreSQL does not run as root, and there is no user postgres", hint=system.TYPE_THIS)


def _as_owner() -> tuple[str, ...]:
    """What stands before a command of the server's: root gives itself up, all but the right to pass directories."""
    if os.geteuid() != 0:
        return ()
    setpriv = system.find_program("setpriv")
    if setpriv is None:
        raise StackError("setpriv is missing, by which root starts PostgreSQL as another user", hint=system.TYPE_THIS)
    owner = _owner()
    return (
        setpriv,
        f"--reuid={owner}",
        f"--regid={pwd.getpwnam(owner).pw_gid}",
        "--clear-groups",
        "--inh-caps=-all,+dac_override",
        "--ambient-caps=-all,+dac_override",
        "--bounding-set=-all,+dac_override",
        "--",
    )
