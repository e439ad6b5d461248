"""The pump client against Pumps that fail in every way (real gRPC)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from structlog.testing import capture_logs

from pumphouse.client import commits, pump_client
from pumphouse.client.members import MAX_ERRORS, Members
from pumphouse.client.pump import PumpConnection
from pumphouse.client.pump_client import PumpClient
from pumphouse.codec.payload import make_commit, make_prewrite, make_rollback
from pumphouse.errors import BadBinlog, ClusterMismatch, PumpDraining, PumpReadOnly, PumpUnavailable
from pumphouse.model.binlog import MAX_TRANSACTION_BYTES
from pumphouse.model.node import NodeKind, NodeState, NodeStatus
from pumphouse.proto.pump_pb2_grpc import PumpServicer, add_PumpServicer_to_server
from pumphouse.registry.file import FileCluster
from tests.support.fakepump import FakePump
from tests.support.setclock import QuickClock
from tests.support.waiting import eventually

CLIENT = {"write_timeout_s": 2.0}


def prewrite(client: PumpClient, start_ts: int) -> str:
    return client.write_prewrite(make_prewrite(start_ts, b"key", b"value"), start_ts)


def unavailable(client: PumpClient, *pumps: FakePump) -> None:
    """Each of these refuses one prewrite; another Pump takes them."""
    for pump in pumps:
        pump.behave = lambda _: PumpReadOnly("x", available=1, limit=2)
    gone = {pump.node_id for pump in pumps}
    while gone & set(names(client.available())):
        prewrite(client, 1000)
    for pump in pumps:
        pump.behave, pump.asked = lambda _: None, 0


def when_chosen(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something once, between the choice of a Pump and its call."""
    select, left = Members.select, [action]

    def then(self: Members, start_ts: int, retry: int, copy: int) -> NodeStatus | None:
        found = select(self, start_ts, retry, copy)
        while left:
            left.pop()()
        return found

    monkeypatch.setattr(Members, "select", then)


