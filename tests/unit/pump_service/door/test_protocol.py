"""The rules of RFC 9113, frame by frame, against a connection in memory."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import hpack
import pytest
from structlog.testing import capture_logs

from pump_service.door.http2 import frames as f
from pump_service.door.limits import Limits
from tests.support.doorkit import (
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


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that is a coroutine."""

    def sync() -> None:
        asyncio.run(test())

    sync.__name__, sync.__doc__ = test.__name__, test.__doc__
    return sync


# What a client sends after the preface and SETTINGS, and the error that ends the connection. Stream 1 is an open call
# without an end, stream 3 has ended.
BAD_CONNECTIONS: dict[str, tuple[Callable[[Peer], bytes], int]] = {
    "a frame above the limit": (lambda p: struct.pack(">IBI", 16_385 << 8, 0, 1), f.FRAME_SIZE_ERROR),
    "DATA on stream 0": (lambda p: frame(0, 0, 0, b"x"), f.PROTOCOL_ERROR),
    "DATA on an idle stream": (lambda p: frame(0, 0, 99, b"x"), f.PROTOCOL_ERROR),
    "HEADERS on stream 0": (lambda p: frame(1, 5, 0, p.block()), f.PROTOCOL_ERROR),
    "HEADERS on an even stream": (lambda p: frame(1, 5, 4, p.block()), f.PROTOCOL_ERROR),
    "HEADERS on a closed stream": (lambda p: frame(1, 5, 3, p.block()), f.STREAM_CLOSED),
    "HEADERS without their priority": (lambda p: frame(1, 0x25, 5, b"abc"), f.FRAME_SIZE_ERROR),
    "padding as long as the frame": (lambda p: frame(1, 0xD, 5, b"\x05abcd"), f.PROTOCOL_ERROR),
    "padding of an empty frame": (lambda p: frame(0, 8, 1, b""), f.FRAME_SIZE_ERROR),
    "a block that is no HPACK": (lambda p: frame(1, 5, 5, b"\x80"), f.COMPRESSION_ERROR),
    "a block interrupted by DATA": (lambda p: frame(1, 0, 5, p.block()) + frame(0, 0, 1, b"x"), f.PROTOCOL_ERROR),
    "a block interrupted by another's": (
        lambda p: frame(1, 0, 5, p.block()) + frame(9, 4, 1, b""),
        f.PROTOCOL_ERROR,
    ),
    "a block interrupted by an unknown frame": (
        lambda p: frame(1, 0, 5, p.block()) + frame(77, 0, 5),
        f.PROTOCOL_ERROR,
    ),
    "CONTINUATION without HEADERS": (lambda p: frame(9, 4, 5, b""), f.PROTOCOL_ERROR),
    "a block without end": (
        lambda p: frame(1, 0, 5, p.block()) + frame(9, 0, 5, b"\x82" * 10_000) * 4,
        f.ENHANCE_YOUR_CALM,
    ),
    "a block of many empty parts": (
        lambda p: frame(1, 0, 5, p.block()) + frame(9, 0, 5) * 100,
        f.ENHANCE_YOUR_CALM,
    ),
    "PRIORITY on stream 0": (lambda p: frame(2, 0, 0, bytes(5)), f.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (lambda p: frame(3, 0, 0, bytes(4)), f.PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (lambda p: frame(3, 0, 99, bytes(4)), f.PROTOCOL_ERROR),
    "RST_STREAM of a wrong size": (lambda p: frame(3, 0, 1, bytes(3)), f.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (lambda p: frame(4, 0, 1), f.PROTOCOL_ERROR),
    "SETTINGS of a wrong size": (lambda p: frame(4, 0, 0, bytes(5)), f.FRAME_SIZE_ERROR),
    "an acknowledgement with a payload": (lambda p: frame(4, 1, 0, bytes(6)), f.FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": (lambda p: frame(4, 0, 0, struct.pack(">HI", 2, 2)), f.PROTOCOL_ERROR),
    "a window above 2^31-1": (lambda p: frame(4, 0, 0, struct.pack(">HI", 4, 1 << 31)), f.FLOW_CONTROL_ERROR),
    "a small largest frame": (lambda p: frame(4, 0, 0, struct.pack(">HI", 5, 16_383)), f.PROTOCOL_ERROR),
    "a large largest frame": (lambda p: frame(4, 0, 0, struct.pack(">HI", 5, 1 << 24)), f.PROTOCOL_ERROR),
    "PUSH_PROMISE": (lambda p: frame(5, 4, 1, bytes(4) + p.block()), f.PROTOCOL_ERROR),
    "PING on a stream": (lambda p: frame(6, 0, 1, bytes(8)), f.PROTOCOL_ERROR),
    "PING of a wrong size": (lambda p: frame(6, 0, 0, bytes(7)), f.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (lambda p: frame(7, 0, 1, bytes(8)), f.PROTOCOL_ERROR),
    "GOAWAY of a wrong size": (lambda p: frame(7, 0, 0, bytes(7)), f.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of a wrong size": (lambda p: frame(8, 0, 0, bytes(3)), f.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (lambda p: frame(8, 0, 0, bytes(4)), f.PROTOCOL_ERROR),
    "WINDOW_UPDATE on an idle stream": (lambda p: frame(8, 0, 99, b"\0\0\0\1"), f.PROTOCOL_ERROR),
    "a connection window above 2^31-1": (lambda p: frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2, f.FLOW_CONTROL_ERROR),
    "initial windows that lift a stream above 2^31-1": (
        lambda p: frame(8, 0, 1, b"\x7f\xff\x00\x00") + frame(4, 0, 0, struct.pack(">HI", 4, 1 << 30)),
        f.FLOW_CONTROL_ERROR,
    ),
}

BAD_STREAMS: dict[str, tuple[Callable[[Peer], bytes], int, int]] = {
    "DATA on a closed stream": (lambda p: frame(0, 0, 3, b"x"), 3, f.STREAM_CLOSED),
    "trailers that do not end": (lambda p: frame(1, 4, 1, p.encoder.encode([("a", "b")])), 1, f.PROTOCOL_ERROR),
    "trailers with a pseudo-header": (
        lambda p: frame(1, 5, 1, p.encoder.encode([(":path", "b")])),
        1,
        f.PROTOCOL_ERROR,
    ),
    "PRIORITY of a wrong size": (lambda p: frame(2, 0, 1, bytes(4)), 1, f.FRAME_SIZE_ERROR),
    "PRIORITY on itself": (lambda p: frame(2, 0, 1, b"\0\0\0\1\0"), 1, f.PROTOCOL_ERROR),
    "HEADERS that depend on themselves": (
        lambda p: frame(1, 0x25, 5, b"\0\0\0\5\0" + p.block()),
        5,
        f.PROTOCOL_ERROR,
    ),
    "WINDOW_UPDATE of 0": (lambda p: frame(8, 0, 1, bytes(4)), 1, f.PROTOCOL_ERROR),
    "a window above 2^31-1": (lambda p: frame(8, 0, 1, b"\x7f\xff\xff\xff"), 1, f.FLOW_CONTROL_ERROR),
    "no :path": (lambda p: frame(1, 5, 5, p.block(without=[":path"])), 5, f.PROTOCOL_ERROR),
    "an empty :path": (lambda p: frame(1, 5, 5, p.block("")), 5, f.PROTOCOL_ERROR),
    "a pseudo-header behind others": (lambda p: frame(1, 5, 5, p.block(UNARY, (":x", "y"))), 5, f.PROTOCOL_ERROR),
    "a name in capitals": (
        lambda p: frame(1, 5, 5, p.block() + b"\x00\x01X\x01y"),
        5,
        f.PROTOCOL_ERROR,
    ),
    "a line break in a value": (lambda p: frame(1, 5, 5, p.block(UNARY, ("x", "a\nb"))), 5, f.PROTOCOL_ERROR),
    "connection": (lambda p: frame(1, 5, 5, p.block(UNARY, ("connection", "x"))), 5, f.PROTOCOL_ERROR),
    "te": (lambda p: frame(1, 5, 5, p.block(UNARY, ("te", "gzip"), without=["te"])), 5, f.PROTOCOL_ERROR),
    "content-length that is none": (
        lambda p: frame(1, 5, 5, p.block(UNARY, ("content-length", "x"))),
        5,
        f.PROTOCOL_ERROR,
    ),
    "content-length without a body": (
        lambda p: frame(1, 5, 5, p.block(UNARY, ("content-length", "7"))),
        5,
        f.PROTOCOL_ERROR,
    ),
    "less than content-length": (
        lambda p: frame(1, 4, 5, p.block(UNARY, ("content-length", "9"))) + frame(0, 1, 5, prefixed(b"abc")),
        5,
        f.PROTOCOL_ERROR,
    ),
    "more than content-length": (
        lambda p: frame(1, 4, 5, p.block(GROUP, ("content-length", "3"))) + frame(0, 1, 5, prefixed(b"abc")),
        5,
        f.PROTOCOL_ERROR,
    ),
}


async def with_two_streams(limits: Limits | None = None) -> Peer:
    peer = Peer(limits=limits or Limits()).greet()
    peer.send(peer.call(UNARY, b"open", end=False)[1])
    peer.send(peer.call(GROUP, b"done")[1])
    assert set(answers(peer.frames())) == {3}
    return peer


@pytest.mark.parametrize("case", BAD_CONNECTIONS)
def test_what_breaks_a_connection_ends_it_with_goaway_and_the_code(case: str) -> None:
    async def test() -> None:
        peer = await with_two_streams()
        make, code = BAD_CONNECTIONS[case]
        peer.send(make(peer))
        assert goaways(peer.frames()) == [code]
        assert peer.wire.closing

    asyncio.run(test())


@pytest.mark.parametrize("case", BAD_STREAMS)
def test_what_breaks_a_stream_ends_it_alone(case: str) -> None:
    async def test() -> None:
        peer = await with_two_streams()
        make, stream_id, code = BAD_STREAMS[case]
        peer.send(make(peer))
        assert resets(found := peer.frames()) == {stream_id: code}
        assert not goaways(found)
        peer.next_id = 101
        n, data = peer.call(GROUP, b"still here")
        peer.send(data)
        assert answers(peer.frames())[n][0] == prefixed(b"still here")

    asyncio.run(test())


@pytest.mark.parametrize(
    "start", [PREFACE + frame(6, 0, 0, bytes(8)), PREFACE + frame(4, 1, 0), PREFACE + frame(1, 5, 1, b"\x82")]
)
def test_the_first_frame_must_be_settings(start: bytes) -> None:
    async def test() -> None:
        peer = Peer()
        peer.send(start)
        assert goaways(peer.frames()) == [f.PROTOCOL_ERROR]

    asyncio.run(test())


@run
async def test_frames_that_mean_nothing_here_are_let_pass() -> None:
    peer = await with_two_streams()
    peer.send(frame(99, 0xFF, 7, b"?") + frame(2, 0, 1, bytes(5)) + frame(4, 0, 0, struct.pack(">HI", 0xAA, 5)))
    peer.send(frame(3, 0, 3, bytes(4)) + frame(8, 0, 3, b"\0\0\0\1") + frame(6, 1, 0, bytes(8)))
    assert [each.type for each in peer.frames()] == [4]  # an acknowledgement of SETTINGS


@run
async def test_settings_and_pings_are_confirmed() -> None:
    peer = Peer()
    peer.send(PREFACE + frame(4, 0, 0))
    ours, window, confirmed = peer.frames()
    assert (ours.type, window.type, confirmed.type) == (4, 8, 4)
    assert "ACK" in confirmed.flags and "ACK" not in ours.flags
    assert ours.settings[f.MAX_CONCURRENT_STREAMS] == 1024
    peer.send(frame(6, 0, 0, b"12345678"))
    (pong,) = peer.frames()
    assert "ACK" in pong.flags and pong.opaque_data == b"12345678"


@run
async def test_a_header_block_may_come_in_parts_with_padding_and_priority() -> None:
    peer = Peer().greet()
    block = peer.block(UNARY, ("x", "y" * 500))
    first = bytes([3]) + b"\0\0\0\0\x10" + block[:100] + bytes(3)
    peer.send(frame(1, 0x28, 1, first) + frame(9, 0, 1, block[100:110]) + frame(9, 4, 1, block[110:]))
    peer.send(frame(0, 9, 1, b"\x04" + prefixed(b"padded") + bytes(4)))
    assert answers(await peer.settle())[1][0] == prefixed(b"padded")


@run
async def test_trailers_of_a_request_end_it() -> None:
    peer = Peer().greet()
    n, data = peer.call(UNARY, b"x", end=False)
    peer.send(data + frame(1, 5, n, peer.encoder.encode([("checksum", "1")])))
    assert answers(await peer.settle())[n][0] == prefixed(b"x")


@run
async def test_every_size_update_of_a_clients_table_is_followed() -> None:
    peer = Peer().greet()
    for size in (4096, 0, 100, 4096):
        peer.encoder.header_table_size = size
        n, data = peer.call(GROUP, b"x", ("x-y", "z"))
        peer.send(data)
        assert answers(peer.frames())[n][0] == prefixed(b"x")


# ---- windows


@run
async def test_data_waits_for_the_streams_and_the_connections_window() -> None:
    peer = Peer().greet({f.INITIAL_WINDOW_SIZE: 10})
    n, data = peer.call(GROUP, bytes(100))
    peer.send(data)
    sent = [each for each in peer.frames() if each.type == 0]
    assert sum(len(each.data) for each in sent) == 10
    peer.send(frame(8, 0, n, struct.pack(">I", 50)))
    found = await peer.settle()
    assert sum(len(each.data) for each in found) == 50 and not answers(found)
    peer.send(frame(4, 0, 0, struct.pack(">HI", f.INITIAL_WINDOW_SIZE, 1000)))
    assert n in answers(await peer.settle())


@run
async def test_a_window_may_fall_below_zero_and_nothing_is_sent_until_it_is_above() -> None:
    peer = Peer().greet({f.INITIAL_WINDOW_SIZE: 60})
    n, data = peer.call(GROUP, bytes(200))
    peer.send(data)
    assert sum(len(each.data) for each in peer.frames() if each.type == 0) == 60
    peer.send(frame(4, 0, 0, struct.pack(">HI", f.INITIAL_WINDOW_SIZE, 20)))  # now -40
    peer.send(frame(8, 0, n, struct.pack(">I", 40)))  # now 0
    assert not [each for each in await peer.settle() if each.type == 0]
    peer.send(frame(8, 0, n, struct.pack(">I", 1)))
    assert [each.data for each in await peer.settle() if each.type == 0] == [b"\0"]
    peer.send(frame(8, 0, n, struct.pack(">I", 1000)))
    assert n in answers(await peer.settle())


@run
async def test_the_connections_window_is_shared_and_refilled() -> None:
    peer = Peer().greet({f.INITIAL_WINDOW_SIZE: 1 << 20})
    peer.echo.pieces = 1
    ids = []
    for _ in range(6):
        n, data = peer.call(DOWN, bytes(15_000))
        ids.append(n)
        peer.send(data)
    found = await peer.settle()
    assert sum(len(each.data) for each in found if each.type == 0) == 65_535
    assert len(answers(found)) == 4
    peer.send(frame(8, 0, 0, struct.pack(">I", 65_535)))
    assert set(answers(found)) | set(answers(await peer.settle())) == set(ids)


@run
async def test_an_early_credit_of_a_call_of_a_group_counts() -> None:
    peer = Peer().greet({f.INITIAL_WINDOW_SIZE: 0})
    peer.echo.answer_groups = False
    n, data = peer.call(GROUP, bytes(50))
    peer.send(data + frame(8, 0, n, struct.pack(">I", 30)))
    ((requests, answer),) = peer.echo.groups
    answer(requests)
    assert sum(len(each.data) for each in await peer.settle() if each.type == 0) == 30
    peer.send(frame(8, 0, n, struct.pack(">I", 25)))
    assert n in answers(await peer.settle())
    assert not peer.connection.http2.streams.early_credit


@run
async def test_what_is_received_is_credited_in_few_frames() -> None:
    peer = Peer(limits=Limits(connection_window=1 << 20, stream_window=1 << 18)).greet()
    total = 0
    for _ in range(600):
        peer.send(peer.call(GROUP, bytes(4000))[1])
        updates = [each for each in peer.frames() if each.type == 8]
        assert len(updates) <= 1
        total += sum(each.window_increment for each in updates)
    assert total > 600 * 4005 - (1 << 18)
    n, data = peer.call(UNARY, None)
    peer.send(data + frame(0, 0, n, b"\0" + struct.pack(">I", 1 << 20)))
    credited = 0
    for _ in range(63):
        peer.send(frame(0, 0, n, bytes(16_384)))
        credited += sum(each.window_increment for each in peer.frames() if each.type == 8 and each.stream_id == n)
    assert credited >= 63 * 16_384 - (1 << 18)


@run
async def test_more_data_than_the_window_allows_is_an_error() -> None:
    peer = Peer(limits=Limits(stream_window=20_000)).greet()
    peer.send(frame(4, 1, 0))  # it knows of the window
    n, data = peer.call("/t.T/Up", None)
    message = prefixed(bytes(9_000))
    peer.send(data + (frame(0, 0, n, message)) * 3)  # nobody has taken them yet
    assert resets(peer.frames()) == {n: f.FLOW_CONTROL_ERROR}
    peer = Peer(limits=Limits(connection_window=100_000)).greet()
    n, data = peer.call(UNARY, None)
    peer.send(data + frame(0, 0, n, b"\0" + struct.pack(">I", 1 << 20)) + frame(0, 0, n, bytes(16_384)) * 7)
    assert goaways(peer.frames()) == [f.FLOW_CONTROL_ERROR]


@run
async def test_a_window_below_the_default_holds_from_the_acknowledgement_of_our_settings_on() -> None:
    peer = Peer(limits=Limits(stream_window=20_000)).greet()
    n, data = peer.call(UP, None)
    peer.send(data + frame(0, 0, n, prefixed(bytes(15_000))) * 3)  # RFC 9113, 6.9.3: under way before it knew
    assert not resets(peer.frames())
    peer.send(frame(4, 1, 0))
    await peer.settle()  # the handler takes them, and they are credited
    peer.send(frame(0, 0, n, prefixed(bytes(14_000))))
    await peer.settle()
    peer.send(frame(0, 1, n, prefixed(b"")))
    assert len(answers(await peer.settle())[n][0]) == 5 + 3 * 15_000 + 14_000 + 4
    n, data = peer.call(UP, None)
    peer.send(data + frame(0, 0, n, prefixed(bytes(10_000))) * 3)
    assert resets(peer.frames()) == {n: f.FLOW_CONTROL_ERROR}


# ---- floods and limits


@pytest.mark.parametrize(
    "each",
    [
        frame(6, 0, 0, bytes(8)),
        frame(4, 0, 0),
        frame(2, 0, 1, bytes(5)),
        frame(0, 0, 1),
        frame(0, 8, 1, b"\0"),
        frame(200, 0, 0),
    ],
)
def test_a_flood_of_frames_that_cost_nothing_is_ended(each: bytes) -> None:
    async def test() -> None:
        peer = await with_two_streams(Limits(idle_frames=500, idle_frames_per_s=0.001))
        for _ in range(600):
            if not peer.wire.closing:
                peer.send(each)
        assert goaways(peer.frames()) == [f.ENHANCE_YOUR_CALM]

    asyncio.run(test())


@run
async def test_a_flood_of_calls_that_are_reset_at_once_is_ended() -> None:
    peer = Peer(limits=Limits(idle_frames=500, idle_frames_per_s=0.001)).greet()
    peer.echo.hold = asyncio.Event()
    for _ in range(600):
        n, data = peer.call(UNARY, b"x")
        peer.send(data + frame(3, 0, n, struct.pack(">I", 8)))
        if peer.wire.closing:
            break
    assert goaways(peer.frames()) == [f.ENHANCE_YOUR_CALM]
    assert len(peer.connection.http2.streams.open) <= 1  # of the last one, until the transport is closed


@run
async def test_pings_at_a_decent_pace_go_on_for_ever() -> None:
    peer = Peer(limits=Limits(idle_frames=10, idle_frames_per_s=1e6)).greet()
    for _ in range(300):
        peer.send(frame(6, 0, 0, bytes(8)))
        await asyncio.sleep(0)
    assert not goaways(peer.frames())


@pytest.mark.parametrize("path", [GROUP, UNARY, DOWN])
@pytest.mark.parametrize("calls", [1, 12])
def test_a_ping_behind_each_answer_is_free_and_a_second_is_not(path: str, calls: int) -> None:
    async def test() -> None:
        ping = frame(6, 0, 0, bytes(8))
        peer = Peer(limits=Limits(idle_frames=10, idle_frames_per_s=0.001)).greet()

        async def ask(pings: int) -> list[int]:
            peer.send(b"".join(peer.call(path, b"x")[1] for _ in range(calls)))
            found = await peer.settle()
            assert len(answers(found)) == calls
            peer.send(ping * pings)
            return goaways(peer.frames())

        for _ in range(100):
            assert not await ask(1)
        for _ in range(9):  # the peer's SETTINGS were the first of ten
            assert not await ask(2)
        assert await ask(2) == [f.ENHANCE_YOUR_CALM]

    asyncio.run(test())


@run
async def test_calls_above_the_limit_of_streams_are_refused_until_others_end() -> None:
    peer = Peer(limits=Limits(streams=3)).greet()
    peer.echo.answer_groups = False
    peer.echo.hold = asyncio.Event()
    sent = [peer.call(path, b"x") for path in (GROUP, UNARY, GROUP, GROUP, UNARY)]
    peer.send(b"".join(data for _, data in sent))
    assert resets(peer.frames()) == {sent[3][0]: f.REFUSED_STREAM, sent[4][0]: f.REFUSED_STREAM}
    for requests, answer in peer.echo.groups:
        answer(requests)
    peer.echo.hold.set()
    assert set(answers(await peer.settle())) == {n for n, _ in sent[:3]}
    n, data = peer.call(GROUP, b"x")
    peer.echo.answer_groups = True
    peer.send(data)
    assert n in answers(peer.frames())


@run
async def test_the_limit_of_streams_holds_within_one_read_of_calls_of_all_kinds() -> None:
    peer = Peer(limits=Limits(streams=10)).greet()
    peer.echo.answer_groups = False
    peer.echo.hold = asyncio.Event()
    sent = [peer.call(path, b"x") for path in [UNARY] * 6 + [GROUP] * 20]
    peer.send(b"".join(data for _, data in sent))
    assert resets(peer.frames()) == {n: f.REFUSED_STREAM for n, _ in sent[10:]}
    assert len(peer.connection.http2.streams.open) + len(peer.connection.http2.streams.lean) == 10


@run
async def test_a_header_list_above_the_limit_is_answered_with_431() -> None:
    peer = Peer(limits=Limits(header_list=4000)).greet()
    n, data = peer.call(UNARY, b"x", ("x-long", "y" * 4000))
    peer.send(data)
    fields = [each.fields for each in await peer.settle() if each.type == 1]
    assert fields[0][0] == (":status", "431")
    n, data = peer.call(GROUP, b"x")
    peer.send(data)
    assert n in answers(peer.frames())


@run
async def test_a_slow_reader_stops_streams_and_reading_and_both_go_on_with_it() -> None:
    peer = Peer(limits=Limits(write_buffer=40_000)).greet({f.INITIAL_WINDOW_SIZE: 1 << 30})
    peer.send(frame(8, 0, 0, struct.pack(">I", 1 << 30)))
    peer.echo.pieces = 1000
    n, data = peer.call(DOWN, bytes(10_000))
    peer.wire.buffered = 15_000
    peer.send(data)
    await peer.settle()
    peer.connection.pause_writing()
    peer.wire.buffered = 30_000
    before = len(await peer.settle())
    assert not peer.wire.reading
    assert before <= 2
    stream = peer.connection.http2.streams.open[n]
    assert stream.queued < 600_000  # not the ten million that the handler has to give
    peer.wire.buffered = 0
    peer.connection.resume_writing()
    assert peer.wire.reading
    assert len(await peer.settle()) > 10


@run
async def test_a_server_without_room_reads_no_socket_that_brings_requests_in_plenty() -> None:
    peer = Peer().greet()
    peer.send(peer.call(GROUP, b"x")[1])
    other, streaming = Peer(peer.server).greet(), Peer(peer.server).greet()
    peer.server.pause_reading()
    assert not peer.wire.reading and other.wire.reading and streaming.wire.reading
    other.send(other.call(GROUP, b"x")[1])
    streaming.send(streaming.call(UP, b"x", end=False)[1])
    assert not other.wire.reading and not streaming.wire.reading
    peer.connection.pause_writing()
    peer.server.resume_reading()
    assert other.wire.reading and streaming.wire.reading and not peer.wire.reading
    peer.connection.resume_writing()
    assert peer.wire.reading


@run
async def test_pullers_and_questions_are_served_while_writes_have_no_room() -> None:
    peer = Peer().greet({f.INITIAL_WINDOW_SIZE: 10})
    n, data = peer.call(DOWN, bytes(100))
    peer.send(data)
    await peer.settle()
    peer.server.pause_reading()
    assert peer.wire.reading
    peer.send(frame(8, 0, n, struct.pack(">I", 1 << 20)) + frame(6, 0, 0, bytes(8)))
    found = await peer.settle()
    assert n in answers(found) and any(each.type == 6 for each in found)
    late = Peer(peer.server).greet()
    n, data = late.call(UNARY, b"status?")
    late.send(data)
    assert n in answers(await late.settle())
    n, data = late.call(UNARY, b"x", end=False)
    late.send(data + frame(3, 0, n, struct.pack(">I", 8)))  # a cancellation
    assert late.wire.reading and late.connection.http2.streams.idle


def _fails(*_: object, **__: object) -> None:
    raise RuntimeError


@pytest.mark.parametrize("part", ["a frame is read", "an event is handled"])
def test_a_part_of_the_door_that_fails_ends_the_connection_only_and_every_call_of_it(part: str) -> None:
    async def test() -> None:
        peer = Peer().greet()
        peer.echo.hold = asyncio.Event()
        n, data = peer.call(UNARY, b"open", ("grpc-timeout", "9S"))
        peer.send(data + peer.call(UNARY, b"another", ("grpc-timeout", "9S"))[1])
        await peer.settle()
        cancellation = frame(3, 0, n, struct.pack(">I", 8))
        with capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
            if part == "a frame is read":
                patch.setattr(peer.server.runs, "take", _fails)
                peer.send(cancellation + b"".join(peer.call(GROUP, b"x")[1] for _ in range(9)))
            else:
                patch.setattr(peer.server.assembly, "count", _fails)
                peer.send(peer.call(UP, b"x", end=False)[1] + cancellation)
        assert goaways(peer.frames()) == [f.INTERNAL_ERROR]
        assert [entry["event"] for entry in logs] == ["connection_failed", "connection_refused"]
        peer.connection.connection_lost(None)
        await peer.settle()
        assert (peer.echo.cancelled, len(peer.server.deadlines)) == (2, 0)

    asyncio.run(test())


# ---- the end


@run
async def test_goaway_lets_open_calls_end_and_takes_no_new_ones() -> None:
    peer = Peer().greet()
    peer.echo.hold = asyncio.Event()
    n, data = peer.call(UNARY, b"open")
    peer.send(data)
    stopping = asyncio.ensure_future(peer.server.stop(5))
    (goaway,) = [each for each in await peer.settle() if each.type == 7]
    assert (goaway.error_code, goaway.last_stream_id) == (f.NO_ERROR, n)
    _late, data = peer.call(GROUP, b"late")
    peer.send(data + frame(6, 0, 0, bytes(8)))
    assert [each.type for each in peer.frames()] == [6]
    assert not peer.wire.closing
    peer.echo.hold.set()
    assert set(answers(await peer.settle())) == {n}
    assert peer.wire.closing
    peer.connection.connection_lost(None)
    await asyncio.wait_for(stopping, 5)


@run
async def test_calls_that_outlast_the_grace_end_with_unavailable() -> None:
    peer = Peer().greet()
    peer.echo.hold = asyncio.Event()
    peer.echo.answer_groups = False
    unary, one = peer.call(UNARY, b"open")
    group, two = peer.call(GROUP, b"open")
    peer.send(one + two)
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(peer.server.stop(0.05))
    async with asyncio.timeout(20):
        while not peer.echo.cancelled:
            await asyncio.sleep(0.01)
    assert {code for code, _ in statuses(peer.frames()).values()} == {14}
    assert peer.echo.cancelled == 1
    peer.wire.protocol.connection_lost(None)
    await stopping
    ((requests, answer),) = peer.echo.groups
    answer(requests)  # too late; nobody minds
    del unary, group


@run
async def test_a_lost_connection_cancels_its_calls_and_drops_late_answers() -> None:
    echo = Echo()
    echo.hold, echo.answer_groups = asyncio.Event(), False
    peer = Peer(echo=echo).greet()
    peer.send(peer.call(UNARY, b"x", ("grpc-timeout", "9S"))[1] + peer.call(GROUP, b"x", ("grpc-timeout", "9S"))[1])
    await peer.settle()
    peer.wire.closing = True
    peer.connection.connection_lost(None)
    await peer.settle()
    assert echo.cancelled == 1
    ((requests, answer),) = echo.groups
    answer(requests)
    assert len(peer.server.deadlines) == 0
    assert not peer.server._connections


def test_the_oracle_of_these_tests_reads_blocks_with_a_table() -> None:
    encoder, decoder = hpack.Encoder(), hpack.Decoder()
    for _ in range(2):
        assert decoder.decode(encoder.encode([("a", "b")])) == [("a", "b")]
