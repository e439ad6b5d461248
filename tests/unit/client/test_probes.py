"""Probes side by side: how many at once, one a Pump, and their end."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from pumphouse.client.probes import Probes
from pumphouse.model.node import NodeState, NodeStatus
from tests.support.waiting import eventually

PUMPS = [NodeStatus(node_id=f"p{number}", host="h:1", state=NodeState.ONLINE) for number in range(20)]


class Asked:
    """Probes that take until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.lock = threading.Lock()
        self.of: Counter[str] = Counter()
        self.now = self.most = 0

    def __call__(self, pump: NodeStatus) -> None:
        with self.lock:
            self.of[pump.node_id] += 1
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.go_on.wait(60)
        with self.lock:
            self.now -= 1


@pytest.mark.row("C5")
def test_so_many_run_at_once_and_each_pump_has_one_at_most() -> None:
    asked = Asked()
    probes = Probes(asked, threads=3)
    for _ in range(5):
        probes.start(PUMPS)
    eventually(lambda: asked.now == 3)
    asked.go_on.set()
    probes.wait()
    assert asked.most == 3
    assert asked.of == Counter({pump.node_id: 1 for pump in PUMPS})
    probes.start(PUMPS[:2])  # those that have ended are probed again
    probes.wait()
    assert asked.of["p0"] == asked.of["p1"] == 2
    eventually(lambda: not [each for each in threading.enumerate() if each.name == "pump-probe"])


@pytest.mark.row("C5")
def test_after_the_close_none_begins() -> None:
    asked = Asked()
    probes = Probes(asked, threads=1)
    probes.start(PUMPS)
    eventually(lambda: asked.now == 1)
    threading.Timer(0.05, asked.go_on.set).start()
    probes.close(30)
    probes.start(PUMPS)
    probes.wait()
    assert asked.of == Counter({"p0": 1})


@pytest.mark.row("C5")
def test_a_probe_that_fails_in_an_unforeseen_way_holds_up_no_other() -> None:
    asked: Counter[str] = Counter()

    def probe(pump: NodeStatus) -> None:
        asked[pump.node_id] += 1
        if asked.total() == 1:
            raise RuntimeError("a bug")

    probes = Probes(probe, threads=1)
    probes.start(PUMPS[:3])
    probes.wait()
    probes.start(PUMPS[:1])
    probes.wait()
    assert asked == Counter(p0=2, p1=1, p2=1)


@pytest.mark.row("C5")
def test_where_no_thread_can_be_started_the_next_round_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    asked.go_on.set()
    probes = Probes(asked)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        probes.start(PUMPS)
    probes.wait()
    assert not asked.of
    probes.start(PUMPS)
    probes.wait()
    assert len(asked.of) == len(PUMPS)
    probes.close(30)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
