"""A MariaDB server for a test module, and a TargetConnection that owns it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from pumphouse.loader import fence
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import TargetSettings
from pumphouse.stack.mariadb import MariaDbServer


@contextmanager
def running(directory: Path) -> Iterator[TargetSettings]:
    """A server as long as the block lasts."""
    with MariaDbServer(directory) as server:
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
