"""Generated histories on a real TiDB: the target equals the source at every moment that is looked at, after loads and restores."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.tidb import MISSING, TidbCluster, UnistoreServer
from tests.tidb import known
from tests.tidb.chain import Played, play
from tests.tidb.history import ACTIONS

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"), pytest.mark.row("S2", "S3", "R3")]

# TiDB answers with its whole DDL history: a young cluster now and then keeps that short.
_HISTORIES_A_CLUSTER = 25
INTO = pytest.mark.parametrize("into_tidb", [False, True], ids=["into MariaDB", "into a TiDB"])
MANY = range(0, int(os.environ.get("PUMPHOUSE_HISTORIES", "300")), _HISTORIES_A_CLUSTER)
SEED = int(os.environ.get("PUMPHOUSE_SEED", "0"))


def play_each(seeds: range, directory: Path, *, into_tidb: bool) -> list[Played]:
    """Histories on one cluster, into one target; both are new after a history that did not come to its end."""
    played: list[Played] = []
    left = iter(seeds)
    while len(played) < len(seeds):
        here = directory / f"from-{len(played)}"
        (here / "tidb").mkdir(parents=True)
        (here / "db").mkdir()
        with ExitStack() as opened:
            tidb = opened.enter_context(TidbCluster(here / "tidb", servers=2))
            target: TargetSettings
            if into_tidb:
                target = opened.enter_context(UnistoreServer(here / "db")).settings
            else:
                target = opened.enter_context(mariadb.running(here / "db"))
            for seed in left:
                without = known.DDL_INTO_TIDB if into_tidb else known.DDL
                try:
                    each = play(tidb, target, seed, directory / str(seed), without=without, known_casts=not into_tidb)
                except Exception:
                    each = Played(seed, found=[traceback.format_exc()])
                played.append(each)
                with (directory / "played.txt").open("a") as lines:  # for whoever waits
                    print(time.strftime("%H:%M:%S"), seed, "\n".join(each.found) or "equal", file=lines)
                if each.found:
                    break  # what stopped a load stays in TiDB's history of jobs
    return played


def differences_of(played: list[Played], directory: Path) -> list[str]:
    return [
        f"seed {p.seed} (its SQL: {directory / str(p.seed)}/history.sql): {line}" for p in played for line in p.found
    ]


@pytest.mark.timeout(1800)
@INTO
def test_some_histories(tmp_path: Path, into_tidb: bool) -> None:
    first, count = SEED or int(time.time()), int(os.environ.get("PUMPHOUSE_HISTORIES", "3"))
    assert differences_of(play_each(range(first, first + count), tmp_path, into_tidb=into_tidb), tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(0)
@INTO
@pytest.mark.parametrize("at", MANY)
def test_many_histories(
    tmp_path: Path, record_property: Callable[[str, object], None], at: int, into_tidb: bool
) -> None:
    first = (SEED or int(time.time())) + at
    seeds = range(first, first + min(_HISTORIES_A_CLUSTER, MANY.stop - at))
    record_property("rounds", len(seeds))
    record_property("seeds", f"{seeds.start}-{seeds.stop - 1}")
    played = play_each(seeds, tmp_path, into_tidb=into_tidb)
    for what in ("statements", "compared", "chosen", "tables", "rows"):
        record_property(what, sum(getattr(each, what) for each in played))
    for what in ("unreadable", "unsettled"):
        record_property(what, sum(len(getattr(each, what)) for each in played))
    actions = {action for each in played for action in each.actions}
    record_property("actions", sorted(action.name for action in actions))
    assert differences_of(played, tmp_path) == []
    assert actions <= ACTIONS, "tests.tidb.history does not name what it makes"
