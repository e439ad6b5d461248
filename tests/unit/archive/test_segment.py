import dataclasses
import io
import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pumphouse.archive.manifest import Duplicate
from pumphouse.archive.parts import split_payload
from pumphouse.archive.segment import SegmentWriter, peek_segment, read_columns, read_segment
from pumphouse.codec.payload import PrewriteValueBuilder, make_commit, make_prewrite, merge
from pumphouse.errors import BadBinlog, BadSegment
from pumphouse.model.tso import Tso
from pumphouse.proto import binlog_pb2
from tests.support.memorystore import MemoryStore
from tests.support.rowreference import row_changes

END = Tso(1 << 62)


def payload(start, rows=1, size=20, table=7, kinds="iud"):
    builder = PrewriteValueBuilder(3)
    for number in range(rows):
        image = bytes([number % 251]) * size
        for kind in kinds:
            {"i": builder.insert, "u": builder.update, "d": builder.delete}[kind](table + number % 2, image)
    prewrite = make_prewrite(start, b"key", builder.build())
    return merge(prewrite, make_commit(start, start + 5, b"key"))


def batch(payloads, first=100, ddl=None):
    count = len(payloads)
    columns = {
        "commit_ts": pa.array(range(first + 5, first + 5 + 10 * count, 10), pa.int64()),
        "start_ts": pa.array(range(first, first + 10 * count, 10), pa.int64()),
        "ddl_job_id": pa.array([0] * count, pa.int64()),
        "payload": pa.array(payloads, pa.large_binary()),
    }
    if ddl:
        columns["ddl_query"] = pa.array(ddl, pa.large_binary())
    return pa.RecordBatch.from_pydict(columns)


def write(store, batches, **options):
    with SegmentWriter(store, lambda n: f"s/{n}.parquet", "pump-1", **options) as writer:
        for each in batches:
            writer.add(each)
        return writer.finish()


@pytest.fixture
def store():
    return MemoryStore()


def rows_of(store, entry, **options):
    return pa.Table.from_batches(list(read_segment(store, entry, **({"after": Tso(0), "upto": END} | options))))


@pytest.mark.row("A1")
def test_a_segment_gives_back_what_went_in_with_its_figures(store):
    payloads = [payload(100 + 10 * n, rows=n + 1) for n in range(5)]
    (entry,) = write(store, [batch(payloads[:2]), batch(payloads[2:], first=120)])
    table = rows_of(store, entry)
    assert table.column("payload").to_pylist() == payloads
    assert table.column("commit_ts").to_pylist() == [105, 115, 125, 135, 145]
    assert table.column("part").to_pylist() == [0] * 5
    assert table.column("parts").to_pylist() == [1] * 5
    assert (entry.min_commit_ts, entry.max_commit_ts, entry.rows) == (105, 145, 5)
    assert entry.changes == 3 * (1 + 2 + 3 + 4 + 5)
    assert entry.payload_bytes == sum(map(len, payloads))
    assert set(entry.tables) == {7, 8}
    assert sum(stat.rows for stat in entry.tables.values()) == entry.changes
    assert sum(stat.bytes for stat in entry.tables.values()) == entry.changes * 20


def test_only_the_asked_range_and_columns_are_given(store):
    (entry,) = write(store, [batch([payload(100 + 10 * n) for n in range(5)])])
    table = rows_of(store, entry, after=Tso(115), upto=Tso(135), columns=["start_ts", "payload"])
    assert table.schema.names == ["start_ts", "payload"]
    assert table.column("start_ts").to_pylist() == [120, 130]
    assert list(read_segment(store, entry, after=Tso(145), upto=END)) == []
    assert list(read_segment(store, entry, after=Tso(0), upto=Tso(104))) == []


