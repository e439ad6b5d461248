"""Records that a kernel frames against the plain encoder."""

from __future__ import annotations

import random

import numpy as np
import pytest

from include.codec.jit import frozen
from pump_service.intake.parse import GOOD, parse, stored
from pump_service.store import frame
from pump_service.store.framing import Framer
from pump_service.store.records import Records
from tests.support.storekit import commit, fake, prewrite, rollback

pytestmark = pytest.mark.row("P1")


def _records(chance: random.Random) -> Records:
    """Payloads anywhere in a buffer, some of them without the fields at their end."""
    payloads = []
    for n in range(1, 60):
        item = chance.choice([prewrite(n, chance.randbytes(chance.choice([0, 3, 200, 5000]))), commit(n, n + 1)])
        payloads.append(chance.choice([item, rollback(n), fake(n)]).payload)
    payloads = [payload[: len(payload) - chance.choice([0, 2, 4])] for payload in payloads]
    sizes = np.array([len(payload) for payload in payloads])
    starts = np.cumsum(sizes + 3) - sizes
    data = frozen(np.frombuffer(b"".join(b"gap" + payload for payload in payloads), np.uint8))
    columns = parse(data, starts, sizes)
    assert (columns.verdict == GOOD).all()
    assert set(columns.tail.tolist()) == {0, 2, 4}
    return Records(data, starts, sizes, columns)


def test_records_of_several_buffers_are_those_of_the_plain_encoder() -> None:
    framer = Framer()
    for seed in range(5):
        parts = [_records(random.Random(10 * seed + n)) for n in range(3)]
        pieces = [(parts[0], 10, 59), (parts[1], 0, 59), (parts[2], 0, 5)]
        want = b"".join(
            frame.encode_record(stored(part.data, part.starts, part.sizes, part.columns, row))
            for part, first, stop in pieces
            for row in range(first, stop)
        )
        assert framer.records(pieces, len(want)) == want


def test_a_large_record_in_pieces_is_that_of_the_plain_encoder() -> None:
    records = _records(random.Random(3))
    for row in range(len(records)):
        payload = stored(records.data, records.starts, records.sizes, records.columns, row)
        assert b"".join(Framer.large_record(records, row)) == frame.encode_record(payload)
