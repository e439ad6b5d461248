"""What gRPC says over the frames: calls, statuses, deadlines, cancellation, sizes, compression, metadata."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from structlog.testing import capture_logs

from pump_service.door.group import Refusal
from pump_service.door.http2 import frames as f
from pump_service.door.limits import Limits
from pump_service.door.server import Server
from tests.support.doorkit import (
    BOTH,
    DOWN,
    GROUP,
    PREFACE,
    UNARY,
    UP,
    Echo,
    Peer,
    answers,
    frame,
    goaways,
    prefixed,
    resets,
    statuses,
)
from tests.unit.pump_service.door.test_protocol import run

Code = grpc.StatusCode


def code(status: grpc.StatusCode) -> int:
    return status.value[0]


@pytest.mark.parametrize(
    ("path", "want"),
    [(GROUP, prefixed(b"hi")), (UNARY, prefixed(b"hi")), (DOWN, prefixed(b"hi") * 4), (BOTH, prefixed(b"hi"))],
)
def test_calls_of_all_kinds_are_answered(path: str, want: bytes) -> None:
    async def test() -> None:
        peer = Peer().greet()
        for _ in range(3):
            n, data = peer.call(path, b"hi")
            peer.send(data)
            data, fields = answers(await peer.settle())[n]
            assert (data, fields["grpc-status"]) == (want, "0")
        assert peer.connection.http2.streams.idle

    asyncio.run(test())


@run
async def test_all_calls_of_a_read_reach_the_group_as_one_and_leave_in_one_write() -> None:
    peer = Peer().greet()
    writes: list[bytes] = []
    peer.wire.write = writes.append  # type: ignore[method-assign,assignment]
    calls = [peer.call(GROUP, b"%d" % n, ("grpc-timeout", f"{15_000 + n}m")) for n in range(40)]
    calls.append(peer.call(GROUP, b"40"))
    peer.send(b"".join(data for _, data in calls))
    ((requests, _),) = peer.echo.groups
    assert requests == [b"%d" % n for n in range(41)]
    assert len(writes) == 1
    peer.wire.written += writes[0]
    assert answers(peer.frames()) == {
        stream_id: (prefixed(b"%d" % n), {"grpc-status": "0"}) for n, (stream_id, _) in enumerate(calls)
    }


@pytest.mark.parametrize("count", [1, 2, 8, 9, 100])
def test_equal_answers_are_the_same_bytes_as_single_ones(count: int) -> None:
    async def test() -> None:
        peer = Peer().greet()
        peer.echo.answer_groups = False
        for _ in range(2):  # the second time from prebuilt blocks
            calls = [peer.call(GROUP, b"x") for _ in range(count)]
            peer.send(b"".join(data for _, data in calls))
            requests, answer = peer.echo.groups.pop()
            answer([b"same"] * len(requests))
            found = answers(await peer.settle())
            assert found == {n: (prefixed(b"same"), {"grpc-status": "0"}) for n, _ in calls}
        assert not peer.connection.http2.streams.lean

    asyncio.run(test())


@run
async def test_a_group_may_answer_each_call_its_own_way_and_late() -> None:
    peer = Peer().greet()
    peer.echo.answer_groups = False
    calls = [peer.call(GROUP, b"x") for _ in range(4)]
    in_pieces, data = peer.call(GROUP, b"in pieces")
    peer.send(b"".join(data for _, data in calls) + data[:-4])
    peer.send(data[-4:])
    assert [requests for requests, _ in peer.echo.groups] == [[b"x"] * 4, [b"in pieces"]]
    no = Refusal(Code.UNKNOWN, "täglich 100%", (("x-bin", b"\0\xff"),))
    peer.echo.groups[0][1]([b"one", no, bytes(100_000), b"one"])
    peer.echo.groups[1][1]([no])
    peer.send(frame(8, 0, 0, struct.pack(">I", 200_000)) + frame(8, 0, calls[2][0], struct.pack(">I", 200_000)))
    found = answers(await peer.settle())
    assert [found[n][0] for n, _ in calls] == [prefixed(b"one"), b"", prefixed(bytes(100_000)), prefixed(b"one")]
    for n in (calls[1][0], in_pieces):
        fields = found[n][1]
        assert (fields["grpc-status"], fields["grpc-message"]) == ("2", "t%C3%A4glich 100%25")
        assert base64.b64decode(fields["x-bin"] + "==") == b"\0\xff"


@run
async def test_answers_to_calls_that_were_reset_are_dropped_and_the_others_arrive() -> None:
    peer = Peer().greet()
    peer.echo.answer_groups = False
    calls = [peer.call(GROUP, b"x") for _ in range(3)]
    peer.send(b"".join(data for _, data in calls))
    peer.send(frame(3, 0, calls[1][0], struct.pack(">I", 8)))
    ((requests, answer),) = peer.echo.groups
    assert len(requests) == 3
    answer([b"done"] * 3)
    assert set(answers(await peer.settle())) == {calls[0][0], calls[2][0]}
    with pytest.raises(ValueError, match="twice"):
        answer([b"done"] * 3)


@run
async def test_a_group_handler_that_fails_refuses_its_calls() -> None:
    server = Server()
    server.add_group_method(GROUP, lambda requests, answer: 1 / 0)  # type: ignore[arg-type,return-value]
    peer = Peer(server).greet()
    n, data = peer.call(GROUP, b"x")
    with capture_logs() as logs:
        peer.send(data)
    assert statuses(peer.frames())[n][0] == code(Code.UNKNOWN)
    assert logs[0]["event"] == "call_failed"


# ---- statuses


class Refusing:
    """Methods that end in other ways than an answer."""

    async def abort(self, request: bytes, context: Any) -> bytes:
        await context.abort(Code.FAILED_PRECONDITION, "not now", (("k", "v"), ("k-bin", b"\1")))
        raise AssertionError

    async def abort_later(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        await context.abort(Code.DATA_LOSS, "gone")

    async def fail(self, request: bytes, context: Any) -> bytes:
        raise ValueError("broken")

    async def set_code(self, request: bytes, context: Any) -> bytes:
        context.set_code(Code.NOT_FOUND)
        context.set_details("nothing")
        return b""

    async def metadata(self, request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("a", "1"),))
        context.set_trailing_metadata((("b-bin", b"\2"),))
        self.seen = context.invocation_metadata()
        self.peer = context.peer()
        self.left = context.time_remaining()
        return b"ok"

    def server(self) -> Server:
        server = Server()
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        server.add_registered_method_handlers(
            "r.R",
            {
                "abort": unary(self.abort), "later": stream(self.abort_later), "fail": unary(self.fail),
                "code": unary(self.set_code), "metadata": unary(self.metadata),
                "parse": unary(self.metadata, BytesValue.FromString, BytesValue.SerializeToString),
            },
        )  # fmt: skip
        return server


@pytest.mark.parametrize(
    ("method", "want", "text"),
    [
        ("abort", Code.FAILED_PRECONDITION, "not now"),
        ("later", Code.DATA_LOSS, "gone"),
        ("fail", Code.UNKNOWN, "Unexpected <class 'ValueError'>: broken"),
        ("code", Code.NOT_FOUND, "nothing"),
        ("parse", Code.INTERNAL, "Exception deserializing request"),
        ("unknown", Code.UNIMPLEMENTED, "unknown method unknown for service r.R"),
    ],
)
def test_a_call_ends_with_the_status_that_its_handler_gives(method: str, want: grpc.StatusCode, text: str) -> None:
    async def test() -> None:
        peer = Peer(Refusing().server()).greet()
        n, data = peer.call(f"/r.R/{method}", b"\xff")
        with capture_logs():
            peer.send(data)
            found = statuses(await peer.settle())[n]
        assert found[0] == code(want)
        assert found[1].startswith(text)

    asyncio.run(test())


@run
async def test_metadata_travels_both_ways() -> None:
    refusing = Refusing()
    peer = Peer(refusing.server()).greet()
    n, data = peer.call("/r.R/metadata", b"x", ("x-a", "b"), ("x-bin", "AQI,Aw"), ("grpc-timeout", "10S"))
    peer.send(data)
    first, *_, last = [each for each in await peer.settle() if each.type == 1]
    assert ("a", "1") in first.fields
    assert ("b-bin", "Ag") in last.fields
    assert refusing.seen == ((":x"[1:] + "-a", "b"), ("x-bin", b"\1\2"), ("x-bin", b"\3"))
    assert refusing.peer == "ipv4:127.0.0.1:1"
    assert 9 < refusing.left <= 10
    del n


@run
async def test_what_is_not_grpc_is_told_so_in_http() -> None:
    peer = Peer().greet()
    for n, fields in ((1, [("content-type", "application/json")]), (3, [])):
        block = peer.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/"), *fields])
        peer.send(frame(1, 5, n, block))
        found = await peer.settle()
        assert found[0].fields[0] == (":status", "415")
        assert b"gRPC" in found[1].data
    for kind in ("application/grpc+proto", "application/grpc;x=y"):
        n, data = (
            5,
            frame(1, 4, peer.next_id + 100, peer.block(GROUP, ("content-type", kind), without=["content-type"])),
        )
        peer.send(data + frame(0, 1, peer.next_id + 100, prefixed(b"ok")))
        assert statuses(peer.frames())[peer.next_id + 100][0] == 0
        peer.next_id += 2


@run
async def test_what_is_not_grpc_is_not_answered_on_a_stream_that_the_same_read_has_reset() -> None:
    peer = Peer().greet()
    block = peer.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/")])
    peer.send(frame(1, 4, 1, block))
    peer.send(frame(0, 1, 1, b"x") + frame(2, 0, 1, bytes(4)))  # a PRIORITY of a wrong size
    assert [(each.type, each.stream_id) for each in await peer.settle()] == [(3, 1)]


@run
async def test_a_page_asked_for_over_http2_by_a_peer_that_is_not_allowed_is_forbidden() -> None:
    refusal = Refusal(grpc.StatusCode.PERMISSION_DENIED, "the certificate carries 'stranger'")
    peer = Peer(Server(authorize=lambda names, who: refusal)).greet()
    block = peer.encoder.encode([(":method", "GET"), (":scheme", "https"), (":path", "/metrics"), (":authority", "x")])
    peer.send(frame(1, 5, 1, block))
    found = await peer.settle()
    assert found[0].fields[0] == (":status", "403")
    assert b"stranger" in found[1].data


@run
async def test_te_may_be_missing() -> None:
    peer = Peer().greet()
    peer.send(frame(1, 4, 1, peer.block(GROUP, without=["te"])) + frame(0, 1, 1, prefixed(b"x")))
    assert 1 in answers(peer.frames())


# ---- the request's shape


@pytest.mark.parametrize(
    ("path", "body", "want"),
    [
        (UNARY, b"", Code.INTERNAL),
        (GROUP, b"", Code.INTERNAL),
        (UNARY, prefixed(b"a") * 2, Code.INTERNAL),
        (GROUP, prefixed(b"a") * 2, Code.INTERNAL),
        (UNARY, prefixed(b"abc")[:-1], Code.INTERNAL),
        (UNARY, b"\0\0", Code.INTERNAL),
        (GROUP, b"\1" + prefixed(b"abc")[1:], Code.INTERNAL),  # compressed, but nobody says how
        (UP, b"\2" + prefixed(b"abc")[1:], Code.INTERNAL),
        (UNARY, prefixed(bytes(1001)), Code.RESOURCE_EXHAUSTED),
        (GROUP, prefixed(bytes(1001)), Code.RESOURCE_EXHAUSTED),
        (UP, prefixed(bytes(1001)), Code.RESOURCE_EXHAUSTED),
        (GROUP, prefixed(bytes(1000)), Code.OK),
    ],
)
def test_requests_of_a_wrong_shape_are_refused(path: str, body: bytes, want: grpc.StatusCode) -> None:
    async def test() -> None:
        peer = Peer(limits=Limits(message=1000)).greet()
        n, data = peer.call(path, None)
        peer.send(data + frame(0, 1, n, body))
        assert statuses(await peer.settle())[n][0] == code(want)
        assert peer.server.assembly.held == 0
        assert peer.connection.http2.streams.idle

    asyncio.run(test())


@run
async def test_a_message_that_claims_too_much_is_refused_before_its_bytes_come_and_the_rest_is_let_pass() -> None:
    peer = Peer(limits=Limits(message=1000)).greet()
    n, data = peer.call(UNARY, None)
    peer.send(data + frame(0, 0, n, b"\0\xff\xff\xff\xff"))
    found = await peer.settle()
    assert statuses(found)[n] == (
        code(Code.RESOURCE_EXHAUSTED),
        "grpc: received message larger than max (4294967295 vs. 1000)",
    )
    assert resets(found) == {n: f.NO_ERROR}
    peer.send(frame(0, 0, n, bytes(500)) + frame(0, 1, n, bytes(500)))
    assert not peer.frames()


@run
async def test_incomplete_requests_of_all_connections_are_bounded_together() -> None:
    peers = [Peer(limits=Limits(assembling=10_000, assembling_most=20_000)).greet()]
    peers += [Peer(peers[0].server).greet() for _ in range(3)]
    refused = []
    for peer in peers:
        n, data = peer.call(UNARY, None)
        peer.send(data + frame(0, 0, n, prefixed(bytes(50_000))[:9000]))
        refused.append({n: status[0] for n, status in statuses(peer.frames()).items()})
    assert refused == [{}, {}, {}, {n: code(Code.UNAVAILABLE)}]  # beside the first, which may be as large as any
    assert peer.server.assembly.held == 27_000
    for each in peers:
        each.connection.connection_lost(None)
    assert peer.server.assembly.held == 0


@run
async def test_gzip_is_inflated_up_to_the_limit() -> None:
    peer = Peer(limits=Limits(message=1000)).greet()

    async def status_of(path: str, body: bytes, encoding: str = "gzip") -> tuple[int, bytes]:
        n, data = peer.call(path, None, ("grpc-encoding", encoding))
        peer.send(data + frame(0, 1, n, body))
        found = answers(await peer.settle())[n]
        return int(found[1]["grpc-status"]), found[0]

    def compressed(data: bytes) -> bytes:
        return b"\1" + struct.pack(">I", len(data)) + data

    for path in (GROUP, UNARY):
        assert await status_of(path, compressed(gzip.compress(b"abc" * 100))) == (0, prefixed(b"abc" * 100))
        assert await status_of(path, prefixed(b"plain")) == (0, prefixed(b"plain"))
        assert (await status_of(path, compressed(gzip.compress(bytes(1001)))))[0] == code(Code.RESOURCE_EXHAUSTED)
        assert (await status_of(path, compressed(gzip.compress(b"abc")[:-3])))[0] == code(Code.INTERNAL)
        assert (await status_of(path, compressed(gzip.compress(b"abc") + b"x")))[0] == code(Code.INTERNAL)
        assert (await status_of(path, compressed(b"rubbish")))[0] == code(Code.INTERNAL)
        assert (await status_of(path, prefixed(b""), "snappy"))[0] == code(Code.UNIMPLEMENTED)


# ---- deadlines, cancellation


@run
async def test_calls_end_at_their_deadline() -> None:
    peer = Peer().greet()
    peer.echo.hold, peer.echo.answer_groups = asyncio.Event(), False
    unary, one = peer.call(UNARY, b"x", ("grpc-timeout", "300m"))
    group, two = peer.call(GROUP, b"x", ("grpc-timeout", "300m"))
    later, three = peer.call(GROUP, b"x", ("grpc-timeout", "9S"))
    pieces, four = peer.call(GROUP, b"x", ("grpc-timeout", "300m"), end=False)
    peer.send(one + two + three + four)
    assert not await peer.settle()
    found: list[Any] = []
    while len(statuses(found)) < 3:
        await asyncio.sleep(0.02)
        found += await peer.settle()
    assert {n: c for n, (c, _) in statuses(found).items()} == dict.fromkeys((unary, group, pieces), 4)
    assert peer.echo.cancelled == 1
    ((_, answer),) = peer.echo.groups
    answer([b"x", b"x"])
    assert set(answers(await peer.settle())) == {later}
    assert len(peer.server.deadlines) == 0


@run
async def test_a_timeout_that_is_nonsense_is_refused() -> None:
    peer = Peer().greet()
    for path in (GROUP, UNARY):
        n, data = peer.call(path, b"x", ("grpc-timeout", "soon"))
        peer.send(data)
        assert statuses(peer.frames())[n] == (code(Code.INTERNAL), "malformed grpc-timeout")


@pytest.mark.parametrize("path", [UNARY, DOWN, UP, BOTH])
def test_a_reset_cancels_the_handler(path: str) -> None:
    async def test() -> None:
        peer = Peer().greet({f.INITIAL_WINDOW_SIZE: 0})
        peer.echo.hold, peer.echo.pieces = asyncio.Event(), 1000
        n, data = peer.call(path, bytes(9000), end=path in (UNARY, DOWN))
        peer.send(data)
        await peer.settle()
        ended: list[Any] = []
        peer.echo.contexts[0].add_done_callback(ended.append)
        peer.send(frame(3, 0, n, struct.pack(">I", 8)))
        await peer.settle()
        assert ended == peer.echo.contexts
        assert peer.echo.contexts[0].cancelled()
        assert peer.connection.http2.streams.idle
        assert not [t for t in asyncio.all_tasks() if t.get_name() == path]

    asyncio.run(test())


@run
async def test_a_handler_that_answers_before_the_request_ends_resets_the_rest_without_error() -> None:
    class Early(Echo):
        async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
            return await anext(requests)

    peer = Peer(echo=Early()).greet()
    n, data = peer.call(UP, b"first", end=False)
    peer.send(data + frame(0, 0, n, prefixed(b"second")))
    found = await peer.settle()
    assert answers(found)[n][0] == prefixed(b"first")
    assert resets(found) == {n: f.NO_ERROR}
    peer.send(frame(0, 0, n, prefixed(b"third")) + frame(1, 5, n, peer.encoder.encode([("a", "b")])))
    assert not goaways(peer.frames())
    assert peer.connection.http2.windows._held == 0


@run
async def test_a_slow_handler_holds_its_callers_stream_back() -> None:
    class Slow(Echo):
        async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
            await self.go.wait()
            return b"%d" % len([x async for x in requests])

    echo = Slow()
    echo.go = asyncio.Event()  # type: ignore[attr-defined]
    peer = Peer(echo=echo, limits=Limits(stream_window=40_000)).greet()
    n, data = peer.call(UP, None)
    peer.send(data)
    for _ in range(4):
        peer.send(frame(0, 0, n, prefixed(bytes(9_000))))
    assert not [each for each in await peer.settle() if each.type == 8]
    echo.go.set()  # type: ignore[attr-defined]
    assert sum(each.window_increment for each in await peer.settle() if each.type == 8) > 20_000
    peer.send(frame(0, 1, n, prefixed(b"last")))
    assert answers(await peer.settle())[n][0] == prefixed(b"5")


@run
async def test_who_may_not_call_is_told_so_on_every_call() -> None:
    no = Refusal(Code.PERMISSION_DENIED, "who are you?")
    server = Server(authorize=lambda names, peer: no)
    echo = Echo()
    echo.register(server)
    peer = Peer(server).greet()
    for path in (GROUP, UNARY, DOWN, UP, "/unknown"):
        n, data = peer.call(path, b"x")
        peer.send(data)
        assert statuses(peer.frames())[n] == (7, "who are you?")
    assert not echo.groups and not echo.seen


@run
async def test_too_many_connections_are_not_let_in() -> None:
    server = Server(limits=Limits(connections=2, silent_s=60))
    peers = [Peer(server) for _ in range(3)]
    assert [peer.wire.closing for peer in peers] == [False, False, True]
    peers[0].send(PREFACE + frame(4, 0, 0))
    peers[0].connection.connection_lost(None)
    assert not Peer(server).wire.closing


@run
async def test_a_new_connection_takes_the_place_of_one_that_has_been_idle() -> None:
    server = Server(limits=Limits(connections=3, idle_s=0, silent_s=60))
    echo = Echo()
    echo.answer_groups = False
    echo.register(server)
    idle, busy, silent = Peer(server).greet(), Peer(server).greet(), Peer(server)
    busy.send(busy.call(GROUP, b"x")[1])
    more = Peer(server)
    assert not more.wire.closing
    assert goaways(await idle.settle())
    assert idle.wire.closing
    more.greet().send(more.call(GROUP, b"x")[1])
    # Who has a call open, and who has not said yet what it speaks, keep their places.
    assert not busy.wire.closing and not silent.wire.closing
    assert Peer(server).wire.closing
    for connection in (busy.connection, more.connection):
        assert not connection.is_idle(float("inf"))


@run
async def test_who_asks_and_answers_pings_and_calls_nothing_is_idle() -> None:
    server = Server(limits=Limits(connections=1, idle_s=5))
    connection = Peer(server).greet().connection
    began = connection.idle_since
    connection.look(began + 4)
    connection.data_received(frame(6, 1, 0, b"keepaliv"))
    assert not connection.is_idle(began - 1)
    assert connection.is_idle(began)
    assert Peer(server).wire.closing


@run
async def test_open_calls_are_counted_over_all_connections() -> None:
    server = Server(limits=Limits(calls=3, stalled_s=0))
    echo = Echo()
    echo.register(server)
    peers = [Peer(server).greet() for _ in range(2)]
    opened = []
    for number in range(4):
        n, data = peers[number % 2].call(UNARY, None)
        peers[number % 2].send(data)
        opened.append(n)
    assert resets(peers[1].frames()) == {opened[3]: f.REFUSED_STREAM}
    # A write that comes whole needs no stream.
    n, data = peers[1].call(GROUP, b"whole")
    peers[1].send(data)
    assert answers(await peers[1].settle())[n][0] == prefixed(b"whole")
    # One that ends makes room; the others have not moved for long enough.
    peers[0].send(frame(0, 1, opened[0], prefixed(b"x")))
    assert answers(await peers[0].settle())[opened[0]][0] == prefixed(b"x")
    n, data = peers[1].call(UNARY, None)
    peers[1].send(data)
    assert not resets(peers[1].frames())
    server._keep_alive()
    refused = [each for peer in peers for each in statuses(await peer.settle()).values()]
    assert len(refused) == 3
    assert {status for status, _ in refused} == {code(Code.UNAVAILABLE)}
    assert "pump.max_calls" in refused[0][1]
    assert server.tally.open == 0
    for peer in peers:
        peer.connection.connection_lost(None)
    assert server.tally.open == 0


@run
async def test_below_half_of_the_calls_nobody_is_hurried() -> None:
    server = Server(limits=Limits(calls=4, stalled_s=0))
    Echo().register(server)
    peer = Peer(server).greet()
    for _ in range(2):
        peer.send(peer.call(UNARY, None)[1])
    server._keep_alive()
    assert not statuses(await peer.settle())
    peer.connection.connection_lost(None)
    assert server.tally.open == 0


@pytest.mark.parametrize("path", [GROUP, UNARY])
def test_a_compressed_message_has_a_limit_of_its_own(path: str) -> None:
    async def test() -> None:
        peer = Peer(limits=Limits(inflated=100_000)).greet()
        for size, want in ((100_000, 0), (100_001, code(Code.RESOURCE_EXHAUSTED))):
            n, data = peer.call(path, None, ("grpc-encoding", "gzip"))
            packed = gzip.compress(bytes(size))
            peer.send(data + frame(0, 1, n, struct.pack(">BI", 1, len(packed)) + packed))
            peer.send(frame(8, 0, 0, struct.pack(">I", 1 << 20)) + frame(8, 0, n, struct.pack(">I", 1 << 20)))
            found = statuses(await peer.settle())[n]
            assert found[0] == want
        assert found[1] == "grpc: received message larger than max (100001 vs. 100000)"

    asyncio.run(test())


@run
async def test_nothing_is_inflated_while_there_is_no_room_behind_the_door() -> None:
    peer = Peer().greet()
    n, data = peer.call(GROUP, None, ("grpc-encoding", "gzip"))
    packed = gzip.compress(bytes(5 << 20))
    peer.send(data + frame(0, 0, n, struct.pack(">BI", 1, len(packed)) + packed[:-1]))
    peer.server.pause_reading()
    peer.send(frame(0, 1, n, packed[-1:]))  # it was under way
    await peer.settle()
    assert peer.server.assembly.held < 2 << 20  # a step at the most
    assert not peer.echo.groups
    peer.server.resume_reading()
    await peer.settle()
    assert [len(requests[0]) for requests, _ in peer.echo.groups] == [5 << 20]


@run
async def test_a_new_connection_takes_the_place_of_one_that_says_nothing() -> None:
    server = Server(limits=Limits(connections=2, silent_s=0.05))
    silent, speaks = Peer(server), Peer(server).greet()
    await asyncio.sleep(0.1)
    new = Peer(server)
    assert silent.wire.closing
    assert not new.wire.closing
    assert not speaks.wire.closing
    silent.wire.protocol.connection_lost(None)
    assert Peer(server).wire.closing


class _Asked(asyncio.Protocol):
    """Serves HTTP/1 and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.told.append("data")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


