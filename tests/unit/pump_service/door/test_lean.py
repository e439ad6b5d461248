"""Runs of calls that go through the kernel: the same comes of them as of calls that are taken one by one."""

from __future__ import annotations

import asyncio
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import grpc
import hpack
import numpy as np
import pytest

from pump_service.door.calls import Call
from pump_service.door.group import Answer, Refusal, Requests
from pump_service.door.http2 import runs as door_runs
from pump_service.door.http2.frames import PROTOCOL_ERROR
from pump_service.door.http2.lean import take_calls
from pump_service.door.http2.streams import Stream
from pump_service.door.limits import Limits
from pump_service.door.server import Server
from tests.support.doorkit import (
    GROUP,
    TIMEOUT_LITERAL,
    UNARY,
    Echo,
    Peer,
    StillLoop,
    answers,
    frame,
    prefixed,
    resets,
    statuses,
    still,
)
from tests.support.plaincalls import PlainTables, one_fault
from tests.unit.pump_service.door.test_protocol import run

LIMITS = Limits(message=3000, streams=60)


def with_timeout(block: bytes, value: bytes) -> bytes:
    return block + TIMEOUT_LITERAL + bytes([len(value)]) + value


def call(stream_id: int, block: bytes, message: bytes) -> bytes:
    return frame(1, 4, stream_id, block) + frame(0, 1, stream_id, prefixed(message))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each run of the kernel took."""
    found: list[int] = []

    def spy(*args: Any) -> int:
        rows = int(take_calls(*args))
        found.append(rows)
        return rows

    monkeypatch.setattr(door_runs, "take_calls", spy)
    return found


async def acquainted() -> Peer:
    """A connection that has had two calls of the group: the fields of the next ones are in the table."""
    peer = Peer(limits=LIMITS).greet()
    for message in (b"first", b"second"):
        peer.send(peer.call(GROUP, message)[1])
    await peer.settle()
    peer.echo.groups.clear()
    return peer


def test_calls_like_the_last_one_are_taken_in_one_run(taken: list[int]) -> None:
    @run
    async def check() -> None:
        peer = await acquainted()
        taken.clear()
        block = peer.block(GROUP)
        calls = [(11 + 2 * n, with_timeout(block, b"%dS" % n) if n % 2 else block) for n in range(40)]
        peer.send(b"".join(call(n, each, b"m%d" % n) for n, each in calls))
        assert taken == [40]
        assert peer.echo.groups[-1][0] == [b"m%d" % n for n, _ in calls]
        assert answers(await peer.settle()) == {n: (prefixed(b"m%d" % n), {"grpc-status": "0"}) for n, _ in calls}
        assert peer.connection.http2.streams.idle

    check()


def test_no_run_is_longer_than_streams_are_allowed(taken: list[int]) -> None:
    @run
    async def check() -> None:
        peer = await acquainted()
        peer.echo.answer_groups = False
        taken.clear()
        block = peer.block(GROUP)
        peer.send(b"".join(call(11 + 2 * n, block, b"x") for n in range(70)))
        assert taken[0] == 60
        assert len(peer.connection.http2.streams.lean) == 60
        refused = [each for each in await peer.settle() if each.type == 3]
        assert [each.stream_id for each in refused] == [11 + 2 * n for n in range(60, 70)]

    check()


def test_calls_of_a_run_end_each_at_its_own_deadline() -> None:
    @run
    async def check() -> None:
        peer = await acquainted()
        peer.echo.answer_groups = False
        block = peer.block(GROUP)
        blocks = [with_timeout(block, b"40m"), block, with_timeout(block, b"100S"), with_timeout(block, b"90m")]
        peer.send(b"".join(call(11 + 2 * n, each, b"x") for n, each in enumerate(blocks)))
        begun = asyncio.get_running_loop().time()
        seen: dict[int, float] = {}
        while len(seen) < 2:
            await asyncio.sleep(0.005)
            found = statuses(peer.frames())
            assert all(status[0] == 4 for status in found.values())
            seen |= dict.fromkeys(found, asyncio.get_running_loop().time() - begun)
        assert list(seen) == [11, 17]
        assert seen[11] >= 0.04
        assert seen[17] >= 0.09
        ((requests, answer),) = peer.echo.groups
        assert len(requests) == 4
        answer([b"done"] * 4)
        assert set(answers(await peer.settle())) == {13, 15}
        assert not len(peer.server.deadlines)

    check()


# ---- the same as one by one ------------------------------------------------------------------------------------------

TIMEOUTS = (b"1S", b"99999999H", b"100000m", b"0S", b"00000007S", b"123456789S", b"", b"S", b"5", b"5x", b"-5S", b"5 S")


def _odd(chance: random.Random, stream_id: int, block: bytes, message: bytes) -> bytes:
    """Something that is not quite a common call."""
    data = prefixed(message)
    kinds: list[Callable[[], bytes]] = [
        lambda: frame(1, 4, stream_id, block) + frame(0, 0, stream_id, data) + frame(0, 1, stream_id),
        lambda: frame(1, 4, stream_id, block) + frame(0, 9, stream_id, b"\x03" + data + bytes(3)),
        lambda: frame(1, 4, stream_id, block) + frame(0, 1, stream_id, data[:-1] if message else data[:3]),
        lambda: frame(1, 4, stream_id, block) + frame(0, 1, stream_id, data + b"!"),
        lambda: frame(1, 4, stream_id, block) + frame(0, 1, stream_id, b"\x01" + data[1:]),
        lambda: frame(1, 5, stream_id, block),
        lambda: frame(1, 36, stream_id, b"\0\0\0\0\x10" + block) + frame(0, 1, stream_id, data),
        lambda: frame(1, 4, stream_id, block) + frame(6, 0, 0, b"12345678") + frame(0, 1, stream_id, data),
        lambda: frame(1, 4, stream_id, block) + frame(3, 0, stream_id, b"\0\0\0\x08"),
        lambda: frame(1, 4, stream_id, block) + frame(0, 1, stream_id, prefixed(bytes(LIMITS.message + 1))),
        lambda: frame(1, 0, stream_id, block[:3]) + frame(9, 4, stream_id, block[3:]) + frame(0, 1, stream_id, data),
        lambda: frame(6, 0, 0, b"pingpong") + call(stream_id, block, message),
        lambda: frame(8, 0, 0, b"\0\0\1\0") + call(stream_id, block, message),
        lambda: call(stream_id, block, message) + frame(8, 0, stream_id, b"\0\0\1\0"),
    ]
    # These end the connection, so they come rarely.
    if chance.random() < 0.03:
        kinds = [
            lambda: frame(1, 4, stream_id, block) + frame(0, 1, stream_id + 2, data),
            lambda: frame(1, 0, stream_id, block) + frame(0, 1, stream_id, data),
            lambda: frame(1, 5, stream_id, block) + frame(0, 1, stream_id, data),
            lambda: call(stream_id + 1, block, message),
            lambda: call(max(stream_id - 4, 1), block, message),
            lambda: call(stream_id, block + b"\xff\xff\xff\xff\xff\xff", message),
        ]
    return chance.choice(kinds)()


def _conversation(chance: random.Random, block: bytes, other: bytes) -> list[bytes]:
    """What a connection reads, from stream 5 on."""
    first = b"".join(call(n, block, b"first") for n in (5, 7, 9, 11))
    stream_id, sent = 13, b""
    for _ in range(chance.randint(20, 80)):
        message = chance.randbytes(chance.choice([0, 1, 5, 90, 1000]))
        kind = chance.random()
        head = block
        if kind < 0.25:
            head = with_timeout(block, chance.choice(TIMEOUTS))
        elif kind < 0.3:
            # The last of them goes into the table, and what the blocks mean has changed.
            head = chance.choice(
                [other, block + b"\x00\x03x-a\x01b", with_timeout(block, b"3S") + b"\x00\x01y\x01z"] * 3
                + [block + b"\x40\x01y\x01z"]
            )
        sent += call(stream_id, head, message) if chance.random() < 0.85 else _odd(chance, stream_id, head, message)
        stream_id += chance.choice([2, 2, 2, 6])
    cuts = sorted(chance.randrange(len(sent)) for _ in range(chance.randint(0, 6)))
    return [first, *(sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a < b)]


def _conversed(seed: int) -> tuple[Any, ...]:
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(_converse(seed))


async def _converse(seed: int) -> tuple[Any, ...]:
    """What was written, the groups, the single calls, and what is left in the connection."""
    peer = Peer(limits=LIMITS).greet()
    for stream_id, path in ((1, GROUP), (3, UNARY)):  # from here on their fields are in the table
        peer.send(call(stream_id, peer.block(path), b""))
    out = b""
    for data in _conversation(random.Random(seed), peer.block(GROUP), peer.block(UNARY)):
        still().now += 0.005  # the same deadlines pass each time, however busy the machine is
        if not peer.connection.closed:
            peer.send(data)
        for _ in range(12):
            await asyncio.sleep(0)
        out += bytes(peer.wire.written)
        peer.wire.written.clear()
    return out, [requests for requests, _ in peer.echo.groups], peer.echo.seen, _state(peer)


def _state(peer: Peer) -> tuple[Any, ...]:
    """What is left in a connection."""
    http2 = peer.connection.http2
    streams, windows = http2.streams, http2.windows
    return (
        http2.closed, streams.last_id, windows.connection, windows._uncredited, list(streams.lean),
        streams.early_credit, http2.output.window, sorted(streams.open),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_runs_are_answered_as_the_same_calls_one_by_one(
    seed: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_fault(monkeypatch)
    by_kernel = _conversed(seed)
    assert sum(taken)
    PlainTables().patch(monkeypatch)
    taken.clear()
    assert _conversed(seed) == by_kernel
    assert not taken


# ---- the same on several connections ---------------------------------------------------------------------------------

SOME_TIMEOUTS = (b"1S", b"0S", b"7m", b"50m", b"90m", b"333u", b"4n", b"1H")


def _read_of(chance: random.Random, first: int, block: bytes, other: bytes) -> tuple[bytes, int]:
    """What one read brings, and the next stream id: mostly calls that are alike and nothing else."""
    stream_id, sent = first, b""
    kind = chance.random()
    for _ in range(chance.choice([1, 1, 2, 3, 5, 30])):
        head = with_timeout(block, chance.choice(SOME_TIMEOUTS)) if chance.random() < 0.2 else block
        message = chance.randbytes(chance.choice([0, 1, 5, 90, 1000]))
        if kind > 0.85:
            head = chance.choice([head, head, other, block + b"\x00\x03x-a\x01b"])
        sent += _odd(chance, stream_id, head, message) if kind > 0.95 else call(stream_id, head, message)
        stream_id += chance.choice([2, 2, 2, 6])
    among = chance.choice([frame(6, 0, 0, b"pingpong"), frame(8, 0, 0, b"\0\0\1\0"), frame(0x20, 0, 0, b"?" * 50)])
    if 0.5 < kind < 0.55:
        sent = among + sent
    elif 0.55 < kind < 0.6:
        sent += among
    elif 0.6 < kind < 0.65:
        sent += among + call(stream_id, block, b"behind")
        stream_id += 2
    return sent, stream_id


def _in_order(written: bytes) -> list[bytes]:
    """The frames. Which of several batches expires first on one tick is nobody's promise."""
    frames: list[bytes] = []
    expired: list[bytes] = []
    at = 0
    while at < len(written):
        end = at + 9 + int.from_bytes(written[at : at + 3], "big")
        each, at = written[at:end], end
        if each.endswith(b"Deadline Exceeded") or (expired and each[3] == 3):
            expired.append(each)
            continue
        frames += [*sorted(expired, key=_stream_id), each]
        expired.clear()
    return frames + sorted(expired, key=_stream_id)


