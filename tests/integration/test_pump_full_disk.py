"""A disk that is really full (row P15): what is refused, what goes on, and how it comes back by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pump_service.store.laid import AHEAD_BYTES
from pumphouse.archive.archive import Archive
from pumphouse.archive.init import init_archive
from pumphouse.archive.snapshot import run_snapshot
from pumphouse.codec.payload import PrewriteValueBuilder
from pumphouse.objectstore.open import open_store
from pumphouse.proto.binlog_pb2 import Binlog, BinlogType
from pumphouse.proto.pumphouse_pb2 import SettleRequest
from pumphouse.registry.file import FileCluster
from pumphouse.settings import ArchiveSettings, ClusterSettings, Settings
from tests.support.nojobs import NoJobHistory
from tests.support.pumpserver import PumpServer, commit, prewrite, rollback
from tests.support.smalldisk import fill, small_disk
from tests.support.waiting import eventually

pytestmark = pytest.mark.row("P15", "P8", "P11")

MIB = 1 << 20
STOP_AT = 4 * MIB


class Full:
    """One Pump on a small disk, and the archive elsewhere."""

    def __init__(self, folder: Path, disk: Path, **settings: object) -> None:
        self.disk = disk
        self.cluster = FileCluster(folder / "cluster")
        self.pump = PumpServer(
            folder, self.cluster,
            stop_write_at_available_bytes=STOP_AT, reserve_bytes=MIB, value_log_file_bytes=256 << 10,
            retention_s=0.5, index_write_buffer_bytes=256 << 10, **settings,
        )  # fmt: skip
        self.pump.data_dir = disk / "data"
        waits = {"pull_timeout_s": 20.0, "poll_interval_s": 0.05, "ddl_wait_s": 1.0}
        self.settings = Settings(
            cluster=ClusterSettings(url=self.cluster.url),
            archive=ArchiveSettings(root=f"file://{folder}/archive").model_copy(update=waits),
        )
        self.committed: list[int] = []

    @property
    def archive(self) -> Archive:
        return Archive(open_store(self.settings.archive), self.cluster.cluster_id())

    def snapshot(self) -> None:
        run_snapshot(self.archive, self.cluster, self.cluster.tso(), self.settings, NoJobHistory())

    def archived(self) -> list[int]:
        archive = self.archive
        return sorted(
            ts
            for manifest in archive.windows()
            for segment in manifest.segments
            for batch in archive.segment_batches(manifest, segment)
            for ts in batch.column("commit_ts").to_pylist()
        )

    def prewrite(self, size: int) -> int:
        start_ts = self.cluster.tso()
        self.pump.write(prewrite(start_ts, value(size)))
        return int(start_ts)

    def commit(self, start_ts: int) -> None:
        commit_ts = self.cluster.tso()
        self.pump.write(commit(start_ts, commit_ts))
        self.committed.append(int(commit_ts))

    def until_refused(self) -> list[int]:
        """Transactions until a prewrite is refused for want of space; every fifth stays open."""
        left = []
        with pytest.raises(grpc.RpcError) as refused:
            for n in range(10_000):
                start_ts = self.prewrite(60_000)
                if n % 20:
                    self.commit(start_ts)
                else:
                    left.append(start_ts)
        assert refused.value.code() is grpc.StatusCode.UNKNOWN
        assert refused.value.details().startswith("no available space")
        return left

    def until_nothing_is_taken(self) -> None:
        """Rollbacks of nothing, large ones and then small ones, until not even the reserve is left."""
        for size in (40_000, 4_000, 100, 1):
            with pytest.raises(grpc.RpcError) as refused:
                for _ in range(10_000):
                    ts = self.cluster.tso()
                    message = Binlog(tp=BinlogType.Rollback, start_ts=ts, prewrite_key=os.urandom(size))
                    self.pump.write(message.SerializeToString())
            assert refused.value.details().startswith("no available space")


def value(size: int) -> bytes:
    builder = PrewriteValueBuilder(1)
    builder.insert(7, os.urandom(size))
    return builder.build()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    with small_disk(tmp_path / "disk", 56 * MIB) as disk:
        made = Full(tmp_path, disk)
        with made.pump.start():
            init_archive(made.archive, made.cluster, NoJobHistory(), settings=made.settings)
            yield made


@pytest.mark.parametrize("killed", [False, True])
def test_a_full_disk_fills_no_further_and_empties_itself_through_the_archive(full: Full, killed: bool) -> None:
    pump = full.pump
    left = full.until_refused()
    assert pump.status().read_only
    assert len(left) > 5
    for start_ts in left[2:]:
        full.commit(start_ts)
    pump.write(rollback(left[1]))
    # Somebody else takes the rest: from here on there is the reserve, and then nothing.
    fill(full.disk / "ballast")
    full.until_nothing_is_taken()
    with pytest.raises(grpc.RpcError):
        full.commit(left[0])
    size = pump.status().value_log_bytes
    files = sorted((pump.data_dir / "value").glob("*.vlog"))
    behind = sum(path.stat().st_size for path in files) - size
    # The index may have given something back in between, enough for zeros to be laid behind the last write once more.
    assert 0 <= behind <= AHEAD_BYTES
    assert not behind or not any(files[-1].read_bytes()[-behind:]), "the partial append is cut"
    if killed:
        pump.kill()
        pump.start()
        assert pump.status().read_only
    # Its outcome is known to the store that it belongs to; it is served although it is on no file.
    commit_ts = int(full.cluster.tso())
    request = SettleRequest(
        cluster_id=pump.cluster_id, start_ts=left[0], commit_ts=commit_ts, reason="the application says so", who="test"
    )
    pump.batch.Settle(request, timeout=60)
    full.committed.append(commit_ts)

    # The watermark passes by fakes that are on no file.
    full.snapshot()
    assert full.archived() == sorted(full.committed)
    assert pump.status().read_only
    # The first prewrite's commit is the youngest of all: its file goes when the retention is over, and all before it.
    freed = eventually(lambda: (run := pump.gc()).freed_files and run)
    assert freed.freed_files > 10
    eventually(lambda: not pump.status().read_only)
    full.commit(full.prewrite(60_000))
    full.snapshot()
    assert full.archived() == sorted(full.committed)
    assert pump.stop() == 0
    pump.start()
    full.commit(full.prewrite(60_000))
    full.snapshot()
    assert full.archived() == sorted(full.committed)
