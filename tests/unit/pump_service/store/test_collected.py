"""Young commits that GC removed: found again, forgotten when they are old, and never more than so many."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from pump_service.store.collected import FILE_NAME, CollectedCommits
from pump_service.store.fs import REAL_FS
from tests.support.crashfs import CrashFs, FaultyFs, failing

pytestmark = pytest.mark.row("P11")


class CountingFs(FaultyFs):
    """Counts what is written anew."""

    anew = 0

    def write_atomic(self, path: Path, data: bytes) -> None:
        super().write_atomic(path, data)
        self.anew += len(data)


def opened(directory: Path, most: int = 1 << 20, piece: int = 64, fs: FaultyFs | None = None) -> CollectedCommits:
    found = CollectedCommits(fs or REAL_FS, directory, most=most, piece=piece)
    found.load()
    return found


def test_it_is_as_a_set_whose_old_pairs_may_be_forgotten(tmp_path: Path) -> None:
    chance = random.Random(5)
    kept = opened(tmp_path)
    known: set[tuple[int, int]] = set()
    oldest = 0
    for round_ in range(150):
        oldest += chance.randint(0, 40)
        # Mostly in order, as GC meets them; some starts share a commit ts by a mistake of their writer.
        pairs = [
            (chance.randint(1, 10_000), oldest + chance.randint(0, 300) + round_) for _ in range(chance.randint(0, 90))
        ]
        assert kept.add(pairs, oldest)
        known |= set(pairs)
        if round_ % 10 == 0:
            kept = opened(tmp_path)
        assert all(pair in kept for pair in known if pair[1] >= oldest)
        for start, commit in chance.sample(sorted(known), min(20, len(known))):
            assert ((start + 1, commit) in kept) <= ((start + 1, commit) in known)
            assert ((start, commit + 1) in kept) <= ((start, commit + 1) in known)
    # Pieces that ended before are gone, from memory and from the file.
    young = sum(pair[1] >= oldest for pair in known)
    assert young < len(kept) < young + 300
    assert (tmp_path / FILE_NAME).stat().st_size <= 16 * (2 * len(kept) + 64 + 90)
    assert len(known) > 5000


def test_many_are_appended_and_not_written_again_with_each_batch(tmp_path: Path) -> None:
    fs = CountingFs()
    kept = opened(tmp_path, piece=1 << 10, fs=fs)
    for first in range(0, 100_000, 500):
        assert kept.add([(at, at + 1) for at in range(first, first + 500)], max(first - 20_000, 0))
    assert 20_000 <= len(kept) < 23_000
    # Once for each time that half of the file is old: less than what was added in all.
    assert fs.anew < 16 * 100_000
    assert (tmp_path / FILE_NAME).stat().st_size < 16 * 50_000
    again = opened(tmp_path, piece=1 << 10)
    assert all((at, at + 1) in again for at in range(80_000, 100_000))
    assert (100_000, 100_001) not in again


def test_there_is_a_most_and_what_does_not_fit_is_refused_until_others_are_old(tmp_path: Path) -> None:
    kept = opened(tmp_path, most=100, piece=10)
    assert kept.add([(at, at + 1) for at in range(95)], 0)
    assert not kept.add([(at, at + 1) for at in range(95, 105)], 0)
    assert (95, 96) not in kept
    assert kept.add([(at, at + 1) for at in range(90, 100)], 0), "those that are there take no room"
    assert not kept.add([(100, 101)], 5)
    assert kept.add([(100, 101)], 20)
    assert (5, 6) not in kept
    assert (50, 51) in opened(tmp_path)


def test_an_append_that_was_cut_anywhere_costs_nothing_that_was_noted(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    first, second, third = ([(at, at + 1) for at in range(base, base + 5)] for base in (100, 200, 300))
    assert kept.add(first, 0)
    whole = (tmp_path / FILE_NAME).read_bytes()
    assert kept.add(second, 0)
    both = (tmp_path / FILE_NAME).read_bytes()
    assert both.startswith(whole)
    for size in range(len(whole), len(both)):
        for found in (both[:size], both[:size].ljust(len(both), b"\0")):
            (tmp_path / FILE_NAME).write_bytes(found)
            after = opened(tmp_path)
            assert all(pair in after for pair in first)
            assert after.add(third, 0)
            assert all(pair in opened(tmp_path) for pair in (*first, *third))


def test_what_a_killed_process_had_not_synced_counts_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is new to the next process, so that no other sync would come before its keys go."""
    fs = CrashFs(tmp_path / "data", lambda: None)
    (tmp_path / "data").mkdir()
    kept = CollectedCommits(fs, tmp_path / "data")
    assert kept.add([(1, 2)], 0)

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tests.support.crashfs._CrashHandle.sync", killed)
        with pytest.raises(KeyboardInterrupt):
            kept.add([(3, 4)], 0)
    again = CollectedCommits(fs, tmp_path / "data")
    again.load()
    assert again.add([(3, 4)], 0)
    # Now its keys may go; and now the power is lost.
    fs._take("power")
    fs.images[-1].lay_out(tmp_path / "found", tail="nothing", index="lost")
    found = opened(tmp_path / "found")
    assert (1, 2) in found
    assert (3, 4) in found


def test_a_write_that_fails_notes_nothing_and_the_next_one_does(tmp_path: Path) -> None:
    fs = FaultyFs()
    kept = opened(tmp_path, fs=fs)
    fs.faults["replace"] = failing(errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="injected"):
        kept.add([(1, 2)], 0)
    assert kept.add([(1, 2)], 0)
    fs.faults["write"] = failing(errno.ENOSPC, times=1)
    fs.short_write = 9
    with pytest.raises(OSError, match="injected"):
        kept.add([(3, 4), (5, 6)], 0)
    assert (3, 4) not in kept
    fs.faults["sync"] = failing(errno.EIO, times=1)
    with pytest.raises(OSError, match="injected"):
        kept.add([(3, 4), (5, 6)], 0)
    assert kept.add([(7, 8)], 0)
    again = opened(tmp_path)
    assert (1, 2) in again
    assert (7, 8) in again


def test_a_disk_that_is_too_full_to_write_all_anew_is_appended_to(tmp_path: Path) -> None:
    """GC is what frees it."""
    fs = FaultyFs()
    kept = opened(tmp_path, piece=4, fs=fs)
    assert kept.add([(at, at + 1) for at in range(40)], 0)
    fs.faults["replace"] = failing(errno.ENOSPC)
    assert kept.add([(100, 101)], 90)
    assert (100, 101) in opened(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_size == 16 * 41
    del fs.faults["replace"]
    assert kept.add([(102, 103)], 90)
    assert (tmp_path / FILE_NAME).stat().st_size == 16 * 2
