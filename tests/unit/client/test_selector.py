"""How prewrites are spread."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from pumphouse.client.selector import HashSelector, LabelSelector, RangeSelector, ScoreSelector, make_selector
from pumphouse.errors import ConfigError
from pumphouse.model.node import NodeState, NodeStatus, PumpExtra
from pumphouse.model.tso import compose


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
@pytest.mark.parametrize("strategy", ["range", "hash", "score"])
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
@pytest.mark.parametrize("strategy", ["range", "hash", "score"])
def test_without_a_pump_there_is_no_choice(strategy):
    selector = make_selector(strategy)
    assert selector.select(1, 0) is None
    selector.set_pumps(pumps("a"))
    selector.set_pumps([])
    assert selector.select(1, 0) is None


def test_an_unknown_strategy_names_the_known():
    with pytest.raises(ConfigError, match="range, hash, score, label"):
        make_selector("best")


def scored(name: str, score: int, *, go: bool = False) -> NodeStatus:
    extra = None if go else PumpExtra(incarnation="i", start_count=1)
    return NodeStatus(node_id=name, host="h:1", state=NodeState.ONLINE, score=score, extra=extra)


@pytest.mark.row("C2")
def test_scores_are_weights_and_nobody_waits_longer_than_its_share():
    selector = ScoreSelector()
    selector.set_pumps([scored("a", 60), scored("b", 30), scored("c", 10)])
    taken = chosen(selector, 1000)
    assert Counter(taken) == {"a": 600, "b": 300, "c": 100}
    for name, every in (("a", 2), ("b", 4), ("c", 10)):
        turns = [at for at, each in enumerate(taken) if each == name]
        assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= every


@pytest.mark.row("C2")
def test_heartbeats_with_other_scores_do_not_begin_the_turn_again():
    selector = ScoreSelector()
    taken: Counter[str] = Counter()
    for n in range(500):
        selector.set_pumps([scored("a", 90 + n % 2), scored("b", 10)])
        taken[selector.select(0, 0).node_id] += 1
    assert taken["b"] == pytest.approx(50, abs=3)


@pytest.mark.row("C2")
def test_a_pump_with_score_0_takes_nothing_unless_all_have_0():
    selector = ScoreSelector()
    selector.set_pumps([scored("a", 0), scored("b", 50)])
    assert set(chosen(selector, 20)) == {"b"}
    selector.set_pumps([scored("a", 0), scored("b", 0)])
    assert Counter(chosen(selector, 20)) == {"a": 10, "b": 10}


@pytest.mark.row("C2")
def test_a_go_pump_without_a_score_counts_as_the_others_do_on_average():
    selector = ScoreSelector()
    selector.set_pumps([scored("a", 80), scored("b", 40), scored("go", 0, go=True)])
    assert Counter(chosen(selector, 180)) == {"a": 80, "b": 40, "go": 60}
    selector.set_pumps([scored("go", 0, go=True), scored("go2", 0, go=True)])
    assert Counter(chosen(selector, 20)) == {"go": 10, "go2": 10}


@pytest.mark.row("C2")
def test_a_retry_does_not_get_the_heaviest_pump_again():
    selector = ScoreSelector()
    selector.set_pumps([scored("a", 99), scored("b", 1)])
    assert selector.select(1, 0).node_id == "a"
    assert {selector.select(1, retry).node_id for retry in (1, 2)} == {"a", "b"}


def labelled(name: str, **label: str) -> NodeStatus:
    return NodeStatus(node_id=name, host="h:1", state=NodeState.ONLINE, label=label or None)


@pytest.mark.row("C2")
def test_only_pumps_with_all_the_labels_are_chosen_and_they_in_turn():
    selector = make_selector("label", {"zone": "a", "disk": "fast"})
    near = [labelled("n1", zone="a", disk="fast"), labelled("n2", zone="a", disk="fast", rack="7")]
    far = [labelled("f1", zone="b", disk="fast"), labelled("f2", zone="a"), labelled("f3")]
    selector.set_pumps([*far, *near])
    assert Counter(chosen(selector, 10)) == {"n1": 5, "n2": 5}
    assert [selector.may_take(pump) for pump in (*near, *far)] == [True, True, False, False, False]
    selector.set_pumps(far)
    assert selector.select(0, 0) is None


@pytest.mark.row("C2")
def test_with_fallback_any_pump_is_taken_while_none_has_the_labels():
    selector = LabelSelector({"zone": "a"}, fallback=True)
    selector.set_pumps([labelled("f1", zone="b"), labelled("f2")])
    assert Counter(chosen(selector, 4)) == {"f1": 2, "f2": 2}
    selector.set_pumps([labelled("f1", zone="b"), labelled("n", zone="a")])
    assert set(chosen(selector, 4)) == {"n"}
    assert selector.may_take(labelled("f1", zone="b"))


@pytest.mark.parametrize(("strategy", "labels"), [("label", None), ("label", {}), ("range", {"zone": "a"})])
def test_labels_and_their_strategy_belong_together(strategy, labels):
    with pytest.raises(ConfigError, match="together"):
        make_selector(strategy, labels)
