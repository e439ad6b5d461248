"""What a Go Pump sends ahead of who writes it down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pumphouse.archive.puller import GoPuller
from pumphouse.model.node import NodeKind
from pumphouse.model.tso import Tso
from pumphouse.proto.binlog_pb2 import Binlog
from pumphouse.registry.file import FileCluster
from tests.support.pullpump import PullPump
from tests.support.waiting import eventually

MIB = 1 << 20


@pytest.mark.row("W1", "A1")
def test_what_a_go_pump_sends_ahead_is_bounded_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binlogs of a batch import, while a segment is written: messages alone would let all of them in."""
    monkeypatch.setattr("pumphouse.archive.puller._GO_AHEAD_BYTES", 8 * MIB)
    cluster = FileCluster(tmp_path, create=True)
    pump = PullPump(cluster, "go", go=True)
    pump.follow_clock = False
    sizes = [MIB] * 60 + [20 * MIB] + [10] * 500
    pump.binlogs = [
        (2 * n, 2 * n - 1, Binlog(commit_ts=2 * n, start_ts=2 * n - 1, prewrite_value=b"x" * size).SerializeToString(), 0, 0)
        for n, size in enumerate(sizes, 1)
    ]  # fmt: skip
    pump.frame_rows = len(sizes)
    after, sent = pump._after, []

    def counted(position: int, mark: int) -> Iterator[Any]:
        for each in after(position, mark):
            sent.append(each[0])
            yield each

    monkeypatch.setattr(pump, "_after", counted)
    pump.start()
    status = cluster.node(NodeKind.PUMP, "go")
    assert status is not None
    puller = GoPuller(status, cluster.cluster_id())
    frames = puller.frames(Tso(0))
    try:
        found: list[int] = []
        while len(found) < len(sizes):
            batch = next(frames).batch
            if batch is None:
                continue
            if not found:  # whoever pulls writes for a while
                eventually(lambda: len(sent) > 8)
                time.sleep(1.5)
                # The queue, one message more, and what gRPC holds on both sides.
                assert len(sent) < len(batch) + 25
            found += batch.column("commit_ts").to_pylist()
        assert found == [2 * n for n in range(1, len(sizes) + 1)]
    finally:
        frames.close()  # type: ignore[attr-defined]
        puller.close()
        pump.stop()
