"""Reading a MariaDB's binlog, as it came from the socket: packets to transactions to TiDB Binlog's rows, without the socket.

`capture_read` has 3 statements a transaction (5 rows inserted, 3 updated, 2 deleted), `capture_read_single` one statement for
each of the ten rows. The baseline is one copy and one CRC-32 (zlib's) of the same bytes.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

from pumphouse.capture.source.encode import encode
from pumphouse.capture.source.gtid import Flavor
from pumphouse.capture.source.model import Group, Position, TableMap
from pumphouse.capture.source.session import Session, character_sets, position_now
from pumphouse.capture.source.stream import Reader
from pumphouse.capture.source.target import Target
from pumphouse.model.table import TableInfo
from tests.bench.harness import Result, Watch
from tests.support import capturing, mariadb

_TXNS, _REPEATS = 2_000, 20
_CHUNK, _GROUP = 1 << 18, 8 << 20
_VALUES = (
    "({id}, seed % 100000, RPAD(MD5(seed), 119, MD5(seed + 1)), RPAD(SHA1(seed), 59, 'x'), seed % 1000000 / 100, seed % 250,"
    " '2026-01-02 03:04:05', '2026-01-02 03:04:05.678', 'name of some', seed * 7 % 4000000000, RPAD('note', 40, MD5(seed)))"
)
_MANY = (
    f"INSERT INTO d.sbtest VALUES {', '.join(_VALUES.format(id=f'5 * n + {k}') for k in range(5))};"
    "UPDATE d.sbtest SET k = k + 1, c = RPAD(SHA1(seed), 119, c), amount = amount + 1, status = 7 WHERE id BETWEEN 5 * n AND 5 * n + 2;"
    "DELETE FROM d.sbtest WHERE id IN (5 * n + 3, 5 * n + 4);"
)
_SINGLE = "".join(
    [f"INSERT INTO d.sbtest VALUES {_VALUES.format(id=f'5 * n + {k}')};" for k in range(5)]
    + [f"UPDATE d.sbtest SET k = k + 1, c = RPAD(SHA1(seed), 119, c), amount = amount + 1, status = 7 WHERE id = 5 * n + {k};" for k in range(3)]
    + [f"DELETE FROM d.sbtest WHERE id = 5 * n + {k};" for k in (3, 4)]
)  # fmt: skip


@cache
def _recorded(work: Path, statements: str) -> tuple[Position, bytes, TableInfo, dict[int, str]]:
    """Where it begins, what came from the socket, the table, and the server's character sets."""
    with capturing.source(work / f"source-{len(statements)}") as server, server.connect(autocommit=True) as connection:
        capturing.run(
            connection,
            "CREATE DATABASE d",
            "CREATE TABLE d.sbtest (id BIGINT UNSIGNED NOT NULL PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL,"
            " pad CHAR(60) NOT NULL, amount DECIMAL(12,2), status TINYINT UNSIGNED, created DATETIME,"
            " updated TIMESTAMP(3) NULL, name VARCHAR(64), flags INT UNSIGNED, note VARCHAR(255), KEY k (k))"
            " CHARSET utf8mb4 COLLATE utf8mb4_bin",
        )
        start = position_now(connection)
        capturing.run(
            connection,
            "BEGIN NOT ATOMIC DECLARE n, seed BIGINT DEFAULT 1;"
            f" WHILE n <= {_TXNS} DO SET seed = n * 12345 % 1000003; START TRANSACTION; {statements} COMMIT;"
            " SET n = n + 1; END WHILE; END",
        )
        end, out = position_now(connection), bytearray()
        session = Session.open(mariadb.settings_of(server), start, section="source", server_id=9, heartbeat_s=0.2)
        reader, room = Reader(Flavor.MARIADB, start, summed=True), bytearray(_CHUNK)
        while not reader.position.gtids.covers(end.gtids):
            got = session.read_into(memoryview(room)) or 0
            reader.room()[:got] = memoryview(room)[:got]
            reader.took(got)
            for _ in reader.groups(_GROUP):
                pass
            out += room[:got]
        session.close()
        info = capturing.infos_of(connection, "d")["d", "sbtest"]
        return start, bytes(out), info, character_sets(connection)


def _read(start: Position, data: bytes, info: TableInfo, charsets: dict[int, str]) -> tuple[int, int]:
    """(transactions, row changes) of the bytes, every one made a prewrite value."""
    reader = Reader(Flavor.MARIADB, start, summed=True)
    made: dict[TableMap, Target] = {}
    transactions = changes = 0
    for at in range(0, len(data), _CHUNK):
        part = data[at : at + _CHUNK]
        reader.room()[: len(part)] = part
        reader.took(len(part))
        for group in reader.groups(_GROUP):
            if isinstance(group, Group):
                for each in group.tables:
                    if each not in made:
                        made[each] = Target.of(each, info, charsets)
                done = encode(group, [made[each] for each in group.tables])
                for each in group.transactions:
                    done.prewrite_value(each.first, each.last, 7)
                transactions += len(group.transactions)
                changes += int(done.changes.sum())
    return transactions, changes


def _bare(data: bytes) -> float:
    """Seconds for a copy and a checksum of the bytes."""
    began = time.perf_counter()
    for at in range(0, len(data), _CHUNK):
        zlib.crc32(np.frombuffer(data[at : at + _CHUNK], np.uint8).copy())
    return time.perf_counter() - began


def bench(name: str, statements: str, work: Path, runs: int) -> Result:
    """300-byte rows of 11 columns."""
    recorded = _recorded(work, statements)
    _, rows = _read(*recorded)  # kernels compile, or load from their cache
    samples = []
    for _ in range(runs):
        with Watch() as watch:
            found = [_read(*recorded) for _ in range(_REPEATS)]
        transactions = sum(each for each, _ in found)
        samples.append(
            watch.sample(
                sum(each for _, each in found),
                txns_per_s=transactions / watch.seconds,
                mb_per_s=_REPEATS * len(recorded[1]) / 1e6 / watch.seconds,
            )
        )
    return Result(name, "rows/s", samples, "copy + crc32", rows / _bare(recorded[1]))


BENCHES: dict[str, Callable[[Path, int], Result]] = {
    "capture_read": partial(bench, "capture_read", _MANY),
    "capture_read_single": partial(bench, "capture_read_single", _SINGLE),
}
