"""0 in an AUTO_INCREMENT column is 0, whatever columns stand beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pumphouse.loader.insert import insert_rows
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.settings import TargetSettings

pytestmark = [pytest.mark.row("L1", "L6", "O9"), pytest.mark.mysql]


@pytest.fixture(scope="module")
def connection(server: TargetSettings) -> Iterator[TargetConnection]:
    with TargetConnection.open(server) as opened:
        opened.execute("CREATE DATABASE zero")
        yield opened


def rows(ids: list[int], key: MysqlType, *others: MysqlType) -> pa.RecordBatch:
    def field(name: str, tp: MysqlType, kind: pa.DataType) -> pa.Field:
        binary = {b"binary": b"1"} if tp == MysqlType.BLOB else {}
        return pa.field(name, kind, metadata={b"tp": str(int(tp)).encode()} | binary)

    fields = [field("id", key, pa.int64() if key == MysqlType.LONGLONG else pa.float64())]
    kinds = [pa.large_binary() if tp == MysqlType.BLOB else pa.uint64() for tp in others]
    fields += [field(f"c{at}", tp, kind) for at, (tp, kind) in enumerate(zip(others, kinds, strict=True))]
    values = [pa.array([b"\xff" if pa.types.is_large_binary(f.type) else 1] * len(ids), f.type) for f in fields[1:]]
    values.insert(0, pa.array(ids, fields[0].type))
    return pa.RecordBatch.from_arrays(values, schema=pa.schema(fields))


@pytest.mark.parametrize(
    ("key", "sql"),
    [
        (MysqlType.LONGLONG, "BIGINT"),
        pytest.param(MysqlType.DOUBLE, "DOUBLE", marks=pytest.mark.mariadb("MySQL has no AUTO_INCREMENT of floats")),
    ],
)
@pytest.mark.parametrize(
    "others",
    [
        (),
        (MysqlType.BIT,),
        (MysqlType.SET,),
        (MysqlType.ENUM,),
        (MysqlType.YEAR,),
        (MysqlType.BIT, MysqlType.SET),
        (MysqlType.BLOB,),
    ],
    ids=lambda others: "+".join(tp.name for tp in others),
)
def test_zero_stays_zero(connection: TargetConnection, key: MysqlType, sql: str, others: tuple[MysqlType, ...]) -> None:
    types = {
        MysqlType.BIT: "BIT(9)", MysqlType.SET: "SET('a')", MysqlType.ENUM: "ENUM('a')", MysqlType.YEAR: "YEAR",
        MysqlType.BLOB: "BLOB",
    }  # fmt: skip
    columns = "".join(f", c{at} {types[tp]}" for at, tp in enumerate(others))
    connection.execute("DROP TABLE IF EXISTS zero.t")
    connection.execute(f"CREATE TABLE zero.t (id {sql} AUTO_INCREMENT PRIMARY KEY{columns})")
    with connection.transaction():
        insert_rows(connection, "`zero`.`t`", rows([7, 0, -3], key, *others))
    assert connection.query("SELECT id + 0 FROM zero.t ORDER BY id") == [(-3,), (0,), (7,)]
