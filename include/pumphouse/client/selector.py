"""Which Pump takes a prewrite (row C2). Selectors keep no lock: their owner, `pumphouse.client.members`, has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pumphouse.errors import ConfigError
from pumphouse.model.node import NodeStatus


class Selector(Protocol):
    """A strategy. Statuses carry score and label, for strategies that weigh them."""

    def may_take(self, pump: NodeStatus) -> bool:
        """Whether a Pump may be chosen at all; asked before the last resort, too."""
        ...

    def prefers(self, pump: NodeStatus) -> bool:
        """Whether it is chosen before those that are not preferred."""
        ...

    def set_pumps(self, pumps: Sequence[NodeStatus]) -> None:
        """Take the Pumps to choose from, in order of node id; called when the set or a status changed."""
        ...

    def select(self, start_ts: int, retry: int) -> NodeStatus | None:
        """The Pump for a transaction's try number ``retry`` (from 0); None when there is none."""
        ...


class _AnyPump:
    """Strategies that may choose every Pump."""

    def may_take(self, pump: NodeStatus) -> bool:
        """Always."""
        del pump
        return True

    def prefers(self, pump: NodeStatus) -> bool:
        """None before another."""
        del pump
        return True


class RangeSelector(_AnyPump):
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


class HashSelector(_AnyPump):
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


class ScoreSelector(_AnyPump):
    """In proportion to the score that each Pump gives itself (0 to 100), spread as evenly in time as the weights allow.

    A Pump with score 0 takes nothing, unless all have 0. A Go Pump knows no score and writes 0: it counts as much as
    the others do on average. A retry goes round instead, so that a Pump with much weight does not get it again.
    """

    def __init__(self) -> None:
        self._pumps: list[NodeStatus] = []
        self._weights: list[float] = []
        self._credit: dict[str, float] = {}
        self._round = RangeSelector()

    def set_pumps(self, pumps: Sequence[NodeStatus]) -> None:
        """Weigh the Pumps; what one is owed it keeps, so heartbeats do not begin the turn again."""
        known = [pump.score for pump in pumps if pump.extra is not None]
        usual = sum(known) / len(known) if known else 1.0
        weighed = [(pump, usual if pump.extra is None else float(pump.score)) for pump in pumps]
        if not any(weight for _, weight in weighed):
            weighed = [(pump, 1.0) for pump in pumps]
        self._round.set_pumps(pumps)
        self._pumps = [pump for pump, weight in weighed if weight]
        self._weights = [weight for _, weight in weighed if weight]
        self._credit = {pump.node_id: self._credit.get(pump.node_id, 0.0) for pump in self._pumps}

    def select(self, start_ts: int, retry: int) -> NodeStatus | None:
        """The one that is owed most."""
        if retry or not self._pumps:
            return self._round.select(start_ts, retry)
        # Smooth weighted round robin: each earns its weight, the richest pays for all.
        best = self._pumps[0]
        for pump, weight in zip(self._pumps, self._weights, strict=True):
            self._credit[pump.node_id] += weight
            if self._credit[pump.node_id] > self._credit[best.node_id]:
                best = pump
        self._credit[best.node_id] -= sum(self._weights)
        return best


class LabelSelector:
    """Only Pumps that carry all the wanted labels, one after the other.

    With ``fallback``, while no such Pump is available any other may take a prewrite; without, there is none to choose.
    """

    def __init__(self, labels: Mapping[str, str], *, fallback: bool = False) -> None:
        self._labels = dict(labels)
        self._fallback = fallback
        self._near = RangeSelector()
        self._all = RangeSelector()

    def prefers(self, pump: NodeStatus) -> bool:
        """Whether a Pump has all the wanted labels."""
        return self._labels.items() <= (pump.label or {}).items()

    def may_take(self, pump: NodeStatus) -> bool:
        """Those with the labels; with ``fallback`` every one."""
        return self._fallback or self.prefers(pump)

    def set_pumps(self, pumps: Sequence[NodeStatus]) -> None:
        """Sort the Pumps out."""
        self._near.set_pumps([pump for pump in pumps if self.prefers(pump)])
        self._all.set_pumps(pumps if self._fallback else [])

    def select(self, start_ts: int, retry: int) -> NodeStatus | None:
        """The next of those with the labels, or with ``fallback`` of all."""
        return self._near.select(start_ts, retry) or self._all.select(start_ts, retry)


STRATEGIES: dict[str, type[RangeSelector | HashSelector | ScoreSelector]] = {
    "range": RangeSelector,
    "hash": HashSelector,
    "score": ScoreSelector,
}
LABEL = "label"


def make_selector(strategy: str, labels: Mapping[str, str] | None = None, *, label_fallback: bool = False) -> Selector:
    """Selector by name; ConfigError for an unknown one, and for labels that are missing or would not be looked at."""
    if (strategy == LABEL) != bool(labels):
        raise ConfigError(
            "the strategy 'label' needs labels" if strategy == LABEL else f"labels mean nothing to {strategy!r}",
            hint="give strategy='label' and labels={'zone': 'a'} together",
            strategy=strategy,
        )
    if labels:
        return LabelSelector(labels, fallback=label_fallback)
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"there is no strategy {strategy!r} to choose Pumps",
            hint=f"one of {', '.join([*STRATEGIES, LABEL])}",
            strategy=strategy,
        )
    return STRATEGIES[strategy]()