class SeenConnections:
    """Those that clients open and close."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[PumpConnection] = []
        self.closed: list[PumpConnection] = []
        seen = self

        class Seen(PumpConnection):
            def __init__(self, *given, **more):
                super().__init__(*given, **more)
                seen.opened.append(self)

            def close(self):
                seen.closed.append(self)
                super().close()

        monkeypatch.setattr(pump_client, "PumpConnection", Seen)

    def of(self, name: str) -> list[PumpConnection]:
        return [each for each in self.opened if each.node_id == name]

    def left(self) -> list[PumpConnection]:
        """Those that are open."""
        return [each for each in self.opened if each not in self.closed]


@pytest.fixture
def seen(monkeypatch) -> SeenConnections:
    return SeenConnections(monkeypatch)


def names(statuses) -> list[str]:
    return [status.node_id for status in statuses]


def test_a_cluster_without_pumps_is_an_error_that_says_what_to_do(cluster):
    with pytest.raises(PumpUnavailable, match="pumphouse pump run"):
        PumpClient(cluster)


@pytest.mark.row("C2")
def test_prewrites_of_many_threads_are_spread_evenly(start, connect):
    pumps = {name: start(name) for name in "abc"}
    client = connect()

    def write(first: int) -> None:
        for start_ts in range(first, first + 50):
            prewrite(client, start_ts)

    threads = [threading.Thread(target=write, args=(1000 * number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(len(pump.of_type("Prewrite")) for pump in pumps.values()) == {100: 3}
    assert client.stats.prewrites == 300


@pytest.mark.row("C3")
def test_commits_and_rollbacks_go_to_the_pump_that_took_the_prewrite(start, connect):
    pumps = {name: start(name) for name in "abc"}
    client = connect()
    for start_ts in range(1, 31):
        prewrite(client, start_ts)
        if start_ts % 3:
            client.write_commit(make_commit(start_ts, start_ts + 1000, b"key"), start_ts)
        else:
            client.write_rollback(make_rollback(start_ts, b"key"), start_ts)
    assert client.flush(60)
    for pump in pumps.values():
        ended = pump.of_type("Commit") + pump.of_type("Rollback")
        assert sorted(ended) == sorted(pump.of_type("Prewrite"))
        assert len(ended) == 10
    assert (client.stats.commits_sent, client.stats.commits_lost) == (30, 0)


@pytest.mark.row("C3")
def test_a_commit_whose_prewrite_nobody_took_is_dropped_in_silence(start, connect):
    pump = start("a")
    client = connect()
    client.write_commit(make_commit(5, 6, b"k"), 5)
    prewrite(client, 7)
    client.forget(7)
    client.write_commit(make_commit(7, 8, b"k"), 7)
    assert client.flush(60)
    assert pump.of_type("Commit") == []


@pytest.mark.row("C3")
def test_writing_a_commit_does_not_wait_for_a_pump_that_hangs_and_a_lost_one_is_no_error(start, connect):
    pump = start("a")
    client = connect(write_timeout_s=4)
    prewrite(client, 1)
    pump.behave = lambda _: 5.0
    client.write_commit(make_commit(1, 2, b"k"), 1)
    assert (client.stats.commits_sent, client.stats.commits_lost) == (0, 0), "it is on its way"
    pump.stop()
    client.close(flush_s=0.2)
    eventually(lambda: client.stats.commits_lost == 1, what="its call ends with the connection")


@pytest.mark.row("C3")
def test_a_commit_waits_for_its_pump_to_come_back(start, connect):
    pump = start("a")
    client = connect()
    for start_ts in (1, 2, 3):
        prewrite(client, start_ts)
    pump.stop()
    for start_ts in (1, 2, 3):
        client.write_commit(make_commit(start_ts, 10 + start_ts, b"k"), start_ts)
    assert not client.flush(0.3)
    back = start("a")  # another port, as a restarted Pump may have
    assert client.flush(60)
    assert sorted(back.of_type("Commit")) == [1, 2, 3]


@pytest.mark.row("C3")
def test_a_commit_is_given_up_after_its_time(start, connect):
    clock = QuickClock()
    pump = start("a")
    client = connect(clock=clock)
    prewrite(client, 1)
    pump.stop()
    client.write_commit(make_commit(1, 2, b"k"), 1)
    assert not client.flush(0.3)
    clock.ahead += commits.GIVE_UP_S
    assert client.flush(60)
    assert client.stats.commits_lost == 1


@pytest.mark.row("C3")
def test_commits_for_a_dead_pump_do_not_hold_those_for_another(start, connect):
    pumps = {"a": start("a"), "b": start("b")}
    client = connect()
    taken = {start_ts: prewrite(client, start_ts) for start_ts in range(1, 9)}
    pumps["a"].stop()
    for start_ts in taken:
        client.write_commit(make_commit(start_ts, 100 + start_ts, b"k"), start_ts)
    eventually(lambda: len(pumps["b"].of_type("Commit")) == 4)


@pytest.mark.row("C4")
def test_a_prewrite_that_one_pump_refuses_or_does_not_answer_goes_to_another(start, connect):
    dead, good = start("a"), start("b")
    client = connect()
    dead.stop()
    assert [prewrite(client, start_ts) for start_ts in range(1, 5)] == ["b"] * 4
    assert good.of_type("Prewrite") == [1, 2, 3, 4]
    assert client.stats.prewrite_retries >= 1


@pytest.mark.row("C4")
def test_a_prewrite_that_timed_out_is_sent_to_another_pump_and_its_commit_follows_it_there(start, connect):
    slow, good = start("a"), start("b")
    slow.behave = lambda binlog: 1.0
    client = connect(write_timeout_s=0.3)
    assert prewrite(client, 1) == "b"
    client.write_commit(make_commit(1, 2, b"k"), 1)
    assert client.flush(60)
    assert good.of_type("Commit") == [1]
    eventually(lambda: slow.of_type("Prewrite") == [1])  # both hold the P; the slow one will have to ask
    assert slow.of_type("Commit") == []


@pytest.fixture
def hold():
    """What hangs until it is set."""
    held = threading.Event()
    yield held
    held.set()


@pytest.mark.row("C4", "C5")
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("strategy", ["range", "hash", "score"])
def test_a_silent_pump_is_left_for_another_and_comes_back_when_it_answers(start, connect, hold, many, strategy):
    silent, good = start("a"), start("b")
    silent.behave = lambda _: PumpUnavailable("it hung") if not hold.wait(60) else None
    client = connect(write_timeout_s=60.0, leave_min_s=0.2, leave_after=0.01, strategy=strategy, probe_interval_s=100.0)
    wanted = list(range(1, 13))
    for at in range(0, len(wanted), many):
        payloads = [(ts, make_prewrite(ts, b"key", b"value")) for ts in wanted[at : at + many]]
        assert client.write_prewrites(payloads) == [None] * many
    assert good.of_type("Prewrite") == wanted
    assert names(client.available()) == ["b"]
    assert client.stats.prewrite_retries == many, "it is left once"
    hold.set()
    eventually(lambda: names(client.available()) == ["a", "b"])


@pytest.mark.row("C4", "C5")
def test_a_pump_that_answers_probes_and_no_prewrites_is_probed_in_its_turn(start, connect, hold):
    silent, _ = start("a"), start("b")
    silent.behave = lambda binlog: PumpUnavailable("it hung") if binlog.start_ts and not hold.wait(60) else None
    client = connect(write_timeout_s=60.0, leave_min_s=0.2, probe_interval_s=100.0)
    start_ts = 0
    while client.stats.prewrite_retries < 2:
        start_ts += 1
        assert prewrite(client, start_ts) == "b"
    for _ in range(5):
        start_ts += 1
        assert prewrite(client, start_ts) == "b"
    assert (silent.probes, client.stats.prewrite_retries) == (1, 2)
    hold.set()
    client.probe()
    assert names(client.available()) == ["a", "b"]


@pytest.mark.row("C4")
def test_the_only_pump_that_may_take_a_prewrite_is_not_left(start, connect):
    slow, other = start("a", label={"zone": "a"}), start("b")
    slow.behave = lambda _: 0.5
    client = connect(write_timeout_s=60.0, leave_min_s=0.05, leave_after=0.01, strategy="label", labels={"zone": "a"})
    assert prewrite(client, 1) == "a"
    assert (client.stats.prewrite_retries, other.asked) == (0, 0)


@pytest.mark.row("C4")
def test_a_cluster_that_is_slow_as_a_whole_is_waited_for(start, connect):
    pumps = [start("a"), start("b")]
    for pump in pumps:
        pump.behave = lambda _: 0.3
    client = connect(write_timeout_s=60.0, leave_min_s=0.05, leave_after=10.0)
    assert {prewrite(client, start_ts) for start_ts in range(1, 5)} == {"a", "b"}
    assert client.stats.prewrite_retries == 0


@pytest.mark.row("C4")
def test_errors_in_a_row_make_a_pump_unavailable(start, connect):
    bad, good = start("a"), start("b")
    bad.behave = lambda _: PumpUnavailable("leveldb: closed")
    client = connect()
    for start_ts in range(1, 2 * MAX_ERRORS + 10):
        assert prewrite(client, start_ts) == "b"
    assert names(client.available()) == ["b"]
    assert bad.asked == MAX_ERRORS + 1
    assert len(good.of_type("Prewrite")) == 2 * MAX_ERRORS + 9


@pytest.mark.row("C4")
@pytest.mark.parametrize("error", [PumpDraining("x", state="closing"), PumpReadOnly("x", available=1, limit=2)])
def test_a_pump_that_says_it_takes_no_prewrites_is_asked_once(start, connect, error):
    bad, good = start("a"), start("b")
    bad.behave = lambda _: error
    client = connect()
    for start_ts in range(1, 7):
        assert prewrite(client, start_ts) == "b"
    assert bad.asked == 1
    assert len(good.of_type("Prewrite")) == 6


@pytest.mark.row("C4")
@pytest.mark.row("W7")
def test_when_no_pump_takes_it_the_last_error_is_told_and_every_online_pump_was_tried_again(start, connect):
    pumps = [start("a"), start("b")]
    for pump in pumps:
        pump.behave = lambda _: PumpReadOnly("x", available=1, limit=2)
    client = connect(write_timeout_s=0.5)
    with pytest.raises(PumpUnavailable, match="no available space") as error:
        prewrite(client, 42)
    assert error.value.start_ts == 42
    assert [pump.asked for pump in pumps] == [2, 2]
    assert client.stats.prewrites_failed == 1


@pytest.mark.row("C4")
def test_an_unavailable_pump_that_works_again_is_found_by_the_last_resort(start, connect):
    pump = start("a")
    client = connect(write_timeout_s=0.3)
    answers = [PumpReadOnly("x", available=1, limit=2)]
    pump.behave = lambda _: answers.pop() if answers else None
    assert prewrite(client, 1) == "a"  # no Pump is available any more, so it waits and then tries those online
    assert names(client.available()) == ["a"]


@pytest.mark.row("W5")
def test_another_clusters_pump_is_a_clear_error_at_once(start, connect, cluster, tmp_path):
    pump = start("a")
    other = FileCluster(tmp_path / "other")
    other.update_node(NodeKind.PUMP, "a", lambda _: cluster.node(NodeKind.PUMP, "a"))
    client = connect(other)
    with pytest.raises(ClusterMismatch, match="cluster ID are mismatch"):
        prewrite(client, 1)
    assert pump.asked == 1


@pytest.mark.row("P17")
def test_a_transaction_over_the_limit_is_refused_before_it_is_sent(start, connect):
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_TRANSACTION_BYTES + 1

    pump = start("a")
    with pytest.raises(BadBinlog, match="over the limit") as error:
        connect().write_prewrite(Huge(), 1)
    assert error.value.limit == MAX_TRANSACTION_BYTES
    assert pump.asked == 0


@pytest.mark.row("C1")
def test_the_registry_is_watched(start, connect, cluster):
    a = start("a")
    client = connect()
    start("b")
    eventually(lambda: names(client.available()) == ["a", "b"])
    a.register(NodeState.PAUSED)
    eventually(lambda: names(client.available()) == ["b"])
    a.register()
    eventually(lambda: names(client.available()) == ["a", "b"])
    cluster.update_node(NodeKind.PUMP, "b", lambda _: None)
    eventually(lambda: names(client.available()) == ["a"])


@pytest.mark.row("C1")
def test_a_registry_that_cannot_be_read_leaves_what_is_known(start, connect, tmp_path):
    start("a")
    client = connect()
    (tmp_path / "tidb-binlog" / "v1" / "pumps" / "broken").write_text("{")
    client.refresh()
    assert prewrite(client, 1) == "a"


@pytest.mark.row("C5")
def test_a_probe_brings_back_an_unavailable_pump_and_stores_nothing(start, connect):
    pump = start("a")
    start("b")
    with capture_logs() as logged:
        client = connect(probe_interval_s=0.1)
        pump.behave = lambda _: PumpReadOnly("x", available=1, limit=2)
        for start_ts in (1, 2, 3, 4):
            assert prewrite(client, start_ts) == "b"
        time.sleep(0.4)
        assert names(client.available()) == ["b"]  # probes are refused too
        pump.behave = lambda _: None
        eventually(lambda: names(client.available()) == ["a", "b"])
        eventually(lambda: "pump_available_again" in [each["event"] for each in logged])
    assert pump.probes >= 1
    assert pump.taken == []
    told = [each for each in logged if each["log_level"] == "warning"]
    assert [(each["event"], each["node_id"]) for each in told] == [
        ("pump_unavailable", "a"),
        ("pump_available_again", "a"),
    ]
    assert "no available space" in told[0]["error"]


def test_a_connection_closed_by_another_thread_is_an_error_of_ours(start, cluster):
    pump = start("a")
    connection = PumpConnection("a", pump.host, cluster.cluster_id())
    connection.close()
    with pytest.raises(PumpUnavailable):
        connection.write(b"", 1)
    assert [type(each) for each in connection.write_many([b"", b""], 1)] == [PumpUnavailable] * 2


class _Cancels(PumpServicer):
    def WriteBinlog(self, request, context):
        context.abort(grpc.StatusCode.CANCELLED, "the server did")


def test_a_call_that_the_server_cancels_is_not_put_down_to_the_client(cluster):
    server = grpc.server(ThreadPoolExecutor(2))
    add_PumpServicer_to_server(_Cancels(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection = PumpConnection("a", f"127.0.0.1:{port}", cluster.cluster_id())
    try:
        for outcome in connection.write_many([b"x", b"y"], 5):
            assert "the server did" in str(outcome)
    finally:
        connection.close()
        server.stop(0)


@pytest.mark.parametrize("batch", [False, True])
def test_calls_that_their_own_client_ends_say_so(start, cluster, batch):
    pump, asked, goes_on = start("a"), threading.Semaphore(0), threading.Event()

    def hang(_):
        asked.release()
        goes_on.wait(60)

    pump.behave = hang
    payload = make_prewrite(1, b"k", b"")
    connection = PumpConnection("a", pump.host, cluster.cluster_id(), batch=batch)
    try:
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(connection.write, payload, 10)
            several = pool.submit(connection.write_many, [payload, payload], 10)
            assert asked.acquire(timeout=60) and asked.acquire(timeout=60)
            connection.close()
            errors = [one.exception(60), *several.result(60)]
            goes_on.set()
    finally:
        goes_on.set()
    text = "Pump a: this client closed the connection before an answer came"
    assert [(type(error), str(error)) for error in errors] == [(PumpUnavailable, text)] * 3


def test_open_transactions_are_remembered_up_to_a_number(start, connect, monkeypatch):
    monkeypatch.setattr(pump_client, "_MOST_OPEN", 2)
    pump = start("a")
    client = connect()
    for start_ts in (1, 2, 3):
        prewrite(client, start_ts)
    for start_ts in (1, 2, 3):
        client.write_commit(make_commit(start_ts, 10, b"k"), start_ts)
    assert client.flush(60)
    assert sorted(pump.of_type("Commit")) == [2, 3]


class HeldPump:
    """A way to a Pump that takes what it is given when it may go on."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()
        self.got: list[bytes] = []

    def send(self, payloads: Sequence[bytes]) -> list[None]:
        self.asked.set()
        self.goes_on.wait(60)
        self.got.extend(payloads)
        return [None] * len(payloads)


