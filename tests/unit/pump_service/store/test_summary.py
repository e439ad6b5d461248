"""The summary of a file: however its records are added, it is the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pump_service.store import frame
from pump_service.store.block import Block, Entry
from pump_service.store.summary import BUCKET_RECORDS, NEVER, FileSummary

pytestmark = pytest.mark.row("P11")


def _entries(chance: random.Random, count: int) -> list[Entry]:
    found, at = [], 40
    for _ in range(count):
        start, size = chance.randrange(1, 1 << 60), chance.randrange(200)
        tp, commit = chance.choice([(0, 0), (0, 0), (1, start + 5), (1, start), (1, 0), (2, 0)])
        found.append(Entry(tp, start, commit, 3, at, size))
        at += size + frame.HEADER_BYTES
    return found


def _plainly(entries: list[Entry]) -> list[list[int]]:
    """The buckets, by their definition."""
    rows = []
    for at in range(0, len(entries), BUCKET_RECORDS):
        bucket = entries[at : at + BUCKET_RECORDS]
        commits = [each for each in bucket if each.tp and each.commit_ts > 0 and each.commit_ts != each.start_ts]
        rows.append(
            [
                bucket[-1].end,
                min((each.commit_ts for each in commits), default=NEVER),
                max((each.commit_ts for each in commits), default=0),
                min((each.start_ts for each in commits), default=NEVER),
                min((each.start_ts for each in bucket if each.tp == 0), default=NEVER),
            ]
        )
    return rows


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("most", [1, 2, 300, 5000])
def test_blocks_that_are_added_one_by_one_or_many_come_to_the_same_buckets(count: int, most: int) -> None:
    chance = random.Random(count * most)
    entries = _entries(chance, count)
    summary = FileSummary(3)
    blocks, at = [], 0
    while at < count:
        step = chance.randint(1, most)
        blocks.append(Block.of(entries[at : at + step]))
        summary.add(blocks[-1])
        at += step
    assert summary.buckets().tolist() == _plainly(entries)
    assert (summary.records, summary.end) == (count, entries[-1].end)
    assert summary.max_ts == max(frame.storage_ts(*entry[:3]) for entry in entries)
    for name in Block.__slots__:  # the blocks are others' too
        found = np.concatenate([getattr(block, name) for block in blocks])
        assert (found == getattr(Block.of(entries), name)).all(), name


def test_what_is_added_is_summed_up_once() -> None:
    summary, entries = FileSummary(3), _entries(random.Random(3), 700)
    for at in range(0, 700, 100):
        summary.add(Block.of(entries[at : at + 100]))
        if at % 300 == 0:
            assert summary.records == at + 100
    assert summary.buckets().tolist() == summary.buckets().tolist() == _plainly(entries)
    many = FileSummary(3)
    large = _entries(random.Random(4), 64 * BUCKET_RECORDS * 3)  # more buckets than there is room for at first
    many.add(Block.of(large[:10]))
    many.add(Block.of(large[10:]))
    assert many.buckets().tolist() == _plainly(large)
