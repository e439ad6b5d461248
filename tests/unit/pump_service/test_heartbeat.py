"""What the registry says of a Pump."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pump_service.metrics import PumpMetrics
from pump_service.node.heartbeat import Registrar, Report, Superseded, beat
from pump_service.store.store import Elsewhere
from pumphouse.clock import SYSTEM_CLOCK
from pumphouse.errors import CorruptionError
from pumphouse.model.node import NodeKind, NodeState, NodeStatus, PumpExtra, Replaced
from pumphouse.model.tso import Tso, physical_ms
from pumphouse.registry.file import FileCluster
from tests.support.awaycluster import AwayCluster
from tests.support.quickloop import run_quickly
from tests.support.setclock import SetClock

pytestmark = pytest.mark.row("W3", "P10")


def report(incarnation: str = "a", start_count: int = 1, watermark: int = 7) -> Report:
    return Report(
        max_commit_ts=Tso(watermark), score=42, extra=PumpExtra(incarnation=incarnation, start_count=start_count)
    )


@pytest.fixture
def cluster(tmp_path: Path) -> AwayCluster:
    return AwayCluster(tmp_path / "cluster")


def registrar(cluster: FileCluster) -> Registrar:
    return Registrar(cluster, "p1", "127.0.0.1:8250", SYSTEM_CLOCK)


def replaced(cluster: FileCluster) -> list[tuple[str, int]]:
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert node.extra is not None
    return [(each.incarnation, each.start_count) for each in node.extra.replaced]


def test_a_registration_says_state_watermark_score_and_incarnation(cluster: FileCluster) -> None:
    before = cluster.tso()
    registrar(cluster).write(NodeState.ONLINE, report())
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert (node.host, node.state, node.score, node.max_commit_ts) == ("127.0.0.1:8250", NodeState.ONLINE, 42, 7)
    assert node.extra == PumpExtra(incarnation="a", start_count=1)
    assert not node.is_alive
    assert 0 <= physical_ms(node.update_ts) - physical_ms(before) < 60_000
    assert list(json.loads(node.to_json()))[:8] == [
        "nodeId", "host", "state", "isAlive", "score", "label", "maxCommitTS", "updateTS",
    ]  # fmt: skip


@pytest.mark.parametrize("state", [None, NodeState.OFFLINE, NodeState.CLOSING])
def test_a_failed_start_puts_back_what_it_found(cluster: FileCluster, state: NodeState | None) -> None:
    found = None if state is None else NodeStatus(node_id="p1", host="old:1", state=state, max_commit_ts=Tso(5))
    cluster.update_node(NodeKind.PUMP, "p1", lambda _: found)
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report())
    mine.put_back()
    assert cluster.node(NodeKind.PUMP, "p1") == found


def test_a_start_that_never_registered_puts_nothing_back(cluster: FileCluster) -> None:
    mine = registrar(cluster)
    cluster.update_node(NodeKind.PUMP, "p1", lambda _: NodeStatus(node_id="p1", host="other:1", state=NodeState.ONLINE))
    mine.put_back()
    assert cluster.node(NodeKind.PUMP, "p1") is not None


@pytest.mark.parametrize("other", [("b", 1), ("a", 2)])
def test_a_process_whose_node_id_was_taken_stops_instead_of_overwriting(
    cluster: FileCluster, other: tuple[str, int]
) -> None:
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report())
    registrar(cluster).write(NodeState.ONLINE, report(*other))
    with pytest.raises(Superseded, match="another process has registered as p1"):
        mine.write(NodeState.ONLINE, report())
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert node.extra is not None
    assert (node.extra.incarnation, node.extra.start_count) == other


@pytest.mark.parametrize(
    ("registered", "bound", "answers"),
    [
        ("127.0.0.1", "127.0.0.1:{}", False),
        ("127.0.0.1", "0.0.0.0:{}", False),
        ("127.0.0.1", "localhost:{}", False),
        ("127.0.0.2", "0.0.0.0:{}", False),  # as 127.0.1.1, which Debian gives to the name of a host
        ("127.0.0.1", "127.0.0.1:1", True),
        ("127.0.0.2", "127.0.0.1:{}", True),  # the same port of another address of this machine
    ],
)
def test_a_process_elsewhere_answers_unless_it_is_this_one(
    cluster: FileCluster, registered: str, bound: str, answers: bool
) -> None:
    with socket.create_server((registered, 0)) as listening:
        port = listening.getsockname()[1]
        addr = f"{registered}:{port}"
        Registrar(cluster, "p1", addr, SYSTEM_CLOCK).write(NodeState.ONLINE, report())
        # Its address has another name now, as after a change of advertise_addr.
        again = Registrar(cluster, "p1", "another-name:1", SYSTEM_CLOCK)
        assert again.elsewhere(bound.format(port)) == Elsewhere(addr=addr, answers=answers)
        assert Registrar(cluster, "p1", addr, SYSTEM_CLOCK).elsewhere(bound.format(port)) is None
    assert again.elsewhere(bound.format(port)) is None  # nobody listens there any more


def test_of_two_directories_that_start_at_once_under_one_node_id_the_later_one_is_refused(cluster: FileCluster) -> None:
    first = Registrar(cluster, "p1", "127.0.0.1:1", SYSTEM_CLOCK)
    second = Registrar(cluster, "p1", "127.0.0.1:2", SYSTEM_CLOCK)
    first.write(NodeState.ONLINE, report("a"))
    with pytest.raises(Superseded, match=r"incarnation a, start 1, at 127\.0\.0\.1:1"):
        second.write(NodeState.ONLINE, report("b"))
    second.put_back()
    first.write(NodeState.ONLINE, report("a"))  # goes on
    first.write(NodeState.PAUSED, report("a"))
    second.write(NodeState.ONLINE, report("b"))  # that one has ended


@pytest.mark.parametrize(
    ("state", "other", "warns"),
    [
        (NodeState.PAUSED, "a", True),
        (NodeState.ONLINE, None, False),  # a Go Pump's directory is taken over as it is
        (NodeState.OFFLINE, "a", False),  # drained
        (NodeState.PAUSED, "b", False),  # its own
    ],
)
def test_a_node_id_that_was_anothers_is_told(
    cluster: FileCluster, state: NodeState, other: str | None, warns: bool
) -> None:
    extra = None if other is None else PumpExtra(incarnation=other, start_count=1)
    before = NodeStatus(node_id="p1", host="old:1", state=state, extra=extra)
    cluster.update_node(NodeKind.PUMP, "p1", lambda _: before)
    with capture_logs() as logged:
        mine = registrar(cluster)
        mine.write(NodeState.ONLINE, report("b"))
        mine.write(NodeState.ONLINE, report("b"))
    told = [each for each in logged if each["event"] == "node_id_had_another_incarnation"]
    assert len(told) == int(warns)
    assert not warns or told[0]["replaced"] == other


def test_a_new_start_takes_over_the_registry_value_of_the_last_one(cluster: FileCluster) -> None:
    registrar(cluster).write(NodeState.ONLINE, report("a", 5))
    before = cluster.node(NodeKind.PUMP, "p1")
    assert before is not None
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report("b", 1))  # the data directory was emptied
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    gone = Replaced(incarnation="a", start_count=5, update_ts=before.update_ts)
    assert node.extra == PumpExtra(incarnation="b", start_count=1, replaced=(gone,))
    # It stays, whatever a Go tool makes of the value, and over later starts.
    cluster.update_node(NodeKind.PUMP, "p1", lambda n: n and n.with_(extra=None))
    mine.write(NodeState.ONLINE, report("b", 1))
    registrar(cluster).write(NodeState.ONLINE, report("b", 2))
    assert replaced(cluster) == [("a", 5)]
    registrar(cluster).write(NodeState.ONLINE, report("c", 1))
    assert replaced(cluster) == [("a", 5), ("b", 2)]


@pytest.mark.row("W4")
def test_a_value_that_cannot_be_read_stays_and_once_it_is_deleted_the_pump_that_runs_registers_again(
    cluster: FileCluster, tmp_path: Path
) -> None:
    registrar(cluster).write(NodeState.ONLINE, report("a", 5))
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report("b", 1))
    (value,) = (tmp_path / "cluster").rglob("pumps/p1")
    spoiled = value.read_bytes().replace(b'"maxCommitTS":7', b'"maxCommitTS":1e400')
    value.write_bytes(spoiled)  # it may be of another process, which has taken over
    with pytest.raises(CorruptionError, match="pumps/p1") as refused:
        mine.write(NodeState.ONLINE, report("b", 1))
    assert "let no snapshot and no capture run" in refused.value.hint
    assert value.read_bytes() == spoiled
    value.unlink()
    mine.write(NodeState.ONLINE, report("b", 1))
    assert replaced(cluster) == [("a", 5)]


@pytest.mark.row("A2")
def test_of_the_incarnations_that_were_replaced_the_last_eight_are_kept(cluster: FileCluster) -> None:
    for n in range(12):
        registrar(cluster).write(NodeState.ONLINE, report(f"i{n}", n + 1))
    assert replaced(cluster) == [(f"i{n}", n + 1) for n in range(3, 11)]


@pytest.mark.row("A2")
@pytest.mark.parametrize(("start_count", "known"), [(1, [("", 0)]), (2, [])])
def test_a_value_without_our_fields_is_a_go_pumps_for_a_new_directory_and_ones_own_for_an_old_one(
    cluster: FileCluster, start_count: int, known: list[tuple[str, int]]
) -> None:
    found = NodeStatus(node_id="p1", host="old:1", state=NodeState.OFFLINE)
    cluster.update_node(NodeKind.PUMP, "p1", lambda _: found)
    registrar(cluster).write(NodeState.ONLINE, report("a", start_count))
    assert replaced(cluster) == known


def test_a_failed_start_leaves_what_another_has_written_since(cluster: FileCluster) -> None:
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report("a", 1))
    registrar(cluster).write(NodeState.ONLINE, report("a", 2))
    mine.put_back()
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert node.extra is not None
    assert node.extra.start_count == 2


def test_a_write_that_nobody_waits_for_any_more_does_not_overwrite_a_newer_state(cluster: AwayCluster) -> None:
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report())
    hangs, goes_on, ended = threading.Event(), threading.Event(), threading.Semaphore(0)

    def stands_still() -> None:
        if not hangs.is_set():  # the first one is on its way to a registry that stands still
            hangs.set()
            goes_on.wait(60)
        ended.release()

    cluster.first["update_node"] = stands_still

    async def run() -> None:
        beating = asyncio.create_task(mine.register(NodeState.ONLINE, report()))
        while not hangs.is_set():
            await asyncio.sleep(0.01)
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating
        await mine.register(NodeState.PAUSED, report())
        goes_on.set()
        await mine.close()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert ended.acquire(blocking=False) and ended.acquire(blocking=False), "both came to the registry"
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert node.state is NodeState.PAUSED


def test_a_registry_that_cannot_be_reached_does_not_hide_why_a_start_failed(cluster: AwayCluster) -> None:
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report())
    go_on = threading.Event()
    cluster.first["update_node"] = lambda: go_on.wait(60)

    async def run() -> None:
        try:
            await mine.try_to_put_back()
        finally:
            go_on.set()

    run_quickly(run(), within_s=5)


def test_an_update_is_never_older_than_the_start(cluster: FileCluster) -> None:
    before = cluster.tso()
    mine = registrar(cluster)
    assert mine.approximate_tso() > before


def updated(cluster: FileCluster) -> Tso:
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    return node.update_ts


@pytest.mark.row("A2")
def test_a_heartbeat_has_the_time_of_the_cluster_though_the_machine_s_clock_stood_still(cluster: AwayCluster) -> None:
    clock = SetClock()  # a machine that was paused: its monotonic clock did not go on, and the cluster's did
    mine = Registrar(cluster, "p1", "127.0.0.1:8250", clock)
    mine.write(NodeState.ONLINE, report())
    lost_to = cluster.tso()
    mine.write(NodeState.ONLINE, report())
    assert updated(cluster) > lost_to
    assert mine.approximate_tso() > lost_to
    # While the cluster gives none out, it goes on from the last one by the machine's clock, as far as that goes.
    cluster.fails("tso", OSError("no leader"))
    before = updated(cluster)
    clock.sleep(60)
    mine.write(NodeState.ONLINE, report())
    assert physical_ms(updated(cluster)) - physical_ms(before) in range(60_000, 61_000)


@pytest.mark.row("W3", "A2")
def test_a_heartbeat_does_not_wait_for_a_cluster_that_gives_no_timestamp_out(
    cluster: AwayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump_service.node.heartbeat._DRAWN_WITHIN_S", 0.05)
    mine = Registrar(cluster, "p1", "127.0.0.1:8250", SYSTEM_CLOCK)
    gives, asked = threading.Event(), itertools.count()
    cluster.first["tso"] = lambda: (next(asked), gives.wait())
    for state in (NodeState.ONLINE, NodeState.PAUSING):
        mine.write(state, report())
        node = cluster.node(NodeKind.PUMP, "p1")
        assert node is not None
        assert node.state is state
    assert next(asked) == 1, "one asks, whoever waits"
    gives.set()


@pytest.mark.row("A2")
def test_an_update_is_never_below_the_watermark_beside_it(cluster: AwayCluster) -> None:
    mine = Registrar(cluster, "p1", "127.0.0.1:8250", SetClock())
    cluster.fails("tso", OSError("no leader"), times=1)
    watermark = mine.start_tso + (3_600_000 << 18)
    mine.write(NodeState.ONLINE, report(watermark=watermark))
    assert updated(cluster) == watermark
    # What an earlier Pump wrote the other way round counts as well, once another incarnation replaces it.
    old = NodeStatus(
        node_id="p1", host="old:1", state=NodeState.OFFLINE, max_commit_ts=Tso(9), update_ts=Tso(5),
        extra=PumpExtra(incarnation="old", start_count=1),
    )  # fmt: skip
    cluster.update_node(NodeKind.PUMP, "p1", lambda _: old)
    Registrar(cluster, "p1", "127.0.0.1:1", SYSTEM_CLOCK).write(NodeState.ONLINE, report())
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert node.extra is not None
    assert node.extra.replaced[-1] == Replaced(incarnation="old", start_count=1, update_ts=Tso(9))


def test_fields_that_others_wrote_survive_and_a_forced_state_does_not(cluster: FileCluster) -> None:
    mine = registrar(cluster)
    mine.write(NodeState.ONLINE, report())
    cluster.update_node(NodeKind.PUMP, "p1", lambda n: n and n.with_(state=NodeState.OFFLINE, unknown={"later": 1}))
    mine.write(NodeState.ONLINE, report())
    node = cluster.node(NodeKind.PUMP, "p1")
    assert node is not None
    assert node.state is NodeState.ONLINE
    assert node.unknown == {"later": 1}


def test_a_heartbeat_goes_on_after_the_registry_was_away(cluster: AwayCluster) -> None:
    mine = registrar(cluster)
    metrics = PumpMetrics()
    watermark = [1]
    cluster.fails("update_node", OSError("disk gone"), times=2)

    async def run() -> None:
        task = asyncio.create_task(
            beat(mine, 0.01, lambda: NodeState.ONLINE, lambda: report(watermark=watermark[0]), metrics, asyncio.Lock())
        )
        while cluster.node(NodeKind.PUMP, "p1") is None:
            await asyncio.sleep(0.01)
        watermark[0] = 9
        while cluster.node(NodeKind.PUMP, "p1").max_commit_ts != 9:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), 10))
    assert b"binlog_pump_heartbeat_failures_total 2.0" in metrics.text()
