"""Large requests at once: who may send, what they hold, and who does not have to wait for them."""

from __future__ import annotations

import asyncio
import functools
import gzip
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import grpc
import pytest

from pump_service.door.assembly import Assembly
from pump_service.door.deadlines import Deadlines
from pump_service.door.group import Refusal
from pump_service.door.http2 import frames as f
from pump_service.door.limits import Limits
from pump_service.door.server import Server
from tests.support.doorkit import BOTH, GROUP, UNARY, UP, Echo, Peer, StillLoop, frame, prefixed, still

pytestmark = pytest.mark.row("P15", "W1")
KIB, MIB = 1 << 10, 1 << 20
STOOD_STILL = "too many incomplete requests: this one stood still while they held all of pump.incomplete_bytes"
# Windows of 64 KiB; a message may be 4 MiB, and beside the oldest 1 MiB is held before the others wait.
LIMITS = Limits(
    message=4 * MIB, stream_window=64 * KIB, connection_window=MIB, assembling=MIB, assembling_most=8 * MIB,
    stalled_s=1000.0,
)  # fmt: skip
BOUND = LIMITS.assembling_most + LIMITS.message + LIMITS.stream_window


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def runs() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    return runs


def run_still(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """On a loop whose time moves only when the test says so."""

    @functools.wraps(test)
    def runs() -> None:
        with asyncio.Runner(loop_factory=StillLoop) as runner:
            runner.run(test())

    return runs


def packed(message: bytes) -> bytes:
    data = gzip.compress(message, 1)
    return b"\1" + struct.pack(">I", len(data)) + data


class Sender:
    """A client that obeys the windows and sends what they let it of all its calls, in turns."""

    def __init__(self, server: Server) -> None:
        self.peer = Peer(server).greet({f.INITIAL_WINDOW_SIZE: 1 << 30})
        self.peer.send(frame(8, 0, 0, struct.pack(">I", 1 << 30)) + frame(4, 1, 0))
        self.window = LIMITS.connection_window
        self.windows: dict[int, int] = {}
        self.unsent: dict[int, bytes] = {}
        self.status: dict[int, tuple[int, str]] = {}
        self.silent: set[int] = set()

    def open(self, message: bytes, path: str = GROUP, *more: tuple[str, str], whole: bool = True) -> int:
        """``whole``: else the request has no end."""
        stream_id, data = self.peer.call(path, None, *more)
        self.peer.send(data)
        self.windows[stream_id] = LIMITS.stream_window
        self.unsent[stream_id] = prefixed(message)
        if not whole:
            self.silent.add(stream_id)
        return stream_id

    def send(self, stream_id: int, most: int = 16 * KIB) -> int:
        """One frame; its bytes."""
        rest = self.unsent[stream_id]
        size = min(len(rest), self.window, self.windows[stream_id], most)
        if size > 0:
            end = size == len(rest) and stream_id not in self.silent
            self.window -= size
            self.windows[stream_id] -= size
            self.unsent[stream_id] = rest[size:]
            self.peer.send(frame(0, end, stream_id, rest[:size]))
            if not self.unsent[stream_id]:
                del self.unsent[stream_id]
            self.hear()
        return max(size, 0)

    def hear(self) -> None:
        for each in self.peer.frames():
            if each.type == 8 and each.stream_id == 0:
                self.window += each.window_increment
            elif each.type == 8 and each.stream_id in self.windows:
                self.windows[each.stream_id] += each.window_increment
            elif each.type == 1 and (fields := dict(each.fields)).get("grpc-status"):
                self.status[each.stream_id] = int(fields["grpc-status"]), fields.get("grpc-message", "")
                self.unsent.pop(each.stream_id, None)
            elif each.type == 7:
                raise AssertionError(each)

    async def step(self) -> int:
        """A frame of each call."""
        sent = sum(self.send(stream_id) for stream_id in list(self.unsent) if stream_id in self.unsent)
        await asyncio.sleep(0)
        self.hear()
        return sent

    async def small(self) -> None:
        """A call that comes whole, and one in pieces below a window, are answered while others wait."""
        n, data = self.peer.call(GROUP, b"small")
        self.peer.send(data)
        m = self.open(bytes(40 * KIB), UNARY)
        while m in self.unsent:
            assert self.send(m)
        for _ in range(10):
            await asyncio.sleep(0.002)  # an answer may wait for a tick, for those of others
            self.hear()
        assert self.status.pop(n)[0] == self.status.pop(m)[0] == 0


def serve(limits: Limits = LIMITS, echo: Echo | None = None) -> Server:
    server = Server(limits=limits)
    (echo or Echo()).register(server)
    return server


async def finish(server: Server, senders: Sequence[Sender]) -> int:
    """Send until nothing is left; the most bytes that the server held."""
    most, idle = 0, 0
    while any(sender.unsent for sender in senders):
        sent = 0
        for sender in senders:
            sent += await sender.step()
            most = max(most, server.assembly.held)
        idle = 0 if sent else idle + 1
        assert idle < 1000, "nobody may send"
    for _ in range(10):
        await asyncio.sleep(0.002)
        for sender in senders:
            sender.hear()
    return most


@pytest.mark.parametrize("connections", [1, 8])
def test_large_requests_at_once_all_pass_within_the_bound(connections: int) -> None:
    async def test() -> None:
        server = serve()
        senders = [Sender(server) for _ in range(connections)]
        for n in range(32):
            senders[n % connections].open(bytes(3 * MIB), GROUP if n % 3 else UNARY)
        for _ in range(100):
            for sender in senders:
                await sender.step()
        # 96 MiB want to come. Each that waits sends its first window, and what was let in before is a MiB.
        most_of_them = LIMITS.assembling + 31 * LIMITS.stream_window + 3 * MIB
        assert server.assembly.held <= most_of_them
        await senders[0].small()
        await senders[-1].small()
        most = await finish(server, senders)
        assert LIMITS.assembling < most <= most_of_them + 40 * KIB < BOUND
        done = [status for sender in senders for status in sender.status.values()]
        assert done == [(0, "")] * 32
        assert server.assembly.held == 0
        assert not len(server.deadlines)

    asyncio.run(asyncio.wait_for(test(), 60))


@run
async def test_the_oldest_completes_while_all_others_wait() -> None:
    server = serve()
    sender = Sender(server)
    first, *others = [sender.open(bytes(MIB)) for _ in range(24)]
    while sum([sender.send(n) for n in others]):
        if len(sender.unsent[others[0]]) < MIB // 4:
            break
    while sum([sender.send(n) for n in others[1:]]):
        pass
    beside = server.assembly.held - (MIB + 5 - len(sender.unsent[others[0]]))
    assert LIMITS.assembling < beside <= LIMITS.assembling + 23 * LIMITS.stream_window
    while others[0] in sender.unsent:
        assert sender.send(others[0])
    assert server.assembly.held == beside
    assert sum(sender.send(n) for n in others[1:]) > 0  # the next
    sender.send(first)
    await finish(server, [sender])
    assert {code for code, _ in sender.status.values()} == {0}


@run
async def test_a_deadline_ends_one_that_waits_and_a_lost_connection_gives_back_what_it_held() -> None:
    server = serve()
    sender, others = Sender(server), Sender(server)
    for _ in range(24):
        sender.open(bytes(MIB))
    while server.assembly.held < 2 * MIB:
        await sender.step()
    timed = others.open(bytes(MIB), UNARY, ("grpc-timeout", "100m"))
    waits = others.open(bytes(MIB))
    for _ in range(20):
        others.send(timed)
        others.send(waits)
    before = server.assembly.held
    while timed not in others.status:
        await asyncio.sleep(0.01)
        others.hear()
    assert others.status[timed][0] == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert server.assembly.held == before - LIMITS.stream_window
    sender.peer.connection.connection_lost(None)
    assert server.assembly.held == LIMITS.stream_window
    await finish(server, [others])
    assert others.status[waits] == (0, "")
    assert not len(server.deadlines)


@run
async def test_streams_of_requests_have_their_turns_message_by_message() -> None:
    class Counting(Echo):
        async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
            return b"%d" % sum([len(x) async for x in requests])

    server = serve(echo=Counting())
    sender = Sender(server)
    streams = [sender.open(b"", UP, whole=False) for _ in range(16)]
    for n in streams:
        sender.unsent[n] = prefixed(bytes(500 * KIB)) * 6
    large = sender.open(bytes(MIB))
    sent = dict.fromkeys(streams, 0)
    while all(n in sender.unsent for n in streams):
        moved = 0
        for n in list(sender.unsent):
            moved += (size := sender.send(n))
            if n in sent:
                sent[n] += size
        await asyncio.sleep(0)
        sender.hear()
        assert moved
        assert server.assembly.held <= BOUND
    # No stream has all of its messages before the others have most of theirs, nor before whoever waited had a turn.
    assert min(sent.values()) > 3 * 500 * KIB
    assert large not in sender.unsent
    for n in streams:
        while n in sender.unsent:
            await sender.step()
        sender.peer.send(frame(0, 1, n))
    await finish(server, [sender])
    assert {code for code, _ in sender.status.values()} == {0}


async def passes(seconds: float, *senders: Sender) -> None:
    """Time of a `StillLoop`, and what is due then."""
    still().now += seconds
    for _ in range(6):
        await asyncio.sleep(0)
    for sender in senders:
        sender.hear()


def limits_of(assembling: int, most: int, message: int = 4 * MIB) -> Limits:
    """A peer may stand still for a second."""
    return Limits(
        message=message, stream_window=64 * KIB, connection_window=MIB, assembling=assembling, assembling_most=most,
        stalled_s=1.0,
    )  # fmt: skip


def codes(*senders: Sender) -> set[int]:
    return {code for sender in senders for code, _ in sender.status.values()}


@run_still
async def test_a_message_of_a_compressed_stream_may_be_larger_than_what_is_held_beside_the_oldest() -> None:
    server = serve(limits_of(MIB, 2 * MIB, 16 * MIB))
    sender, others = Sender(server), Sender(server)
    stream = sender.open(b"", UP, ("grpc-encoding", "gzip"))
    sender.unsent[stream] = packed(bytes(8 * MIB)) * 2
    sender.send(stream, 1000)
    for _ in range(12):
        others.open(bytes(MIB))
    for _ in range(10):
        await others.step()
    idle = 0
    while sender.unsent or others.unsent:
        idle = 0 if await sender.step() + await others.step() else idle + 1
        assert idle < 100, "nobody may send"  # while a step is inflated
    await passes(0.1, sender, others)
    assert len(sender.status) + len(others.status) == 13
    assert codes(sender, others) == {0}


@run_still
async def test_one_that_stands_still_while_others_wait_is_ended() -> None:
    server = serve(limits_of(MIB, 8 * MIB))
    dead, others = Sender(server), Sender(server)
    for _ in range(8):
        dead.send(dead.open(bytes(MIB)), 8 * KIB)
    live = [others.open(bytes(MIB)) for _ in range(24)]
    began = still().now
    while len(others.status) < len(live):
        if not await others.step():
            await passes(0.1, others)
        assert still().now - began < 5  # all of them are waited for once
    dead.hear()
    assert codes(others) == {0}
    assert list(dead.status.values()) == [(grpc.StatusCode.UNAVAILABLE.value[0], STOOD_STILL)] * 8
    await passes(5)
    assert not len(server.deadlines)


@run_still
async def test_a_byte_now_and_then_is_standing_still() -> None:
    server = serve(limits_of(MIB, 8 * MIB))
    trickles, others = Sender(server), Sender(server)
    slow = [trickles.open(bytes(3 * MIB)) for _ in range(20)]
    live = others.open(bytes(2 * MIB))
    while live not in others.status:
        for n in slow:
            if n in trickles.unsent:
                trickles.send(n, 1)
        if not await others.step():
            await passes(0.1, others)
    assert codes(others) == {0}
    assert codes(trickles) == {grpc.StatusCode.UNAVAILABLE.value[0]}


@run_still
async def test_requests_that_stand_still_without_asking_for_more_lock_nobody_out() -> None:
    server = serve(limits_of(512 * KIB, MIB))
    dead, others = Sender(server), Sender(server)
    while server.assembly.held <= MIB:
        dead.send(dead.open(bytes(200 * KIB)), 15 * KIB)  # less than what is worth credit
    refused = others.open(bytes(60 * KIB))
    while refused in others.unsent:
        others.send(refused)
    assert others.status[refused][0] == grpc.StatusCode.UNAVAILABLE.value[0]
    assert "pump.incomplete_bytes" in others.status[refused][1]
    await passes(1.1, dead)
    assert not dead.status
    await passes(1.1, dead)
    assert codes(dead) == {grpc.StatusCode.UNAVAILABLE.value[0]}
    late = others.open(bytes(60 * KIB))
    while late in others.unsent:
        assert others.send(late)
    await passes(0.1, others)
    assert others.status[late] == (0, "")


@run_still
async def test_who_stands_still_while_the_server_reads_nothing_or_lets_it_wait_is_not_ended() -> None:
    server = serve(limits_of(MIB, 8 * MIB))
    sender, others = Sender(server), Sender(server)
    first = sender.open(bytes(2 * MIB))
    sender.send(first)
    for _ in range(24):
        others.open(bytes(MIB))
    while await others.step():
        pass
    server.pause_reading()
    for _ in range(10):
        await passes(0.5, sender, others)
    server.resume_reading()
    while sender.unsent:  # a quarter of a window in each second, and the others wait all the time
        for _ in range(2):
            sender.send(first)
        await passes(0.9, sender, others)
    while others.unsent:
        if not await others.step():
            await passes(0.1, others)
    assert codes(sender, others) == {0}


@run_still
async def test_who_is_inflated_does_not_stand_still() -> None:
    server = serve(limits_of(MIB, 2 * MIB, 8 * MIB))
    sender, others = Sender(server), Sender(server)
    large = sender.open(b"", UNARY, ("grpc-encoding", "gzip"))
    sender.unsent[large] = packed(random.Random(1).randbytes(6 * MIB))
    while large in sender.unsent:
        sender.send(large)
    for _ in range(12):
        others.open(bytes(MIB))
    while sum([others.send(n) for n in others.unsent]):
        pass
    for _ in range(200):
        still().now += 0.4  # the loop has other work between two steps
        await asyncio.sleep(0)
        sender.hear()
    assert sender.status == {large: (0, "")}


@run_still
async def test_a_request_whose_window_covers_what_is_missing_needs_no_credit_and_does_not_wait() -> None:
    server = serve(limits_of(MIB, 8 * MIB))
    sender, others = Sender(server), Sender(server)
    for _ in range(24):
        others.open(bytes(MIB))
    while await others.step():
        pass
    for path in (GROUP, UNARY):
        n = sender.open(bytes(60 * KIB), path)
        while n in sender.unsent:
            assert sender.send(n)
        await passes(0.1, sender)
        assert sender.status[n] == (0, "")
        assert sender.windows[n] == LIMITS.stream_window - 60 * KIB - 5


@run_still
async def test_a_call_that_has_ended_holds_nothing_though_its_handler_lingers() -> None:
    class Linger(Echo):
        async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await go.wait()
            yield b""

    go = asyncio.Event()
    server = serve(echo=Linger())
    sender = Sender(server)
    stream = sender.open(bytes(2 * MIB), BOTH, ("grpc-timeout", "300m"))
    await sender.step()
    for _ in range(20):
        sender.send(stream)
    assert server.assembly.held > 256 * KIB
    await passes(0.5, sender)
    assert codes(sender) == {grpc.StatusCode.DEADLINE_EXCEEDED.value[0]}
    assert server.assembly.held == 0
    go.set()
    await passes(0.1)


# ---- the budget by itself --------------------------------------------------------------------------------------------


class Request:
    """Of a call, what the budget sees."""

    def __init__(self, *, awaits_peer: bool = True) -> None:
        self.went_on = 0
        self.refused: list[Refusal] = []
        self._awaits_peer = awaits_peer

    def awaits_peer(self) -> bool:
        return self._awaits_peer

    def go_on(self) -> None:
        self.went_on += 1

    def refuse(self, refusal: Refusal) -> None:
        self.refused.append(refusal)


@run_still
async def test_those_that_wait_go_on_in_the_order_in_which_they_came() -> None:
    assembly = Assembly(limits_of(100, 200), Deadlines(still()), still().time)
    first, second, third, fourth = requests = [Request() for _ in range(4)]
    for each in requests:
        assert assembly.lets(each, 40) or each is not first  # type: ignore[arg-type]
        assert assembly.count(each, 40) is None  # type: ignore[arg-type]
    assert not assembly.lets(third, 40)  # type: ignore[arg-type]
    assert not assembly.lets(second, 1)  # type: ignore[arg-type]
    assert not assembly.lets(fourth, 40)  # type: ignore[arg-type]
    assert assembly.lets(first, 10_000)  # type: ignore[arg-type]
    assembly.leave(first)  # type: ignore[arg-type]
    assert [each.went_on for each in requests] == [0, 1, 0, 0]  # the oldest, whoever asked first
    assembly.count(second, 0)  # type: ignore[arg-type]
    assert [each.went_on for each in requests] == [0, 1, 1, 1]
    assert assembly.held == 80


@run_still
async def test_one_that_has_been_sent_whole_asks_for_nothing_any_more() -> None:
    assembly = Assembly(limits_of(100, 200), Deadlines(still()), still().time)
    oldest, waits, last = [Request() for _ in range(3)]
    for each, held in ((oldest, 50), (waits, 90)):
        assembly.count(each, held)  # type: ignore[arg-type]
    assert not assembly.lets(waits, 40)  # type: ignore[arg-type]
    assert not assembly.lets(last, 5)  # type: ignore[arg-type]
    assembly.settled(waits)  # type: ignore[arg-type]
    assert (waits.went_on, last.went_on) == (0, 1)
    for each in (oldest, waits):
        assembly.leave(each)  # type: ignore[arg-type]
    assert assembly.held == 0


LOOK = 1.03  # `stalled_s`, and a tick


def budget() -> Assembly:
    return Assembly(limits_of(100, 10**6), Deadlines(still()), still().time)


@run_still
async def test_who_waited_in_between_did_not_stand_still() -> None:
    assembly = budget()
    oldest, moves = Request(), Request()
    assembly.count(oldest, 50)  # type: ignore[arg-type]
    assembly.count(moves, 101)  # type: ignore[arg-type]
    await passes(LOOK)
    assert not assembly.lets(moves, 40)  # type: ignore[arg-type]
    assembly.count(oldest, 10**6)  # type: ignore[arg-type]
    await passes(LOOK - 0.1)
    assembly.leave(oldest)  # type: ignore[arg-type]
    assert moves.went_on == 1
    await passes(0.3)
    assert moves.refused == []


@run_still
async def test_time_in_which_the_server_reads_nothing_counts_for_nobody() -> None:
    assembly = budget()
    oldest, moves = Request(), Request()
    assembly.count(oldest, 50)  # type: ignore[arg-type]
    assembly.count(moves, 101)  # type: ignore[arg-type]
    await passes(LOOK)
    for _ in range(3):
        assembly.pause()
        await passes(2 * LOOK)
        assembly.resume()
    await passes(LOOK / 2)
    assert (oldest.refused, moves.refused) == ([], [])
    await passes(LOOK)
    assert [len(each.refused) for each in (oldest, moves)] == [1, 1]


@run_still
async def test_an_oldest_whose_handler_takes_nothing_lets_the_others_pass() -> None:
    assembly = budget()
    oldest, waits = Request(awaits_peer=False), Request()
    assembly.count(oldest, 50)  # type: ignore[arg-type]
    assembly.count(waits, 90)  # type: ignore[arg-type]
    assert not assembly.lets(waits, 40)  # type: ignore[arg-type]
    await passes(LOOK)
    assert waits.went_on == 0
    await passes(LOOK)
    assert (waits.went_on, oldest.refused) == (1, [])
