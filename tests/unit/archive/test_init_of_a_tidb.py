"""A TiDB's binlogs come through its PD: an archive of another cluster would look well and lack all of them."""

from pathlib import Path

import pytest

from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.errors import ConfigError
from pumphouse.registry.file import FileCluster
from pumphouse.schema.history import TidbStatusSource
from pumphouse.settings import Settings
from tests.support.memorystore import MemoryStore


@pytest.mark.row("A1")
def test_an_archive_of_a_tidb_wants_its_pd(tmp_path: Path) -> None:
    cluster = FileCluster(tmp_path, create=True)
    archive = Archive(MemoryStore(), cluster.cluster_id())
    with pytest.raises(ConfigError, match="sends its binlogs to the Pumps that its PD knows") as refused:
        init_archive(archive, cluster, TidbStatusSource("http://127.0.0.1:1"), settings=Settings())
    assert "pd://HOST:2379" in str(refused.value.hint)
    assert not archive.begun()
