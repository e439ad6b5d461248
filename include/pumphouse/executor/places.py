"""Places of tables on a target: which names are taken, and copies beside them that a capture reads.

A copy lies in somebody's database until it gets its place. Its name is in the table `copies` of our schema before it is
made: what is not there is not ours, and is never dropped. Nor is what somebody made under a name that is there: a copy
has the columns of the table that it copies, which lies in our schema until the copy has its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from pymysql.constants import ER

from pumphouse.advice import DATABASE_THERE, NAME_THERE, saying
from pumphouse.errors import LoadError, TargetBusy
from pumphouse.loader.begin import tables_in
from pumphouse.loader.target import RetryUnit, StatementFailed, TargetConnection
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
            hint=saying(
                "give one table another name by {}, several tables another database by {}; or rename what is there. "
                "Did an earlier run of this restore come to its end? Then they are its copies",
                NAME_THERE,
                DATABASE_THERE,
            ),
            target=connection.name,
            tables=found,
        )


def require_free_for_copies(connection: TargetConnection, copies: Sequence[tuple[str, str]]) -> None:
    """LoadError where the target has a table or a view of one of these names that is no copy of ours."""
    folded = _folded(connection)
    ours = {folded(".".join(left)) for left in copies_left(connection)}
    found = [name for name in taken(connection, copies) if folded(name) not in ours]
    if found:
        raise _name_of_a_copy_taken(connection, found)


def _name_of_a_copy_taken(connection: TargetConnection, found: list[str]) -> LoadError:
    return LoadError(
        f"target {connection.name} has {', '.join(found[:5])} already: under such a name a restore copies its rows for "
        "the capture, and it replaces no table",
        hint=saying(
            "rename that table, or drop it if a restore that was killed left it; or put the tables into another "
            "database by {}, of one table by {}",
            DATABASE_THERE,
            NAME_THERE,
        ),
        target=connection.name,
        tables=found,
    )


def taken(connection: TargetConnection, places: Sequence[tuple[str, str]]) -> list[str]:
    """Those of these names that the target has; without regard to case where it has none."""
    folded = _folded(connection)
    have = {*map(folded, tables_in(connection, sorted({each for db, _ in places for each in (db, folded(db))})))}
    return [name for name in map(".".join, places) if folded(name) in have]


def _folded(connection: TargetConnection) -> Callable[[str], str]:
    """A name as the server compares it with others."""
    return str.lower if int(connection.value("SELECT @@lower_case_table_names")) else str


def copied_beside(
    connection: TargetConnection, tables: Sequence[tuple[str, tuple[str, str]]]
) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Copy tables of our schema into the databases of their places. LoadError where the name of a copy is taken.

    ``tables``: (name in our schema, place) of each. Returns (copy, place) of each.
    """
    own = connection.settings.schema_name
    copies, kept = [(beside(own, name, place), place) for name, place in tables], qualified(own, _COPIES)
    for left in copies_left(connection):  # of this restore, which was killed
        with not_waiting(connection):
            connection.execute(f"DROP TABLE IF EXISTS {qualified(*left)}")
    connection.execute(f"DROP TABLE IF EXISTS {kept}")
    connection.execute(
        f"CREATE TABLE {kept} (db VARCHAR(64) NOT NULL, name VARCHAR(64) NOT NULL,"
        " PRIMARY KEY (db, name)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )
    for (name, _), (copy, _) in zip(tables, copies, strict=True):
        connection.execute(f"INSERT INTO {kept} VALUES (%s, %s)", copy)  # noqa: S608
        try:
            _copy(connection, (own, name), copy)
        except StatementFailed as error:
            if error.code != ER.TABLE_EXISTS_ERROR:
                raise
            connection.execute(f"DELETE FROM {kept} WHERE (db, name) = (%s, %s)", copy)  # noqa: S608
            raise _name_of_a_copy_taken(connection, [".".join(copy)]) from error
    return copies


def beside(own: str, name: str, place: tuple[str, str]) -> tuple[str, str]:
    """What the copy of a table of our schema is called until it gets its place."""
    return (place[0], _prefix(own) + name)


def _prefix(own: str) -> str:
    return f"{own[:_OWN]}_"


def copies_left(connection: TargetConnection) -> list[tuple[str, str]]:
    """Copies that a run began to make and has not given their places: (database, name)."""
    own = connection.settings.schema_name
    if f"{own}.{_COPIES}" not in tables_in(connection, [own]):
        return []
    left = []
    for db, name in connection.query(f"SELECT db, name FROM {qualified(own, _COPIES)}"):  # noqa: S608
        columns = connection.columns_there((own, name.removeprefix(_prefix(own))))
        if columns is not None and columns == connection.columns_there((db, name)):
            left.append((db, name))
    return left


def _copy(connection: TargetConnection, source: tuple[str, str], copy: tuple[str, str]) -> None:
    """Copy a table that nobody writes to by statements that a row binlog has, some rows a transaction."""
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


@contextlib.contextmanager
def not_waiting(connection: TargetConnection) -> Iterator[None]:
    """TargetBusy where a statement gave up its wait for a table that somebody holds."""
    try:
        yield
    except RetryUnit as error:
        raise TargetBusy(
            f"a transaction on {connection.name} holds a table that this needs: {error.message}",
            hint="run the same command again when it has ended: it goes on",
            target=connection.name,
        ) from error