@pytest.mark.row("C3")
def test_more_commits_than_may_wait_push_out_the_oldest():
    to = HeldPump()
    sender = commits.CommitSender("a", to.send)
    sender.put(b"first")
    assert to.asked.wait(60)
    waiting = [b"%d" % number for number in range(commits.LIMIT + 2)]
    for payload in waiting:
        sender.put(payload)
    to.goes_on.set()
    assert sender.flush(30)
    sender.close(1)
    assert to.got == [b"first", *waiting[2:]]
    assert (sender.sent, sender.lost) == (commits.LIMIT + 1, 2)
    sender.put(b"after the end")
    assert sender.lost == 3


@pytest.mark.row("C3")
def test_commits_that_wait_are_bounded_in_bytes_too():
    to, large = HeldPump(), commits.LIMIT_BYTES * 2 // 5
    sender = commits.CommitSender("a", to.send)
    sender.put(b"first")
    assert to.asked.wait(60)
    sender.put(*(bytes(large + number) for number in range(5)))
    to.goes_on.set()
    assert sender.flush(60)
    sender.put(bytes(2 * commits.LIMIT_BYTES))  # one is sent however large it is
    assert sender.flush(60)
    sender.close(1)
    assert [len(payload) for payload in to.got] == [5, large + 3, large + 4, 2 * commits.LIMIT_BYTES]
    assert (sender.sent, sender.lost) == (4, 3)