@run
async def test_http1_connections_are_counted_among_all_and_by_themselves() -> None:
    server = Server(limits=Limits(connections=3, http1_connections=2, silent_s=60))
    server.serve_http1(_Asked)
    one, two, three = (Peer(server) for _ in range(3))
    for peer in (one, two, three):
        peer.send(b"GET / HTTP/1.1\r\n")
    assert [peer.wire.closing for peer in (one, two, three)] == [False, False, True]
    three.wire.protocol.connection_lost(None)
    assert not (four := Peer(server).greet()).wire.closing
    assert Peer(server).wire.closing  # two of HTTP/1 and one of HTTP/2
    one.wire.protocol.connection_lost(None)
    assert not Peer(server).wire.closing
    assert not four.wire.closing


@run
async def test_an_http1_answer_that_nobody_reads_ends_its_connection() -> None:
    served: list[_Asked] = []

    def serve() -> _Asked:
        served.append(_Asked())
        return served[-1]

    server = Server(limits=Limits(http1_unread_s=0.05))
    server.serve_http1(serve)
    reads, rests = Peer(server), Peer(server)
    for peer in (reads, rests):
        peer.send(b"GET / HTTP/1.1\r\n")
        peer.wire.protocol.pause_writing()
    reads.wire.protocol.resume_writing()
    while not rests.wire.closing:
        await asyncio.sleep(0.01)
    assert not reads.wire.closing
    rests.wire.protocol.connection_lost(None)
    assert served[0].told == ["made", "data", "pause", "resume"]
    assert served[1].told == ["made", "data", "pause", "lost"]


