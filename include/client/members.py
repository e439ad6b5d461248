"""The Pumps that a client knows, and which of them are available (rows C1, C4). No network here.

A Pump is available when its registered state is online and it has not failed more than ``MAX_ERRORS`` times in a row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from include.client.selector import Selector
from include.model.node import NodeState, NodeStatus

MAX_ERRORS = 10


@dataclass(slots=True)
class _Member:
    status: NodeStatus
    available: bool
    errors: int = 0


class Members:
    """The two sets, for any number of threads."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._lock = threading.Lock()
        self._members: dict[str, _Member] = {}

    def update(self, statuses: Iterable[NodeStatus]) -> None:
        """Take what the registry says now.

        A Pump that came online, was started again or moved is available at once; one that left online is not. One that
        stayed online keeps its errors: only a success or a probe brings it back.
        """
        with self._lock:
            known, self._members = self._members, {}
            for status in sorted(statuses, key=lambda each: each.node_id):
                online = status.state == NodeState.ONLINE
                old = known.get(status.node_id)
                if old is None or not online or _is_new_run(old.status, status):
                    self._members[status.node_id] = _Member(status, available=online)
                else:
                    old.status = status
                    self._members[status.node_id] = old
            self._tell_selector()

    def select(self, start_ts: int, retry: int) -> NodeStatus | None:
        """The Pump for this try, or None."""
        with self._lock:
            return self._selector.select(start_ts, retry)

    def get(self, node_id: str) -> NodeStatus | None:
        """Status of a Pump, if it is registered."""
        with self._lock:
            member = self._members.get(node_id)
            return None if member is None else member.status

    def available(self) -> list[NodeStatus]:
        """Pumps that take prewrites, as far as is known."""
        with self._lock:
            return [member.status for member in self._members.values() if member.available]

    def online(self) -> list[NodeStatus]:
        """Pumps that are registered online, available or not."""
        with self._lock:
            return [m.status for m in self._members.values() if m.status.state == NodeState.ONLINE]

    def to_probe(self) -> list[NodeStatus]:
        """Pumps that are registered online but not available."""
        with self._lock:
            return [m.status for m in self._members.values() if m.status.state == NodeState.ONLINE and not m.available]

    def succeeded(self, node_id: str) -> None:
        """A write or a probe was answered."""
        with self._lock:
            member = self._members.get(node_id)
            if member is None:
                return
            member.errors = 0
            if not member.available and member.status.state == NodeState.ONLINE:
                member.available = True
                self._tell_selector()

    def failed(self, node_id: str, *, refused: bool = False) -> None:
        """A write failed; ``refused``: the Pump itself says that it takes no prewrites, so one failure is enough."""
        with self._lock:
            member = self._members.get(node_id)
            if member is None:
                return
            member.errors += 1
            if member.available and (refused or member.errors > MAX_ERRORS):
                member.available = False
                self._tell_selector()

    def _tell_selector(self) -> None:
        self._selector.set_pumps([member.status for member in self._members.values() if member.available])


def _is_new_run(old: NodeStatus, new: NodeStatus) -> bool:
    if old.state != new.state or old.host != new.host:
        return True
    if old.extra is None or new.extra is None:
        return False
    return (old.extra.incarnation, old.extra.start_count) != (new.extra.incarnation, new.extra.start_count)
