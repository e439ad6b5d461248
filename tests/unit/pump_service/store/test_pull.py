"""The stream: order, merging, the tail, and what is refused (rows P6, P7)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pump_service.store import frame
from pump_service.store.batch import IN_ORDER, LATE, ORPHAN
from pump_service.store.records import Item
from pump_service.store.store import Store
from pumphouse.errors import BadRecord, LateCommit, OrphanCommit, PositionCollected, UsageError
from tests.support.storekit import (
    commit,
    fake,
    index_meets,
    merged,
    open_store,
    pointer_of,
    prewrite,
    pull_all,
    rollback,
    so_often,
    store_all,
    stream,
    value_files,
    write,
)


@pytest.mark.row("P7")
def test_commits_come_in_commit_order_with_their_prewrite_merged_in(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    chance = random.Random(1)
    starts = list(range(1000, 1200))
    commits = {start: 2000 + n for n, start in enumerate(starts)}
    store_all(store, *[prewrite(start, b"value of %d" % start) for start in starts])
    order = starts[:]
    chance.shuffle(order)
    store_all(store, *[commit(start, commits[start]) for start in order])
    expected = [(commits[s], s, merged(s, commits[s], b"value of %d" % s), IN_ORDER) for s in starts]
    assert pull_all(store) == expected
    assert pull_all(store, max_bytes=1) == expected, "batches of one"
    assert pull_all(store, after=2050) == expected[51:]
    batch = store.stream.pull(2010, until=2020, max_bytes=1 << 20)
    assert batch.commit_list == list(range(2011, 2021))
    assert batch.last == 2020
    assert batch.watermark == 2199


@pytest.mark.row("P6", "P7")
def test_an_unresolved_prewrite_holds_the_watermark_and_what_came_before_it_is_served(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), commit(10, 11), prewrite(20, key=b"the key"), prewrite(30), commit(30, 31), fake(40))
    assert store.watermark == 11
    assert stream(store) == [(10, 11)]
    (waiting,) = store.prewrites.oldest()
    assert (waiting.start_ts, waiting.prewrite_key) == (20, b"the key")
    assert store.prewrites.is_open(20)
    assert store.prewrites.count == 1
    store_all(store, commit(20, 45))
    assert store.watermark == 45
    assert stream(store) == [(10, 11), (30, 31), (20, 45)]
    assert [c for c, _, _, _ in pull_all(store)] == [11, 31, 40, 45], "the fake is in the stream too"


@pytest.mark.row("P6")
def test_a_rollback_of_the_client_or_of_the_pump_drops_the_prewrite(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), prewrite(20), fake(30), rollback(10))
    assert store.watermark == 0
    store.settling.rolled_back(20, reason="nobody knows it", who="an operator")
    store_all(store, fake(31))
    assert store.watermark == 31
    assert stream(store) == []
    assert b"an operator" in (tmp_path / "pumphouse" / "settled.jsonl").read_bytes()
    store.close()
    store = open_store(tmp_path)
    assert store.watermark == 31
    assert store.prewrites.count == 0


@pytest.mark.row("P6")
def test_the_pumps_own_commit_completes_a_transaction_and_the_clients_later_one_is_a_duplicate(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10, b"v"))
    store.settling.committed(10, 15)
    store_all(store, fake(20))
    ((commit_ts, start_ts, payload, flag), _fake) = pull_all(store)
    assert (commit_ts, start_ts, flag) == (15, 10, IN_ORDER)
    assert payload == merged(10, 15, b"v", key=None)  # type: ignore[arg-type]
    store_all(store, commit(10, 15))
    assert store.status().duplicate_commits == 1
    assert store.late() == []
    assert len(pull_all(store)) == 2
    store_all(store, prewrite(30, b"w"))
    store.settling.committed(30, 35, key=b"k")  # the whole transaction is as if its client had written the commit
    store_all(store, fake(40))
    assert merged(30, 35, b"w") in [payload for _, _, payload, _ in pull_all(store)]


@pytest.mark.row("P7")
def test_a_commit_without_prewrite_is_an_orphan_until_it_is_accepted_by_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), commit(10, 11), commit(15, 20), prewrite(30), commit(30, 31))
    assert [(c, flag) for c, _, _, flag in pull_all(store)] == [(11, IN_ORDER), (20, ORPHAN), (31, IN_ORDER)]
    batch = store.stream.pull(0, max_bytes=1 << 20, strict=True)
    assert batch.commit_list == [11], "what lies before it is served"
    with pytest.raises(OrphanCommit) as raised:
        store.stream.pull(11, max_bytes=1 << 20, strict=True)
    assert (raised.value.start_ts, raised.value.commit_ts) == (15, 20)
    store.close()
    store = open_store(tmp_path)
    (orphan,) = store.orphans()
    assert (orphan.start_ts, orphan.commit_ts, orphan.accepted, orphan.late) == (15, 20, False, False)
    with pytest.raises(UsageError):
        store.accept(15, 21, "wrong")
    store.accept(15, 20, "it was a test")
    store.accept(15, 20, "twice is no error")
    assert [c for c, _, _, _ in pull_all(store, strict=True)] == [11, 31]
    store.close()
    store = open_store(tmp_path)
    assert store.orphans()[0].accepted
    assert [c for c, _, _, _ in pull_all(store, strict=True)] == [11, 31]
    assert [c for c, _, _, _ in pull_all(store, strict=True, max_bytes=1)] == [11, 31]
    assert [(c, flag) for c, _, _, flag in pull_all(store)] == [(11, IN_ORDER), (20, ORPHAN), (31, IN_ORDER)]


@pytest.mark.row("P7")
def test_an_orphan_whose_prewrite_comes_after_all_is_whole_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, commit(15, 20), fake(25))
    assert len(store.orphans()) == 1
    store_all(store, prewrite(15, b"here"), commit(15, 20))
    assert store.orphans() == []
    assert [(c, p, f) for c, _, p, f in pull_all(store) if c == 20] == [(20, merged(15, 20, b"here"), IN_ORDER)]


@pytest.mark.row("P7")
def test_a_commit_below_the_published_watermark_is_late_and_refused_to_those_who_have_passed_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), fake(100), rollback(10))
    assert store.watermark == 100
    store_all(store, commit(10, 50), prewrite(110), commit(110, 120))
    (late,) = store.late()
    assert (late.start_ts, late.commit_ts, late.watermark, late.orphan) == (10, 50, 100, False)
    assert [(c, f) for c, _, _, f in pull_all(store)] == [(50, LATE), (100, IN_ORDER), (120, IN_ORDER)]
    assert [item.commit_ts for item in store.stream.pull(100, max_bytes=1000).behind] == [50]
    with pytest.raises(LateCommit) as raised:
        store.stream.pull(100, max_bytes=1 << 20, strict=True)
    assert raised.value.commit_ts == 50
    store.accept(10, 50, "test")
    assert [c for c, _, _, _ in pull_all(store, strict=True)] == [50, 100, 120]
    assert store.stream.pull(100, max_bytes=1000).behind == []


@pytest.mark.row("P7")
def test_two_transactions_with_one_commit_ts_are_both_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10, b"a"), prewrite(20, b"b"), commit(10, 30), commit(20, 30))
    assert [(s, p, f) for _, s, p, f in pull_all(store)] == [
        (10, merged(10, 30, b"a"), IN_ORDER),
        (20, merged(20, 30, b"b"), LATE),
    ]
    with pytest.raises(LateCommit):
        store.stream.pull(0, max_bytes=1, strict=True)


def _pending(store: Store) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(start ts, commit ts) of late ones, and of orphans, that nobody accepted."""
    return (
        [(each.start_ts, each.commit_ts) for each in store.late() if each.holds],
        [(each.start_ts, each.commit_ts) for each in store.orphans() if each.holds],
    )


