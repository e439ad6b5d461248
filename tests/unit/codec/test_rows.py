"""Row images and batches: what belongs to them, what is refused, and by which name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pumphouse.codec import row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, Mutations, blocks, decode_images, key_hash, key_rank, walk
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge
from pumphouse.errors import CodecError, ColumnMismatch, MissingColumn
from pumphouse.model.binlog import SchemaState
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo
from pumphouse.proto import binlog_pb2 as pb
from tests.support import rowreference
from tests.support.rowgen import column, field, table

pytestmark = pytest.mark.row("L1")
PRI = int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)


def simple() -> TableInfo:
    """id INT pk_is_handle, name VARCHAR, age TINYINT UNSIGNED: the example of the format's description."""
    return table(
        [
            column(1, 0, field(MysqlType.LONG, PRI)),
            column(2, 1, field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4")),
            column(3, 2, field(MysqlType.TINY, 32)),
        ],
        pk_is_handle=True,
    )


def decode(info: TableInfo, op: int, *images: bytes, wanted: TableInfo | None = None) -> Any:
    data = np.frombuffer(b"".join(images), np.uint8)
    lengths = np.array([len(i) for i in images], np.int64)
    return decode_images(data, np.cumsum(lengths) - lengths, lengths, op, RowLayout.of(info, wanted or info))


def test_the_documented_examples_are_encoded_and_decoded() -> None:
    info = simple()
    first = {1: 1, 2: b"alice", 3: 30}
    assert row.encode_insert(info, first).hex() == "08020804020a616c6963650806091e"
    assert row.encode_insert(info, {1: 2, 2: None, 3: None}).hex() == "080400"
    old, new = {1: 2, 2: b"bob", 3: 9}, {1: 2, 2: b"bobby", 3: 9}
    updated = bytes.fromhex("08020804 08040206626f62 08060909 08020804 0804020a626f626279 08060909")
    assert row.encode_update(info, old, new) == updated
    assert row.encode_delete(info, first).hex() == "080208020804020a616c6963650806091e"
    assert decode(info, INSERT, bytes.fromhex("080400")).to_pylist() == [{"c1": 2, "c2": None, "c3": None}]
    before, after = decode(info, UPDATE, updated)
    assert before.to_pylist() == [{"c1": 2, "c2": b"bob", "c3": 9}]
    assert after.to_pylist() == [{"c1": 2, "c2": b"bobby", "c3": 9}]


def test_fields_tell_type_code_and_column_id() -> None:
    schema = RowLayout.of(simple(), simple()).schema
    assert schema.field("c2").metadata == {b"tp": b"15", b"id": b"2"}
    assert [f.type for f in schema] == [pa.int64(), pa.large_binary(), pa.uint64()]


def test_every_truncation_of_a_row_is_refused_or_ends_between_pairs() -> None:
    info = simple()
    image = row.encode_delete(info, {1: 1, 2: b"alice", 3: 200})
    for cut in range(len(image)):
        try:
            wanted = rowreference.project(info, info, rowreference.decode_delete(info, image[:cut]))
        except CodecError:
            with pytest.raises(CodecError):
                decode(info, DELETE, image[:cut])
        else:
            assert [decode(info, DELETE, image[:cut]).column(i)[0].as_py() for i in range(3)] == list(wanted.values())


@pytest.mark.parametrize(
    ("op", "image", "reason"),
    [
        (INSERT, "", "end too early"),
        (INSERT, "fa", "flag"),
        (INSERT, "0802800a", "new row format"),
        (DELETE, "0206616263", "column id"),
        (DELETE, "08040206616263", "column c1 is missing"),
        (DELETE, "0804020261" + "0804020261", "too often"),
        (DELETE, "0804fa", "flag"),
        (DELETE, "080408", "end too early"),
        (DELETE, "0804ff", "flag"),
        (DELETE, "08020802" + "08040802", "does not fit"),
        (DELETE, "08020802" + "0806020261", "does not fit"),
        (DELETE, "08040502", "end too early"),
        (DELETE, "08040202", "end too early"),
        (DELETE, "0804060500", "end too early"),
        (DELETE, "08040a", "end too early"),
        (DELETE, "080401616263", "end too early"),
        (UPDATE, "0804020261", "old and new"),
        (UPDATE, "0804020261" * 3, "too often"),
    ],
)
def test_a_damaged_row_is_refused_with_row_and_reason(op: int, image: str, reason: str) -> None:
    good = row.encode_delete(simple(), {1: 1, 2: b"x", 3: 3})
    good = {INSERT: row.encode_insert(simple(), {1: 1}), DELETE: good, UPDATE: good + good}[op]
    with pytest.raises(CodecError, match=reason) as raised:
        decode(simple(), op, good, bytes.fromhex(image))
    assert raised.value.row == 1
    slow = {INSERT: rowreference.decode_insert, DELETE: rowreference.decode_delete, UPDATE: rowreference.decode_update}[
        op
    ]
    with pytest.raises(CodecError):
        slow(simple(), bytes.fromhex(image))


def test_images_outside_their_buffer_are_refused() -> None:
    layout = RowLayout.of(simple(), simple())
    data = np.zeros(8, np.uint8)
    for start, length in ((-1, 2), (0, 9), (7, 2), (0, -1)):
        with pytest.raises(CodecError, match="outside"):
            decode_images(data, np.array([start]), np.array([length]), DELETE, layout)
    with pytest.raises(CodecError, match="starts"):
        decode_images(data, np.array([1, 2]), np.array([1]), DELETE, layout)


def test_no_rows_make_an_empty_batch() -> None:
    none = np.zeros(0, np.int64)
    layout = RowLayout.of(simple(), simple())
    assert decode_images(np.zeros(0, np.uint8), none, none, INSERT, layout).num_rows == 0
    old, new = decode_images(np.zeros(0, np.uint8), none, none, UPDATE, layout)
    assert (old.schema, new.num_rows) == (layout.schema, 0)


def test_a_hidden_handle_must_be_given_and_is_no_column() -> None:
    info = table([column(1, 0, field(MysqlType.LONG))])
    for encode in (row.encode_insert, row.encode_delete):
        with pytest.raises(CodecError, match="hidden handle"):
            encode(info, {1: 1})
    assert row.encode_delete(info, {1: 1}, handle=7).hex() == "080208020801080e"
    assert decode(info, DELETE, bytes.fromhex("080208020801080e")).to_pylist() == [{"c1": 1}]


def test_an_unsigned_integer_key_comes_from_the_signed_handle() -> None:
    info = table([column(1, 0, field(MysqlType.LONGLONG, PRI | 32))], pk_is_handle=True)
    image = row.encode_insert(info, {1: 2**64 - 1})
    assert image.hex() == "080100"
    assert rowreference.decode_insert(info, image) == {1: 2**64 - 1}
    assert decode(info, INSERT, image).to_pylist() == [{"c1": 2**64 - 1}]


@pytest.mark.row("S3")
def test_a_clustered_key_comes_from_the_list_where_the_handle_is_a_sort_key_or_prefix() -> None:
    text = field(MysqlType.VARCHAR, PRI, 20, -1, "utf8mb4")
    index = {
        "id": 1,
        "idx_name": "PRIMARY",
        "is_primary": True,
        "state": 5,
        "idx_cols": [{"name": "c1", "offset": 0, "length": -1}, {"name": "c2", "offset": 1, "length": 2}],
    }
    info = table(
        [column(1, 0, text), column(2, 1, field(MysqlType.VARCHAR, PRI | 128, 20))],
        is_common_handle=True,
        index_info=[index],
    )
    image = row.encode_insert(info, {1: b"a ", 2: b"long"})
    assert image == b"\x02\x02a" + b"\x02\x04lo" + b"\x08\x02\x02\x04a " + b"\x08\x04\x02\x08long"
    assert decode(info, INSERT, image).to_pylist() == [{"c1": b"a ", "c2": b"long"}]
    # A handle alone gives what is no prefix, and a key that is not whole is never filled.
    for decoding in (lambda data: decode(info, INSERT, data), lambda data: rowreference.decode_insert(info, data)):
        with pytest.raises(CodecError, match=r"key|c2 is missing"):
            decoding(b"\x02\x02a\x02\x04lo\x00")


@pytest.mark.row("S3")
def test_a_row_of_a_later_version_than_it_says_keeps_what_that_added() -> None:
    """A transaction that first touched the table behind a DDL, as TiDB's metadata lock allows."""
    letters, more = (field(MysqlType.ENUM, 0, 1, 0, "utf8mb4", elems) for elems in (["a"], ["a", "b"]))
    written = table([column(1, 0, letters), column(2, 1, field(MysqlType.DATETIME, 0, 19, 0))])
    columns = [column(1, 0, more), column(2, 1, field(MysqlType.DATETIME, 0, 26, 6))]
    wanted = table([*columns, column(3, 2, field(MysqlType.LONG), origin_default="5")])
    values = {1: 2, 2: "2021-02-03 04:05:06.070809", 3: 9}
    old = {1: 1, 2: "2020-01-01 00:00:00.000000", 3: 5}
    named, before = ({f"c{id_}": value for id_, value in each.items()} for each in (values, old))
    image = row.encode_insert(wanted, values, handle=1)
    assert decode(written, INSERT, image, wanted=wanted).to_pylist() == [named]
    assert (
        rowreference.project(written, wanted, rowreference.decode_insert(row.as_read(written, wanted), image)) == values
    )
    updated = decode(written, UPDATE, row.encode_update(wanted, old, values, handle=1), wanted=wanted)
    assert [side.to_pylist() for side in updated] == [[before], [named]]
    # Who came earlier wrote less, and has the same values where nothing was added.
    earlier = row.encode_insert(written, {1: 1, 2: "2020-01-01 00:00:00"}, handle=1)
    assert decode(written, INSERT, earlier, wanted=wanted).to_pylist() == [before]


@pytest.mark.row("S3", "L6")
@pytest.mark.parametrize("key", [("c7",), (), None], ids=["its key", "no key", "another key"])
def test_old_values_of_a_rewritten_column_are_in_the_type_that_the_row_has_them_in(key: tuple[str, ...] | None) -> None:
    number, text = field(MysqlType.LONG), field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4")
    wide = field(MysqlType.LONGLONG)
    written, changing = table([column(1, 0, number)]), column(7, 1, wide, state=int(SchemaState.WRITE_REORG))
    in_between, wanted = table([column(1, 0, number), changing]), table([column(7, 0, wide)])
    layout = RowLayout.of(written, wanted, key, {7: 1})

    def old(op: int, *images: bytes, layout: RowLayout = layout) -> list[Any]:
        data = np.frombuffer(b"".join(images), np.uint8)
        lengths = np.array([len(image) for image in images], np.int64)
        found = decode_images(data, np.cumsum(lengths) - lengths, lengths, op, layout)
        values: list[Any] = (found[0] if op == UPDATE else found).column(0).to_pylist()
        return values

    during = row.encode_delete(in_between, {1: 4}, handle=1)
    after = row.encode_delete(wanted, {7: 5}, handle=2)
    assert old(DELETE, during, after, during) == [4, 5, 4]
    assert old(DELETE, after) == [5]
    # While the rows are rewritten, an update's old image may not have the value in the new type yet.
    updating = row.encode_update(in_between, {1: 4, 7: None}, {1: 6, 7: 6}, handle=1)
    assert old(UPDATE, updating, row.encode_update(wanted, {7: 5}, {7: 8}, handle=2)) == [4, 5]
    neither = bytes.fromhex("0801" + "0802")
    if key is None:
        assert old(DELETE, neither) == [None]
    else:
        with pytest.raises(MissingColumn, match="c7") as caught:
            old(DELETE, after, neither)
        assert (caught.value.facts["row"], caught.value.facts["column"]) == (1, "c7")
    # What another type makes of a value is not known here, but nobody asks where the row has it in the present one.
    texts = table([column(7, 0, text)])
    other = RowLayout.of(written, texts, key, {7: 1})
    assert old(DELETE, row.encode_delete(texts, {7: b"x"}, handle=1), layout=other) == [b"x"]
    with pytest.raises(ColumnMismatch, match="c7"):
        old(DELETE, during, layout=other)


@pytest.mark.row("S3")
def test_a_null_that_a_later_version_leaves_out_is_null() -> None:
    """A column became nullable behind the begin of the transaction: TiDB leaves a NULL without a default out."""
    must, may = field(MysqlType.LONG, 1), field(MysqlType.LONG)
    first = column(1, 0, must)
    written, wanted = table([first, column(2, 1, must)]), table([first, column(2, 1, may)])
    image = row.encode_insert(table([first]), {1: 3}, handle=1)
    assert decode(written, INSERT, image, wanted=wanted).to_pylist() == [{"c1": 3, "c2": None}]
    assert rowreference.project(written, wanted, rowreference.decode_insert(row.as_read(written, wanted), image)) == {
        1: 3,
        2: None,
    }


@pytest.mark.row("S3", "L6")
@pytest.mark.parametrize("key", [("c1",), (), None], ids=["its key", "no key", "another key"])
def test_an_insert_may_leave_a_rewritten_column_out_as_null_but_not_only_the_new_one(
    key: tuple[str, ...] | None,
) -> None:
    first, text = column(1, 0, field(MysqlType.LONG, 1)), field(MysqlType.VARCHAR, 0, 20, -1, "utf8mb4")
    written, wanted = table([first, column(5, 1, field(MysqlType.LONG))]), table([first, column(7, 1, text)])
    layout = RowLayout.of(written, wanted, key, {7: 5})

    def inserted(table_of_row: TableInfo, values: dict[int, Any], layout: RowLayout = layout) -> list[Any]:
        image = np.frombuffer(row.encode_insert(table_of_row, values, handle=1), np.uint8)
        found = decode_images(image, np.zeros(1, np.int64), np.array([len(image)]), INSERT, layout)
        values_of: list[Any] = found.to_pylist()
        return values_of

    assert inserted(table([first]), {1: 3}) == [{"c1": 3, "c7": None}]
    assert inserted(wanted, {1: 3, 7: b"x"})[0]["c1"] == 3
    with pytest.raises(MissingColumn, match="c7"):
        inserted(written, {1: 3, 5: 4})
    must = table([first, column(7, 1, field(MysqlType.VARCHAR, 1, 20, -1, "utf8mb4"))])
    with pytest.raises(MissingColumn, match="c7"):
        inserted(table([first]), {1: 3}, RowLayout.of(written, must, key, {7: 5}))


@pytest.mark.row("S3")
def test_a_type_that_did_not_grow_is_read_as_it_was_written() -> None:
    """An application may change a type in place in any way; its rows are of the version that they say."""
    three, two = (field(MysqlType.ENUM, 0, 1, 0, "utf8mb4", elems) for elems in (["a", "b", "c"], ["a", "c"]))
    written = table([column(1, 0, three), column(2, 1, field(MysqlType.DATETIME, 0, 26, 6))])
    wanted = table([column(1, 0, two), column(2, 1, field(MysqlType.DATETIME, 0, 19, 0))])
    values = {1: 3, 2: "2021-02-03 04:05:59.900000"}
    image = row.encode_insert(written, values, handle=1)
    assert decode(written, INSERT, image, wanted=wanted).to_pylist() == [{"c1": 3, "c2": values[2]}]
    assert (
        rowreference.project(written, wanted, rowreference.decode_insert(row.as_read(written, wanted), image)) == values
    )


@pytest.mark.row("S3")
def test_a_clustered_key_that_a_later_version_would_update_stays() -> None:
    flags = PRI | 1

    def version(flag: int) -> TableInfo:
        index = {"id": 1, "idx_name": "PRIMARY", "is_primary": True, "state": 5,
                 "idx_cols": [{"name": "c1", "offset": 0, "length": -1}]}  # fmt: skip
        columns = [column(1, 0, field(MysqlType.TIMESTAMP, flag, 19, 0)), column(2, 1, field(MysqlType.LONG))]
        return table(columns, is_common_handle=True, index_info=[index])

    written, wanted = version(flags), version(flags | int(ColumnFlag.ON_UPDATE_NOW))
    old, new = {1: "2020-01-01 00:00:00", 2: 1}, {1: "2021-05-05 00:00:00", 2: 2}
    image = row.encode_update(wanted, old, new)
    _, updated = decode(written, UPDATE, image, wanted=wanted)
    assert updated.to_pylist() == [{"c1": old[1], "c2": 2}]
    assert rowreference.decode_update(row.as_read(written, wanted), image)[1] == {1: old[1], 2: 2}


@pytest.mark.row("S3")
def test_a_float_that_became_a_double_keeps_its_value_and_other_changes_of_kind_are_refused() -> None:
    written = table([column(1, 0, field(MysqlType.FLOAT))])
    wanted = table([column(1, 0, field(MysqlType.DOUBLE))])
    image = row.encode_insert(written, {1: 0.1}, handle=1)
    assert decode(written, INSERT, image, wanted=wanted).to_pylist() == [{"c1": 0.10000000149011612}]
    with pytest.raises(ColumnMismatch, match="c1"):
        RowLayout.of(written, table([column(1, 0, field(MysqlType.LONG))]))


def test_a_float_column_that_holds_a_large_double_is_refused() -> None:
    written = table([column(1, 0, field(MysqlType.FLOAT))])
    image = row.encode_insert(table([column(1, 0, field(MysqlType.DOUBLE))]), {1: 1e300}, handle=1)
    with pytest.raises(CodecError, match="does not fit"):
        decode(written, INSERT, image)
    with pytest.raises(CodecError):
        rowreference.decode_insert(written, image)


def test_json_columns_of_hard_doubles_and_growing_texts() -> None:
    info = table([column(1, 0, field(MysqlType.JSON))])
    texts = ["0.30000000000000004", "1e+300", '"' + "\\u0001" * 5000 + '"', "1", '["' + "x" * 300 + '", 5e-324]', "[]"]
    images = [row.encode_insert(info, {1: text}, handle=1) for text in texts]
    assert decode(info, INSERT, *images).column(0).to_pylist() == texts


def test_doubles_of_json_are_printed_by_columns_as_by_the_reference() -> None:
    """15 digits and fewer are the kernel's, 16 and 17 the reference's: the border must be exact."""
    rng = np.random.default_rng(7)
    doubles = [
        *rng.random(2000) * 1000,
        *rng.integers(-(10**17), 10**17, 2000) / 1e6,
        *rng.integers(0, 10**16, 2000) / 1e15,
    ]
    doubles += [float(f"{n}e-{k}") for k in range(1, 22) for n in (1, 123456789012345, 999999999999999)]
    doubles += [2.0**53, 2.0**53 - 1, 2.0**53 + 2, 1e15, 1e-6, 9.99e-7, 0.1 + 0.2]
    info = table([column(1, 0, field(MysqlType.JSON))])
    image = row.encode_insert(info, {1: json.dumps(doubles)}, handle=1)
    text = decode(info, INSERT, image).column(0)[0].as_py()
    assert text == rowreference.decode_insert(info, image)[1]
    assert json.loads(text) == doubles


def test_negative_zero_bytes_of_a_decimal_read_as_zero_in_columns_too() -> None:
    info = table([column(1, 0, field(MysqlType.NEWDECIMAL, 0, 3, 2))])
    image = bytes.fromhex("0802" + "0802" + "060302" + "7fff")
    assert decode(info, INSERT, image).to_pylist() == [{"c1": "0.00"}]
    assert rowreference.decode_insert(info, image) == {1: "0.00"}


@pytest.mark.row("S3")
def test_a_column_that_the_row_lacks_has_the_origin_default_of_the_rows_own_version() -> None:
    def version(default: str) -> TableInfo:
        return table([column(1, 0, field(MysqlType.LONG)), column(2, 1, field(MysqlType.LONG), origin_default=default)])

    image = bytes.fromhex("0802" + "08020802")
    assert decode(version("5"), INSERT, image, wanted=version("6")).to_pylist() == [{"c1": 1, "c2": 5}]
    assert rowreference.project(version("5"), version("6"), rowreference.decode_insert(version("5"), image)) == {
        1: 1,
        2: 5,
    }


def mutations(value: bytes) -> Mutations:
    return walk(
        pa.array(
            [
                merge(make_prewrite(1, b"k"), make_commit(1, 2, b"k")),
                merge(make_prewrite(1, b"k", value), make_commit(1, 2, b"k")),
            ],
            pa.binary(),
        )
    )


@pytest.mark.row("W2")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deleted_ids": [1]}, "obsolete"),
        ({"deleted_pks": [b"x"]}, "obsolete"),
        ({"sequence": [2]}, "unknown mutation type"),
        ({"sequence": [0]}, "no row"),
        ({"inserted_rows": [b"a"], "sequence": [0, 0]}, "no row"),
    ],
)
def test_walk_refuses_what_is_obsolete_unknown_or_incomplete_and_names_the_payload(
    change: dict[str, Any], reason: str
) -> None:
    value = pb.PrewriteValue(schema_version=1, mutations=[pb.TableMutation(table_id=5, **change)])
    with pytest.raises(CodecError, match=reason) as raised:
        mutations(value.SerializeToString())
    assert raised.value.txn == 1


