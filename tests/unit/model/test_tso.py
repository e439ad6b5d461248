"""Timestamps and node statuses."""

from __future__ import annotations

import json

import pytest

from pumphouse.errors import CorruptionError
from pumphouse.model import tso
from pumphouse.model.moment import parse_time
from pumphouse.model.node import NodeState, NodeStatus, PumpExtra
from pumphouse.model.tso import Tso


def test_a_clock_time_is_its_millisecond_shifted_and_inclusive() -> None:
    ts = parse_time("2023-03-15T08:28:16.000Z", lambda: Tso(0)).ts
    assert ts == 1_678_868_896_000 << 18
    assert tso.show(ts) == f"{ts} (2023-03-15 08:28:16.000Z)"


@pytest.mark.row("W3")
def test_a_status_has_the_fields_of_the_go_tools_first_and_ours_in_one_object() -> None:
    status = NodeStatus(
        node_id="p1",
        host="h:1",
        state=NodeState.ONLINE,
        extra=PumpExtra(incarnation="ab", start_count=2),
        label={"a": "b"},
    )
    data = json.loads(status.to_json())
    assert list(data) == [
        "nodeId", "host", "state", "isAlive", "score", "label", "maxCommitTS", "updateTS", "pumphouse",
    ]  # fmt: skip
    assert NodeStatus.from_json(status.to_json()) == status


@pytest.mark.row("W3")
def test_a_status_of_a_go_pump_is_read_and_unknown_fields_are_kept() -> None:
    text = '{"nodeId":"a","host":"b","state":"paused","isAlive":false,"score":0,"label":null,"maxCommitTS":1,"updateTS":2,"new":3}'
    status = NodeStatus.from_json(text)
    assert status.extra is None
    assert json.loads(status.to_json()) == json.loads(text)


def test_a_value_that_is_no_status_is_corruption() -> None:
    with pytest.raises(CorruptionError):
        NodeStatus.from_json("[]")
