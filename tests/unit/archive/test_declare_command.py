"""What ``pumphouse archive declare-lost`` asks before it gives data up."""

import pytest
from click.testing import CliRunner

from pumphouse.archive.declare import declare_lost
from pumphouse.cli import cli
from pumphouse.errors import CorruptionError, UsageError
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.model.tso import Tso


@pytest.mark.row("A2")
@pytest.mark.parametrize(
    ("state", "silent", "warned"),
    [
        ("online", False, True),
        ("closing", False, True),
        ("online", True, False),
        ("paused", False, False),
        ("offline", False, False),
        ("offline", True, False),
    ],
)
def test_it_warns_of_a_pump_that_is_running_and_of_no_other(world, state, silent, warned):
    options = world.sets()
    world.pump("pump-1")
    world.init()
    now = world.cluster.tso()
    said = Tso(now - (60_000 << 18)) if silent else now
    world.cluster.update_node(
        NodeKind.PUMP, "pump-1", lambda found: found.with_(state=NodeState(state), update_ts=said)
    )
    asked = CliRunner().invoke(cli, [*options, "archive", "declare-lost", "pump-1", "--reason", "gone"], input="n\n")
    assert "will be missing for ever" in asked.output
    assert ("is running, its last heartbeat is fresh" in asked.output) == warned


@pytest.mark.row("A2")
def test_an_unknown_pump_is_refused_before_anything_is_asked(world):
    options = world.sets()
    world.pump("pump-1")
    world.init()
    refused = CliRunner().invoke(cli, [*options, "archive", "declare-lost", "nope", "--reason", "gone"], input="n\n")
    assert "known are: pump-1" in str(refused.exception)
    assert "missing for ever" not in refused.output


@pytest.mark.row("A2")
def test_a_pump_is_declared_lost_though_the_entry_of_another_cannot_be_read(world):
    world.pump("pump-1")
    world.pump("pump-2")
    world.init()
    (entry,) = (world.cluster._folder(NodeKind.PUMP)).glob("*pump-2*")
    entry.write_bytes(b"{")
    with pytest.raises(CorruptionError):
        world.cluster.nodes(NodeKind.PUMP)
    assert declare_lost(world.archive, world.cluster, "pump-1", "disk died").node_id == "pump-1"
    with pytest.raises(UsageError, match="known are: pump-1"):
        declare_lost(world.archive, world.cluster, "nope", "disk died")