@pytest.mark.parametrize("path", [GROUP, UNARY])
def test_whole_messages_without_the_end_of_their_request_count_as_held(path: str) -> None:
    async def test() -> None:
        peer = Peer(limits=Limits(message=50_000, assembling=50_000, assembling_most=70_000)).greet()
        peer.send(frame(8, 0, 0, struct.pack(">I", 1 << 20)))
        opened = []
        for _ in range(10):
            n, data = peer.call(path, bytes(15_000), end=False)
            opened.append(n)
            peer.send(data)
        assert peer.server.assembly.held == 5 * 15_005 - 5 * 5
        refused = statuses(peer.frames())
        assert set(refused) == set(opened[5:])  # the oldest and 70_000 beside it
        assert {status for status, _ in refused.values()} == {code(Code.UNAVAILABLE)}
        assert all("pump.incomplete_bytes" in text for _, text in refused.values())
        for n in opened:
            if n not in refused:
                peer.send(frame(0, 1, n))
        assert set(answers(await peer.settle())) == set(opened) - set(refused)
        assert peer.server.assembly.held == 0

    asyncio.run(test())


def packed(message: bytes) -> bytes:
    data = gzip.compress(message)
    return b"\x01" + struct.pack(">I", len(data)) + data


@run
async def test_large_gzip_messages_are_inflated_step_by_step_and_in_order() -> None:
    peer = Peer(limits=Limits(message=8 << 20)).greet({f.INITIAL_WINDOW_SIZE: 1 << 30})
    peer.send(frame(8, 0, 0, struct.pack(">I", 1 << 30)))
    messages = [bytes([n]) * size for n, size in enumerate((10, 5 << 20, 7, 3 << 20, 5))]
    for path, sent in ((UP, messages), (GROUP, messages[1:2]), (UNARY, messages[1:2])):
        n, data = peer.call(path, None, ("grpc-encoding", "gzip"))
        peer.send(data + frame(0, 1, n, b"".join(map(packed, sent))))
        held = peer.server.assembly.held
        assert 1 << 20 <= held < (1 << 20) + 20_000  # one step; the whole request is here
        assert not answers(peer.frames())
        for _ in range(200):
            await asyncio.sleep(0)
        assert answers(peer.frames())[n][0] == prefixed(b"|".join(sent))
        assert peer.server.assembly.held == 0


