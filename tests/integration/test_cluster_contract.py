"""What every back end of a cluster promises: the same tests on a directory, on a real etcd and on PD before one (row W4)."""

from __future__ import annotations

import base64
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from pumphouse.capture.journal import Mark
from pumphouse.capture.lease import Lease, Progress
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import CaptureFenced, ConfigError, ResolverOverlap, UsageError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra
from pumphouse.model.tso import Tso, physical_ms
from pumphouse.registry.base import CaptureState, Cluster, ResolverRecord
from pumphouse.registry.open import open_cluster
from tests.support.pd import StandInPd
from tests.support.setclock import SetClock

_numbers = itertools.count()


def status(node_id: str, state: NodeState = NodeState.ONLINE, **more) -> NodeStatus:
    return NodeStatus(node_id=node_id, host="127.0.0.1:8250", state=state, **more)


@pytest.fixture(params=["file", "etcd", "pd"])
def new_url(request, tmp_path) -> Iterator[Callable[[], str]]:
    """URLs of clusters that do not exist yet; those of PD exist, with an empty registry in an etcd that they share."""
    members: list[StandInPd] = []
    if request.param == "pd":
        for prefix in (b"/tidb-binlog/", b"/pumphouse/"):
            key, end = (base64.b64encode(each).decode() for each in (prefix, prefix[:-1] + b"0"))
            request.getfixturevalue("etcd").ask(0, "kv/deleterange", {"key": key, "range_end": end})

    def make() -> str:
        name = f"c{next(_numbers)}"
        if request.param == "file":
            return f"file://{tmp_path / name}"
        servers = request.getfixturevalue("etcd")
        if request.param == "pd":
            pd = StandInPd(2, etcd=servers.endpoints[0])
            pd.state.cluster_id += next(_numbers)
            members.append(pd)
            return pd.url
        return f"{servers.url}/{name}"

    yield make
    for pd in members:
        pd.__exit__()


@pytest.fixture
def url(new_url) -> str:
    return new_url()


@pytest.fixture
def cluster(url) -> Iterator[Cluster]:
    made = open_cluster(url)
    yield made
    made.close()


def run(code: str, url: str, **options) -> subprocess.Popen[str]:
    header = "import sys; from pumphouse.registry.open import open_cluster; from pumphouse.model.node import NodeKind\n"
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", f"{header}c = open_cluster(sys.argv[1])\n{code}", url],
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.row("W4")
@pytest.mark.row("W5")
def test_everyone_who_opens_a_cluster_sees_the_same_id(new_url):
    url = new_url()
    first, again, other = open_cluster(url), open_cluster(url), open_cluster(new_url())
    assert first.cluster_id() == again.cluster_id() > 0
    assert first.cluster_id() != other.cluster_id()
    assert first.url == url
    for each in (first, again, other):
        each.close()


@pytest.mark.row("W4")
def test_processes_that_make_a_cluster_at_once_agree_on_one(url):
    runs = [run("print(c.cluster_id(), c.tso())", url) for _ in range(4)]
    told = [each.communicate(timeout=60)[0].split() for each in runs]
    assert len({cluster_id for cluster_id, _ in told}) == 1
    assert len({ts for _, ts in told}) == 4
    opened = open_cluster(url, create=False)
    assert int(told[0][0]) == opened.cluster_id()
    opened.close()


@pytest.mark.row("W4")
def test_a_cluster_is_not_made_by_who_only_wants_to_look(url):
    if url.startswith("pd://"):
        # PD makes it at its own start, so nobody can come before it.
        pytest.skip("PD's cluster is there before any Pump")
    for _ in range(2):
        with pytest.raises(ConfigError, match="there is no cluster"):
            open_cluster(url, create=False)


@pytest.mark.row("W4")
def test_nodes_are_listed_by_kind_and_id_with_offline_ones(cluster):
    for name in ("b", "a", "c"):
        state = NodeState.OFFLINE if name == "a" else NodeState.ONLINE
        cluster.update_node(NodeKind.PUMP, name, lambda _, name=name, state=state: status(name, state))
    cluster.update_node(NodeKind.DRAINER, "d", lambda _: status("d"))
    assert [(node.node_id, node.state) for node in cluster.nodes(NodeKind.PUMP)] == [
        ("a", "offline"),
        ("b", "online"),
        ("c", "online"),
    ]
    assert [node.node_id for node in cluster.nodes(NodeKind.DRAINER)] == ["d"]


@pytest.mark.row("W4")
def test_a_change_returns_what_is_stored_and_none_deletes(cluster):
    extra = PumpExtra(incarnation="i", start_count=2, http="127.0.0.1:1")
    stored = cluster.update_node(NodeKind.PUMP, "p", lambda found: status("p", extra=extra) if found is None else found)
    assert stored == cluster.node(NodeKind.PUMP, "p") == status("p", extra=extra)
    assert cluster.update_node(NodeKind.PUMP, "p", lambda _: None) is None
    assert cluster.node(NodeKind.PUMP, "p") is None
    assert cluster.update_node(NodeKind.PUMP, "p", lambda found: found) is None


