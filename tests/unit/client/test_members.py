"""Available and unavailable Pumps."""

from __future__ import annotations

import pytest

from pumphouse.client.members import MAX_ERRORS, Members
from pumphouse.client.selector import RangeSelector
from pumphouse.model.node import NodeState, NodeStatus, PumpExtra

ONLINE, PAUSED, CLOSING = NodeState.ONLINE, NodeState.PAUSED, NodeState.CLOSING


def pump(
    name: str, state: NodeState = ONLINE, *, host: str = "h:1", start_count: int | None = None, incarnation: str = "i"
) -> NodeStatus:
    extra = None if start_count is None else PumpExtra(incarnation=incarnation, start_count=start_count)
    return NodeStatus(node_id=name, host=host, state=state, extra=extra)


def names(statuses) -> list[str]:
    return [status.node_id for status in statuses]


def members(*statuses: NodeStatus) -> Members:
    made = Members(RangeSelector())
    made.update(statuses)
    return made


@pytest.mark.row("C1")
def test_online_pumps_are_available_and_the_others_are_not():
    known = members(pump("b"), pump("a"), pump("c", PAUSED))
    assert names(known.available()) == names(known.last_resort()) == ["a", "b"]
    assert [known.select(0, 0).node_id for _ in range(3)] == ["a", "b", "a"]
    assert known.get("c").state == PAUSED


@pytest.mark.row("C1")
def test_a_change_of_state_moves_a_pump_between_the_sets():
    known = members(pump("a"), pump("b", PAUSED))
    known.update([pump("a", CLOSING), pump("b")])
    assert names(known.available()) == ["b"]
    known.update([pump("b")])
    assert known.get("a") is None
    known.update([pump("b"), pump("z")])
    assert names(known.available()) == ["b", "z"]


@pytest.mark.row("C4")
def test_more_than_ten_errors_in_a_row_make_a_pump_unavailable_and_a_success_resets_the_count():
    known = members(pump("a"), pump("b"))
    for _ in range(MAX_ERRORS):
        known.failed(pump("a"))
    known.succeeded(pump("a"))
    for _ in range(MAX_ERRORS):
        known.failed(pump("a"))
    assert names(known.available()) == ["a", "b"]
    known.failed(pump("a"))
    assert names(known.available()) == ["b"]
    assert names(known.to_probe()) == ["a"]
    assert {known.select(0, 0).node_id for _ in range(4)} == {"b"}


@pytest.mark.row("C4")
def test_a_refusal_in_the_pumps_own_words_counts_at_once():
    known = members(pump("a"))
    known.failed(pump("a"), refused=True)
    assert known.available() == []


@pytest.mark.row("C5")
def test_only_an_answer_brings_back_a_pump_that_stays_online():
    known = members(pump("a", start_count=1))
    known.failed(pump("a"), refused=True)
    known.update([pump("a", start_count=1)])  # its heartbeats go on
    assert known.available() == []
    known.succeeded(pump("a"))
    assert names(known.available()) == ["a"]


@pytest.mark.row("C1")
@pytest.mark.parametrize("now", [pump("a", start_count=2), pump("a", host="h:2", start_count=1)])
def test_a_pump_that_was_started_again_is_available_even_if_no_other_state_was_seen(now):
    known = members(pump("a", start_count=1))
    known.failed(pump("a"), refused=True)
    known.update([now])
    assert names(known.available()) == ["a"]


GONE = [
    pump("a", start_count=1),
    pump("a", host="h:2", start_count=2),
    pump("a", start_count=2, incarnation="another"),
]


@pytest.mark.row("C4", "C1")
@pytest.mark.parametrize("gone", GONE)
def test_what_a_process_that_is_gone_did_or_failed_to_do_is_not_its_successors(gone):
    known = members(pump("a", start_count=2))
    known.failed(gone, refused=True)
    for _ in range(2 * MAX_ERRORS):
        known.failed(gone)
    assert names(known.available()) == ["a"]
    known.failed(pump("a", PAUSED, start_count=2), refused=True)
    assert known.available() == []
    known.succeeded(gone)
    assert known.available() == []
    known.succeeded(pump("a", PAUSED, start_count=2))
    assert names(known.available()) == ["a"]


@pytest.mark.row("C1")
@pytest.mark.parametrize("by_watch", [False, True])
def test_a_status_that_a_go_program_wrote_leaves_what_is_known_of_the_process(by_watch):
    def heard(status: NodeStatus) -> None:
        known.change("a", status) if by_watch else known.update([status])

    known = members(pump("a", start_count=1))
    heard(pump("a"))  # it drops what it does not know
    assert known.get("a") == pump("a", start_count=1)
    known.failed(pump("a", start_count=1), refused=True)
    heard(pump("a"))
    heard(pump("a", start_count=1))
    assert known.available() == [], "the same process"
    heard(pump("a"))
    heard(pump("a", start_count=2))
    assert names(known.available()) == ["a"], "another one"
    heard(pump("a", host="h:2"))  # a Go Pump at another address
    assert known.get("a") == pump("a", host="h:2")


@pytest.mark.row("C4")
def test_without_the_number_of_its_start_a_failure_at_the_same_address_is_counted():
    for registered, failed in [(pump("a"), pump("a")), (pump("a", start_count=2), pump("a"))]:
        known = members(registered)
        known.failed(failed, refused=True)
        assert known.available() == []


@pytest.mark.row("C5")
def test_an_answer_does_not_make_a_pump_available_that_is_not_online():
    known = members(pump("a", CLOSING))
    known.succeeded(pump("a"))  # it takes commits
    assert known.available() == []
    assert known.to_probe() == []


@pytest.mark.row("C1")
def test_single_changes_of_a_watch_do_what_a_whole_list_does():
    known = members(pump("b"), pump("c"))
    known.change("a", pump("a"))
    known.change("c", pump("c", PAUSED))
    assert names(known.available()) == ["a", "b"]
    known.failed(pump("a"), refused=True)
    known.change("a", pump("a"))  # a heartbeat
    assert names(known.available()) == ["b"]
    known.change("b", None)
    known.change("nobody", None)
    assert names(known.last_resort()) == ["a"]
    assert known.select(0, 0) is None
    known.change("c", pump("c"))
    assert names(known.available()) == ["c"]


def test_news_of_a_pump_that_is_gone_are_nothing():
    known = members(pump("a"))
    known.update([])
    known.failed(pump("a"))
    known.succeeded(pump("a"))
    assert known.select(0, 0) is None
