"""Fuzzing the door: a model client whose every call must be answered right, and a hostile one that may be answered any
way but must not break anything. Everything in memory; a round is decided by its seed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
from structlog.testing import capture_logs

from pump_service.door.connection import Connection
from pump_service.door.group import Answer, Requests
from pump_service.door.limits import Limits
from pump_service.door.server import Server
from tests.support.doorkit import BOTH, DOWN, GROUP, PREFACE, UNARY, UP, Echo, Peer, frame, prefixed

_PATHS = (GROUP, GROUP, UNARY, DOWN, UP, BOTH, "/t.T/Unknown")
_LIMITS = Limits(
    streams=40, message=50_000, stream_window=30_000, connection_window=200_000, idle_frames=400,
    # Requests wait for each other all the time, for those of a hostile peer until it is gone.
    assembling=20_000, assembling_most=20_000_000, stalled_s=1e6,
)  # fmt: skip


def _pieces(chance: random.Random, data: bytes) -> list[bytes]:
    """Data as a network might deliver it."""
    if chance.random() < 0.3:
        return [data]
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randint(1, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


class ModelClient:
    """An `h2` client that opens calls of all kinds with all kinds of windows and pieces, and knows the answers."""

    def __init__(self, chance: random.Random, server: Server) -> None:
        self.chance = chance
        self.peer = Peer(server)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        initial = chance.choice([0, 1, 7, 100, 65_535, 1 << 20])
        self.h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial,
                h2.settings.SettingCodes.HEADER_TABLE_SIZE: chance.choice([0, 60, 4096, 9000]),
                h2.settings.SettingCodes.MAX_FRAME_SIZE: chance.choice([16_384, 20_000]),
            },
        )
        # h2 applies changes when they are confirmed, and these are no changes to it.
        self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.h2.decoder.max_allowed_table_size = self.h2.local_settings.header_table_size
        self.h2.initiate_connection()
        self.unsent: dict[int, bytes] = {}
        self.want: dict[int, bytes | None] = {}  # None = refused
        self.got: dict[int, bytes] = {}
        self.status: dict[int, str] = {}
        self.cancelled: set[int] = set()
        self.settled = False  # our first SETTINGS are acknowledged

    def open(self) -> None:
        path = self.chance.choice(_PATHS)
        messages = [
            self.chance.randbytes(self.chance.choice([0, 1, 10, 300, 5000, 20_000]))
            for _ in range(self.chance.randint(1, 3) if path in (UP, BOTH) else 1)
        ]
        more: list[tuple[str, Any]] = []
        if self.chance.random() < 0.4:
            more.append(("grpc-timeout", f"{self.chance.randint(10_000, 99_999)}m"))
        if self.chance.random() < 0.2:
            more.append((f"x-{self.chance.randint(0, 5)}", "v" * self.chance.randint(0, 60)))
        self._open(path, messages, more)

    def burst(self) -> None:
        """Calls of a group method that have all but the same header block, as pump clients send them, in one read."""
        self.push()
        self.exchange()  # whatever else waits
        timeouts = self.chance.random() < 0.5
        data = bytearray()
        for _ in range(self.chance.randint(2, 12)):
            message = self.chance.randbytes(self.chance.choice([0, 5, 40, 300]))
            stream_id = self._open(GROUP, [message], [])
            headers = self.h2.data_to_send()
            if timeouts and self.chance.random() < 0.9 and int.from_bytes(headers[:3], "big") == len(headers) - 9:
                # A literal without indexing, which `h2` does not write.
                value = b"%dm" % self.chance.randint(10_000, 99_999)
                literal = b"\x00\x0cgrpc-timeout" + bytes([len(value)]) + value
                headers = (len(headers) - 9 + len(literal)).to_bytes(3, "big") + headers[3:] + literal
            data += headers
            rest = self.unsent[stream_id]
            if len(rest) <= self.h2.local_flow_control_window(stream_id):
                self.h2.send_data(stream_id, rest, end_stream=True)
                data += self.h2.data_to_send()
                del self.unsent[stream_id]
        for piece in [bytes(data)] if self.chance.random() < 0.7 else _pieces(self.chance, bytes(data)):
            self.peer.send(piece)

    def _open(self, path: str, messages: list[bytes], more: list[tuple[str, Any]]) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a"),
            ("content-type", "application/grpc"), ("te", "trailers"), *more,
        ]  # fmt: skip
        self.h2.send_headers(stream_id, fields)
        self.unsent[stream_id] = b"".join(map(prefixed, messages))
        first = prefixed(messages[0])
        self.want[stream_id] = {
            GROUP: first, UNARY: first, DOWN: first * 4, UP: prefixed(b"|".join(messages)),
            BOTH: b"".join(map(prefixed, messages)),
        }.get(path)  # fmt: skip
        self.got[stream_id] = b""
        return stream_id

    def push(self) -> None:
        """Send what the windows allow of some streams."""
        for stream_id in list(self.unsent):
            if stream_id in self.status or stream_id in self.cancelled:
                del self.unsent[stream_id]
                continue
            rest = self.unsent[stream_id]
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(rest))
            size = room if self.chance.random() < 0.5 else self.chance.randint(0, max(room, 0))
            if size <= 0:
                continue
            end = size == len(rest)
            padding = self.chance.choice([None, None, 5])
            if padding is not None and room - size < padding + 1:
                padding = None
            self.h2.send_data(stream_id, rest[:size], end_stream=end, pad_length=padding)
            if end:
                del self.unsent[stream_id]
            else:
                self.unsent[stream_id] = rest[size:]

    def cancel(self) -> None:
        still_open = [n for n in self.want if n not in self.status and n not in self.cancelled]
        if still_open:
            stream_id = self.chance.choice(still_open)
            self.h2.reset_stream(stream_id, 8)
            self.cancelled.add(stream_id)

    def exchange(self) -> None:
        data = self.h2.data_to_send()
        for piece in _pieces(self.chance, data) if data else ():
            self.peer.send(piece)
        sent, self.peer.wire.written = bytes(self.peer.wire.written), bytearray()
        for event in self.h2.receive_data(sent) if sent else ():
            self.seen(event)

    def seen(self, event: Any) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.got[event.stream_id] += event.data
            self.credit(event.stream_id, event.flow_controlled_length)
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            fields = dict(event.headers)
            if "grpc-status" in fields:
                self.status[event.stream_id] = fields["grpc-status"]
        elif isinstance(event, h2.events.StreamReset):
            assert event.stream_id in self.status or event.stream_id in self.cancelled, event
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.settled = True
        elif isinstance(event, h2.events.ConnectionTerminated):
            raise AssertionError(f"GOAWAY {event.error_code} {event.additional_data!r}")

    def credit(self, stream_id: int, size: int) -> None:
        if size:
            self.h2.increment_flow_control_window(size)
            if stream_id not in self.cancelled and stream_id not in self.status:
                with contextlib.suppress(h2.exceptions.StreamClosedError, KeyError):
                    self.h2.increment_flow_control_window(size, stream_id)

    def widen(self) -> None:
        """Windows that would never let an answer through are opened, at a time of chance."""
        for stream_id in self.want:
            if stream_id not in self.status and stream_id not in self.cancelled:
                with contextlib.suppress(h2.exceptions.StreamClosedError, h2.exceptions.FlowControlError, KeyError):
                    self.h2.increment_flow_control_window(self.chance.randint(1, 30_000), stream_id)

    def resettle(self) -> None:
        # `h2` would take the acknowledgement of our first SETTINGS, which it has not noted as a change, for that of these.
        if not self.settled:
            return
        self.h2.update_settings(
            {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: self.chance.choice([0, 3, 1000, 70_000])}
        )

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            what = self.chance.random()
            still_open = len(self.want) - len(self.status) - len(self.cancelled)
            if what < 0.3:
                if still_open < 30:
                    self.open()
            elif what < 0.45:
                if still_open < 20:
                    self.burst()
            elif what < 0.85:
                self.push()
            elif what < 0.9:
                self.cancel()
            elif what < 0.95:
                self.widen()
            elif what < 0.97:
                self.resettle()
            else:
                self.h2.ping(self.chance.randbytes(8))
            if self.chance.random() < 0.5:
                self.exchange()
            if self.chance.random() < 0.3:
                await asyncio.sleep(0)
        for _ in range(2000):
            self.push()
            self.widen()
            self.exchange()
            await asyncio.sleep(0)
            if all(n in self.status or n in self.cancelled for n in self.want):
                break
        self.check()

    def check(self) -> None:
        for stream_id, want in self.want.items():
            if stream_id in self.cancelled:
                continue
            assert stream_id in self.status, f"stream {stream_id} was never answered"
            if want is None:
                assert self.status[stream_id] == str(grpc.StatusCode.UNIMPLEMENTED.value[0])
            else:
                assert self.status[stream_id] == "0"
                assert self.got[stream_id] == want, f"stream {stream_id}"


def hostile_bytes(chance: random.Random, peer: Peer) -> bytes:
    """Frames that are nearly right, wrong in one place, or no frames at all."""
    what = chance.random()
    if what < 0.06:
        return chance.randbytes(chance.randint(1, 60))
    if what < 0.45:
        _, data = peer.call(chance.choice(_PATHS), chance.randbytes(chance.choice([0, 5, 400])))
    else:
        kind = chance.choice([0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 200])
        flags = chance.choice([0, 1, 4, 5, 8, 0x20, 0x2D, chance.randrange(256)])
        stream_id = chance.choice(
            [0, 1, 2, peer.next_id, max(peer.next_id - 2, 1), peer.next_id + 40, 0x7FFFFFFF, 1 << 31]
        )
        sizes = {3: 4, 4: 6, 6: 8, 7: 8, 8: 4, 2: 5}
        size = sizes.get(kind, chance.randint(0, 40))
        if chance.random() < 0.2:
            size = chance.randint(0, 80)
        payload = chance.randbytes(size)
        if kind in (1, 9) and chance.random() < 0.6:
            payload = peer.block(chance.choice(_PATHS), ("x", "y" * chance.randint(0, 300)))[: chance.randint(1, 200)]
        if kind == 4 and size >= 6:
            payload = struct.pack(">HI", chance.randint(0, 8), chance.choice([0, 1, 50, 65_535, 1 << 31, 20_000])) * (
                size // 6
            )
        data = frame(kind, flags, stream_id, payload)
    if chance.random() < 0.15:
        raw = bytearray(data)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        data = bytes(raw)
    if chance.random() < 0.03:
        data = data[: chance.randint(0, len(data))]
    return data


async def hostile(chance: random.Random, server: Server) -> None:
    """One hostile connection, until it is thrown out or tired."""
    peer = Peer(server)
    data = PREFACE + frame(4, 0, 0) if chance.random() < 0.95 else hostile_bytes(chance, peer)
    for _ in range(chance.randint(1, 60)):
        for piece in _pieces(chance, data) if data else ():
            if peer.wire.closing:
                break
            peer.send(piece)
        if peer.wire.closing:
            break
        if chance.random() < 0.2:
            await asyncio.sleep(0)
        data = hostile_bytes(chance, peer)
        if isinstance(peer.wire.protocol, Connection):
            connection = peer.connection
            assert len(connection.http2.streams.open) + len(connection.http2.streams.lean) <= _LIMITS.streams
            assert connection.http2._rest.size <= _LIMITS.frame + 9
    try:
        peer.frames()  # well-formed, header blocks decodable
    except Exception as error:
        raise AssertionError(f"the server's own bytes cannot be read: {error}") from error
    peer.wire.closing = True
    peer.wire.protocol.connection_lost(None)
    await asyncio.sleep(0)


class LateEcho(Echo):
    """Groups have their answers at once, or some turns of the loop later."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.at_once = chance.choice([0.0, 0.5, 1.0])
        self.late = 0  # groups that have no answer yet

    def group(self, requests: Requests, answer: Callable[[Sequence[Answer]], None]) -> None:
        answers = list(requests)
        if self.chance.random() < self.at_once:
            answer(answers)
        else:
            self.late += 1
            asyncio.get_running_loop().call_later(
                self.chance.choice([0, 0, 0.001, 0.004]), self._answer, answer, answers
            )

    def _answer(self, answer: Callable[[Sequence[Answer]], None], answers: Sequence[Answer]) -> None:
        self.late -= 1
        answer(answers)