@pytest.mark.row("C3")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("wrong", [OSError("no such file"), SystemExit(), None])
def test_commits_go_on_after_an_unforeseen_error_too_few_outcomes_and_the_end_of_their_thread(wrong):
    first, got = [wrong], []

    def send(payloads):
        if first:
            if (error := first.pop()) is not None:
                raise error
            return []
        got.extend(payloads)
        return [None] * len(payloads)

    sender = commits.CommitSender("a", send)
    sender.put(b"1")
    eventually(lambda: not first)
    if isinstance(wrong, SystemExit):
        eventually(lambda: not any(thread.name == "commits-a" for thread in threading.enumerate()))
    sender.put(b"2")
    assert sender.flush(60)
    assert got == [b"1", b"2"]
    sender.close(1)


@pytest.mark.row("C3", "C5")
def test_a_client_keeps_nothing_of_pumps_that_were_removed_once_their_commits_are_sent(start, connect, cluster, seen):
    start("stays")
    client = connect()
    for number in range(5):
        name = f"goes-{number}"
        pump = start(name)
        client.refresh()
        start_ts = 10 * number + 10
        while prewrite(client, start_ts) != name:
            client.forget(start_ts)
            start_ts += 1
        client.write_commit(make_commit(start_ts, start_ts + 1, b"k"), start_ts)
        assert client.flush(60)
        cluster.update_node(NodeKind.PUMP, name, lambda _: None)
        pump.stop()
    eventually(lambda: not any(thread.name.startswith("commits-goes") for thread in threading.enumerate()))
    eventually(lambda: {each.node_id for each in seen.left()} <= {"stays"})
    assert client.stats.commits_sent == 5