def _stream_id(each: bytes) -> bytes:
    return each[5:9]


class _Talk:
    """Several connections of one server: what is sent, answered and lost, and what comes of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.loop = still()
        self.server, self.echo = Server(limits=LIMITS), Echo()
        self.echo.register(self.server)
        self.echo.answer_groups = self.chance.random() < 0.3
        self.peers: list[Peer] = []
        self.open: list[Peer] = []  # not lost
        self.rest: dict[Peer, bytes] = {}  # of a read that came in part
        self.held: dict[Peer, Stream] = {}  # what handlers have not taken
        self.seen: list[Any] = []
        self.answered = 0

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
        self.seen.append([_in_order(bytes(peer.wire.written)) for peer in self.peers])
        for peer in self.peers:
            peer.wire.written.clear()

    def connect(self) -> None:
        peer = Peer(self.server).greet()
        for stream_id, path in ((1, GROUP), (3, UNARY)):  # from here on their fields are in the table
            peer.send(call(stream_id, peer.block(path), b""))
        peer.send(b"".join(call(n, peer.block(GROUP), b"first") for n in (5, 7)))
        peer.next_id = 9
        self.peers.append(peer)
        self.open.append(peer)
        self.rest[peer] = b""
        self.held[peer] = Stream(1, 0, 0, None)

    def bring(self, peer: Peer) -> None:
        data, rest = self.rest[peer], b""
        if not data:
            data, peer.next_id = _read_of(self.chance, peer.next_id, peer.block(GROUP), peer.block(UNARY))
            if self.chance.random() < 0.1:
                cut = self.chance.randrange(1, len(data))
                data, rest = data[:cut], data[cut:]
        self.rest[peer] = rest
        peer.send(data)

    def control(self, peer: Peer) -> None:
        """Frames about the calls that are open, and windows."""
        connection, chance = peer.connection, self.chance
        open_calls = sorted([*connection.http2.streams.lean, *connection.http2.streams.open])
        if self.rest[peer]:
            return
        if open_calls and chance.random() < 0.6:
            stream_id = chance.choice(open_calls)
            peer.send(frame(3, 0, stream_id, b"\0\0\0\x08") if chance.random() < 0.5 else
                      frame(8, 0, stream_id, b"\0\0\0\x05"))  # fmt: skip
        elif chance.random() < 0.4:  # the size of a message is above the window of new streams
            peer.send(frame(4, 0, 0, struct.pack(">HI", 4, chance.choice([0, 20, 65535]))))
        elif chance.random() < 0.5:
            peer.send(frame(8, 0, 0, struct.pack(">I", 30_000)))
        else:  # a streaming call would hold as much
            windows = connection.http2.windows
            size = windows.connection - chance.choice([0, 40, 400, 4000])
            windows.hold(self.held[peer], size)
            windows.received(size)

    def release(self, peer: Peer) -> None:
        peer.connection.http2.windows.hold(self.held[peer], -self.held[peer].held)

    def answer_some(self, count: int) -> None:
        groups = self.echo.groups[self.answered : self.answered + count]
        if self.echo.answer_groups:
            return
        self.answered += len(groups)
        for requests, answer in groups:
            given: list[Answer] = [bytes(each) for each in requests]
            kind = self.chance.random()
            if kind < 0.5:
                given = [b"done"] * len(requests)
            elif kind < 0.7:
                given[self.chance.randrange(len(given))] = Refusal(grpc.StatusCode.ABORTED, "not this one")
            answer(given)

    async def step(self) -> None:
        chance, kind = self.chance, self.chance.random()
        peer = chance.choice(self.open)
        if peer.connection.closed or kind < 0.004:
            peer.wire.protocol.connection_lost(None)
            self.open.remove(peer)
            self.connect()
        elif kind < 0.65:
            self.bring(peer)
        elif kind < 0.7:
            self.control(peer)
        elif kind < 0.72:
            self.release(peer)
        elif kind < 0.85:
            self.answer_some(chance.choice([1, 1, 5]))
        else:
            self.loop.now += chance.choice([0.00031, 0.00173, 0.0253, 0.1]) * (1 + chance.random() / 10)
        turns = chance.choice([0, 0, 1, 2, 12])
        if turns:
            await self.turns(turns)

    async def all(self) -> tuple[Any, ...]:
        for _ in range(self.chance.choice([2, 2, 3])):
            self.connect()
        await self.turns(12)
        for _ in range(150):
            await self.step()
        await self.turns(12)
        self.loop.now += 1
        await self.turns(12)
        self.answer_some(len(self.echo.groups))
        await self.turns(12)
        assert len(self.echo.groups) == self.answered or self.echo.answer_groups
        states = [_state(peer) for peer in self.peers]
        watched = [each for bucket in self.server.deadlines._buckets.values() for each in bucket]
        assert all(isinstance(each, Call) for each in watched)  # requests that have not come whole
        assert not self.server.turn._batches
        assert not any(run.chunk for run in self.server.runs._runs)
        return self.seen, [requests for requests, _ in self.echo.groups], self.echo.seen, states


def _talk(seed: int) -> tuple[Any, ...]:
    async def talk() -> tuple[Any, ...]:
        return await _Talk(seed).all()

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(talk())


@pytest.mark.parametrize("seed", range(60))
def test_reads_of_several_connections_are_answered_as_the_same_calls_one_by_one(
    seed: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_fault(monkeypatch)
    by_kernel = _talk(seed)
    assert sum(taken)
    taken.clear()
    PlainTables().patch(monkeypatch)
    plain = _talk(seed)
    assert not taken
    for one, other in zip(by_kernel[0], plain[0], strict=True):
        assert one == other
    assert by_kernel[1:] == plain[1:]


# ---- what is held ----------------------------------------------------------------------------------------------------


class Held(Echo):
    """Handler that keeps requests, as the store does."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Requests] = []

    def group(self, requests: Requests, answer: Callable[[Any], None]) -> None:
        self.requests.append(requests)
        self.groups.append((list(requests), answer))


