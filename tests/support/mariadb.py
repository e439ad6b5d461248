"""A MariaDB server for a test module, and a TargetConnection that owns it."""

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
def owned(settings: TargetSettings, run: str = "test") -> Iterator[tuple[TargetConnection, fence.Ownership]]:
    """A connection that holds the target."""
    with TargetConnection.open(settings) as connection:
        connection.create_tables()
        yield connection, fence.acquire(connection, run=run, take_over=True)
