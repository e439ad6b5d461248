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

from pump_service.door import frames as f
from pump_service.door.limits import Limits
from pump_service.door.server import Server
from tests.support.doorkit import BOTH, GROUP, UNARY, UP, Echo, Peer, frame, prefixed
from tests.unit.pump_service.door.test_turn import StillLoop, still

pytestmark = pytest.mark.row("P15", "W1")
KIB, MIB = 1 << 10, 1 << 20
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


def later(server: Server) -> None:
    """So long that the oldest should have moved meanwhile."""
    server.assembly._since -= LIMITS.stalled_s + 1
    server.assembly.expire(asyncio.get_running_loop().time())


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
        assert not server.assembly._calls and not server.assembly._waiting and not server.assembly._coming_bytes

    asyncio.run(asyncio.wait_for(test(), 60))


@run
async def test_the_oldest_completes_while_all_others_wait() -> None:
    server = serve()
    sender = Sender(server)
    first, *others = [sender.open(bytes(MIB)) for _ in range(24)]
    for n in others:
        sender.send(n, 8 * KIB)  # what may still come of them is above the bound already
    for _ in range(30):
        for n in others:
            sender.send(n)
    beside = server.assembly.held - 8 * KIB - 30 * 16 * KIB
    assert beside == 22 * LIMITS.stream_window
    assert not any(sender.send(n) for n in others[1:])  # the first that came is the oldest
    while others[0] in sender.unsent:
        assert sender.send(others[0])
    assert server.assembly.held == beside
    assert sum(sender.send(n) for n in others[1:]) > 0  # the next
    sender.send(first)
    await finish(server, [sender])
    assert {code for code, _ in sender.status.values()} == {0}


@run
async def test_an_oldest_that_stands_still_is_not_waited_for_and_completes_later() -> None:
    server = serve()
    sender, others = Sender(server), Sender(server)
    still = sender.open(bytes(2 * MIB))
    for _ in range(100):
        sender.send(still)
        await asyncio.sleep(0)
        if len(sender.unsent[still]) < MIB:
            break
    for _ in range(24):
        others.open(bytes(MIB))
    while await others.step():
        pass
    assert others.unsent  # they wait for it
    while others.unsent:
        if not await others.step():
            later(server)
    await finish(server, [others])
    assert {code for code, _ in others.status.values()} == {0}
    assert not sender.status
    await finish(server, [sender])
    assert sender.status == {still: (0, "")}


@run
async def test_an_oldest_that_the_server_itself_does_not_read_keeps_its_turn() -> None:
    server = serve()
    sender, others = Sender(server), Sender(server)
    still = sender.open(bytes(2 * MIB))
    sender.send(still)
    for _ in range(24):
        others.open(bytes(MIB))
    while await others.step():
        pass
    server.assembly.stopped()  # as `pause_reading` says, but for the transports
    later(server)
    assert not sum([await others.step() for _ in range(5)])
    server.assembly.resumed()
    later(server)
    assert sum([await others.step() for _ in range(5)])
    await finish(server, [sender, others])
    assert {code for s in (sender, others) for code, _ in s.status.values()} == {0}


@run
async def test_one_that_holds_more_than_may_be_held_beside_the_oldest_and_stands_still_is_ended() -> None:
    server = serve(Limits(
        message=4 * MIB, stream_window=64 * KIB, connection_window=MIB, assembling=MIB, assembling_most=2 * MIB,
        stalled_s=0.05,
    ))  # fmt: skip
    sender, others = Sender(server), Sender(server)
    still = sender.open(bytes(4 * MIB - 10))
    while server.assembly.held < 3 * MIB:
        sender.send(still)
    for _ in range(8):
        others.open(bytes(MIB))
    while others.unsent:
        if not await others.step():
            await asyncio.sleep(0.005)
    sender.hear()
    code, text = sender.status[still]
    assert code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert "pump.incomplete_bytes" in text
    await finish(server, [others])
    assert {code for code, _ in others.status.values()} == {0}


