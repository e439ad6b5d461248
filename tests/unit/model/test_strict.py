"""What others wrote in JSON is read strictly: a wrong number is a CorruptionError where it is read, and nothing else."""

import json

import pytest

from pumphouse.errors import CorruptionError
from pumphouse.model import strict
from pumphouse.model.node import NodeState, NodeStatus, PumpExtra
from pumphouse.registry import resolvers
from pumphouse.registry.base import STOPPED, ResolverRecord

pytestmark = pytest.mark.row("W4")

WRONG = [
    "1e400",
    "-1e400",
    "NaN",
    "Infinity",
    "1.5",
    "true",
    '"7"',
    "null",
    "[]",
    str(1 << 64),
    "-1",
    "9" * 5000,
    "[" * 90_000,
]


def node(**extra: object) -> dict[str, object]:
    status = NodeStatus(
        node_id="pump-1",
        host="127.0.0.1:8250",
        state=NodeState.ONLINE,
        extra=PumpExtra(incarnation="one", start_count=3),
    )
    return status.to_dict() | extra


@pytest.mark.parametrize("value", WRONG, ids=[each[:12] for each in WRONG])
@pytest.mark.parametrize("field", ["maxCommitTS", "updateTS", "startCount", "fid", "offset"])
def test_a_node_status_with_a_wrong_number_is_refused(field, value):
    text = json.dumps(node())
    before = '"startCount": 3' if field == "startCount" else f'"{field}": 0'
    assert NodeStatus.from_json(text).node_id == "pump-1"
    assert before in text
    with pytest.raises(CorruptionError, match="no node status"):
        NodeStatus.from_json(text.replace(before, f'"{field}": {value}'))


@pytest.mark.parametrize("field", ["nodeId", "host"])
@pytest.mark.parametrize("value", [7, None, ["a"], {"a": 1}])
def test_a_node_status_whose_text_is_none_is_refused(field, value):
    with pytest.raises(CorruptionError, match="no node status"):
        NodeStatus.from_json(json.dumps(node(**{field: value})))


@pytest.mark.parametrize("value", ["1e400", "NaN", str(10**400), '"x"', "true", "[" * 90_000])
def test_a_resolver_with_a_wrong_heartbeat_counts_as_stopped_and_keeps_its_prefixes_where_they_can_be_read(value):
    record = ResolverRecord(resolver_id="app", host="h:1", prefixes=(b"app/",), heartbeat=12.5)
    text = resolvers.to_json(record).decode()
    assert resolvers.read("app", text.encode()) == record
    found = resolvers.read("app", text.replace("12.5", value).encode())
    assert found.heartbeat == STOPPED
    assert found.prefixes in ((b"app/",), (b"",))


@pytest.mark.parametrize("value", [1e308, -0.5, 0, 12])
def test_a_number_is_one_that_a_calculation_can_take(value):
    if abs(value) > strict.MAX_INT64:
        with pytest.raises(ValueError, match="no number"):
            strict.number(value)
    else:
        assert strict.number(value) == value
