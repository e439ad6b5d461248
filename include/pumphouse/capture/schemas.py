"""A source's schema as the statements that make it anew: read from a server, kept beside the journal.

    <directory>/schema/<number>.json   the whole schema after the number-th change; the journal says which one counts

The shadow is built from it at each start. It is more than the DDL jobs say: foreign keys, engines and FULLTEXT indexes
are in it, as later statements may name them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pymysql.constants import ER
from pymysql.err import MySQLError

from pumphouse.durable import PRIVATE_DIR, PRIVATE_FILE, make_dirs, write_atomic
from pumphouse.errors import CorruptionError
from pumphouse.mysql import ServerConnection
from pumphouse.schema.actions import is_system
from pumphouse.schema.ident import quote

FORMAT_VERSION = 1
# A view reads what is not there, or what its definer may not see: no statement makes it anew.
_NO_VIEW = {ER.VIEW_INVALID, ER.NO_SUCH_TABLE, ER.VIEW_NO_EXPLAIN}
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
    """A whole schema."""

    server: ServerKind
    objects: tuple[Made, ...] = field(default=())

    def to_json(self) -> bytes:
        """The file."""
        server = {name: getattr(self.server, name) for name in ServerKind.__slots__}
        objects = [[each.kind, each.database, each.name, each.sql] for each in self.objects]
        return json.dumps({"format_version": FORMAT_VERSION, "server": server, "objects": objects}).encode()

    @classmethod
    def from_json(cls, path: Path, data: bytes) -> Self:
        """Read it; CorruptionError."""
        try:
            value = json.loads(data)
            version = value["format_version"]
            server = ServerKind(**value["server"])
            objects = tuple(
                Made(kind=kind, database=db, name=name, sql=sql) for kind, db, name, sql in value["objects"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path} is no stored schema: {error!r}", path=str(path)) from error
        if version != FORMAT_VERSION:
            raise CorruptionError(f"{path} has format_version {version}, this program reads {FORMAT_VERSION}")
        return cls(server=server, objects=objects)


class Schemas:
    """The stored schemas of one capture."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "schema"
        make_dirs(self._folder, PRIVATE_DIR)

    def save(self, number: int, schema: StoredSchema) -> None:
        """Write one; the journal names it afterwards, or never: the same number may be written again."""
        write_atomic(self._path(number), schema.to_json(), PRIVATE_FILE)

    def load(self, number: int) -> StoredSchema:
        """Read one; CorruptionError where it is not there."""
        path = self._path(number)
        try:
            return StoredSchema.from_json(path, path.read_bytes())
        except FileNotFoundError:
            raise CorruptionError(
                f"the journal names {path}, which is not there",
                hint="put it back; or `pumphouse capture run --anew` begins anew (docs/capture.md)",
                path=str(path),
            ) from None

    def drop_before(self, number: int) -> None:
        """Remove older ones, which nothing names any more."""
        for path in self._folder.glob("[0-9]*.json"):
            if int(path.stem) < number:
                path.unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010d}.json"


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