TWICE: list[tuple[str, list[Item], list[tuple[int, int, bytes, int]], list[tuple[int, int]], list[tuple[int, int]]]] = [
    (
        "a second prewrite with other content does not replace one that waits",
        [prewrite(10, b"A"), prewrite(10, b"B"), commit(10, 20)],
        [(20, 10, merged(10, 20, b"A"), IN_ORDER)],
        [],
        [(10, 10)],
    ),
    (
        "nor one that is committed, and a second commit holds by its name",
        [prewrite(10, b"A"), commit(10, 20), prewrite(10, b"B"), commit(10, 30)],
        [(20, 10, merged(10, 20, b"A"), IN_ORDER), (30, 10, merged(10, 30, b"A"), LATE)],
        [(10, 30)],
        [(10, 10)],
    ),
    (
        "a prewrite whose start ts is another's commit ts takes nothing away",
        [prewrite(10, b"A"), commit(10, 20), prewrite(20, b"B"), commit(20, 30)],
        [(20, 10, merged(10, 20, b"A"), IN_ORDER), (30, 20, commit(20, 30).payload, ORPHAN)],
        [],
        [(20, 20), (20, 30)],
    ),
    (
        "a commit whose commit ts is another's start ts takes nothing away",
        [prewrite(10, b"A"), prewrite(20, b"B"), commit(10, 20), commit(20, 30)],
        [(20, 10, merged(10, 20, b"A"), LATE), (30, 20, merged(20, 30, b"B"), IN_ORDER)],
        [(10, 20)],
        [],
    ),
    (
        "a fake takes nothing away",
        [prewrite(10, b"A"), fake(10), commit(10, 20), fake(20), fake(30)],
        [(20, 10, merged(10, 20, b"A"), IN_ORDER), (30, 30, fake(30).payload, IN_ORDER)],
        [],
        [],
    ),
    (
        "a commit behind a rollback is held by its name, with its content",
        [prewrite(10, b"A"), rollback(10), commit(10, 20), fake(30)],
        [(20, 10, merged(10, 20, b"A"), LATE), (30, 30, fake(30).payload, IN_ORDER)],
        [(10, 20)],
        [],
    ),
    (
        "a rollback behind a commit changes nothing",
        [prewrite(10, b"A"), commit(10, 20), rollback(10)],
        [(20, 10, merged(10, 20, b"A"), IN_ORDER)],
        [],
        [],
    ),
    (
        "the same prewrite twice, and the same commit twice, are one",
        [prewrite(10, b"A"), prewrite(10, b"A"), commit(10, 20), commit(10, 20), prewrite(10, b"A"), commit(10, 20)],
        [(20, 10, merged(10, 20, b"A"), IN_ORDER)],
        [],
        [],
    ),
]


