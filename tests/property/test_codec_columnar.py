"""The columnar decoder and the readable reference give the same values, for any table, row and damage."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pumphouse.codec import row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, decode_images, key_hash, walk
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge, parse
from pumphouse.codec.walk import payload_problem
from pumphouse.errors import BadBinlog, CodecError
from pumphouse.model.binlog import MutationType
from pumphouse.model.table import TableInfo
from pumphouse.proto import binlog_pb2 as pb
from tests.support import rowgen, rowreference
from tests.support.rowreference import parse_prewrite_value, row_changes

pytestmark = pytest.mark.row("L1", "S3")
# A campaign raises this: PROPERTY_EXAMPLES=5000 pytest tests/property
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "50"))
PROFILE = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
Rows = tuple[row.Row, ...]


def encode(table: TableInfo, op: int, old: row.Row, new: row.Row, handle: int) -> bytes:
    hidden = None if table.pk_is_handle or table.is_common_handle else handle
    if op == INSERT:
        return row.encode_insert(table, new, handle=hidden)
    if op == DELETE:
        return row.encode_delete(table, old, handle=hidden)
    return row.encode_update(table, old, new, handle=hidden)


def slow(written: TableInfo, wanted: TableInfo, op: int, image: bytes) -> list[dict[str, Any]]:
    """One dictionary a side, by the reference."""
    table = row.as_read(written, wanted)
    if op == UPDATE:
        sides: Sequence[row.Row] = rowreference.decode_update(table, image)
    else:
        sides = [(rowreference.decode_insert if op == INSERT else rowreference.decode_delete)(table, image)]
    return [
        {wanted.column_by_id(i).name: v for i, v in rowreference.project(written, wanted, side).items()}  # type: ignore[union-attr]
        for side in sides
    ]


def fast(written: TableInfo, wanted: TableInfo, op: int, images: Sequence[bytes]) -> list[list[dict[str, Any]]]:
    """For each image one dictionary a side, by columns; between the images lie bytes that belong to none."""
    data = np.frombuffer(b"\xff".join(images), np.uint8)
    lengths = np.array([len(i) for i in images], np.int64)
    starts = np.cumsum(lengths + 1) - lengths - 1
    batches = decode_images(data, starts, lengths, op, RowLayout.of(written, wanted))
    sides = batches if op == UPDATE else (batches,)
    for side in sides:
        side.validate(full=True)
    if not sides[0].num_columns:
        return [[{} for _ in sides] for _ in images]
    return [list(each) for each in zip(*(side.to_pylist() for side in sides), strict=True)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[TableInfo, TableInfo, int, list[bytes]]:
    written = draw(rowgen.tables())
    wanted = draw(st.just(written) | rowgen.later_versions(written))
    author = draw(st.sampled_from([written, row.as_read(written, wanted)]))
    op = draw(st.sampled_from([INSERT, UPDATE, DELETE]))
    images = []
    for _ in range(draw(st.integers(1, 4))):
        old, new = draw(rowgen.rows(author)), draw(rowgen.rows(author))
        images.append(encode(author, op, old, new, draw(st.integers(-(2**63), 2**63 - 1))))
    return written, wanted, op, images


@PROFILE
@given(cases())
def test_columns_equal_the_reference_on_random_tables_and_rows(
    case: tuple[TableInfo, TableInfo, int, list[bytes]],
) -> None:
    written, wanted, op, images = case
    assert fast(written, wanted, op, images) == [slow(written, wanted, op, image) for image in images]


@PROFILE
@given(st.data())
def test_the_reference_gives_back_what_was_encoded(data: st.DataObject) -> None:
    table = data.draw(rowgen.tables())
    old, new = data.draw(rowgen.rows(table)), data.draw(rowgen.rows(table))
    virtual = {c.id for c in table.columns if c.generated and not c.generated_stored}
    writable = {c.id for c in table.columns if c.state in (3, 2, 5)} - virtual
    decoded = rowreference.decode_insert(table, encode(table, INSERT, old, new, 5))
    assert {i: v for i, v in new.items() if i in writable and v is not None} == decoded
    sides = rowreference.decode_update(table, encode(table, UPDATE, old, new, 5))
    assert sides == tuple({i: v for i, v in side.items() if i in writable} for side in (old, new))
    public = {c.id for c in table.columns if c.public}
    assert rowreference.decode_delete(table, encode(table, DELETE, old, new, 5)) == {
        i: v for i, v in old.items() if i in public
    }


@st.composite
def damaged(draw: st.DrawFn) -> tuple[TableInfo, int, bytes]:
    table, _, op, images = draw(cases())
    image = bytearray(images[0])
    for _ in range(draw(st.integers(1, 3))):
        if image:
            at = draw(st.integers(0, len(image) - 1))
            change: Callable[[], None] = draw(
                st.sampled_from(
                    [
                        lambda at=at: image.__setitem__(at, draw(st.integers(0, 255))),
                        lambda at=at: image.__delitem__(slice(at, None)),
                        lambda at=at: image.insert(at, draw(st.integers(0, 255))),
                        lambda at=at: image.__delitem__(at),
                    ]
                )
            )
            change()
    return table, op, bytes(image)


def attempt(decode: Callable[[], Any]) -> Any:
    """What it gives, or None for a CodecError; nothing else may be raised."""
    try:
        return decode()
    except CodecError:
        return None


def comparable(sides: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """With a name for NaN, which damage can make, and which is equal to nothing."""
    if sides is None:
        return None
    return [
        {name: "NaN" if isinstance(value, float) and math.isnan(value) else value for name, value in side.items()}
        for side in sides
    ]


@settings(PROFILE, max_examples=3 * EXAMPLES)
@given(damaged())
def test_damaged_rows_end_in_a_codec_error_or_in_the_values_of_the_reference(
    case: tuple[TableInfo, int, bytes],
) -> None:
    table, op, image = case
    wanted = attempt(lambda: slow(table, table, op, image))
    found = attempt(lambda: fast(table, table, op, [image])[0])
    # The reference looks at more (columns that are not wanted, the hidden handle), so it may refuse more.
    if wanted is not None:
        assert comparable(found) == comparable(wanted)


@st.composite
def prewrite_values(draw: st.DrawFn) -> tuple[bytes, int]:
    """A prewrite value in one of the ways in which protobuf allows it to be written."""
    value = pb.PrewriteValue(schema_version=draw(st.integers(-5, 2**40)))
    for _ in range(draw(st.integers(0, 3))):
        mutation = value.mutations.add(table_id=draw(st.integers(0, 2**48)))
        for _ in range(draw(st.integers(0, 4))):
            kind = draw(st.sampled_from(["Insert", "Update", "DeleteRow"]))
            rows = {"Insert": "inserted_rows", "Update": "updated_rows", "DeleteRow": "deleted_rows"}[kind]
            getattr(mutation, rows).append(draw(st.binary(max_size=6)))
            mutation.sequence.append(pb.MutationType.Value(kind))
        if draw(st.booleans()):
            mutation.inserted_rows.append(b"never read")
    data = value.SerializeToString()
    if draw(st.booleans()):
        data += draw(st.sampled_from([b"\x98\x06\x01", b"\xa2\x06\x02hi"]))  # fields that nobody knows
    return data, value.schema_version


def problem(payload: bytes) -> int:
    return int(payload_problem(np.frombuffer(payload, np.uint8), 0, len(payload)))


@PROFILE
@given(st.lists(st.none() | prewrite_values(), max_size=4))
@example([(pb.PrewriteValue(schema_version=-1).SerializeToString(), -1)])
def test_walk_finds_what_the_reference_finds(values: list[tuple[bytes, int] | None]) -> None:
    payloads, wanted = [], []
    for txn, value in enumerate(values):
        prewrite = make_prewrite(5, b"k", None if value is None else value[0])
        assert problem(prewrite) == 0
        payloads.append(merge(prewrite, make_commit(5, 6, b"k")))
        ops = {MutationType.INSERT: INSERT, MutationType.UPDATE: UPDATE, MutationType.DELETE_ROW: DELETE}
        for seq, (table_id, kind, image) in enumerate(row_changes(value[0]) if value else ()):
            wanted.append((txn, table_id, value[1] if value else 0, ops[kind], seq, image))
    for kind in (pa.binary(), pa.large_binary()):
        found = walk(pa.array([b"skipped", *payloads], kind)[1:])
        images = [found.data[s : s + n].tobytes() for s, n in zip(found.row_start, found.row_len, strict=True)]
        columns = (found.txn, found.table_id, found.schema_version, found.op, found.seq)
        assert list(zip(*(c.tolist() for c in columns), images, strict=True)) == wanted
    stats = found.table_stats()
    assert sum(rows for rows, _ in stats.values()) == len(wanted)
    assert sum(size for _, size in stats.values()) == sum(len(w[-1]) for w in wanted)


@settings(PROFILE, max_examples=3 * EXAMPLES)
@given(prewrite_values(), st.data())
def test_walk_over_damage_raises_or_agrees_with_the_reference(value: tuple[bytes, int], data: st.DataObject) -> None:
    payload = bytearray(merge(make_prewrite(5, b"k", value[0]), make_commit(5, 6, b"k")))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(0, len(payload))) :]

    def reference() -> list[bytes]:
        prewrite = parse(bytes(payload)).prewrite_value
        parse_prewrite_value(prewrite)
        return [image for _, _, image in row_changes(prewrite)]

    found = attempt(lambda: walk(pa.array([bytes(payload)], pa.large_binary())))
    assert (problem(bytes(payload)) == 0) == (found is not None), "a Pump takes what the archive can read"
    try:
        wanted = reference()
    except (BadBinlog, ValueError):
        return
    # Like Go's parser and unlike Python's, walk refuses known fields of a wrong wire type.
    assert (
        found is None
        or [found.data[s : s + n].tobytes() for s, n in zip(found.row_start, found.row_len, strict=True)] == wanted
    )


@PROFILE
@given(st.data())
def test_rows_have_equal_hashes_exactly_when_their_keys_are_equal(data: st.DataObject) -> None:
    table = data.draw(rowgen.tables())
    rows = [data.draw(rowgen.rows(table)) for _ in range(4)]
    rows += rows[:2]
    images = [encode(table, INSERT, r, r, 5) for r in rows]
    blob = np.frombuffer(b"".join(images), np.uint8)
    lengths = np.array([len(i) for i in images], np.int64)
    batch = decode_images(blob, np.cumsum(lengths) - lengths, lengths, INSERT, RowLayout.of(table, table))
    whole = key_hash(batch)
    contents = [tuple(column[i].as_py() for column in batch.columns) for i in range(len(rows))]
    for i, mine in enumerate(contents):
        for j, other in enumerate(contents):
            assert (whole[i] == whole[j]) == (mine == other)
    # Neither the place in a batch nor its null bitmap matters.
    for i in range(len(rows)):
        assert key_hash(batch.slice(i, 1))[0] == whole[i]


@pytest.mark.row("W2")
def test_a_transaction_of_several_tables_is_in_order_of_sequence() -> None:
    builder = PrewriteValueBuilder(9)
    builder.insert(1, b"a")
    builder.delete(2, b"b")
    builder.update(1, b"c")
    builder.insert(2, b"d")
    found = walk(pa.array([merge(make_prewrite(1, b"k", builder.build()), make_commit(1, 2, b"k"))], pa.binary()))
    images = [found.data[s : s + n].tobytes() for s, n in zip(found.row_start, found.row_len, strict=True)]
    assert list(zip(found.table_id.tolist(), found.op.tolist(), images, strict=True)) == [
        (1, INSERT, b"a"),
        (1, UPDATE, b"c"),
        (2, DELETE, b"b"),
        (2, INSERT, b"d"),
    ]


@pytest.mark.row("W2")
def test_many_small_changes_of_several_transactions_are_found_whole() -> None:
    payloads, wanted = [], []
    for txn in range(5):
        builder = PrewriteValueBuilder(9 + txn)
        for seq in range(200):
            table_id = 1 + seq % 3
            builder.insert(table_id, bytes([txn, seq]))
            wanted.append((txn, table_id, 9 + txn, bytes([txn, seq])))
        payloads.append(merge(make_prewrite(1, b"k", builder.build()), make_commit(1, 2, b"k")))
    found = walk(pa.array(payloads, pa.binary()))
    images = [found.data[s : s + n].tobytes() for s, n in zip(found.row_start, found.row_len, strict=True)]
    columns = (found.txn, found.table_id, found.schema_version)
    assert sorted(zip(*(c.tolist() for c in columns), images, strict=True)) == sorted(wanted)
    assert found.seq.tolist() == [*range(200)] * 5
