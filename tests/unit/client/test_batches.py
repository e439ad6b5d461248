"""Binlogs of many transactions at once, and a registry that tells of changes (real gRPC)."""

from __future__ import annotations

import queue
import threading
import time

import grpc
import pytest

from pumphouse.client import pump as pump_module
from pumphouse.client.pump_client import PumpClient
from pumphouse.codec.payload import make_commit, make_prewrite
from pumphouse.errors import BadBinlog, BinlogError, ClusterMismatch, PumpReadOnly, PumpUnavailable
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.model.node import NodeKind, NodeState
from pumphouse.registry.base import NodeChange
from pumphouse.registry.file import FileCluster
from tests.support.waiting import eventually


def prewrites(*start_ts: int, value: bytes = b"value") -> list[tuple[int, bytes]]:
    return [(each, make_prewrite(each, b"key", value)) for each in start_ts]


def by_twos(*start_ts: int) -> list[tuple[int, bytes]]:
    """So large that two go together."""
    return prewrites(*start_ts, value=bytes(pump_module.BATCH_BYTES * 2 // 5))


def names(statuses) -> list[str]:
    return [status.node_id for status in statuses]


@pytest.mark.row("C3", "W1")
def test_a_batch_goes_to_one_pump_in_its_order_on_one_stream_and_its_commits_follow(start, connect):
    pumps = {"a": start("a"), "b": start("b")}
    client = connect(write_timeout_s=60.0)
    most = pump_module.BATCH_ITEMS
    order = [*range(5000, 5000 + most), *range(1, most + 21)]
    assert client.write_prewrites(prewrites(*order)) == [None] * (2 * most + 20)
    (taker,) = [pump for pump in pumps.values() if pump.taken]
    assert taker.of_type("Prewrite") == order
    assert taker.batched == [most, most, 20]
    assert taker.asked == 0
    client.write_commits([(ts, make_commit(ts, 10_000 + ts, b"key")) for ts in order])
    assert client.flush(60)
    assert sorted(taker.of_type("Commit")) == sorted(order)
    assert (client.stats.prewrites, client.stats.commits_sent) == (len(order), len(order))
    # The next batch is the other Pump's turn.
    client.write_prewrites(prewrites(20_000, 20_001))
    assert all(pump.taken for pump in pumps.values())


@pytest.mark.row("C3")
@pytest.mark.parametrize("said", ["by its status", "by its answer"])
def test_a_go_pump_gets_them_one_by_one(start, connect, said):
    pump = start("go", go=said == "by its status")
    pump.batches = False
    client = connect()
    assert client.write_prewrites(prewrites(1, 2, 3)) == [None] * 3
    assert sorted(pump.of_type("Prewrite")) == [1, 2, 3]
    assert pump.asked == 3


@pytest.mark.row("C4")
def test_what_one_pump_does_not_take_goes_to_another_and_what_is_wrong_is_told_of_its_own(start, connect):
    full, good = start("a"), start("b")
    full.behave = lambda b: PumpReadOnly("x", available=1, limit=2) if b.start_ts % 2 else None
    for pump in (full, good):
        inner = pump.behave
        pump.behave = lambda b, inner=inner: BadBinlog("no") if b.start_ts == 7 else inner(b)
    client = connect()
    outcomes = client.write_prewrites(prewrites(*range(1, 11)))
    assert [type(each) for each in outcomes] == [type(None)] * 6 + [BadBinlog] + [type(None)] * 3
    assert full.of_type("Prewrite") == [2, 4, 6, 8, 10]
    assert good.of_type("Prewrite") == [1, 3, 5, 9]
    assert names(client.available()) == ["b"]
    client.write_commits([(ts, make_commit(ts, 100 + ts, b"key")) for ts in range(1, 11)])
    assert client.flush(60)
    assert (sorted(full.of_type("Commit")), sorted(good.of_type("Commit"))) == ([2, 4, 6, 8, 10], [1, 3, 5, 9])


@pytest.mark.row("C4")
def test_a_stream_that_breaks_leaves_what_was_answered_where_it_is(start, connect):
    pump = start("a")
    pump.break_after = 2
    client = connect()
    assert client.write_prewrites(by_twos(*range(1, 7))) == [None] * 6
    assert pump.of_type("Prewrite")[:4] == [1, 2, 3, 4]
    assert set(pump.of_type("Prewrite")[4:]) == {5, 6}


@pytest.mark.row("C4")
@pytest.mark.parametrize("wrong", ["another batch's id", "an outcome too few", "an outcome too many"])
def test_answers_that_are_not_the_batchs_answer_nothing_and_another_pump_is_asked(start, connect, wrong):
    odd, good = start("a"), start("b")

    def muddle(answer) -> None:
        if answer.batch_id != 2:
            return
        if wrong == "another batch's id":
            answer.batch_id = 0
        elif wrong == "an outcome too few":
            del answer.statuses[-1]
        else:
            answer.statuses.add()

    odd.muddle = muddle
    client = connect()
    assert client.write_prewrites(by_twos(*range(1, 7))) == [None] * 6
    assert good.of_type("Prewrite") == [1, 2, 3, 4, 5, 6]


@pytest.mark.row("C4")
def test_when_no_pump_takes_them_each_has_its_error(start, connect):
    pump = start("a")
    pump.behave = lambda _: PumpReadOnly("no available space", available=1, limit=2)
    client = connect(write_timeout_s=0.3)
    outcomes = client.write_prewrites(prewrites(4, 5))
    assert all(isinstance(each, PumpUnavailable) for each in outcomes)
    assert [each.start_ts for each in outcomes if isinstance(each, BinlogError)] == [4, 5]
    assert client.stats.prewrites_failed == 2


@pytest.mark.row("P17")
def test_one_over_the_limit_is_refused_here_by_name_and_the_others_go(start, connect):
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_TRANSACTION_BYTES + 1

    pump = start("a")
    client = connect(write_bytes_per_s=1e12)  # nobody waits for so many bytes where it is sent after all
    outcomes = client.write_prewrites([*prewrites(1), (2, Huge()), *prewrites(3)])
    assert outcomes[0] is None and outcomes[2] is None
    assert isinstance(outcomes[1], BadBinlog)
    assert str(MAX_TRANSACTION_BYTES) in str(outcomes[1])
    assert pump.of_type("Prewrite") == [1, 3]


@pytest.mark.row("W5")
def test_another_clusters_pump_is_an_error_of_the_whole_batch(start, connect, cluster, tmp_path):
    start("a", go=True)
    other = FileCluster(tmp_path / "other")
    other.update_node(NodeKind.PUMP, "a", lambda _: cluster.node(NodeKind.PUMP, "a"))
    client = connect(other)
    with pytest.raises(ClusterMismatch):
        client.write_prewrites(prewrites(1, 2))


@pytest.mark.row("C4")
@pytest.mark.row("C2")
def test_the_last_resort_does_not_leave_the_label(start, connect):
    near, far = start("near", label={"zone": "a"}), start("far", label={"zone": "b"})
    near.behave = lambda _: PumpReadOnly("x", available=1, limit=2)
    client = connect(strategy="label", labels={"zone": "a"}, write_timeout_s=0.3)
    with pytest.raises(PumpUnavailable):
        client.write_prewrite(*reversed(prewrites(1)[0]))
    assert far.asked == 0
    assert near.asked == 2
    away = connect(strategy="label", labels={"zone": "a"}, label_fallback=True, write_timeout_s=0.3)
    assert away.write_prewrite(*reversed(prewrites(2)[0])) == "far"


@pytest.mark.row("C4")
def test_a_request_that_is_too_large_for_a_pump_is_not_tried_again(start, connect):
    pumps = [start("a"), start("b")]
    for pump in pumps:
        pump.abort_with = (grpc.StatusCode.RESOURCE_EXHAUSTED, "received message larger than max (3 vs. 2)")
    client = connect()
    with pytest.raises(BadBinlog, match="larger than max"):
        client.write_prewrite(*reversed(prewrites(1)[0]))
    assert sum(pump.asked for pump in pumps) == 1


class TellingCluster(FileCluster):
    """A directory that tells of changes, as etcd does; looking at it is counted."""

    def __init__(self, directory) -> None:
        super().__init__(directory)
        self.news: queue.SimpleQueue = queue.SimpleQueue()
        self.looks = 0

    def readable_nodes(self, kind):
        self.looks += 1
        return super().readable_nodes(kind)

    def watch_nodes(self, kind):
        assert kind is NodeKind.PUMP
        outer = self

        class Watch:
            def __iter__(self):
                yield [NodeChange(node_id=s.node_id, status=s) for s in FileCluster.nodes(outer, kind)]
                while (item := outer.news.get()) is not None:
                    if isinstance(item, BinlogError):
                        raise item
                    yield item

            def close(self):
                outer.news.put(None)

        return Watch()

    def tell(self, node_id: str) -> None:
        self.news.put([NodeChange(node_id=node_id, status=self.node(NodeKind.PUMP, node_id))])


@pytest.mark.row("C1")
def test_a_registry_that_tells_is_listened_to_and_hardly_looked_at(start, connect, tmp_path):
    telling = TellingCluster(tmp_path)
    a = start("a")
    client = connect(telling)
    b = start("b")
    telling.tell("b")
    eventually(lambda: names(client.available()) == ["a", "b"])
    a.register(NodeState.CLOSING)
    telling.tell("a")
    eventually(lambda: names(client.available()) == ["b"])
    telling.update_node(NodeKind.PUMP, "b", lambda _: None)
    telling.tell("b")
    eventually(lambda: client.available() == [])
    b.register()
    telling.tell("b")
    eventually(lambda: names(client.available()) == ["b"])
    before = telling.looks
    time.sleep(0.5)
    assert telling.looks <= before + 1  # once in a while, to be sure; else each twentieth of a second


@pytest.mark.row("C1")
def test_a_watch_that_ends_is_replaced_by_looking(start, connect, tmp_path):
    telling = TellingCluster(tmp_path)
    start("a")
    client = connect(telling)
    telling.news.put(PumpUnavailable("the watch is broken"))
    start("b")
    eventually(lambda: names(client.available()) == ["a", "b"])


@pytest.mark.row("C4")
def test_a_go_pump_that_hangs_costs_one_time_out_whatever_the_number(start, cluster):
    pump = start("go", go=True)
    pump.behave = lambda _: 3.0
    connection = pump_module.PumpConnection("go", pump.host, cluster.cluster_id())
    outcomes = connection.write_many([payload for _, payload in prewrites(*range(1, 300))], 0.3)
    assert pump.asked <= pump_module.UNARY_IN_FLIGHT < 299
    assert [type(each) for each in outcomes] == [PumpUnavailable] * 299
    connection.close()


class SlowToAnswer(FileCluster):
    """Its answer to one question waits, if it is told so."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.slow, self.begun, self.answer = threading.Event(), threading.Event(), threading.Event()

    def readable_nodes(self, kind):
        found = super().readable_nodes(kind)
        if self.slow.is_set():
            self.slow.clear()
            self.begun.set()
            assert self.answer.wait(60)
        return found

    def look(self, client: PumpClient) -> threading.Thread:
        """A look of the client's that has its answer, and does not know it yet."""
        self.slow.set()
        looking = threading.Thread(target=client.refresh)
        looking.start()
        assert self.begun.wait(60)
        return looking


class SlowAndTelling(SlowToAnswer, TellingCluster):
    """Both."""


@pytest.mark.row("C1")
def test_a_slow_look_at_the_registry_does_not_undo_what_was_told_meanwhile(start, connect, tmp_path):
    telling = SlowAndTelling(tmp_path)
    a = start("a")
    client = connect(telling, watch_interval_s=60)
    looking = telling.look(client)
    start("b")
    a.register(NodeState.OFFLINE)
    telling.tell("b")
    telling.tell("a")
    eventually(lambda: names(client.available()) == ["b"])
    telling.answer.set()
    looking.join(60)
    assert names(client.available()) == ["b"]


@pytest.mark.row("C1")
def test_of_two_looks_the_one_that_was_begun_first_does_not_win_by_being_late(start, connect, tmp_path):
    cluster = SlowToAnswer(tmp_path)
    start("a")
    client = connect(cluster, watch_interval_s=60)
    looking = cluster.look(client)
    start("b")
    client.refresh()
    cluster.answer.set()
    looking.join(60)
    assert names(client.available()) == ["a", "b"]
