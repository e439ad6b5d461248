"""A MariaDB server for a test module, and a TargetConnection that owns it; with ``--server mysql`` it is a MySQL."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pumphouse.loader import fence
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import SchemaSettings, ServerSettings, SourceSettings, TargetSettings
from tests.stack.mariadb import MariaDbServer
from tests.support import keeper
from tests.support.kind import chosen, is_mysql
from tests.support.mysql import MySqlServer


def server_in(directory: Path, **options: Any) -> MariaDbServer:
    """A server of the kind that was chosen; as a context manager it starts and stops."""
    made = MySqlServer if is_mysql() else MariaDbServer
    return made(directory, name=chosen(), **options)


def settings_of(server: MariaDbServer) -> TargetSettings:
    """Where root gets in, as a target."""
    return TargetSettings(**_fields(server.dsn.server))


def as_source(server: ServerSettings) -> SourceSettings:
    """The same server and user, as a source."""
    return SourceSettings(**_fields(server))


def as_history(server: ServerSettings, table: str) -> SchemaSettings:
    """The history in ``schema.table`` of that server, read by that user."""
    return SchemaSettings(
        history=f"mysql://{server.user}@{server.host}:{server.port}/{table}",
        history_password=server.password,
        history_tls_ca=server.tls_ca,
        history_tls_check_name=server.tls_check_name,
    )


def as_lines(server: ServerSettings) -> str:
    """The same server and user, as the lines of a section in pumphouse.toml."""
    told = _fields(server) | {"password": server.password.get_secret_value()}
    said = {name: str(value) if isinstance(value, Path) else value for name, value in told.items() if value is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items())


def new_user(execute: Callable[[str], object], who: str, password: str = "pw") -> None:
    """Make a user without rights, in place of one of that name; only a MariaDB does it in one statement."""
    execute(f"DROP USER IF EXISTS {who}")
    execute(f"CREATE USER {who} IDENTIFIED BY '{password}'")


def _fields(server: ServerSettings) -> dict[str, Any]:
    return {name: getattr(server, name) for name in ServerSettings.model_fields}


@contextmanager
def running(directory: Path) -> Iterator[TargetSettings]:
    """A server as long as the block lasts."""
    with server_in(directory) as server:
        yield settings_of(server)


@contextmanager
def directory_in_memory() -> Iterator[Path]:
    """For servers whose data nobody looks for after a power loss: their DDL syncs files, which costs nothing there.

    On a disk where memory has no room.
    """
    with tempfile.TemporaryDirectory(dir=keeper.memory()) as name:
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