@pytest.mark.row("W2")
def test_walk_refuses_a_mutation_type_that_the_schema_does_not_have() -> None:
    value = pb.PrewriteValue(mutations=[pb.TableMutation(table_id=5, inserted_rows=[b"a"])]).SerializeToString()
    cut = value[:1] + bytes((value[1] + 2,)) + value[2:] + b"\x38\x09"
    with pytest.raises(CodecError, match="unknown mutation type"):
        mutations(cut)


@pytest.mark.row("W2")
def test_walk_reads_a_packed_sequence() -> None:
    mutation = pb.TableMutation(table_id=5, inserted_rows=[b"a", b"bc"]).SerializeToString() + b"\x3a\x02\x00\x00"
    found = mutations(b"\x12" + bytes((len(mutation),)) + mutation)
    assert found.row_len.tolist() == [1, 2]


@pytest.mark.parametrize("payload", [b"\xff", b"\x2a\x05ab", b"\x2a\x02\x12\x09", b"\x28\x01"])
def test_walk_refuses_bytes_that_do_not_parse(payload: bytes) -> None:
    with pytest.raises(CodecError, match="do not parse"):
        walk(pa.array([payload], pa.large_binary()))


def test_walk_takes_chunks_and_refuses_nulls_and_other_types() -> None:
    builder = PrewriteValueBuilder(1)
    builder.insert(3, b"row")
    payload = merge(make_prewrite(1, b"k", builder.build()), make_commit(1, 2, b"k"))
    assert len(walk(pa.chunked_array([[payload], [payload]], pa.binary()))) == 2
    assert len(walk(pa.chunked_array([], pa.large_binary()))) == 0
    picked = walk(pa.array([payload, payload], pa.binary())).take(np.array([1]))
    assert (picked.txn.tolist(), picked.data[picked.row_start[0] :][:3].tobytes()) == ([1], b"row")
    with pytest.raises(CodecError, match="null"):
        walk(pa.array([payload, None], pa.binary()))
    with pytest.raises(CodecError, match="int64"):
        walk(pa.array([1]))