async def round_of(seed: int) -> None:
    """Model clients and some hostile ones on one server."""
    chance = random.Random(seed)
    server = Server(limits=_LIMITS)
    echo = LateEcho(chance)
    echo.register(server)
    with capture_logs() as logs:
        models = [ModelClient(chance, server) for _ in range(chance.choice([1, 1, 2, 4]))]
        tasks = [asyncio.ensure_future(model.run(chance.randint(5, 120))) for model in models]
        tasks += [asyncio.ensure_future(hostile(chance, server)) for _ in range(chance.randint(0, 4))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        for model in models:
            model.peer.wire.protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while echo.late:  # what a handler answers when nobody is there any more
                await asyncio.sleep(0.001)
    bad = [entry for entry in logs if entry["event"] in ("connection_failed", "call_failed")]
    assert not bad, bad
    assert server.assembly.held == 0
    assert not len(server.deadlines), "a call that ended is still watched"
    others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and t.get_name().startswith("/t.T/")]
    assert not others, others
    server.deadlines.close()


def campaign(seconds: float, seed: int) -> tuple[int, int]:
    """Rounds from a seed on for so long: how many, and the growth of memory in bytes after the first tenth."""

    async def run() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        began, rounds, base = loop.time(), 0, None
        tracemalloc.start()
        while loop.time() - began < seconds:
            try:
                await round_of(seed + rounds)
            except BaseException as error:
                error.add_note(f"seed {seed + rounds}: tests.support.doorfuzz.round_of(seed) does it again")
                raise
            rounds += 1
            if base is None and loop.time() - began > seconds / 10:
                gc.collect()
                base = tracemalloc.get_traced_memory()[0]
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - (base or 0)
        tracemalloc.stop()
        return rounds, grown

    return asyncio.run(run())