@pytest.mark.row("W4")
def test_a_change_that_raises_leaves_the_node_alone(cluster):
    cluster.update_node(NodeKind.PUMP, "p", lambda _: status("p"))

    def fail(_):
        raise UsageError("no")

    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, "p", fail)
    assert cluster.node(NodeKind.PUMP, "p") == status("p")


@pytest.mark.row("W4")
@pytest.mark.parametrize("node_id", ["..", ".hidden", "sp ace", "ü", "%2F"])
def test_any_node_id_can_be_registered(cluster, node_id):
    cluster.update_node(NodeKind.PUMP, node_id, lambda _: status(node_id))
    assert [node.node_id for node in cluster.nodes(NodeKind.PUMP)] == [node_id]
    assert cluster.node(NodeKind.PUMP, node_id) == status(node_id)


@pytest.mark.row("W4")
def test_a_status_is_not_stored_under_another_id_or_under_none(cluster):
    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, "a", lambda _: status("b"))
    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, "", lambda _: status(""))


@pytest.mark.row("W3")
def test_what_we_do_not_know_of_a_status_survives_our_changes(cluster):
    unknown = {"future": {"x": 1}}
    cluster.update_node(NodeKind.DRAINER, "d", lambda _: status("d", unknown=unknown, label={"zone": "a"}))
    cluster.update_node(NodeKind.DRAINER, "d", lambda found: found.with_(state=NodeState.PAUSED))
    assert cluster.node(NodeKind.DRAINER, "d") == status("d", NodeState.PAUSED, unknown=unknown, label={"zone": "a"})


@pytest.mark.row("W4")
def test_no_update_is_lost_between_threads_and_processes(cluster, url):
    cluster.update_node(NodeKind.PUMP, "p", lambda _: status("p"))
    code = "for _ in range(25): c.update_node(NodeKind.PUMP, 'p', lambda s: s.with_(score=s.score + 1))"
    runs = [run(code, url) for _ in range(2)]

    def add():
        for _ in range(25):
            cluster.update_node(NodeKind.PUMP, "p", lambda found: found.with_(score=found.score + 1))

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.communicate(timeout=60) and each.returncode for each in runs] == [0, 0]
    assert cluster.node(NodeKind.PUMP, "p").score == 100


# The clock


@pytest.mark.row("W4")
def test_timestamps_follow_the_clock_and_always_rise(cluster):
    taken = [cluster.tso() for _ in range(50)]
    assert taken == sorted(set(taken))
    assert abs(physical_ms(taken[-1]) / 1000 - SYSTEM_CLOCK.now()) < 30


@pytest.mark.row("W4")
def test_threads_and_processes_get_timestamps_that_rise_for_each_and_are_nobodys_twice(cluster, url):
    runs = [run("print(*c.tsos(40), *(c.tso() for _ in range(60)))", url) for _ in range(2)]
    taken: list[list[int]] = [[] for _ in range(8)]

    def take(mine: list[int]) -> None:
        for _ in range(10):
            mine.extend(cluster.tsos(7))
            mine.extend(cluster.tso() for _ in range(3))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken += [[int(ts) for ts in each.communicate(timeout=60)[0].split()] for each in runs]
    assert all(mine == sorted(mine) for mine in taken)
    assert len({ts for mine in taken for ts in mine}) == 1000


@pytest.mark.row("W4")
def test_a_timestamp_asked_for_after_another_was_answered_is_above_it_in_whatever_process(cluster, url):
    other = run("for line in sys.stdin: print(c.tso(), flush=True)", url, stdin=subprocess.PIPE)
    last = Tso(0)
    for _ in range(20):
        other.stdin.write("\n")
        other.stdin.flush()
        theirs = int(other.stdout.readline())
        assert theirs > last
        last = cluster.tso()
        assert last > theirs
    other.communicate(timeout=30)


FORKS = """
import os, signal, threading
stop = threading.Event()
def work():
    while not stop.is_set():
        c.tso()
def fork():
    before = c.tso()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a deadlock ends the child by signal
        os._exit(0 if c.tso() > before and c.nodes(NodeKind.PUMP) == [] else 1)
    _, status = os.waitpid(child, 0)
    if status != 0:
        print("child ended with", status, flush=True)
        os._exit(1)
for _ in range(3): fork()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(10): fork()
stop.set()
for thread in threads: thread.join()
"""


@pytest.mark.row("W4")
def test_a_child_forked_while_threads_take_timestamps_can_use_the_cluster(url):
    forking = run(FORKS, url, stderr=subprocess.PIPE)
    out, err = forking.communicate(timeout=120)
    assert forking.returncode == 0, out + err


