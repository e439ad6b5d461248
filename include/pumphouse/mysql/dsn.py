"""MySQL addresses in one line: ``mysql://user:password@host:port/schema``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr
from pymysql.connections import Connection

from pumphouse.errors import ConfigError
from pumphouse.mysql.connection import SharedTlsConnection, tls_context
from pumphouse.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Dsn:
    """Where a MySQL server is and who asks."""

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = "root"
    password: str = field(default="", repr=False)
    schema: str = ""
    unix_socket: str = ""
    tls_ca: str = ""
    tls_check_name: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the line; ConfigError without showing the password."""
        try:
            parts = urlsplit(text)
            port = parts.port or 3306
        except ValueError:
            raise ConfigError("a DSN cannot be read", hint="mysql://user:password@host:port/schema") from None
        if parts.scheme != "mysql" or not parts.hostname:
            raise ConfigError("a DSN must begin with mysql:// and name a host", hint="mysql://user:password@host:port")
        return cls(
            host=parts.hostname,
            port=port,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            schema=parts.path.lstrip("/"),
        )

    def __str__(self) -> str:
        """The line with the password: for files that only the owner reads."""
        secret = f":{quote(self.password, safe='')}" if self.password else ""
        return f"mysql://{quote(self.user, safe='')}{secret}@{self.host}:{self.port}/{self.schema}"

    @property
    def shown(self) -> str:
        """The line without the password, for messages."""
        return f"mysql://{self.user}@{self.unix_socket or f'{self.host}:{self.port}'}/{self.schema}"

    @property
    def server(self) -> ServerSettings:
        """The server, as settings name it."""
        return ServerSettings(
            host=self.host,
            port=self.port,
            user=self.user,
            password=SecretStr(self.password),
            unix_socket=self.unix_socket,
            tls_ca=Path(self.tls_ca) if self.tls_ca else None,
            tls_check_name=self.tls_check_name,
        )

    def connect(self, **options: Any) -> Connection[Any]:
        """A connection: utf8mb4, no autocommit; ``options`` go to PyMySQL."""
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "autocommit": False,
            "unix_socket": self.unix_socket or None,
            "ssl": tls_context(self.server, self.shown),
            **options,
        }
        if self.schema:
            settings.setdefault("database", self.schema)
        return SharedTlsConnection(**settings)
