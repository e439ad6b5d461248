"""However a network cuts the bytes, the answers are the same; and no bytes do harm."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.support.doorfuzz import campaign
from tests.support.doorkit import BOTH, DOWN, GROUP, PREFACE, UNARY, UP, Echo, Peer, answers, frame


@settings(max_examples=40)
@given(
    st.data(), st.lists(st.tuples(st.sampled_from([GROUP, UNARY, DOWN, UP, BOTH]), st.integers(0, 3000)), max_size=8)
)
def test_any_cut_gives_the_same_answers(data: st.DataObject, calls: list[tuple[str, int]]) -> None:
    async def answered(cut: bool) -> dict[int, tuple[bytes, dict[str, str]]]:
        peer = Peer(echo=Echo())
        sent = PREFACE + frame(4, 0, 0, b"\0\4\0\x10\0\0")
        for n, (path, size) in enumerate(calls):
            more = (("grpc-timeout", f"{9000 + n}m"),) if n % 2 else ()
            sent += peer.call(path, random.Random(n).randbytes(size), *more)[1]
        at = 0
        while at < len(sent):
            size = data.draw(st.integers(1, 400)) if cut else len(sent)
            peer.send(sent[at : at + size])
            at += size
        return answers(await peer.settle())

    whole = asyncio.run(answered(False))
    assert len(whole) == len(calls)
    assert asyncio.run(answered(True)) == whole


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=200), max_size=10), st.booleans())
def test_no_bytes_raise_out_of_a_connection_or_stay_in_it(pieces: list[bytes], greeted: bool) -> None:
    async def test() -> None:
        peer = Peer()
        if greeted:
            peer.greet()
        for piece in pieces:
            if not peer.wire.closing and piece:
                peer.send(piece)
        if greeted:
            assert peer.connection.http2._rest.size <= peer.server.limits.frame + 9
        peer.frames()

    with capture_logs() as logs:
        asyncio.run(test())
    assert not [entry for entry in logs if entry["event"] == "connection_failed"]


def test_a_model_client_gets_every_answer_beside_hostile_ones_and_memory_stays_where_it_was() -> None:
    """The sample of the campaign below; DOOR_FUZZ_SEED=n for other rounds."""
    rounds, grown = campaign(8.0, int(os.environ.get("DOOR_FUZZ_SEED", "0")))
    assert rounds >= 3
    assert grown < 2 << 20


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_same_for_an_hour() -> None:
    """DOOR_FUZZ_S=n for n seconds instead."""
    rounds, grown = campaign(float(os.environ.get("DOOR_FUZZ_S", "3600")), int(time.time()))
    assert rounds >= 10
    assert grown < 2 << 20
