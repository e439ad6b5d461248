"""Text for LOAD DATA."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.loader.columns import Column
from pumphouse.loader.textrows import render, statement
from pumphouse.model.table import MysqlType
from pumphouse.schema.dialect import Dialect

_UNESCAPE = {b"\\\\": b"\\", b"\\t": b"\t", b"\\n": b"\n"}


def read(data: bytes, columns: int) -> list[list[bytes | None]]:
    """What the server makes of it."""
    rows: list[list[bytes | None]] = []
    for line in data.split(b"\n")[:-1]:
        fields: list[bytes | None] = []
        for text in line.split(b"\t"):
            if text == b"\\N":
                fields.append(None)
                continue
            out, at = b"", 0
            while at < len(text):
                pair = text[at : at + 2]
                out += _UNESCAPE.get(pair, text[at : at + 1])
                at += 2 if pair in _UNESCAPE else 1
            fields.append(out)
        rows.append(fields)
        assert len(fields) == columns
    return rows


@pytest.mark.row("L1")
@given(st.lists(st.tuples(st.none() | st.binary(max_size=8), st.none() | st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_any_bytes_come_back(rows: list[tuple[bytes | None, int | None]]) -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([r[0] for r in rows], pa.large_binary()), pa.array([r[1] for r in rows], pa.int64())],
        names=["b", "i"],
    )
    want = [[b, None if i is None else str(i).encode()] for b, i in rows]
    assert read(bytes(render(batch)), 2) == want
    half = len(rows) // 2
    assert read(bytes(render(batch.slice(half))), 2) == want[half:]


@pytest.mark.row("L1")
@given(st.lists(st.none() | st.binary(max_size=8), min_size=1))
def test_a_row_of_one_column_is_a_line(values: list[bytes | None]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.large_binary())], names=["b"])
    assert read(bytes(render(batch)), 1) == [[value] for value in values]


@pytest.mark.row("L1")
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_a_float_comes_back_to_its_four_bytes(values: list[float]) -> None:
    array = pa.array(values, pa.float32())
    text = bytes(render(pa.RecordBatch.from_arrays([array], names=["f"])))
    assert [float(t) for t in text.split()] == array.to_pylist()


def test_values_that_text_would_change_go_through_a_variable() -> None:
    columns = [Column("a`b", MysqlType.LONG), Column("e", MysqlType.ENUM), Column("y", MysqlType.YEAR)]
    text = statement("`d`.`t`", columns, Dialect.MARIADB)
    assert "REPLACE INTO TABLE `d`.`t` CHARACTER SET utf8mb4" in text
    assert text.endswith("(@v0,@v1,@v2) SET `a``b` = @v0,`e` = CAST(@v1 AS UNSIGNED),`y` = CAST(@v2 AS UNSIGNED)")


@pytest.mark.row("L1", "O9")
def test_rows_with_bytes_are_read_as_bytes_where_the_server_checks_every_field() -> None:
    text, data = Column("t", MysqlType.BLOB), Column("b", MysqlType.BLOB, binary=True)
    for dialect, columns in ((Dialect.MYSQL, [text]), (Dialect.MARIADB, [text, data])):
        assert statement("`d`.`t`", columns, dialect) == statement("`d`.`t`", columns, Dialect.TIDB)
    of_bytes = statement("`d`.`t`", [text, data, Column("j", MysqlType.JSON)], Dialect.MYSQL)
    assert "CHARACTER SET binary" in of_bytes
    assert of_bytes.endswith("(@v0,`b`,@v2) SET `t` = CONVERT(@v0 USING utf8mb4),`j` = CONVERT(@v2 USING utf8mb4)")