@run
async def test_over_the_hard_bound_those_that_stand_still_go_before_one_that_brings_something() -> None:
    limits = Limits(
        message=4 * MIB, stream_window=64 * KIB, connection_window=4 * MIB, assembling=64 * KIB,
        assembling_most=640 * KIB, stalled_s=0.05,
    )  # fmt: skip
    server = serve(limits)
    sender, other = Sender(server), Sender(server)
    dead = [sender.open(bytes(200 * KIB)) for _ in range(8)]
    for n in dead:
        for _ in range(4):
            sender.send(n)
    assert server.assembly.held == 8 * 64 * KIB
    alive = other.open(bytes(MIB), UNARY)
    while alive in other.unsent:
        if not await other.step():
            await asyncio.sleep(0.005)
        assert server.assembly.held <= limits.assembling_most + limits.message + limits.stream_window
    late = [other.open(bytes(60 * KIB), whole=False) for _ in range(9)]
    for n in late:
        while n in other.unsent and other.send(n):
            pass
    await finish(server, [other])
    sender.hear()
    assert other.status[alive][0] == 0
    assert set(other.status) == {alive}  # nobody who brought something was refused
    assert {code for code, _ in sender.status.values()} == {grpc.StatusCode.UNAVAILABLE.value[0]}
    assert 0 < len(sender.status) <= len(dead)


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


@run
async def test_a_stream_that_has_ended_while_it_waited_is_in_nobodys_way() -> None:
    class Slow(Echo):
        async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
            async for _ in requests:
                pass
            await asyncio.Event().wait()
            return b""

    server = serve(echo=Slow())
    sender = Sender(server)
    for _ in range(24):
        sender.open(bytes(MIB))
    stream = sender.open(b"", UP, whole=False)
    sender.unsent[stream] = prefixed(bytes(20 * KIB)) * 3
    for _ in range(30):
        await sender.step()
    assert len(server.assembly._waiting) == 24
    call = sender.peer.connection.streams[stream].call
    assert call in server.assembly._waiting
    sender.peer.send(frame(1, 5, stream, sender.peer.encoder.encode([("x-end", "1")])))  # trailers
    assert call not in server.assembly._waiting


@run
async def test_a_stream_that_has_ended_asks_for_nothing_while_its_handler_still_takes_from_it() -> None:
    class Slow(Echo):
        async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
            await self.begins.wait()  # type: ignore[attr-defined]
            taken = [x async for x in requests]
            await asyncio.Event().wait()
            return b"|".join(taken)

    echo = Slow()
    echo.begins = asyncio.Event()  # type: ignore[attr-defined]
    server = serve(echo=echo)
    sender = Sender(server)
    for _ in range(24):
        sender.open(bytes(MIB))
    stream = sender.open(b"", UP, whole=False)
    sender.unsent[stream] = prefixed(bytes(20 * KIB)) * 3
    for _ in range(30):
        await sender.step()
    sender.peer.send(frame(0, 1, stream))
    echo.begins.set()  # type: ignore[attr-defined]
    await sender.peer.settle()
    call = sender.peer.connection.streams[stream].call
    assert call not in server.assembly._waiting
    assert call not in server.assembly._calls


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
    for _ in range(20):
        others.open(bytes(MIB))
    for _ in range(10):
        await others.step()
    assert server.assembly._waiting
    idle = 0
    while sender.unsent or others.unsent:
        idle = 0 if await sender.step() + await others.step() else idle + 1
        assert idle < 100, "nobody may send"  # while a step is inflated
    await passes(0.1, sender, others)
    assert len(sender.status) + len(others.status) == 21
    assert codes(sender, others) == {0}


