"""Groups of several connections in one turn of the loop."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from pump_service.door.group import Refusal
from pump_service.door.server import Server
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
    server.add_group_method(GROUP, lambda requests, answer: 1 / 0)  # type: ignore[arg-type,return-value]
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
