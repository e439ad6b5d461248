"""Rows of tables with columns that the server computes: its notes on those are no fault of the rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pumphouse.loader.insert import Rejected, insert_rows
from pumphouse.loader.target import TargetConnection
from pumphouse.model.table import MysqlType
from tests.support import mariadb

pytestmark = pytest.mark.row("L6")


def rows(count: int, total: str) -> pa.RecordBatch:
    def field(name: str, tp: MysqlType, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, metadata={b"tp": str(int(tp)).encode()})

    fields = [field("id", MysqlType.LONGLONG, pa.int64()), field("total", MysqlType.NEWDECIMAL, pa.large_string())]
    values = [pa.array(range(count), pa.int64()), pa.array([total] * count, pa.large_string())]
    return pa.RecordBatch.from_arrays(values, schema=pa.schema(fields))


def test_a_rounded_stored_column_is_taken_and_a_rounded_value_of_ours_is_not() -> None:
    with mariadb.in_memory() as settings, TargetConnection.open(settings) as connection:
        connection.execute("CREATE DATABASE d")
        connection.execute(
            "CREATE TABLE d.t (id BIGINT PRIMARY KEY, total DECIMAL(14,2), vat DECIMAL(14,2) AS (total * 0.217) STORED)"
        )
        with connection.transaction():
            # More rows than the server keeps notes of.
            insert_rows(connection, "`d`.`t`", rows(70_000, "10.11"))
        assert connection.query("SELECT COUNT(*), MIN(vat), MAX(vat) FROM d.t")[0][0] == 70_000
        connection.execute("TRUNCATE d.t")
        with pytest.raises(Rejected, match="total"), connection.transaction():
            insert_rows(connection, "`d`.`t`", rows(3, "10.119"))
        assert connection.value("SELECT COUNT(*) FROM d.t") == 0


def test_what_a_source_cut_of_a_computed_value_is_cut_alike_and_nothing_else_is_cut_with_it() -> None:
    with mariadb.in_memory() as settings, TargetConnection.open(settings) as connection:
        connection.execute("CREATE DATABASE d")
        connection.execute(
            "CREATE TABLE d.t (g TINYINT AS (total) STORED, id BIGINT PRIMARY KEY, total DECIMAL(14,2),"
            " f INT AS (CAST(CONCAT('no ', total) AS SIGNED)) STORED, n INT AS (CONCAT(total, ' for column ''id''')) STORED)"
        )
        with connection.transaction():
            # More rows than the server keeps warnings of.
            insert_rows(connection, "`d`.`t`", rows(70_000, "1000.11"))
        found = connection.query("SELECT COUNT(*), MIN(g), MAX(g), MAX(f), MIN(n) FROM d.t")
        assert found == [(70_000, 127, 127, 0, 1000)]
        assert connection.value("SELECT @@sql_mode LIKE '%STRICT_TRANS_TABLES%'") == 1
        connection.execute("TRUNCATE d.t")
        for wrong in ("1000.119", "12345678901234.11"):
            with pytest.raises(Rejected, match="total"), connection.transaction():
                insert_rows(connection, "`d`.`t`", rows(3, wrong))
        assert connection.value("SELECT COUNT(*) FROM d.t") == 0
