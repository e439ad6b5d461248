"""Groups of several connections, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest
from structlog.testing import capture_logs

from pump_service.door.group import Refusal
from pump_service.door.server import Server
from pump_service.door.turn import Turn
from tests.support.doorkit import GROUP, Echo, Peer, answers, frame, prefixed, statuses
from tests.unit.pump_service.door.test_protocol import run

UNKNOWN = grpc.StatusCode.UNKNOWN


async def peers_of(count: int, *, answering: bool = True) -> tuple[Echo, list[Peer]]:
    """Connections of one server, each of which has brought a group before."""
    server, echo = Server(), Echo()
    echo.register(server)
    peers = [Peer(server).greet() for _ in range(count)]
    for peer in peers:
        peer.send(peer.call(GROUP, b"first")[1])
        assert answers(await peer.settle())
    echo.groups.clear()
    echo.answer_groups = answering
    return echo, peers


@run
async def test_what_all_ready_connections_bring_is_one_group_and_each_gets_its_own_answers() -> None:
    echo, peers = await peers_of(3)
    sent = []
    for number, peer in enumerate(peers):
        calls = [peer.call(GROUP, b"%d of %d" % (n, number)) for n in range(number + 1)]
        peer.send(b"".join(data for _, data in calls))
        sent.append([stream_id for stream_id, _ in calls])
    assert not echo.groups
    await asyncio.sleep(0)
    ((requests, _),) = echo.groups
    assert requests == [b"0 of 0", b"0 of 1", b"1 of 1", b"0 of 2", b"1 of 2", b"2 of 2"]
    for number, peer in enumerate(peers):
        assert answers(await peer.settle()) == {
            stream_id: (prefixed(b"%d of %d" % (n, number)), {"grpc-status": "0"})
            for n, stream_id in enumerate(sent[number])
        }
        assert peer.connection.idle


@run
async def test_a_connection_that_is_gone_takes_its_calls_along_and_no_others_answers() -> None:
    echo, (gone, going, stays) = await peers_of(3, answering=False)
    for peer, message in ((gone, b"gone"), (going, b"going"), (stays, b"stays")):
        stream_id, data = peer.call(GROUP, message)
        peer.send(data)
    gone.wire.protocol.connection_lost(None)
    await asyncio.sleep(0)
    ((requests, answer),) = echo.groups
    assert requests == [b"going", b"stays"]
    going.wire.protocol.connection_lost(None)
    refusal = Refusal(UNKNOWN, "no")
    answer([b"done", refusal])
    assert statuses(await stays.settle()) == {stream_id: (2, "no")}
    with pytest.raises(ValueError, match="twice"):
        answer([b"done", refusal])
    assert gone.server.feeders == 1


@run
async def test_calls_that_were_reset_or_ran_out_of_time_before_they_were_handed_over_get_no_second_answer() -> None:
    echo, (one, two) = await peers_of(2, answering=False)
    reset, data = one.call(GROUP, b"reset")
    kept, more = one.call(GROUP, b"kept")
    one.send(data + more)
    late, data = two.call(GROUP, b"late", ("grpc-timeout", "1m"))
    two.send(data)
    one.send(frame(3, 0, reset, b"\0\0\0\x08"))
    await asyncio.sleep(0)
    ((requests, answer),) = echo.groups
    assert requests == [b"reset", b"kept", b"late"]
    await asyncio.sleep(0.3)
    assert statuses(two.frames())[late][0] == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    answer([b"x"] * 3)
    assert set(answers(await one.settle())) == {kept}
    assert not answers(await two.settle())


@run
async def test_a_handler_that_fails_refuses_the_calls_of_all() -> None:
    server = Server()
    server.add_group_method(GROUP, lambda requests, answer: 1 / 0)  # type: ignore[arg-type]
    peers = [Peer(server).greet() for _ in range(2)]
    with capture_logs() as logs:
        for peer in peers:
            peer.send(peer.call(GROUP, b"x")[1])
            await peer.settle()
        calls = []
        for peer in peers:
            stream_id, data = peer.call(GROUP, b"x")
            peer.send(data)
            calls.append(stream_id)
        for peer, stream_id in zip(peers, calls, strict=True):
            assert statuses(await peer.settle())[stream_id][0] == UNKNOWN.value[0]
    assert [entry["event"] for entry in logs] == ["call_failed"] * 3


@run
async def test_very_many_connections_do_not_wait_for_the_end_of_the_turn() -> None:
    echo, peers = await peers_of(40)
    peers[0].server.turn._answered_at.clear()  # who is back at once would be waited for
    for peer in peers:
        peer.connection.prompt = False
        peer.send(peer.call(GROUP, b"x")[1])
    assert [len(requests) for requests, _ in echo.groups] == [32]
    await asyncio.sleep(0)
    assert [len(requests) for requests, _ in echo.groups] == [32, 8]


class Waiting:
    """Connections on whose server time stands still unless it is moved; all have brought a group before."""

    def __init__(self, echo: Echo, peers: list[Peer]) -> None:
        self.echo, self.peers = echo, peers
        self.turn: Turn = peers[0].server.turn
        self.now = 1000.0
        self.turn._now = lambda: self.now
        self.turn._loop = self  # type: ignore[assignment]
        self.ticks: list[asyncio.Handle] = []
        for peer in peers:
            peer.connection.prompt = False

    @classmethod
    async def of(cls, count: int) -> Waiting:
        return cls(*await peers_of(count, answering=False))

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.Handle:
        assert delay == 0.002
        self.ticks.append(asyncio.Handle(callback, (), asyncio.get_running_loop()))
        return self.ticks[-1]

    def tick(self) -> None:
        """What the timers were to do."""
        ticks, self.ticks = self.ticks, []
        for handle in ticks:
            if not handle.cancelled():
                handle._run()

    @property
    def groups(self) -> list[int]:
        """How many calls each group with the handler has."""
        return [len(requests) for requests, _ in self.echo.groups]

    async def bring(self, number: int, calls: int = 1) -> None:
        """Calls of one connection, and the end of the loop's turn."""
        peer = self.peers[number]
        peer.send(b"".join(peer.call(GROUP, b"x")[1] for _ in range(calls)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def answer(self) -> None:
        """All that the handler has."""
        groups, self.echo.groups = self.echo.groups, []
        for requests, answer in groups:
            answer([b"y"] * len(requests))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def round(self, *numbers: int, takes: float) -> None:
        """What these connections bring so long after their last answers is answered."""
        self.now += takes
        for number in numbers:
            await self.bring(number)
        self.tick()
        await self.answer()


@run
async def test_small_groups_wait_for_the_answers_of_the_one_before_and_go_together() -> None:
    wait = await Waiting.of(3)
    await wait.bring(0)
    assert wait.groups == [1]
    await wait.bring(1)
    await wait.bring(2, 2)
    assert wait.groups == [1]
    await wait.answer()
    assert wait.groups == [3]
    await wait.answer()
    assert all(peer.connection.idle for peer in wait.peers)


@run
async def test_nobody_waits_for_a_handler_longer_than_a_tick() -> None:
    echo, peers = await peers_of(2, answering=False)
    for peer, groups in zip(peers, (1, 2), strict=True):
        peer.send(peer.call(GROUP, b"x")[1])
        async with asyncio.timeout(10):
            while len(echo.groups) < groups:
                await asyncio.sleep(0.0002)
    for requests, answer in echo.groups:
        answer([b"y"] * len(requests))
    assert all(peer.connection.idle for peer in peers)


@run
async def test_a_large_read_waits_for_nobody_and_neither_do_enough_calls() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    await wait.bring(1, 23)
    assert wait.groups == [1]
    await wait.bring(2, 24)
    assert wait.groups == [1, 47]
    await wait.answer()
    wait.now += 1
    await wait.bring(0)
    for number in range(3):
        await wait.bring(number, 21)
        assert wait.groups == [1]
    await wait.bring(3, 1)
    assert wait.groups == [1, 64]
    assert all(handle.cancelled() for handle in wait.ticks)


@run
async def test_behind_two_groups_nobody_waits() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    await wait.bring(1)
    wait.turn._hand_over()
    assert wait.groups == [1, 1]
    await wait.bring(2)
    assert wait.groups == [1, 1, 1]
    (_, answer), *_ = wait.echo.groups
    answer([b"y"])
    assert len(wait.turn._out) == 2


@run
async def test_a_group_that_is_out_for_long_is_waited_for_by_nobody() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    await wait.bring(1)
    wait.tick()
    assert wait.groups == [1, 1]
    await wait.bring(2)  # one group is out that has not been so for long
    assert wait.groups == [1, 1]
    wait.tick()
    _, answer = wait.echo.groups.pop()
    answer([b"y"])
    await wait.bring(2)  # the two others have been out for long
    assert wait.groups == [1, 1, 1]
    await wait.answer()
    assert not wait.turn._out


@run
async def test_the_first_that_waits_says_until_when() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    for number in range(1, 4):
        await wait.bring(number)
    assert len(wait.ticks) == 1
    wait.tick()
    assert wait.groups == [1, 3]
    await wait.answer()
    assert all(peer.connection.idle for peer in wait.peers)


@run
async def test_what_waits_when_the_server_ends_is_answered() -> None:
    wait = await Waiting.of(2)
    server = wait.peers[0].server
    await wait.bring(0)
    await wait.bring(1)
    stopping = asyncio.create_task(server.stop(30))
    await asyncio.sleep(0)
    wait.tick()
    await wait.answer()
    for peer in wait.peers:
        assert answers(await peer.settle())
        assert peer.wire.closing
        peer.wire.protocol.connection_lost(None)
    await stopping


@run
async def test_a_connection_that_was_back_at_once_is_waited_for_and_one_that_was_not_is_not() -> None:
    wait = await Waiting.of(2)
    await wait.round(0, 1, takes=1.0)  # known from now on
    await wait.round(0, 1, takes=1.0)  # not back at once
    assert not any(peer.connection.prompt for peer in wait.peers)
    await wait.bring(0)
    assert wait.groups == [1]
    await wait.bring(1)
    wait.tick()
    await wait.answer()
    await wait.round(0, 1, takes=0.0005)  # back at once
    assert all(peer.connection.prompt for peer in wait.peers)
    await wait.bring(0)
    assert wait.groups == []
    await wait.bring(1)
    assert wait.groups == [2]


@run
async def test_who_is_expected_and_does_not_come_is_waited_for_until_the_next_tick_and_not_again() -> None:
    wait = await Waiting.of(2)
    for _ in range(3):
        await wait.round(0, 1, takes=0.0005)
    await wait.bring(0)
    assert wait.groups == []
    wait.tick()
    assert wait.groups == [1]
    await wait.answer()
    wait.now += 0.002  # the other one is late
    await wait.bring(0)
    assert wait.groups == [1]
    await wait.answer()
    await wait.round(1, takes=0.0)
    assert not wait.peers[1].connection.prompt
    assert not wait.turn._expected.keys() & {wait.peers[1].connection}


@run
async def test_a_connection_with_open_calls_is_not_expected() -> None:
    wait = await Waiting.of(2)
    for _ in range(3):
        await wait.round(0, 1, takes=0.0005)
    for _ in range(2):
        await wait.bring(0)
        wait.tick()
    assert wait.groups == [1, 1]
    (_, first), (_, second) = wait.echo.groups
    wait.echo.groups.clear()
    first([b"y"])
    assert wait.peers[0].connection not in wait.turn._expected
    second([b"y"])
    assert wait.peers[0].connection in wait.turn._expected


@run
async def test_a_connection_whose_calls_wait_is_not_expected() -> None:
    wait = await Waiting.of(2)
    for _ in range(3):
        await wait.round(0, takes=0.0005)
    await wait.bring(0)
    peer = wait.peers[0]
    stream_id, data = peer.call(GROUP, None)
    message = prefixed(b"in pieces")
    peer.send(data + frame(0, 0, stream_id, message[:7]) + frame(0, 1, stream_id, message[7:]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wait.groups == [1]
    assert peer.connection.prompt
    await wait.answer()
    assert wait.groups == [1]
    assert wait.echo.groups[0][0] == [b"in pieces"]


@run
async def test_a_connection_that_ends_is_expected_no_more() -> None:
    wait = await Waiting.of(2)
    for _ in range(3):
        await wait.round(0, 1, takes=0.0005)
    assert len(wait.turn._expected) == len(wait.turn._answered_at) == 2
    await wait.bring(0)
    assert wait.groups == []
    wait.peers[1].wire.protocol.connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wait.groups == [1]
    await wait.bring(0)  # its own calls are open
    wait.peers[0].wire.protocol.connection_lost(None)
    await wait.answer()
    assert not wait.turn._expected
    assert not wait.turn._answered_at


@run
async def test_answers_leave_in_one_write_with_the_answer_not_a_turn_of_the_loop_later() -> None:
    echo, peers = await peers_of(2, answering=False)
    for peer in peers:
        peer.send(b"".join(peer.call(GROUP, b"x")[1] for _ in range(3)))
    await asyncio.sleep(0)
    ((requests, answer),) = echo.groups
    writes: list[bytes] = []
    for peer in peers:
        peer.wire.write = writes.append  # type: ignore[method-assign]
    answer([b"y"] * len(requests))
    assert len(writes) == 2
    assert [data.count(prefixed(b"y")) for data in writes] == [3, 3]
    await asyncio.sleep(0)
    assert len(writes) == 2


@run
async def test_answers_of_a_handler_that_answers_at_once_leave_in_one_write_with_what_else_the_read_brings() -> None:
    peer = Peer().greet()
    peer.send(peer.call(GROUP, b"first")[1])
    await peer.settle()
    writes: list[bytes] = []
    peer.wire.write = writes.append  # type: ignore[method-assign]
    peer.send(peer.call(GROUP, b"x")[1] + frame(6, 0, 0, b"12345678"))
    (data,) = writes
    assert prefixed(b"x") in data
    assert frame(6, 1, 0, b"12345678") in data
