"""0 in an AUTO_INCREMENT column is 0, whatever columns stand beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pumphouse.loader.insert import insert_rows
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from pumphouse.settings import TargetSettings

pytestmark = pytest.mark.row("L1", "L6")


@pytest.fixture(scope="module")
def connection(server: TargetSettings) -> Iterator[TargetConnection]:
    with TargetConnection.open(server) as opened:
        opened.execute("CREATE DATABASE zero")
        yield opened


def rows(ids: list[int], key: MysqlType, *others: MysqlType) -> pa.RecordBatch:
    def field(name: str, tp: MysqlType, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, metadata={b"tp": str(int(tp)).encode()})

    fields = [field("id", key, pa.int64() if key == MysqlType.LONGLONG else pa.float64())]
    fields += [field(f"c{at}", tp, pa.uint64()) for at, tp in enumerate(others)]
    values = [pa.array(ids, fields[0].type), *(pa.array([1] * len(ids), pa.uint64()) for _ in others)]
    return pa.RecordBatch.from_arrays(values, schema=pa.schema(fields))


@pytest.mark.parametrize(("key", "sql"), [(MysqlType.LONGLONG, "BIGINT"), (MysqlType.DOUBLE, "DOUBLE")])
@pytest.mark.parametrize(
    "others",
    [(), (MysqlType.BIT,), (MysqlType.SET,), (MysqlType.ENUM,), (MysqlType.YEAR,), (MysqlType.BIT, MysqlType.SET)],
    ids=lambda others: "+".join(tp.name for tp in others),
)
def test_zero_stays_zero(connection: TargetConnection, key: MysqlType, sql: str, others: tuple[MysqlType, ...]) -> None:
    types = {MysqlType.BIT: "BIT(9)", MysqlType.SET: "SET('a')", MysqlType.ENUM: "ENUM('a')", MysqlType.YEAR: "YEAR"}
    columns = "".join(f", c{at} {types[tp]}" for at, tp in enumerate(others))
    connection.execute(f"CREATE OR REPLACE TABLE zero.t (id {sql} AUTO_INCREMENT PRIMARY KEY{columns})")
    with connection.transaction():
        insert_rows(connection, "`zero`.`t`", rows([7, 0, -3], key, *others))
    assert connection.query("SELECT id + 0 FROM zero.t ORDER BY id") == [(-3,), (0,), (7,)]