@pytest.mark.row("P6", "P7")
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("what", "items", "seen", "late", "orphans"), TWICE, ids=[each[0] for each in TWICE])
def test_what_was_answered_is_never_replaced(
    what: str,
    items: list[Item],
    seen: list[tuple[int, int, bytes, int]],
    late: list[tuple[int, int]],
    orphans: list[tuple[int, int]],
    at_once: bool,
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    for group in [items] if at_once else [[item] for item in items]:
        store_all(store, *group)
    for again in ("", "restarted", "rebuilt"):
        if again:
            store.close()
            if again == "rebuilt":
                shutil.rmtree(tmp_path / "kv")
            store = open_store(tmp_path)
        assert pull_all(store) == seen, again
        assert _pending(store) == (late, orphans), again
        assert store.prewrites.count == 0
    if late or orphans:
        with pytest.raises((LateCommit, OrphanCommit)):
            store.stream.pull(15, max_bytes=1 << 20, strict=True)
    for start, commit_ts in late + orphans:
        store.accept(start, commit_ts, "known")
    taken = [commit_ts for commit_ts, _, _, flag in seen if flag != ORPHAN]
    assert [commit_ts for commit_ts, *_ in pull_all(store, strict=True)] == taken
    store.close()
    shutil.rmtree(tmp_path / "kv")
    store = open_store(tmp_path)
    assert [commit_ts for commit_ts, *_ in pull_all(store, strict=True)] == taken
    assert _pending(store) == ([], [])


@pytest.mark.row("P6")
def test_a_second_prewrite_that_is_not_what_was_answered_holds_what_gc_may_delete(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10, b"A"), commit(10, 20), prewrite(10, b"B"), fake(100))
    assert store.gc.collect({"archive": 90}, 1 << 60).deletion_limit == 10
    store.accept(10, 10, "known")
    assert store.gc.collect({"archive": 90}, 1 << 60).deletion_limit > 20