def test_a_large_run_becomes_several_segments_and_row_groups(store, monkeypatch):
    monkeypatch.setattr("pumphouse.archive.segment.ROW_GROUP_BYTES", 4096)
    monkeypatch.setattr("pumphouse.archive.segment.SEGMENT_BYTES", 16384)
    payloads = [payload(100 + 10 * n, rows=8, size=60) for n in range(40)]
    entries = write(store, [batch(payloads)])
    assert len(entries) > 1
    found = [p for entry in entries for p in rows_of(store, entry).column("payload").to_pylist()]
    assert found == payloads
    assert all(a.max_commit_ts < b.min_commit_ts for a, b in itertools.pairwise(entries))
    middle = entries[1]
    part = rows_of(store, middle, upto=middle.min_commit_ts)
    assert part.num_rows == 1


@pytest.mark.row("A7")
def test_a_transaction_that_another_pump_brings_is_left_out(store):
    (entry,) = write(store, [batch([payload(100 + 10 * n) for n in range(5)])])
    drop = [Duplicate(start_ts=Tso(110), commit_ts=Tso(115), keep="pump-2", drop=("pump-1",))]
    wrong_start = [Duplicate(start_ts=Tso(111), commit_ts=Tso(125), keep="pump-2", drop=("pump-1",))]
    table = rows_of(store, entry, drop=drop + wrong_start)
    assert table.column("commit_ts").to_pylist() == [105, 125, 135, 145]


@pytest.mark.row("A4")
@pytest.mark.parametrize("damage", ["truncated", "bit", "swapped", "missing", "longer"])
def test_a_damaged_segment_gives_nothing_and_is_named(store, damage):
    (entry,) = write(store, [batch([payload(100 + 10 * n) for n in range(5)])])
    good = store.objects[entry.key]
    if damage == "truncated":
        store.objects[entry.key] = good[:-7]
    elif damage == "longer":
        store.objects[entry.key] = good + b"\0"
    elif damage == "bit":
        at = len(good) // 3
        store.objects[entry.key] = good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]
    elif damage == "missing":
        del store.objects[entry.key]
    else:
        other = MemoryStore()
        write(other, [batch([payload(500 + 10 * n) for n in range(5)], first=500)])
        store.objects[entry.key] = other.objects[entry.key]
    with pytest.raises(BadSegment, match=r"s/0\.parquet"):
        rows_of(store, entry)


@pytest.mark.row("A4")
def test_a_parquet_object_that_is_no_segment_is_refused_even_with_the_right_digest(store):
    (entry,) = write(store, [batch([payload(100)])])
    lying = dataclasses.replace(entry, rows=9)
    with pytest.raises(BadSegment, match="the manifest says 9"):
        rows_of(store, lying)


@pytest.mark.row("P17", "A1")
def test_a_large_transaction_is_cut_into_parts_that_decode_alone(store):
    big = payload(110, rows=500, size=100)
    small = payload(100)
    (entry,) = write(store, [batch([small, big, payload(120)])], part_bytes=20_000)
    table = rows_of(store, entry)
    parts = [n for n, ts in enumerate(table.column("start_ts").to_pylist()) if ts == 110]
    assert len(parts) > 5
    assert table.column("part").to_pylist() == [0, *range(len(parts)), 0]
    assert table.column("parts").to_pylist() == [1, *[len(parts)] * len(parts), 1]
    pieces = [binlog_pb2.Binlog.FromString(table.column("payload")[n].as_py()) for n in parts]
    assert all(len(piece.prewrite_value) < 21_000 for piece in pieces)
    assert {(p.start_ts, p.commit_ts, p.tp, p.prewrite_key) for p in pieces} == {(110, 115, 1, b"key")}
    changes = [change for piece in pieces for change in row_changes(piece.prewrite_value)]
    whole = binlog_pb2.Binlog.FromString(big)
    assert changes == list(row_changes(whole.prewrite_value))
    assert entry.changes == len(changes) + 6


@pytest.mark.row("P17")
def test_a_row_is_never_cut():
    big = payload(110, rows=3, size=5000, kinds="i")
    parts = split_payload(big, 1000)
    assert len(parts) == 3
    assert split_payload(payload(100), 1 << 20) == [payload(100)]