@run_still
async def test_an_oldest_that_the_server_inflates_moves_though_it_does_not_grow() -> None:
    server = serve(limits_of(MIB, 2 * MIB, 8 * MIB))
    sender, others = Sender(server), Sender(server)
    large = sender.open(b"", UNARY, ("grpc-encoding", "gzip"))
    sender.unsent[large] = packed(random.Random(1).randbytes(6 * MIB))
    while large in sender.unsent:
        sender.send(large)
    call = sender.peer.connection.streams[large].call
    for _ in range(20):
        others.open(bytes(MIB))
    while sum([others.send(n) for n in others.unsent]):
        pass
    assert call is server.assembly._favoured
    assert server.assembly._waiting
    began = still().now
    while call is server.assembly._favoured and not sender.status:
        still().now += 0.4  # the loop has other work between two steps
        await asyncio.sleep(0)
        sender.hear()
    assert still().now - began > 1.5
    while not sender.status:  # the answer goes out piece by piece
        await passes(0.1, sender)
        assert still().now - began < 60
    assert sender.status == {large: (0, "")}


@run_still
async def test_requests_that_stand_still_without_asking_for_more_lock_nobody_out() -> None:
    server = serve(limits_of(512 * KIB, MIB))
    dead, others = Sender(server), Sender(server)
    while server.assembly._beside() + 15 * KIB <= MIB:
        dead.send(dead.open(bytes(200 * KIB)), 15 * KIB)  # less than what is worth credit
    assert not server.assembly._waiting
    early = others.open(bytes(60 * KIB))
    while early in others.unsent:
        others.send(early)
    assert others.status[early][0] == grpc.StatusCode.UNAVAILABLE.value[0]
    assert not dead.status
    await passes(1.5)
    for _ in range(3):
        n = others.open(bytes(60 * KIB))
        while n in others.unsent:
            assert others.send(n)
        await passes(0.1, others, dead)
        assert others.status[n] == (0, "")
    assert codes(dead) == {grpc.StatusCode.UNAVAILABLE.value[0]}
    assert len(dead.status) < 10


async def waited(sender: Sender, live: Sequence[int], trickles: Callable[[], None] = lambda: None) -> float:
    """Seconds until these are answered."""
    began = still().now
    while not sender.status.keys() >= set(live):
        if not await sender.step():
            trickles()
            await passes(0.1, sender)
        assert still().now - began < 60
    assert codes(sender) == {0}
    return still().now - began


@run_still
async def test_those_that_stand_still_together_are_waited_for_once() -> None:
    server = serve(limits_of(64 * KIB, 16 * MIB))
    dead, others = Sender(server), Sender(server)
    live = []
    for _ in range(8):
        dead.send(dead.open(bytes(200 * KIB)), 8 * KIB)
        live.append(others.open(bytes(MIB)))
        others.send(live[-1])
    assert await waited(others, live) < 2.0


@run_still
async def test_a_byte_now_and_then_does_not_keep_the_favour() -> None:
    server = serve(limits_of(MIB, 8 * MIB))
    tricklers, others = Sender(server), Sender(server)
    streams = [tricklers.open(bytes(3 * MIB)) for _ in range(20)]

    def trickle() -> None:
        for n in streams:
            tricklers.send(n, 1)

    trickle()
    for _ in range(2):
        assert await waited(others, [others.open(bytes(MIB))], trickle) < 3.0


@run_still
async def test_a_request_whose_window_covers_what_is_missing_needs_no_credit_and_does_not_wait() -> None:
    server = serve(limits_of(MIB, 8 * MIB))
    sender, others = Sender(server), Sender(server)
    for _ in range(24):
        others.open(bytes(MIB))
    for path in (GROUP, UNARY):
        n = sender.open(bytes(60 * KIB), path)
        sender.send(n)
        assert sender.send(n)
        assert sender.windows[n] == 32 * KIB  # while there was room
        while await others.step():
            pass
        m = sender.open(bytes(60 * KIB), path)
        sender.send(m)
        assert sender.send(m)
        waiting = server.assembly._waiting
        assert len(waiting) >= 23
        assert not {sender.peer.connection.streams[each].call for each in (n, m)} & set(waiting)
        while sender.unsent:
            sender.send(n) if n in sender.unsent else sender.send(m)
        await passes(0.1, sender)
    assert list(sender.status.values()) == [(0, "")] * 4


