"""Places of tables on a target: which names are taken, and copies beside them that a capture reads.

A copy lies in somebody's database until it gets its place. Its name is in the table `copies` of our schema before it is
made: what is not there is not ours, and is never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from pumphouse.errors import LoadError
from pumphouse.loader.begin import tables_in
from pumphouse.loader.target import TargetConnection
from pumphouse.schema.ident import qualified, quote

# Rows of a transaction that copies, as far as the key tells; and the first column of a primary key, if it is a number.
_COPIED_ROWS = 20_000
_OWN = 40  # of the name of our schema, in those of copies
_COPIES = "copies"
_WHOLE_NUMBER_KEY = (
    "SELECT s.column_name FROM information_schema.statistics s JOIN information_schema.columns c"
    " ON c.table_schema = s.table_schema AND c.table_name = s.table_name AND c.column_name = s.column_name"
    " WHERE s.table_schema = %s AND s.table_name = %s AND s.index_name = 'PRIMARY' AND s.seq_in_index = 1"
    " AND c.data_type IN ('tinyint', 'smallint', 'mediumint', 'int', 'bigint')"
)


def require_free(connection: TargetConnection, places: Sequence[tuple[str, str]]) -> None:
    """LoadError where the target has a table or a view of one of these names, (database, name)."""
    found = taken(connection, places)
    if found:
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise LoadError(
            f"target {connection.name} has {', '.join(found[:5])}{more} already: no table is replaced",
            hint="give it a *Name there*, --as DATABASE.TABLE; several tables a *Database there*, "
            "--into-database DATABASE; or rename what is there. "
            "Did an earlier run of this restore come to its end? Then they are its copies",
            target=connection.name,
            tables=found,
        )


def taken(connection: TargetConnection, places: Sequence[tuple[str, str]]) -> list[str]:
    """Those of these names that the target has; without regard to case where it has none."""
    folds = bool(int(connection.value("SELECT @@lower_case_table_names")))
    databases = {each for db, _ in places for each in ([db, db.lower()] if folds else [db])}
    have = tables_in(connection, sorted(databases))
    if folds:
        have = [name.lower() for name in have]
    return [name for name in map(".".join, places) if (name.lower() if folds else name) in have]


def copied_beside(
    connection: TargetConnection, tables: Sequence[tuple[str, tuple[str, str]]]
) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Copy tables of our schema into the databases of their places. LoadError where the name of a copy is taken.

    ``tables``: (name in our schema, place) of each. Returns (copy, place) of each.
    """
    own = connection.settings.schema_name
    copies = [(beside(own, name, place), place) for name, place in tables]
    ours, kept = copies_left(connection), qualified(own, _COPIES)
    require_free(connection, [copy for copy, _ in copies if copy not in ours])
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {kept} (db VARCHAR(64) NOT NULL, name VARCHAR(64) NOT NULL,"
        " PRIMARY KEY (db, name)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )
    for (name, _), (copy, _) in zip(tables, copies, strict=True):
        connection.execute(f"INSERT IGNORE INTO {kept} VALUES (%s, %s)", copy)  # noqa: S608
        _copy(connection, (own, name), copy)
    return copies


def beside(own: str, name: str, place: tuple[str, str]) -> tuple[str, str]:
    """What the copy of a table of our schema is called until it gets its place."""
    return (place[0], f"{own[:_OWN]}_{name}")


def copies_left(connection: TargetConnection) -> list[tuple[str, str]]:
    """Copies that a run began to make and has not given their places: (database, name)."""
    own = connection.settings.schema_name
    if f"{own}.{_COPIES}" not in tables_in(connection, [own]):
        return []
    rows = connection.query(f"SELECT db, name FROM {qualified(own, _COPIES)}")  # noqa: S608
    return [(str(db), str(name)) for db, name in rows]


def _copy(connection: TargetConnection, source: tuple[str, str], copy: tuple[str, str]) -> None:
    """Copy a table that nobody writes to by statements that a row binlog has, some rows a transaction."""
    connection.execute(f"DROP TABLE IF EXISTS {qualified(*copy)}")
    connection.execute(f"CREATE TABLE {qualified(*copy)} LIKE {qualified(*source)}")
    there = connection.columns_there(source) or {}
    columns = ", ".join(quote(name) for name, computed in there.items() if not computed)
    insert = f"INSERT INTO {qualified(*copy)} ({columns}) SELECT {columns} FROM {qualified(*source)}"  # noqa: S608
    key = connection.value(_WHOLE_NUMBER_KEY, source)
    if key is None:
        connection.execute(insert)
        return
    key, rows = quote(key), f"FROM {qualified(*source)}"
    low = connection.value(f"SELECT MIN({key}) {rows}")
    while low is not None:
        behind = f"{rows} WHERE {key} >= {int(low)} ORDER BY {key} LIMIT 1 OFFSET {_COPIED_ROWS}"
        below = connection.value(f"SELECT {key} {behind}")
        if below == low:  # so many rows have this value alone
            below = connection.value(f"SELECT MIN({key}) {rows} WHERE {key} > {int(low)}")
        upto = "" if below is None else f" AND {key} < {int(below)}"
        connection.execute(f"{insert} WHERE {key} >= {int(low)}{upto}")
        low = below
