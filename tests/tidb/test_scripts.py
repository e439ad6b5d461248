"""Scripts of SQL (tests/tidb/scripts), each of one thing that once differed: on a real TiDB, and the target equals it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.settings import TargetSettings
from tests.support import kind, mariadb
from tests.support.tidb import MISSING, TidbCluster
from tests.tidb.chain import play

# What a MySQL makes of these values is not what TiDB makes of them: the load stops by name.
STOPS_MYSQL = {"conversions", "every_kind"}
SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sql"))

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "-"),
    pytest.mark.row("S2", "S3", "L6"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def tidb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidbCluster]:
    with TidbCluster(tmp_path_factory.mktemp("tidb")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetSettings]:
    with mariadb.running(tmp_path_factory.mktemp("db")) as settings:
        yield settings


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_target_equals_the_source(tidb: TidbCluster, server: TargetSettings, tmp_path: Path, script: Path) -> None:
    played = play(tidb, server, 1, tmp_path, script=script.read_text().splitlines())
    if kind.is_mysql() and script.stem in STOPS_MYSQL:
        assert "stopped: ConversionUnknown" in str(played.found)
        return
    assert played.found == []
    assert played.compared > 2
