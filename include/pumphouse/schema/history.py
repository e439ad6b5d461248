"""Where DDL jobs come from: TiDB's status API, or a table that `schema import` fills. The archive is another source.

A source gives jobs as the cluster wrote them, whole; what they mean is the timeline's business. Sources hold no
connection between calls, so they may be used from several threads and after a fork.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from pydantic import SecretStr
from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.err import MySQLError

from pumphouse.errors import ConfigError, HistoryUnavailable, SchemaError
from pumphouse.model.table import Job
from pumphouse.mysql import HISTORY, connect, denied
from pumphouse.rpc.shown import without_secrets
from pumphouse.schema.ident import quote
from pumphouse.settings import SchemaSettings, ServerSettings, TlsSettings

_TIMEOUT_S = 30.0
_CHECK = "start it, or correct the setting schema.history"


class JobSource(Protocol):
    """DDL job history of one cluster."""

    def job(self, job_id: int) -> Job | None:
        """One finished job; None while it is not in the history (it may come). HistoryUnavailable."""
        ...

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        """Finished jobs with a larger id, ascending by id. HistoryUnavailable."""
        ...


class TidbStatusSource:
    """``/ddl/history`` of a TiDB server's status port, read in pages.

    With parameters the server answers newest first, so the pages are walked from the newest job down to `after_id`.
    A page may or may not repeat the job it starts from, by version of TiDB; repeats are dropped by id.
    """

    def __init__(self, url: str, *, page: int = 256, tls: TlsSettings | None = None) -> None:
        self.url = url.rstrip("/")
        self._page = max(page, 2)
        self._context = ssl_context(tls) if self.url.startswith("https:") else None

    def job(self, job_id: int) -> Job | None:
        """One finished job, or None."""
        return next((Job.from_dict(row) for row in self._get(job_id, 2) if int(row["id"]) == job_id), None)

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        """Finished jobs with a larger id, ascending."""
        found: dict[int, dict[str, Any]] = {}
        start = 0
        while True:
            rows = self._get(start, self._page)
            fresh = {int(row["id"]): row for row in rows if int(row["id"]) > after_id and int(row["id"]) not in found}
            found.update(fresh)
            smallest = min((int(row["id"]) for row in rows), default=0)
            if not fresh or smallest <= after_id + 1:
                break
            start = smallest
        for job_id in sorted(found):
            yield Job.from_dict(found[job_id])

    def _get(self, start_job_id: int, limit: int) -> list[dict[str, Any]]:
        query = {"limit": limit} | ({"start_job_id": start_job_id} if start_job_id else {})
        url = f"{self.url}/ddl/history?{urllib.parse.urlencode(query)}"
        shown = without_secrets(url)
        try:
            # The scheme was checked by open_history.
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=self._context) as answer:  # noqa: S310
                rows = json.load(answer)
        except ValueError as error:
            raise SchemaError(f"{shown} did not answer with JSON", url=shown) from error
        except (urllib.error.URLError, OSError) as error:
            raise HistoryUnavailable(
                f"the DDL job history at {shown} does not answer: {error}", hint=_CHECK, url=shown
            ) from error
        return list(rows or ())


class MysqlTableSource:
    """A table ``(job_id bigint primary key, job longtext)`` on a MySQL server, as `schema import` makes it."""

    def __init__(self, server: ServerSettings, schema: str, table: str) -> None:
        self.url = f"mysql://{server.user}@{server.host}:{server.port}/{schema}.{table}"
        self._server = server
        self.schema, self.table = schema, table
        self._from = f"{quote(schema)}.{quote(table)}"

    def job(self, job_id: int) -> Job | None:
        """One finished job, or None."""
        rows = self._rows(f"SELECT job FROM {self._from} WHERE job_id = %s", job_id)  # noqa: S608
        return next((Job.from_json(row) for row in rows), None)

    def jobs(self, *, after_id: int = 0) -> Iterator[Job]:
        """Finished jobs with a larger id, ascending."""
        rows = self._rows(f"SELECT job FROM {self._from} WHERE job_id > %s ORDER BY job_id", after_id)  # noqa: S608
        yield from map(Job.from_json, rows)

    def _rows(self, sql: str, argument: int) -> list[str]:
        with self.session() as connection, connection.cursor() as cursor:
            cursor.execute(sql, (argument,))
            return [row[0] for row in cursor.fetchall()]

    @contextmanager
    def session(self) -> Iterator[Connection[Any]]:
        """A connection with autocommit, for as long as the block lasts; what the server refuses is ours to say."""
        try:
            connection = connect(self._server, HISTORY, "schema")
            with connection:
                yield connection
        except MySQLError as error:
            code = error.args[0] if error.args else 0
            if code in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
                raise SchemaError(
                    f"{self.url}: there is no table {self.schema}.{self.table} on that server",
                    hint="with [capture], `pumphouse capture run` creates it (docs/capture.md), else `pumphouse schema "
                    "import` (docs/client.md); or correct schema.history",
                    url=self.url,
                ) from error
            refused = denied(error, self._server, "schema")
            if refused is not None:
                raise refused from error
            raise HistoryUnavailable(
                f"the DDL job history at {self.url} does not answer: {error}", hint=_CHECK, url=self.url
            ) from error


def open_history(settings: SchemaSettings, tls: TlsSettings | None = None) -> JobSource | None:
    """Source that the setting ``schema.history`` names; None when it is empty (the archive is the source then)."""
    if not settings.history:
        return None
    parts = urllib.parse.urlsplit(settings.history)
    if parts.scheme in {"http", "https"}:
        return TidbStatusSource(settings.history, tls=tls)
    server = history_server(settings)
    if server is not None:
        schema, _, table = parts.path.lstrip("/").partition(".")
        if not schema or not table:
            raise ConfigError(
                f"schema.history {without_secrets(settings.history)!r} names no table",
                hint="give mysql://user@host:port/schema.table",
            )
        return MysqlTableSource(server, urllib.parse.unquote(schema), urllib.parse.unquote(table))
    raise ConfigError(
        f"schema.history {parts.scheme}:// is not known",
        hint="give http(s)://tidb:10080, mysql://user@host:port/schema.table, or nothing for the archive",
    )


def history_server(settings: SchemaSettings) -> ServerSettings | None:
    """The database server of a ``mysql://`` history, None of any other; ConfigError without the URL's password."""
    try:
        parts = urllib.parse.urlsplit(settings.history)
        port = parts.port
    except ValueError:
        raise ConfigError(
            "schema.history cannot be read", hint="give mysql://user@host:port/schema.table; % in it as %25"
        ) from None
    if parts.scheme != "mysql":
        return None
    options = urllib.parse.parse_qs(parts.query)
    return ServerSettings(
        host=parts.hostname or "127.0.0.1",
        port=port or 3306,
        user=urllib.parse.unquote(parts.username or "root"),
        password=SecretStr(settings.history_password.get_secret_value() or urllib.parse.unquote(parts.password or "")),
        unix_socket=(options.get("unix_socket") or [""])[0],
        tls_ca=settings.history_tls_ca,
        tls_check_name=settings.history_tls_check_name,
    )


def ssl_context(tls: TlsSettings | None) -> ssl.SSLContext:
    """TLS of a status API: our CA and, where there is one, our certificate."""
    context = ssl.create_default_context(cafile=str(tls.ca) if tls and tls.ca else None)
    if tls and tls.cert and tls.key:
        context.load_cert_chain(tls.cert, tls.key)
    return context