def _big_read(first: int, block: bytes) -> bytes:
    """Two small calls, among much that is nothing."""
    filler = frame(0x20, 0, 0, bytes(16_000)) * 15
    return call(first, block, b"one") + call(first + 2, block, b"two") + filler


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("reads", [1, 2])
def test_what_waits_for_its_answer_holds_no_whole_reads(connections: int, reads: int) -> None:
    @run
    async def check() -> None:
        server, echo = Server(), Held()
        echo.register(server)
        peers = [Peer(server).greet() for _ in range(connections)]
        for peer in peers:
            for stream_id in (1, 3, 5):
                peer.send(call(stream_id, peer.block(GROUP), b"x"))
        for _ in range(5):
            await asyncio.sleep(0)
        echo.requests.clear()
        tracemalloc.start()
        for peer in peers:
            peer.send(b"".join(_big_read(11 + 10 * n, peer.block(GROUP)) for n in range(reads)))
        async with asyncio.timeout(20):  # small groups wait for each other, not for long
            while sum(map(len, echo.requests)) < 2 * reads * connections:
                await asyncio.sleep(0.001)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert sum(map(len, echo.requests)) == 2 * reads * connections
        assert sum(len(requests.data) for requests in echo.requests) < 5000
        # Each read is 240 KB; the interpreter has its own some tens of KB at times.
        assert held < 100_000 * reads * connections

    check()