@run
async def test_what_gzip_inflates_to_counts_as_held() -> None:
    limits = Limits(message=8 << 20, assembling=1 << 20, assembling_most=3 << 20)
    peer = Peer(limits=limits).greet({f.INITIAL_WINDOW_SIZE: 1 << 30})
    peer.send(frame(8, 0, 0, struct.pack(">I", 1 << 30)))
    oldest, data = peer.call(GROUP, bytes(50_000)[:9_000], end=False)
    peer.send(data)
    calls = [peer.call(GROUP, None, ("grpc-encoding", "gzip")) for _ in range(2)]
    for n, data in calls:
        peer.send(data + frame(0, 1, n, packed(bytes(5 << 20))))
    found = await peer.settle()
    assert not answers(found)  # each waits after its first step
    assert 2 << 20 <= peer.server.assembly.held <= 3 << 20
    peer.send(frame(0, 1, oldest))
    for _ in range(30):
        found += await peer.settle()
        assert peer.server.assembly.held <= 7 << 20
    assert {n: status for n, (status, _) in statuses(found).items()} == dict.fromkeys(
        (oldest, *(n for n, _ in calls)), 0
    )
    assert peer.server.assembly.held == 0


@run
async def test_what_the_messages_of_a_stream_inflate_to_waits_for_their_handler() -> None:
    peer = Peer(limits=Limits(message=8 << 20, assembling=3 << 20)).greet()
    n, data = peer.call(UP, None, ("grpc-encoding", "gzip"))
    peer.send(data + frame(0, 0, n, packed(bytes(1 << 20)) * 15))  # no turn for the handler between two of them
    for _ in range(100):
        assert peer.server.assembly.held <= 5 << 20
        await asyncio.sleep(0)
    assert peer.server.assembly.held == 0
    peer.send(frame(0, 1, n))
    await peer.settle()
    assert peer.server.assembly.held == 0


