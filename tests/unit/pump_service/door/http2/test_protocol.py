"""The protocol alone, without a loop: bytes and a time in, events and bytes out."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import hpack
import pytest
from hyperframe.frame import Frame

from pump_service.door.group import Refusal
from pump_service.door.http2 import frames as f
from pump_service.door.http2.batch import DEADLINE, Batch
from pump_service.door.http2.events import Cancelled, Ended, Event, Failed, Opened, Received
from pump_service.door.http2.protocol import Http2
from pump_service.door.http2.runs import Runs
from pump_service.door.http2.streams import Stream
from pump_service.door.limits import Limits
from pump_service.door.routes import Routes
from tests.support.doorkit import (
    GROUP,
    PREFACE,
    TIMEOUT_LITERAL,
    UNARY,
    answers,
    frame,
    goaways,
    prefixed,
    resets,
    statuses,
)


class Client:
    """Makes frames for a connection and reads what it writes."""

    def __init__(self, limits: Limits | None = None, refusal: Refusal | None = None) -> None:
        limits = limits or Limits()
        routes = Routes(limits.header_list)
        routes.add_group(GROUP, lambda requests, answer: None)
        routes.add_method(UNARY, object())
        self.wanted = 0
        self.runs = Runs(limits)
        self.http2 = Http2(limits, routes.head, self.runs, now=0.0, refusal=refusal, wanted=self._count)
        self.http2.begin()
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.now = 0.0

    def _count(self) -> None:
        self.wanted += 1

    def greet(self, settings: bytes = b"") -> Client:
        assert not self.receive(PREFACE + frame(4, 0, 0, settings))
        self.written()
        return self

    def receive(self, data: bytes) -> list[Event]:
        return self.http2.receive(data, self.now)

    def block(self, path: str, *more: tuple[str, str]) -> bytes:
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
        return self.encoder.encode([*fields, *more])

    def call(
        self, stream_id: int, path: str = GROUP, message: bytes = b"hello", *, block: bytes | None = None
    ) -> bytes:
        head = frame(1, 4, stream_id, self.block(path) if block is None else block)
        return head + frame(0, 1, stream_id, prefixed(message))

    def batch(self) -> Batch:
        (batch,) = self.http2.take_batches()
        return batch

    def requests(self, batch: Batch) -> list[bytes]:
        return list(self.runs.requests(batch.parts()))

    def written(self, room: int = 1 << 20) -> list[Frame]:
        self.http2.output.fill(room)
        data, found = memoryview(bytes(self.http2.output.take())), []
        while data:
            parsed, length = Frame.parse_frame_header(data[:9])
            parsed.parse_body(data[9 : 9 + length])
            if parsed.type == 1:
                parsed.fields = self.decoder.decode(bytes(parsed.data))
            found.append(parsed)
            data = data[9 + length :]
        return found


def opened(events: Sequence[Event]) -> Stream:
    """The stream of the one call that has begun."""
    (event,) = [each for each in events if isinstance(each, Opened)]
    return event.stream


def test_it_greets_with_its_settings_and_window_and_confirms_the_peers() -> None:
    client = Client(Limits(streams=7, stream_window=1 << 20, connection_window=1 << 21))
    assert not client.receive(PREFACE + frame(4, 0, 0))
    settings, window, confirmed = client.written()
    assert settings.settings[f.MAX_CONCURRENT_STREAMS] == 7
    assert settings.settings[f.INITIAL_WINDOW_SIZE] == 1 << 20
    assert window.window_increment == (1 << 21) - f.DEFAULT_WINDOW
    assert (confirmed.type, "ACK" in confirmed.flags) == (4, True)
    assert not client.written()


def test_calls_that_came_whole_are_rows_of_a_batch_and_no_events() -> None:
    client = Client().greet()
    assert not client.receive(client.call(1, GROUP, b"first"))
    assert not client.receive(b"".join(client.call(n, GROUP, b"%d" % n) for n in range(3, 43, 2)))
    batch = client.batch()
    assert batch.stream_ids == list(range(1, 43, 2))
    assert client.requests(batch) == [b"first", *(b"%d" % n for n in range(3, 43, 2))]
    assert not client.http2.take_batches()
    assert not client.http2.streams.idle and not client.http2.streams.open
    client.http2.answers.to_all(batch, b"done")
    assert answers(client.written()) == {n: (prefixed(b"done"), {"grpc-status": "0"}) for n in range(1, 43, 2)}
    assert client.http2.streams.idle


def test_a_call_in_pieces_is_events_in_order() -> None:
    client = Client().greet()
    (event,) = client.receive(frame(1, 4, 1, client.block(UNARY)))
    assert isinstance(event, Opened)
    assert (event.head.path, event.timeout, event.stream.stream_id) == (UNARY, None, 1)
    assert client.receive(frame(0, 0, 1, b"\0\0\0\0\5he")) == [Received(event.stream, b"\0\0\0\0\5he")]
    assert client.receive(frame(0, 1, 1, b"llo")) == [Received(event.stream, b"llo"), Ended(event.stream)]
    assert client.http2.answers.whole(event.stream, b"hello")
    assert answers(client.written()) == {1: (prefixed(b"hello"), {"grpc-status": "0"})}
    assert client.http2.streams.idle


def test_bytes_one_by_one_say_the_same_as_at_once() -> None:
    sent = PREFACE + frame(4, 0, 0)
    whole, cut = Client(), Client()
    for client in (whole, cut):
        sent = (
            PREFACE
            + frame(4, 0, 0)
            + client.call(1, UNARY, b"x")
            + client.call(3, GROUP, b"y")
            + frame(3, 0, 1, bytes(4))
        )
        pieces = [sent] if client is whole else [sent[n : n + 1] for n in range(len(sent))]
        events = [event for piece in pieces for event in client.receive(piece)]
        kinds = [type(event) for event in events if event.stream.stream_id == 1]  # type: ignore[union-attr]
        assert kinds == [Opened, Received, Ended, Cancelled]
    assert whole.requests(whole.batch()) == [b"y"]
    # In pieces the same call has a stream of its own.
    assert not cut.http2.take_batches()
    assert set(cut.http2.streams.open) == {3}


def test_a_stream_that_the_peer_resets_is_cancelled_and_its_answer_is_not_sent() -> None:
    client = Client().greet()
    stream = opened(client.receive(client.call(1, UNARY)))
    assert client.receive(frame(3, 0, 1, bytes(4))) == [Cancelled(stream)]
    client.http2.answers.refuse(stream, DEADLINE, begun=False)
    assert not client.written()
    assert not client.receive(client.call(3) + client.call(5) + frame(3, 0, 3, bytes(4)))
    client.http2.answers.to_all(client.batch(), b"done")
    assert set(answers(client.written())) == {5}


def test_a_fault_of_a_stream_ends_that_stream_and_one_of_the_connection_all() -> None:
    client = Client().greet()
    stream = opened(client.receive(client.call(1, UNARY)))
    assert client.receive(frame(2, 0, 1, b"\0\0\0\1\0")) == [Cancelled(stream)]
    assert resets(client.written()) == {1: f.PROTOCOL_ERROR}
    assert client.receive(client.call(3) + frame(0, 0, 0, b"x")) == [Failed(f.PROTOCOL_ERROR, "DATA on stream 0")]
    assert client.http2.closed
    assert goaways(client.written()) == [f.PROTOCOL_ERROR]
    assert not client.receive(client.call(5))


def test_deadlines_are_times_that_it_was_given() -> None:
    client = Client().greet()
    block = client.block(GROUP)
    client.receive(client.call(1, block=block) + client.call(3))
    client.http2.take_batches()
    client.now = 100.0
    timed = client.block(GROUP)
    client.receive(client.call(5, block=timed + TIMEOUT_LITERAL + b"\x0330S"))
    client.receive(client.call(7, block=timed + TIMEOUT_LITERAL + b"\x0320S") + client.call(9, block=timed))
    batch = client.batch()
    assert batch.deadline == 120.0
    assert client.requests(batch) == [b"hello"] * 3
    client.http2.answers.expire(batch, 120.5)
    assert statuses(client.written()) == {7: (4, "Deadline Exceeded")}
    assert batch.deadline == 130.0
    client.http2.answers.to_all(batch, b"done")
    assert set(answers(client.written())) == {5, 9}


def test_data_goes_out_as_windows_and_room_allow_and_says_when_more_may_come() -> None:
    client = Client(Limits(stream_ahead=1000)).greet(struct.pack(">HI", f.INITIAL_WINDOW_SIZE, 5000))
    stream = opened(client.receive(client.call(1, UNARY)))
    output = client.http2.output
    output.headers(1, output.replies.headers())
    output.data(stream, prefixed(bytes(8000)))
    stream.wants_room = True
    assert sum(len(each.data) for each in client.written(2000) if each.type == 0) == 2000
    assert output.goes_on
    assert sum(len(each.data) for each in client.written() if each.type == 0) == 3000
    assert not output.goes_on and not output.ready
    before = client.wanted
    client.receive(frame(8, 0, 1, struct.pack(">I", 1 << 20)))
    assert client.wanted > before
    assert output.fill(1 << 20) == [stream]
    output.finish(stream, 0)
    assert answers(client.written())[1][1] == {"grpc-status": "0"}


def test_what_is_received_is_credited_unless_a_handler_has_not_taken_it() -> None:
    client = Client(Limits(connection_window=100_000)).greet()
    stream = opened(client.receive(frame(1, 4, 1, client.block(UNARY))))
    windows = client.http2.windows
    client.receive(frame(0, 0, 1, bytes(16_000)) * 3)
    windows.hold(stream, 40_000)
    windows.credit_connection()
    assert not client.written()
    windows.hold(stream, -40_000)
    assert [each.window_increment for each in client.written()] == [48_000]
    windows.credit(stream)
    (credit,) = client.written()
    assert (credit.stream_id, credit.window_increment) == (1, 48_000)
    (failed,) = client.receive(frame(0, 0, 1, bytes(16_384)) * 7)[-1:]
    assert failed == Failed(f.FLOW_CONTROL_ERROR, "more DATA than the connection's window")


def test_after_goaway_new_calls_are_let_go_and_open_ones_are_answered() -> None:
    client = Client().greet()
    client.receive(client.call(1))
    batch = client.batch()
    client.http2.go_away()
    assert not client.receive(client.call(3) + client.call(5, UNARY))
    assert not client.http2.take_batches()
    client.http2.answers.to_all(batch, b"done")
    found = client.written()
    assert goaways(found) == [f.NO_ERROR]
    assert set(answers(found)) == {1}
    assert client.http2.streams.idle


def test_who_may_not_call_is_told_so_and_nothing_else_happens() -> None:
    client = Client(refusal=DEADLINE).greet()
    assert not client.receive(client.call(1) + client.call(3, UNARY))
    assert not client.http2.take_batches()
    assert {n: code for n, (code, _) in statuses(client.written()).items()} == {1: 4, 3: 4}


@pytest.mark.parametrize("now", [0.0, 3.0])
def test_time_fills_the_bucket_of_frames_that_cost_nothing(now: float) -> None:
    client = Client(Limits(idle_frames=10, idle_frames_per_s=5.0)).greet()
    client.receive(frame(6, 0, 0, bytes(8)) * 9)
    client.now = now
    events = client.receive(frame(6, 0, 0, bytes(8)) * 9)
    assert events == ([] if now else [Failed(f.ENHANCE_YOUR_CALM, "too many PING frames")])
