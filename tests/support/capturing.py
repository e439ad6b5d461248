"""A server with a row binlog as captures need it, what a reader makes of it, and its rows as the archive decodes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from pumphouse.capture.source.encode import encode
from pumphouse.capture.source.model import Group, Kind, Position, TableMap, Transaction
from pumphouse.capture.source.session import position_now
from pumphouse.capture.source.stream import open_stream
from pumphouse.capture.source.target import Target
from pumphouse.codec import payload, row
from pumphouse.model.binlog import MutationType
from pumphouse.model.table import TableInfo
from pumphouse.schema_import.read import read_schema
from tests.stack.mariadb import MariaDbServer
from tests.support import mariadb
from tests.support.kind import is_mysql

Change = tuple[str, Kind, dict[str, Any] | None, dict[str, Any] | None]


def arguments(server_id: int = 1) -> tuple[str, ...]:
    """What a source has set."""
    common = (f"--server-id={server_id}", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL")
    if is_mysql():
        return (*common, "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--log-replica-updates=ON")
    return (*common, "--gtid-strict-mode=ON", "--log-slave-updates=ON")


@contextmanager
def source(directory: Path, *more: str, server_id: int = 1) -> Iterator[MariaDbServer]:
    """A server of the kind that was chosen, with its binlog."""
    with mariadb.server_in(directory, arguments=(*arguments(server_id), *more)) as server:
        yield server


def run(connection: Connection[Any], *statements: str) -> None:
    """Statements, one after the other."""
    with connection.cursor() as cursor:
        for each in statements:
            cursor.execute(each)


def rows_of(connection: Connection[Any], query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def charsets_of(connection: Connection[Any]) -> dict[int, str]:
    """Character sets by the ids of their collations."""
    table = "COLLATIONS" if is_mysql() else "COLLATION_CHARACTER_SET_APPLICABILITY"
    return {
        int(number): str(name)
        for number, name in rows_of(connection, f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table}")
        if number is not None
    }


def infos_of(connection: Connection[Any], database: str) -> dict[tuple[str, str], TableInfo]:
    """The tables as `schema import` would write them, with ids."""
    found, _ = read_schema(connection, database, ())
    infos = {}
    for number, (name, raw) in enumerate(sorted(found.tables.items()), 100):
        columns = [each | {"id": at + 1, "offset": at} for at, each in enumerate(raw["cols"])]
        places = {each["name"]["L"]: at for at, each in enumerate(columns)}
        for index in raw["index_info"] or ():
            for part in index["idx_cols"]:
                part["offset"] = places[part["name"]["L"]]
        infos[name] = TableInfo.from_dict(raw | {"id": number, "cols": columns})
    return infos


@dataclass
class Read:
    """What a reader gave until it had everything."""

    groups: list[Group] = field(default_factory=list)
    position: Position | None = None

    @property
    def transactions(self) -> list[Transaction]:
        return [each for group in self.groups for each in group.transactions]

    @property
    def statements(self) -> list[str]:
        return [query.text.decode() for each in self.transactions for query in each.queries]

    @property
    def tables(self) -> dict[str, TableMap]:
        return {each.table: each for group in self.groups for each in group.tables}


def read(
    server: MariaDbServer, start: Position, *, end: Position | None = None, timeout_s: float = 60, **options: Any
) -> Read:
    """Read from a position to where the binlog ends now."""
    with server.connect() as connection:
        end = end or position_now(connection)
    out, stop = Read(), threading.Event()
    began = time.monotonic()
    options = {"server_id": 4711, "heartbeat_s": 0.5, "stop": stop} | options
    with open_stream(mariadb.settings_of(server), start, section="source", **options) as stream:
        for each in stream:
            out.position = each.end if isinstance(each, Group) else each.position
            if isinstance(each, Group):
                out.groups.append(each)
            if _reached(out.position, end):
                break
            assert time.monotonic() - began < timeout_s, f"read up to {out.position}, not to {end}"
    return out


def _reached(position: Position, end: Position) -> bool:
    if position.gtids:
        return position.gtids.covers(end.gtids)
    return (position.file, position.offset) >= (end.file, end.offset)


def changes(
    groups: Sequence[Group], infos: dict[tuple[str, str], TableInfo], charsets: dict[int, str], database: str = ""
) -> list[Change]:
    """Row changes as the archive's codec decodes what is encoded: table, kind, old and new values by column."""
    made: dict[TableMap, Target | None] = {}
    out: list[Change] = []
    for group in groups:
        for each in group.tables:
            if each not in made:
                info = infos.get(each.name)
                made[each] = None if info is None else Target.of(each, info, charsets)
        by_id = {target.table_id: target.info for target in made.values() if target is not None}
        targets = [made[each] for each in group.tables]
        done = encode(group, targets)
        for transaction in group.transactions:
            value = done.prewrite_value(transaction.first, transaction.last, 7)
            out += [_decoded(by_id, *found) for found in payload.row_changes(value)]
        assert done.changes.sum() >= len(done.changes) or any(each is None for each in targets)
    return out


def _decoded(infos: dict[int, TableInfo], table_id: int, kind: MutationType, image: bytes) -> Change:
    info = infos[table_id]

    def named(values: row.Row) -> dict[str, Any]:
        whole = row.project(info, info, values)
        return {info.column_by_id(number).name: value for number, value in whole.items()}

    if kind == MutationType.INSERT:
        return info.name, Kind.INSERT, None, named(row.decode_insert(info, image))
    if kind == MutationType.UPDATE:
        old, new = row.decode_update(info, image)
        return info.name, Kind.UPDATE, named(old), named(new)
    return info.name, Kind.DELETE, named(row.decode_delete(info, image)), None
