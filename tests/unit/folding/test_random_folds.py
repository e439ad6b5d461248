"""Folds of random histories: each base has exactly the rows that the source had, whatever it was folded from."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.verify import verify
from pumphouse.objectstore.file import FileStore
from tests.support.bases import SMALL, base_of, dump_meanwhile, folded, rows_of
from tests.support.dumpedsource import DumpedSource
from tests.support.happenings import Happenings
from tests.support.killed import Killed

pytestmark = pytest.mark.row("A5")
STORE_CALLS = ("get", "get_file", "list", "size", "put", "put_file", "put_if_absent")
# One that has failed is repeated by PUMPHOUSE_SEED.
ONE = [int(os.environ["PUMPHOUSE_SEED"])] if "PUMPHOUSE_SEED" in os.environ else None


class Kill:
    """A call of the store at which the run ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        for name in STORE_CALLS:
            monkeypatch.setattr(FileStore, name, self._watched(getattr(FileStore, name)))

    def _watched(self, original: Any) -> Any:
        def call(self_: Any, *args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return original(self_, *args, **more)

        return call


def one_history(source: DumpedSource, seed: int, kill: Kill) -> tuple[int, int]:
    """Windows and folds of a seed, each held against the source; how many folds there were, and how many kills."""
    rng = random.Random(seed)
    world = Happenings(source, seed)
    folds = kills = 0
    for _ in range(rng.randrange(2, 5)):
        for _ in range(rng.randrange(1, 4)):
            if rng.random() < 0.5:
                world.fill(rng.randrange(5, 60))
            world.publish()
        if rng.random() < 0.3:
            dump_meanwhile(source, world)
            world.publish()
        at, rows = rng.choice(world.marks[-6:])
        load = SMALL.model_copy(update={"unit_bytes": rng.choice([300, 2_000, 1 << 20]), "connections": 2})
        kill.left = rng.randrange(1, 60) if rng.random() < 0.5 else 0
        try:
            folded(source, at, load)
        except Killed:
            kills += 1
            kill.left = 0
            folded(source, at, load)
        kill.left = 0
        folds += 1
        base = base_of(source, at)
        if base.folded is not None:
            assert rows_of(source, base) == rows
        assert not folded(source, at, load).made
    assert verify(source.archive).sound
    return folds, kills


@pytest.mark.parametrize("seed", ONE or range(30))
def test_a_folded_base_has_the_rows_of_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    one_history(DumpedSource(tmp_path), seed, Kill(monkeypatch))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_campaign_of_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    kill, folds, kills = Kill(monkeypatch), 0, 0
    source = DumpedSource(tmp_path / "archive")
    for seed in range(1_000, 2_000):
        source.begin_anew()
        try:
            found = one_history(source, seed, kill)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        folds, kills = folds + found[0], kills + found[1]
    record_property("rounds", 1_000)
    record_property("kills", kills)
    assert folds > 2_500
    assert kills > 300
