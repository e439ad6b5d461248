"""What `capture check` says of the cluster."""

from __future__ import annotations

import pytest

from pumphouse.capture.check import check_hosts
from pumphouse.model.node import NodeState, NodeStatus


@pytest.mark.row("Q5")
def test_copies_need_as_many_hosts() -> None:
    pumps = [
        NodeStatus(node_id="a", host="10.0.0.1:8250", state=NodeState.ONLINE),
        NodeStatus(node_id="b", host="10.0.0.1:8251", state=NodeState.ONLINE),
        NodeStatus(node_id="c", host="10.0.0.2:8250", state=NodeState.PAUSED),
    ]
    (line,) = check_hosts(pumps, 2)
    assert line.wrong
    assert "online on 1 hosts (10.0.0.1)" in line.text
    assert check_hosts([*pumps, NodeStatus(node_id="d", host="10.0.0.3:8250", state=NodeState.ONLINE)], 2) == []
