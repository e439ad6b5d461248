"""What is said beside a wait for a closing Pump must not end that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.client.closing import Waiting, waits_for
from pumphouse.errors import BadRecord, BinlogError, ClusterUnavailable
from pumphouse.model.node import NodeState, NodeStatus
from pumphouse.model.tso import Tso
from tests.support.awaycluster import AwayCluster

CLOSING = NodeStatus(node_id="p", host="nowhere:1", state=NodeState.CLOSING, max_commit_ts=Tso(5))


@pytest.mark.row("P13")
@pytest.mark.parametrize(
    "error",
    [
        ClusterUnavailable("away"),
        BadRecord("a consumer's record", path="d1", offset=0, reason="no JSON"),
        OSError("disk"),
    ],
)
def test_a_registry_that_cannot_be_read_says_nothing_and_fails_nothing(
    tmp_path: Path, error: BinlogError | OSError
) -> None:
    cluster = AwayCluster(tmp_path / "cluster")
    cluster.fails("nodes", error)
    assert waits_for(cluster, CLOSING) == Waiting(node_id="p")
