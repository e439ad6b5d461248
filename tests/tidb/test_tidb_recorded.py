"""The recorded histories (tests/recorded/histories) into a TiDB: what `tests/integration/test_recorded_histories.py` does with a MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.settings import TargetSettings
from tests.support import mariadb
from tests.support.recorded import DIRECTORY, Recorded, load_and_compare, replayed
from tests.support.tidb import MISSING, UnistoreServer
from tests.tidb.chain import empty

RECORDS = sorted(DIRECTORY.glob("*.tar.xz"))

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("S1", "S2", "S3", "L1", "L6"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    """Has the DDL jobs."""
    with mariadb.running(tmp_path_factory.mktemp("jobs")) as settings:
        yield settings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with UnistoreServer(tmp_path_factory.mktemp("target")) as target:
        yield target.settings


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name.partition(".")[0])
def test_a_tidb_equals_the_tidb_at_each_moment(
    record: Path, history: TargetSettings, server: TargetSettings, tmp_path: Path
) -> None:
    empty(server)
    recorded = Recorded.read(record)
    with replayed(recorded, tmp_path, history=history, target=server) as settings:
        assert load_and_compare(recorded, settings) == []