@pytest.mark.row("C3")
def test_what_a_removed_pump_has_not_answered_is_not_thrown_away(start, connect, cluster):
    pump = start("a")
    client = connect()
    prewrite(client, 1)
    found = cluster.node(NodeKind.PUMP, "a")
    cluster.update_node(NodeKind.PUMP, "a", lambda _: None)
    client.refresh()
    client.write_commit(make_commit(1, 2, b"k"), 1)
    client.refresh()
    cluster.update_node(NodeKind.PUMP, "a", lambda _: found)
    client.refresh()
    assert client.flush(60)
    assert pump.of_type("Commit") == [1]


@pytest.mark.row("C3")
def test_a_client_that_is_closed_opens_nothing_any_more(start, connect, seen, monkeypatch):
    start("a")
    client = connect()
    for start_ts in (1, 2):
        prewrite(client, start_ts)
    opened, entered, go_on = list(seen.opened), threading.Event(), threading.Event()
    get = Members.get

    def slow(self, node_id):
        entered.set()
        go_on.wait(60)
        return get(self, node_id)

    monkeypatch.setattr(Members, "get", slow)
    client.write_commit(make_commit(1, 2, b"k"), 1)
    assert entered.wait(60)  # its thread is about to ask for the connection
    threads = set(threading.enumerate())
    client.close(flush_s=0)
    go_on.set()
    eventually(lambda: not any(thread.name == "commits-a" for thread in threading.enumerate()))
    client.write_commit(make_commit(2, 3, b"k"), 2)
    with pytest.raises(PumpUnavailable, match="closed"):
        prewrite(client, 3)
    assert seen.opened == opened
    assert not set(threading.enumerate()) - threads
    assert client.stats.commits_lost == 2


