"""States of a Pump as a table (docs/formats.md, "Node states"). Pure: nothing here does I/O.

The order of the steps around a change (gate first, then the registry) is the business of `pump_service.process.app`.
"""

from __future__ import annotations

from enum import StrEnum

from pumphouse.errors import PumpDraining
from pumphouse.model.node import NodeState


class Action(StrEnum):
    """What moves a Pump from one state to another."""

    START = "start"
    PAUSE = "pause"  # operator, SIGTERM, a failed writer
    CLOSE = "close"  # operator: leave the cluster, drained
    STOPPED = "stopped"
    DRAINED = "drained"


# (state, action) -> next state. What is not listed is refused.
TABLE: dict[tuple[NodeState, Action], NodeState] = {
    # Any registered state can be met at a start: a killed Pump leaves `online`, `pausing` or `closing` behind.
    **{(state, Action.START): NodeState.ONLINE for state in NodeState},
    (NodeState.ONLINE, Action.PAUSE): NodeState.PAUSING,
    (NodeState.ONLINE, Action.CLOSE): NodeState.CLOSING,
    # A Pump that must stop before it is drained has not left the cluster.
    (NodeState.CLOSING, Action.PAUSE): NodeState.PAUSING,
    (NodeState.PAUSING, Action.STOPPED): NodeState.PAUSED,
    (NodeState.CLOSING, Action.DRAINED): NodeState.OFFLINE,
}

# What `PUT /state/{nodeID}/{action}` takes, and only from `online`.
OPERATOR_ACTIONS = {"pause": Action.PAUSE, "close": Action.CLOSE}


def must_notify(previous: NodeState | None) -> bool:
    """Whether online Drainers must have acknowledged the Pump before it takes writes (row P9).

    Also while `notify.Unnotified` is there: a registered state can be that of a start that was cut short.
    """
    return previous in (None, NodeState.OFFLINE)


class Lifecycle:
    """The state of this process, and the two gates for writers.

    Owned by the event loop: no locks. A process begins in the state that the registry shows for its node, but never
    in `online`: it is online for itself only after the registry says so.
    """

    def __init__(self, previous: NodeState | None) -> None:
        self.state = NodeState.OFFLINE if previous is None else previous
        if self.state is NodeState.ONLINE:
            self.state = NodeState.PAUSED  # the process that was online is gone
        self._outcomes = True

    def apply(self, action: Action) -> NodeState:
        """Move to the next state; PumpDraining when the table has no such move."""
        following = TABLE.get((self.state, action))
        if following is None:
            raise PumpDraining(f"this pump's state is {self.state}, apply {action} failed!", state=str(self.state))
        self.state = following
        return following

    @property
    def takes_prewrites(self) -> bool:
        """Whether a P is taken: online only."""
        return self.state is NodeState.ONLINE

    @property
    def takes_outcomes(self) -> bool:
        """Whether C and Rollback are taken: in every state, until the very end."""
        return self._outcomes

    def refuse_outcomes(self) -> None:
        """Take nothing more: the Pump is drained and about to be registered offline, or about to stop."""
        self._outcomes = False
