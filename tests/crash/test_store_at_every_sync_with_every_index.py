"""Power loss at every sync of the value log in turn, with the index as of every earlier sync, and without it.

LevelDB is not synced: of its files any earlier state may be found beside a value log that is further. By default every
fifth of these pairs is opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.crashfs import Image
from tests.support.storehistory import TAILS, check_image, crashed_store
from tests.support.storekit import quick_directory

# An image that is opened mostly waits for the threads of its store.
AT_ONCE = 4


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory


def indexes(images: list[Image], upto: Image) -> Iterator[tuple[str, Image]]:
    """Every state of the index up to a moment, each once (most syncs find it as the one before did), and none."""
    seen: set[tuple[tuple[str, bytes], ...]] = set()
    for other in images[: upto.number + 1]:
        state = tuple(sorted(other.kv.items()))
        if state not in seen:
            seen.add(state)
            yield "kept", dataclasses.replace(upto, kv=other.kv)
    yield "lost", upto


@pytest.mark.row("P3", "P5", "P1")
@pytest.mark.parametrize("how", ["thread", "here"])
@pytest.mark.parametrize("every", [pytest.param(5, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_every_sync_opens_with_the_index_as_of_every_earlier_one_and_without(
    every: int, how: str, tmp_path: Path
) -> None:
    images, history = crashed_store(how)
    found = [(image, index, at) for at in images for index, image in indexes(images, at)]
    syncs = [at for at in images if at.what.startswith("sync ")]
    assert len(syncs) > 30
    assert sum(index == "lost" for _, index, _ in found) == len(images)
    # The index moves on between the syncs, so that its earlier states are many.
    assert len(found) > 10 * len(images)

    def check(number: int) -> None:
        image, index, _ = found[number]
        tail = TAILS[number % len(TAILS)]
        check_image(image, history, tmp_path, tail, index, of=f"-{number}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Five and the number of tails have no common factor: each tail has its turn.
        for _ in pool.map(check, range(0 if how == "thread" else every // 2, len(found), every)):
            pass