def test_calls_whose_headers_take_turns_are_one_group_all_the_same() -> None:
    @run
    async def check() -> None:
        peer = Peer(limits=LIMITS).greet()
        block = peer.block(GROUP)
        other = block + b"\x00\x03x-a\x01b"
        peer.send(b"".join(call(11 + 2 * n, other if n % 2 else block, b"%d" % n) for n in range(20)))
        assert [requests for requests, _ in peer.echo.groups] == [[b"%d" % n for n in range(20)]]
        assert set(answers(await peer.settle())) == {11 + 2 * n for n in range(20)}

    check()


# ---- as clients write ------------------------------------------------------------------------------------------------


def test_calls_with_window_updates_inside_as_grpc_core_writes_them_are_taken_in_one_run(taken: list[int]) -> None:
    @run
    async def check() -> None:
        peer = await acquainted()
        taken.clear()
        block, window = peer.block(GROUP), peer.connection.http2.output.window
        credit = frame(8, 0, 0, struct.pack(">I", 45))
        sent = b""
        for n in range(11, 51, 2):
            own = frame(8, 0, n, b"\0\0\0\x05")
            sent += frame(1, 4, n, block) + own + credit + frame(0, 1, n, prefixed(b"m%d" % n)) + credit
        peer.send(sent)
        assert taken == [20]
        assert peer.connection.http2.output.window == window + 40 * 45 - sum(5 + 3 for _ in range(20))
        assert set(answers(await peer.settle())) == set(range(11, 51, 2))

    check()