@pytest.mark.row("P7", "P11")
def test_a_pull_below_the_gc_point_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), commit(10, 11), prewrite(20), commit(20, 21))
    assert store.gc.collect({"archive": 15}, 1 << 60).gc_point == 15
    with pytest.raises(PositionCollected) as raised:
        store.stream.pull(14, max_bytes=1000)
    assert (raised.value.start_from, raised.value.gc_point) == (14, 15)
    assert [c for c, _, _, _ in pull_all(store, after=15)] == [21]


@pytest.mark.row("P7", "P11")
def test_a_pull_that_gc_overtakes_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10), commit(10, 11), prewrite(20), commit(20, 21))
    overtaken = so_often(1, lambda: store.gc.collect({"archive": 15}, 1 << 60))
    with index_meets(columns=overtaken), pytest.raises(PositionCollected):
        store.stream.pull(5, max_bytes=1000)


@pytest.mark.row("P7")
def test_damage_under_a_pull_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(10, b"v" * 2000), commit(10, 11), prewrite(20), commit(20, 21))
    path = value_files(tmp_path)[0]
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"\xff")
    with pytest.raises(BadRecord) as raised:
        pull_all(store)
    assert raised.value.path == str(path)


@pytest.mark.row("P7")
def test_large_records_span_blocks(tmp_path: Path) -> None:
    store = open_store(tmp_path, value_log_file_bytes=8 << 20)
    values = {start: bytes([start % 251]) * (start * 997 % 900_000) for start in range(100, 130)}
    for start, value in values.items():
        assert write(store, prewrite(start, value), commit(start, start + 1000)) == [None, None]
    store_all(store, fake(5000))
    found = [(s, p) for c, s, p, _ in pull_all(store, max_bytes=2 << 20) if c != s]
    assert found == [(s, merged(s, s + 1000, v)) for s, v in values.items()]


@pytest.mark.row("P5", "P7")
@pytest.mark.parametrize("ts", [1000, 7 << 18, (1 << 58) + (3 << 20)])
@pytest.mark.parametrize("byte", range(4))
def test_no_flipped_bit_makes_a_commit_disappear(byte: int, ts: int, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(ts), commit(ts, ts + 5), prewrite(ts + 10), commit(ts + 10, ts + 15))
    assert stream(store) == [(ts, ts + 5), (ts + 10, ts + 15)]
    pointer = pointer_of(store, ts + 5)
    (path,) = value_files(tmp_path)
    at = pointer.offset + frame.HEADER_BYTES + byte
    whole = path.read_bytes()
    for bit in range(8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        with pytest.raises(BadRecord):
            store.stream.pull(0, max_bytes=1 << 20)


@pytest.mark.row("P5", "P7")
def test_a_rotted_prewrite_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store_all(store, prewrite(1000), commit(1000, 1005))
    pointer = pointer_of(store, 1000)
    (path,) = value_files(tmp_path)
    whole = path.read_bytes()
    for at in range(pointer.offset, pointer.offset + frame.HEADER_BYTES + 8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(BadRecord):
            store.stream.pull(0, max_bytes=1 << 20)