@pytest.mark.row("C1", "C4")
def test_a_pump_that_was_started_again_at_its_address_takes_prewrites_at_once(start, connect, seen):
    """The old channel waits before it connects again; what fails on it is not the new process's fault."""
    hold = threading.Event()
    first, _ = start("a"), start("b")
    client = connect()
    assert {prewrite(client, ts) for ts in range(1, 5)} == {"a", "b"}
    first.behave = lambda _: PumpDraining("x", state="closing") if hold.wait(60) else None
    under_way = [threading.Thread(target=prewrite, args=(client, 100 + n), daemon=True) for n in range(4 * MAX_ERRORS)]
    for thread in under_way:
        thread.start()
    eventually(lambda: first.asked > 1 + MAX_ERRORS)
    (before,) = seen.of("a")
    # The status of the new process comes while calls of the old one are under way.
    first.register(start_count=2)
    client.refresh()
    first.behave = lambda _: None
    assert {prewrite(client, ts) for ts in range(10, 14)} == {"a", "b"}
    assert before in seen.closed
    assert [each is before for each in seen.of("a")] == [True, False]
    hold.set()
    for thread in under_way:
        thread.join()
    assert names(client.available()) == ["a", "b"]
    opened = len(seen.opened)
    for go in (False, True, False):  # heartbeats, and what a Go program writes
        first.register(start_count=2, go=go)
        client.refresh()
        assert {prewrite(client, ts) for ts in range(20, 24)} == {"a", "b"}
    assert len(seen.opened) == opened


