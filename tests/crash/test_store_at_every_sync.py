"""Power loss at every moment at which something becomes durable: what was answered is there, what is there was sent.

With the index as of every earlier moment: `test_store_at_every_sync_with_every_index.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pump_service.store.index import Index
from pump_service.store.store import Store
from tests.support.crashfs import CrashFs, Image, machine_went_down, with_hole
from tests.support.storehistory import INDEXES, TAILS, History, check_image, crashed_store, run
from tests.support.storekit import (
    commit,
    fake,
    open_store,
    prewrite,
    quick_directory,
    settings,
    settle,
    store_all,
    stream,
    write,
)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory


@pytest.fixture(scope="module", params=["thread", "here"])
def crashed(request: pytest.FixtureRequest) -> tuple[list[Image], History]:
    """The same history, written by the writer's thread alone, and by whoever submits."""
    return crashed_store(request.param)


@pytest.mark.row("P3", "P5", "P1")
@pytest.mark.parametrize("tail", TAILS)
def test_what_was_answered_is_found_after_a_power_loss_at_any_sync(
    tail: str, crashed: tuple[list[Image], History], tmp_path: Path
) -> None:
    images, history = crashed
    assert len(images) > 45
    for image in images:
        if tail == "nothing" or image.durable != image.written:
            check_image(image, history, tmp_path, tail, INDEXES[image.number % len(INDEXES)])


@pytest.mark.slow
@pytest.mark.row("P3", "P5", "P1")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("index", INDEXES)
def test_the_same_with_other_histories(seed: int, index: str, tmp_path: Path) -> None:
    images, history = run(tmp_path / "data", seed)
    for image in images:
        for tail in TAILS:
            check_image(image, history, tmp_path, tail, index)


@pytest.mark.row("P5", "P2")
def test_a_hole_in_the_unsynced_log_of_the_index_costs_nothing_after_a_power_loss(tmp_path: Path) -> None:
    """LevelDB skips what does not read and goes on behind it, so its head pointer says nothing about what is there."""
    fs = CrashFs(tmp_path / "data", lambda: None)
    store = Store.open(settings(tmp_path / "data"), fs=fs)
    for first in range(1000, 40_000, 1000):
        starts = range(first, first + 1000, 20)
        store_all(store, *[prewrite(start) for start in starts], *[commit(start, start + 5) for start in starts])
    expected = stream(store)
    assert write(store, fake(50_000)) == [None]
    store.close()
    image = next(image for image in reversed(fs.images) if image.what == "sync 000000.vlog")
    log = max(image.kv.items(), key=lambda pair: pair[0].endswith(".log") and len(pair[1]))
    assert len(log[1]) > 100_000, "the hole must lie blocks before the end"
    image.lay_out(tmp_path / "found", tail="all", index="holes")
    found = open_store(tmp_path / "found")
    assert stream(found) == expected
    assert found.watermark == 50_000
    found.close()


@pytest.mark.row("P5", "P2")
def test_a_start_that_is_killed_while_it_rebuilds_is_followed_by_one_that_rebuilds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "data")
    for start in range(1000, 41_000, 20):
        assert write(store, prewrite(start), commit(start, start + 5)) == [None, None]
    settle(store)
    expected = stream(store)
    shutil.copytree(tmp_path / "data", tmp_path / "found")
    store.close()
    machine_went_down(tmp_path / "found")
    log = max((tmp_path / "found" / "kv").glob("*.log"))
    log.write_bytes(with_hole(log.read_bytes()))
    with monkeypatch.context() as patch:
        patch.setattr(Index, "reset", killed)
        with pytest.raises(KeyboardInterrupt):
            open_store(tmp_path / "found")
    found = open_store(tmp_path / "found")
    assert stream(found) == expected
    found.close()


def killed(*_: object) -> None:
    raise KeyboardInterrupt
