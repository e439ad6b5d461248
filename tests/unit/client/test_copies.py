"""Copies of transactions on Pumps of several hosts: addresses of the loopback stand for hosts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pumphouse.client.members import Members
from pumphouse.client.pump_client import PumpClient
from pumphouse.client.selector import LabelSelector, RangeSelector
from pumphouse.codec.payload import make_commit, make_prewrite, make_rollback
from pumphouse.errors import BadBinlog, ConfigError, PumpReadOnly, PumpUnavailable
from pumphouse.model.address import machine_of
from pumphouse.model.node import NodeState, NodeStatus
from tests.support.fakepump import FakePump

CLIENT = {"write_timeout_s": 1.0, "copies": 2}

pytestmark = pytest.mark.row("Q5")


def on_host(number: int) -> str:
    return f"127.0.0.{number}:0"


def prewrites(first: int, count: int) -> list[tuple[int, bytes]]:
    return [(ts, make_prewrite(ts, b"key", b"value")) for ts in range(first, first + count)]


def prewrites_of(pump: FakePump) -> set[int]:
    return set(pump.of_type("Prewrite"))


@pytest.fixture
def three(start: Callable[..., FakePump]) -> list[FakePump]:
    """Two Pumps of one host, and one of another."""
    return [start("a", addr=on_host(1)), start("b", addr=on_host(1)), start("c", addr=on_host(2))]


def test_each_transaction_is_on_two_hosts_and_its_end_goes_to_both(three, connect):
    a, b, c = three
    client = connect()
    assert client.write_prewrites(prewrites(1, 10)) == [None] * 10
    for ts, payload in prewrites(11, 10):
        client.write_prewrite(payload, ts)
    assert prewrites_of(c) == set(range(1, 21))
    assert prewrites_of(a) | prewrites_of(b) == set(range(1, 21))
    assert not prewrites_of(a) & prewrites_of(b)
    client.write_commits([(ts, make_commit(ts, ts + 100, b"key")) for ts in range(1, 11)])
    for ts in range(11, 21):
        client.write_rollback(make_rollback(ts, b"key"), ts)
    assert client.flush(60)
    for pump in three:
        assert set(pump.of_type("Commit")) == prewrites_of(pump) & set(range(1, 11))
        assert set(pump.of_type("Rollback")) == prewrites_of(pump) & set(range(11, 21))


def test_another_pump_of_the_host_takes_the_copy_of_one_that_fails(three, connect):
    a, b, _ = three
    client = connect()
    a.behave = lambda _: PumpReadOnly("a", available=1, limit=2)
    for ts, payload in prewrites(1, 6):
        client.write_prewrite(payload, ts)
    assert prewrites_of(a) == set()
    assert prewrites_of(b) == set(range(1, 7))


@pytest.mark.parametrize("gone", ["c", "ab"])
def test_one_host_takes_nothing_alone_and_the_transaction_that_it_has_is_rolled_back_there(three, connect, gone):
    client = connect()
    for each in three:
        if each.node_id in gone:
            each.stop()
    failed = client.write_prewrites(prewrites(1, 2))
    assert [type(each) for each in failed] == [PumpUnavailable] * 2
    assert "fewer than 2 hosts took the prewrite of transaction 1" in str(failed[0])
    client.write_commits([(ts, make_rollback(ts, b"key")) for ts in (1, 2)])
    assert client.flush(60)
    there = [each for each in three if each.node_id not in gone]
    assert set.union(*(prewrites_of(each) for each in there)) == {1, 2}
    assert [set(each.of_type("Rollback")) for each in there] == [prewrites_of(each) for each in there]


def test_a_cluster_of_one_host_takes_nothing(start, connect):
    start("a", addr=on_host(1))
    start("b", addr=on_host(1))
    client = connect()
    with pytest.raises(PumpUnavailable, match="fewer than 2 hosts"):
        client.write_prewrite(*reversed(prewrites(1, 1)[0]))


def test_a_host_that_comes_takes_the_place_of_one_that_went(three, connect, start):
    a, b, c = three
    client: PumpClient = connect()
    c.register(NodeState.OFFLINE)
    d = start("d", addr=on_host(3))
    client.refresh()
    assert client.write_prewrites(prewrites(1, 4)) == [None] * 4
    assert prewrites_of(d) == {1, 2, 3, 4}
    assert prewrites_of(a) | prewrites_of(b) == {1, 2, 3, 4}


def test_copies_that_ended_up_on_one_host_do_not_count(three, connect, monkeypatch):
    """As hosts can be dealt out anew while copies are on their way."""
    client: PumpClient = connect()
    select = Members.select
    monkeypatch.setattr(Members, "select", lambda self, start_ts, retry, copy: select(self, start_ts, retry, 1))
    (failed,) = client.write_prewrites(prewrites(1, 1))
    assert isinstance(failed, PumpUnavailable)
    assert "copies of transaction 1 are not on 2 hosts c, c" in str(failed)


def test_what_is_wrong_with_a_transaction_is_said_once(three, connect):
    def refuse(_: object) -> BadBinlog:
        return BadBinlog("no binlog")

    for each in three:
        each.behave = refuse
    (outcome,) = connect().write_prewrites(prewrites(1, 1))
    assert isinstance(outcome, BadBinlog)


def test_no_copy_at_all_is_refused(start, connect):
    start("a")
    with pytest.raises(ConfigError, match="copies is 0"):
        connect(copies=0)


def statuses(**hosts: str) -> list[NodeStatus]:
    return [
        NodeStatus(node_id=name, host=f"{host}:1", state=NodeState.ONLINE, label={"zone": name[0]})
        for name, host in hosts.items()
    ]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_hosts_are_dealt_out_so_that_none_has_two_copies(copies: int) -> None:
    members = Members(*(RangeSelector() for _ in range(copies)))
    members.update(statuses(a="x", b="y", c="y", d="z"))
    seen: list[set[str]] = []
    for copy in range(copies):
        chosen = [members.select(0, 0, copy) for _ in range(4)]
        assert members.last_resort(copy) == sorted(
            {each.node_id: each for each in chosen}.values(), key=lambda s: s.node_id
        )
        seen.append({machine_of(each.host) for each in chosen})
    assert set.union(*seen) == {"x", "y", "z"}
    assert sum(map(len, seen)) == 3
    assert members.choices() == 5 - copies


def test_a_host_that_is_down_is_nobodys_only_one() -> None:
    members = Members(RangeSelector(), RangeSelector())
    members.update(statuses(a="x", b="y", c="z"))
    down = next(each for each in members.available() if each.node_id == "b")
    members.failed(down, refused=True)
    assert {members.select(0, 0, copy).node_id for copy in range(2)} == {"a", "c"}
    assert [each.node_id for copy in range(2) for each in members.last_resort(copy)] == ["a", "b", "c"]


def test_hosts_that_labels_rule_out_are_no_hosts() -> None:
    members = Members(*(LabelSelector({"zone": "a"}) for _ in range(2)))
    members.update(statuses(a1="h1", b="h2", a2="h3"))
    assert {members.select(0, 0, copy).node_id for copy in range(2)} == {"a1", "a2"}
