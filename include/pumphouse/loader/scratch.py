"""A temporary table beside a table of the target: what a unit deletes is joined with it."""

# Names in statements are quoted by pumphouse.schema.ident.
# ruff: noqa: S608

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from pumphouse.errors import LoadError
from pumphouse.loader.target import TargetConnection
from pumphouse.schema.dialect import Dialect
from pumphouse.schema.ident import columns as column_list
from pumphouse.schema.ident import qualified, quote


@contextlib.contextmanager
def scratch(
    connection: TargetConnection, name: str, like: tuple[str, str], columns: Sequence[str], more: Sequence[str] = ()
) -> Iterator[str]:
    """An empty temporary table in our schema, gone after the block; its quoted name.

    Args:
        connection: the session; a transaction that is open stays so.
        name: its name.
        like: (database, table) whose columns it has, so that types and collations are equal.
        columns: their names.
        more: definitions of columns and indexes besides.
    """
    table = qualified(connection.settings.schema_name, name)
    connection.execute(f"DROP TEMPORARY TABLE IF EXISTS {table}")
    if connection.dialect is Dialect.TIDB:
        # It has no CREATE TABLE … AS SELECT, and no temporary table LIKE one with partitions.
        written = ", ".join((*more, *_definitions(connection, like, columns)))
        connection.execute(f"CREATE TEMPORARY TABLE {table} ({written})")
    else:
        own = f"({', '.join(more)}) " if more else ""
        connection.execute(
            f"CREATE TEMPORARY TABLE {table} {own}ENGINE=InnoDB AS"
            f" SELECT {column_list(list(columns))} FROM {qualified(*like)} LIMIT 0"
        )
    try:
        yield table
    finally:
        with contextlib.suppress(LoadError):
            connection.execute(f"DROP TEMPORARY TABLE IF EXISTS {table}")


def _definitions(connection: TargetConnection, like: tuple[str, str], columns: Sequence[str]) -> Iterator[str]:
    """```name` type COLLATE …`` of each column, as the server says it of itself."""
    rows = connection.query(f"SHOW FULL COLUMNS FROM {qualified(*like)}")
    found = {str(row[0]).lower(): (str(row[1]), row[2]) for row in rows}
    for name in columns:
        kind, collation = found[name.lower()]
        yield f"{quote(name)} {kind}{f' COLLATE {collation}' if collation else ''} NULL"
