"""Records that a kernel frames against the plain encoder."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pump_service.store import frame
from pump_service.store.framing import Framer, Place, Write
from pump_service.store.parse import GOOD, parse
from pump_service.store.records import Records
from pumphouse.codec.jit import frozen
from tests.support.storekit import as_stored, commit, fake, prewrite, rollback

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
    return Records(data, starts, sizes, columns, int(sizes.sum()))


def _plain(parts: list[Records]) -> list[bytes]:
    return [frame.encode_record(as_stored(part, row)) for part in parts for row in range(len(part))]


def _written(parts: list[Records], *, most: int, limit: int) -> list[tuple[bytes, Write]]:
    """All writes of an append, each in a file of its own that is begun anew behind the limit."""
    framer, place, found, begin = Framer(), Place(), [], 0
    while place.part < len(parts):
        write = framer.write(parts, place, fid=3, begin=begin, limit=limit, most=most)
        found.append((b"".join(write.chunks), write))
        begin = begin + write.size if begin + write.size <= limit else 0
    return found


@pytest.mark.parametrize("most", [1, 300, 7000, 1 << 20])
@pytest.mark.parametrize("limit", [0, 500, 9000, 1 << 30])
@pytest.mark.parametrize("large", [100, 8 << 20])
def test_records_of_several_buffers_are_those_of_the_plain_encoder(
    most: int, limit: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump_service.store.framing.WRITE_BYTES", large)
    parts = [_records(random.Random(most + limit + n)) for n in range(3)]
    want = _plain(parts)
    found = _written(parts, most=most, limit=limit)
    assert b"".join(data for data, _ in found) == b"".join(want)
    entries = [entry for _, write in found for block in write.blocks for entry in block]
    assert [entry.size + frame.HEADER_BYTES for entry in entries] == [len(each) for each in want]
    begin = 0
    for data, write in found:
        rows = [entry for block in write.blocks for entry in block]
        assert rows[0].offset == begin <= limit
        assert (rows[-1].offset <= limit, rows[-1].end) == (True, begin + len(data))
        assert len(data) <= min(most, large) or len(rows) == 1
        assert write.max_ts == max(frame.storage_ts(row.tp, row.start_ts, row.commit_ts) for row in rows)
        assert {row.fid for row in rows} == {3}
        assert write.prewrites == sum(row.tp == 0 for row in rows)
        begin = rows[-1].end if rows[-1].end <= limit else 0


def test_nothing_is_framed_behind_the_limit() -> None:
    place = Place()
    parts = [_records(random.Random(3))]
    assert Framer().write(parts, place, fid=0, begin=11, limit=10, most=1 << 20).size == 0
    assert (place.part, place.row) == (0, 0)


def test_a_sum_of_bytes_that_is_too_small_makes_more_writes_and_harms_nothing() -> None:
    records = _records(random.Random(5))
    want = _plain([records] * 40)
    records.bytes = 0
    found = _written([records] * 40, most=1 << 20, limit=1 << 30)
    assert b"".join(data for data, _ in found) == b"".join(want)
    assert len(found) > 1
