"""Places of tables on a target: which names are taken, and copies beside them that a capture reads.

A copy lies in somebody's database until it gets its place. Its name is in the table `copies` of our schema before it is
made: what is not there is not ours, and is never dropped. Nor is what somebody made under a name that is there: a copy
has the columns of the table that it copies, which lies in our schema until the copy has its place.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

from pymysql.constants import ER

from pumphouse.advice import DATABASE_THERE, NAME_THERE, saying
from pumphouse.errors import LoadError, TargetBusy
from pumphouse.loader.begin import tables_in
from pumphouse.loader.target import RetryUnit, StatementFailed, TargetConnection
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.schema.ident import qualified, quote

# Of a transaction that copies: rows, and bytes as the server guesses the size of a row; bytes of a table in one alone.
_COPIED_ROWS, _COPIED_BYTES = 20_000, 64 << 20
_COPIED_WHOLE = MAX_TRANSACTION_BYTES // 2
_OWN = 40  # of the name of our schema, in those of copies
_COPIES = "copies"
# Columns of a primary key whose values a user variable keeps as they are compared: others end what is paged by.
_PAGED = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "char", "varchar", "binary", "varbinary"}
    | {"date", "datetime", "timestamp"}
)
_KEY = (
    "SELECT s.column_name, c.data_type, s.sub_part FROM information_schema.statistics s"
    " JOIN information_schema.columns c"
    " ON c.table_schema = s.table_schema AND c.table_name = s.table_name AND c.column_name = s.column_name"
    " WHERE s.table_schema = %s AND s.table_name = %s AND s.index_name = 'PRIMARY' ORDER BY s.seq_in_index"
)
_SIZE = (
    "SELECT COALESCE(data_length, 0), COALESCE(avg_row_length, 0) FROM information_schema.tables"
    " WHERE table_schema = %s AND table_name = %s"
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


def databases_there(connection: TargetConnection, names: Sequence[str]) -> list[str]:
    """Those of these databases that the target has, by names as it compares them."""
    folded = _folded(connection)
    have = {folded(str(name)) for (name,) in connection.query("SHOW DATABASES")}
    return [name for name in names if folded(name) in have]


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
    if not taken(connection, [(own, _COPIES)]):
        return []
    left = []
    for db, name in connection.query(f"SELECT db, name FROM {qualified(own, _COPIES)}"):  # noqa: S608
        columns = connection.columns_there((own, name.removeprefix(_prefix(own))))
        if columns is not None and columns == connection.columns_there((db, name)):
            left.append((db, name))
    return left


def _copy(connection: TargetConnection, source: tuple[str, str], copy: tuple[str, str]) -> None:
    """Copy a table that nobody writes to by statements that a row binlog has, some rows a transaction.

    A capture refuses a transaction that is too large, and has no way past it: LoadError where this would make one.
    """
    connection.execute(f"ANALYZE NO_WRITE_TO_BINLOG TABLE {qualified(*source)}")
    ((size, of_a_row),) = connection.query(_SIZE, source)
    key = _paged_by(connection, source)
    if not key and int(size) > _COPIED_WHOLE:
        raise LoadError(
            f"target {connection.name}: the rows of a table without a key by which they could be copied in parts would "
            f"be one transaction of about {int(size):,} bytes, which its capture may refuse: {'.'.join(copy)}",
            hint="restore it onto another server, and copy the rows from there in parts",
            target=connection.name,
        )
    connection.execute(f"CREATE TABLE {qualified(*copy)} LIKE {qualified(*source)}")
    there = connection.columns_there(source) or {}
    columns = ", ".join(quote(name) for name, computed in there.items() if not computed)
    insert = f"INSERT INTO {qualified(*copy)} ({columns}) SELECT {columns} FROM {qualified(*source)}"  # noqa: S608
    rows = max(1, min(_COPIED_ROWS, _COPIED_BYTES // max(1, int(of_a_row))))
    for where in _pages(connection, source, key, rows) if key else [""]:
        connection.execute(f"{insert}{where}")


def _paged_by(connection: TargetConnection, table: tuple[str, str]) -> list[str]:
    """Columns of the primary key, quoted, from the first one on as far as a user variable keeps their values."""
    found = connection.query(_KEY, table)
    fit = itertools.takewhile(lambda row: str(row[1]).lower() in _PAGED and row[2] is None, found)
    return [quote(str(name)) for name, _, _ in fit]


def _pages(connection: TargetConnection, table: tuple[str, str], key: Sequence[str], rows: int) -> Iterator[str]:
    """Conditions that part a table, each of about so many rows; bounds stay on the server, as it compares them.

    A bound is a row of it; where all those rows have one value of what is paged by, the next value.
    """
    low, high = ([f"@pumphouse_{end}_{number}" for number in range(len(key))] for end in ("low", "high"))
    names = ", ".join(key)
    where = ""

    def bounded(condition: str, offset: int) -> int:
        into = ", ".join(high)
        return connection.execute(
            f"SELECT {names} INTO {into} FROM {qualified(*table)}{condition} ORDER BY {names} LIMIT 1 OFFSET {offset}"  # noqa: S608
        )

    while bounded(where, rows):
        alike = where and connection.value(f"SELECT {_equal(low, high)}")
        if alike and not bounded(f" WHERE {_above(key, low, '>')}", 0):
            break
        yield f"{where or ' WHERE TRUE'} AND NOT ({_above(key, high, '>=')})"
        connection.execute(f"SET {', '.join(f'{to} = {of}' for to, of in zip(low, high, strict=True))}")
        where = f" WHERE {_above(key, low, '>=')}"
    yield where


def _equal(some: Sequence[str], others: Sequence[str]) -> str:
    return " AND ".join(f"{one} = {other}" for one, other in zip(some, others, strict=True))


def _above(key: Sequence[str], bound: Sequence[str], than: str) -> str:
    """Rows behind a bound, in a form that an index serves on every server: a >= x AND (a > x OR (a = x AND b > y))."""
    if len(key) == 1:
        return f"{key[0]} {than} {bound[0]}"
    rest = _above(key[1:], bound[1:], than)
    return f"{key[0]} >= {bound[0]} AND ({key[0]} > {bound[0]} OR ({key[0]} = {bound[0]} AND {rest}))"


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
