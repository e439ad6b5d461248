"""Generated histories on a real TiDB: the target equals the source at every moment that is looked at, after loads and restores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.tidb import MISSING, TidbCluster
from tests.tidb import known
from tests.tidb.chain import play

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("S2"), pytest.mark.row("S3")]

# TiDB answers with its whole DDL history: a young cluster now and then keeps that short.
_HISTORIES_A_CLUSTER = 25


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[], tuple[TidbCluster, TargetSettings]]]:
    """Makes a cluster and a target; those before it end."""
    with ExitStack() as opened:
        count = 0

        def make() -> tuple[TidbCluster, TargetSettings]:
            nonlocal count
            opened.close()
            count += 1
            for name in ("tidb", "db"):
                (tmp_path / f"{name}{count}").mkdir()
            tidb = opened.enter_context(TidbCluster(tmp_path / f"tidb{count}", servers=2))
            return tidb, opened.enter_context(mariadb.running(tmp_path / f"db{count}"))

        yield make


def histories(fresh: Callable[[], tuple[TidbCluster, TargetSettings]], directory: Path, count: int) -> list[str]:
    first = int(os.environ.get("PUMPHOUSE_SEED", "0")) or int(time.time())
    bad = []
    for number in range(count):
        if number % _HISTORIES_A_CLUSTER == 0:
            tidb, target = fresh()
        seed = first + number
        where = directory / str(seed)
        played = play(tidb, target, seed, where, without=known.DDL, conversions=known.CONVERSIONS)
        bad += [f"seed {seed} (its SQL: {where}/history.sql): {line}" for line in played.found]
    return bad


@pytest.mark.timeout(1800)
def test_some_histories(fresh: Callable[[], tuple[TidbCluster, TargetSettings]], tmp_path: Path) -> None:
    assert histories(fresh, tmp_path, int(os.environ.get("PUMPHOUSE_HISTORIES", "3"))) == []


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_histories(
    fresh: Callable[[], tuple[TidbCluster, TargetSettings]],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    count = int(os.environ.get("PUMPHOUSE_HISTORIES", "300"))
    record_property("rounds", count)
    assert histories(fresh, tmp_path, count) == []
