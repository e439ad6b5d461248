"""What pulls send, made of columns, is byte for byte what the protobuf and Arrow libraries make of single binlogs."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from pump_service.api.arrow import SCHEMA
from pump_service.api.frame import binlog_messages, frame_message, split
from pump_service.store.batch import Binlog, Binlogs
from pumphouse.codec.payload import make_commit, make_prewrite, merge
from pumphouse.proto.pump_pb2 import Entity, Meta, Pos, PullBinlogResp
from pumphouse.proto.pumphouse_pb2 import PullBatchesResponse
from tests.support.rowreference import make_fake


def some(seed: int, count: int) -> list[Binlog]:
    chance = random.Random(seed)
    found = []
    commit_ts = 0
    for _ in range(count):
        commit_ts += chance.choice((1, 100, 1 << 30, 1 << 54))
        if chance.random() < 0.2:
            found.append(Binlog(commit_ts, commit_ts, make_fake(commit_ts), 0))
            continue
        start_ts = chance.randrange(1, commit_ts + 1)
        value = chance.randbytes(chance.choice((0, 1, 90, 120, 130, 16_300, 20_000)))
        p = make_prewrite(start_ts, b"key", value, ddl_job_id=chance.choice((0, 0, 77)))
        found.append(Binlog(commit_ts, start_ts, merge(p, make_commit(start_ts, commit_ts, b"key")), 0))
    return found


@pytest.mark.row("W1", "P7")
@pytest.mark.parametrize("count", [0, 1, 50])
def test_messages_are_those_of_the_protobuf_library(count: int) -> None:
    binlogs = some(count, count)
    expected = [
        PullBinlogResp(
            entity=Entity(pos=Pos(), payload=b.payload, meta=Meta(startTs=b.start_ts, commitTs=b.commit_ts))
        ).SerializeToString()
        for b in binlogs
    ]
    messages = binlog_messages(Binlogs.of(binlogs))
    assert messages.count == count
    assert b"".join(messages.pieces) == b"".join(b"\0" + len(e).to_bytes(4, "big") + e for e in expected)
    assert split(messages) == expected


@pytest.mark.row("W1")
def test_zeros_are_left_out_as_proto3_does() -> None:
    expected = PullBinlogResp(entity=Entity(pos=Pos(), payload=b"", meta=Meta())).SerializeToString()
    assert split(binlog_messages(Binlogs.of([Binlog(0, 0, b"", 0)]))) == [expected]


@pytest.mark.row("P7")
def test_a_frame_is_the_message_with_an_arrow_stream_in_it() -> None:
    binlogs = some(7, 60)
    columns = Binlogs.of(binlogs)
    beside = PullBatchesResponse(watermark=99, node_id="n", gc_point=5)
    (message,) = split(frame_message(columns, beside.SerializeToString()))
    batch = pa.table(
        {
            "commit_ts": [b.commit_ts for b in binlogs],
            "start_ts": [b.start_ts for b in binlogs],
            "ddl_job_id": columns.ddl_job_id.tolist(),
            "payload": [b.payload for b in binlogs],
            "flag": [b.flag for b in binlogs],
        },
        schema=SCHEMA,
    ).to_batches()[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    whole = PullBatchesResponse(frame=sink.getvalue().to_pybytes())
    whole.MergeFrom(beside)
    assert message == whole.SerializeToString()


@pytest.mark.row("P7")
def test_what_is_large_in_a_frame_is_sent_from_where_it_lies() -> None:
    columns = Binlogs.of([Binlog(n, n, b"%d" % (n % 10) * 30_000, 0) for n in range(1, 10)])
    messages = frame_message(columns, PullBatchesResponse(watermark=99).SerializeToString())
    (message,) = split(messages)
    answer = PullBatchesResponse.FromString(message)
    assert pa.ipc.open_stream(answer.frame).read_all()["payload"].to_pylist() == [
        b"%d" % n * 30_000 for n in range(1, 10)
    ]
    assert answer.watermark == 99
    first, payloads, last = messages.pieces
    assert np.shares_memory(np.frombuffer(payloads, np.uint8), columns.data)
    assert len(payloads) == len(columns.data) == 270_000
    assert all(0 < len(each) < 4096 for each in (first, last))


@pytest.mark.row("P7")
def test_a_frame_without_binlogs_only_moves_the_position() -> None:
    beside = PullBatchesResponse(watermark=99)
    assert split(frame_message(Binlogs.of([]), beside.SerializeToString())) == [beside.SerializeToString()]
    assert split(frame_message(Binlogs.of([]), b"")) == [b""]
