"""Which Pump takes a prewrite (row C2). Selectors keep no lock: their owner, `include.client.members`, has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from include.errors import ConfigError
from include.model.node import NodeStatus


class Selector(Protocol):
    """A strategy. Statuses carry score and label, for strategies that weigh them."""

    def set_pumps(self, pumps: Sequence[NodeStatus]) -> None:
        """Take the Pumps to choose from, in order of node id; called when the set or a status changed."""
        ...

    def select(self, start_ts: int, retry: int) -> NodeStatus | None:
        """The Pump for a transaction's try number ``retry`` (from 0); None when there is none."""
        ...


class RangeSelector:
    """One after the other; the default."""

    def __init__(self) -> None:
        self._pumps: list[NodeStatus] = []
        self._next = 0

    def set_pumps(self, pumps: Sequence[NodeStatus]) -> None:
        """Start again from the first when the set changed, as TiDB's pump client does."""
        if [pump.node_id for pump in pumps] != [pump.node_id for pump in self._pumps]:
            self._next = 0
        self._pumps = list(pumps)

    def select(self, start_ts: int, retry: int) -> NodeStatus | None:
        """The next one."""
        del start_ts, retry
        if not self._pumps:
            return None
        pump = self._pumps[self._next % len(self._pumps)]
        self._next = (self._next + 1) % len(self._pumps)
        return pump


class HashSelector:
    """By start ts, so that every client sends a transaction to the same Pump; each retry moves on by one.

    TiDB's pump client takes the start ts itself modulo the number of Pumps. On a quiet cluster its low 18 bits hardly
    change, so of two or four Pumps one would get everything; the bits are mixed first.
    """

    def __init__(self) -> None:
        self._pumps: list[NodeStatus] = []

    def set_pumps(self, pumps: Sequence[NodeStatus]) -> None:
        """Take the Pumps."""
        self._pumps = list(pumps)

    def select(self, start_ts: int, retry: int) -> NodeStatus | None:
        """(hash of start ts + retry) modulo the number of Pumps."""
        if not self._pumps:
            return None
        # Fibonacci hashing: the high half of a product with 2^64 / golden ratio.
        mixed = (start_ts * 0x9E37_79B9_7F4A_7C15 & 0xFFFF_FFFF_FFFF_FFFF) >> 32
        return self._pumps[(mixed + retry) % len(self._pumps)]


STRATEGIES: dict[str, type[RangeSelector | HashSelector]] = {"range": RangeSelector, "hash": HashSelector}


def make_selector(strategy: str) -> Selector:
    """Selector by name; ConfigError for an unknown one."""
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"there is no strategy {strategy!r} to choose Pumps",
            hint=f"one of {', '.join(STRATEGIES)}",
            strategy=strategy,
        )
    return STRATEGIES[strategy]()