def test_a_sequence_that_does_not_fit_the_rows_cannot_be_cut():
    value = binlog_pb2.PrewriteValue(schema_version=1)
    value.mutations.add(table_id=1, inserted_rows=[b"x"], sequence=[0, 0])
    binlog = binlog_pb2.Binlog(tp=1, prewrite_value=value.SerializeToString())
    with pytest.raises(BadBinlog, match="sequence names 2"):
        split_payload(binlog.SerializeToString(), 10)
    with pytest.raises(BadBinlog, match="does not parse"):
        split_payload(b"\xff\xff", 10)


def test_rows_out_of_order_are_never_written(store):
    with pytest.raises(BadSegment, match="out of order"):
        write(store, [batch([payload(200)], first=200), batch([payload(100)])])


def test_an_unparsable_payload_of_our_own_is_an_error_and_not_a_row(store):
    with pytest.raises(BadBinlog, match="do not parse"):
        write(store, [batch([b"\xff\xff\xff"])])
    assert not store.objects


@pytest.mark.row("A1")
@pytest.mark.parametrize("bad", [{0}, {2}, {4}, {1, 2}, {0, 1, 2, 3, 4}], ids=str)
def test_an_unparsable_payload_is_written_raw_named_and_not_in_the_figures(store, bad):
    payloads = [b"\xff" * (n + 1) if n in bad else payload(100 + 10 * n) for n in range(5)]
    with SegmentWriter(store, lambda n: f"s/{n}.parquet", "pump-1", raw=True) as writer:
        writer.add(batch(payloads))
        (entry,) = writer.finish()
    assert rows_of(store, entry).column("payload").to_pylist() == payloads
    assert entry.changes == 3 * (5 - len(bad))
    assert writer.unreadable == {(100 + 10 * n, 105 + 10 * n): "the bytes do not parse" for n in bad}


def test_ddl_rows_keep_their_query_and_columns_can_be_read_alone(store):
    binlog = make_commit(100, 105, None, ddl_query=b"create table t (a int)", ddl_job_id=9, ddl_schema_state=5)
    rows = batch([binlog, payload(110)], ddl=[b"create table t (a int)", None])
    rows = rows.set_column(2, "ddl_job_id", pa.array([9, 0], pa.int64()))
    (entry,) = write(store, [rows])
    assert entry.ddls == 1
    table = read_columns(store, entry, ["commit_ts", "ddl_job_id", "ddl_query"])
    assert table.to_pydict() == {
        "commit_ts": [105, 115],
        "ddl_job_id": [9, 0],
        "ddl_query": [b"create table t (a int)", None],
    }


@pytest.mark.row("A4", "A7")
def test_columns_of_a_damaged_segment_are_not_believed(store):
    (entry,) = write(store, [batch([payload(100), payload(110)])])
    good = store.objects[entry.key]
    for at in range(len(good)):
        store.objects[entry.key] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(BadSegment, match="has the digest"):
            read_columns(store, entry, ["commit_ts", "start_ts"])


@pytest.mark.row("A4", "L5")
def test_a_look_into_a_damaged_segment_gives_rows_or_a_bad_segment(store):
    (entry,) = write(store, [batch([payload(100), payload(110)])])
    good = store.objects[entry.key]
    damaged = [good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :] for at in range(len(good)) for bit in (1, 128)]
    refused = 0
    for each in [*damaged, *(good[:size] for size in range(0, len(good), 7)), b"\0" * len(good)]:
        store.objects[entry.key] = each
        try:
            found = list(peek_segment(store, entry, columns=None, at=[0, 0.9], most=1 << 20))
            assert sum(rows.num_rows for rows in found) <= 2
        except BadSegment as error:
            assert entry.key in str(error)
            refused += 1
    assert refused > len(good) // 7


@pytest.mark.row("L5")
def test_a_look_into_a_segment_without_rows_gives_none(store):
    (entry,) = write(store, [batch([payload(100)])])
    schema = pq.read_schema(io.BytesIO(store.objects[entry.key]))
    for groups in (0, 1):
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, schema) as writer:
            for _ in range(groups):
                writer.write_table(schema.empty_table())
        store.objects[entry.key] = sink.getvalue()
        empty = dataclasses.replace(entry, bytes=len(sink.getvalue()))
        assert sum(rows.num_rows for rows in peek_segment(store, empty, columns=None, at=[0, 1], most=1)) == 0
