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
from tests.support.tidb import MISSING, TidbCluster, UnistoreServer
from tests.tidb import known
from tests.tidb.chain import play

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("S2"), pytest.mark.row("S3")]

# TiDB answers with its whole DDL history: a young cluster now and then keeps that short.
_HISTORIES_A_CLUSTER = 25
Fresh = Callable[[bool], tuple[TidbCluster, TargetSettings]]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Fresh]:
    """Makes a cluster and a target, a TiDB where that is asked for; those before it end."""
    with ExitStack() as opened:
        count = 0

        def make(into_tidb: bool) -> tuple[TidbCluster, TargetSettings]:
            nonlocal count
            opened.close()
            count += 1
            for name in ("tidb", "db"):
                (tmp_path / f"{name}{count}").mkdir()
            tidb = opened.enter_context(TidbCluster(tmp_path / f"tidb{count}", servers=2))
            if into_tidb:
                return tidb, opened.enter_context(UnistoreServer(tmp_path / f"db{count}")).settings
            return tidb, opened.enter_context(mariadb.running(tmp_path / f"db{count}"))

        yield make


def histories(fresh: Fresh, directory: Path, count: int, *, into_tidb: bool = False) -> list[str]:
    first = int(os.environ.get("PUMPHOUSE_SEED", "0")) or int(time.time())
    bad = []
    for number in range(count):
        if number % _HISTORIES_A_CLUSTER == 0:
            tidb, target = fresh(into_tidb)
        seed = first + number
        where = directory / str(seed)
        without = known.DDL_INTO_TIDB if into_tidb else known.DDL
        played = play(tidb, target, seed, where, without=without, conversions=into_tidb or known.CONVERSIONS)
        bad += [f"seed {seed} (its SQL: {where}/history.sql): {line}" for line in played.found]
    return bad


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("into_tidb", [False, True], ids=["into MariaDB", "into a TiDB"])
def test_some_histories(fresh: Fresh, tmp_path: Path, into_tidb: bool) -> None:
    assert histories(fresh, tmp_path, int(os.environ.get("PUMPHOUSE_HISTORIES", "3")), into_tidb=into_tidb) == []


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("into_tidb", [False, True], ids=["into MariaDB", "into a TiDB"])
def test_many_histories(
    fresh: Fresh, tmp_path: Path, record_property: Callable[[str, object], None], into_tidb: bool
) -> None:
    count = int(os.environ.get("PUMPHOUSE_HISTORIES", "300"))
    record_property("rounds", count)
    assert histories(fresh, tmp_path, count, into_tidb=into_tidb) == []
