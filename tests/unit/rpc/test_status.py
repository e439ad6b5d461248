"""Errors over the wire and back: with details on pumphouse.v1, in Go's words on binlog.Pump."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from pumphouse import errors
from pumphouse.proto import pumphouse_pb2, pumphouse_pb2_grpc
from pumphouse.proto.pumphouse_pb2 import ItemStatus
from pumphouse.rpc.channel import SERVER_OPTIONS, open_aio_channel, open_channel
from pumphouse.rpc.status import (
    DETAILS_KEY,
    TABLE,
    abort_details,
    code_and_reason,
    from_item_status,
    from_rpc_error,
    go_abort,
    item_status,
)

SAMPLES = [
    errors.ClusterMismatch("another cluster", hint="look", got=1, want=2),
    errors.BadBinlog("no binlog", start_ts=5),
    errors.PumpUnavailable("gone", node_id="p:1"),
    errors.PumpReadOnly("full", available=10, limit=20),
    errors.PumpDraining("closing", state="closing"),
    errors.PositionCollected("too old", hint="start a new archive", start_from=1 << 60, gc_point=(1 << 60) + 1),
    errors.PullTooSlow("too slow", hint="pull again", size=10, seconds=61),
    errors.OrphanCommit("no P", start_ts=3, commit_ts=4),
    errors.LateCommit("late", start_ts=3, commit_ts=4, watermark=9),
    errors.WriterFailed("EIO", path="/data/value/000000.vlog"),
    errors.ResolverOverlap("overlap", resolver_id="a", other="b"),
    errors.PeerRefused("no", peer="ipv4:127.0.0.1:1"),
    errors.UsageError("wrong"),
    errors.CorruptionError("rot", path="x", offset=7, reason="crc"),
    errors.GapError("gap", node_id="p", from_ts=1, to_ts=2),
    errors.PumpError("other"),
    errors.BinlogError("anything"),
]


class Refuser(pumphouse_pb2_grpc.PumpBatchServicer):
    """Refuses with whatever it is given."""

    abort = ("", "", ())

    def Accept(self, request, context):
        code, details, metadata = self.abort
        context.set_trailing_metadata(metadata)
        context.abort(code, details)


@pytest.fixture(scope="module")
def served():
    servicer = Refuser()
    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS)
    pumphouse_pb2_grpc.add_PumpBatchServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, pumphouse_pb2_grpc.PumpBatchStub(channel), f"127.0.0.1:{port}"
    server.stop(0).wait()


def call(served, abort) -> errors.BinlogError:
    servicer, stub, _ = served
    servicer.abort = abort
    with pytest.raises(grpc.RpcError) as error:
        stub.Accept(pumphouse_pb2.AcceptRequest(), timeout=10)
    return from_rpc_error(error.value, peer="p:1")


def test_the_samples_cover_the_whole_table():
    assert {type(sample) for sample in SAMPLES} == set(TABLE)
    assert len({reason for _, reason in TABLE.values()}) == len(TABLE)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_an_error_comes_back_as_it_was_with_its_facts_and_hint(served, sample):
    back = call(served, abort_details(sample))
    assert type(back) is type(sample)
    assert (back.message, back.hint, back.facts) == (sample.message, sample.hint, sample.facts)


def test_the_same_over_an_event_loop(served):
    servicer, _, target = served
    servicer.abort = abort_details(SAMPLES[5])

    async def ask():
        async with open_aio_channel(target) as channel:
            try:
                await pumphouse_pb2_grpc.PumpBatchStub(channel).Accept(pumphouse_pb2.AcceptRequest(), timeout=10)
            except grpc.RpcError as error:
                return from_rpc_error(error)

    back = asyncio.run(ask())
    assert type(back) is errors.PositionCollected
    assert (back.start_from, back.gc_point) == (1 << 60, (1 << 60) + 1)


def test_anyone_can_read_the_details_with_googles_messages():
    code, message, metadata = abort_details(SAMPLES[5])
    status = status_pb2.Status.FromString(dict(metadata)[DETAILS_KEY])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("POSITION_COLLECTED", "pumphouse")
    assert dict(info.metadata) == {
        "start_from": str(1 << 60),
        "gc_point": str((1 << 60) + 1),
        "hint": "start a new archive",
    }
    assert (status.code, status.message) == (code.value[0], message) == (11, "too old")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_what_may_be_tried_again_says_when(sample):
    status = status_pb2.Status.FromString(dict(abort_details(sample).trailing_metadata)[DETAILS_KEY])
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details) == sample.retryable


def test_an_error_without_a_row_travels_as_its_nearest_ancestor(served):
    assert code_and_reason(errors.BadRecord("rot")) == (grpc.StatusCode.DATA_LOSS, "CORRUPTION")
    assert code_and_reason(errors.UnknownDdl("x")) == (grpc.StatusCode.UNKNOWN, "ERROR")
    assert type(call(served, abort_details(errors.WindowHeld("held")))) is errors.GapError


def test_a_very_long_message_still_arrives(served):
    back = call(served, abort_details(errors.OrphanCommit("x" * 100_000, hint="y" * 100_000, start_ts=1)))
    assert type(back) is errors.OrphanCommit
    assert back.message.startswith("xxx")


@pytest.mark.row("W1")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.ClusterMismatch("x", got=5, want=6), "cluster ID are mismatch, 5 vs 6"),
        (errors.PumpDraining("x", state="paused"), "no online: paused"),
        (
            errors.PumpReadOnly("x", available=10, limit=20),
            "no available space, available: 10, StopWriteAtAvailableSpace: 20",
        ),
        (errors.BadBinlog("unexpected EOF"), "proto: unexpected EOF"),
        (errors.OrphanCommit("the C of 5 has no P", start_ts=5), "the C of 5 has no P; see pumphouse archive accept"),
        (errors.LateCommit("5 is late", hint="look", commit_ts=5), "5 is late; see pumphouse archive accept"),
    ],
)
def test_refusals_of_binlog_pump_are_unknown_with_gos_text_and_no_details(error, text):
    assert go_abort(error) == (grpc.StatusCode.UNKNOWN, text, ())


@pytest.mark.row("W5")
def test_gos_texts_are_understood(served):
    mismatch = call(served, go_abort(errors.ClusterMismatch("x", got=5, want=6)))
    assert (type(mismatch), mismatch.got, mismatch.want) == (errors.ClusterMismatch, 5, 6)
    assert mismatch.hint
    draining = call(served, go_abort(errors.PumpDraining("x", state="closing")))
    assert (type(draining), draining.state) == (errors.PumpDraining, "closing")
    full = call(served, go_abort(errors.PumpReadOnly("x", available=10, limit=20)))
    assert (type(full), full.available, full.limit) == (errors.PumpReadOnly, 10, 20)
    assert type(call(served, go_abort(errors.BadBinlog("illegal wireType 7")))) is errors.BadBinlog
    assert type(call(served, (grpc.StatusCode.UNKNOWN, "unexpected EOF", ()))) is errors.BadBinlog
    assert type(call(served, (grpc.StatusCode.UNKNOWN, "leveldb: closed", ()))) is errors.PumpError


@pytest.mark.row("W1", "P17")
def test_what_is_too_large_is_said_in_the_words_that_tidb_looks_for_and_understood(served):
    error = errors.BadBinlog("a binlog of 7 bytes is over the limit of 6", size=7, limit=6)
    abort = go_abort(error)
    assert abort.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "received message larger than max (7 vs. 6)" in abort.details
    assert error.message in abort.details
    for text in (abort.details, "SERVER: Received message larger than max (7 vs. 6)"):  # of gRPC's core
        back = call(served, (abort.code, text, ()))
        assert (type(back), back.size, back.limit) == (errors.BadBinlog, 7, 6)
        assert back.hint
    absurd = call(served, (abort.code, f"received message larger than max ({'9' * 5000} vs. 6)", ()))
    assert (type(absurd), absurd.size) == (errors.BadBinlog, None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.PumpUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.PumpUnavailable),
        (grpc.StatusCode.CANCELLED, errors.PumpUnavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.PumpUnavailable),
        (grpc.StatusCode.INTERNAL, errors.PumpError),
    ],
)
def test_failures_of_the_transport_are_told_by_their_code(served, code, kind):
    back = call(served, (code, "some text", ()))
    assert type(back) is kind
    assert back.node_id == "p:1"
    assert "some text" in str(back)


def test_a_foreign_or_broken_detail_is_not_taken_for_ours(served):
    foreign = status_pb2.Status(code=9, message="m")
    foreign.details.add().Pack(error_details_pb2.ErrorInfo(reason="ORPHAN_COMMIT", domain="elsewhere.example"))
    for value in (foreign.SerializeToString(), b"\xff\xff\xff"):
        back = call(served, (grpc.StatusCode.FAILED_PRECONDITION, "m", ((DETAILS_KEY, value),)))
        assert type(back) is errors.PumpError


def test_nobody_listening_is_pump_unavailable():
    with open_channel("127.0.0.1:1") as channel, pytest.raises(grpc.RpcError) as error:
        pumphouse_pb2_grpc.PumpBatchStub(channel).Accept(pumphouse_pb2.AcceptRequest(), timeout=5)
    assert type(from_rpc_error(error.value)) is errors.PumpUnavailable
    assert type(from_rpc_error(grpc.RpcError("bare"))) is errors.PumpError


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_status_of_one_payload_in_a_batch_keeps_class_and_text(sample):
    item = ItemStatus.FromString(item_status(sample).SerializeToString())
    back = from_item_status(item)
    assert type(back) is type(sample)
    assert str(back) == str(sample)


def test_a_durable_payload_has_an_empty_status():
    assert item_status(None).SerializeToString() == b""
    assert from_item_status(ItemStatus()) is None