@pytest.mark.row("C1")
def test_a_thread_that_is_slow_to_connect_does_not_go_back_to_the_process_before(start, connect, seen, monkeypatch):
    pump = start("a")
    client = connect(watch_interval_s=60.0)
    plain, slow = Members.get, threading.Event()

    def get(self, node_id):
        found = plain(self, node_id)
        if threading.current_thread() is late and not slow.is_set():
            slow.set()
            time.sleep(0.3)
        return found

    late = threading.Thread(target=prewrite, args=(client, 1))
    monkeypatch.setattr(Members, "get", get)
    late.start()
    assert slow.wait(60)
    pump.register(start_count=2)
    client.refresh()
    prewrite(client, 2)
    late.join()
    prewrite(client, 3)
    before, newest = seen.opened
    assert seen.closed == [before]
    assert seen.left() == [newest]


@pytest.mark.row("C4")
def test_threads_do_not_end_each_others_last_try(start, connect, seen):
    pump = start("a")
    pump.behave = lambda _: 3.0
    client = connect(write_timeout_s=0.6, write_bytes_per_s=2_000)
    taken: list[object] = []

    def write(start_ts: int) -> None:
        time.sleep(start_ts / 100)  # each comes to its last try a little behind the one before
        value = bytes(6_000) if start_ts == 1 else b""  # the first one's last try is answered, long after theirs
        try:
            taken.append(client.write_prewrite(make_prewrite(start_ts, b"key", value), start_ts))
        except PumpUnavailable as error:
            taken.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 9)]
    with capture_logs() as logged:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "a" in taken
    assert not [each for each in taken if "closed the connection" in str(each)]
    assert not [each for each in logged if "closed the connection" in str(each.get("error"))]
    assert len(seen.left()) == 1


@pytest.mark.row("C4")
def test_a_last_try_that_works_where_the_shared_connection_did_not_takes_its_place(start, connect, seen):
    pump = start("a")
    client = connect(write_timeout_s=0.3)
    prewrite(client, 1)
    answers = [1.0] * 2
    pump.behave = lambda _: answers.pop() if answers else None
    assert prewrite(client, 2) == "a"
    before, after = seen.opened
    assert (before.ended, after.ended) == (True, False)
    assert prewrite(client, 3) == "a"
    assert seen.left() == [after]


@pytest.mark.row("C4")
def test_what_this_client_ended_itself_is_no_failure_of_the_pump(start, connect, seen):
    pump = start("a")
    client = connect(clock=QuickClock())
    prewrite(client, 1)
    seen.opened[0].close()
    with capture_logs() as logged:
        assert prewrite(client, 2) == "a"  # by its last try, behind many
    assert client.stats.prewrite_retries > MAX_ERRORS
    assert [each["event"] for each in logged if each["log_level"] == "warning"] == []
    assert names(client.available()) == ["a"]
    assert pump.asked == 2


@pytest.mark.row("C4")
def test_a_pump_that_was_started_again_is_said_to_be_back(start, connect):
    pump, _ = start("a"), start("b")
    with capture_logs() as logged:
        client = connect()
        unavailable(client, pump)
        pump.register(NodeState.PAUSED)
        client.refresh()
        pump.register(start_count=2)
        client.refresh()
        client.refresh()
    told = [(each["event"], each["node_id"]) for each in logged if each["log_level"] == "warning"]
    assert told == [("pump_unavailable", "a"), ("pump_available_again", "a")]