@pytest.mark.row("W4")
def test_timestamps_of_processes_that_are_killed_are_never_given_out_again(cluster, url):
    taken: list[int] = []
    for _ in range(2):
        runs = [run("while True: print(c.tso(), flush=True)", url) for _ in range(2)]
        seen = [int(each.stdout.readline()) for each in runs]
        for each in runs:
            os.kill(each.pid, signal.SIGKILL)
        rest = [int(line) for each in runs for line in each.communicate()[0].splitlines() if len(line) == 18]
        assert cluster.tso() > max(seen + rest)
        assert min(seen) > max(taken, default=0)
        taken += seen + rest
    assert len(set(taken)) == len(taken)


# Resolvers


@pytest.fixture
def set_clock(cluster) -> SetClock:
    """The clock that decides which resolvers are live."""
    clock = SetClock()
    keeper = getattr(cluster, "_nodes", cluster)
    keeper._clock = clock
    return clock


def record(name: str, *prefixes: bytes, at: float = 1000.0) -> ResolverRecord:
    return ResolverRecord(resolver_id=name, host=f"{name}:1", prefixes=prefixes, heartbeat=at)


@pytest.mark.row("W3")
@pytest.mark.parametrize("node_id", ["rack1/pump", "a\nb", ""])
def test_an_id_that_others_could_not_read_from_its_key_is_not_registered(cluster, node_id):
    wanted = NodeStatus(node_id=node_id, host="h:1", state=NodeState.ONLINE)
    with pytest.raises(UsageError):
        cluster.update_node(NodeKind.PUMP, node_id, lambda _: wanted)
    assert node_id not in [each.node_id for each in cluster.nodes(NodeKind.PUMP)]


@pytest.mark.row("P6")
@pytest.mark.usefixtures("set_clock")
def test_a_resolver_is_registered_replaced_by_its_id_and_removed(cluster):
    cluster.put_resolver(record("bank", b"\x00bin/", b"b"))
    cluster.put_resolver(record("bank", b"c"))
    assert cluster.resolvers() == [record("bank", b"c")]
    cluster.delete_resolver("bank")
    cluster.delete_resolver("bank")
    assert cluster.resolvers() == []


@pytest.mark.row("P6")
@pytest.mark.parametrize(("mine", "theirs"), [(b"ab", b"a"), (b"a", b"ab"), (b"a", b"a"), (b"", b"x"), (b"x", b"")])
def test_prefixes_that_overlap_those_of_a_live_resolver_are_refused(cluster, set_clock, mine, theirs):
    cluster.put_resolver(record("one", theirs))
    with pytest.raises(ResolverOverlap) as error:
        cluster.put_resolver(record("two", b"zz", mine))
    assert (error.value.resolver_id, error.value.other) == ("two", "one")
    set_clock.value += 10
    cluster.put_resolver(record("two", b"zz", mine, at=set_clock.value))
    with pytest.raises(ResolverOverlap):  # the old one comes back too late
        cluster.put_resolver(record("one", theirs, at=set_clock.value))


@pytest.mark.row("Q1")
def test_a_capture_is_registered_changed_by_who_holds_it_and_removed(cluster, set_clock):
    assert cluster.captures() == []
    mine = Lease.take(cluster, "main", source="root@db:3306", server="s", clock=set_clock)
    (first,) = cluster.captures()
    assert (first.capture_id, first.state, first.gtid) == ("main", CaptureState.RUNNING, "")
    with pytest.raises(CaptureFenced, match="runs on"):
        Lease.take(cluster, "main", source="root@db:3306", server="s", clock=set_clock)
    set_clock.value += 16  # the first one stood still
    other = Lease.take(cluster, "main", source="root@db:3306", server="s", clock=set_clock)
    with pytest.raises(CaptureFenced, match="taken over"):
        mine.held()
    mine.release(None)  # in vain
    other.held()
    mark = Mark(gtid="0-1-9", moment=2.0, schema=1, transactions=3, anew=True, start_ts=7, commit_ts=8)
    other.release(Progress(mark=mark, lag_s=0.5))
    (last,) = cluster.captures()
    assert (last.state, last.gtid, last.transactions) == (CaptureState.STOPPED, "0-1-9", 3)
    assert (last.start_ts, last.commit_ts, last.anew) == (7, 8, True)
    third = Lease.take(cluster, "main", source="root@db:3306", server="s", clock=set_clock)
    found = cluster.captures()[0]
    assert (found.gtid, found.start_ts, found.commit_ts, found.anew) == ("0-1-9", 7, 8, True)
    third.release(None, UsageError("so it was"))
    assert cluster.captures()[0].state is CaptureState.FAILED
    cluster.update_capture("main", lambda _: None)
    assert cluster.captures() == []


@pytest.mark.row("P6")
def test_of_resolvers_that_register_overlapping_prefixes_at_once_one_wins(cluster):
    won: list[str] = []

    def register(name: str) -> None:
        try:
            cluster.put_resolver(record(name, b"k", at=SYSTEM_CLOCK.now()))
        except ResolverOverlap:
            return
        won.append(name)

    threads = [threading.Thread(target=register, args=(f"r{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [each.resolver_id for each in cluster.resolvers()] == won
