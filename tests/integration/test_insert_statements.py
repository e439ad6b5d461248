"""Rows that are inserted by statements, as into a TiDB, are those that LOAD DATA makes: on a real MariaDB, type by type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from pumphouse.loader.insert import Collided, Rejected, insert_rows
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.schema.dialect import Dialect
from pumphouse.settings import TargetSettings
from tests.support.loading import drop_all

pytestmark = [pytest.mark.row("L1", "L4", "O9"), pytest.mark.mysql]

TABLE = """CREATE TABLE {name} (id BIGINT UNSIGNED PRIMARY KEY, ti TINYINT, c VARCHAR(200) COLLATE utf8mb4_general_ci,
 g VARCHAR(50) CHARACTER SET gbk, a CHAR(9) CHARACTER SET ascii, tx LONGTEXT, bl LONGBLOB, bn BINARY(4), f FLOAT, db DOUBLE,
 e ENUM('a','b','2'), s SET('x','y'), bi BIT(64), y YEAR, d DATE, dt DATETIME(6), tm TIME(3), de DECIMAL(65,30), j JSON,
 ts TIMESTAMP(3) NULL)"""
COUNT = 400
EVERY_BYTE = bytes(range(256))
TEXTS = ["nä'\"\\", "\\'", "'", "\\", "\0\x1a", "\t\n\r\\N", "NULL", "", "你好😀", "%_", "/* -- */ #", "`", "\\0\\Z"]
NUMBERS = [0.0, -0.0, 0.1, -1.5e300, 5e-324, 1e20, 16777216.0, 2**53 + 1.0, -1e-5]
DECIMALS = ["0.000000000000000000000000000001", "-" + "9" * 35 + "." + "9" * 30, "0.000000000000000000000000000000"]


def column(
    name: str, tp: MysqlType, kind: pa.DataType, some: list[object], *, binary: bool = False
) -> tuple[pa.Field, pa.Array]:
    """``some`` again and again, with a NULL among them."""
    some = some if name == "id" else [*some, None]
    metadata = {b"tp": str(int(tp)).encode()} | ({b"binary": b"1"} if binary else {})
    return pa.field(name, kind, metadata=metadata), pa.array([some[i % len(some)] for i in range(COUNT)], kind)


def everything() -> pa.RecordBatch:
    text, many, number = pa.large_string(), pa.large_binary(), pa.uint64()
    rng = np.random.default_rng(7)
    columns = [
        column("id", MysqlType.LONGLONG, number, [(1 << 64) - 1 - i for i in range(COUNT)]),
        column("ti", MysqlType.TINY, pa.int64(), [-128, 0, 127]),
        column("c", MysqlType.VARCHAR, many, [each.encode() for each in TEXTS]),
        column("g", MysqlType.VARCHAR, many, ["你'\\好".encode(), b"a"]),
        column("a", MysqlType.STRING, many, [b"a'\\", b"a  ", b""]),
        column("tx", MysqlType.LONG_BLOB, many, [("é'\\" * 9000).encode()]),
        column("bl", MysqlType.LONG_BLOB, many, [EVERY_BYTE, b"", b"\0", rng.bytes(999), b"\xff'\\"], binary=True),
        column("bn", MysqlType.STRING, many, [b"\0\0\0\0", b"\xff'\\\n"], binary=True),
        column("f", MysqlType.FLOAT, pa.float32(), [0.0, 0.1, -3.4e38, 1e-45, 16777216.0]),
        column("db", MysqlType.DOUBLE, pa.float64(), NUMBERS),
        column("e", MysqlType.ENUM, number, [0, 1, 2, 3]),
        column("s", MysqlType.SET, number, [0, 1, 2, 3]),
        column("bi", MysqlType.BIT, number, [0, 1, (1 << 64) - 1]),
        column("y", MysqlType.YEAR, pa.int64(), [0, 1901, 2155]),
        column("d", MysqlType.DATE, text, ["0000-00-00", "2026-02-00", "2023-02-31", "9999-12-31"]),
        column("dt", MysqlType.DATETIME, text, ["0000-00-00 00:00:00.000000", "2026-11-21 07:30:00.123456"]),
        column("tm", MysqlType.TIME, text, ["-838:59:59.000", "00:00:00.001"]),
        column("de", MysqlType.NEWDECIMAL, text, list(DECIMALS)),
        column("j", MysqlType.JSON, text, ['{"a": "x\\\\n\\"y\\"\'"}', "1e300", "[]", '"\\u0000"']),
        column("ts", MysqlType.TIMESTAMP, text, ["0000-00-00 00:00:00.000", "2026-03-29 02:30:00.500"]),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(
        [values for _, values in columns], schema=pa.schema([field for field, _ in columns])
    )


@pytest.fixture
def loading(server: TargetSettings) -> Iterator[TargetConnection]:
    with TargetConnection.open(server) as connection:
        drop_all(connection)
        connection.execute("CREATE DATABASE d")
        yield connection


@pytest.fixture
def stating(server: TargetSettings) -> Iterator[TargetConnection]:
    """A session that inserts as into a TiDB."""
    with TargetConnection.open(server) as connection:
        connection.dialect = Dialect.TIDB
        yield connection


def test_statements_put_what_load_data_puts(loading: TargetConnection, stating: TargetConnection) -> None:
    rows = everything()
    for connection, name in ((loading, "d.loaded"), (stating, "d.stated")):
        connection.execute(TABLE.format(name=name))
        with connection.transaction():
            insert_rows(connection, name, rows)
            # Both sides of a cut, and a slice of the arrays.
            connection.execute(f"DELETE FROM {name} WHERE id > 18446744073709551600")
            insert_rows(connection, name, rows.slice(0, 15))
    names = rows.schema.names
    shown = ", ".join(
        f"HEX({name}), {name} + 0" if name in ["e", "s", "bi", "y", "db", "f"] else f"HEX({name})" for name in names
    )
    found = [loading.query(f"SELECT {shown} FROM {name} ORDER BY id") for name in ("d.loaded", "d.stated")]
    assert len(found[0]) == COUNT
    assert found[0] == found[1]
    # Not both wrong: what is no text is told from the values themselves.
    said = stating.query("SELECT bl, db, e + 0, tx FROM d.stated ORDER BY id DESC")
    want = rows.to_pydict()
    assert [row[0] for row in said] == want["bl"]
    assert [row[1] for row in said] == want["db"]
    assert [row[2] for row in said] == want["e"]
    assert [None if row[3] is None else row[3].encode() for row in said] == want["tx"]


def some(*ids: int, c: bytes = b"x") -> pa.RecordBatch:
    fields = [
        pa.field("id", pa.int64(), metadata={b"tp": b"3"}),
        pa.field("c", pa.large_binary(), metadata={b"tp": b"15"}),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([c] * len(ids), pa.large_binary())], schema=pa.schema(fields)
    )


def test_a_row_that_is_there_is_a_collision_and_one_that_would_be_bent_is_refused(
    loading: TargetConnection, stating: TargetConnection
) -> None:
    loading.execute("CREATE TABLE d.t (id INT PRIMARY KEY, c VARCHAR(3), n INT AS (id * 2) STORED)")
    insert_rows(stating, "d.t", some(1, 2))
    with pytest.raises(Collided):
        insert_rows(stating, "d.t", some(3, 2))
    with pytest.raises(Rejected, match="Data too long") as refused:
        insert_rows(stating, "d.t", some(4, c=b"long"))
    assert refused.value.row == 0
    assert loading.query("SELECT id FROM d.t ORDER BY id") == [(1,), (2,)]


def test_a_row_that_no_statement_can_carry_is_named(loading: TargetConnection, stating: TargetConnection) -> None:
    loading.execute("CREATE TABLE d.t (id INT PRIMARY KEY, c LONGTEXT)")
    stating.max_packet = 100_000
    insert_rows(stating, "d.t", some(*range(10), c=b"x" * 90_000))
    with pytest.raises(Rejected, match=r"the server takes 100000 \(max_allowed_packet\)") as refused:
        insert_rows(stating, "d.t", some(10, c=b"x" * 100_000))
    assert (refused.value.row, refused.value.batch.column("id")[0].as_py()) == (0, 10)
    assert loading.value("SELECT COUNT(*) FROM d.t") == 10
