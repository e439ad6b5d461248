"""Groups of several connections, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pump_service.door.group import Answer, Refusal, Requests
from pump_service.door.server import Server
from pump_service.door.turn import Turn
from tests.support.doorkit import (
    GROUP,
    TIMEOUT_LITERAL,
    Echo,
    Peer,
    answers,
    frame,
    prefixed,
    statuses,
    still,
    stilled,
)
from tests.unit.pump_service.door.test_protocol import run

UNKNOWN = grpc.StatusCode.UNKNOWN


async def peers_of(count: int, *, answering: bool = True, echo: Echo | None = None) -> tuple[Echo, list[Peer]]:
    """Connections of one server, each of which has brought a group before."""
    server, echo = Server(), echo or Echo()
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
        assert peer.connection.http2.streams.idle


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
    for peer in peers:
        peer.send(peer.call(GROUP, b"x")[1])
    assert [len(requests) for requests, _ in echo.groups] == [32]
    await asyncio.sleep(0)
    assert [len(requests) for requests, _ in echo.groups] == [32, 8]


class Waiting:
    """Connections of one server, on a loop whose time stands still; all have brought a group before."""

    def __init__(self, echo: Echo, peers: list[Peer]) -> None:
        self.echo, self.peers = echo, peers
        self.turn: Turn = peers[0].server.turn

    @classmethod
    async def of(cls, count: int) -> Waiting:
        return cls(*await peers_of(count, answering=False))

    async def tick(self) -> None:
        """As long as a group may wait."""
        still().now += 0.002
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def nothing_is_out(self) -> None:
        """A group goes at once, and behind it one waits."""
        assert self.groups == []
        await self.bring(0)
        assert self.groups == [1]
        await self.bring(1)
        assert self.groups == [1]

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


@stilled
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
    assert all(peer.connection.http2.streams.idle for peer in wait.peers)


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
    assert all(peer.connection.http2.streams.idle for peer in peers)


@stilled
async def test_a_large_read_waits_for_nobody_and_neither_do_enough_calls() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    await wait.bring(1, 23)
    assert wait.groups == [1]
    await wait.bring(2, 24)
    assert wait.groups == [1, 47]
    await wait.answer()
    await wait.bring(0)
    for number in range(3):
        await wait.bring(number, 21)
        assert wait.groups == [1]
    await wait.bring(3, 1)
    assert wait.groups == [1, 64]
    await wait.tick()
    assert wait.groups == [1, 64]


@stilled
async def test_behind_two_groups_nobody_waits() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    await wait.bring(1)
    wait.turn.lost()
    assert wait.groups == [1, 1]
    await wait.bring(2)
    assert wait.groups == [1, 1, 1]
    _, answer = wait.echo.groups.pop(0)
    answer([b"y"])
    await wait.bring(3)
    assert wait.groups == [1, 1, 1]


@stilled
async def test_a_group_that_is_out_for_long_is_waited_for_by_nobody() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    await wait.bring(1)
    await wait.tick()
    assert wait.groups == [1, 1]
    await wait.bring(2)  # one group is out that has not been so for long
    assert wait.groups == [1, 1]
    await wait.tick()
    _, answer = wait.echo.groups.pop()
    answer([b"y"])
    await wait.bring(2)  # the two others have been out for long
    assert wait.groups == [1, 1, 1]
    await wait.answer()
    await wait.nothing_is_out()


@stilled
async def test_the_first_that_waits_says_until_when() -> None:
    wait = await Waiting.of(4)
    await wait.bring(0)
    for number in range(1, 4):
        await wait.bring(number)
        still().now += 0.0006
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wait.groups == [1]
    still().now += 0.0003
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wait.groups == [1, 3]
    await wait.answer()
    assert all(peer.connection.http2.streams.idle for peer in wait.peers)
    # What was handed over before takes its time along.
    await wait.bring(0)
    await wait.bring(1)
    still().now += 0.001
    wait.turn.lost()
    _, answer = wait.echo.groups.pop(0)
    answer([b"y"])
    await wait.bring(2)
    still().now += 0.0015
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wait.groups == [1]
    await wait.tick()
    assert wait.groups == [1, 1]
    await wait.answer()


@stilled
async def test_what_waits_when_the_server_ends_is_answered() -> None:
    wait = await Waiting.of(2)
    server = wait.peers[0].server
    await wait.bring(0)
    await wait.bring(1)
    stopping = asyncio.create_task(server.stop(30))
    await asyncio.sleep(0)
    await wait.tick()
    await wait.answer()
    for peer in wait.peers:
        assert answers(await peer.settle())
        assert peer.wire.closing
        peer.wire.protocol.connection_lost(None)
    await stopping


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


# ---- runs of several connections -------------------------------------------------------------------------------------


class Several:
    """Connections of one server that bring runs of calls."""

    def __init__(self, echo: Echo, peers: list[Peer]) -> None:
        self.echo, self.peers, self.loop = echo, peers, still()
        self.server = peers[0].server
        self.deadlines = self.server.deadlines

    @classmethod
    async def of(cls, count: int, echo: Echo | None = None) -> Several:
        self = cls(*await peers_of(count, echo=echo))
        for peer in self.peers:  # its block is expected from now on
            peer.send(peer.call(GROUP, b"second")[1])
            await self.turns(0.01)
            assert answers(peer.frames())
        self.echo.groups.clear()
        self.echo.answer_groups = False
        return self

    async def turns(self, seconds: float = 0.0) -> None:
        """Some turns of the loop; time goes on by its steps of 5 ms."""
        until = self.loop.now + seconds
        while True:
            for _ in range(4):
                await asyncio.sleep(0)
            if self.loop.now >= until - 1e-9:
                return
            self.loop.now += min(0.005, until - self.loop.now)

    def read(self, number: int, *timeouts: str | None, message: bytes = b"x") -> tuple[list[int], bytes]:
        """Stream ids and bytes of calls, all of one message."""
        peer, ids, sent = self.peers[number], [], b""
        for timeout in timeouts:
            stream_id, peer.next_id = peer.next_id, peer.next_id + 2
            literal = b"" if timeout is None else TIMEOUT_LITERAL + bytes([len(timeout)]) + timeout.encode()
            sent += frame(1, 4, stream_id, peer.block(GROUP) + literal) + frame(0, 1, stream_id, prefixed(message))
            ids.append(stream_id)
        return ids, sent

    def bring(self, number: int, *timeouts: str | None, message: bytes = b"x") -> list[int]:
        """One read."""
        ids, sent = self.read(number, *timeouts, message=message)
        self.peers[number].send(sent)
        return ids

    def handed(self) -> tuple[list[bytes], Callable[[list[Answer]], None]]:
        """The one group that the handler has."""
        ((requests, answer),) = self.echo.groups
        self.echo.groups.clear()
        return requests, answer

    def ended(self) -> list[dict[int, int]]:
        """Of each connection, the status of the calls that have ended since the last look."""
        return [{n: code for n, (code, _) in statuses(peer.frames()).items()} for peer in self.peers]


@stilled
async def test_each_call_of_a_group_of_several_connections_ends_at_its_own_deadline() -> None:
    several = await Several.of(3)
    first = several.bring(0, None, "100m")
    second = several.bring(1, "50m", "1H", "50m", "90m")
    third = several.bring(2, None)
    await several.turns()
    requests, answer = several.handed()
    assert len(requests) == 7
    assert len(several.deadlines) == 1  # of all of them
    await several.turns(0.045)
    assert several.ended() == [{}, {}, {}]
    await several.turns(0.03)
    assert several.ended() == [{}, {second[0]: 4, second[2]: 4}, {}]
    await several.turns(0.01)
    assert several.ended() == [{}, {}, {}]
    await several.turns(0.04)
    assert several.ended() == [{first[1]: 4}, {second[3]: 4}, {}]
    assert len(several.deadlines) == 1  # it looks again when it is time
    answer([b"done"] * 7)
    assert several.ended() == [{first[0]: 0}, {second[1]: 0}, {third[0]: 0}]
    assert not len(several.deadlines)
    assert all(peer.connection.http2.streams.idle for peer in several.peers)


@stilled
async def test_deadlines_of_one_group_stay_when_another_is_answered() -> None:
    several = await Several.of(2)
    several.bring(0, "60m"), several.bring(1, "50m")
    await several.turns()
    _, answer_first = several.handed()
    late, early = several.bring(0, "100m", None), several.bring(1, None, "60m", None)
    several.server.turn.lost()
    _, answer_second = several.handed()
    assert len(several.deadlines) == 2
    await several.turns(0.01)
    answer_first([b"done"] * 2)
    assert [len(each) for each in several.ended()] == [1, 1]
    assert len(several.deadlines) == 1
    await several.turns(0.08)
    assert several.ended() == [{}, {early[1]: 4}]
    assert len(several.deadlines) == 1
    answer_second([b"done"] * 5)
    assert several.ended() == [dict.fromkeys(late, 0), {early[0]: 0, early[2]: 0}]
    assert not len(several.deadlines)
    await several.turns(0.2)
    assert several.ended() == [{}, {}]


@pytest.mark.parametrize("timeouts", [("50m", "10S"), ("10S", "50m"), ("50m", None), (None, "50m")])
@pytest.mark.parametrize("how", ["two reads", "one read", "one by one", "one by one first"])
def test_the_earliest_of_several_deadlines_is_met_in_whatever_order_they_come(
    timeouts: tuple[str | None, str | None], how: str
) -> None:
    @stilled
    async def check() -> None:
        several = await Several.of(2)
        others = several.bring(1, None, "9S")
        if how == "two reads":
            ids = several.bring(0, timeouts[0]) + several.bring(0, timeouts[1])
        else:
            # Two runs of one read, or a run and a call that comes with other headers than before.
            (one,), first = several.read(0, timeouts[0])
            (two,), second = several.read(0, timeouts[1])
            ids = [one, two]
            ping = frame(6, 0, 0, b"12345678")
            other = several.peers[0].block(GROUP) + b"\x00\x03x-a\x01b"
            plain = [
                frame(1, 4, n, other + (b"" if t is None else TIMEOUT_LITERAL + bytes([len(t)]) + t.encode()))
                + frame(0, 1, n, prefixed(b"x"))
                for n, t in zip(ids, timeouts, strict=True)
            ]
            several.peers[0].send(
                first + ping + second if how == "one read" else
                first + plain[1] if how == "one by one" else plain[0] + second
            )  # fmt: skip
        await several.turns()
        _, answer = several.handed()
        assert len(several.deadlines) == 1
        several.ended()
        await several.turns(0.045)
        assert several.ended() == [{}, {}]
        await several.turns(0.05)
        gone = timeouts.index("50m")
        assert several.ended() == [{ids[gone]: 4}, {}]
        answer([b"done"] * 4)
        assert several.ended() == [{ids[1 - gone]: 0}, dict.fromkeys(others, 0)]
        assert not len(several.deadlines)

    check()


@stilled
async def test_time_runs_from_when_a_read_came_and_not_from_when_it_was_handed_over() -> None:
    several = await Several.of(2)
    several.bring(1, None)
    await several.turns()
    _, answer = several.handed()
    ids = several.bring(0, "100m")  # waits for the group before
    await several.turns()
    several.loop.now += 0.1  # as where the process stood still
    await several.turns()
    _, later = several.handed()
    await several.turns(0.04)
    assert several.ended()[0] == {ids[0]: 4}
    answer([b"done"]), later([b"done"])


@stilled
async def test_deadlines_of_connections_that_are_gone_are_watched_no_longer_than_their_group() -> None:
    several = await Several.of(3)
    several.bring(0, "50m", "100m"), several.bring(1, "50m", "1H")
    stays = several.bring(2, "50m", "1H")
    await several.turns()
    _, answer = several.handed()
    several.peers[0].wire.protocol.connection_lost(None)
    await several.turns(0.08)
    several.peers[1].wire.protocol.connection_lost(None)
    assert several.ended() == [{}, {several.peers[1].next_id - 4: 4}, {stays[0]: 4}]
    await several.turns(0.08)
    assert len(several.deadlines) <= 2
    answer([b"done"] * 6)
    assert several.ended() == [{}, {}, {stays[1]: 0}]
    assert not len(several.deadlines)


@stilled
async def test_one_connection_alone_has_its_deadlines_watched_too() -> None:
    several = await Several.of(1)
    (peer,) = several.peers
    ids, data = several.read(0, "50m", None, "1H")
    peer.send(data)
    requests, answer = several.handed()
    assert len(requests) == 3
    with pytest.raises(ValueError, match="2 answers to 3 calls"):
        answer([b"done"] * 2)
    assert len(several.deadlines) == 1
    await several.turns(0.1)
    assert several.ended() == [{ids[0]: 4}]
    answer([b"done"] * 3)
    assert several.ended() == [{ids[1]: 0, ids[2]: 0}]
    assert not len(several.deadlines)
    for answers_again in ([b"done"] * 3, [b"a", b"b", b"c"]):
        with pytest.raises(ValueError, match="twice"):
            answer(answers_again)  # type: ignore[arg-type]
    assert several.ended() == [{}]
    ids, data = several.read(0, "50m")
    peer.send(data)
    _, answer = several.handed()
    answer([b"in time"])
    assert not len(several.deadlines)


@stilled
async def test_different_answers_go_each_to_its_own_call() -> None:
    several = await Several.of(3)
    ids = [several.bring(n, *[None] * count) for n, count in ((0, 2), (1, 9), (2, 3))]
    await several.turns()
    _, answer = several.handed()
    given: list[Answer] = [b"%d" % n for n in range(14)]
    given[1] = Refusal(UNKNOWN, "no")
    given[2:11] = [b"same"] * 9  # of one connection all
    answer(given)
    found = [answers(peer.frames()) for peer in several.peers]
    assert [list(each) for each in found] == ids
    assert found[0][ids[0][0]] == (prefixed(b"0"), {"grpc-status": "0"})
    assert found[0][ids[0][1]][1]["grpc-message"] == "no"
    assert [data for data, _ in found[1].values()] == [prefixed(b"same")] * 9
    assert [data for data, _ in found[2].values()] == [prefixed(b"%d" % n) for n in (11, 12, 13)]
    assert all(peer.connection.http2.streams.idle for peer in several.peers)


@stilled
async def test_the_same_answer_goes_to_each_as_its_windows_and_its_state_allow() -> None:
    several = await Several.of(6)
    early, small, none, closed, reset, plain = several.peers
    for peer in (early, small):
        peer.send(frame(4, 0, 0, b"\0\4\0\0\0\x08"))  # of new streams: less than the answer has
    none.connection.http2.output.window = 20  # of the connection: less than both answers have
    ids = [several.bring(n, None, None) for n in range(6)]
    early.send(frame(8, 0, ids[0][1], b"\0\0\0\x20"))
    reset.send(frame(3, 0, ids[4][0], b"\0\0\0\x08"))
    closed.connection.close()
    several.ended()
    await several.turns()
    _, answer = several.handed()
    answer([b"ten bytes."] * 10)
    await several.turns()
    found = several.ended()
    assert found == [{ids[0][1]: 0}, {}, {ids[2][0]: 0}, {}, {ids[4][1]: 0}, dict.fromkeys(ids[5], 0)]
    for peer, stream_ids in ((early, ids[0][:1]), (small, ids[1])):
        for stream_id in stream_ids:
            peer.send(frame(8, 0, stream_id, b"\0\0\0\x20"))
    none.send(frame(8, 0, 0, b"\0\0\0\x20"))
    await several.turns()
    assert several.ended()[:3] == [{ids[0][0]: 0}, dict.fromkeys(ids[1], 0), {ids[2][1]: 0}]
    assert not early.connection.http2.streams.early_credit
    assert all(peer.connection.http2.streams.idle for peer in (early, small, none, reset, plain))


@stilled
async def test_an_early_credit_that_no_answer_needed_is_forgotten_with_its_call() -> None:
    several = await Several.of(2)
    ids = several.bring(0, None, None), several.bring(1, None)
    several.peers[0].send(frame(8, 0, ids[0][0], b"\0\0\0\x20"))
    assert several.peers[0].connection.http2.streams.early_credit
    await several.turns()
    _, answer = several.handed()
    answer([b"done"] * 3)
    await several.turns()
    assert several.ended() == [dict.fromkeys(each, 0) for each in ids]
    assert not several.peers[0].connection.http2.streams.early_credit


@stilled
async def test_a_wrong_number_of_answers_is_an_error_and_the_right_one_is_taken_after_it_once() -> None:
    several = await Several.of(2)
    ids = several.bring(0, "1H", None), several.bring(1, "50m")
    await several.turns()
    _, answer = several.handed()
    for wrong in (0, 2, 4):
        with pytest.raises(ValueError, match=f"{wrong} answers to 3 calls"):
            answer([b"done"] * wrong)
    assert several.ended() == [{}, {}]
    assert len(several.deadlines) == 1
    waits = several.bring(0, None)
    await several.turns()
    assert not several.echo.groups, "the other is out"
    answer([b"done"] * 3)
    assert several.ended() == [dict.fromkeys(each, 0) for each in ids]
    assert not len(several.deadlines)
    await several.turns()
    _, answer_to_it = several.handed()
    answer_to_it([b"done"])
    assert several.ended() == [dict.fromkeys(waits, 0), {}]
    for count in (3, 0):
        with pytest.raises(ValueError, match="twice"):
            answer([b"done"] * count)
    assert several.ended() == [{}, {}]


@stilled
async def test_what_goes_wrong_with_one_connection_keeps_no_answer_from_the_others() -> None:
    several = await Several.of(3)
    ids = [several.bring(n, None) for n in range(3)]
    await several.turns()
    _, answer = several.handed()

    def broken(*_: object) -> None:
        raise RuntimeError

    with capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(several.peers[1].connection.http2.answers, "to_all", broken)
        answer([b"done"] * 3)
    assert several.ended() == [{ids[0][0]: 0}, {}, {ids[2][0]: 0}]
    assert [entry["event"] for entry in logs] == ["answer_failed"]
    (after,) = several.bring(1, None)
    await several.turns()
    _, answer = several.handed()
    answer([b"done"])
    assert several.ended() == [{}, {after: 0}, {}]


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_handler_that_fails_after_it_has_answered_has_answered(answers_first: bool) -> None:
    @stilled
    async def check() -> None:
        class Fails(Echo):
            def group(self, requests: Requests, answer: Callable[[Sequence[Answer]], None]) -> None:
                if self.answer_groups:
                    return super().group(requests, answer)
                answer([b"done"] * (len(requests) if answers_first else 1))
                raise RuntimeError

        several = await Several.of(2, Fails())
        ids = [several.bring(0, "50m", None), several.bring(1, "1H")]
        unhandled: list[object] = []
        several.loop.set_exception_handler(lambda _loop, context: unhandled.append(context))
        with capture_logs() as logs:
            await several.turns()
        assert not unhandled
        assert several.ended() == [dict.fromkeys(each, 0 if answers_first else 2) for each in ids]
        assert [entry["event"] for entry in logs] == ["call_failed"]
        assert not len(several.deadlines)

    check()


@stilled
async def test_a_deadline_is_met_whatever_becomes_of_that_of_another_connection_and_the_rest_is_answered() -> None:
    several = await Several.of(2)
    first = several.bring(0, "50m", "1H")
    second = several.bring(1, "50m")
    await several.turns()
    _, answer = several.handed()
    several_answers = several.peers[0].connection.http2.answers

    def fails(*_: Any) -> None:
        raise MemoryError

    with capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(several_answers, "_refuse", fails)
        await several.turns(0.1)
    assert [entry["event"] for entry in logs] == ["expiry_failed"]
    assert several.ended() == [{}, {second[0]: 4}]
    answer([b"y"] * 3)
    assert several.ended() == [{first[1]: 0}, {}]
    assert several.peers[0].connection.http2.streams.idle


@stilled
async def test_an_error_in_what_takes_runs_ends_that_connection_alone() -> None:
    several = await Several.of(2)
    _, data = several.read(0, None, None)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch, capture_logs() as logs:
        patch.setattr(several.server.runs, "take", broken)
        several.peers[0].send(data)
    assert [entry["event"] for entry in logs] == ["connection_failed", "connection_refused"]
    assert several.peers[0].wire.closing
    ids = several.bring(1, None)
    await several.turns()
    _, answer = several.handed()
    answer([b"done"])
    assert several.ended()[1] == {ids[0]: 0}
