"""How prewrites are spread."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from include.client.selector import HashSelector, RangeSelector, make_selector
from include.errors import ConfigError
from include.model.node import NodeState, NodeStatus
from include.model.tso import compose


def pumps(*names: str) -> list[NodeStatus]:
    return [NodeStatus(node_id=name, host=f"{name}:1", state=NodeState.ONLINE) for name in names]


def chosen(selector, count: int) -> list[str]:
    return [selector.select(0, 0).node_id for _ in range(count)]


@pytest.mark.row("C2")
def test_range_goes_round_and_begins_anew_when_the_set_changes():
    selector = RangeSelector()
    selector.set_pumps(pumps("a", "b", "c"))
    assert chosen(selector, 4) == ["a", "b", "c", "a"]
    selector.set_pumps(pumps("a", "b", "c"))  # only a heartbeat: goes on
    assert chosen(selector, 1) == ["b"]
    selector.set_pumps(pumps("a", "c"))
    assert chosen(selector, 3) == ["a", "c", "a"]


@pytest.mark.row("C2")
def test_hash_sends_a_transaction_to_the_same_pump_whoever_asks_and_a_retry_to_the_next():
    one, two = HashSelector(), HashSelector()
    one.set_pumps(pumps("a", "b", "c"))
    two.set_pumps(pumps("a", "b", "c"))
    for start_ts in range(100, 130):
        first = one.select(start_ts, 0)
        assert first == two.select(start_ts, 0)
        assert [one.select(start_ts, retry).node_id for retry in range(3)] == sorted(
            "abc", key=lambda name: ("abc".index(name) - "abc".index(first.node_id)) % 3
        )


@pytest.mark.row("C2")
@pytest.mark.parametrize("strategy", ["range", "hash"])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("in_one_ms", [1, 4, 1000])
def test_real_timestamps_are_spread_evenly(strategy, count, in_one_ms):
    rng = random.Random(3)
    selector = make_selector(strategy)
    selector.set_pumps(pumps(*"abcde"[:count]))
    # On a quiet cluster each transaction is the first of its millisecond: the low bits say nothing.
    taken = Counter(
        selector.select(compose(1_795_000_000_000 + rng.randrange(10_000_000), rng.randrange(in_one_ms)), 0).node_id
        for _ in range(20_000)
    )
    assert len(taken) == count
    assert max(taken.values()) / min(taken.values()) < 1.1


@pytest.mark.row("C2")
@pytest.mark.parametrize("strategy", ["range", "hash"])
def test_without_a_pump_there_is_no_choice(strategy):
    selector = make_selector(strategy)
    assert selector.select(1, 0) is None
    selector.set_pumps(pumps("a"))
    selector.set_pumps([])
    assert selector.select(1, 0) is None


def test_an_unknown_strategy_names_the_known():
    with pytest.raises(ConfigError, match="range, hash"):
        make_selector("best")