def test_hashes_never_change() -> None:
    """Rows are bucketed by these values; another process or release must find the same bucket."""
    batch = pa.record_batch(
        {
            "i": pa.array([0, -1, None], pa.int64()),
            "s": pa.array([b"", b"0123456789", None], pa.large_binary()),
            "f": pa.array([0.0, -0.0, 1.5], pa.float32()),
        }
    )
    assert [f"{h:016x}" for h in key_hash(batch).tolist()] == PINNED
    assert key_hash(batch, ["s", "i"]).tolist() != key_hash(batch, ["i", "s"]).tolist()
    doubles = pa.record_batch({"f": batch.column("f").cast(pa.float64())})
    assert key_hash(batch, [2]).tolist() == key_hash(doubles).tolist()
    assert key_hash(batch, ["f"])[0] == key_hash(batch, ["f"])[1]


def test_ranks_keep_the_order_and_never_change() -> None:
    """Plans name them: another process or release must find the same bucket."""
    signed = pa.array([-(1 << 63), -1, 0, 5, None], pa.int64())
    assert key_rank(signed).tolist() == [0, (1 << 63) - 1, 1 << 63, (1 << 63) + 5, 0]
    assert key_rank(pa.array([0, (1 << 64) - 1], pa.uint64())).tolist() == [0, (1 << 64) - 1]
    texts = pa.array([b"", b"a", b"a\x00b", b"abcdefgh", b"abcdefghz", b"b", None], pa.large_binary())
    ranks = key_rank(texts).tolist()
    assert ranks[:6] == sorted(ranks[:6])
    assert (ranks[1], ranks[3], ranks[6]) == (0x61 << 56, 0x6162636465666768, 0)
    floats = key_rank(pa.array([0.0, -0.0, 1.5], pa.float64())).tolist()
    assert floats[0] == floats[1] != floats[2]


PINNED = ["a706dd2f4d197e6f", "786acbebb79c50c6", "220673da11de4b5f"]


def test_blocks_cover_every_row_once_and_are_of_a_size_that_stays_in_cache() -> None:
    for count, length in ((0, 0), (1, 1 << 24), (5000, 400), (100_000, 10), (700, 1 << 20)):
        lengths = np.full(count, length)
        found = [range(count)[block] for block in blocks(lengths)]
        assert [row for part in found for row in part] == list(range(count))
        assert all(len(part) in range(256, 16385) for part in found) or count <= 512
        assert not found or len(found[0]) - len(found[-1]) < len(found)
        assert all(len(part) * length <= 1 << 20 or len(part) <= 512 for part in found)
