"""Pulls by columns give what the plain reading gives, whatever lies in the log; large ones are read to their place."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pump_service.store import gather
from pump_service.store.batch import LargeBinlog
from pump_service.store.frame import ddl_job_id, encode_record
from pump_service.store.store import Item, Store
from pumphouse.codec import payload
from pumphouse.errors import BadRecord
from tests.support.storekit import (
    commit,
    fake,
    merged,
    open_store,
    pointer_of,
    prewrite,
    rollback,
    store_all,
    value_files,
    write,
)


def by_columns(store: Store, max_bytes: int, after: int = 0) -> list[tuple[int, int, int, bytes, int]]:
    found = []
    while True:
        batch = store.stream.pull(after, max_bytes=max_bytes)
        jobs = batch.binlogs.ddl_job_id.tolist()
        found += list(zip(batch.commit_list, batch.start_list, jobs, batch.payloads, batch.flag_list, strict=True))
        assert batch.size == sum(map(len, batch.payloads))
        assert batch.last <= batch.watermark
        if not batch.more:
            assert batch.last == batch.watermark
            return found
        assert batch.last > after
        after = batch.last


def plainly(store: Store, after: int = 0) -> list[tuple[int, int, int, bytes, int]]:
    return [
        (b.commit_ts, b.start_ts, ddl_job_id(b.payload), b.payload, b.flag)
        for b in store.stream._reader.plain.binlogs(after, store.watermark, dict(store._indexer.unwritten.commits))
    ]


def ddl(start_ts: int, job: int) -> Item:
    made = payload.make_prewrite(start_ts, b"k", ddl_query=b"create table t (a int)", ddl_job_id=job)
    return Item(made, 0, start_ts, 0, b"k")


def history(seed: int) -> tuple[list[Item], dict[tuple[int, int], bytes]]:
    """Ps and Cs of many transactions, shuffled within reach; and what pullers must get."""
    chance = random.Random(seed)
    timed: list[tuple[float, Item]] = []
    expected: dict[tuple[int, int], bytes] = {}
    ts = 1000
    for n in range(400):
        ts += chance.choice((1, 3, 1 << 18))
        start, end = ts, ts + chance.choice((1, 7, 200)) * 2 + 1
        ts = max(ts, end - 300)
        value = os.urandom(chance.choice((0, 1, 5, 127, 128, 300, 5000, 70_000)))
        key = b"k" * chance.choice((0, 1, 20, 130))
        p = ddl(start, n + 1) if chance.random() < 0.1 else prewrite(start, value, key)
        timed.append((start, p))
        if chance.random() < 0.1:
            timed.append((end, rollback(start)))
            continue
        c = commit(start, (end << 8) + n, key)
        timed.append((end, c))
        expected[(end << 8) + n, start] = payload.merge(p.payload, c.payload)
    timed.sort(key=lambda each: each[0])
    last = max(c for c, _ in expected)
    return [item for _, item in timed] + [fake(last + 1), fake(last + 2)], expected


@pytest.mark.row("P7")
@pytest.mark.parametrize("seed", range(4))
def test_columns_are_what_the_plain_reading_gives_and_what_the_library_merges(seed: int, tmp_path: Path) -> None:
    items, expected = history(seed)
    store = open_store(tmp_path, value_log_file_bytes=300_000)
    chance = random.Random(seed)
    while items:
        count = chance.choice((1, 10, 100))
        assert not any(write(store, *items[:count]))
        del items[:count]
    store_all(store)
    assert len(value_files(tmp_path)) > 3
    plain = plainly(store)
    assert {(c, s): p for c, s, _, p, _ in plain if c != s} == expected
    for max_bytes in (1, 4096, 100_000, 4 << 20):
        assert by_columns(store, max_bytes) == plain
    middle = plain[len(plain) // 2][0]
    assert by_columns(store, 50_000, middle) == [each for each in plain if each[0] > middle]


@pytest.mark.row("P7")
def test_late_and_orphan_commits_lie_among_columns_as_they_lie_in_the_plain_reading(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(200):
        start = 1000 + 20 * n
        items = [commit(start, start + 5)] if n % 50 == 20 else [prewrite(start), commit(start, start + 5)]
        store_all(store, *items, *([fake(start + 9)] if n % 50 == 10 else []))
        if n % 50 == 11:
            store_all(store, prewrite(start - 1), commit(start - 1, start - 12))
    plain = plainly(store)
    assert sorted({flag for *_, flag in plain}) == [0, 1, 2]
    for max_bytes in (1, 200, 1 << 20):
        assert by_columns(store, max_bytes) == plain


@pytest.mark.row("P7")
def test_a_record_of_another_writer_is_taken_by_the_plain_reading(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    odd = Item(b"\x10\x14\x18\x00\x2a\x02hi", 0, 20, 0)  # type left out, as no Pump writes it
    store_all(store, prewrite(10), commit(10, 11), odd, prewrite(30), commit(30, 31), commit(20, 41))
    assert by_columns(store, 1 << 20) == plainly(store)
    assert [c for c, *_ in plainly(store)] == [11, 31, 41]


@pytest.mark.row("P7", "P17")
def test_a_large_transaction_is_announced_and_read_to_its_place(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=64 << 20)
    value = os.urandom(12 << 20)
    store_all(store, prewrite(10, b"a"), commit(10, 11), prewrite(20, value, b"kk" * 50), commit(20, 21), fake(30))
    store_all(store, prewrite(40, b"z"), commit(40, 41))
    first = store.stream.pull(0, max_bytes=1 << 20, most=1 << 20)
    assert first.commit_list == [11]
    with pytest.raises(LargeBinlog) as raised:
        store.stream.pull(first.last, max_bytes=1 << 20, most=1 << 20)
    assert raised.value.size > len(value)
    large = store.stream.pull(first.last, max_bytes=1 << 20)
    assert (large.commit_list, large.payloads) == ([21], [merged(20, 21, value, b"k")])
    assert [c for c, *_ in by_columns(store, 1 << 20)] == [11, 21, 30, 41]
    assert by_columns(store, 1 << 20) == plainly(store)

    pointer = pointer_of(store, 20)
    with value_files(tmp_path)[pointer.fid].open("r+b") as file:
        file.seek(pointer.offset + (6 << 20))
        file.write(b"rotten")
    with pytest.raises(BadRecord):
        store.stream.pull(first.last, max_bytes=1 << 20)


@pytest.mark.row("P7")
def test_damage_is_named_when_it_is_next_and_what_lies_before_it_is_served(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(
        store, *[item for n in range(50) for item in (prewrite(100 + 10 * n), commit(100 + 10 * n, 105 + 10 * n))]
    )
    pointer = pointer_of(store, 100 + 10 * 30)
    (path,) = value_files(tmp_path)
    with path.open("r+b") as file:
        file.seek(pointer.offset + 16 + 12)
        file.write(b"\xff")
    batch = store.stream.pull(0, max_bytes=1 << 20)
    assert batch.commit_list == [105 + 10 * n for n in range(30)]
    with pytest.raises(BadRecord):
        store.stream.pull(batch.last, max_bytes=1 << 20)


@pytest.mark.row("P7")
@pytest.mark.parametrize("most", [None, 1 << 20])
@pytest.mark.parametrize("byte", [4, 5, 6, 7, 8, 9, 10, 11])
@pytest.mark.parametrize("ts", [20, 21], ids=["prewrite", "commit"])
def test_a_length_that_rotted_is_named_and_nothing_of_that_size_is_made(
    ts: int, byte: int, most: int | None, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), commit(10, 11), prewrite(20), commit(20, 21), prewrite(30), commit(30, 31))
    pointer = pointer_of(store, ts)
    (path,) = value_files(tmp_path)
    with path.open("r+b") as file:
        file.seek(pointer.offset + byte)
        rotten = file.read(1)[0] ^ 0x40
        file.seek(pointer.offset + byte)
        file.write(bytes((rotten,)))
    batch = store.stream.pull(0, max_bytes=1 << 20, most=most)
    assert batch.commit_list == [11]
    tracemalloc.start()
    try:
        with pytest.raises(BadRecord) as raised:
            store.stream.pull(batch.last, max_bytes=1 << 20, most=most)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert (raised.value.path, raised.value.offset) == (str(path), pointer.offset)


@pytest.mark.row("P7")
def test_a_record_is_classified_by_its_own_bytes_alone() -> None:
    record = encode_record(commit(1000, 2000).payload)
    for size in range(len(record) + 1):
        data = np.frombuffer(record[:size] + b"\xff" * 64, np.uint8).copy()
        kind, start, length = np.empty(1, np.uint8), np.empty(1, np.int64), np.empty(1, np.int64)
        one = np.zeros(1, np.int64)
        gather.classify(data, one, one + size, one + 2000, kind, start, length)
        assert kind[0] == (gather.COMMIT if size >= 16 + 8 else gather.BAD), size
