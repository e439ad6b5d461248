"""Pairing by kernels over blocks against the plain one, record by record."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pump_service.store.block import Block, Entry
from pump_service.store.bookkeeping import Bookkeeping
from pump_service.store.collected import CollectedCommits
from pump_service.store.disk import DiskGuard
from pump_service.store.fs import REAL_FS
from pump_service.store.gc_rules import GcState
from pump_service.store.index import Index
from pump_service.store.indexer import Indexer
from pump_service.store.order import Order, Recent, Waiting
from pump_service.store.pending import PendingCommits
from pump_service.store.records import Item, Records
from pump_service.store.rows import Puts
from pump_service.store.valuelog import ValueLog
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.model.position import ZERO_POINTER, Pointer
from tests.support.plainpairing import Pairing
from tests.support.storekit import (
    commit,
    fake,
    prewrite,
    rollback,
)

pytestmark = pytest.mark.row("P6", "P7")


class Plain(Pairing):
    """Leaves every record to be judged one by one."""

    def advance(self, block: Block, first: int, recent: Recent, puts: Puts, **_: object) -> int:
        return first


class Bench:
    """Value log, index and indexer without threads; ``plain`` = the reference implementation."""

    def __init__(self, directory: Path, *, plain: bool, recent_bits: int = 17) -> None:
        self.valuelog = ValueLog(REAL_FS, directory / "value", directory / "files", limit=1 << 20, sync=False)
        self.valuelog.open()
        self.index = Index.open(directory / "kv")
        self.pending = PendingCommits(REAL_FS, directory)
        self.directory = directory
        self.start_again(plain=plain, recent=Recent(0, bits=recent_bits))
        self.indexer.replaying = False

    def start_again(self, *, plain: bool, recent: Recent | None = None) -> None:
        """As a new process would, with the index as it is; in recovery."""
        guard = DiskGuard(REAL_FS, self.directory, SYSTEM_CLOCK, stop_at=0, reserve=0)
        gc = GcState(REAL_FS, self.directory)
        gc.judged_end = ZERO_POINTER
        waiting = Plain() if plain else Waiting()
        self.indexer = Indexer(
            order=Order(waiting, recent or Recent(self.index.last_ts())),  # type: ignore[arg-type]
            index=self.index, valuelog=self.valuelog, pending=self.pending,
            collected=CollectedCommits(REAL_FS, self.directory), gc=gc,
            bookkeeping=Bookkeeping(self.index, guard, SYSTEM_CLOCK), clock=SYSTEM_CLOCK, queue_records=1 << 20,
        )  # fmt: skip

    def write(self, items: list[Item], cuts: int) -> None:
        """Append, and index in pieces."""
        block = Block.concat(self.valuelog.append([Records.of(items)]).blocks)
        step = -(-len(block) // cuts)
        for at in range(0, len(block), step):
            self.indexer.process(block[at : at + step])

    def seen(self) -> dict[str, object]:
        """Everything that the records came to."""
        indexer = self.indexer
        return {
            "position": indexer.waiting.position(),
            "watermark": indexer.watermark,
            "waiting": [(each.start_ts, each.pointer) for each in indexer.waiting.oldest(1 << 20)],
            "lowest": indexer.waiting.min_start(),
            "count": len(indexer.waiting),
            "end": indexer.indexed_end,
            "duplicates": indexer.duplicates,
            "pending": self.pending.all(),
            "index": [self.index.get(0), *self.index.pointers(0, 1 << 62)],
            "head": self.index.positions().head,
        }


def _workload(chance: random.Random, count: int) -> list[Item]:
    """Transactions that overlap: some commit out of order, are rolled back, retried, late, orphans, met twice."""
    ts, open_starts, items = 10, [], []
    done: list[tuple[int, int]] = []
    for _ in range(count):
        ts += chance.choice([1, 2, 5])
        match chance.choices(range(13), [40, 40, 5, 4, 2, 3, 3, 3, 1, 1, 1, 1, 1])[0]:
            case 0:
                items.append(prewrite(ts))
                open_starts.append(ts)
            case 1 if open_starts:
                start = open_starts.pop(chance.randrange(len(open_starts)))
                items.append(commit(start, ts))
                done.append((start, ts))
            case 2 if open_starts:
                items.append(rollback(open_starts.pop(0)))
            case 3:
                items.append(fake(ts))
            case 4 if open_starts:
                items.append(prewrite(chance.choice(open_starts)))  # a retry
            case 5 if done:
                start, at = chance.choice(done)
                items.append(commit(start, at))  # a duplicate
            case 6 if done:
                start, at = chance.choice(done)
                items.append(commit(start + 1, at))  # another's commit ts
            case 7:
                items.append(commit(chance.randrange(1, ts), ts))  # an orphan, most likely
            case 8 if open_starts:
                items.append(prewrite(chance.choice(open_starts), b"other"))  # a start ts that comes twice
            case 9 if done:
                items.append(prewrite(chance.choice(done)[0], chance.choice([b"value", b"other"])))
            case 10 if done:
                items.append(prewrite(chance.choice(done)[1]))  # another's commit ts
            case 11 if done:
                items.append(commit(chance.choice(done)[0], ts))  # a second outcome
            case 12 if done:
                items.append(fake(chance.choice(chance.choice(done))))
            case _:
                pass
    chance.shuffle(tail := items[-20:])
    return items[:-20] + tail


@pytest.mark.parametrize("seed", range(12))
def test_blocks_by_kernel_and_single_records_come_to_the_same(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    # A small memory of what was put last makes it forget, and ask the index.
    bits = chance.choice([3, 6, 17])
    fast = Bench(tmp_path / "fast", plain=False, recent_bits=bits)
    plain = Bench(tmp_path / "plain", plain=True, recent_bits=bits)
    for _ in range(4):
        items = _workload(chance, 400)
        cuts = chance.choice([1, 3, 40])
        fast.write(items, cuts)
        plain.write(items, cuts)
        assert fast.seen() == plain.seen()
    assert isinstance(fast.indexer.waiting, Waiting)
    assert fast.seen()["duplicates"]


@pytest.mark.row("P5")
@pytest.mark.parametrize("seed", range(6))
def test_what_is_met_again_after_a_restart_comes_to_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(50 + seed)
    monkeypatch.setattr("pump_service.store.judge._KNOWN_AT_ONCE", chance.choice([20, 1 << 18]))
    items = _workload(chance, 600)
    again = {}
    for plain in (False, True):
        bench = Bench(tmp_path / str(plain), plain=plain)
        bench.write(items, 5)
        block = Block.concat(list(bench.valuelog.scan(Pointer(0, 0))))
        bench.start_again(plain=plain)
        for at in range(0, len(block), 100):
            bench.indexer.process(block[at : at + 100])
        again[plain] = bench.seen()
    assert again[False] == again[True]
    assert again[False]["pending"]


@pytest.mark.row("P5")
@pytest.mark.parametrize("seed", range(6))
def test_a_replay_judges_by_the_records_before_however_they_are_cut_and_by_kernel_as_one_by_one(
    seed: int, tmp_path: Path
) -> None:
    items = _workload(random.Random(90 + seed), 600)
    again = []
    for number, (plain, at_once) in enumerate([(True, 1), (False, 1), (False, 50), (False, 1 << 20)]):
        bench = Bench(tmp_path / str(number), plain=plain)
        block = Block.concat(bench.valuelog.append([Records.of(items)]).blocks)
        bench.start_again(plain=plain)  # nothing of it is indexed
        for at in range(0, len(block), at_once):
            bench.indexer.process(block[at : at + at_once])
        again.append(bench.seen() | {"pending": [(item.start_ts, item.commit_ts) for item in bench.pending.all()]})
    assert again[0] == again[1] == again[2] == again[3]
    assert again[0]["pending"]


def test_the_wait_set_grows_and_every_prewrite_is_found_and_folded(tmp_path: Path) -> None:
    chance = random.Random(5)
    fast, plain = Waiting(7, Pointer(0, 3)), Pairing(7, Pointer(0, 3))
    starts = chance.sample(range(1 << 40), 20_000)
    for at, start in enumerate(starts):
        for each in (fast, plain):
            each.prewrite(start, Pointer(1, at), 0.5)
    chance.shuffle(starts)
    for at, start in enumerate(starts[:19_000]):
        for each in (fast, plain):
            assert each.is_waiting(start)
            assert each.resolve(start)
            assert not each.resolve(start)
            each.passed(at, Pointer(2, at))
    assert fast.position() == plain.position()
    assert fast.oldest(1 << 20) == plain.oldest(1 << 20)
    assert (len(fast), fast.min_start()) == (len(plain), plain.min_start())


def test_what_was_put_last_is_all_known_above_the_floor() -> None:
    chance = random.Random(6)
    recent = Recent(0, bits=5)
    known: dict[int, Pointer] = {}
    for at in range(3000):
        ts = at * 3 + chance.randrange(30)
        recent.remember(ts, Pointer(0, at))
        known[ts] = Pointer(0, at)
        for each in chance.sample(range(at * 3 + 40), 5):
            found = recent.recall(each)
            assert found is None or found == known[each]
            assert found is not None or each not in known or not recent.knows_all_at(each)


def test_an_entry_reads_as_it_was_made() -> None:
    entries = [Entry(n % 3, n, n + 1, n, n * 100, n + 5) for n in range(20)]
    block = Block.concat([Block.of(entries[:7]), Block.of(entries[7:])])
    assert list(block) == entries
    assert block[3] == entries[3]
    assert list(block[4:9]) == entries[4:9]
    assert (block.first, block.last, block.end) == (Pointer(0, 0), Pointer(19, 1900), Pointer(19, 1940))
