"""The door without sockets: a transport in memory, a peer made of raw frames, and servicers that do little.

What the door sends is read by hyperframe and hpack, which know nothing of it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import grpc
import hpack
from hyperframe.frame import Frame

from pump_service.door.connection import Connection
from pump_service.door.group import Answer, Messages, Requests
from pump_service.door.limits import DEFAULT_LIMITS, Limits
from pump_service.door.server import Server
from pump_service.door.sniff import Sniffer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Without indexing, new name: what stands behind it is a length and the value.
TIMEOUT_LITERAL = b"\x00\x0cgrpc-timeout"
GROUP, UNARY, DOWN, UP, BOTH = "/t.T/Group", "/t.T/Unary", "/t.T/Down", "/t.T/Up", "/t.T/Both"


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still unless it is moved."""

    now = 1000.0

    def time(self) -> float:
        return self.now


def still() -> StillLoop:
    """The running one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    return loop


def stilled(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that is a coroutine, on a loop whose time stands still."""

    def sync() -> None:
        with asyncio.Runner(loop_factory=StillLoop) as runner:
            runner.run(test())

    sync.__name__, sync.__doc__ = test.__name__, test.__doc__
    return sync


class Wire(asyncio.Transport):
    """A transport whose other end is the test."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.protocol: Any = None
        self.written = bytearray()
        self.buffered = 0  # what get_write_buffer_size says
        self.reading = True
        self.closing = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        assert not self.closing
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = high, low


class Echo:
    """Servicers: every request comes back."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.hold: asyncio.Event | None = None  # unary calls wait for it
        self.groups: list[tuple[list[bytes], Callable[[Sequence[Answer]], None]]] = []
        self.answer_groups = True
        self.contexts: list[Any] = []
        self.pieces = 3
        self.cancelled = 0

    def group(self, requests: Requests, answer: Callable[[Sequence[Answer]], None]) -> None:
        self.groups.append((list(requests), answer))
        if self.answer_groups:
            answer(list(requests))

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.seen.append(("unary", request))
        self.contexts.append(context)
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return request

    async def down(self, request: bytes, context: Any) -> AsyncIterator[bytes | Messages]:
        self.contexts.append(context)
        try:
            for n in range(self.pieces):
                if n % 2:
                    both = prefixed(request) * 2
                    yield Messages((both[:3], memoryview(both)[3:]), 2)
                else:
                    yield request
        finally:
            self.cancelled += 1

    async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        self.contexts.append(context)
        return b"|".join([request async for request in requests])

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.contexts.append(context)
        async for request in requests:
            yield request

    def register(self, server: Server) -> None:
        server.add_group_method(GROUP, self.group)
        methods = {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Down": grpc.unary_stream_rpc_method_handler(self.down),
            "Up": grpc.stream_unary_rpc_method_handler(self.up),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
        }
        server.add_registered_method_handlers("t.T", methods)


def prefixed(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


class Peer:
    """A client of raw frames on one connection of a server. Make it on a running loop."""

    def __init__(self, server: Server | None = None, *, echo: Echo | None = None, limits: Limits = DEFAULT_LIMITS):
        if server is None:
            server = Server(limits=limits)
            self.echo = echo or Echo()
            self.echo.register(server)
        self.server = server
        self.wire = Wire()
        self.wire.protocol = Sniffer(server)
        self.wire.protocol.connection_made(self.wire)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.next_id = 1

    @property
    def connection(self) -> Connection:
        assert isinstance(self.wire.protocol, Connection)
        return self.wire.protocol

    def greet(self, settings: dict[int, int] | None = None) -> Peer:
        """Preface and SETTINGS; what comes back is thrown away."""
        payload = b"".join(struct.pack(">HI", *item) for item in (settings or {}).items())
        self.send(PREFACE + frame(4, 0, 0, payload))
        self.frames()
        return self

    def send(self, data: bytes) -> None:
        self.wire.protocol.data_received(data)

    def block(self, path: str = UNARY, *more: tuple[str, str], without: Sequence[str] = ()) -> bytes:
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
            ("content-type", "application/grpc"), ("te", "trailers"),
        ]  # fmt: skip
        return self.encoder.encode([f for f in fields if f[0] not in without] + list(more))

    def call(
        self, path: str = UNARY, message: bytes | None = b"hello", *more: tuple[str, str], end: bool = True
    ) -> tuple[int, bytes]:
        """Stream id and bytes of a call, HEADERS and DATA."""
        stream_id, self.next_id = self.next_id, self.next_id + 2
        data = frame(1, 4, stream_id, self.block(path, *more))
        if message is not None:
            data += frame(0, 1 if end else 0, stream_id, prefixed(message))
        return stream_id, data

    def frames(self) -> list[Frame]:
        """What the server has sent since the last look."""
        data, found = memoryview(bytes(self.wire.written)), []
        self.wire.written.clear()
        while data:
            parsed, length = Frame.parse_frame_header(data[:9])
            parsed.parse_body(data[9 : 9 + length])
            assert parsed.body_len == length
            if parsed.type == 1 or parsed.type == 9:
                parsed.fields = self.decoder.decode(bytes(parsed.data)) if "END_HEADERS" in parsed.flags else None
            found.append(parsed)
            data = data[9 + length :]
        return found

    async def settle(self) -> list[Frame]:
        """Let tasks run; what the server has sent."""
        for _ in range(12):
            await asyncio.sleep(0)
        return self.frames()


def answers(frames: list[Frame]) -> dict[int, tuple[bytes, dict[str, str]]]:
    """DATA and trailers by stream, of those that ended with trailers."""
    data: dict[int, bytes] = {}
    ended = {}
    for each in frames:
        if each.type == 0:
            data[each.stream_id] = data.get(each.stream_id, b"") + each.data
        elif each.type == 1 and "END_STREAM" in each.flags:
            ended[each.stream_id] = (data.get(each.stream_id, b""), dict(each.fields))
    return ended


def statuses(frames: list[Frame]) -> dict[int, tuple[int, str]]:
    """gRPC status and message by stream."""
    return {
        n: (int(fields["grpc-status"]), fields.get("grpc-message", "")) for n, (_, fields) in answers(frames).items()
    }


def resets(frames: list[Frame]) -> dict[int, int]:
    """Error codes of RST_STREAM by stream."""
    return {each.stream_id: each.error_code for each in frames if each.type == 3}


def goaways(frames: list[Frame]) -> list[int]:
    """Error codes of GOAWAY."""
    return [each.error_code for each in frames if each.type == 7]