@pytest.mark.parametrize("block", [b"", with_timeout(b"", b"5S")])
def test_a_first_call_without_any_field_is_refused_and_not_taken_for_one_like_the_last(block: bytes) -> None:
    @run
    async def check() -> None:
        peer = Peer(limits=LIMITS).greet()
        peer.send(call(1, block, b"nothing"))
        assert resets(await peer.settle()) == {1: PROTOCOL_ERROR}
        assert not peer.echo.groups
        assert not peer.server.runs._runs

    check()


def test_an_answer_above_the_initial_window_uses_what_a_window_update_inside_the_call_gave() -> None:
    @run
    async def check() -> None:
        peer = await acquainted()
        peer.send(frame(4, 0, 0, struct.pack(">HI", 4, 10)))
        peer.send(
            frame(1, 4, 11, peer.block(GROUP)) + frame(8, 0, 11, b"\0\0\0\x0a") + frame(0, 1, 11, prefixed(b"x" * 15))
        )
        assert answers(await peer.settle())[11][0] == prefixed(b"x" * 15)

    check()


def test_timeouts_that_go_into_the_table_are_calls_like_the_last(taken: list[int]) -> None:
    """grpc-go indexes each of them: what all other indices mean moves with every call, and falls out of the table."""

    @run
    async def check() -> None:
        peer = Peer().greet()
        encoder = hpack.Encoder()
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", GROUP), (":authority", "a"),
            ("content-type", "application/grpc"), ("user-agent", "grpc-go/1.76.0"), ("te", "trailers"),
        ]  # fmt: skip
        sent = b""
        for n in range(400):
            block = encoder.encode([*fields, ("grpc-timeout", f"{14_999_000 + n}u")])
            sent += call(1 + 2 * n, block, b"%d" % n)
        peer.send(sent)
        assert taken == [0, 399]
        assert set(answers(await peer.settle())) == set(range(1, 801, 2))

    check()


# ---- requests --------------------------------------------------------------------------------------------------------


def test_requests_are_a_sequence_and_can_be_joined() -> None:
    read = struct.pack("3s5s2s4s", b"xxx", b"first", b"--", b"last")
    some = Requests(np.frombuffer(read, np.uint8), np.array([3, 10]), np.array([5, 4]), 9)
    more = Requests.of([b"", b"other", b""])
    assert list(some) == [b"first", b"last"]
    assert Requests.joined([some]) is some
    joined = Requests.joined([some, more, some])
    assert list(joined) == [b"first", b"last", b"", b"other", b"", b"first", b"last"]
    assert joined[1:4] == [b"last", b"", b"other"]
    assert joined[-1] == b"last"
    assert len(joined) == 7
    assert list(Requests.of([b"alone"])) == [b"alone"]
    assert not joined.data.flags.writeable
    assert (joined.message_bytes, more.message_bytes) == (23, 5)
    among = Requests(np.frombuffer(bytes(9000) + read, np.uint8), some.starts + 9000, some.sizes, 9)
    assert list(Requests.joined([among])) == [b"first", b"last"]
    assert len(Requests.joined([among]).data) == 9