@run
async def test_a_handler_that_takes_nothing_has_little_inflated_for_it() -> None:
    class Slow(Echo):
        async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
            await asyncio.Event().wait()
            return b""

    peer = Peer(echo=Slow(), limits=Limits(message=8 << 20)).greet()
    n, data = peer.call(UP, None, ("grpc-encoding", "gzip"))
    peer.send(data + frame(0, 0, n, packed(bytes(1 << 20)) * 15))
    await peer.settle()
    await peer.settle()
    assert peer.server.assembly.held <= 4 << 20


@run
async def test_a_gzip_message_that_hardly_shrinks_may_be_as_large_as_any() -> None:
    peer = Peer(limits=Limits(message=4 << 20, connection_window=1 << 20, assembling=8 << 20)).greet()
    message = random.Random(1).randbytes(4_000_000)
    n, data = peer.call(GROUP, None, ("grpc-encoding", "gzip"))
    body = packed(message)
    pieces = [body[at : at + 16_000] for at in range(0, len(body), 16_000)]
    most = 0
    for at, piece in enumerate(pieces):
        peer.send((b"" if at else data) + frame(0, at == len(pieces) - 1, n, piece))
        most = max(most, peer.server.assembly.held)
    while not peer.echo.groups:
        await asyncio.sleep(0)
        most = max(most, peer.server.assembly.held)
    assert peer.echo.groups[0][0] == [message]
    assert most < len(body) + 200_000


@run
async def test_a_call_that_ends_while_its_message_is_inflated_leaves_nothing() -> None:
    peer = Peer(limits=Limits(message=8 << 20)).greet()
    n, data = peer.call(GROUP, None, ("grpc-encoding", "gzip"))
    peer.send(data + frame(0, 1, n, packed(bytes(5 << 20))))
    assert peer.server.assembly.held
    peer.send(frame(3, 0, n, struct.pack(">I", 8)))
    assert peer.server.assembly.held == 0 and peer.connection.http2.streams.idle
    await peer.settle()
    assert not peer.echo.groups


@run
async def test_many_equal_answers_are_those_of_their_own_group_and_not_of_the_one_before() -> None:
    peer = Peer().greet()
    for message, count in ((b"one", 20), (b"three", 12), (b"one", 40), (b"none", 40)):
        sent = [peer.call(GROUP, message) for _ in range(count)]
        peer.send(b"".join(data for _, data in sent))
        want = {stream_id: (prefixed(message), {"grpc-status": "0"}) for stream_id, _ in sent}
        assert answers(await peer.settle()) == want
