"""Restores from folded bases, over packed windows, of random histories with DDL: the source as it was then."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from pumphouse.archive.compact import compact
from pumphouse.errors import FoldRefused
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import Settings
from tests.integration.test_load_ddl_kinds import create_sequence, partitions, reshaped, work
from tests.integration.test_load_schema_edges import create_view
from tests.support.bases import SMALL, dump_meanwhile, folded
from tests.support.dumpedsource import DumpedSource
from tests.support.happenings import Happenings
from tests.support.loading import drop_all, restored
from tests.support.madearchive import column, target_rows

pytestmark = pytest.mark.row("A5", "R1")
SOURCE = DumpedSource
ID = column(1, "id", flag=3)
# One that has failed is repeated by PUMPHOUSE_SEED.
SEEDS = [int(os.environ["PUMPHOUSE_SEED"])] if "PUMPHOUSE_SEED" in os.environ else list(range(10))


def one_history(source: DumpedSource, settings: Settings, target: TargetConnection, seed: int, restores: int) -> int:
    """Folds of a seed, and restores to moments behind them; how many began from a folded base."""
    rng, packing = random.Random(seed), random.Random(~seed)
    world = Happenings(source, seed)
    from_folded = 0
    for _ in range(restores):
        if rng.random() < 0.5:
            world.fill(rng.randrange(5, 60))
        world.publish()
        if rng.random() < 0.2:
            dump_meanwhile(source, world)
        at = rng.choice(world.marks[-4:])[0]
        folded(source, at, SMALL.model_copy(update={"unit_bytes": rng.choice([400, 1 << 20])}))
        if packing.random() < 0.7:
            compact(source.archive, run=packing.choice([1, 2, 3]), newest=packing.choice([0, 1]))
        if rng.random() < 0.6:
            world.publish()
        to, rows = rng.choice([mark for mark in world.marks if mark[0] >= at])
        report = restored(settings, to=to, dry_run=False)
        from_folded += report.plan.base == report.plan.base_low == at
        assert target_rows(target) == rows
    return from_folded


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restore_from_a_folded_base_is_the_source_as_it_was(
    source: DumpedSource, settings: Settings, target: TargetConnection, seed: int
) -> None:
    one_history(source, settings, target, seed, 3)


def told(target: TargetConnection) -> dict[str, tuple[Any, ...]]:
    """All that a server says of the database: what everything is made by, its rows, and what sequences give next."""
    found: dict[str, tuple[Any, ...]] = {}
    kinds = target.query("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'd'")
    for name, kind in kinds:
        made = target.query(f"SHOW CREATE TABLE d.`{name}`")[0][1]
        rows = target.query(f"SELECT * FROM d.`{name}`")
        found[name] = (kind, made, sorted(rows, key=repr))
    return found


@pytest.mark.mariadb("MySQL has no sequences")
def test_restores_from_a_folded_and_from_an_older_base_are_the_same_for_every_kind_of_ddl(
    source: DumpedSource, settings: Settings, target: TargetConnection
) -> None:
    for name in ("plain", "going", "renamed"):
        source.create_table(name, [ID, column(2, "a")])
        work(source, name, 1, 2)
    source.create_table(
        "parts", [ID, column(2, "a")], partition=partitions(source, ("p0", "10"), ("p1", "MAXVALUE"), type_=1)
    )
    source.create_table("kept", [column(1, "a"), column(2, "b")], pk_is_handle=False)
    with source.txn() as t:
        handles = [t.insert("kept", a=1, b=n % 2) for n in range(6)]
    genesis = source.genesis()
    create_sequence(source, "s")
    create_view(source, "seen", "SELECT `id` FROM `d`.`plain`")
    work(source, "parts", 3, 12)
    with source.txn() as t:
        t.delete("kept", handles[1])
        t.update("kept", handles[2], b=7)
    source.setval("s", 2000)
    source.drop_table("going")
    source.rename_table("renamed", "called")
    work(source, "called", 3, 4)
    source.truncate("plain")
    work(source, "plain", 5, 6)
    source.add_column("parts", column(3, "n", default="5", origin_default="5"))
    work(source, "parts", 4, 13)
    middle = source.cut()
    assert folded(source, middle).made
    reshaped(source, "parts", 71, partition=partitions(source, ("h0", None), ("h1", None), type_=2))
    work(source, "parts", 5, 14)
    source.setval("s", 3000)
    with source.txn() as t:
        t.delete("kept", handles[2])
    source.add_column("called", column(3, "n", default="5", origin_default="5"))
    work(source, "called", 7, 8)
    end = source.cut()
    for to in (middle, end):
        states = []
        for base in (genesis, middle):
            assert restored(settings, to=to, base=base, dry_run=False).plan.base == base
            states.append(told(target))
        assert states[0] == states[1]
        assert states[0].keys() == {"plain", "called", "parts", "kept", "s", "seen"}
    assert target_rows(target) == source.snapshot()
    # Other partitions gave a table another id: no log says that these are the rows of the old one.
    with pytest.raises(FoldRefused, match=r"d\.parts: .*archive dump --table d\.parts"):
        folded(source, end)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_campaign_of_restores_from_folded_bases(
    source: DumpedSource, settings: Settings, target: TargetConnection
) -> None:
    from_folded = 0
    for seed in range(100, 350):
        source.begin_anew()
        drop_all(target)
        try:
            from_folded += one_history(source, settings, target, seed, 4)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert from_folded > 800