async def behind_an_oldest_that_sends_nothing_more() -> tuple[Server, Any]:
    """Large requests that wait, and the call of the oldest."""
    server = serve(limits_of(MIB, 8 * MIB))
    sender, others = Sender(server), Sender(server)
    first = sender.open(bytes(2 * MIB))
    sender.send(first)
    for _ in range(24):
        others.open(bytes(MIB))
    while await others.step():
        pass
    return server, sender.peer.connection.streams[first].call


@run_still
async def test_time_in_which_the_server_did_not_read_is_nobodys() -> None:
    server, call = await behind_an_oldest_that_sends_nothing_more()
    assert server.assembly._waiting
    server.pause_reading()
    await passes(0.9)
    server.resume_reading()
    await passes(0.5)
    assert call is server.assembly._favoured
    await passes(0.6)
    assert call is not server.assembly._favoured


@run_still
async def test_a_call_that_has_ended_holds_nothing_though_its_handler_lingers() -> None:
    class Linger(Echo):
        async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await self.go.wait()  # type: ignore[attr-defined]
            yield b""

    echo = Linger()
    echo.go = asyncio.Event()  # type: ignore[attr-defined]
    server = serve(echo=echo)
    sender = Sender(server)
    stream = sender.open(bytes(2 * MIB), BOTH, ("grpc-timeout", "300m"))
    await sender.step()
    for _ in range(20):
        sender.send(stream)
    call = sender.peer.connection.streams[stream].call
    assert call is not None
    assert call._assembler.size == server.assembly.held > 256 * KIB
    await passes(0.5, sender)
    assert codes(sender) == {grpc.StatusCode.DEADLINE_EXCEEDED.value[0]}
    assert (call._assembler.size, server.assembly.held) == (0, 0)
    echo.go.set()  # type: ignore[attr-defined]
    await passes(0.1)


@run_still
async def test_what_follows_a_message_that_is_being_inflated_is_not_taken_from_what_others_may_bring() -> None:
    server = serve(limits_of(MIB, 8 * MIB))
    sender, others = Sender(server), Sender(server)
    others.send(others.open(bytes(MIB)))
    large = sender.open(b"", UNARY, ("grpc-encoding", "gzip"))
    sender.unsent[large] = packed(bytes(3 * MIB)) + bytes(10 * KIB)
    while large in sender.unsent:
        assert sender.send(large)
    call = sender.peer.connection.streams[large].call
    assert call is not None and call._assembler.inflating
    assert server.assembly._coming[call] == 0
    assert server.assembly._coming_bytes == sum(server.assembly._coming.values())


@run_still
async def test_short_pauses_of_the_server_do_not_save_an_oldest_that_sends_nothing() -> None:
    server, call = await behind_an_oldest_that_sends_nothing_more()
    for _ in range(4):
        assert call is server.assembly._favoured
        await passes(0.48 * server.limits.stalled_s)
        server.pause_reading()
        await passes(0.02 * server.limits.stalled_s)
        server.resume_reading()
        if call is not server.assembly._favoured:
            break
    assert call is not server.assembly._favoured


@run_still
async def test_who_stood_still_while_the_server_did_not_read_is_not_ended_for_it() -> None:
    server = serve(limits_of(512 * KIB, MIB))
    sender, other = Sender(server), Sender(server)
    while server.assembly._beside() + 15 * KIB <= MIB:
        sender.send(sender.open(bytes(30 * KIB)), 15 * KIB)
    server.pause_reading()
    await passes(5 * server.limits.stalled_s)
    server.resume_reading()
    late = other.open(bytes(60 * KIB))
    while late in other.unsent:
        other.send(late)
    await passes(0.01, sender, other)
    assert not sender.status
    assert other.status
