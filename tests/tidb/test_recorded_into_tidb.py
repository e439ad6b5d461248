"""Recorded histories of a real TiDB, loaded into another: every row and column at each moment, and no rule helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.recorded import DIRECTORY, Recorded, load_and_compare, replayed
from tests.support.tidb import MISSING, UnistoreServer
from tests.tidb.chain import empty

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("S1", "S2", "S3", "L1", "L6"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("target")) as server:
        yield server.settings


@pytest.fixture(scope="module")
def history() -> Iterator[TargetSettings]:
    """Has the DDL jobs."""
    with mariadb.in_memory() as settings:
        yield settings


@pytest.mark.parametrize("record", sorted(DIRECTORY.glob("*.tar.xz")), ids=lambda path: path.name.partition(".")[0])
def test_a_tidb_equals_the_tidb_at_each_moment(
    record: Path, history: TargetSettings, target: TargetSettings, tmp_path: Path
) -> None:
    empty(target)
    recorded = Recorded.read(record)
    with replayed(recorded, tmp_path, history=history, target=target) as settings:
        assert load_and_compare(recorded, settings) == []
