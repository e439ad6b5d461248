"""A MariaDB server for a test module, and a TargetConnection that owns it; with ``--server mysql`` it is a MySQL."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from pumphouse.loader import fence
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import TargetSettings
from pumphouse.stack.mariadb import MariaDbServer
from tests.support.kind import chosen, is_mysql
from tests.support.mysql import MySqlServer


def server_in(directory: Path, **options: Any) -> MariaDbServer:
    """A server of the kind that was chosen; as a context manager it starts and stops."""
    made = MySqlServer if is_mysql() else MariaDbServer
    return made(directory, name=chosen(), **options)


@contextmanager
def running(directory: Path) -> Iterator[TargetSettings]:
    """A server as long as the block lasts."""
    with server_in(directory) as server:
        yield TargetSettings(host="127.0.0.1", port=server.port, user="root", password=SecretStr(server.password))


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """For servers whose data nobody looks for after a power loss: their DDL syncs files, which costs nothing there.

    On a disk where memory has no room.
    """
    memory = Path("/dev/shm")
    room = memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30
    with tempfile.TemporaryDirectory(dir=memory if room else None) as name:
        yield Path(name)


@contextmanager
def in_memory() -> Iterator[TargetSettings]:
    """A server as long as the block lasts, with its data in memory."""
    with directory_in_memory() as directory, running(directory) as settings:
        yield settings


@contextmanager
def owned(settings: TargetSettings, run: str = "test") -> Iterator[tuple[TargetConnection, fence.Ownership]]:
    """A connection that holds the target."""
    with TargetConnection.open(settings) as connection:
        connection.create_tables()
        yield connection, fence.acquire(connection, run=run, take_over=True)
