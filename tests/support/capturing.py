"""A server with a row binlog as captures need it, what a reader makes of it, and its rows as the archive decodes them."""

from __future__ import annotations

import base64
import json
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.err import MySQLError

from pumphouse.capture.source.encode import encode
from pumphouse.capture.source.model import Group, Kind, Position, TableMap, Transaction
from pumphouse.capture.source.session import Session, character_sets, position_now
from pumphouse.capture.source.stream import Reader, open_stream
from pumphouse.capture.source.target import Target
from pumphouse.codec import row
from pumphouse.model.binlog import MutationType
from pumphouse.model.table import TableInfo
from pumphouse.schema_import.read import read_schema
from tests.stack.mariadb import MariaDbServer
from tests.support import kind, mariadb, rowreference
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


def end(connection: Connection[Any], session: int) -> None:
    """End another session; one that ended by itself since it was listed is as good."""
    try:
        run(connection, f"KILL {session}")
    except MySQLError as error:
        if error.args[0] != ER.NO_SUCH_THREAD:
            raise


def rows_of(connection: Connection[Any], query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


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
            out += [_decoded(by_id, *found) for found in rowreference.row_changes(value)]
        assert done.changes.sum() >= len(done.changes) or any(each is None for each in targets)
    return out


def _decoded(infos: dict[int, TableInfo], table_id: int, what: MutationType, image: bytes) -> Change:
    info = infos[table_id]

    def named(values: row.Row) -> dict[str, Any]:
        whole = rowreference.project(info, info, values)
        return {info.column_by_id(number).name: value for number, value in whole.items()}

    if what == MutationType.INSERT:
        return info.name, Kind.INSERT, None, named(rowreference.decode_insert(info, image))
    if what == MutationType.UPDATE:
        old, new = rowreference.decode_update(info, image)
        return info.name, Kind.UPDATE, named(old), named(new)
    return info.name, Kind.DELETE, named(rowreference.decode_delete(info, image)), None


def sent(server: MariaDbServer, start: Position) -> bytes:
    """What the source sends from a position to where its binlog ends now; its events have checksums."""
    with server.connect() as connection:
        end = position_now(connection)
    out, room = bytearray(), bytearray(1 << 16)
    session = Session.open(mariadb.settings_of(server), start, section="source", server_id=9, heartbeat_s=0.2)
    reader = Reader(session.flavor, start, summed=session.summed)
    while not reader.position.gtids.covers(end.gtids):
        got = session.read_into(memoryview(room)) or 0
        reader.room()[:got] = memoryview(room)[:got]
        reader.took(got)
        list(reader.groups(1 << 20))
        out += room[:got]
    session.close()
    return bytes(out)


RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "capture"
_HISTORY = (
    (
        "CREATE TABLE shop.t (id INT UNSIGNED PRIMARY KEY, a VARCHAR(40), b DECIMAL(12,3), c DATETIME(3), d TIME(6), e JSON, f ENUM('x','y'),"
        " g BINARY(4), h DOUBLE, i TIMESTAMP(2) NULL, j BIT(12), k TEXT CHARACTER SET latin1)"
    ),
    (
        "INSERT INTO shop.t VALUES (1, 'one', -1.5, '2024-02-29 01:02:03.456', '-12:34:56.789', '{\"a\": [1, 2.5, null], \"b\": {\"c\": \"ü\"}}', 'y',"
        " x'01', -0.25, '2024-01-01 00:00:00.25', 5, 'é'), (4000000000, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    ),
    "BEGIN",
    "UPDATE shop.t SET a = 'two', d = '838:59:59' WHERE id = 1",
    "SAVEPOINT s",
    "DELETE FROM shop.t WHERE id = 1",
    "ROLLBACK TO s",
    "UPDATE shop.t SET id = 2 WHERE id = 1",
    "COMMIT",
    "FLUSH BINARY LOGS",
    "XA START 'x'",
    "INSERT INTO shop.t (id, a) VALUES (3, 'xa')",
    "XA END 'x'",
    "XA PREPARE 'x'",
    "XA COMMIT 'x'",
    "ALTER TABLE shop.t ADD COLUMN l INT DEFAULT 7",
    "DELETE FROM shop.t WHERE id > 2",
)


def recorded(name: str) -> dict[str, Any]:
    """A recording: flavor, start, data (bytes), table (TableInfo's JSON before the last DDL), charsets."""
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found | {"data": zlib.decompress(base64.b64decode(found["data"]))}


def record(directory: Path) -> dict[str, Any]:
    """Play the history on a server of the kind that was chosen; what came from its socket."""
    with source(directory) as server, server.connect(autocommit=True) as connection:
        on, off = (
            ("SET SESSION binlog_transaction_compression = ON",) * 2
            if is_mysql()
            else (
                "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10",
                "SET GLOBAL log_bin_compress = OFF",
            )
        )
        run(connection, "SET time_zone = '+00:00'", "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        start = position_now(connection)
        run(connection, *_HISTORY[:1])
        info = infos_of(connection, "shop")["shop", "t"]
        run(
            connection,
            *_HISTORY[1:],
            on,
            "INSERT INTO shop.t (id, a) VALUES (9, 'compressed compressed compressed')",
            off,
        )
        data = sent(server, start)
        used = {each for each in character_sets(connection).items() if each[1] in ("utf8mb4", "latin1", "binary")}
    return {
        "flavor": str(start.gtids.flavor),
        "start": str(start.gtids),
        "table": info.raw,
        "charsets": dict(sorted(used)),
        "data": base64.b64encode(zlib.compress(data, 9)).decode(),
    }


def main() -> None:
    """``python -m tests.support.capturing``: record both servers anew."""
    RECORDED.mkdir(parents=True, exist_ok=True)
    for each in kind.KINDS:
        kind.choose(each)
        with mariadb.directory_in_memory() as directory:
            (RECORDED / f"{each}.json").write_text(json.dumps(record(directory), indent=1) + "\n")


if __name__ == "__main__":
    main()
