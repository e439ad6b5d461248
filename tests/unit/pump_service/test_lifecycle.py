"""States of a Pump."""

from __future__ import annotations

import pytest

from pump_service.node.lifecycle import Action, Lifecycle, must_notify
from pumphouse.errors import PumpDraining
from pumphouse.model.node import NodeState

pytestmark = pytest.mark.row("W3", "P13")


@pytest.mark.parametrize("previous", [None, *NodeState])
def test_a_starting_pump_is_not_online_for_itself_whatever_the_registry_says(previous: NodeState | None) -> None:
    life = Lifecycle(previous)
    assert life.state is not NodeState.ONLINE
    assert not life.takes_prewrites
    assert life.takes_outcomes
    assert life.apply(Action.START) is NodeState.ONLINE
    assert life.takes_prewrites


@pytest.mark.parametrize(
    ("actions", "end"),
    [
        ((Action.PAUSE, Action.STOPPED), NodeState.PAUSED),
        ((Action.CLOSE, Action.DRAINED), NodeState.OFFLINE),
        ((Action.CLOSE, Action.PAUSE, Action.STOPPED), NodeState.PAUSED),
    ],
)
def test_an_end_refuses_prewrites_at_its_first_step_and_takes_outcomes(
    actions: tuple[Action, ...], end: NodeState
) -> None:
    life = Lifecycle(None)
    life.apply(Action.START)
    for action in actions:
        life.apply(action)
        assert not life.takes_prewrites
        assert life.takes_outcomes
    assert life.state is end
    life.refuse_outcomes()
    assert not life.takes_outcomes


@pytest.mark.parametrize("action", [Action.PAUSE, Action.CLOSE, Action.STOPPED, Action.DRAINED])
def test_an_offline_pump_refuses_every_change_but_a_start(action: Action) -> None:
    life = Lifecycle(NodeState.OFFLINE)
    with pytest.raises(PumpDraining, match="this pump's state is offline"):
        life.apply(action)
    assert life.state is NodeState.OFFLINE


def test_a_closing_pump_cannot_be_closed_again_nor_drained_before_it_is_closing() -> None:
    life = Lifecycle(None)
    life.apply(Action.START)
    with pytest.raises(PumpDraining):
        life.apply(Action.DRAINED)
    life.apply(Action.CLOSE)
    with pytest.raises(PumpDraining):
        life.apply(Action.CLOSE)


@pytest.mark.row("P9")
def test_drainers_are_notified_of_a_new_pump_and_of_one_that_was_offline_only() -> None:
    assert must_notify(None)
    assert must_notify(NodeState.OFFLINE)
    assert not any(must_notify(state) for state in NodeState if state is not NodeState.OFFLINE)
