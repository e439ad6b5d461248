"""The example of `sequence` in TiDB's description of the format: six statements, three lists, and their order again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pumphouse.codec import row
from pumphouse.codec.columnar import DELETE, INSERT, UPDATE, decode_images, walk
from pumphouse.codec.layout import RowLayout
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge, parse
from pumphouse.model.binlog import MutationType
from pumphouse.model.table import ColumnFlag, MysqlType, TableInfo
from pumphouse.proto import binlog_pb2 as pb
from tests.support import rowreference
from tests.support.rowgen import column, field, table
from tests.support.rowreference import parse_prewrite_value, row_changes

pytestmark = pytest.mark.row("W2", "L1")
TABLE_ID = 45
# insert (1, a); insert (2, b); update 1 to c; update 2 to d; delete 2; insert (2, c)
STATEMENTS = [
    (INSERT, None, (1, b"a")),
    (INSERT, None, (2, b"b")),
    (UPDATE, (1, b"a"), (1, b"c")),
    (UPDATE, (2, b"b"), (2, b"d")),
    (DELETE, (2, b"d"), None),
    (INSERT, None, (2, b"c")),
]
# Images as TiDB writes them: the handle of an insert, then pairs of column id and value, varint integers.
INSERTED = [*map(bytes.fromhex, ("0802 0804 020261", "0804 0804 020262", "0804 0804 020263"))]
UPDATED = [
    bytes.fromhex("0802 0802 0804 020261 0802 0802 0804 020263"),
    bytes.fromhex("0802 0804 0804 020262 0802 0804 0804 020264"),
]
DELETED = [bytes.fromhex("0802 0804 0804 020264")]
ORDER = [0, 0, 1, 1, 4, 0]


def example() -> TableInfo:
    """create table test (id int, name varchar(24), primary key (id))."""
    key = int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)
    name = field(MysqlType.VARCHAR, 0, 24, -1, "utf8mb4")
    return table([column(1, 0, field(MysqlType.LONG, key)), column(2, 1, name)], pk_is_handle=True)


def documented() -> bytes:
    """The prewrite value of the example, field by field."""
    mutation = pb.TableMutation(
        table_id=TABLE_ID,
        inserted_rows=INSERTED,
        updated_rows=UPDATED,
        deleted_rows=DELETED,
        sequence=[pb.MutationType.Name(number) for number in ORDER],
    )
    return pb.PrewriteValue(schema_version=7, mutations=[mutation]).SerializeToString()


def test_the_six_statements_are_written_as_three_lists_and_their_order() -> None:
    info, builder = example(), PrewriteValueBuilder(7)
    for kind, old, new in STATEMENTS:
        before, after = (None if each is None else {1: each[0], 2: each[1]} for each in (old, new))
        if kind == INSERT and after:
            builder.insert(TABLE_ID, row.encode_insert(info, after))
        elif kind == UPDATE and before and after:
            builder.update(TABLE_ID, row.encode_update(info, before, after))
        elif before:
            builder.delete(TABLE_ID, row.encode_delete(info, before))
    (mutation,) = parse_prewrite_value(builder.build()).mutations
    assert list(mutation.inserted_rows) == INSERTED
    assert list(mutation.updated_rows) == UPDATED
    assert list(mutation.deleted_rows) == DELETED
    assert list(map(int, mutation.sequence)) == ORDER
    assert builder.build() == documented()


def test_the_six_statements_come_out_in_their_order_from_both_readers() -> None:
    info = example()
    pulled = merge(make_prewrite(400, b"k", documented()), make_commit(400, 404, b"k"))

    def shown(read: row.Row) -> tuple[object, object]:
        return read[1], read[2]

    plain: list[tuple[int, object, object]] = []
    for table_id, kind, image in row_changes(parse(pulled).prewrite_value):
        assert table_id == TABLE_ID
        if kind is MutationType.INSERT:
            plain.append((INSERT, None, shown(rowreference.decode_insert(info, image))))
        elif kind is MutationType.UPDATE:
            old, new = rowreference.decode_update(info, image)
            plain.append((UPDATE, shown(old), shown(new)))
        else:
            plain.append((DELETE, shown(rowreference.decode_delete(info, image)), None))
    assert plain == STATEMENTS

    found = walk(pa.array([pulled], pa.binary()))
    assert found.table_id.tolist() == [TABLE_ID] * 6
    quick = []
    for at, op in enumerate(found.op.tolist()):
        start, length = (np.array([int(each[at])]) for each in (found.row_start, found.row_len))
        read = decode_images(found.data, start, length, op, RowLayout.of(info, info))
        rows = [tuple(batch.to_pylist()[0].values()) for batch in (read if op == UPDATE else (read,))]
        quick.append((op, *rows) if op == UPDATE else (op, None, *rows) if op == INSERT else (op, *rows, None))
    assert quick == STATEMENTS


def test_carried_out_in_that_order_the_six_statements_leave_what_they_left_in_the_source() -> None:
    """In any order that goes list by list the last insert or the delete would be lost."""
    rows: dict[object, object] = {}
    for _, kind, image in row_changes(documented()):
        if kind is MutationType.INSERT:
            new = rowreference.decode_insert(example(), image)
            assert new[1] not in rows
        elif kind is MutationType.UPDATE:
            old, new = rowreference.decode_update(example(), image)
            assert rows.pop(old[1]) == old[2]
        else:
            old = rowreference.decode_delete(example(), image)
            assert rows.pop(old[1]) == old[2]
            continue
        rows[new[1]] = new[2]
    assert rows == {1: b"c", 2: b"c"}
