"""A source's schema as the statements that make it anew: read from a server, kept beside the history.

    <history's table>_shadow (capture, number, gtid, shadow)   the whole schema after the number-th change

The journal says which number counts, and so does the key of each P; ``gtid`` is the source's position behind the
change: a capture that has lost its journal finds its schema by them. The shadow is built from it at each start. It is
more than the DDL jobs say: foreign keys, engines and FULLTEXT indexes are in it, as later statements may name them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from pymysql.constants import ER
from pymysql.err import MySQLError

from pumphouse.capture.source.gtid import GtidSet
from pumphouse.errors import CorruptionError
from pumphouse.mysql import ServerConnection
from pumphouse.schema.actions import is_system
from pumphouse.schema.history import MysqlTableSource
from pumphouse.schema.ident import qualified, quote

FORMAT_VERSION = 1
_SUFFIX = "_shadow"
# A view reads what is not there, or what its definer may not see: no statement makes it anew.
_NO_VIEW = {ER.VIEW_INVALID, ER.NO_SUCH_TABLE, ER.VIEW_NO_EXPLAIN, ER.BAD_DB_ERROR}
_UTC = {"UTC", "ETC/UTC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One object and the statement that makes it. ``kind``: database, table, sequence or view."""

    kind: str
    database: str
    name: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """What of a server decides how it reads a statement: it is the same on the shadow."""

    version: str
    lower_case_table_names: int
    character_set: str
    collation: str
    time_zone: str
    """Of sessions that say nothing else."""
    system_is_utc: bool
    """Whether the zone SYSTEM is UTC; any other one is not known."""
    explicit_defaults: bool
    """explicit_defaults_for_timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    """A whole schema.

    ``unfollowed``: (database, name) of left-out tables whose form on the source is not known; none of the objects.
    """

    server: ServerKind
    objects: tuple[Made, ...] = field(default=())
    unfollowed: frozenset[tuple[str, ...]] = frozenset()

    def to_json(self) -> bytes:
        """The file."""
        server = {name: getattr(self.server, name) for name in ServerKind.__slots__}
        objects = [[each.kind, each.database, each.name, each.sql] for each in self.objects]
        value: dict[str, Any] = {"format_version": FORMAT_VERSION, "server": server, "objects": objects}
        if self.unfollowed:
            value["unfollowed"] = sorted(self.unfollowed)
        return json.dumps(value).encode()

    @classmethod
    def from_json(cls, name: str, data: bytes) -> Self:
        """Read it; CorruptionError, which has its ``name``."""
        try:
            value = json.loads(data)
            version = value["format_version"]
            server = ServerKind(**value["server"])
            objects = tuple(
                Made(kind=kind, database=db, name=name, sql=sql) for kind, db, name, sql in value["objects"]
            )
            unfollowed = frozenset((str(db), str(name)) for db, name in value.get("unfollowed", ()))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{name} is no stored schema: {error!r}") from error
        if version != FORMAT_VERSION:
            raise CorruptionError(f"{name} has format_version {version}, this program reads {FORMAT_VERSION}")
        return cls(server=server, objects=objects, unfollowed=unfollowed)


class Schemas:
    """The stored schemas of one capture. HistoryUnavailable where the history's server does not answer.

    ``held``: raises CaptureFenced where another process runs it by now, whose schemas these are then.
    """

    def __init__(self, history: MysqlTableSource, capture_id: str, held: Callable[[], None]) -> None:
        self._history = history
        self._capture = capture_id
        self._held = held
        self._name = qualified(history.schema, f"{history.table}{_SUFFIX}")

    def create(self) -> None:
        """Make the table where there is none; a statement that changes nothing would be in the source's binlog too."""
        with self._history.session() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
                (self._history.schema, f"{self._history.table}{_SUFFIX}"),
            )
            if cursor.fetchone():
                return
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quote(self._history.schema)}")
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self._name} (capture VARCHAR(40) CHARACTER SET ascii NOT NULL,"
                " number BIGINT NOT NULL, gtid LONGTEXT CHARACTER SET ascii NOT NULL, shadow LONGBLOB NOT NULL,"
                " PRIMARY KEY (capture, number)) ENGINE=InnoDB"
            )

    def save(self, number: int, gtid: str, schema: StoredSchema) -> None:
        """Write one; the journal names it afterwards, or never: the same number may be written again."""
        data = zlib.compress(schema.to_json(), 6)
        self._held()
        with self._history.session() as connection, connection.cursor() as cursor:
            cursor.execute(
                f"REPLACE INTO {self._name} VALUES (%s, %s, %s, _binary %s)",  # noqa: S608
                (self._capture, number, gtid, data),
            )

    def load(self, number: int) -> StoredSchema:
        """Read one; CorruptionError where it is not there."""
        rows = self._select("shadow", "AND number = %s", number)
        if not rows:
            raise CorruptionError(
                f"the journal names schema {number} of the capture {self._capture}, and {self._name} on the history's "
                "server does not have it",
                hint="put the table back; or `pumphouse capture run --anew` begins anew (docs/capture.md)",
            )
        try:
            data = zlib.decompress(rows[0][0])
        except zlib.error as error:
            raise CorruptionError(f"schema {number} in {self._name} does not read: {error}") from error
        return StoredSchema.from_json(f"schema {number} in {self._name}", data)

    def newest(self) -> int:
        """The largest number; 0 = there is none."""
        return int(self._select("COALESCE(MAX(number), 0)", "")[0][0])

    def at(self, gtids: GtidSet) -> int | None:
        """The number of the newest whose statement a position covers; None where there is none."""
        found = self._select("number, gtid", "ORDER BY number DESC")
        return next(
            (int(number) for number, text in found if gtids.covers(GtidSet.parse(str(text), gtids.flavor))), None
        )

    def position(self, number: int) -> str | None:
        """What of the source was passed when its rows began; None where it is not there."""
        rows = self._select("gtid", "AND number = %s", number)
        return str(rows[0][0]) if rows else None

    def drop_before(self, number: int) -> None:
        """Remove older ones, which nothing names any more."""
        with self._history.session() as connection, connection.cursor() as cursor:
            cursor.execute(
                f"DELETE FROM {self._name} WHERE capture = %s AND number < %s",  # noqa: S608
                (self._capture, number),
            )

    def _select(self, columns: str, where: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._history.session() as connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {columns} FROM {self._name} WHERE capture = %s {where}",  # noqa: S608
                (self._capture, *arguments),
            )
            return list(cursor.fetchall())


