"""Calls of several reads in common columns: what the handler gets of them, and what stays when they are gone."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import struct

import numpy as np
import pytest
from structlog.testing import capture_logs

from pump_service.door.group import Requests
from pump_service.door.http2.runs import Reading, Run, Runs
from pump_service.door.http2.table import Table
from pump_service.door.limits import Limits
from pump_service.door.routes import Group
from pump_service.door.server import Server
from tests.support.doorkit import GROUP, Echo, Peer, answers, frame, goaways, prefixed
from tests.unit.pump_service.door.test_lean import call, with_timeout
from tests.unit.pump_service.door.test_protocol import run

BLOCK = b"\x82\x86"
LIKE = np.frombuffer(
    b"".join(struct.pack(">II", len(n), len(v)) + n + v for n, v in ((b":method", b"GET"), (b":scheme", b"http"))),
    np.uint8,
)


def calls(first: int, *messages: bytes, timeouts: dict[int, bytes] | None = None) -> bytes:
    """A read: stream ids from ``first`` on."""
    found = timeouts or {}
    return b"".join(
        call(first + 2 * n, with_timeout(BLOCK, found[n]) if n in found else BLOCK, message)
        for n, message in enumerate(messages)
    )


def made(streams: int) -> Runs:
    return Runs(Limits(streams=streams, message=10_000))


def take(runs: Runs, data: bytes, *, at: int = 0, last: int = 0, room: int = 100) -> Reading:
    """Calls whose section is that of `BLOCK`, at 10 s."""
    return runs.take(data, at, Table(), LIKE, last=last, room=room, window=65_535, now=10.0)


def took(runs: Runs, data: bytes, *, at: int = 0, room: int = 100) -> Run:
    run = take(runs, data, at=at, room=room).run
    assert run is not None
    return run


def held_of(runs: Runs) -> list[int]:
    """Bytes of each read that is held."""
    return [len(run.chunk) for run in runs._runs]


def left(runs: Runs) -> int:
    """Bytes of reads that are held."""
    return sum(held_of(runs))


# ---- one read --------------------------------------------------------------------------------------------------------


def test_a_run_ends_where_something_else_comes() -> None:
    runs = made(100)
    before, other = b"what was before", frame(6, 0, 0, b"12345678")
    data = calls(3, b"one", b"", b"three")
    found = take(runs, before + data + other, at=len(before), last=1)
    run = found.run
    assert run is not None
    assert (run.stream_ids, found.end, found.taken) == ([3, 5, 7], len(before + data), 3 + 0 + 5 + 3 * 5)
    assert (run.message_bytes, run.soonest, run.chunk) == (8, -1, data)
    assert list(runs.requests([run])) == [b"one", b"", b"three"]


def test_where_there_is_no_call_there_is_no_run() -> None:
    runs = made(100)
    assert take(runs, frame(6, 0, 0, b"12345678") * 5).run is None
    assert take(runs, calls(1, b"!" * 10_001)).run is None
    assert take(runs, calls(1, b"again"), last=1).run is None
    assert held_of(runs) == []
    assert took(runs, calls(1, b"one")).first == 0


# ---- several ---------------------------------------------------------------------------------------------------------


def test_all_that_was_gathered_is_the_columns_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = made(100)
    reads = [calls(1, b"one", b"two"), b"???" + calls(1, b"", b"four", b"five") + b"!", calls(21, b"six" * 100)]
    parts = [took(runs, reads[0]), took(runs, reads[1], at=3), took(runs, reads[2])]
    monkeypatch.setattr(Run, "requests", None)  # it is not asked for
    found = runs.requests([*parts])
    assert list(found) == [b"one", b"two", b"", b"four", b"five", b"six" * 100]
    assert found.message_bytes == 3 + 3 + 0 + 4 + 4 + 300
    assert not found.data.flags.writeable
    assert not left(runs)
    assert not any(part.chunk for part in parts)
    monkeypatch.undo()
    again = took(runs, calls(1, b"next"))
    assert again.first == 0
    assert list(runs.requests([again])) == [b"next"]
    assert list(found)[:2] == [b"one", b"two"]  # its columns are its own


@pytest.mark.parametrize("seed", range(40))
def test_any_parts_in_any_order_are_the_messages_of_these_and_no_others(seed: int) -> None:
    chance = random.Random(seed)
    runs = made(60)
    for _ in range(6):
        parts: list[tuple[Requests | Run, list[bytes]]] = []
        for _ in range(chance.randint(1, 9)):
            messages = [chance.randbytes(chance.choice([0, 1, 90])) for _ in range(chance.choice([1, 2, 40]))]
            if chance.random() < 0.3:
                parts.append((Requests.of(messages), messages))
            else:
                before = chance.randbytes(chance.choice([0, 0, 7]))
                data = before + calls(1, *messages) + chance.choice([b"", b"", b"\0" * 9])
                parts.append((took(runs, data, at=len(before), room=60), messages))
        if chance.random() < 0.4:
            chance.shuffle(parts)
        while len(parts) > 1 and chance.random() < 0.3:  # a connection is lost
            (lost, _) = parts.pop(chance.randrange(len(parts)))
            if isinstance(lost, Run):
                lost.chunk = b""
        cut = chance.choice([0, 0, len(parts) // 2])  # of another method
        for group in filter(None, (parts[:cut], parts[cut:])):
            found = runs.requests([part for part, _ in group])
            assert list(found) == [message for _, messages in group for message in messages]
            assert found.message_bytes == sum(map(len, found))
            assert not any(part.chunk for part, _ in group if isinstance(part, Run))
        assert not left(runs)


def test_what_is_lost_among_others_is_not_there_and_the_others_are() -> None:
    runs = made(100)
    one, lost, three = (took(runs, calls(1, name, name * 2)) for name in (b"one", b"lost", b"three"))
    assert list(runs.requests([one, three])) == [b"one", b"oneone", b"three", b"threethree"]
    assert held_of(runs) == []
    assert not one.chunk + three.chunk
    assert lost.chunk  # whoever lost it drops it


def test_two_methods_that_were_gathered_together_each_get_their_own() -> None:
    runs = made(100)
    first, other, second = (took(runs, calls(1, name)) for name in (b"first", b"other", b"second"))
    assert list(runs.requests([first, second])) == [b"first", b"second"]
    newer = took(runs, calls(1, b"newer"))
    assert list(runs.requests([other])) == [b"other"]
    assert list(runs.requests([newer])) == [b"newer"]


def test_requests_that_came_one_by_one_stay_where_they_are_among_runs() -> None:
    runs = made(100)
    run, single = took(runs, calls(1, b"a", b"b")), Requests.of([b"x", b""])
    assert list(runs.requests([single, run, single])) == [b"x", b"", b"a", b"b", b"x", b""]
    assert runs.requests([single]) is single


def test_more_calls_than_the_columns_have_room_for_are_handed_over_all_the_same() -> None:
    runs = made(1000)
    parts: list[Run] = []
    expected = []
    for number in range(9):
        messages = [b"%d of %d" % (n, number) for n in range(900)]
        parts.append(took(runs, calls(1, *messages, timeouts={number: b"%dS" % number}), room=1000))
        expected += messages
    assert len({part.gathered for part in parts}) == 3
    assert [part.first for part in parts] == [0, 900, 1800, 2700, 0, 900, 1800, 2700, 0]
    assert list(runs.requests([*parts])) == expected
    assert not any(part.chunk for part in parts)
    for number, part in enumerate(parts):
        assert part.deadlines() == [10.0 + number if n == number else math.inf for n in range(900)]


def test_the_columns_are_used_to_the_last_row_and_not_beyond() -> None:
    runs = made(10)
    firsts = [took(runs, calls(1, *[b"%d" % n] * 8), room=8).first for n in range(4096 // 8)]
    assert firsts == list(range(0, 4096, 8))
    assert took(runs, calls(1, b"more"), room=1).first == 0
    assert held_of(runs) == [len(calls(1, b"more"))]
    large = made(5000)
    for _ in range(2):
        assert took(large, calls(1, *[b"x"] * 5000), room=5000).first == 0


# ---- deadlines -------------------------------------------------------------------------------------------------------


def test_each_run_knows_the_timeouts_of_its_own_calls() -> None:
    runs = made(100)
    one = took(runs, calls(1, *[b"x"] * 4, timeouts={1: b"3S", 2: b"250m"}))
    two = took(runs, calls(1, *[b"x"] * 3))
    three = took(runs, calls(1, *[b"x"] * 2, timeouts={0: b"0S", 1: b"7u"}))
    assert [one.soonest, two.soonest, three.soonest] == [250_000_000, -1, 0]
    runs.requests([one, two, three])
    took(runs, calls(1, *[b"y"] * 50, timeouts=dict.fromkeys(range(50), b"9S")))  # in the same columns
    assert one.deadlines() == [math.inf, 13.0, 10.25, math.inf]
    assert two.deadlines() == [math.inf] * 3
    assert three.deadlines() == pytest.approx([10.0, 10.000007], abs=2e-9)


# ---- what is held ----------------------------------------------------------------------------------------------------


async def _pair() -> tuple[Server, Echo, list[Peer]]:
    server, echo = Server(limits=Limits(streams=60)), Echo()
    echo.register(server)
    return server, echo, [known(server), known(server)]


def known(server: Server) -> Peer:
    """A connection that is expected to bring runs."""
    peer = Peer(server).greet()
    for stream_id in (1, 3, 5):
        peer.send(call(stream_id, peer.block(GROUP), b"x"))
    return peer


@run
async def test_a_run_that_waits_for_its_deadline_holds_nothing_of_what_was_read() -> None:
    server, echo, peers = await _pair()
    await asyncio.sleep(0.01)
    echo.answer_groups = False
    echo.groups.clear()
    before = {id(each) for each in gc.get_objects() if type(each) is Run}
    for peer in peers:
        peer.send(call(11, with_timeout(peer.block(GROUP), b"1H"), bytes(10_000)))
    async with asyncio.timeout(20):
        while sum(len(requests) for requests, _ in echo.groups) < 2:
            await asyncio.sleep(0.001)
    waiting = [each for each in gc.get_objects() if type(each) is Run and id(each) not in before]
    assert len(waiting) == 2
    assert not any(each.chunk for each in waiting)
    assert held_of(server.runs) == []
    for _, answer in echo.groups:
        answer([b"y"] * (2 // len(echo.groups)))
    assert not len(server.deadlines)


BREAKS = frame(0, 0, 0, b"DATA on no stream")


@pytest.mark.parametrize("one_read", [True, False])
def test_very_many_connections_that_send_a_run_and_break_the_protocol_leave_no_bytes(one_read: bool) -> None:
    @run
    async def check() -> None:
        server, echo, stay = await _pair()
        await asyncio.sleep(0.01)
        echo.groups.clear()
        held, runs = [], []
        with capture_logs():
            for number in range(300):
                peer = known(server)
                sent = b"".join(call(n, peer.block(GROUP), bytes(1000)) for n in range(11, 51, 2))
                for data in (sent + BREAKS,) if one_read else (sent, BREAKS):
                    peer.send(data)
                assert goaways(peer.frames()) == [1]
                peer.wire.protocol.connection_lost(None)
                if number % 100 == 99:
                    await asyncio.sleep(0)
                held.append(left(server.runs))
                runs.append(len(held_of(server.runs)))
        assert not any(bytes(1000) in requests for requests, _ in echo.groups)
        assert max(held) < 3000  # of those that stay
        assert max(runs) < 4096  # of 6000 calls
        await asyncio.sleep(0.01)
        echo.groups.clear()
        for number, peer in enumerate(stay):
            peer.send(call(11, peer.block(GROUP), b"from %d" % number))
        async with asyncio.timeout(20):
            while sum(len(requests) for requests, _ in echo.groups) < 2:
                await asyncio.sleep(0.001)
        for number, peer in enumerate(stay):
            assert answers(await peer.settle())[11] == (prefixed(b"from %d" % number), {"grpc-status": "0"})
        assert not left(server.runs)

    check()


@run
async def test_what_waits_with_others_goes_with_its_connection() -> None:
    server, echo, (one, two) = await _pair()
    await asyncio.sleep(0.01)
    echo.groups.clear()
    one.send(call(11, one.block(GROUP), b"lost" * 1000) + call(13, one.block(GROUP), b"lost"))
    two.send(call(11, two.block(GROUP), b"kept") + call(13, two.block(GROUP), b"too"))
    assert len(held_of(server.runs)) == 2
    one.connection.close()  # its last bytes are still to be written
    await asyncio.sleep(0.01)
    assert [requests for requests, _ in echo.groups] == [[b"kept", b"too"]]
    assert not left(server.runs)
    two.send(call(15, two.block(GROUP), b"alone") + call(17, two.block(GROUP), b"alone"))
    two.connection.close()
    await asyncio.sleep(0.01)
    assert not left(server.runs)
    assert len(echo.groups) == 1


@run
async def test_what_was_read_and_not_handed_over_goes_with_its_connection() -> None:
    server, echo, (one, _) = await _pair()
    part = took(server.runs, calls(1, b"lost" * 1000))
    one.connection.http2.batch(Group(GROUP, echo.group)).take(part)
    one.wire.protocol.connection_lost(None)
    assert not part.chunk
