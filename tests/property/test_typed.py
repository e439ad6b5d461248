"""Rows as other tools read them, and back: of every type exactly the loader's form."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.codec.datum import Kind, kind_of
from pumphouse.codec.layout import arrow_field
from pumphouse.codec.typed import low_cardinality, typed, untyped
from pumphouse.model.table import MysqlType, TableInfo
from tests.support import rowgen
from tests.support.rowgen import column, field, table

pytestmark = pytest.mark.row("A5")
_TEXT = {"min_size": 0, "max_size": 12}


def odd_values(tp: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a row may have and no typed column can hold, beside what it can."""
    usual = rowgen.values(tp)
    kind = kind_of(table([column(1, 0, tp)]).columns[0].type)
    odd: dict[Kind, st.SearchStrategy[Any]] = {
        Kind.BYTES: st.binary(max_size=12),
        Kind.ENUM: st.integers(0, 2**64 - 1),
        Kind.SET: st.integers(0, 2**64 - 1),
        Kind.DECIMAL: st.text("0123456789.-+e ", **_TEXT),
        Kind.DATE: st.sampled_from(["0000-00-00", "2021-02-31", "2020-1-1", "", "9999-12-31", "0001-01-01"]),
        Kind.DATETIME: st.sampled_from(["0000-00-00 00:00:00", "2021-02-31 01:01:01", "1000-01-01", "x" * 26]),
    }
    return st.none() | (usual | odd[kind] if kind in odd else usual)


@st.composite
def tables_of_rows(draw: st.DrawFn) -> tuple[TableInfo, pa.Table]:
    kinds = draw(st.lists(rowgen.fields(), min_size=1, max_size=4))
    info = table([column(at + 1, at, tp) for at, tp in enumerate(kinds)])
    count = draw(st.integers(0, 8))
    fields = [arrow_field(each) for each in info.columns]
    columns = [
        pa.array(draw(st.lists(odd_values(tp), min_size=count, max_size=count)), each.type)
        for tp, each in zip(kinds, fields, strict=True)
    ]
    return info, pa.Table.from_arrays(columns, schema=pa.schema(fields))


def through_a_file(info: TableInfo, rows: pa.Table) -> pa.Table:
    """Typed, written, read and back."""
    made, sink = typed(rows, {each.id: each for each in info.columns}), BytesIO()
    pq.write_table(made, sink, use_dictionary=low_cardinality(made.schema))
    found = pq.read_table(BytesIO(sink.getvalue()))
    assert found.schema.equals(made.schema)
    return pa.Table.from_batches([untyped(each) for each in found.combine_chunks().to_batches()], rows.schema)


@settings(max_examples=300, deadline=None)
@given(tables_of_rows())
def test_what_was_typed_comes_back_in_the_loaders_form_whatever_it_was(made: tuple[TableInfo, pa.Table]) -> None:
    info, rows = made
    found = through_a_file(info, rows)
    assert found.equals(rows)
    assert found.schema.equals(rows.schema, check_metadata=True)
    found = pa.Table.from_batches(
        [untyped(each) for each in typed(rows, {each.id: each for each in info.columns}).slice(1).to_batches()],
        rows.schema,
    )
    assert found.equals(rows.slice(1))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_usual_values_are_held_by_the_typed_column_alone(data: st.DataObject) -> None:
    tp = data.draw(rowgen.fields())
    info = table([column(1, 0, tp)])
    value, each = data.draw(rowgen.values(tp)), arrow_field(info.columns[0])
    rows = pa.Table.from_arrays([pa.array([value, None], each.type)], schema=pa.schema([each]))
    made = typed(rows, {1: info.columns[0]})
    kind = kind_of(info.columns[0].type)
    if kind in (Kind.DATE, Kind.DATETIME):
        date = value[:10]
        try:
            dt.date.fromisoformat(date)
        except ValueError:
            assert made.column(0)[0].as_py() is None
            return
    assert made.num_columns == 1
    said = made.column(0)[0].as_py()
    if kind is Kind.DECIMAL:
        assert Decimal(said) == Decimal(value)
    elif kind is Kind.DATE:
        assert str(said) == value
    elif kind is Kind.DATETIME:
        assert str(said).startswith(value.rstrip("0").rstrip(".") if "." in value else value)
    elif kind is Kind.BYTES and tp["Charset"] != "binary":
        assert said == value.decode()
    elif kind is Kind.ENUM:
        assert said == ["", *tp["Elems"]][value]
    elif kind is Kind.SET:
        assert said == ",".join(name for at, name in enumerate(tp["Elems"]) if value >> at & 1)
    else:
        assert said == value


def test_a_day_that_no_calendar_has_stands_beside_the_column_and_comes_back() -> None:
    days = ["2021-02-31", "1900-02-29", "2000-02-29", "2021-04-31", "0000-00-00", "2021-12-31"]
    info = table([column(1, 0, field(MysqlType.DATE))])
    each = arrow_field(info.columns[0])
    rows = pa.Table.from_arrays([pa.array(days, each.type)], schema=pa.schema([each]))
    made = typed(rows, {1: info.columns[0]})
    assert made.column(0).to_pylist() == [None, None, dt.date(2000, 2, 29), None, None, dt.date(2021, 12, 31)]
    assert through_a_file(info, rows).equals(rows)


def test_a_name_that_is_taken_and_an_element_without_a_name_stay_apart() -> None:
    enum = field(MysqlType.ENUM, 0, 1, 0, "utf8mb4", ["", "a"])
    info = table([column(1, 0, enum) | {"name": "e"}, column(2, 1, field(MysqlType.LONG)) | {"name": "E__exact"}])
    fields = [arrow_field(each) for each in info.columns]
    rows = pa.Table.from_arrays([pa.array([0, 1, 2], pa.uint64()), pa.array([7, 8, 9])], schema=pa.schema(fields))
    made = typed(rows, {each.id: each for each in info.columns})
    assert made.schema.names == ["e", "e__exact_", "E__exact"]
    assert made.column("e").to_pylist() == [None, "", "a"]
    assert made.column("e__exact_").to_pylist() == [0, None, None]
    assert through_a_file(info, rows).equals(rows)


def test_text_of_an_element_that_is_no_text_stays_a_number() -> None:
    info = table([column(1, 0, field(MysqlType.ENUM, 0, 1, 0, "utf8mb4", ["\udcff"]))])
    each = arrow_field(info.columns[0])
    rows = pa.Table.from_arrays([pa.array([1], pa.uint64())], schema=pa.schema([each]))
    assert typed(rows, {1: info.columns[0]}).equals(rows)


def test_text_that_is_no_utf8_takes_no_longer_and_all_other_text_stays_text() -> None:
    rng = np.random.default_rng(7)
    edges = [b"\x7f", b"\xc2\x80", b"\xc1\x80", b"\xe0\x9f\x80", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80",
             b"\xf0\x8f\x80\x80", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"", None]  # fmt: skip
    some = [*edges, *(rng.bytes(int(n)) for n in rng.integers(1, 5, 200_000))]
    info = table([column(1, 0, field(MysqlType.VARCHAR, 0, 20, 0, "utf8mb4"))])
    of = {each.id: each for each in info.columns}
    rows = pa.Table.from_arrays([pa.array(some, pa.large_binary())], schema=pa.schema([arrow_field(info.columns[0])]))
    typed(rows.slice(0, len(edges)), of)  # its kernels are compiled
    begun = time.process_time()
    found = typed(rows, of)
    assert time.process_time() - begun < 1.0
    assert found.column(0).to_pylist() == [_decoded(each) for each in some]
    assert through_a_file(info, rows).equals(rows)


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
