"""INSERT statements from Arrow batches: all rows, in their order, within a size."""

import itertools
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.loader.literals import inserts, lists

pytestmark = pytest.mark.row("L1")
_PLAIN = {b"\\\\": b"\\", b"\\'": b"'", b"\\0": b"\0"}
_ROW = re.compile(
    rb"\((NULL|_binary'(?P<b>(?:[^'\\]|\\.)*)'),(NULL|'(?P<t>(?:[^'\\]|\\.)*)'),(NULL|(?P<i>-?\d+))\)", re.DOTALL
)
Row = tuple[bytes | None, str | None, int | None]


def batch(rows: list[Row]) -> pa.RecordBatch:
    fields = [
        pa.field("b", pa.large_binary(), metadata={b"tp": b"252", b"binary": b"1"}),
        pa.field("t", pa.large_string(), metadata={b"tp": b"12"}),
        pa.field("i`", pa.int64(), metadata={b"tp": b"8"}),
    ]
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(fields)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def plain(text: bytes | None) -> bytes | None:
    return None if text is None else re.sub(rb"\\.", lambda found: _PLAIN[found[0]], text, flags=re.DOTALL)


def read(statement: bytes) -> list[Row]:
    """What a server reads."""
    head, values = b"INSERT INTO `d`.`t` (`b`,`t`,`i```) VALUES ", []
    assert statement.startswith(head)
    at = len(head)
    while at < len(statement):
        found = _ROW.match(statement, at)
        assert found is not None, statement[at:]
        text = plain(found["t"])
        values.append(
            (
                plain(found["b"]),
                None if text is None else text.decode(),
                None if found["i"] is None else int(found["i"]),
            )
        )
        at = found.end() + 1
        assert statement[found.end() : at] in (b",", b"")
    return values


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=9),
            st.none() | st.text(max_size=9),
            st.none() | st.integers(-(2**63), 2**63 - 1),
        )
    ),
    st.integers(60, 300),
)
def test_rows_come_back_from_statements_within_the_size(rows: list[Row], most: int) -> None:
    found = list(inserts("`d`.`t`", batch(rows), most=most))
    assert [row for statement, _ in found for row in read(statement)] == rows
    for statement, count in found:
        assert len(read(statement)) == count
        assert len(statement) <= most or count == 1
    # As few as there can be: none fits into the one before.
    for (one, _), (two, _) in itertools.pairwise(found):
        first = _ROW.search(two)
        assert first is not None
        assert len(one) + 1 + len(first[0]) > most
    half = len(rows) // 2
    assert [row for statement, _ in inserts("`d`.`t`", batch(rows).slice(half)) for row in read(statement)] == rows[
        half:
    ]


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 60))
def test_numbers_come_back_from_lists(numbers: list[int], most: int) -> None:
    found = list(lists(pa.array(numbers, pa.uint64()), most=most))
    assert [int(n) for text, _ in found for n in text.split(b",")] == numbers
    assert all(len(text) <= most or count == 1 for text, count in found)
    assert all(text.count(b",") == count - 1 for text, count in found)
