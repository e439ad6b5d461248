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
from tests.support.waiting import eventually

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
    pumps = [start("a", addr=on_host(1)), start("b", addr=on_host(1))]
    client = connect()
    with pytest.raises(PumpUnavailable, match="fewer than 2 hosts"):
        client.write_prewrite(*reversed(prewrites(1, 1)[0]))
    assert [prewrites_of(each) for each in pumps] == [set(), set()]


def test_while_a_host_is_away_the_disks_of_the_others_do_not_fill(three, connect):
    *there, c = three
    client = connect(write_timeout_s=0.3)
    c.behave = lambda _: PumpReadOnly("c", available=1, limit=2)
    for first in range(1, 40, 10):  # tried again and again, as a capture does
        assert [type(each) for each in client.write_prewrites(prewrites(first, 10))] == [PumpUnavailable] * 10
    assert set.union(*map(prewrites_of, there)) == set(range(1, 11))  # before it was known
    c.behave = lambda _: None
    client.probe()
    assert client.write_prewrites(prewrites(41, 10)) == [None] * 10
    assert set.union(*map(prewrites_of, there)) == {*range(1, 11), *range(41, 51)}


def test_what_lies_in_a_file_goes_to_nobody_else_while_a_host_is_away(three, connect):
    class File:
        def __init__(self, start_ts: int) -> None:
            self.payload = prewrites(start_ts, 1)[0][1]

        def __len__(self) -> int:
            return len(self.payload)

        def __bytes__(self) -> bytes:
            return self.payload

    a, b, c = three
    client = connect(write_timeout_s=0.3)
    for each in (a, b):
        each.behave = lambda _: PumpReadOnly("full", available=1, limit=2)
    for ts in (1, 2, 3):
        assert isinstance(client.write_prewrites([(ts, File(ts))])[0], PumpUnavailable)
    assert prewrites_of(c) == {1}  # before it was known
    for each in (a, b):
        each.behave = lambda _: None
    client.probe()
    assert client.write_prewrites([(4, File(4))]) == [None]
    assert prewrites_of(c) == {1, 4}


def test_a_host_that_falls_out_under_way_is_replaced_also_by_one_that_another_copy_went_to(start, connect):
    x, y, z = (start(name, addr=on_host(number)) for number, name in enumerate("xyz", 1))
    client = connect()
    client.write_prewrite(*reversed(prewrites(1, 1)[0]))
    assert [prewrites_of(each) for each in (x, y, z)] == [{1}, {1}, set()]

    def falls_out(_: object) -> PumpReadOnly:
        eventually(lambda: 2 in prewrites_of(z))
        return PumpReadOnly("y", available=1, limit=2)

    y.behave = falls_out
    client.write_prewrite(*reversed(prewrites(2, 1)[0]))
    assert [2 in prewrites_of(each) for each in (x, y, z)] == [True, False, True]
    client.write_commit(make_commit(2, 3, b"key"), 2)
    assert client.flush(60)
    assert [each.of_type("Commit") for each in (x, y, z)] == [[2], [], [2]]


def test_the_only_pump_for_a_copy_is_waited_for_as_if_there_were_no_other(three, connect):
    """Else each slow write would cost a probe's interval, as nobody else may take the copy."""
    client = connect(write_timeout_s=5.0, leave_after=1.0, leave_min_s=0.1)
    three[2].behave = lambda _: 0.5
    for ts, payload in prewrites(1, 3):
        client.write_prewrite(payload, ts)
    assert three[2].probes == 0
    assert client.stats.prewrite_retries == 0


def test_a_client_that_is_closed_takes_nothing(three, connect):
    client = connect()
    client.write_prewrites(prewrites(1, 2))
    client.close()
    with pytest.raises(PumpUnavailable, match="this client is closed"):
        client.write_prewrites(prewrites(3, 2))


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
    assert "copies of transaction 1 are not on 2 hosts" in str(failed)
    client.write_rollback(make_rollback(1, b"key"), 1)
    assert client.flush(60)
    assert three[2].of_type("Rollback") == [1]  # once, however often it has taken it


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
    for each in members.available():
        assert members.can_be_left(each) == (copies < 3 or each.host == "y:1")


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


def test_while_there_are_hosts_with_the_labels_no_copy_goes_to_another() -> None:
    members = Members(*(LabelSelector({"zone": "a"}, fallback=True) for _ in range(2)))
    members.update(statuses(a1="h1", b="h2", a2="h3"))
    assert {members.select(0, 0, copy).node_id for copy in range(2) for _ in range(3)} == {"a1", "a2"}
    members.failed(members.get("a1"), refused=True)
    assert {members.select(0, 0, copy).node_id for copy in range(2) for _ in range(3)} == {"a2", "b"}


def test_one_host_is_one_however_its_name_is_written() -> None:
    members = Members(RangeSelector(), RangeSelector())
    members.update(statuses(a="DB1.example", b="db1.example", c="[FE80::1]", d="[fe80::1]"))
    assert {frozenset(s.node_id for s in members.last_resort(copy)) for copy in range(2)} == {
        frozenset("ab"),
        frozenset("cd"),
    }
