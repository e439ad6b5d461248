"""The Pumps that a client knows, and which of them are available (rows C1, C4). No network here.

A Pump is available when its registered state is online and it has not failed more than ``MAX_ERRORS`` times in a row,
nor been left for another one because it was silent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pumphouse.client.selector import Selector
from pumphouse.library_log import library_logger
from pumphouse.model.address import machine_of
from pumphouse.model.node import NodeState, NodeStatus

log = library_logger(__name__)

MAX_ERRORS = 10


@dataclass(slots=True)
class _Member:
    status: NodeStatus
    available: bool
    errors: int = 0
    complained: bool = False  # that it is unavailable stands in the log, and not yet that it is back
    left: int = 0  # prewrites that did not wait for its answer, since the last one that it answered


class Members:
    """The two sets, for any number of threads; a selector for each copy of a prewrite, each with hosts of its own."""

    def __init__(self, *selectors: Selector) -> None:
        self._selectors = selectors
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
                self._members[status.node_id] = _merged(known.get(status.node_id), status)
            self._tell_selectors()
        self._say_who_is_back()

    def change(self, node_id: str, status: NodeStatus | None) -> None:
        """Take one change that a watch brought; None = the Pump was removed."""
        with self._lock:
            if status is None:
                self._members.pop(node_id, None)
            else:
                new = node_id not in self._members
                self._members[node_id] = _merged(self._members.get(node_id), status)
                if new:
                    self._members = dict(sorted(self._members.items()))
            self._tell_selectors()
        self._say_who_is_back()

    def select(self, start_ts: int, retry: int, copy: int = 0) -> NodeStatus | None:
        """The Pump for this try, or None."""
        with self._lock:
            return self._selectors[copy].select(start_ts, retry)

    def get(self, node_id: str) -> NodeStatus | None:
        """Status of a Pump, if it is registered."""
        with self._lock:
            member = self._members.get(node_id)
            return None if member is None else member.status

    def available(self) -> list[NodeStatus]:
        """Pumps that take prewrites, as far as is known."""
        with self._lock:
            return [member.status for member in self._members.values() if member.available]

    def can_be_left(self, pump: NodeStatus) -> bool:
        """Whether the strategy has hosts for all copies without this Pump."""
        with self._lock:
            able = (m.status for m in self._members.values() if m.available and self._may_take(m.status))
            return len({machine_of(each.host) for each in able if each.node_id != pump.node_id}) >= len(self._selectors)

    def lacking(self) -> list[int]:
        """Copies that no available Pump takes."""
        with self._lock:
            return [copy for copy, some in enumerate(self._dealt()) if not any(each.available for each in some)]

    def last_resort(self, copy: int = 0) -> list[NodeStatus]:
        """Pumps that are worth one more try when every other failed: online, and such as the strategy may take."""
        with self._lock:
            return [member.status for member in self._dealt()[copy]]

    def to_probe(self) -> list[NodeStatus]:
        """Pumps that are registered online but not available."""
        with self._lock:
            return [m.status for m in self._members.values() if m.status.state == NodeState.ONLINE and not m.available]

    def succeeded(self, pump: NodeStatus, *, probed: bool = False) -> None:
        """A write or a probe was answered; ``pump`` as with `failed`."""
        with self._lock:
            member = self._members.get(pump.node_id)
            if member is None or not same_process(pump, member.status):
                return
            member.errors = 0
            if not probed:
                member.left = 0
            if member.available or member.status.state != NodeState.ONLINE:
                return
            member.available = True
            self._tell_selectors()
        self._say_who_is_back()

    def silent(self, pump: NodeStatus, why: object = "") -> bool:
        """A write did not wait for its answer any longer, and goes to another Pump: one such failure is enough.

        Returns whether it should be probed at once. A Pump that answers probes and no writes is left again and again:
        from the second time on its probe waits for its turn.
        """
        self.failed(pump, why, refused=True)
        with self._lock:
            member = self._members.get(pump.node_id)
            if member is None or not same_process(pump, member.status):
                return False
            member.left += 1
            return member.left == 1

    def failed(self, pump: NodeStatus, why: object = "", *, refused: bool = False) -> None:
        """A write failed; ``refused``: the Pump itself says that it takes no prewrites, so one failure is enough.

        ``pump`` is the status to which it was sent: that of a process which is gone says nothing of its successor.
        """
        with self._lock:
            member = self._members.get(pump.node_id)
            if member is None or not same_process(pump, member.status):
                return
            member.errors += 1
            if not member.available or not (refused or member.errors > MAX_ERRORS):
                return
            member.available = False
            member.complained = True
            self._tell_selectors()
            others = any(each.available and self._may_take(each.status) for each in self._members.values())
        log.warning(
            "pump_unavailable",
            node_id=pump.node_id,
            host=pump.host,
            error=str(why),
            hint="prewrites go to other Pumps until it answers a probe or is started again"
            if others
            else "no other Pump is available: prewrites wait until one is, and fail when their time is over; see "
            "`pumphouse pumps`",
        )

    def _say_who_is_back(self) -> None:
        with self._lock:
            back = [member for member in self._members.values() if member.complained and member.available]
            for member in back:
                member.complained = False
        for member in back:  # as loud as what it takes back
            log.warning("pump_available_again", node_id=member.status.node_id, host=member.status.host)

    def _tell_selectors(self) -> None:
        for selector, members in zip(self._selectors, self._dealt(), strict=True):
            selector.set_pumps([member.status for member in members if member.available])

    def _may_take(self, pump: NodeStatus) -> bool:
        return self._selectors[0].may_take(pump)

    def _dealt(self) -> list[list[_Member]]:
        """Those that each copy may go to: no host has two copies of a transaction. Hosts that take none come last."""
        prefers = self._selectors[0].prefers
        online = [m for m in self._members.values() if m.status.state == NodeState.ONLINE and self._may_take(m.status)]
        able = {machine_of(member.status.host) for member in online if member.available}
        near = {machine_of(member.status.host) for member in online if member.available and prefers(member.status)}
        hosts = sorted(
            {machine_of(member.status.host) for member in online},
            key=lambda host: (host not in able, host not in near, host),
        )
        dealt: list[list[_Member]] = [[] for _ in self._selectors]
        for member in online:
            dealt[hosts.index(machine_of(member.status.host)) % len(dealt)].append(member)
        return dealt


def _merged(old: _Member | None, status: NodeStatus) -> _Member:
    if old is not None and status.extra is None and status.host == old.status.host:
        # A Go program has written it, which drops what it does not know. The next heartbeat brings it back.
        status = replace(status, extra=old.status.extra)
    online = status.state == NodeState.ONLINE
    if old is None or not online or old.status.state != status.state or not same_process(old.status, status):
        return _Member(status, available=online, complained=old is not None and old.complained)
    old.status = status
    return old


def same_process(one: NodeStatus, other: NodeStatus) -> bool:
    """Whether two statuses of a Pump are of one process, as far as they tell: those of a Go Pump tell its address."""
    if one.host != other.host or one.extra is None or other.extra is None:
        return one.host == other.host
    return (one.extra.incarnation, one.extra.start_count) == (other.extra.incarnation, other.extra.start_count)
