"""The target's tables as it has them now: columns, keys and how these compare. Read once a table, until a DDL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from pumphouse.errors import LoadError
from pumphouse.loader.columns import Column
from pumphouse.loader.target import TargetConnection
from pumphouse.loader.unfit import require_fit
from pumphouse.model.table import INTEGERS, STRINGS, MysqlType
from pumphouse.replay.change import Shape
from pumphouse.replay.keys import Equality, equality_of
from pumphouse.schema.column_sql import TYPES_CALLED
from pumphouse.settings import TargetSettings

_NUMBERS = INTEGERS | {
    MysqlType.FLOAT, MysqlType.DOUBLE, MysqlType.NEWDECIMAL, MysqlType.YEAR, MysqlType.BIT, MysqlType.ENUM,
    MysqlType.SET,
}  # fmt: skip
_TIMES = frozenset({MysqlType.DATE, MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.TIME})


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a unique key; ``length`` -1 = the whole value."""

    column: str
    equality: Equality
    length: int = -1


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """One unique key, the primary one first."""

    name: str
    parts: tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table of the target: its shape, its unique keys, how each column compares."""

    shape: Shape
    unique: tuple[UniqueKey, ...]
    equality: dict[str, Equality]


class Catalog:
    """Looks tables up, each by a connection of its own: a stream may be idle for longer than a server waits."""

    def __init__(self, settings: TargetSettings, triggers: Collection[str] = ()) -> None:
        """``triggers``: those that rows may fire, as ``database.trigger``."""
        self._settings, self._triggers = settings, {name.lower() for name in triggers}
        self._found: dict[tuple[str, str], Table] = {}

    def table(self, db: str, name: str) -> Table:
        """The table; LoadError when the target has none of that name, or one that rows cannot be put into exactly."""
        found = self._found.get((db, name))
        if found is None:
            with TargetConnection.open(self._settings) as connection:
                require_fit(connection, [(db, name)], self._triggers)
                found = self._found[db, name] = _read(connection, db, name)
        return found

    def forget(self) -> None:
        """A DDL has run: tables may be others now."""
        self._found.clear()


def _read(connection: TargetConnection, db: str, name: str) -> Table:
    rows = connection.query(
        "SELECT COLUMN_NAME, DATA_TYPE, COLLATION_NAME, IS_NULLABLE, GENERATION_EXPRESSION"
        " FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        (db, name),
    )
    if not rows:
        raise LoadError(
            f"target {connection.name} has no table {db}.{name}",
            hint="make it there, or give its CREATE TABLE as a DDL of the stream",
            table=f"{db}.{name}",
        )
    columns, equality, nullable = [], {}, set()
    for column, kind, collation, null, generated in rows:
        tp = TYPES_CALLED.get(str(kind).lower())
        if tp is None:
            raise LoadError(f"column {column} of {db}.{name} is of type {kind}, which binlogs do not have")
        number = Equality.NUMBER if tp in _NUMBERS else Equality.TIME if tp in _TIMES else equality_of(collation)
        equality[str(column)] = Equality.UNKNOWN if generated else number
        if null == "YES":
            nullable.add(str(column))
        if not generated:
            columns.append(Column(str(column), int(tp), binary=tp in STRINGS and not collation))
    unique = _unique(connection, db, name, equality)
    return Table(_shape(db, name, columns, unique, nullable), unique, equality)


def _unique(connection: TargetConnection, db: str, name: str, equality: dict[str, Equality]) -> tuple[UniqueKey, ...]:
    parts: dict[str, list[KeyPart]] = defaultdict(list)
    for index, column, length in connection.query(
        "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX",
        (db, name),
    ):
        # MySQL has keys over expressions, which have no name.
        known = equality.get(str(column), Equality.UNKNOWN)
        parts[str(index)].append(KeyPart(str(column), known, -1 if length is None else int(length)))
    names = sorted(parts, key=lambda index: (index != "PRIMARY", index))
    return tuple(UniqueKey(index, tuple(parts[index])) for index in names)


def _shape(db: str, name: str, columns: list[Column], unique: tuple[UniqueKey, ...], nullable: set[str]) -> Shape:
    """The primary key identifies a row, else a unique key that can hold no NULL; never one over a generated column."""
    places = {column.name: at for at, column in enumerate(columns)}
    for key in unique:
        names = [part.column for part in key.parts]
        whole = all(part.length < 0 and part.equality is not Equality.UNKNOWN for part in key.parts)
        if whole and not nullable.intersection(names):
            return Shape(db, name, tuple(columns), tuple(places[each] for each in names))
    return Shape(db, name, tuple(columns), ())
