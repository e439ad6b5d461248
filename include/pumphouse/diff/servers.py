"""Sessions on the two servers: values arrive as the bytes that the server printed, each session in one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from pymysql.converters import encoders
from pymysql.cursors import Cursor, SSCursor

from pumphouse.mysql import DUMP, ServerConnection, connect
from pumphouse.mysql.dsn import Dsn
from pumphouse.schema.dialect import Dialect

Row = tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A session on each server."""

    source: ServerConnection
    target: ServerConnection


@contextmanager
def pairs(source: Dsn, target: Dsn, count: int) -> Iterator[list[Pair]]:
    """Sessions on both servers. Each sees its server as it was when the session began."""
    with ExitStack() as stack:

        def opened(dsn: Dsn, side: str) -> ServerConnection:
            return stack.enter_context(closing(_connect(dsn, side)))

        yield [Pair(opened(source, "source"), opened(target, "target")) for _ in range(count)]


def _connect(dsn: Dsn, side: str) -> ServerConnection:
    # No converters for what is read and no decoding: values arrive as the bytes that the server printed.
    connection = connect(dsn.server, DUMP, side, conv=encoders, use_unicode=False, cursorclass=SSCursor)
    with connection.cursor(Cursor) as cursor:
        if dialect_of(connection) is Dialect.MYSQL:
            # Else the numbers of rows, by which tables are cut, may be a day old.
            cursor.execute("SET SESSION information_schema_stats_expiry = 0")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    return connection


def dialect_of(connection: ServerConnection) -> Dialect:
    """What kind of server it is."""
    return Dialect.of_version(value(connection, "SELECT VERSION()"))


def rows(connection: ServerConnection, sql: str, *values: str) -> Iterator[Row]:
    """Rows of a query, as they come. Read to the end or close the iterator."""
    with closing(connection.cursor()) as cursor, connection.making_sense():
        cursor.execute(sql, values or None)
        while batch := cursor.fetchmany(1000):
            yield from batch


def value(connection: ServerConnection, sql: str, *values: str) -> str:
    """The one value of a query, as text."""
    return text(next(iter(rows(connection, sql, *values)))[0])


def text(value: bytes | str | None) -> str:
    """A name or a number; '' of NULL."""
    return value.decode() if isinstance(value, bytes) else str(value or "")