def server_kind(connection: ServerConnection) -> ServerKind:
    """Of a server."""
    ((version, lower, charset, collation, zone, system, explicit),) = _rows(
        connection,
        "SELECT VERSION(), @@lower_case_table_names, @@character_set_server, @@collation_server,"
        " @@global.time_zone, @@system_time_zone, @@global.explicit_defaults_for_timestamp",
    )
    return ServerKind(
        version=str(version),
        lower_case_table_names=int(lower),
        character_set=str(charset),
        collation=str(collation),
        time_zone=str(zone),
        system_is_utc=str(system).upper() in _UTC,
        explicit_defaults=bool(explicit),
    )


def read_objects(connection: ServerConnection) -> tuple[Made, ...]:
    """Every object of a server, in an order in which they can be made; what a view needs may come behind it."""
    return tuple(_objects(connection))


def _objects(connection: ServerConnection) -> Iterator[Made]:
    for name, charset, collation in _rows(
        connection,
        "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA"
        " ORDER BY SCHEMA_NAME",
    ):
        if not is_system(str(name)):
            sql = f"CREATE DATABASE {quote(str(name))} CHARACTER SET {charset} COLLATE {collation}"
            yield Made(kind="database", database=str(name), name="", sql=sql)
    kinds = {"BASE TABLE": "table", "SYSTEM VERSIONED": "table", "SEQUENCE": "sequence", "VIEW": "view"}
    found = [
        (kinds.get(str(kind), ""), str(db), str(name))
        for db, name, kind in _rows(
            connection,
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES"
            " ORDER BY TABLE_TYPE = 'VIEW', TABLE_SCHEMA, TABLE_NAME",
        )
        if not is_system(str(db))
    ]
    for kind, db, name in found:
        word = {"table": "TABLE", "sequence": "SEQUENCE", "view": "VIEW"}.get(kind)
        if word is None:
            continue
        try:
            row = _bytes(connection, f"SHOW CREATE {word} {quote(db)}.{quote(name)}")
        except MySQLError as error:
            if kind == "view" and error.args and error.args[0] in _NO_VIEW:
                continue
            raise
        yield Made(kind=kind, database=db, name=name, sql=row[1].decode("utf-8", "surrogateescape"))


def _rows(connection: ServerConnection, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def _bytes(connection: ServerConnection, sql: str) -> tuple[bytes, ...]:
    """One row as bytes: a default may be no text."""
    connection.use_unicode = False
    try:
        return tuple(map(bytes, _rows(connection, sql)[0]))
    finally:
        connection.use_unicode = True