@pytest.mark.row("C4")
def test_what_fails_counts_against_the_process_that_it_was_sent_to(start, connect, monkeypatch):
    pump, _ = start("a"), start("b")
    client = connect(watch_interval_s=60.0)
    pump.behave = lambda _: PumpDraining("x", state="closing")
    when_chosen(monkeypatch, lambda: (pump.register(start_count=2), client.refresh()))
    assert [prewrite(client, start_ts) for start_ts in (1, 2)] == ["b", "b"]
    assert pump.asked == 1
    assert names(client.available()) == ["b"]


@pytest.mark.row("C4")
def test_what_fails_when_its_process_is_gone_does_not_count_against_the_next(start, connect):
    pump, _ = start("a"), start("b")
    client = connect(watch_interval_s=60.0)

    def ends(_):
        pump.register(start_count=2)
        client.refresh()
        pump.behave = lambda _: None
        return PumpDraining("x", state="closing")

    pump.behave = ends
    with capture_logs() as logged:
        assert {prewrite(client, start_ts) for start_ts in (1, 2, 3)} == {"a", "b"}
    assert pump.asked > 1
    assert [each["event"] for each in logged if each["log_level"] == "warning"] == []
    assert names(client.available()) == ["a", "b"]


@pytest.mark.row("C1")
def test_a_pump_that_is_removed_when_it_was_just_chosen_is_asked_all_the_same(start, connect, cluster, monkeypatch):
    pump = start("a")
    client = connect(watch_interval_s=60.0)
    when_chosen(monkeypatch, lambda: (cluster.update_node(NodeKind.PUMP, "a", lambda _: None), client.refresh()))
    assert prewrite(client, 1) == "a"
    assert client.available() == []
    assert pump.of_type("Prewrite") == [1]


@pytest.mark.row("C1", "P2")
def test_a_pump_of_ours_in_place_of_a_go_pump_is_asked_in_batches(start, connect):
    pump = start("a").register(go=True)
    client = connect(watch_interval_s=60.0)
    assert prewrite(client, 1) == "a"
    pump.register()
    client.refresh()
    assert client.write_prewrites([(ts, make_prewrite(ts, b"key", b"value")) for ts in (2, 3)]) == [None, None]
    assert pump.batched == [2]


@pytest.mark.row("C5", "C1")
def test_a_pump_that_hangs_delays_neither_the_probes_of_others_nor_the_watch(start, connect, request):
    hold = threading.Event()
    request.addfinalizer(hold.set)
    a, b, c, _ = (start(name) for name in "abcx")
    clock = QuickClock()
    client = connect(probe_interval_s=100.0, write_timeout_s=60.0, clock=clock)
    unavailable(client, a, b, c)
    a.behave = lambda _: PumpUnavailable("it hung") if hold.wait(60) else None  # the first that is probed
    clock.ahead += 100
    eventually(lambda: names(client.available()) == ["b", "c", "x"])
    # The watch looks at this registry; meanwhile "a" is asked once, however often its turn comes.
    start("d")
    eventually(lambda: names(client.available()) == ["b", "c", "d", "x"])
    unavailable(client, b)
    b.behave = lambda _: PumpUnavailable("leveldb: closed")

    def probed() -> bool:
        clock.ahead += 100
        return b.asked >= 4

    eventually(probed)
    assert a.asked == 1
    hold.set()


@pytest.mark.row("C5")
def test_a_client_ends_its_probes_with_itself(start, connect, request):
    hold = threading.Event()
    request.addfinalizer(hold.set)
    pump, _ = start("a"), start("b")
    clock = QuickClock()
    client = connect(probe_interval_s=100.0, write_timeout_s=60.0, clock=clock)
    unavailable(client, pump)
    pump.behave = lambda _: PumpUnavailable("it hung") if hold.wait(60) else None
    clock.ahead += 100
    eventually(lambda: pump.asked == 1)
    probing = [thread for thread in threading.enumerate() if thread.name == "pump-probe"]
    assert probing
    client.close(flush_s=0)
    eventually(lambda: not any(thread.is_alive() for thread in probing))


@pytest.mark.row("C5")
def test_probes_that_are_asked_for_have_ended_on_return(start, connect):
    a, b, _ = (start(name) for name in "abc")
    client = connect()
    unavailable(client, a, b)
    client.probe()
    assert names(client.available()) == ["a", "b", "c"]
