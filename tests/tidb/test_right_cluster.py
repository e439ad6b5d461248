"""A TiDB whose writes do not reach the Pumps is not dumped, and the source's TiDB is not restored over, whatever it is called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pumphouse.archive.init import init_archive
from pumphouse.capture.passed import waiter
from pumphouse.dump.run import take_dump
from pumphouse.errors import ConfigError, RestoreError
from pumphouse.parts import Parts
from pumphouse.registry.open import open_cluster
from pumphouse.restore.parts import Chosen
from pumphouse.runs import restore, restore_parts
from pumphouse.settings import Settings, TargetSettings
from tests.support.tidb import MISSING, TidbCluster, UnistoreServer

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")


@pytest.fixture(scope="module")
def tidb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidbCluster]:
    with TidbCluster(tmp_path_factory.mktemp("tidb"), servers=2) as cluster:
        yield cluster


def begun(settings: Settings) -> None:
    with Parts(settings) as parts:
        init_archive(parts.archive, parts.cluster, parts.history, settings=settings)


def dumped(settings: Settings) -> None:
    with Parts(settings) as parts:
        take_dump(
            parts.archive,
            parts.cluster,
            parts.history,
            settings,
            settle=waiter(parts.cluster, settings.source, settings.capture),
        )


@pytest.mark.row("A5")
def test_a_tidb_without_binlogs_is_not_dumped(tidb: TidbCluster, tmp_path: Path) -> None:
    settings = tidb.settings(tmp_path / "archive", TargetSettings())
    begun(settings)
    with UnistoreServer(tmp_path) as other:
        silent = settings.model_copy(update={"source": settings.source.model_copy(update={"port": other.port})})
        with pytest.raises(ConfigError, match=r"writes no binlogs .*enable is off") as refused:
            dumped(silent)
    assert "[binlog]" in str(refused.value.hint)


@pytest.mark.row("A5")
def test_a_tidb_of_another_cluster_is_not_dumped(tidb: TidbCluster, tmp_path: Path) -> None:
    open_cluster(f"file://{tmp_path}/cluster", create=True).close()
    settings = tidb.settings(tmp_path / "archive", TargetSettings())
    elsewhere = settings.model_copy(
        update={"cluster": settings.cluster.model_copy(update={"url": f"file://{tmp_path}/cluster"})}
    )
    with pytest.raises(ConfigError, match=r"writes to the Pumps pump-1, pump-2.*has none"):
        dumped(elsewhere)
    with pytest.raises(ConfigError, match=r"schema.history is a TiDB's, and cluster.url is file:"):
        begun(elsewhere)


@pytest.mark.row("R4")
@pytest.mark.parametrize("section", ["source", "target"])
def test_the_same_tidb_by_its_other_server_is_no_restore_target(
    tidb: TidbCluster, tmp_path: Path, section: str
) -> None:
    other = TargetSettings(host="127.0.0.1", port=tidb.sql_ports[1], user="root")
    settings = tidb.settings(
        tmp_path / "archive", TargetSettings(host="127.0.0.1", port=tidb.sql_ports[0], user="root"), other
    )
    alone = tidb.settings(tmp_path / "archive", TargetSettings())
    begun(alone)
    dumped(alone)  # with that target it would be refused
    if section == "target":  # the source is told by nothing but the target's own address
        settings = settings.model_copy(update={"source": type(settings.source)()})
    with pytest.raises(RestoreError, match="a lock that is held on the one is held on the other"):
        restore.run(settings, dry_run=True)


@pytest.mark.row("R7")
def test_no_copy_goes_beside_the_rows_of_the_archives_own_tidb(tidb: TidbCluster, tmp_path: Path) -> None:
    own = TargetSettings(host="127.0.0.1", port=tidb.sql_ports[1], user="root")
    settings = tidb.settings(tmp_path / "archive", own)
    with tidb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE own")
        cursor.execute("CREATE TABLE own.t (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO own.t VALUES (1)")
        alone = tidb.settings(tmp_path / "archive", TargetSettings())
        begun(alone)
        dumped(alone)
        for into in ("target", "source"):
            with pytest.raises(
                RestoreError, match=r"a TiDB of the archive's cluster .*its binlogs would bring the copy"
            ):
                restore_parts.run(
                    settings, chosen=Chosen(tables=("own.t",), called="own.copy"), into=into, dry_run=False
                )
        cursor.execute("SHOW TABLES FROM own")
        assert [name for (name,) in cursor.fetchall()] == ["t"]
        cursor.execute("SHOW DATABASES LIKE 'pumphouse%'")
        assert not cursor.fetchall()
